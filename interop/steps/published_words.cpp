// Reads published_words.yaml, and rows by it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "calibration/gpu_names.h"
#include "interop/steps/bridge_recipes.h"
#include "interop/steps/training_rows.h"
#include "models/names.h"
#include "models/zoo.h"
#include "sim/base/config.h"
#include "sim/base/embedded.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"

namespace foreshard {
namespace {

// What a publisher's own machines are limited to, where its rows do not say: 750 of 1000 W on PyTorch's B200
// (nvidia-smi of vllm-project/vllm#32373; "the card's rated power" in facebookexperimental/triton#2023 and, since
// 2025-09, in pytorch/helion#347). SimuMax's own products, 8,192 wide and more, are 0.45 to 0.51 of the peak, as
// others' are at 750 W (0.48 and 0.51, facebookexperimental/triton#854 and #1003).
struct PublishersPower {
  std::string_view source, gpu;
  double watts;
};
constexpr PublishersPower kPublishersPower[] = {
    {"pytorch/torchtitan", "b200", 750}, {"MooreThreads/SimuMax", "b200", 750}};

struct Rule {
  std::string holds;
  std::vector<std::pair<std::string, std::string>> words;
  std::string refusal;  // what is not modelled; "": it is
};
using Rules = std::map<std::string, std::vector<Rule>, std::less<>>;

void add_words(const ConfigNode& words, const ConfigNode& common, Rule& rule) {
  for (const ConfigItem& item : words.items()) {
    const std::string word = item.value.as_string();
    if (item.key == "like") add_words(common.at(word), common, rule);
    else rule.words.emplace_back(item.key, word);
  }
}

const std::vector<Rule>& rules_of(std::string_view subject) {
  static const Rules rules = [] {
    constexpr std::string_view kPath = "interop/steps/published_words.yaml";
    const ConfigNode root = parse_yaml(file_named(kPath, published_word_files()).content, kPath);
    const ConfigNode common = root.at("common");
    Rules read;
    for (const ConfigItem& table : root.items()) {
      for (const ConfigItem& item : table.value.items()) {
        Rule& rule = read[table.key].emplace_back(Rule{item.key, {}, ""});
        if (item.value.is_mapping()) add_words(item.value, common, rule);
        else rule.refusal = item.value.as_string();
      }
    }
    return read;
  }();
  return rules.find(subject)->second;
}

const Rule* rule_of(std::string_view subject, std::string_view text) {
  const std::vector<Rule>& rules = rules_of(subject);
  const auto found = std::ranges::find_if(rules, [&](const Rule& rule) { return contains(text, rule.holds); });
  return found == rules.end() ? nullptr : &*found;
}

// Without what stands in brackets and, where that is no name, without its last word, a size ("DeepSeek-V3 671B").
std::optional<std::string> zoo_name(std::string_view text) {
  std::string name(text.substr(0, text.find('(')));
  while (!name.empty() && name.back() == ' ') name.pop_back();
  for (int words = 0; words < 2 && !name.empty(); ++words) {
    if (const auto found = published_name(name)) return found->zoo;
    for (const std::string& each : zoo_names())
      if (squeezed(each) == squeezed(name)) return each;
    const std::size_t space = name.find_last_of(" _");
    if (space == std::string::npos) break;
    name.resize(space);
  }
  return std::nullopt;
}

// "torch 2.13.0a0" is 2.13.
std::string torch_of(std::string_view runtime) {
  const std::size_t at = runtime.find("torch ");
  if (at == std::string_view::npos) return "";
  const std::string_view version = runtime.substr(at + 6);
  const std::size_t end = version.find_first_not_of("0123456789.");
  const std::string_view digits = version.substr(0, end);
  const std::size_t second = digits.find('.', digits.find('.') + 1);
  return std::string(digits.substr(0, second));
}

// "... May 2026, ..." is 2026-05.
std::string date_of(std::string_view text) {
  constexpr std::string_view kMonths = "janfebmaraprmayjunjulaugsepoctnovdec";
  const std::size_t year = text.find(" 20");
  if (year == std::string_view::npos || year + 5 > text.size()) return "";
  const std::string_view digits = text.substr(year + 1, 4);
  const std::size_t word = text.find_last_of(" (", year - 1);
  const std::string_view month = text.substr(word + 1, 3);
  const std::size_t place = kMonths.find(month);
  if (month.size() < 3 || place % 3 != 0 || place == std::string_view::npos) return "";
  return fmt::format("{}-{:02}", digits, place / 3 + 1);
}

class RowReader {
 public:
  RowReader(const CsvTable& table, std::size_t index) : table_(table), index_(index) {}

