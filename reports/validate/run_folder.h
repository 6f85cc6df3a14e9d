// Names inside a run folder, for its writer and its reader (reports/validate/run_record.h says what is where).
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "reports/validate/run_record.h"

namespace foreshard {

inline constexpr const char* kRunSchema = "foreshard.run/1";
inline constexpr const char* kRunFile = "run.json";
inline constexpr const char* kPlanFile = "plan.yaml";
inline constexpr const char* kModelFile = "model.json";
inline constexpr const char* kStepsFile = "steps.csv";
inline constexpr const char* kTimelineHeader = "step,id,issue_s,start_s,arrive_s,end_s";
std::string timeline_file(int rank);
std::string steps_header(const RunRecord& record);  // of its ranks

// What run.json says about the text of another file.
std::string hash_of(std::string_view text);

// Files that are whole or not there.

// Writes beside the file, syncs it to the disk and renames it; what was there before stays until
// then. Throws Error(kInvalidInput) "FILE: cannot be written: reason", also beyond a size limit
// (SIGXFSZ is held back while writing).
void write_whole_file(const std::filesystem::path& path, std::string_view text);

// Throws Error(kInvalidInput) where the file is missing, not a file, unreadable, or longer than `most_bytes`.
std::string read_whole_file(const std::filesystem::path& path, std::size_t most_bytes);

inline constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;
inline constexpr std::int64_t kMostSteps = 1'000'000'000;

// What run.json says of a rank beside its timelines, and of the run beside its evaluations, ranks
// and files, as sim/base/fields.h lists it.
void rank_fields(auto& io, auto& rank) {
  constexpr std::int64_t kMostMemory = std::int64_t{1} << 56;
  io("rank", rank.rank, 0, kMostRanks - 1);
  io("clocks_shared", rank.clocks_shared);
  io("rss_before_init_bytes", rank.rss_before_init, 0, kMostMemory);
  io("rss_after_init_bytes", rank.rss_after_init, 0, kMostMemory);
  io("peak_rss_bytes", rank.peak_rss, 0, kMostMemory);
  io("arena_bytes", rank.arena, 0, kMostMemory);
  io("activations_peak_bytes", rank.activations_peak, 0, kMostMemory);
  io.optional(true, "device_reserved_bytes", rank.device_reserved, 0, kMostMemory);
  io.optional(true, "device_used_bytes", rank.device_used, 0, kMostMemory);
}
void run_fields(auto& io, auto& run) {
  io("created", run.created);
  io("host", run.host);
  io("cpu", run.cpu);
  io("versions", run.versions);
  io("command", run.command);
  io("fingerprint", run.fingerprint);
  io.optional(true, "device", run.device);
  io.optional(true, "paced", run.paced);
  io("launcher", run.launcher);
  io("world", run.world, 1, kMostRanks);
  io("threads", run.threads, 1, kMostRanks);
  io("complete", run.complete);
  io.optional(!run.not_finite.empty(), "not_finite", run.not_finite);
  io("first_step", run.first_step, 1, kMostSteps);
  io("tokens_per_step", run.tokens_per_step, 0, 1e18);
  io("parameter_hash", run.parameter_hash);
}

}
