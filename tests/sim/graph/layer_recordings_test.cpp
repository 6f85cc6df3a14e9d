// Layer programs against everything that layers allocate and free in recordings of PyTorch 2.11
// (tests/recordings): order, bytes and category, in every variant that the recordings use.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "models/families.h"
#include "models/layers/layers.h"
#include "models/layers/lora.h"
#include "models/recorded.h"
#include "sim/base/lookup.h"
#include "sim/graph/training_step.h"

namespace foreshard {
namespace {

using Fields = std::map<std::string, std::string>;

std::vector<Fields> read_recordings(const char* file) {
  std::ifstream in(std::string(FORESHARD_SOURCE_DIR "/tests/recordings/") + file);
  std::string line;
  std::vector<std::string> header;
  std::vector<Fields> rows;
  while (std::getline(in, line)) {
    std::vector<std::string> cells;
    std::istringstream cut(line);
    for (std::string cell; std::getline(cut, cell, ',');) cells.push_back(cell);
    if (header.empty()) {
      header = cells;
      continue;
    }
    Fields& row = rows.emplace_back();
    for (std::size_t i = 0; i < header.size(); ++i) row[header[i]] = cells.at(i);
  }
  return rows;
}

std::int64_t number(const Fields& c, const char* key) { return std::stoll(c.at(key)); }
bool is_true(const Fields& c, const char* key) { return c.at(key) == "True"; }

DType dtype(const std::string& name, DType otherwise) {
  if (name == "bf16") return DType::kBf16;
  if (name == "fp16") return DType::kFp16;
  return name == "fp32" ? DType::kFp32 : otherwise;
}

ModelSpec model_of(const Fields& c) {
  RecordedSettings s = {.model = c.at("model"),
      .layers = number(c, "layers"),
      .dim = number(c, "dim"),
      .ffn = number(c, "ffn"),
      .heads = number(c, "heads"),
      .kv_heads = number(c, "kv_heads"),
      .vocab = number(c, "vocab"),
      .seq = number(c, "seq"),
      .batch = number(c, "batch"),
      .experts = number(c, "experts"),
      .top_k = number(c, "top_k"),
      .repeat = number(c, "repeat"),
      .tied = is_true(c, "tied") || c.at("tied") == "root",
      .attention = c.at("attention")};
  return build_recorded_model(s);
}

void set_units(const Fields& c, Plan& plan) {
  plan.units.layers_per_unit = number(c, "layers_per_unit");
  if (c.at("grouping") != "titan") {
    plan.units.embedding = plan.units.head = UnitPlacement::kRoot;
    if (c.at("grouping") == "root") plan.units.blocks = UnitPlacement::kRoot;
  } else if (is_true(c, "tied")) {
    plan.units.embedding = UnitPlacement::kWithHead;
    plan.units.head = UnitPlacement::kRoot;
  } else {
    plan.units.head = UnitPlacement::kWithNorm;
  }
  if (is_true(c, "expert_units")) plan.units.experts = UnitPlacement::kOwn;
}

Plan plan_of(const Fields& c) {
  Plan plan;
  plan.runtime.version = "2.11";
  plan.batch = {number(c, "seq"), number(c, "batch"), number(c, "accumulate")};
  plan.master_dtype = dtype(c.at("orig_dtype"), DType::kFp32);
  plan.param_dtype = dtype(c.at("param_dtype"), plan.master_dtype);
  plan.reduce_dtype = dtype(c.at("reduce_dtype"), plan.param_dtype);
  if (!c.at("output_dtype").empty()) plan.output_dtype = dtype(c.at("output_dtype"), DType::kFp32);
  set_units(c, plan);
  const std::int64_t layers = number(c, "layers");
  const std::string& frozen = c.at("frozen");
  plan.frozen.embedding = frozen == "embedding" || frozen == "first_half";
  for (std::int64_t i = 0; i < layers; ++i) {
    const bool is_frozen = frozen == "first_half" ? i < layers / 2 : frozen == "alternate" && i % 2 == 1;
    if (is_frozen) plan.frozen.blocks.ranges.push_back({i, i, true});
    if (c.at("recompute") == "every2" && i % 2 == 0) plan.recompute.ranges.push_back({i, i, Recompute::kFull});
  }
  if (c.at("recompute") == "full") plan.recompute.value = Recompute::kFull;
  if (c.at("recompute") == "selective") plan.recompute.value = Recompute::kSelective;
  if (is_true(c, "ignore_norms")) plan.ignored = Ignored::kNorms;
  if (c.at("accumulate_mode") == "no_sync") plan.accumulation = AccumulationMode::kKeepUnsharded;
  plan.evaluation.in_step = is_true(c, "eval_forward");
  return plan;
}

// All actions of a step in host order, as the recording writes them.
class Step {
 public:
  Step(const ModelSpec& model, const Plan& plan) : model_(model), plan_(plan), programs_(model, plan) {}

