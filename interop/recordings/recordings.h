// Folders of recordings of the real FSDP2: index.csv (a configuration per row), events, memory,
// peaks, units, allocations, skipped.csv, configs.json; every .csv may be a .csv.gz.
//
// Rows that another version's recording has too are stored once: `events_equal`, `memory_equal`,
// `peaks_equal` and `units_equal` of the index name that version, whose folder lies beside this one
// (or is ../../fsdp2). " without idle" after it: without the rows backward_end of cause
// root_post_backward and state idle, renumbered. "not stored": recorded but left out.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "calibration/csv_file.h"
#include "reports/conform/recording.h"

namespace foreshard {

// The folder itself where it has an index, else every folder below it that has one, those named `gloo` left out, in the
// order of their names with numbers counted. Throws Error(kInvalidInput) where there is none.
std::vector<std::filesystem::path> find_recordings(const std::filesystem::path& path);

// A configuration that was not recorded, with the library's reason.
struct SkippedRecording {
  std::string id;
  std::string reason;
};

class RecordingFolder {
 public:
  // Reads the index; the other files when their rows are asked for. Throws ConfigError.
  explicit RecordingFolder(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  // Of this folder, or of the one above.
  std::filesystem::path configs_file() const;
  std::size_t size() const { return index_.rows(); }
  std::string id(std::size_t row) const { return std::string(index_.text(row, id_)); }
  std::optional<std::size_t> find(std::string_view id) const;
  // The recorder's word for a setting ("True", "8", "" for None): the index's, else that of
  // configs.json in this folder or the one above; none where neither has it.
  std::optional<std::string> setting(std::size_t row, std::string_view name) const;
  // What configs.json sets for it.
  std::vector<std::string> configured(std::size_t row) const;
  // Why there is nothing to compare: its status is not ok, or it is another library's.
  std::optional<std::string> refusal(std::size_t row) const;
  const std::vector<SkippedRecording>& skipped() const { return skipped_; }

  // What follows serves RecordingLibrary.
  const CsvFile& index() const { return index_; }
  // events, memory, peaks, units or allocations; nullptr where there is no such file.
  const CsvFile* table(const std::string& name) const;
  // Its rows of a configuration, in file order.
  const std::vector<std::size_t>& rows(const std::string& name, std::string_view id) const;

 private:
  struct Table {
    std::optional<CsvFile> file;
    std::map<std::string, std::vector<std::size_t>, std::less<>> rows;
  };
  const Table& load(const std::string& name) const;
  void read_configs();

  std::filesystem::path path_;
  CsvFile index_;
  std::size_t id_ = 0;  // column
  std::map<std::string, std::size_t, std::less<>> row_of_;
  std::map<std::string, std::map<std::string, std::string>> configs_;
  std::vector<SkippedRecording> skipped_;
  mutable std::map<std::string, Table> tables_;
};

class RecordingLibrary {
 public:
  // Every folder is read once. Throws ConfigError.
  const RecordingFolder& open(const std::filesystem::path& path);
  // Everything that is stored of a configuration, other versions' rows in their places. Throws
  // ConfigError for what cannot be read, does not add up (`events_per_step`), or is nowhere.
  Recording read(const RecordingFolder& folder, std::size_t row);

 private:
  const RecordingFolder& sibling(
      const RecordingFolder& folder, const std::string& version, std::size_t row, std::string_view column);
  std::map<std::filesystem::path, std::unique_ptr<RecordingFolder>> folders_;
  friend class RecordingReader;
};

// The columns that tables of events have whoever recorded them; of units, all of them.
CsvMembers<RecordedEvent> event_members(const CsvFile& file);
std::vector<RecordedUnit> read_units_of(const CsvFile& file, const std::vector<std::size_t>& rows);

}
