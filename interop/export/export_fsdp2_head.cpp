// The top of the exported script: what it is, its imports, its constants and their narrow
// stand-ins.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "interop/export/export_fsdp2_parts.h"
#include "sim/base/parse.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

bool has_groups(const ScriptJob& job) {
  return std::ranges::any_of(job.graph.units,
                             [](const Unit& u) { return u.reshard.kind == Reshard::Kind::kGroup; });
}

// Of torch.distributed.tensor, what the plan's axes and placements call.
std::string tensor_imports(const Plan& plan) {
  const bool cuts = plan.mesh.tp > 1, shares = plan.mesh.cp > 1;
  std::vector<std::string> names;
  if (shares) names.emplace_back("DTensor");
  if (cuts) names.emplace_back("Replicate");
  if (cuts || shares || plan.mesh.ep > 1 || plan.units.shard_dim != 0) names.emplace_back("Shard");
  std::string text;
  if (plan.mesh.ep > 1) {
    names.emplace_back("distribute_tensor");
    text += "import torch.distributed._functional_collectives as functional\n";
  }
  if (!names.empty()) {
    text += fmt::format("from torch.distributed.tensor import {}\n", fmt::join(names, ", "));
  }
  if (shares) {
    text += R"(from torch.distributed.tensor.experimental._attention import (
    _context_parallel_shard,
    _enable_context_parallel_dispatcher,
    _HeadTailLoadBalancer,
    set_rotate_method,
)
)";
  }
  if (cuts) {
    text += R"(from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
)";
  }
  return text;
}

}  // namespace

std::string python_header(const ScriptJob& job) {
  const std::int64_t world = job.plan.mesh.world();
  std::string commented;
  for (const std::string& line : parts_of(to_yaml(job.plan), "\n")) {
    commented += "#   " + line + "\n";
  }
  std::string imports;
  if (recomputes(job)) {
    imports +=
        "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import "
        "checkpoint_wrapper\n";
  }
  std::string names = "MixedPrecisionPolicy, fully_shard";
  if (job.plan.offload != Offload::kNone) names = "CPUOffloadPolicy, " + names;
  std::string allocator;
  if (const std::string conf = alloc_conf(job.plan.allocator); !conf.empty()) {
    allocator = fmt::format(
        "for _name in (\"PYTORCH_ALLOC_CONF\", \"PYTORCH_CUDA_ALLOC_CONF\"):  # new, old name\n"
        "    os.environ.setdefault(_name, \"{}\")\n",
        conf);
  }
  if (job.plan.collectives.max_ctas > 0) {
    allocator += fmt::format("os.environ.setdefault(\"NCCL_MAX_CTAS\", \"{}\")\n",
                             job.plan.collectives.max_ctas);
  }
  return fmt::format(
      R"(#!/usr/bin/env python3
"""{} with FSDP2 on {} ranks: a training step on random tokens, sharded as the plan below says.

    torchrun --nnodes N --nproc-per-node M THIS_FILE     the plan's ranks, N * M = {}
    python3 THIS_FILE                                    as many ranks as this machine has room for

It runs 3 steps and prints the losses; --steps N runs others, --record DIR writes what
`foreshard validate --plan PLAN --run DIR` compares with the forecast. {}
Written by `foreshard export --to fsdp2` for PyTorch {}.
"""

# The plan:
{}
import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import socket
import sys

{}import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
{}from torch.distributed.device_mesh import init_device_mesh
{}
try:
    from torch.distributed.fsdp import {}
except ImportError:  # PyTorch 2.4 and 2.5
    from torch.distributed._composable.fsdp import {}

PLAN_VERSION = "{}"
VERSION = tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2])


def warn_of_version():
    if "{{}}.{{}}".format(*VERSION) != PLAN_VERSION:
        say(f"warning: the plan is for PyTorch {{PLAN_VERSION}}, this is {{torch.__version__}}")


)",
      job.dims.name, world, world,
      job.plan.mesh.cp > 1 ? "It needs GPUs." : "Without a GPU it runs on Gloo.",
      job.plan.runtime.version, commented, allocator, imports, tensor_imports(job.plan), names,
      names, job.plan.runtime.version);
}

