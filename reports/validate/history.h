// The local history of validations: one row per comparison of a forecast with a run, in an SQLite
// file, so that the accuracy on one's own machines can be told.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace foreshard {

struct HistoryRow {
  std::int64_t id = 0;  // given by append_history
  std::string created;  // UTC; "": append_history fills in now
  std::string host;     // where it ran
  std::string fingerprint;
  std::string plan_yaml;
  std::string model;
  std::string runtime;  // "native@1"
  int ranks = 1;
  double predicted_s = 0, low_s = 0, high_s = 0;  // step
  double measured_s = 0;
  double exposed_communication_error = 0;
  double memory_error = 0;
  bool passed = false;
  std::string profile;  // what priced the forecast
  std::string version;  // of foreshard
};

// Makes the file and its folder where they are not there; several programs may append at once.
// Both throw Error(kInvalidInput) "FILE: reason".
void append_history(const std::filesystem::path& file, const HistoryRow& row);
// In the order of their ids; none where there is no file. The file is not altered.
std::vector<HistoryRow> read_history(const std::filesystem::path& file);

}
