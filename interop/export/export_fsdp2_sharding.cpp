// The exported script's function build: the model, cut, checkpointed and sharded; methods of
// sharded modules that the plan asks for.
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "interop/export/export_fsdp2_parts.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

bool explicit_lists(const ScriptJob& job) {
  return job.plan.prefetch.forward > 0 || job.plan.prefetch.backward > 1 ||
         job.plan.prefetch.backward_lists;
}

std::string frozen_lines(const ScriptJob& job) {
  if (!job.plan.frozen.any()) return "";
  std::string text;
  const auto freeze = [&](std::string_view module) {
    text += fmt::format("    model.{}.requires_grad_(False)\n", module);
  };
  if (job.plan.frozen.embedding) {
    freeze(job.names.embedding);
    if (job.dims.positions == Positions::kLearned) freeze(job.names.positions);
    if (job.dims.embedding_norm) freeze(job.names.embedding_norm);
  }
  for (const auto& range : job.plan.frozen.blocks.ranges) {
    text += fmt::format("    for block in model.{}[{}:{}]:\n        block.requires_grad_({})\n",
                        job.names.blocks, range.first, range.last + 1, python(!range.value));
  }
  if (job.plan.frozen.norm) freeze(job.names.final_norm);
  if (job.plan.frozen.head) freeze(job.names.head);
  return text;
}

// What torchtitan's list keeps of the collectives inside layers; of all-to-alls Qwen3's keeps none.
std::string kept_collectives(const ScriptJob& job) {
  std::vector<std::string_view> names;
  if (job.plan.mesh.tp > 1) names.emplace_back("reduce_scatter_tensor");
  if (job.plan.mesh.ep > 1 && !job.dims.family.starts_with("qwen3")) {
    names.emplace_back("all_to_all_single");
  }
  std::string text;
  for (const std::string_view name : names) {
    text += fmt::format("    kept.append(torch.ops._c10d_functional.{}.default)\n", name);
  }
  return text;
}

