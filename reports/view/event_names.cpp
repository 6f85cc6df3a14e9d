#include "reports/view/event_names.h"

#include <fmt/format.h>

#include <algorithm>

namespace foreshard {

EventNames::EventNames(const EventGraph& graph, const ModelSpec& model)
    : graph_(graph), model_(model), phases_(phases_of(graph)) {
  several_microbatches_ = std::ranges::any_of(
      graph.details, [](const RowDetail& d) { return d.microbatch > 0; });
}

std::string EventNames::place(EventId event) const {
  const RowDetail& detail = graph_.details[at(event)];
  if (detail.layer >= 0 && at(detail.layer) < model_.order.size()) return model_.order[at(detail.layer)].name;
  if (detail.unit >= 0 && at(detail.unit) < graph_.units.size()) return graph_.units[at(detail.unit)].name;
  return "";
}

std::string EventNames::of(EventId event) const {
  if (event == kNoEvent) return "between steps";
  const EventKind kind = graph_.rows[at(event)].kind;
  std::string name = to_string(kind);
  const std::string where = place(event);
  if (!where.empty() && where != name) name += " " + where;
  else if (kind == EventKind::kAllReduce) name += " grad_norm";
  // Only gathers happen in both directions.
  const bool gathers =
      kind == EventKind::kAllGatherCopyIn || kind == EventKind::kAllGather || kind == EventKind::kAllGatherCopyOut;
  const bool counted = several_microbatches_ && phase(event) != Phase::kOptimizer;
  const std::int32_t microbatch = graph_.details[at(event)].microbatch;
  if (gathers && counted) name += fmt::format(" ({}, micro-batch {})", to_string(phase(event)), microbatch);
  else if (gathers) name += fmt::format(" ({})", to_string(phase(event)));
  else if (counted) name += fmt::format(" (micro-batch {})", microbatch);
  return name;
}

std::string event_name(const Forecast& forecast, EventId event) {
  return EventNames(forecast.graph, forecast.model).of(event);
}

std::string communicator_name(const EventGraph& graph, EventId event) {
  const Work& work = graph.works[graph.rows[at(event)].work];
  if (work.communicator == kNoCommunicator) return "";
  const Communicator& communicator = graph.communicators[work.communicator];
  const std::int32_t unit = graph.details[at(event)].unit;
  if (!communicator.per_unit || unit < 0) return communicator.name;
  return communicator.name + "/" + graph.units[at(unit)].name;
}

}
