// The model and the cluster from their columns; what the plan is, training_plan.h says.
#include "interop/steps/training_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "calibration/gpu_names.h"
#include "calibration/machines.h"
#include "interop/frameworks/training_plan.h"
#include "models/families.h"
#include "models/layers/variants.h"
#include "models/model_dims.h"
#include "models/names.h"
#include "models/zoo.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/spec/preset.h"

namespace foreshard {
namespace {

Error refused(const std::string& why) { return {ExitCode::kMissingCapability, why}; }

std::int64_t required(const TrainingRow& row, std::string_view column) {
  if (!row.has(column)) throw refused(fmt::format("{} is not published", column));
  return row.count(column);
}

// --- model ---

// A model of the zoo, with as many positions as the row has.
ModelSpec zoo_model(const TrainingRow& row, Stack stack) {
  const std::string_view said = row.word("zoo_model");
  const auto name = published_name(said);
  for (const ZooEntry& entry : zoo()) {
    if (!name || entry.dims.name != name->zoo) continue;
    ModelDims dims = entry.dims;
    dims.max_positions = std::max(dims.max_positions, required(row, "seq_len"));
    dims.layers = row.count("n_layers", dims.layers);  // a part of it, as a proxy has
    if (is_fused_by_hand(row)) dims.fused_qkv = dims.fused_gate_up = true;
    return build_model(dims, stack);
  }
  if (is_zoo_model(said)) return load_zoo_model(said, stack);  // one that reads images
  throw refused(unknown_model(said));
}

ModelSpec model_of(const TrainingRow& row, Stack stack) {
  if (row.has("zoo_model")) return zoo_model(row, stack);
  std::string_view arch = row.word("arch");
  if (arch.empty()) throw refused("arch is not published");
  // LayerNorm, GELU, biases, learned positions: the ordinary GPT of gpt3's family.
  const bool is_gpt = arch == "mpt" || arch == "gpt";
  ModelDims dims = *family_dims(is_gpt ? "gpt3" : arch);
  dims.name = row.id;
  dims.source = "the row's columns";
  dims.layers = required(row, "n_layers");
  dims.hidden = required(row, "d_model");
  dims.heads = required(row, "n_heads");
  dims.kv_heads = row.count("n_kv_heads", dims.heads);
  dims.head_dim = row.count("head_dim", dims.hidden / dims.heads);
  dims.ffn = required(row, "d_ff");
  dims.vocabulary = required(row, "vocab");
  dims.tied = row.count("tied_embeddings", is_gpt ? 1 : 0) == 1;
  const std::int64_t sequence = required(row, "seq_len");
  dims.max_positions = sequence;
  if (dims.positions == Positions::kLearned) dims.position_rows = sequence;
  if (is_fused_by_hand(row)) dims.fused_qkv = dims.fused_gate_up = true;
  return build_model(dims, stack);
}

// --- cluster ---

// What a row says of its nodes. Where NVLink joins a whole rack a host's GPUs say nothing, and jobs
// leave a few of each rack alone: 64 of 72.
std::string node_of(const TrainingRow& row, std::string_view gpu, std::int64_t gpus) {
  constexpr std::int64_t kHost = 16, kTray = 4;  // GPUs of a host at the most; of a rack's tray
  const std::optional<Machine> machine = machine_named(gpu);
  const std::int64_t usual = machine ? machine->node.node.gpus : 0;
  if (usual <= kHost) {
    const std::int64_t told = row.count("gpus_per_node");
    return told > 0 ? fmt::format("node: {{gpus: {}}}\n", std::min(told, gpus)) : "";
  }
  if (gpus <= usual) return "";
  std::int64_t used = usual;
  while (used > kTray && gpus % used != 0) used -= kTray;
  return used == usual ? "" : fmt::format("node: {{gpus: {0}, nics: {0}}}\n", used);
}

Cluster cluster_of(const TrainingRow& row) {
  const std::string_view gpu = row.word("gpu");
  if (gpu.empty()) throw refused("gpu is not published");
  const std::int64_t gpus = required(row, "n_gpus");
  std::string yaml = fmt::format("gpus: {}\nmachine: {}\n", gpus, gpu);
  yaml += node_of(row, gpu, gpus);
  Cluster cluster = parse_cluster(yaml, row.id);
  if (const auto network = row.number("network_gbit_s_per_node"))
    cluster.node.nic_rate = BytesPerSecond(*network / 8 * 1e9 / as_double(cluster.node.nics));
  if (const auto watts = row.number("power_limit_w")) cluster.gpu.power_limit = *watts;
  return cluster;
}

// PyTorch 2.5 (2024-10-17) is the first whose default packages are of CUDA 12.4, 2.7 (2025-04-23)
// the first with packages of ROCm 6.3, which came out on 2024-12-03.
GemmLibrary library_of(const TrainingRow& row, const Gpu& gpu) {
  const std::optional<TorchVersion> torch = torch_version(row);
  const TorchVersion first = is_amd(gpu) ? TorchVersion{2, 7} : TorchVersion{2, 5};
  // A date without a version is from before all of them.
  const bool is_early = torch ? *torch < first : row.has("commit_date");
  return is_early ? GemmLibrary::kEarly : GemmLibrary::kCurrent;
}

struct Batches {
  std::int64_t micro_batch = 1;
  std::int64_t whole = 1;
  std::int64_t remainder = 0;
};

// Sequences of the fullest rank, in micro-batches.
Batches batches_of(const TrainingRow& row) {
  Batches batches = {.micro_batch = required(row, "micro_batch_per_gpu"), .whole = row.count("grad_accum", 1)};
  const std::int64_t ranks = ranks_with_samples(row);
  if (!row.has("global_batch_seqs")) return batches;
  const std::int64_t per_rank = (row.count("global_batch_seqs") + ranks - 1) / ranks;
  batches.whole = per_rank / batches.micro_batch;
  batches.remainder = per_rank % batches.micro_batch;
  return batches;
}

}

TrainingJob training_job(const TrainingRow& row, const std::vector<std::string>& set) {
  if (!row.problem.empty()) throw Error(ExitCode::kInvalidInput, row.problem);
  TrainingJob job;
  if (!row.refusal.empty()) throw refused(row.refusal);
  if (!row.has("runtime")) throw refused("runtime is not published");
  job.cluster = cluster_of(row);
  job.model = model_of(row, Stack::kEager);
  Batches batches = batches_of(row);
  if (batches.whole == 0) batches = {batches.remainder, 1, 0};
  job.remainder = batches.remainder;
  job.library = library_of(row, job.cluster.gpu);
  job.site = family_of(row.id);
  job.host = row.word("host");
  std::vector<std::string> assignments = plan_assignments(row, job.cluster);
  assignments.push_back(fmt::format("batch={{sequence: {}, micro_batch: {}, accumulation: {}}}", row.count("seq_len"),
      batches.micro_batch, batches.whole));
  append(assignments, set);
  PlanDocument document;
  for (const std::string& assignment : assignments) document = apply_set(std::move(document), assignment);
  if (row.count("pp", 1) > 1)
    for (const std::string& assignment : pipeline_assignments(row, job.model))
      document = apply_set(std::move(document), assignment);
  job.resolved = resolve(document, job.model, job.cluster);
  check(job.resolved, job.model, job.cluster);
  job.model = with_variants(std::move(job.model), job.resolved.plan);
  return job;
}

std::vector<OpenChoice> open_choices(const TrainingRow& row) {
  const bool has_stack = find_stack(row.word("stack")) != nullptr;
  std::vector<OpenChoice> open;
  const auto ask = [&](const char* column, std::vector<std::string> alternatives) {
    const bool is_vague = row.word(column) == "sdpa" || row.word(column) == "unspecified";
    if (row.has(column) && !is_vague) return;
    if (has_stack && !is_vague) return;
    open.push_back({column, std::move(alternatives)});
  };
  const bool is_xla = row.word("runtime") == "xla_fsdp";
  if (row.word("attention_kernel") == "sdpa" || is_xla) {
    std::vector<std::string> kernels = {"attention=cudnn", "attention=flash"};
    // Where a batch is padded transformers pass a mask (masking_utils.py, _ignore_causal_mask_sdpa), which of PyTorch's
    // kernels the flash one does not take (sdp_utils.cpp, check_for_attn_mask).
    if (row.word("stack") == "hf_trainer") kernels.emplace_back("attention=efficient");
    ask("attention_kernel", std::move(kernels));
  } else if (is_before_fa2(row)) {
    ask("attention_kernel", {"attention=triton", "attention=fa2"});
  } else {
    ask("attention_kernel", {"attention=triton", "attention=fa2", "attention=cudnn", "attention=fa3"});
  }
  // Only tensorwise scaling gathers in fp8.
  if (row.has("fp8") && row.count("fp8_all_gather") != 1) ask("fp8", {"float8=rowwise", "float8=delayed"});
  ask("loss_impl", {has_axes(row) ? "loss=compiled" : "loss=fused", "loss=eager"});
  if (is_xla) return open;  // compiled as a whole
  ask("norm_impl", {"kernels.norm=compute", "kernels.norm=fp32", "kernels.norm=eager"});
  ask("residual_dtype", {"kernels.residual=fp32", "kernels.residual=compute"});
  ask("train_metrics", {"kernels.train_metrics=2"});
  ask("optimizer_impl", {"optimizer.implementation=loop", "optimizer.implementation=fused"});
  return open;
}

bool leaves_network_open(const TrainingRow& row, const Cluster& cluster) {
  return !row.has("network_gbit_s_per_node") && !row.has("tp") && cluster.nodes() > 1;
}

bool may_exchange_through_host(const Cluster& cluster) {
  const NodeKind& node = cluster.node;
  return cluster.gpus_per_node() > 1 && node.gpu_link_name.starts_with("PCIe");
}

TrainingRow with_network(TrainingRow row, const Cluster& cluster, double share) {
  const NodeKind& node = cluster.node;
  row.numbers["network_gbit_s_per_node"] = share * as_double(node.nics) * node.nic_rate.value() * 8 / 1e9;
  return row;
}

}
