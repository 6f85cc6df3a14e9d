// What a real run left behind: the run folder of foreshard-exec, written by the engine, read by
// `foreshard validate` and whoever wants to see it.
//
//   plan.yaml             the plan as it ran, every key
//   model.json            the model's config where the plan names a file (and then plan.yaml names
//   this) steps.csv             step,loss,rank_0_s,rank_1_s,...: every step, empty where a rank has
//   none timeline-rank-N.csv   step,id,issue_s,start_s,arrive_s,end_s relative to the step's begin,
//   as
//                         sim/simulate/timeline.h; arrive empty where peers' clocks are not
//                         comparable
//   run.json              schema "foreshard.run/1": the rest, and length and hash of the other
//   files
//
// Files are written whole and renamed, run.json last; an interrupted run leaves the same files with `complete` false.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/units.h"
#include "sim/graph/event_graph.h"
#include "sim/simulate/timeline.h"

namespace foreshard {

// One step on one rank. Times count from `begin`, the end of the step before.
struct MeasuredStep {
  std::int64_t step = 0;  // from 1
  // On the clock that the ranks of one machine share, counted from any moment that is the same for
  // all of them; of no meaning where clocks are not shared.
  Time begin;
  Time duration;
  // By event id. `arrive` need not be filled in: derive_arrivals (reports/validate/measured.h) does.
  std::vector<Span> spans;
  // Of a trace alone: within its runs of compute, when no kernel ran; what the plan has no row for.
  Time gaps, beyond;
};

// Who recorded: the engine, or the profiler of another library's job (interop/traces/trace_join.h).
enum class RunSource : std::uint8_t { kEngine, kTrace };

struct RankRecord {
  int rank = 0;
  bool clocks_shared = true;            // arrive can be told: all ranks are on this machine
  std::vector<Time> step_durations;     // of every step of this run
  std::vector<MeasuredStep> timelines;  // of the last steps
  // Resident memory of the process right before the engine's buffers were made and right after (anonymous and shared
  // pages, none of files), and of all pages at its highest; 0 where it cannot be told (several ranks in one process).
  Bytes rss_before_init, rss_after_init, peak_rss;
  Bytes arena;             // what the engine reserved for the persistent buffers
  Bytes activations_peak;  // highest sum of tensors that lived in the allocator, of any step
  // kTrace, instead of the above: of the library's allocator; 0 where they were not recorded.
  Bytes peak_allocated, peak_reserved;
  Bytes grown;                    // what is held of it, since they count
  std::optional<double> retries;  // of it, a step
  // On a GPU: the arena and what the caching allocator took from the driver at its highest, and all
  // that is taken on the device (context, libraries and NCCL included); 0 on CPU ranks.
  Bytes device_reserved, device_used;
};

struct RunRecord {
  RunSource source = RunSource::kEngine;
  std::string created;  // UTC
  std::string host, cpu;
  std::vector<std::pair<std::string, std::string>> versions;  // "foreshard", "torch", "mkl", ...
  std::string command;
  std::string fingerprint;
  std::string plan_yaml;
  std::string model_json;  // the model's config.json; "" for a zoo model
  std::string device;      // the GPU's name; "" for CPU ranks
  // One rank ran, the others' part of every collective took its forecast time. Losses and hash then mean nothing.
  bool paced = false;
  std::string launcher;  // "spawn", "threads", "torchrun", ...
  int world = 1;
  int threads = 1;  // compute threads of a rank; 0: not known
  bool complete = true;
  std::string not_finite;       // where, once a loss, the norm or a parameter was not; "": all were
  std::int64_t first_step = 1;  // more than 1 after a resume
  std::vector<double> losses;   // mean over all ranks, per step
  std::vector<std::pair<std::int64_t, double>> evaluations;  // after step, mean loss on held-back data
  std::string parameter_hash;
  double tokens_per_step = 0;     // over all ranks
  std::vector<RankRecord> ranks;  // ascending by rank
  std::size_t warm_up = 3;        // first steps of this run that no figure counts
  std::vector<std::string> notes;
};

// tokens_per_step / the median of steady_durations; 0 where no step was finished.
double tokens_per_second(const RunRecord& record);
// Of all ranks, per step: the slowest rank's duration. As long as the shortest rank's list.
std::vector<Time> step_durations(const RunRecord& record);
// Those without the first `warm_up` of this run (fewer steps: all).
std::vector<Time> steady_durations(const RunRecord& record);

// The folder is made where it is not there; what an older run left in it is replaced.
// Throws Error(kInvalidInput) naming the file where it cannot be written (full disk, no rights).
void write_run_folder(const std::filesystem::path& folder, const RunRecord& record);
// Throws Error(kInvalidInput) naming the file (and line) where one is missing, damaged or truncated.
RunRecord read_run_folder(const std::filesystem::path& folder);

}
