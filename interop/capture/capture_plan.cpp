// Batch and sequence are those of the attention calls; a stretch of launches from autograd's
// threads behind some of the main thread's is a micro-batch's backward; attention run forward on
// autograd's threads is recomputation.
#include "interop/capture/capture_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/base/error.h"
#include "sim/base/json_document.h"
#include "sim/graph/capture/captured_kernel.h"

namespace foreshard {
namespace {

struct Steps {
  std::int64_t batch = 1, sequence = 0, micro_batches = 0;
  std::int64_t forward = 0, recomputed = 0;  // attention calls
  bool clips = false;                        // norms of all gradients
};

Steps read_steps(const Capture& capture) {
  Steps steps;
  const StepRange range = steady_step(capture);
  std::int32_t main = -1;
  for (const CapturedCall& call : capture.calls) {
    if (call.kind != CapturedCall::Kind::kLaunch && call.kind != CapturedCall::Kind::kProduct)
      continue;
    main = call.thread;
    break;
  }
  bool in_backward = false;
  for (std::size_t i = range.begin; i < range.end; ++i) {
    const CapturedCall& call = capture.calls[i];
    const auto kernel = captured_kernel(capture, call, Pass::kForward);
    if (!kernel) continue;
    steps.clips |= capture.name_of(call).find("LpNorm") != std::string::npos;
    const bool attends = kernel->kernel.kind == KernelKind::kAttention;
    const bool is_forward = attends && kernel->kernel.pass == Pass::kForward;
    if (is_forward) {
      steps.batch = kernel->kernel.m;
      steps.sequence = std::max(steps.sequence, kernel->kernel.n);
      ++(call.thread == main ? steps.forward : steps.recomputed);
    }
    // The optimizer's launches on the main thread have no products.
    if (call.thread != main && !in_backward) {
      ++steps.micro_batches;
      in_backward = true;
    } else if (call.thread == main && call.kind == CapturedCall::Kind::kProduct) {
      in_backward = false;
    }
  }
  return steps;
}

std::string dtype_word(const std::string& torch) {
  return torch == "torch.bfloat16" ? "bf16" : torch == "torch.float16" ? "fp16" : "fp32";
}

class Writer {
 public:
  void line(const std::string& key, const std::string& value, const std::string& what) {
    made_.plan += fmt::format("{}: {}\n", key, value);
    made_.ledger.push_back({Mapping::kMapped, what, key + ": " + value, "", "", 0});
  }
  CapturedPlan made_;
};

bool holds(const Json& units, std::string_view word) {
  return std::any_of(units.begin(), units.end(), [&](const Json& unit) {
    return unit.value("name", "").find(word) != std::string::npos;
  });
}

// Units named model.layers.0, model.layers.1, ...
std::vector<Json> blocks_of(const Json& units) {
  std::vector<Json> blocks;
  for (const Json& unit : units) {
    const std::string name = unit.value("name", "");
    const std::size_t dot = name.rfind('.');
    const bool is_block = dot != std::string::npos && dot + 1 < name.size() &&
                          name.find_first_not_of("0123456789", dot + 1) == std::string::npos;
    if (is_block) blocks.push_back(unit);
  }
  return blocks;
}

void add_units(const Capture& capture, const Json& units, Writer& out) {
  std::vector<std::int64_t> mesh;
  for (const Json& extent : units.front().value("mesh", Json::array())) {
    mesh.push_back(extent.get<std::int64_t>());
  }
  const std::int64_t shard = mesh.empty() ? capture.world : mesh.back();
  const std::int64_t replicate = mesh.size() > 1 ? mesh.front() : 1;
  out.line("mesh", fmt::format("{{shard: {}, replicate: {}}}", shard, replicate),
           fmt::format("{} parameter groups of fully_shard", units.size()));
  const std::vector<Json> blocks = blocks_of(units);
  const bool shares = std::any_of(units.begin(), units.end(), [](const Json& unit) {
    const std::string modules = unit.value("modules", "");
    return modules.find("norm") != std::string::npos && modules.find("head") != std::string::npos;
  });
  const char* const head = shares ? "with_norm" : holds(units, "head") ? "own" : "root";
  const auto placed = [&](bool own) { return own ? "own" : "root"; };
  out.line("units",
           fmt::format("{{embedding: {}, head: {}, blocks: {}}}", placed(holds(units, "embed")),
                       head, placed(!blocks.empty())),
           "names of the parameter groups");
  const Json& of = blocks.empty() ? units.front() : blocks.front();
  out.line("reshard_after_forward", of.value("reshard_after_forward", true) ? "always" : "never",
           "post_forward_mesh_info of the blocks");
  out.line("dtype",
           fmt::format("{{param: {}, reduce: {}}}", dtype_word(of.value("param_dtype", "")),
                       dtype_word(of.value("reduce_dtype", ""))),
           "mp_policy of the blocks");
}

}  // namespace

CapturedPlan plan_of_capture(const Capture& capture, const std::string& model_name) {
  const std::filesystem::path file = std::filesystem::path(capture.path) / "model.json";
  if (!std::filesystem::exists(file)) {
    throw Error(ExitCode::kMissingCapability,
                fmt::format("{}: is not there: no Python described the model; foreshard predict "
                            "--capture forecasts the step as it is",
                            file.string()));
  }
  const Json document = read_json_document(file);
  const Json config = document.value("config", Json());
  if (!config.is_object() || !config.contains("model_type")) {
    throw Error(ExitCode::kMissingCapability,
                fmt::format("{}: {} has no config of transformers, so its layers have no names "
                            "here; foreshard predict --capture forecasts the step as it is",
                            file.string(), capture.model));
  }
  Writer out;
  out.made_.model = config.dump(1) + "\n";
  out.line("model", model_name, capture.model + ".config");
  out.line("cluster", fmt::format("{}x{}", capture.world, capture.gpu), "--world, --gpu");
  const Plan defaults;
  std::string version = defaults.runtime.version;
  for (const auto& [name, text] : capture.versions) {
    if (name == "torch") version = text.substr(0, text.find('.', text.find('.') + 1));
  }
  out.line("runtime", "fsdp2@" + version, "torch " + version);
  const Steps steps = read_steps(capture);
  if (steps.sequence > 0) {
    out.line("batch",
             fmt::format("{{sequence: {}, micro_batch: {}, accumulation: {}}}", steps.sequence,
                         steps.batch, std::max<std::int64_t>(1, steps.micro_batches)),
             fmt::format("{} calls of attention in {} backward passes", steps.forward,
                         steps.micro_batches));
  }
  const Json units = document.value("units", Json::array());
  if (!units.empty()) {
    add_units(capture, units, out);
  } else {
    out.line("mesh", fmt::format("{{shard: 1, replicate: {}}}", capture.world),
             "no parameter is sharded");
  }
  if (steps.forward > 0) {
    out.line("recompute", 2 * steps.recomputed >= steps.forward ? "full" : "none",
             fmt::format("{} calls of attention run again", steps.recomputed));
  }
  const Json optimizers = document.value("optimizers", Json::array());
  if (!optimizers.empty()) {
    const Json& optimizer = optimizers.front();
    const std::string name = optimizer.value("class", "");
    const bool fused = optimizer.value("fused", false);
    out.line("optimizer",
             fmt::format("{{kind: {}, implementation: {}, clip_norm: {}}}",
                         name == "SGD" ? "sgd" : "adamw", fused ? "fused" : "foreach",
                         steps.clips ? "1.0" : "none"),
             name);
  }
  return std::move(out.made_);
}

}  // namespace foreshard