std::string recompute_functions(const ScriptJob& job) {
  if (!recomputes(job)) return "";
  std::string text;
  if (recomputes(job, Recompute::kSelective)) {
    text += R"(

def contexts():
    """Keeps attention and every second matrix product, as torchtitan does."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    aten, products = torch.ops.aten, {False: 0, True: 0}
    kept = [  # attention
        getattr(aten, name).default
        for name in (
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
        )
        if hasattr(aten, name)
    ]
)" + kept_collectives(job) +
            R"(
    def policy(context, operator, *arguments, **options):
        if operator is aten.mm.default:
            products[context.is_recompute] += 1
            if products[context.is_recompute] % 2 == 1:
                return CheckpointPolicy.MUST_SAVE
        elif operator in kept:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
)";
  }
  text += R"(

def recompute(blocks):
    for i, how in enumerate(RECOMPUTE):
        if how == "full":
            blocks[i] = checkpoint_wrapper(blocks[i], preserve_rng_state=False)
)";
  if (recomputes(job, Recompute::kSelective)) {
    text += R"(        if how == "selective":
            blocks[i] = checkpoint_wrapper(blocks[i], preserve_rng_state=False, context_fn=contexts)
)";
  }
  return text;
}

std::string placement_function(const ScriptJob& job) {
  if (job.plan.units.shard_dim == 0) return "";
  if (job.plan.units.shard_dim == 1) {
    return R"(

def placement(parameter):
    return Shard(1) if parameter.ndim > 1 else None
)";
  }
  return R"(

def placement(parameter):
    """Experts fewer than the shards are cut along the next dimension."""
    if parameter.ndim < 3 or parameter.shape[0] >= SHARD * CP:
        return None
    return Shard(1) if parameter.shape[1] % (SHARD * CP // EP) == 0 else None
)";
}

std::string compile_lines(const std::string& blocks) {
  return fmt::format(R"(    if DEVICE.type == "cuda":
        for block in {}:
            block.compile()
)",
                     blocks);
}

// Methods of sharded modules. Of a list of modules, the first one carries the unit.
std::string knobs(const ScriptJob& job) {
  std::string text;
  const Prefetch& prefetch = job.plan.prefetch;
  if (explicit_lists(job)) {
    // The root is on the lists where it stands for the embedding, as the graph has it.
    const bool lists_root =
        has_root_unit(job.plan, job.model) && job.plan.units.embedding == UnitPlacement::kRoot;
    text += fmt::format("    order = {}[modules[0] for modules in units]\n",
                        lists_root ? "[model] + " : "");
    const bool spread = job.plan.mesh.ep > 1;
    const auto listed = [&](const std::string& targets) {
      return spread ? fmt::format("with_experts(unit, {}, blocks)", targets) : targets;
    };
    if (spread) text += fmt::format("    blocks = list(model.{})\n", job.names.blocks);
    text += "    for i, unit in enumerate(order):\n";
    if (prefetch.forward > 0) {
      text += fmt::format("        unit.set_modules_to_forward_prefetch({})\n",
                          listed(fmt::format("order[i + 1 : i + 1 + {}]", prefetch.forward)));
    }
    if (prefetch.backward > 1 || prefetch.backward_lists) {
      text +=
          fmt::format("        unit.set_modules_to_backward_prefetch({})\n",
                      listed(fmt::format("order[max(0, i - {}) : i][::-1]", prefetch.backward)));
    }
  }
  std::string each;
  if (prefetch.async_unshard) each += "        module._set_unshard_async_op(True)\n";
  if (job.plan.gradient_divide_factor) {
    each += fmt::format("        module.set_gradient_divide_factor({})\n",
                        *job.plan.gradient_divide_factor);
    if (!job.plan.force_sum_reduction) {
      each +=
          "        if DEVICE.type == \"cpu\":  # Gloo sums, it does not multiply\n"
          "            module.set_force_sum_reduction_for_comms(True)\n";
    }
  }
  if (job.plan.force_sum_reduction) {
    each += "        module.set_force_sum_reduction_for_comms(True)\n";
  }
  if (!each.empty()) {
    text += "    for module in [model] + [modules[0] for modules in units]:\n" + each;
  }
  const auto& unshard = job.plan.unshard_in_backward;
  if (!unshard.value || !unshard.ranges.empty()) {
    text += R"(    for modules, unshard in zip(units, UNSHARD_IN_BACKWARD):
        if not unshard:
            modules[0].set_unshard_in_backward(False)
)";
  }
  if (job.plan.reduce_scatter_buffers != 1) {
    text += fmt::format("    model.set_reduce_scatter_max_input_buffers({})\n",
                        job.plan.reduce_scatter_buffers);
  }
  if (job.plan.communicators == Communicators::kSeparate) {
    text += "    model.set_separate_reduce_scatter_group()\n";
  }
  return text;
}

}  // namespace

std::string python_sharding(const ScriptJob& job) {
  const std::string blocks = fmt::format("model.{}", job.names.blocks);
  std::string text = "\n\n# ---- sharding ----\n" + recompute_functions(job) +
                     placement_function(job) + python_axes(job);
  std::string policy =
      fmt::format("param_dtype={}, reduce_dtype={}", torch_dtype(job.plan.param_dtype),
                  torch_dtype(job.plan.reduce_dtype));
  if (job.plan.output_dtype)
    policy += fmt::format(", output_dtype={}", torch_dtype(*job.plan.output_dtype));
  text += fmt::format(R"(

def group_of(reshard, mesh):
    """An integer as fully_shard takes it: a proper divisor of this run's shards."""
    shard = mesh.size(mesh.ndim - 1)
    if isinstance(reshard, bool):
        return reshard
    return reshard if 1 < reshard < shard and shard % reshard == 0 else True


def build(mesh):
    torch.set_default_dtype({})
    with torch.device("meta"):
        model = Model()
    torch.set_default_dtype(torch.float32)
    check_units(model)
{}{}    options = {{
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy({}),
)",
                      torch_dtype(job.plan.master_dtype), frozen_lines(job),
                      job.plan.mesh.tp > 1 ? "    cut(model, mesh[\"tp\"])\n"
                                             "    mesh = mesh[mesh.mesh_dim_names[:-1]]\n"
                                           : "",
                      policy);
  if (job.plan.offload != Offload::kNone) {
    text += fmt::format(
        "        \"offload_policy\": CPUOffloadPolicy(pin_memory={}),\n",
        job.plan.offload == Offload::kCpuUnpinned ? "False" : "DEVICE.type == \"cuda\"");
  }
  if (job.plan.units.shard_dim != 0) text += "        \"shard_placement_fn\": placement,\n";
  text += "    }\n";
  const bool spread = job.plan.mesh.ep > 1;
  const char* nested_options = "options";
  if (spread) {
    text +=
        "    experts_mesh = spread_experts(model, mesh)\n"
        "    experts_options = {**options, \"mesh\": experts_mesh}\n";
    nested_options = "experts_options";
  }
  if (splits_experts(job)) {
    text += fmt::format(
        R"(    nested = iter(RESHARD_EXPERTS)
    for i in range(0, LAYERS, {0}):
        if hasattr(getattr({1}[i], "{2}", None), "{6}"):
            reshard = group_of(next(nested), {3})
            fully_shard({1}[i].{4}, reshard_after_forward=reshard, **{5})
)",
        job.plan.units.experts_every, blocks,
        job.names.experts.substr(0, job.names.experts.find('.')), spread ? "experts_mesh" : "mesh",
        job.names.experts, nested_options,
        job.names.experts.substr(job.names.experts.rfind('.') + 1));
    if (spread) {
      // Rows of all ranks meet in an expert's gradient, so its mesh's size does not average it.
      text += fmt::format(R"(            {0}[i].{1}.set_gradient_divide_factor(float(mesh.size()))
            if DEVICE.type == "cpu":  # Gloo sums, it does not multiply
                {0}[i].{1}.set_force_sum_reduction_for_comms(True)
)",
                          blocks, job.names.experts);
    }
  }
  const bool wraps_unit = job.plan.recompute_wraps == CheckpointWraps::kUnit;
  if (recomputes(job) && !wraps_unit) text += fmt::format("    recompute({})\n", blocks);
  if (job.plan.compile == Compile::kBlocks) text += compile_lines(blocks);
  text += R"(    units = modules_of_units(model)
    for modules, reshard in zip(units, RESHARD):
        unit = modules[0] if len(modules) == 1 else modules
        fully_shard(unit, reshard_after_forward=group_of(reshard, mesh), **options)
    root = {} if RESHARD_ROOT is None else {"reshard_after_forward": group_of(RESHARD_ROOT, mesh)}
    fully_shard(model, **root, **options)
)";
  text += knobs(job);
  if (recomputes(job) && wraps_unit) text += fmt::format("    recompute({})\n", blocks);
  text += "    model.to_empty(device=OFFLOAD_DEVICE)\n";
  if (job.dims.tied) {
    text +=
        fmt::format("    model.{}.weight = model.{}.weight\n", job.names.head, job.names.embedding);
  }
  if (job.plan.compile == Compile::kModel) {
    text += "    if DEVICE.type == \"cuda\":\n        model.compile()\n";
  }
  return text + "    return model\n";
}

}  // namespace foreshard