std::string python_constants(const ScriptJob& job) {
  std::string text = "# ---- sizes ----\n\n";
  const auto set = [&](const char* name, const auto& value) {
    text += fmt::format("{} = {}\n", name, value);
  };
  set("LAYERS", job.dims.layers);
  set("HIDDEN", job.dims.hidden);
  set("HEADS", job.dims.heads);
  set("KV_HEADS", job.dims.kv_heads);
  set("HEAD_DIM", job.dims.head_dim);
  set("FFN", job.dims.ffn);
  set("VOCABULARY", job.dims.vocabulary);
  set("POSITIONS", job.dims.max_positions);
  if (job.dims.positions == Positions::kLearned) set("POSITION_ROWS", job.dims.position_rows);
  if (job.dims.positions == Positions::kRotary) {
    set("ROTARY", job.dims.rotary_dim > 0 ? job.dims.rotary_dim : job.dims.head_dim);
    set("ROPE_THETA", job.dims.numerics.rope_theta);
    const RopeScaling& scaling = job.dims.numerics.rope_scaling;
    const bool is_llama3 = scaling.kind == RopeScaling::Kind::kLlama3;
    if (is_llama3 || scaling.kind == RopeScaling::Kind::kLinear) {
      set("ROPE_FACTOR", scaling.factor);
    }
    if (is_llama3) {
      set("ROPE_LOW", scaling.low_frequency_factor);
      set("ROPE_HIGH", scaling.high_frequency_factor);
      set("ROPE_POSITIONS", scaling.original_positions);
    }
  }
  set("EPSILON", job.dims.numerics.norm_epsilon);
  set("NORM_WEIGHT", job.dims.embedding_scale ? "0.0  # a norm multiplies by 1 + weight" : "1.0");
  if (job.dims.moe.experts > 0) {
    set("EXPERTS", job.dims.moe.experts);
    set("TOP_K", job.dims.moe.top_k);
    set("EXPERT_FFN", job.dims.moe.ffn);
    if (job.dims.moe.shared_ffn > 0) set("SHARED_FFN", job.dims.moe.shared_ffn);
    if (!job.dims.moe.dense_layers.empty()) {
      set("DENSE_LAYERS", fmt::format("{{{}}}", fmt::join(job.dims.moe.dense_layers, ", ")));
    }
  }
  text += "\n";
  set("SEQUENCE", job.plan.batch.sequence);
  set("MICRO_BATCH", job.plan.batch.micro_batch);
  set("ACCUMULATION", job.plan.batch.accumulation);
  set("DOCUMENTS", fmt::format("{}  # packed into a sequence, none attends to another",
                               job.plan.batch.documents));
  set("SHARD", job.plan.mesh.shard);
  set("REPLICATE", job.plan.mesh.replicate);
  set("TP", fmt::format("{}  # ranks that share each layer", job.plan.mesh.tp));
  set("CP", fmt::format("{}  # ranks that share each sequence", job.plan.mesh.cp));
  set("EP", fmt::format("{}  # ranks that share the experts", job.plan.mesh.ep));
  set("INNER",
      fmt::format("\"{}\"  # groups of consecutive ranks", to_string(job.plan.mesh.inner)));
  set("SEED", job.plan.seed);
  set("OFFLOADED", python(job.plan.offload != Offload::kNone));
  set("GROUPS",
      fmt::format("{}  # reshard_after_forward to a part of the ranks", python(has_groups(job))));
  set("PARAMETERS", fmt::format("{}  # of the forecast", job.model.parameters()));
  return text;
}

// Narrow layers for a host without room; every unit, list and policy stays.
std::string python_rehearsal(const ScriptJob& job) {
  std::string text;
  if (job.plan.mesh.ep > 1) {
    text = "BALANCED = os.environ.get(\"FORESHARD_BALANCED\") == \"1\"  # see main()\n";
  }
  text += R"(
REHEARSAL = os.environ.get("FORESHARD_REHEARSAL") == "1"
if REHEARSAL:  # see main()
    GROUP, KV_HEADS = min(HEADS // KV_HEADS, 4), min(KV_HEADS, max(2, TP))
    HEADS = GROUP * KV_HEADS
    HEAD_DIM = min(HEAD_DIM, 16)
    HIDDEN, FFN, VOCABULARY = min(HIDDEN, 64), min(FFN, 128), min(VOCABULARY, 512)
    SEQUENCE, MICRO_BATCH = DOCUMENTS * min(SEQUENCE // DOCUMENTS, 64), min(MICRO_BATCH, 2)
)";
  if (job.dims.positions == Positions::kRotary) text += "    ROTARY = min(ROTARY, HEAD_DIM)\n";
  if (job.dims.positions == Positions::kLearned) {
    text += "    POSITION_ROWS, POSITIONS = POSITION_ROWS - POSITIONS + SEQUENCE, SEQUENCE\n";
  }
  if (job.dims.moe.experts > 0) text += "    EXPERT_FFN = min(EXPERT_FFN, 32)\n";
  if (job.dims.moe.shared_ffn > 0) text += "    SHARED_FFN = min(SHARED_FFN, 32)\n";
  return text + "\n";
}

// Modules of a unit that is named as the graph names it.

}  // namespace foreshard
