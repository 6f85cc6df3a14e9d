// What fully_shard does otherwise from one PyTorch version to the next, as data; what can be asked
// of each is checks/capabilities.txt.
//
// Source: recordings of twelve versions (tests/recordings/README.md has the table of changes with the files and lines
// of PyTorch); pg = _fsdp_param_group.py, st = _fsdp_state.py, co = _fsdp_collectives.py, pa = _fsdp_param.py, fs =
// _fully_shard.py. Versions that were not recorded behave as the newest recorded one below them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace foreshard {

// How the post-backward reductions are awaited at the end of backward.
enum class EndWaits : std::uint8_t {
  kPerUnit,         // in each unit's finalize_backward
  kLastPerStream,   // the last event of each stream, in the first finalize_backward
  kOnceBeforehand,  // the same, before any finalize_backward
};

// Units whose post-backward hook did not run: which ones the final callback visits.
enum class Leftovers : std::uint8_t { kUnsharded, kUnshardedOrNotGathered, kAll };

// Where a held reduce-scatter input is given back.
enum class InputRelease : std::uint8_t {
  kAtReduction,        // by the next unit with gradients
  kAfterPostBackward,  // awaited by the next post-backward that syncs, gradients or not; freed when that returns
  kQueue,              // by that post-backward, with a cap on inputs alive
};

struct Fsdp2Version {
  std::int32_t minor = 11;  // of PyTorch 2

  bool casts_one_by_one = false;              // shards are cast parameter by parameter before the copy-in
  bool packs_on_reduce_stream = false;        // reduce-scatter copy-in and its input
  bool keeps_last_gradient = true;            // of a unit, until its reduction was issued
  bool holds_all_reduce_input = true;         // until the end of backward where it is cast afterwards
  bool waits_own_reduction = true;            // of the micro-batch before, ahead of the next one
  bool clips_one_norm = false;                // all-reduces one norm, not one for each gradient
  bool drops_stray_gathers = true;            // at the end of backward; else they serve the next step
  bool root_may_reshard = true;               // the argument of the root counts
  bool gathers_alone = false;                 // a shard group of one rank gathers as any other
  bool reduces_alone = false;                 // ... and reduces
  bool averages_alone = false;                // ... with AVG
  bool frees_gather_before_copy_out = false;  // the previous unit's, in forward
  bool autograd_accumulates = false;          // in the reduce dtype; else FSDP casts and adds
  bool reduces_in_stored_dtype = false;       // where no reduce dtype is given; else in the gradient's
  bool leftovers_first = false;               // all remaining post-backwards, then all finalize_backwards
  bool visits_lists_once = false;             // else once per module of the list
  bool completes_lists = false;               // of which not all were called, behind the root's forward
  bool recompute_reshards = false;            // post-forward of a unit inside a recomputed module
  bool partial_waits_before_pack = false;     // HSDP: RS waits D before the copy-in too
  bool exchanges_in_pairs = false;            // stages, over communicators of two ranks, what is no batch of both
  bool receives_late = false;                 // what stages send, into buffers made when a transfer is posted
  EndWaits end_waits = EndWaits::kPerUnit;
  Leftovers leftovers = Leftovers::kAll;
  InputRelease input_release = InputRelease::kAtReduction;
};

inline constexpr std::int32_t kOldestFsdp2 = 4;           // 2.4
inline constexpr std::int32_t kNewestFsdp2 = 15;          // 2.15
inline constexpr std::int32_t kOldestFsdp2WithAxes = 11;  // whose axes were recorded

// "2.11", "2.11.0" -> 11; nothing for what is no version of PyTorch 2 that is known.
std::optional<std::int32_t> fsdp2_minor(std::string_view version);

// minor from kOldestFsdp2 to kNewestFsdp2.
Fsdp2Version fsdp2_version(std::int32_t minor);

}
