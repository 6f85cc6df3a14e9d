#include <fmt/format.h>

#include "reports/view/event_names.h"
#include "reports/view/exact_seconds.h"
#include "reports/view/views.h"

namespace foreshard {

std::string schedule_csv(const EventGraph& graph, const Timeline& timeline) {
  fmt::memory_buffer out;
  const auto line = [&](auto format, const auto&... values) {
    fmt::format_to(std::back_inserter(out), format, values...);
  };
  line(
      FMT_STRING("id,kind,unit,unit_name,microbatch,stream,communicator,bytes,flops,"
                 "issue_s,start_s,arrive_s,end_s\n"));
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const Row& row = graph.rows[i];
    const RowDetail& detail = graph.details[i];
    const Work& work = graph.works[row.work];
    const Span& span = timeline.spans[i];
    const bool has_unit = detail.unit >= 0;
    line(FMT_STRING("{},{},{},{},{},{},{},{},{:.0f},{},{},{},{}\n"), i, to_string(row.kind),
         has_unit ? std::to_string(detail.unit) : "",
         has_unit ? graph.units[at(detail.unit)].name : "", detail.microbatch,
         to_string(row.stream), communicator_name(graph, static_cast<EventId>(i)),
         work.bytes.count(), work.flops.count(), exact_seconds(span.issue),
         exact_seconds(span.start), exact_seconds(span.arrive), exact_seconds(span.end));
  }
  return fmt::to_string(out);
}

}  // namespace foreshard