  TrainingRow run() {
    row_.line = table_.line(index_);
    const std::string runtime = cell("runtime");
    const std::string family = runtime.substr(0, runtime.find_first_of(" -("));
    row_.id = cell("id").empty() ? fmt::format("{}-L{}", family, row_.line) : cell("id");
    count("n_gpus", "n_gpus");
    count("seq", "seq_len");
    count("micro_batch", "micro_batch_per_gpu");
    count("global_batch", "global_batch_seqs");
    for (const char* degree : {"tp", "cp", "pp", "vp", "ep", "etp"}) count(degree, degree);
    for (const auto& [said, column] : {std::pair("layers", "n_layers"), {"d_model", "d_model"}, {"heads", "n_heads"},
             {"kv_heads", "n_kv_heads"}, {"d_ff", "d_ff"}, {"vocabulary", "vocab"}})
      count(said, column);
    for (const auto& [said, column] : {std::pair("tokens_per_s_per_gpu", "tokens_per_s_per_gpu"),
             {"step_s", "step_time_s"}, {"memory_gib", "peak_mem_reserved_GiB"}})
      number(said, column);
    read_column("runtime");
    // torchtitan's stages stay gathered (fsdp_reshard_after_forward: default).
    if (row_.has("prefetch_kind") && row_.count("pp", 1) > 1) row_.words["reshard"] = "never";
    read_column("dtype");
    apply(rule_of("reduction", lower(cell("dtype"))), "dtype");
    for (const char* word : {"sequence_parallel", "dispatcher", "overlap"})
      if (!cell(word).empty()) row_.words[word] = lower(cell(word));
    read_column("recompute");
    for (const char* subject : {"attention", "accumulation", "policy", "states", "experts", "memory"})
      apply(rule_of(subject, lower(cell("note"))), "note");
    if (row_.word("runtime") == "zero1") {
      apply(rule_of("optimizer", lower(runtime)), "runtime");
      add_modules(lower(cell("recompute")));
      add_recipe(lower(runtime), lower(cell("note")));
    }
    if (const std::string torch = torch_of(runtime); !torch.empty()) row_.words["runtime_version"] = torch;
    if (const std::string date = date_of(lower(runtime)); !date.empty()) row_.words["commit_date"] = date;
    add_compilation();
    add_loss(lower(runtime), lower(cell("note")));
    add_groups();
    add_names();
    read_memory();
    return std::move(row_);
  }