  std::vector<std::string> run() {
    const auto loss = static_cast<std::int32_t>(model_.order.size()) - 1;
    if (plan_.evaluation.in_step) {
      forward([&](std::int32_t l) -> const LayerProgram& { return *programs_.evaluation(l); });
    }
    for (std::int64_t m = 0; m < plan_.batch.accumulation; ++m) {
      micro_batch_ = m == 0                              ? StepMicroBatch::kFirst
                     : m + 1 == plan_.batch.accumulation ? StepMicroBatch::kLastOfSeveral
                                                         : StepMicroBatch::kLater;
      const auto of = [&](std::int32_t l) -> const LayerProgram& {
        return *programs_.at(l, recompute(l), micro_batch_);
      };
      forward(of);
      append(of(loss), of(loss).backward, {0});
      for (std::int32_t l = loss; l-- > 0;) {
        append(of(l), of(l).backward, {LayerSegment::kBefore});
        append(of(l), of(l).recompute, kAll);
        append(of(l), of(l).backward, {0, 1, LayerSegment::kAfter});
      }
      append(of(loss), of(loss).backward, {LayerSegment::kAfter});
    }
    return std::move(actions_);
  }
  // Of the category backward_temp, which a gradient leaves when it is stored.
  std::int64_t backward_peak() const { return backward_peak_; }

 private:
  using Parts = std::vector<std::int8_t>;
  inline static const Parts kAll = {LayerSegment::kBefore, 0, 1, LayerSegment::kAfter};

  Recompute recompute(std::int32_t layer) const {
    const auto& order = model_.order;
    const LayerInstance& instance = order[at(layer)];
    const bool block = model_.kinds[at(instance.kind)].role == LayerRole::kBlock;
    if (!block) return Recompute::kNone;
    return plan_.recompute.at((instance.same_as < 0 ? layer : instance.same_as) - 1);
  }

  // A final norm's input goes with the head's.
  void forward(const auto& of) {
    const auto loss = static_cast<std::int32_t>(model_.order.size()) - 1;
    const std::int32_t head = loss - 1, norm = loss - 2;
    for (std::int32_t l = 0; l <= loss; ++l) {
      append(of(l), of(l).forward, {LayerSegment::kBefore, 0, 1});
      if (l != norm) append(of(l), of(l).forward, {LayerSegment::kAfter});
      if (l == head) append(of(norm), of(norm).forward, {LayerSegment::kAfter});
    }
  }

  void append(const LayerProgram& program, const LayerPhaseProgram& phase, const Parts& parts) {
    std::size_t done = 0;
    for (const LayerSegment& segment : phase.segments) {
      const bool wanted = contains(parts, segment.part);
      for (; done < segment.actions_end; ++done) {
        if (wanted) append(program, phase.actions[done]);
      }
    }
  }

  void append(const LayerProgram& program, std::int32_t action) {
    if (action >= LayerPhaseProgram::kStore) {
      const auto stored = at(action - LayerPhaseProgram::kStore);
      EXPECT_EQ(program.slots[stored].stored, MemoryCategory::kUnshardedGrad);
      backward_ -= program.slots[stored].bytes.count();
      return;
    }
    const auto slot = at((action > 0 ? action : -action) - 1);
    if (slot >= at(LayerPhaseProgram::kEarlierGradient)) {
      // An earlier gradient of the same parameter: of the size of the sum made just before.
      actions_.push_back("-" + actions_.back().substr(1));
      backward_ -= last_bytes_;
      return;
    }
    const std::size_t own = program.slots.size();
    const MemoryCategory category = slot < own    ? program.slots[slot].category
                                    : slot == own ? MemoryCategory::kActivation
                                                  : MemoryCategory::kBackwardTemp;
    const Bytes bytes = slot < own    ? program.slots[slot].bytes
                        : slot == own ? program.output_bytes
                                      : program.output_grad_bytes;
    last_bytes_ = bytes.count();
    if (category == MemoryCategory::kBackwardTemp) {
      backward_ += action > 0 ? last_bytes_ : -last_bytes_;
      backward_peak_ = std::max(backward_peak_, backward_);
    }
    actions_.push_back((action > 0 ? "+" : "-") + std::string(1, *to_string(category)) +
                       std::to_string(bytes.count() / kAllocationGranularity));
  }

