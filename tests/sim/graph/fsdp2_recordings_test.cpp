// The fsdp2 builder against recordings of PyTorch 2.11: the order of everything FSDP2 issues, the
// bytes it sends, and the peak of allocated memory in step 2.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "models/model_dims.h"
#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "sim/spec/plan_check.h"

namespace foreshard {
namespace {

using Fields = std::map<std::string, std::string>;

std::vector<Fields> read_csv(const std::string& name) {
  std::ifstream in(std::string(FORESHARD_SOURCE_DIR) + "/tests/recordings/fsdp2-2.11.0/" + name);
  EXPECT_TRUE(in) << name;
  auto split = [](const std::string& line) {
    std::vector<std::string> cells(1);
    for (char c : line) {
      if (c == ',') {
        cells.emplace_back();
      } else {
        cells.back() += c;
      }
    }
    return cells;
  };
  std::string line;
  std::getline(in, line);
  const std::vector<std::string> header = split(line);
  std::vector<Fields> rows;
  while (std::getline(in, line)) {
    const std::vector<std::string> cells = split(line);
    Fields row;
    for (std::size_t i = 0; i < header.size(); ++i)
      row[header[i]] = i < cells.size() ? cells[i] : "";
    rows.push_back(std::move(row));
  }
  return rows;
}

std::int64_t number(const Fields& row, const std::string& key) {
  return std::strtoll(row.at(key).c_str(), nullptr, 10);
}

ModelSpec model_of(const Fields& c) {
  ModelDims d;
  d.name = c.at("id");
  d.family = "llama";
  d.source = "tests/recordings";
  d.layers = number(c, "layers");
  d.hidden = number(c, "dim");
  d.heads = number(c, "heads");
  d.kv_heads = number(c, "kv_heads");
  d.head_dim = d.hidden / d.heads;
  d.ffn = number(c, "ffn");
  d.vocabulary = number(c, "vocab");
  d.max_positions = number(c, "seq");
  return build_model(d);
}

DType dtype_of(const std::string& word) { return word == "bf16" ? DType::kBf16 : DType::kFp32; }

Plan plan_of(const Fields& c, const ModelSpec& model) {
  Plan plan;
  plan.batch = {number(c, "seq"), number(c, "batch"), number(c, "accumulate")};
  const std::string mesh = c.at("mesh");
  const std::size_t cross = mesh.find('x');
  plan.mesh.replicate = cross == std::string::npos ? 1 : std::stoll(mesh.substr(0, cross));
  plan.mesh.shard = std::stoll(cross == std::string::npos ? mesh : mesh.substr(cross + 1));
  const bool blocks = c.at("grouping") == "blocks";
  plan.units.embedding = blocks ? UnitPlacement::kRoot : UnitPlacement::kOwn;
  plan.units.head = blocks ? UnitPlacement::kRoot : UnitPlacement::kWithNorm;
  plan.units.layers_per_unit = number(c, "layers_per_unit");
  auto reshard = [](const std::string& word) -> Reshard {
    if (word == "False") return {Reshard::Kind::kNever, 0};
    if (word.empty() || word == "True") return {Reshard::Kind::kAlways, 0};
    return {Reshard::Kind::kGroup, std::stoll(word)};
  };
  plan.reshard_after_forward.value = reshard(c.at("reshard"));
  const std::int64_t units = unit_count(plan, model);
  if (!blocks) {
    plan.reshard_after_forward.ranges = {{units - 1, units - 1, reshard(c.at("reshard_head"))}};
  }
  const std::int64_t forward = number(c, "forward_prefetch");
  plan.prefetch.forward = forward == 0 ? Prefetch::kImplicit : forward;
  plan.prefetch.backward = std::max<std::int64_t>(1, number(c, "backward_prefetch"));
  const std::string recompute = c.at("recompute");
  if (recompute == "full") plan.recompute.value = Recompute::kFull;
  if (recompute == "selective") plan.recompute.value = Recompute::kSelective;
  if (recompute == "every2") plan.recompute = recompute_every(2, model.block_count());
  plan.param_dtype = dtype_of(c.at("param_dtype"));
  plan.reduce_dtype = dtype_of(c.at("reduce_dtype"));
  plan.master_dtype = dtype_of(c.at("orig_dtype"));
  plan.optimizer.state = plan.master_dtype;
  if (c.at("accumulate_mode") == "no_sync") plan.accumulation = AccumulationMode::kKeepUnsharded;
  if (c.at("clip") != "True") plan.optimizer.clip_norm.reset();
  return plan;
}

std::string our_unit(std::string recorded) {
  if (recorded == "tok_embeddings") return "embedding";
  if (recorded == "norm+output") return "norm+head";
  // "layers.0+layers.1" is our "layers.0-1".
  const std::size_t first_plus = recorded.find('+');
  if (first_plus != std::string::npos) {
    const std::string last = recorded.substr(recorded.rfind('.') + 1);
    return recorded.substr(0, first_plus) + "-" + last;
  }
  return recorded;
}

std::vector<std::string> recorded_events(const std::vector<Fields>& events, const std::string& id) {
  std::vector<std::string> lines;
  for (const Fields& e : events) {
    if (e.at("config") != id) continue;
    const std::string& kind = e.at("kind");
    std::string bytes;
    if (kind == "all_gather") bytes = e.at("bytes_out");
    if (kind == "reduce_scatter" || kind == "all_reduce") bytes = e.at("bytes_in");
    if (kind == "forward_begin" || kind == "backward_begin") continue;
    if (kind == "optimizer_begin") {
      lines.push_back("optimizer");
      continue;
    }
    lines.push_back(kind + " " + our_unit(e.at("unit")) + (bytes.empty() ? "" : " " + bytes));
  }
  return lines;
}

std::vector<std::string> predicted_events(const EventGraph& graph) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const EventKind kind = graph.rows[i].kind;
    const int unit = graph.details[i].unit;
    switch (kind) {
      case EventKind::kOptimizer:
        lines.push_back("optimizer");
        break;
      case EventKind::kLoss:
        lines.push_back("loss ");
        break;
      case EventKind::kAllGatherCopyIn:
      case EventKind::kAllGather:
      case EventKind::kAllGatherCopyOut:
      case EventKind::kReduceScatterCopyIn:
      case EventKind::kReduceScatter:
      case EventKind::kAllReduce: {
        if (unit < 0) break;  // clipping's scalar
        std::string line =
            std::string(to_string(kind)) + " " + graph.units[static_cast<std::size_t>(unit)].name;
        if (is_collective(kind)) {
          line += " " + std::to_string(graph.works[graph.rows[i].work].bytes.count());
        }
        lines.push_back(line);
        break;
      }
      default:
        break;
    }
  }
  return lines;
}