 private:
  std::string cell(std::string_view column) const { return table_.has(column) ? table_.text(index_, column) : ""; }
  template <typename... Parts>
  void refuse(fmt::format_string<Parts...> why, Parts&&... parts) {
    if (row_.refusal.empty()) row_.refusal = fmt::format(why, std::forward<Parts>(parts)...);
  }
  std::optional<double> read(const char* said) const {
    const auto value = parse_number<double>(cell(said)).value_or(0);
    return std::isfinite(value) && value > 0 ? std::optional(value) : std::nullopt;
  }
  void number(const char* said, const char* column) {
    if (const auto value = read(said)) row_.numbers[column] = *value;
    else if (!cell(said).empty()) row_.problem = fmt::format("{}: '{}': expected a number above 0", said, cell(said));
  }
  void count(const char* said, const char* column) {
    number(said, column);
    const auto found = row_.numbers.find(column);
    if (found != row_.numbers.end() && (found->second != std::floor(found->second) || found->second > 1e12))
      row_.problem = fmt::format("{}: '{}': expected a whole number", said, cell(said));
  }
  // Every cell of the column is known.
  void read_column(const char* column) {
    const std::string text = lower(cell(column));
    if (text.empty()) return;
    const Rule* rule = rule_of(column, text);
    if (rule == nullptr) return refuse("{}: '{}' is not one that is known", column, cell(column));
    apply(rule, column);
  }
  void apply(const Rule* rule, const char* column) {
    if (rule == nullptr) return;
    if (!rule->refusal.empty()) return refuse("{}: '{}': {} is not modelled", column, cell(column), rule->refusal);
    for (const auto& [name, word] : rule->words) row_.words.insert_or_assign(name, word);
  }
  void add_compilation() {
    const std::string compiled = lower(cell("compile"));
    const bool compiles = !compiled.empty() && compiled != "no";
    if (!compiled.empty()) row_.words["compile"] = compiles ? "block" : "none";
    // torchtitan compiles the loss with the model, but for two months (e8977b007 to d1f62be73).
    if (row_.word("stack") == "torchtitan_2025") {
      const std::string_view date = row_.word("commit_date");
      const bool is_off = date >= "2024-12" && date < "2025-02-20";
      row_.words["loss_impl"] = compiles && !is_off ? "compiled" : "eager_fp32";
    }
    const std::string async = lower(cell("async_tp"));
    const bool overlaps = !async.empty() && async != "no" && async != "none";
    if (overlaps && row_.count("tp", 1) > 1) row_.numbers["async_tp"] = 1;
  }
  // Parts of logits that tp cuts, and compiled ones, are not modelled: told as whole.
  void add_loss(const std::string& runtime, const std::string& note) {
    if (row_.count("tp", 1) > 1 || row_.word("loss_impl") == "compiled") return;
    apply(rule_of("loss", note), "note");
    // trl/trainer/sft_trainer.py, loss_type chunked_nll: the head's product is in the parts.
    if (runtime.starts_with("trl") && row_.has("loss_impl")) row_.words["loss_impl"] = "tiled_linear";
  }
  // "(selective: layernorm moe_act)".
  void add_modules(const std::string& recompute) {
    constexpr std::string_view kBefore = "(selective: ", kAttention = "core attention";
    const std::size_t at = recompute.find(kBefore);
    if (at == std::string::npos) return;
    const std::size_t from = at + kBefore.size();
    const std::string modules = recompute.substr(from, recompute.find(')', from) - from);
    row_.words["recompute_modules"] = modules == kAttention ? "core_attn" : modules;
  }
  // What the row does not say itself.
  void add_from_recipe(const BridgeRecipe& recipe, bool says_dispatcher) {
    if (!says_dispatcher) row_.words["dispatcher"] = recipe.dispatcher.empty() ? "alltoall" : "deepep";
    const auto add = [&](const char* word, const std::string& value) {
      if (!value.empty() && !row_.has(word)) row_.words[word] = value;
    };
    add("cuda_graphs", recipe.cuda_graphs);
    add("expert_overlap", recipe.expert_overlap);
    if (!row_.has("recompute")) add("recompute_modules", recipe.recompute_modules);
  }
  // Recipes for speed of a release of Megatron-Bridge ("26.06", and cards of performance): MXFP8
  // with experts replays the whole iteration from 26.06 on (v0.5.0 to v0.6.0, scripts/performance
  // and perf_recipes: deepseek, qwen, gpt_oss; set_full_iter_cg_configs).
  void add_recipe(const std::string& runtime, const std::string& note) {
    for (const char* subject : {"graphs", "exchange", "expert overlap"}) apply(rule_of(subject, note), "note");
    if (runtime.starts_with("megatron-bridge")) apply(rule_of("bridge states", lower(cell("model"))), "model");
    // Experts of fixed capacity: whole layers are captured (v0.1.0, scripts/performance/configs/qwen3, cuda_graphs:
    // true where run_script.py drops tokens, on B200 and GB200), and rows travel by all-to-alls.
    const bool drops = contains(lower(cell("model")), "tokendrop");
    // A recipe that is repeated in full without a flex backend has none: all-to-alls.
    const bool has_backend = contains(note, "moe_flex_dispatcher_backend");
    const bool says_dispatcher = has_backend || !cell("dispatcher").empty();
    if ((drops || note.starts_with("full; recipe")) && !says_dispatcher) row_.words["dispatcher"] = "alltoall";
    // A release ("26.06") publishes recipes for speed, which fuse the router (perf_recipes:
    // moe_router_fusion); those of a month or a day are a model's.
    constexpr std::string_view kBridge = "megatron-bridge ";
    const std::size_t at = runtime.find(kBridge);
    const std::string release = at == std::string::npos ? "" : runtime.substr(at + kBridge.size(), 5);
    const bool is_release = release.size() == 5 && release[2] == '.';
    const bool is_recipe = (is_release && release >= "26.06") || contains(note, "pretrain_performance");
    const bool is_told = note.starts_with("full; recipe") || contains(note, "cuda_graph");
    const std::string model = zoo_name(cell("model")).value_or("");
    const BridgeRecipe* recipe =
        is_told ? nullptr
                : find_bridge_recipe({release, model, cell("gpu"), cell("dtype"), row_.count("micro_batch_per_gpu", 1),
                      row_.count("pp", 1), row_.count("vp", 1), row_.count("ep", 1)});
    if (recipe != nullptr) add_from_recipe(*recipe, says_dispatcher);
    else if (drops) row_.words["cuda_graphs"] = "iteration";
    if (row_.has("cuda_graphs")) return;
    if (is_release || is_recipe) row_.words["cuda_graphs"] = "routers";
    if (!is_recipe || is_told || recipe != nullptr || lower(cell("dtype")) != "mxfp8") return;
    row_.words["cuda_graphs"] = "iteration";
    row_.words["expert_overlap"] = "yes";
  }
  // What was measured is reserved memory unless the row or its code says otherwise.
  void read_memory() {
    const std::string_view kind = row_.word("memory");
    auto found = row_.numbers.extract("peak_mem_reserved_GiB");
    if (found.empty()) return;
    // gpustat calls MiB MB; a thousand of them are a table's GB.
    const bool is_total = kind == "gpustat";
    if (!kind.empty()) found.key() = is_total ? "peak_mem_total_GiB" : "peak_mem_alloc_GiB";
    if (is_total) found.mapped() *= 1e3 / 1024;
    if (kind == "allocated_gb") found.mapped() *= 1e9 / as_double(std::int64_t{1} << 30);
    row_.numbers.insert(std::move(found));
  }
  // Parameters are sharded over dp_shard; an optimizer that is cut is cut over all replicas.
  void add_groups() {
    const std::int64_t data = ranks_with_samples(row_);
    const auto replicate = read("dp_replicate"), shard = read("dp_shard");
    const bool cuts_state_alone = row_.word("runtime") == "zero1" || row_.word("runtime") == "ddp";
    const auto copies = static_cast<std::int64_t>(replicate.value_or(1));
    row_.numbers["replicate_group"] = as_double(cuts_state_alone ? 1 : copies);
    const auto parts = shard && !cuts_state_alone ? static_cast<std::int64_t>(*shard)
                       : cuts_state_alone         ? data
                                                  : data / copies;
    row_.numbers["shard_group"] = as_double(parts);
  }
  void add_names() {
    if (!cell("arch").empty()) {
      row_.words["arch"] = cell("arch");
      if (!cell("tied").empty()) row_.numbers["tied_embeddings"] = cell("tied") == "yes" ? 1 : 0;
    } else if (const auto name = zoo_name(cell("model"))) {
      // Megatron-Bridge's DeepSeek-V3 predicts two tokens unless its name says not.
      const std::string predicts = *name + "-mtp";
      const bool is_bridge = lower(cell("runtime")).starts_with("megatron-bridge");
      const bool has_variant = is_bridge && std::ranges::count(zoo_names(), predicts) > 0;
      const bool is_told_without = contains(cell("model"), "w/o MTP");
      row_.words["zoo_model"] = has_variant && !is_told_without ? predicts : *name;
      // models/qwen3/model/model.py multiplies by cosines and sines, llama3's is complex.
      if (row_.word("stack") == "torchtitan_2025" && name->starts_with("qwen")) row_.words["rope_impl"] = "real_eager";
    } else {
      refuse("model: '{}' is not in the zoo", cell("model"));
    }
    if (const Machine* machine = match_gpu(cell("gpu"), list_machines())) {
      row_.words["gpu"] = machine->key;
      if (cell("gpu").starts_with("DGX-H")) row_.words["host"] = "dgx";
      for (const PublishersPower& power : kPublishersPower)
        if (machine->key == power.gpu && cell("source").starts_with(power.source))
          row_.numbers["power_limit_w"] = power.watts;
    } else {
      refuse("gpu: '{}' is not in the catalogue", cell("gpu"));
    }
    // "(8/host, NV18)": GPUs of a node.
    const std::string gpu = cell("gpu");
    const std::size_t host = gpu.find("/host");
    if (host == std::string::npos || host == 0) return;
    const std::size_t from = gpu.find_last_not_of("0123456789", host - 1) + 1;
    const auto per_node = leading_number<double>({gpu.data() + from, host - from});
    if (per_node >= 1) row_.numbers["gpus_per_node"] = per_node;
  }

  const CsvTable& table_;
  std::size_t index_;
  TrainingRow row_;
};

}

bool is_published_table(const CsvTable& table) {
  const bool measures = table.has("tokens_per_s_per_gpu") || table.has("step_s");
  return measures && !table.has("n_layers") && table.has("model") && table.has("gpu") && table.has("n_gpus") &&
         table.has("seq") && table.has("tp");
}

TrainingRow published_row(const CsvTable& table, std::size_t index) { return RowReader(table, index).run(); }

}
