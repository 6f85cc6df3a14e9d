// Steps one by one, later ones first: the last is the steady one, which people look at. Of a step
// that is not stored whole, the forecast's rows of the same kinds, at the same positions. Buckets
// in their order. Facts by name: those that the forecast tells, and all of them must be recorded.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "reports/conform/conform.h"
#include "reports/conform/conform_parts.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

using What = Difference::What;

// What the recorder keeps of every step.
bool is_always_kept(std::string_view kind) {
  constexpr std::array<std::string_view, 9> kKept = {"all_gather", "reduce_scatter", "all_reduce", "reduce",
      "broadcast", "all_to_all", "trace_reset", "release_all", "optimizer_step"};
  return contains(kKept, kind);
}

std::string words_of(const LibraryRecordedEvent& e) {
  std::string text = fmt::format("{} {}", e.kind, e.unit);
  for (const std::string* word : {&e.dtype, &e.group, &e.note})
    if (!word->empty()) text += " " + *word;
  return text;
}

std::string words_with_bytes(const LibraryRecordedEvent& e) {
  return fmt::format("{} [{} -> {}]", words_of(e), e.bytes_in, e.bytes_out);
}

std::string bucket_text(const LibraryBucket& b) {
  std::string parameters;
  for (const std::string& parameter : b.parameters) parameters += (parameters.empty() ? "" : ";") + parameter;
  return fmt::format("{} {} {} {} B {} {}: {}", b.phase, b.index, b.kind, b.bytes, b.dtype, b.extra, parameters);
}

class LibraryComparison {
 public:
  LibraryComparison(const LibraryRecording& recording, const LibraryRun& run) : recording_(recording), run_(run) {}

  Conformance compare() && {
    result_.id = recording_.id;
    result_.version = recording_.version;
    result_.schedule_identical = result_.bytes_identical = result_.memory_identical = true;
    result_.memory_within_tolerance = true;
    std::set<std::int64_t> steps;
    for (const LibraryRecordedEvent& event : recording_.events) steps.insert(event.step);
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) compare_step(*step);
    compare_buckets();
    compare_facts();
    std::ranges::stable_sort(result_.differences, {}, &Difference::what);
    return std::move(result_);
  }

 private:
  std::vector<LibraryRecordedEvent> predicted(std::int64_t step) const {
    const bool whole = recording_.whole_steps.contains(step) || step == 0;
    const auto i = at(step - 1);
    if (step > 0 && i >= run_.steps.size()) return {};
    const std::vector<LibraryEvent>& log = step == 0 ? run_.construction : run_.steps[i].log;
    std::vector<LibraryRecordedEvent> rows;
    for (std::size_t seq = 0; seq < log.size(); ++seq) {
      const LibraryEvent& event = log[seq];
      if (!whole && !is_always_kept(event.kind)) continue;
      LibraryRecordedEvent& row = rows.emplace_back();
      row.step = step;
      row.microbatch = event.microbatch;
      row.seq = static_cast<std::int64_t>(seq);
      row.kind = event.kind;
      row.unit = event.unit;
      row.dtype = event.dtype;
      row.group = event.group;
      row.note = event.note;
      row.bytes_in = event.bytes_in;
      row.bytes_out = event.bytes_out;
    }
    return rows;
  }

  static bool same_order(const LibraryRecordedEvent& a, const LibraryRecordedEvent& b) {
    return a.kind == b.kind && a.unit == b.unit && a.dtype == b.dtype && a.group == b.group && a.note == b.note &&
           a.microbatch == b.microbatch &&
           (a.seq == b.seq || a.step == 0);  // construction's rows are numbered with what is dropped
  }
  static bool same_bytes(const LibraryRecordedEvent& a, const LibraryRecordedEvent& b) {
    return a.bytes_in == b.bytes_in && a.bytes_out == b.bytes_out;
  }

  void compare_step(std::int64_t step) {
    const auto recorded = list_where<LibraryRecordedEvent>(
        recording_.events, [&](const LibraryRecordedEvent& event) { return event.step == step; });
    const std::vector<LibraryRecordedEvent> forecast = predicted(step);
    const std::size_t common = std::min(recorded.size(), forecast.size());
    result_.rows += std::ssize(recorded);
    const auto differ = [&](What what, std::size_t at, const char* name, auto describe) {
      const auto label = [&](std::size_t i) {
        return fmt::format("seq {}", i < recorded.size() ? recorded[i].seq : forecast[i].seq);
      };
      const std::int64_t seq = at < recorded.size() ? recorded[at].seq : -1;
      add(what, fmt::format("{}, {}, step {}, seq {}: {}\n{}", recording_.events_file, recording_.id, step, seq, name,
                    around(recorded, forecast, at, describe, label)));
    };
    std::size_t at = 0;
    while (at < common && same_order(recorded[at], forecast[at])) ++at;
    if (at < recorded.size() || at < forecast.size()) {
      result_.schedule_identical = false;
      differ(What::kSchedule, at, "the schedule", words_of);
    }
    // Bytes of the rows that are there on both sides, so that a missing row does not hide them.
    std::size_t i = 0;
    while (i < common && same_bytes(recorded[i], forecast[i]) && recorded[i].kind == forecast[i].kind) ++i;
    if (i < recorded.size() || i < forecast.size()) {
      result_.bytes_identical = false;
      differ(What::kBytes, i, "bytes", words_with_bytes);
    }
  }

  void compare_buckets() {
    const std::vector<LibraryBucket>& recorded = recording_.buckets;
    const std::vector<LibraryBucket>& forecast = run_.buckets;
    const std::size_t common = std::min(recorded.size(), forecast.size());
    std::size_t at = 0;
    while (at < common && recorded[at] == forecast[at]) ++at;
    if (at == recorded.size() && at == forecast.size()) return;
    result_.bytes_identical = false;
    add(What::kUnits,
        fmt::format("{}, {}, row {}\n{}", recording_.buckets_file, recording_.id, at,
            around(recorded, forecast, at, bucket_text, [](std::size_t i) { return fmt::format("row {}", i); })));
  }

  void compare_facts() {
    std::string text;
    const auto compare = [&](const auto& recorded, const auto& forecast) {
      for (const auto& [name, value] : forecast) {
        const auto found = recorded.find(name);
        if (found != recorded.end() && found->second == value) continue;
        text += fmt::format("    ! {:<40} recorded {} predicted {}\n", name,
            found == recorded.end() ? "-" : fmt::format("{}", found->second), value);
      }
    };
    compare(recording_.facts, run_.facts);
    compare(recording_.words, run_.words);
    if (text.empty()) return;
    result_.memory_identical = false;
    add(What::kMemory, fmt::format("{}, {}: facts of the index\n{}", recording_.events_file, recording_.id, text));
  }

  void add(What what, std::string text) { add_first(result_, what, std::move(text)); }

  const LibraryRecording& recording_;
  const LibraryRun& run_;
  Conformance result_;
};

}

Conformance conform(const LibraryRecording& recording, const LibraryRun& run) {
  return LibraryComparison(recording, run).compare();
}

}
