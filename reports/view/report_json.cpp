#include <cmath>
#include <nlohmann/json.hpp>

#include "reports/report.h"
#include "reports/report_parts.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

Json quantity(const Quantity& q) { return to_json(q); }

// Bytes are whole numbers.
Json byte_quantity(const Quantity& q) {
  const auto whole = [](double bytes) { return static_cast<std::int64_t>(bytes); };
  return {
      {"value", whole(q.value)}, {"low", whole(q.low)}, {"high", whole(q.high)}, {"evidence", to_string(q.evidence)}};
}

Json cluster_json(const Cluster& cluster) {
  return {{"spec", cluster.spec}, {"gpu", cluster.gpu.key}, {"gpu_name", cluster.gpu.name}, {"gpus", cluster.gpus},
      {"node", cluster.node.key}, {"nodes", cluster.nodes()}, {"gpus_per_node", cluster.gpus_per_node()},
      {"nics_per_node", cluster.node.nics}, {"nic", cluster.node.nic_name}, {"network", cluster.network.kind}};
}

Json outside_json(const OutsideItems& items) {
  return json_list(
      items,
      [&](const OutsideItem& item) -> Json {
        return {{"name", item.name}, {"bytes", item.bytes.count()}, {"evidence", to_string(item.evidence)},
            {"source", item.source}};
      });
}

const char* memory_note(const Report& report) {
  if (report.origin == "measured") {
    return "allocated: the engine's persistent buffers and the tensors alive at their highest; "
           "reserved: the resident memory of the process";
  }
  return "allocated: blocks of 512 bytes; reserved: the caching allocator's segments (CPU ranks: what is allocated)";
}

Json pipeline_json(const Report& report) {
  Json list = Json::array();
  for (std::size_t r = 0; r < report.pipeline.size(); ++r) {
    const Report::PipelineRank& rank = report.pipeline[r];
    list.push_back(
        {{"rank", r}, {"stages", rank.stages}, {"idle_share", rank.idle}, {"peak_allocated_bytes", rank.peak.count()}});
  }
  return list;
}

Json calls_json(const Report::DriverCalls& calls) {
  return {{"allocs", calls.allocs}, {"frees", calls.frees}, {"retries", calls.retries}, {"seconds", calls.seconds}};
}

Json run_json(const RunFigures& run) {
  Json losses = Json::array();
  // JSON has no NaN.
  for (double loss : run.losses) losses.push_back(std::isfinite(loss) ? Json(loss) : Json(nullptr));
  return {{"losses", std::move(losses)}, {"parameter_hash", run.parameter_hash}, {"tokens_per_s", run.tokens_per_s}};
}

}

Json to_json(const Quantity& q) {
  return {{"value", q.value}, {"low", q.low}, {"high", q.high}, {"evidence", to_string(q.evidence)}};
}

Json to_json(const Report& report) {
  Json at_peak = Json::object();
  for (const auto& [category, bytes] : report.at_peak) at_peak[category] = bytes.count();
  Json assumed = Json::array();
  for (const auto& [key, value] : report.assumed) assumed.push_back({{"key", key}, {"value", value}});
  Json json;
  json["schema"] = "foreshard.report/1";
  json["origin"] = report.origin;
  json["fingerprint"] = report.fingerprint;
  json["plan"] = to_json(report.plan);
  json["cluster"] = cluster_json(report.cluster);
  json["parameters"] = report.parameters;
  json["sharding"] = {{"dtype", to_string(report.sharding.dtype)}, {"whole_bytes", report.sharding.whole.count()},
      {"per_gpu_bytes", report.sharding.per_gpu.count()}, {"padding_bytes", report.sharding.padding.count()}};
  json["step"] = {{"seconds", quantity(report.seconds)},
      {"tokens_per_s_per_gpu", quantity(report.tokens_per_s_per_gpu)}, {"mfu", quantity(report.mfu)},
      {"hfu", quantity(report.hfu)}, {"communication_s", quantity(report.communication)},
      {"exposed_communication_s", quantity(report.exposed_communication)},
      {"first_step_seconds", report.first_step_seconds}, {"steady_step", report.steady_step}};
  if (!report.pipeline.empty()) json["pipeline"] = pipeline_json(report);
  json["memory"] = {{"capacity_bytes", report.fit.capacity.count()},
      {"peak_allocated_bytes", byte_quantity(report.peak_allocated)},
      {"peak_reserved_bytes", byte_quantity(report.peak_reserved)},
      {"outside_allocator_bytes", byte_quantity(report.outside_allocator)}, {"outside", outside_json(report.outside)},
      {"host_peak_bytes", report.host_peak.count()},
      {"driver_calls", {{"first_step", calls_json(report.first_calls)}, {"steady", calls_json(report.steady_calls)},
                           {"repeats", report.driver_calls_repeat}}},
      {"fits", report.fit.fits()}, {"fit_probability", report.fit_probability},
      {"margin_bytes", report.fit.margin().count()}, {"peak_total_bytes", byte_quantity(total_memory(report))},
      {"total_bytes", (report.fit.outside + report.fit.reserved).count()},
      {"peak_event", report.peak_event.empty() ? Json(nullptr) : Json(report.peak_event)},
      {"at_peak", std::move(at_peak)}, {"note", memory_note(report)}};
  if (report.run) json["run"] = run_json(*report.run);
  json["open"] = open_json(report.open_stack);
  json["assumed"] = std::move(assumed);
  json["warnings"] = report.warnings;
  return json;
}

}