TEST(Fsdp2Recordings, OrderAndBytesOfEveryConfigurationAreThoseOfPyTorch) {
  const std::vector<Fields> events = read_csv("events.csv");
  int compared = 0;
  for (const Fields& c : read_csv("index.csv")) {
    const std::vector<std::string> recorded = recorded_events(events, c.at("id"));
    if (recorded.empty()) continue;  // peaks only
    const ModelSpec model = model_of(c);
    EXPECT_EQ(predicted_events(build_training_step(model, plan_of(c, model))), recorded)
        << c.at("id");
    ++compared;
  }
  EXPECT_GE(compared, 25);
}

TEST(Fsdp2Recordings, PeakMemoryIsWithinTwoPerMille) {
  constexpr double kTolerance = 0.002;
  int compared = 0;
  for (const Fields& c : read_csv("index.csv")) {
    const ModelSpec model = model_of(c);
    const EventGraph graph = build_training_step(model, plan_of(c, model));
    const MemoryProfile memory = replay_allocations(graph);
    EXPECT_EQ(peak_allocated(graph), memory.peak) << c.at("id");
    // The recorded model keeps its rotary table as a buffer; ours counts parameters only.
    const auto predicted = static_cast<double>(memory.peak.count() + number(c, "other_bytes"));
    const auto recorded = static_cast<double>(number(c, "step2_peak"));
    EXPECT_NEAR(predicted / recorded, 1, kTolerance)
        << c.at("id") << ": predicted " << static_cast<std::int64_t>(predicted) << " recorded "
        << static_cast<std::int64_t>(recorded);
    ++compared;
  }
  EXPECT_GE(compared, 30);
}

}  // namespace
}  // namespace foreshard
