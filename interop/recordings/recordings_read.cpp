// Reads one configuration. A table's rows are found through the index: an empty `*_equal` cell
// means this folder, a version means that version's folder, which may point on in turn. Each step
// of such a chain is one recursive call, which applies " without idle" to what it got.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "interop/recordings/recordings.h"
#include "sim/base/spelling.h"
#include "sim/graph/layers/layer_program.h"

namespace foreshard {
namespace {

constexpr const char* kWithoutIdle = " without idle";

bool is_idle_visit(const RecordedEvent& event) {
  return event.kind == "backward_end" && event.cause == "root_post_backward" && event.state == "idle";
}

}

CsvMembers<RecordedEvent> event_members(const CsvFile& file) {
  using Event = RecordedEvent;
  return {file, {{"step", &Event::step}, {"seq", &Event::seq}, {"kind", &Event::kind}, {"unit", &Event::unit},
                    {"stream", &Event::stream}, {"bytes_in", &Event::bytes_in}, {"bytes_out", &Event::bytes_out},
                    {"dtype", &Event::dtype}, {"group", &Event::group}, {"cause", &Event::cause},
                    {"state", &Event::state}, {"on", &Event::on}}};
}

std::vector<RecordedUnit> read_units_of(const CsvFile& file, const std::vector<std::size_t>& rows) {
  using Unit = RecordedUnit;
  const CsvMembers<Unit> of_unit(file, {{"unit", &Unit::unit}, {"params", &Unit::params}, {"numel", &Unit::numel},
                                           {"shard_numel_padded", &Unit::shard_numel_padded}});
  const auto shard = file.find("shard_numel");
  std::vector<RecordedUnit> units;
  for (const std::size_t row : rows) {
    RecordedUnit& unit = units.emplace_back();
    of_unit.read(row, unit);
    if (shard) unit.shard_numel = file.integer(row, *shard);
  }
  return units;
}

class RecordingReader {
 public:
  RecordingReader(RecordingLibrary& library, const RecordingFolder& folder, std::size_t row)
      : library_(library), folder_(folder), row_(row), id_(folder.id(row)) {}

  Recording read() {
    recording_.id = id_;
    recording_.version = folder_.setting(row_, "torch").value_or("");
    recording_.index_file = folder_.index().name();
    recording_.first_step_order_equal = folder_.setting(row_, "step1_order_equals_step2").value_or("True") == "True";
    read_steps();
    if (auto rows = events(folder_, 0)) {
      recording_.events = std::move(*rows);
      recording_.events_file = file_;
      check_count();
    }
    if (auto rows = memory(folder_, 0)) {
      recording_.memory = std::move(*rows);
      recording_.memory_file = file_;
      recording_.memory_has_own_seq = equal(folder_, row_, "memory_equal") == equal(folder_, row_, "events_equal");
    }
    if (const RecordingFolder* source = plain(folder_, "peaks")) read_peaks(*source);
    if (const RecordingFolder* source = plain(folder_, "units")) read_units(*source);
    if (folder_.table("allocations") != nullptr) read_allocations(*folder_.table("allocations"));
    return std::move(recording_);
  }

 private:
  static constexpr int kLongestChain = 16;

  static std::string equal(const RecordingFolder& folder, std::size_t row, std::string_view column) {
    const auto found = folder.index().find(column);
    return found ? std::string(folder.index().text(row, *found)) : std::string();
  }

  struct Source {
    bool stored = true;
    const RecordingFolder* other = nullptr;  // nullptr: the rows are here
    bool without_idle = false;
  };
  Source source_of(const RecordingFolder& folder, const std::string& table, int depth) {
    const std::string column = table + "_equal";
    const std::size_t row = *folder.find(id_);
    std::string version = equal(folder, row, column);
    if (version.empty()) return {};
    if (version == "not stored") return {false, nullptr, false};
    if (depth > kLongestChain)
      throw folder.index().error(row, folder.index().at(column), "the versions point at each other in a circle");
    const bool without_idle = version.ends_with(kWithoutIdle);
    if (without_idle) version.resize(version.size() - std::string_view(kWithoutIdle).size());
    return {true, &library_.sibling(folder, version, row, column), without_idle};
  }