  const ModelSpec& model_;
  const Plan& plan_;
  const LayerPrograms programs_;
  StepMicroBatch micro_batch_ = StepMicroBatch::kFirst;
  std::vector<std::string> actions_;
  std::int64_t last_bytes_ = 0, backward_ = 0, backward_peak_ = 0;
};

void expect_same(const std::vector<std::string>& actions, const std::vector<std::string>& expected) {
  const auto [a, b] = std::mismatch(actions.begin(), actions.end(), expected.begin(), expected.end());
  EXPECT_TRUE(a == actions.end() && b == expected.end())
      << "action " << a - actions.begin() << " of " << expected.size() << ": " << (a == actions.end() ? "nothing" : *a)
      << " instead of " << (b == expected.end() ? "nothing" : *b);
}

TEST(LayerRecordings, EveryAllocationIsPyTorchsInItsOrder) {
  const std::vector<Fields> recordings = read_recordings("layers.csv");
  ASSERT_GT(recordings.size(), 30U);
  for (const Fields& c : recordings) {
    SCOPED_TRACE(c.at("id"));
    std::vector<std::string> expected;
    std::istringstream words(c.at("actions"));
    for (std::string word; words >> word;) expected.push_back(word);
    ASSERT_GT(expected.size(), 100U);
    const ModelSpec model = model_of(c);
    const Plan plan = plan_of(c);
    Step step(model, plan);
    const std::vector<std::string> actions = step.run();
    EXPECT_EQ(step.backward_peak(), number(c, "backward_temp_peak"));
    expect_same(actions, expected);
  }
}

// The sizes of tests/recordings/families.py: no biases where Qwen2-MoE has some.
ModelDims dims_of(const std::string& family) {
  ModelDims dims = family_dims(family).value();
  dims.name = family;
  dims.layers = 2;
  dims.hidden = 256;
  dims.heads = 4;
  dims.kv_heads = family == "gpt_neox" || family == "bert" || family == "deepseek_v3" ? 4 : family == "falcon" ? 1 : 2;
  dims.head_dim = 64;
  dims.ffn = 384;
  dims.vocabulary = 2048;
  dims.max_positions = 128;
  dims.dropout = dims.bidirectional;
  if (family == "gpt_neox") dims.rotary_dim = 16;
  if (family == "mixtral") dims.moe.experts = 4;
  if (family == "qwen2_moe") {
    dims.qkv_bias = false;
    dims.moe.experts = 4;
    dims.moe.shared_ffn = 768;
  }
  if (family == "deepseek_v3") {
    dims.moe.experts = 4;
    dims.moe.shared_ffn = 384;
    dims.latent = {.q_rank = 96, .kv_rank = 64, .nope = 32, .rope = 16, .value = 32};
    dims.head_dim = 48;
  }
  if (dims.moe.experts > 0) {
    dims.moe.top_k = 2;
    dims.moe.ffn = 384;
  }
  return dims;
}

// Two blocks of the family between the embedding, norm and head of a Llama.
ModelSpec around(const ModelDims& dims) {
  ModelDims llama = family_dims("llama").value();
  llama.name = dims.name;
  llama.layers = dims.layers;
  llama.hidden = dims.hidden;
  llama.heads = llama.kv_heads = 4;
  llama.head_dim = 64;
  llama.ffn = dims.ffn;
  llama.vocabulary = dims.vocabulary;
  llama.max_positions = dims.max_positions;
  ModelSpec model = build_model(llama);
  model.kinds[1] = decoder_block(
      dims, Stack::kEager, {.mlp = dims.moe.experts > 0 ? FeedForwardKind::kExperts : FeedForwardKind::kDense});
  return model;
}

TEST(LayerRecordings, BlocksOfOtherFamiliesAllocateAsPyTorchDoes) {
  const std::vector<Fields> recordings = read_recordings("families.csv");
  ASSERT_EQ(recordings.size(), 9U);
  Plan plan;
  plan.runtime.version = "2.11";
  plan.batch.sequence = 128;
  plan.batch.micro_batch = 2;
  plan.units.head = UnitPlacement::kWithNorm;
  for (const Fields& c : recordings) {
    SCOPED_TRACE(c.at("id"));
    std::vector<std::string> expected;
    std::istringstream words(c.at("actions"));
    for (std::string word; words >> word;) expected.push_back(word);
    ASSERT_GT(expected.size(), 100U);
    const bool adapts = c.at("id") == "lora";
    const ModelDims dims = dims_of(adapts ? "llama" : c.at("id"));
    ModelSpec model = around(dims);
    if (adapts) {
      plan.lora = {.rank = 16, .targets = {"q_proj", "v_proj", "down_proj"}, .dropout = 0, .base = Lora::Base::kMaster};
      model = with_adapters(std::move(model), plan);
    }
    std::vector<std::string> actions = Step(model, plan).run();
    if (dims.moe.experts > 0) {
      // The router's scores and indices are a few bytes per token and expert, in a dozen small
      // kernels that are not all told apart here.
      for (std::vector<std::string>* list : {&actions, &expected}) {
        std::erase_if(*list, [](const std::string& a) { return std::stoi(a.substr(2)) <= 8; });
      }
    }
    expect_same(actions, expected);
  }
}

}
}
