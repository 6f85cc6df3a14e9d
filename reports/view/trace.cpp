// Chrome trace events, as ui.perfetto.dev and chrome://tracing read them. One process (a rank; all
// ranks do the same) per timeline, one thread for the host and one per stream. Times are shifted so
// that the earliest is zero, because the host runs ahead of the step and viewers do not show
// negative times. A measured step has no host thread: only issue times are known of it.
//
// A collective that waits for its communicator or its peers shows as two slices, one behind the other, so no two slices
// of a thread overlap. Memory follows host order: its counters stand where the host issues, not where the device runs.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/accuracy/intervals.h"
#include "reports/view/event_names.h"
#include "reports/view/exact_seconds.h"
#include "reports/view/views.h"

namespace foreshard {
namespace {

constexpr int kHostThread = 0;

int thread_of(Stream stream) { return static_cast<int>(stream) + 1; }

std::string microseconds(Time time) {
  const std::int64_t ns = time.nanoseconds();
  return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}

std::string quoted(const std::string& text) { return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace); }

// What the processes of a trace share.
struct Sink {
  fmt::memory_buffer out;
  Time shift;
  bool first = true;
  int flow = 0;
};

class ProcessWriter {
 public:
  ProcessWriter(const Forecast& forecast, int pid, Sink& sink)
      : forecast_(forecast), graph_(forecast.graph), names_(graph_, forecast.model), pid_(pid), sink_(sink) {
    has_host_ = forecast.costs.works.size() == graph_.works.size();
  }

  Time earliest() const {
    Time earliest;
    for (std::size_t i = 0; i < graph_.rows.size(); ++i) {
      const Span& span = forecast_.timeline.spans[i];
      earliest = std::min({earliest, span.issue - cost(i).before, span.start});
    }
    return earliest;
  }

  void write(const std::string& process) {
    metadata(process);
    for (std::size_t i = 0; i < graph_.rows.size(); ++i) {
      host_slice(i);
      row_slices(i);
      flows(i);
      counters(i);
    }
  }

 private:
  template <typename... Values>
  void print(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(sink_.out), format, std::forward<Values>(values)...);
  }
  // Begins an event; the caller prints what follows the comma before "name".
  template <typename... Values>
  void event(fmt::format_string<Values...> format, Values&&... values) {
    print("{}\n{{", sink_.first ? "" : ",");
    sink_.first = false;
    print(format, std::forward<Values>(values)...);
    print("}}");
  }

  std::string stamp(Time time) const { return microseconds(time - sink_.shift); }
  Cost cost(std::size_t row) const { return has_host_ ? forecast_.costs.works[graph_.rows[row].work] : Cost{}; }

  void metadata(const std::string& process) {
    event(R"("ph":"M","pid":{},"name":"process_name","args":{{"name":{}}})", pid_, quoted(process));
    const auto thread = [&](int tid, const std::string& name) {
      event(R"("ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}})", pid_, tid, quoted(name));
      event(R"("ph":"M","pid":{},"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}})", pid_, tid, tid);
    };
    if (has_host_) thread(kHostThread, "host");
    for (std::size_t s = 0; s < kStreams; ++s) {
      const auto stream = static_cast<Stream>(s);
      thread(thread_of(stream), std::string("stream ") + to_string(stream));
    }
  }

  void slice(int tid, const std::string& name, const char* category, Interval when, const std::string& args) {
    event(R"("ph":"X","pid":{},"tid":{},"name":{},"cat":"{}","ts":{},"dur":{},"args":{{{}}})", pid_, tid, quoted(name),
        category, stamp(when.begin), microseconds(when.end - when.begin), args);
  }

  void host_slice(std::size_t row) {
    if (!has_host_) return;
    const Time issue = forecast_.timeline.spans[row].issue;
    slice(kHostThread, "issue " + names_.of(static_cast<EventId>(row)), "host",
        {issue - cost(row).before, issue + cost(row).during}, fmt::format(R"("id":{})", row));
  }

  void row_slices(std::size_t row) {
    const Row& r = graph_.rows[row];
    const RowDetail& detail = graph_.details[row];
    const Work& work = graph_.works[r.work];
    const Span& span = forecast_.timeline.spans[row];
    const auto id = static_cast<EventId>(row);
    std::string args = fmt::format(R"("id":{},"microbatch":{})", row, detail.microbatch);
    const std::string place = names_.place(id);
    if (!place.empty()) args += R"(,"unit":)" + quoted(place);
    if (work.bytes > Bytes()) args += fmt::format(R"(,"bytes":{})", work.bytes.count());
    if (work.flops.count() > 0) args += fmt::format(R"(,"flops":{:.0f})", work.flops.count());
    if (is_collective(r.kind)) {
      if (work.communicator != kNoCommunicator) {
        args += fmt::format(R"(,"communicator":{},"group_size":{})", quoted(communicator_name(graph_, id)),
            graph_.communicators[work.communicator].group.size);
      }
      if (span.arrive > span.start) {
        slice(thread_of(r.stream), "wait for the communicator", "wait", {span.start, span.arrive},
            fmt::format(R"("id":{})", row));
      }
    }
    const Time begin = is_collective(r.kind) ? span.arrive : span.start;
    slice(thread_of(r.stream), names_.of(id), to_string(r.kind), {begin, span.end}, args);
  }

  // An arrow from inside the awaited slice to the begin of the waiting one.
  void flows(std::size_t row) {
    const Span& span = forecast_.timeline.spans[row];
    for (EventId awaited : graph_.waits_of(static_cast<EventId>(row))) {
      const auto from = at(awaited);
      const Span& source = forecast_.timeline.spans[from];
      const Time leaves = std::max(source.arrive, source.end - Time::ns(1));
      ++sink_.flow;
      event(R"("ph":"s","pid":{},"tid":{},"id":{},"name":"wait","cat":"wait","ts":{})", pid_,
          thread_of(graph_.rows[from].stream), sink_.flow, stamp(leaves));
      event(R"("ph":"f","bp":"e","pid":{},"tid":{},"id":{},"name":"wait","cat":"wait","ts":{})", pid_,
          thread_of(graph_.rows[row].stream), sink_.flow, stamp(span.start));
    }
  }

  void counters(std::size_t row) {
    const MemoryProfile& memory = forecast_.memory;
    if (row >= memory.by_category.size()) return;
    const bool changed = row == 0 || memory.by_category[row] != memory.by_category[row - 1];
    const std::string when = stamp(forecast_.timeline.spans[row].issue);
    if (changed) {
      std::string args;
      for (std::size_t c = 0; c < kMemoryCategories; ++c) {
        if (memory.own_peak[c] == Bytes()) continue;
        args += fmt::format(R"({}"{}":{})", args.empty() ? "" : ",", to_string(static_cast<MemoryCategory>(c)),
            memory.by_category[row][c].count());
      }
      event(R"("ph":"C","pid":{},"name":"memory_bytes","ts":{},"args":{{{}}})", pid_, when, args);
    }
    if (row == 0 || memory.samples[row].peak != memory.samples[row - 1].peak) {
      event(R"("ph":"C","pid":{},"name":"memory_peak_in_event_bytes","ts":{},"args":{{"bytes":{}}})", pid_, when,
          memory.samples[row].peak.count());
    }
  }

  const Forecast& forecast_;
  const EventGraph& graph_;
  EventNames names_;
  int pid_;
  Sink& sink_;
  bool has_host_ = false;
};