  // The folder that holds peaks or units; nullptr where nothing does.
  const RecordingFolder* plain(const RecordingFolder& folder, const std::string& table) {
    const RecordingFolder* at = &folder;
    for (int depth = 0;; ++depth) {
      const Source source = source_of(*at, table, depth);
      if (!source.stored) return nullptr;
      if (source.other == nullptr) return at->table(table) == nullptr ? nullptr : at;
      at = source.other;
    }
  }

  std::optional<std::vector<RecordedEvent>> events(const RecordingFolder& folder, int depth) {
    const Source source = source_of(folder, "events", depth);
    if (!source.stored) return std::nullopt;
    if (source.other == nullptr) return read_events(folder);
    auto rows = events(*source.other, depth + 1);
    if (rows && source.without_idle) {
      std::vector<RecordedEvent> kept;
      std::int64_t step = 0;
      std::int64_t gone = 0;
      for (RecordedEvent& event : *rows) {
        if (event.step != step) gone = 0;
        step = event.step;
        if (is_idle_visit(event)) {
          ++gone;
          continue;
        }
        event.seq -= gone;
        kept.push_back(std::move(event));
      }
      rows = std::move(kept);
    }
    return rows;
  }

  std::optional<std::vector<RecordedEvent>> read_events(const RecordingFolder& folder) {
    const CsvFile* file = folder.table("events");
    if (file == nullptr) return std::nullopt;
    file_ = file->name();
    const CsvMembers<RecordedEvent> of_event = event_members(*file);
    const CsvMembers<RecordedEvent> of_microbatch(*file, {{"microbatch", &RecordedEvent::microbatch}});
    std::array<std::optional<std::size_t>, kPools.size()> pools;
    for (std::size_t i = 0; i < kPools.size(); ++i) {
      pools[i] = file->find("mem_" + std::string(kPools[i]));
      recording_.events_have_pools = recording_.events_have_pools && (pools[i] || i == kHostPool);
    }
    const auto communicator = file->find("communicator"), issue = file->find("issue");
    const auto module = file->find("module");
    recording_.events_have_communicators = communicator && issue;
    const std::vector<std::size_t>& rows = folder.rows("events", id_);
    std::vector<RecordedEvent> events;
    events.reserve(rows.size());
    constexpr std::string_view kNormAndHead = "norm+output";
    std::string state_at_end;
    for (std::size_t row : rows) {
      RecordedEvent& event = events.emplace_back();
      of_event.read(row, event);
      of_microbatch.read(row, event);
      // The recorder of axes calls both ends of a tied model by the table's unit, though
      // fully_shard made two: name and state are the other's.
      const bool at_end = module && (file->text(row, *module) == "norm" || file->text(row, *module) == "output");
      const bool misnamed = at_end && event.unit == "tok_embeddings";
      if (misnamed) {
        event.unit = kNormAndHead;
        event.state = state_at_end;
      }
      if (event.unit == kNormAndHead) state_at_end = event.state;
      if (communicator && issue) {
        event.communicator = file->text(row, *communicator);
        event.issue = file->text(row, *issue);
      }
      for (std::size_t i = 0; i < pools.size(); ++i)
        if (pools[i]) event.pools[i] = file->integer(row, *pools[i]);
    }
    return events;
  }

  // A file that was cut off must not pass for a recording.
  void check_count() {
    const auto column = folder_.index().find("events_per_step");
    if (!column || folder_.index().text(row_, *column).empty()) return;
    const std::int64_t expected = folder_.index().integer(row_, *column);
    const auto count = std::ranges::count(recording_.events, 2, &RecordedEvent::step);
    if (count != expected) {
      throw folder_.index().error(row_, *column,
          fmt::format("{} of {} has {} rows of step 2", recording_.events_file, quote(id_), count),
          fmt::format("{}", expected));
    }
  }

  std::optional<std::vector<RecordedMemoryRow>> memory(const RecordingFolder& folder, int depth) {
    const Source source = source_of(folder, "memory", depth);
    if (!source.stored) return std::nullopt;
    if (source.other == nullptr) return read_memory(folder);
    auto rows = memory(*source.other, depth + 1);
    if (!rows || !source.without_idle) return rows;

    const std::string memory_file = file_;
    const auto all = events(*source.other, depth + 1);
    file_ = memory_file;
    if (!all) return std::nullopt;
    std::set<std::pair<std::int64_t, std::int64_t>> gone;  // step, seq
    bool has_first = false;
    for (const RecordedEvent& event : *all) {
      has_first |= event.step == 1;
      if (is_idle_visit(event)) gone.emplace(event.step, event.seq);
    }
    if (!has_first) {  // step 1 has the order of step 2
      const auto steady = gone;
      for (const auto& [step, seq] : steady)
        if (step == 2) gone.emplace(1, seq);
    }
    std::vector<RecordedMemoryRow> kept;
    for (RecordedMemoryRow& row : *rows) {
      if (gone.contains({row.step, row.seq})) continue;
      row.seq -= std::distance(gone.lower_bound({row.step, 0}), gone.lower_bound({row.step, row.seq}));
      kept.push_back(std::move(row));
    }
    return kept;
  }

