// Setting by setting, in the order in which nd.py's DEFAULTS list them. Models are torchtitan
// 0.2.2's: models/llama3, qwen3, deepseek_v3, llama4; what a class computes from its arguments (the
// width of a feed-forward layer) is computed as it does.

#include <charconv>
#include <string>
#include <vector>

#include "interop/recordings/recorded_job.h"
#include "interop/recordings/recorded_settings.h"
#include "models/families.h"
#include "models/layers/attention_kernels.h"
#include "models/layers/titan_modules.h"
#include "models/layers/variants.h"
#include "models/model_dims.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

// int(2 * 4 * dim / 3), rounded up.
std::int64_t swiglu_width(std::int64_t dim, std::int64_t multiple) {
  return (8 * dim / 3 + multiple - 1) / multiple * multiple;
}

void make_experts(const SettingsReader& s, ModelDims& dims) {
  Experts& moe = dims.moe;
  moe.experts = s.number("experts");
  moe.top_k = s.number("top_k");
  moe.sigmoid = s.text("score_func") == "sigmoid";
  moe.normalized = s.flag("route_norm");
  moe.corrected = s.flag("load_balance");
  moe.scaled = true;  // times route_scale, which may be 1
  moe.score_first = s.flag("score_before_experts");
  moe.ffn = s.number("moe_ffn");
  moe.shared_ffn = s.number("shared_experts") * moe.ffn;
}

ModelDims dims_of(const SettingsReader& s) {
  const std::string model = s.text("model");
  ModelDims dims;
  if (model == "llama3") dims = *family_dims("llama");
  if (model == "qwen3") dims = *family_dims("qwen3");
  if (model == "llama4") dims = *family_dims("llama");
  if (model == "deepseek_v3") dims = *family_dims("deepseek_v3");
  if (dims.naming == Naming::kLlama && model.empty()) s.unknown("model");
  dims.name = model;
  dims.family = model;
  dims.layers = s.number("layers");
  dims.hidden = s.number("dim");
  dims.heads = s.number("heads");
  dims.kv_heads = model == "deepseek_v3" ? dims.heads : s.number("kv_heads");
  dims.head_dim = model == "qwen3" ? s.number("head_dim") : dims.hidden / dims.heads;
  dims.vocabulary = s.number("vocab");
  dims.max_positions = s.number("seq");
  const bool computes = model == "llama3" || model == "llama4";
  dims.ffn = computes ? swiglu_width(dims.hidden, s.number("multiple_of")) : s.number("ffn");
  dims.tied = s.flag("tied");
  dims.moe = {};
  const bool has_experts = s.number("experts") > 0;
  if (has_experts) make_experts(s, dims);
  if (model == "llama4" && has_experts) {
    // models/llama4/model/model.py: the width is shared by the experts that a token goes to.
    const std::int64_t active = dims.moe.top_k + s.number("shared_experts");
    const std::int64_t multiple = s.number("multiple_of");
    const std::int64_t width = 8 * dims.hidden / 3 / active;
    dims.moe.ffn = (width + multiple - 1) / multiple * multiple;
    dims.moe.shared_ffn = s.number("shared_experts") * dims.moe.ffn;
    for (std::int64_t l = 0; l < dims.layers; ++l)
      if ((l + 1) % s.number("moe_every") != 0) dims.moe.dense_layers.push_back(l);
  }
  if (model == "deepseek_v3") {
    dims.latent = {.q_rank = s.number("q_lora_rank"),
        .kv_rank = s.number("kv_lora_rank"),
        .nope = s.number("qk_nope"),
        .rope = s.number("qk_rope"),
        .value = s.number("v_head")};
    dims.head_dim = dims.latent.nope + dims.latent.rope;
    for (std::int64_t l = 0; l < s.number("dense_layers") && has_experts; ++l) dims.moe.dense_layers.push_back(l);
  }
  return dims;
}

// "[[700, 324], [700, 620]]"
std::vector<std::int64_t> numbers_in(const std::string& text) {
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < text.size();) {
    std::int64_t value = 0;
    const auto [end, code] = std::from_chars(text.data() + i, text.data() + text.size(), value);
    if (code == std::errc()) {
      numbers.push_back(value);
      i = at(end - text.data());
    } else {
      ++i;
    }
  }
  return numbers;
}

void apply_recompute(const SettingsReader& s, Plan& plan) {
  const std::string word = s.text("recompute");
  if (word == "full") plan.recompute.value = Recompute::kFull;
  else if (word == "selective") plan.recompute.value = Recompute::kSelective;
  else if (word == "every2")
    for (std::int64_t l = 1; l < s.number("layers"); l += 2)  // every second that it counts
      plan.recompute.ranges.push_back({l, l, Recompute::kFull});
  else if (word != "none") s.unknown("recompute");
  // torchtitan's checkpoint_wrapper passes early_stop=False.
  plan.recompute_early_stop = false;
}