std::string process_name(const Forecast& forecast, const char* who) {
  return fmt::format(
      "{}{} on {}, one of {} ranks", who, forecast.model.name, forecast.plan.cluster, forecast.plan.mesh.world());
}

struct Process {
  const Forecast* forecast;
  std::string name;
};

std::string write_trace(const std::vector<Process>& processes) {
  Sink sink;
  std::vector<ProcessWriter> writers;
  for (const Process& process : processes) {
    writers.emplace_back(*process.forecast, static_cast<int>(writers.size()) + 1, sink);
    sink.shift = std::min(sink.shift, writers.back().earliest());
  }
  const Forecast& first = *processes.front().forecast;
  fmt::format_to(std::back_inserter(sink.out),
      R"({{"displayTimeUnit":"ms","otherData":{{"fingerprint":"{}","step_begin_us":{},)"
      R"("step_us":{}}},"traceEvents":[)",
      first.graph.fingerprint(), microseconds(Time() - sink.shift), microseconds(first.timeline.period));
  for (std::size_t i = 0; i < writers.size(); ++i) writers[i].write(processes[i].name);
  fmt::format_to(std::back_inserter(sink.out), "\n]}}\n");
  return fmt::to_string(sink.out);
}

}

std::string chrome_trace(const Forecast& forecast) { return write_trace({{&forecast, process_name(forecast, "")}}); }

std::string chrome_trace(const Forecast& predicted, const Forecast& measured) {
  return write_trace(
      {{&predicted, process_name(predicted, "predicted: ")}, {&measured, process_name(measured, "measured: ")}});
}

std::string schedule_csv(const EventGraph& graph, const Timeline& timeline) {
  fmt::memory_buffer out;
  const auto line = [&](auto format, const auto&... values) {
    fmt::format_to(std::back_inserter(out), format, values...);
  };
  line(
      FMT_STRING("id,kind,unit,unit_name,microbatch,stream,communicator,bytes,flops,issue_s,start_s,arrive_s,end_s\n"));
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const Row& row = graph.rows[i];
    const RowDetail& detail = graph.details[i];
    const Work& work = graph.works[row.work];
    const Span& span = timeline.spans[i];
    const bool has_unit = detail.unit >= 0;
    line(FMT_STRING("{},{},{},{},{},{},{},{},{:.0f},{},{},{},{}\n"), i, to_string(row.kind),
        has_unit ? std::to_string(detail.unit) : "", has_unit ? graph.units[at(detail.unit)].name : "",
        detail.microbatch, to_string(row.stream), communicator_name(graph, static_cast<EventId>(i)), work.bytes.count(),
        work.flops.count(), exact_seconds(span.issue), exact_seconds(span.start), exact_seconds(span.arrive),
        exact_seconds(span.end));
  }
  return fmt::to_string(out);
}

}