  std::optional<std::vector<RecordedMemoryRow>> read_memory(const RecordingFolder& folder) {
    const CsvFile* file = folder.table("memory");
    if (file == nullptr) return std::nullopt;
    file_ = file->name();
    using Row = RecordedMemoryRow;
    constexpr std::string_view kPeak = "peak_since_previous_row";
    const CsvMembers<Row> of_row(
        *file, {{"step", &Row::step}, {"seq", &Row::seq}, {"microbatch", &Row::microbatch}, {"kind", &Row::kind},
                   {"unit", &Row::unit}, {"total", &Row::total}, {kPeak, &Row::peak_since_previous_row}});
    std::vector<std::size_t> categories;
    recording_.categories.clear();
    for (std::size_t i = file->at(kPeak) + 1; i < file->columns(); ++i) {
      categories.push_back(i);
      recording_.categories.emplace_back(file->header(i));
    }
    std::vector<RecordedMemoryRow> result;
    for (std::size_t row : folder.rows("memory", id_)) {
      RecordedMemoryRow& r = result.emplace_back();
      of_row.read(row, r);
      for (std::size_t column : categories) r.categories.push_back(file->integer(row, column));
    }
    return result;
  }

  void read_peaks(const RecordingFolder& source) {
    const CsvFile& file = *source.table("peaks");
    recording_.peaks_file = file.name();
    for (std::size_t row : source.rows("peaks", id_)) {
      recording_.peaks.push_back({file.integer(row, file.at("step")), std::string(file.text(row, file.at("category"))),
          file.integer(row, file.at("bytes_at_total_peak")), file.integer(row, file.at("own_peak"))});
    }
  }

  void read_units(const RecordingFolder& source) {
    const CsvFile& file = *source.table("units");
    recording_.units_file = file.name();
    recording_.units = read_units_of(file, source.rows("units", id_));
  }

  void read_allocations(const CsvFile& file) {
    const std::array<std::size_t, 7> c = {file.at("step"), file.at("after_seq"), file.at("sign"), file.at("bytes"),
        file.at("pool"), file.at("category"), file.at("unit")};
    const std::vector<std::size_t>& rows = folder_.rows("allocations", id_);
    if (!rows.empty()) recording_.allocations_file = file.name();
    for (std::size_t row : rows) {
      const std::string_view sign = file.text(row, c[2]);
      if (sign != "+" && sign != "-") throw file.error(row, c[2], "not a sign", "+ or -");
      const std::int64_t bytes = allocated_size(file.integer(row, c[3])).count();
      recording_.allocations.push_back({file.integer(row, c[0]), file.integer(row, c[1]), sign == "-", bytes,
          std::string(file.text(row, c[4])), std::string(file.text(row, c[5])), std::string(file.text(row, c[6]))});
    }
  }

  void read_steps() {
    const CsvFile& index = folder_.index();
    const auto number = [&](const std::string& name) -> std::optional<std::int64_t> {
      const auto column = index.find(name);
      if (!column || index.text(row_, *column).empty()) return std::nullopt;
      return index.integer(row_, *column);
    };
    for (std::size_t i = 0; i < 2; ++i) {
      RecordedStepPeaks& step = recording_.steps[i];
      const std::string prefix = fmt::format("step{}_", i + 1);
      step.total = number(prefix + "peak");
      step.end = number(prefix + "end");
      for (std::size_t p = 0; p < kPools.size(); ++p) step.pools[p] = number(prefix + "peak_" + std::string(kPools[p]));
    }
  }

  RecordingLibrary& library_;
  const RecordingFolder& folder_;
  std::size_t row_;
  std::string id_;
  std::string file_;  // that the last rows came from
  Recording recording_;
};

Recording RecordingLibrary::read(const RecordingFolder& folder, std::size_t row) {
  return RecordingReader(*this, folder, row).read();
}

}