void apply_axes(const SettingsReader& s, Plan& plan) {
  plan.mesh.replicate = s.number("dp_replicate");
  plan.mesh.shard = s.number("dp_shard");
  plan.mesh.cp = s.number("cp");
  plan.mesh.tp = s.number("tp");
  plan.mesh.ep = s.number("ep");
  plan.mesh.etp = s.number("etp");
  plan.named_rank = s.number("rank");
  plan.tensor_parallel.sequence = s.text("plan") != "no_sp";
  plan.tensor_parallel.loss = s.flag("loss_parallel");
  if (s.text("cp_rotate") == "alltoall") plan.context_parallel.rotate = ContextParallel::Rotate::kAllToAll;
  if (s.text("cp_load_balancer").empty()) plan.context_parallel.balance = ContextParallel::Balance::kNone;
  const std::vector<std::int64_t> rows = numbers_in(s.text("splits"));
  const auto half = static_cast<std::ptrdiff_t>(rows.size() / 2);
  plan.expert_parallel.sent.assign(rows.begin(), rows.begin() + half);
  plan.expert_parallel.received.assign(rows.begin() + half, rows.end());
  plan.step_frame = s.flag("log") ? StepFrame::kTorchtitanLog : StepFrame::kTorchtitan;
}

}

bool has_axes(const RecordingFolder& folder) {
  return folder.index().find("tp").has_value() && folder.index().find("ep").has_value();
}

RecordedJob read_axes_job(const RecordingFolder& folder, std::size_t row) {
  const SettingsReader s(&folder, row, {});
  RecordedJob job;
  const ModelDims dims = dims_of(s);
  job.model = build_model(dims);
  Plan& plan = job.plan;
  plan.model = job.model.name;
  const std::string torch = s.text("torch");
  plan.runtime.version = torch.substr(0, torch.rfind('.'));
  plan.batch = {s.number("seq"), s.number("batch"), s.number("accumulate")};
  apply_axes(s, plan);
  plan.units.head = UnitPlacement::kWithNorm;
  plan.units.experts = plan.mesh.ep > 1 ? UnitPlacement::kOwn : UnitPlacement::kRoot;
  if (plan.mesh.ep > 1) plan.units.shard_dim = Units::kExpertsDim;
  const auto dtype = [&](const char* name) { return s.dtype(name).value_or(DType::kBf16); };
  plan.reduce_dtype = dtype("reduce_dtype");
  plan.master_dtype = plan.optimizer.state = dtype("orig_dtype");
  // Without fully_shard nothing casts (distributed/utils.py, maybe_enable_amp).
  plan.param_dtype = plan.mesh.is_wrapped() ? dtype("param_dtype") : plan.master_dtype;
  multiply_experts_in_bf16(job.model, plan);
  use_titan_modules(job.model, plan);
  if (s.flag("offload")) plan.offload = Offload::kCpu;
  plan.gradient_divide_factor = 1;
  if (plan.mesh.ep > 1) {
    plan.prefetch.forward = 1;
    plan.prefetch.backward_lists = true;
  }
  const std::string policy = s.text("reshard_policy");
  if (policy == "never") plan.reshard_after_forward.value = {Reshard::Kind::kNever, 0};
  if (policy != "always") {
    const std::int64_t last = unit_count(plan, job.model) - 1;
    plan.reshard_after_forward.ranges.push_back({last, last, {Reshard::Kind::kNever, 0}});
  }
  apply_recompute(s, plan);
  if (s.text("attention") == "cudnn") plan.attention = AttentionKernel::kCudnn;
  if (s.text("attn_type") == "flex") {
    plan.attention = AttentionKernel::kFlex;
    for (LayerSpec& layer : job.model.kinds) {
      for (Operation& op : layer.operations)
        if (op.kind == OperationKind::kAttention) drop_random_state(op);
    }
  } else if (s.text("attn_type") != "sdpa") {
    s.unknown("attn_type");
  }
  const std::string optimizer = s.text("optimizer");
  if (optimizer == "adamw_fused") plan.optimizer.implementation = Optimizer::Implementation::kFused;
  else if (optimizer != "adamw_foreach") s.unknown("optimizer");
  const std::int64_t rotated = dims.latent.kv_rank > 0 ? dims.latent.rope : dims.head_dim;
  job.constant_bytes = rotary_table_bytes(dims.max_positions, rotated);
  job.settings.model = "llama";
  return job;
}

}
