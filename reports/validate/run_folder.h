// Names inside a run folder, for its writer and its reader (reports/validate/run_record.h says what
// is where).
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

// Throws Error(kInvalidInput) where the file is missing, not a file, unreadable, or longer than
// `most_bytes`.
std::string read_whole_file(const std::filesystem::path& path, std::size_t most_bytes);

}  // namespace foreshard
