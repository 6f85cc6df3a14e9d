// What FSDP2's host code does in one step, finer than rows: the vocabulary of the recordings of the
// real library (tests/recordings), which this is compared with.
//
// Written by the builder where it adds the rows themselves, so that there is no second reading of a
// plan. Ordinary builds keep none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sim/graph/event_graph.h"
#include "sim/graph/training_step.h"

namespace foreshard {

struct HostEvent {
  static constexpr std::int32_t kNobody = -1;
  static constexpr std::int32_t kRootModule = -2;  // which may hold no parameters
  static constexpr std::int64_t kBlank = -1;

  std::string_view kind = {};      // "all_gather", "wait", "reshard", "free_reduce_scatter_input", ...
  std::int32_t unit = kNobody;     // index into EventGraph::units, kRootModule or kNobody
  std::string_view stream = {};    // that was current, or that waits: "D", "CI", "AG", "RS", "AR"
  std::int64_t bytes_in = kBlank;  // tensors of this rank; kBlank: not told
  std::int64_t bytes_out = kBlank;
  std::string_view dtype = {};     // "bf16"; "" none
  std::string_view group = {};     // "shard", "replicate", "post_forward", "reduce_scatter", "clip"
  std::int64_t group_size = 0;     // 0: not told
  std::string_view cause = {};     // "demand", "implicit_backward", "autograd", "wait_for_unshard", ...
  std::string_view state = {};     // training state of the unit: "forward", "pre_backward", ...
  std::string_view on = {};        // operator, reduction, or what is waited for ("all_gather", "stream CI")
  std::int32_t on_unit = kNobody;  // of the event that is waited for; kRootModule too
  // kind "wait" for a collective of an axis: whose group that is.
  std::string_view on_group = {};
  std::int64_t on_group_size = 0;
  // Collectives: index into EventGraph::communicators, and how PyTorch was asked for it: "c10d", or
  // "functional" (on the communicator's own stream, awaited later).
  std::int32_t communicator = -1;
  std::string_view issue = {};
  // all_to_all: rows to and from every rank of the group.
  std::string splits = {};
  std::int32_t microbatch = 0;  // -1: outside the micro-batches
  std::uint32_t actions = 0;    // memory actions of the graph that come before it
};

struct RecordedStep {
  EventGraph graph;
  std::vector<HostEvent> log;
  // Shards that the library pads once more in its first forward where tensors are fake and have no address
  // (FSDPParam.reset_sharded_param); a recorder of fake tensors counts them as activations of the device.
  std::vector<std::int32_t> padded_again;
};

enum class StepNumber : std::uint8_t {
  kFirst,   // optimizer states do not exist before the optimizer's first step
  kSteady,  // any later one
};

// Preconditions as build_training_step(); runtime fsdp2 only.
RecordedStep record_training_step(
    const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, StepNumber step);

// --- DDP, FSDP1, DeepSpeed ZeRO: the vocabulary of tests/recordings/ddp_zero (its README) ---

struct LibraryEvent {
  std::int32_t microbatch = 0;
  std::string_view kind = {};  // "all_gather", "grad_ready", "unshard_alloc", "engine_step", ...
  std::string unit = {};       // module, parameter, "first..last" of a bucket; "" none
  std::int64_t bytes_in = 0;
  std::int64_t bytes_out = 0;
  std::string_view dtype = {};  // "float32"; "" none
  std::string group = {};       // "world", or "first:last:stride" of the ranks; "" no collective
  std::string note = {};        // as recorded: "op=SUM", "prefetch n=4 at=h.0 in_place live=..."
  std::uint32_t actions = 0;    // memory actions of the graph that come before it
};

// A bucket, flat parameter, gather group or partition with its parameters.
struct LibraryBucket {
  std::string phase;  // "init", "step3"
  std::int64_t index = 0;
  std::string kind;  // "ddp_bucket", "flat_param", "zero_ipg_bucket", ...
  std::int64_t bytes = 0;
  std::string dtype;
  std::string extra;
  std::vector<std::string> parameters;
  bool operator==(const LibraryBucket&) const = default;
};

// What a recorder was asked for.
struct LibraryWatch {
  enum class Modules : std::uint8_t {
    kBlocks,  // boundaries of the blocks and of the modules around them that own parameters
    kOwners,  // of every module that owns parameters
  };
  std::int32_t steps = 3;
  Modules modules = Modules::kBlocks;
};

// One optimizer step as the library runs it.
struct LibraryStep {
  EventGraph graph;
  std::vector<LibraryEvent> log;
};

struct LibraryRun {
  std::vector<LibraryStep> steps;  // from step 1 on
  std::vector<LibraryEvent> construction;
  std::vector<LibraryBucket> buckets;
  // Named counts and words of the index: {"step1": {"grad_storage_bytes": 8}, "sizes": [1, 2]} is
  // step1.grad_storage_bytes, sizes.0, sizes.1.
  std::map<std::string, std::int64_t> facts;
  std::map<std::string, std::string> words;
};

// Steps 1 to watch.steps of a plan with one of these runtimes. Preconditions as build_training_step().
LibraryRun record_library_run(
    const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, const LibraryWatch& watch);

}
