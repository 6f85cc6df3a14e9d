// Host: what the capturing machine's processor took, times how much longer the target's takes
// (HostCurve::processor), and the driver's own time per launch, which the null GPU does not have.
// Unknown kernels: in each draw all of them take up to kUnknownFactor times as long or as short.
#include "reports/capture/captured_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "reports/accuracy/evidence.h"
#include "reports/report_parts.h"
#include "reports/view/event_names.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/base/unit_strings.h"
#include "sim/graph/capture/captured_kernel.h"
#include "sim/simulate/simulate.h"

namespace foreshard {
namespace {

constexpr int kDraws = 32;
constexpr double kUnknownFactor = 4;
constexpr std::size_t kMostListed = 10;

// Seconds of each row's unknown kernels.
std::vector<double> unknown_seconds(const CapturedGraph& captured, const EventGraph& graph, const CostModel& costs) {
  std::vector<double> seconds(graph.works.size(), 0);
  for (std::size_t w = 0; w < graph.works.size(); ++w) {
    const Work& work = graph.works[w];
    for (std::uint32_t k = work.kernels_begin; k < work.kernels_end; ++k)
      if (!captured.kernels[k].is_known) seconds[w] += costs.price(graph.kernels[k]).seconds;
  }
  return seconds;
}

// The profile's host is one that codes by words are right on, whose calls are fewer than a
// capture's (0.7 of the launches of 18 codes). The geometric mean over three machines with an H200
// of steps of captures that waited for their hosts over their forecasts: 11 programs 1 / 1.15, 3 1
// / 1.37, 18 codes and 3 repositories 1 / 1.43 (reports/validation, 2026-11-26, 27, 29).
constexpr double kCapturedHost = 0.76;

// Of one rank.
class RankPricer {
 public:
  RankPricer(const Capture& capture, const CapturedGraph& captured, const EventGraph& graph, const CostModel& costs)
      : captured_(captured),
        graph_(graph),
        costs_(costs),
        scale_(kCapturedHost * costs.calibration().host.processor / capture.processor),
        unknown_(unknown_seconds(captured, graph, costs)) {}

  CostTable price(const FactorDraw& draw, double unknown_factor) const {
    CostTable table = costs_.price(graph_, draw);
    const double host = draw[at(Factor::kHost)];
    const double driver = kCapturedHost * costs_.calibration().host.per_driver_launch;
    for (std::size_t w = 0; w < table.works.size(); ++w) {
      Cost& cost = table.works[w];
      cost.before = Time::seconds(captured_.before[w] * scale_ * host);
      cost.during = Time::seconds((captured_.during[w] * scale_ + driver * graph_.works[w].launches) * host);
      cost.duration += Time::seconds(unknown_[w] * (unknown_factor - 1));
    }
    return table;
  }

 private:
  const CapturedGraph& captured_;
  const EventGraph& graph_;
  const CostModel& costs_;
  double scale_;
  std::vector<double> unknown_;
};

// Of a rank with the others of its pipeline.
class Pricer {
 public:
  // `ranks` by their places in the pipeline.
  Pricer(std::vector<RankPricer> ranks, std::size_t own) : ranks_(std::move(ranks)), own_(own) {}

  CostTable price(const FactorDraw& draw, double unknown_factor) const {
    CostTable table = ranks_[own_].price(draw, unknown_factor);
    if (ranks_.size() == 1) return table;
    table.pipeline.resize(ranks_.size());
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      if (r != own_) table.pipeline[r] = ranks_[r].price(draw, unknown_factor);
    return table;
  }

 private:
  std::vector<RankPricer> ranks_;
  std::size_t own_;
};

// Between 1/kUnknownFactor and kUnknownFactor, spread evenly over the draws in an order of their own.
double unknown_draw(int k) {
  const double place = (as_double((k * 13) % kDraws) + 0.5) / kDraws;
  return std::pow(kUnknownFactor, 2 * place - 1);
}

void add_time(const Pricer& pricer, const CostModel& costs, CapturedForecast& made) {
  const Forecast& forecast = made.forecast;
  const StepMetrics central = measure_step(forecast.graph, forecast.timeline);
  std::vector<double> seconds, communication, exposed;
  Simulator simulator;
  for (int k = 0; k < kDraws; ++k) {
    const CostTable table = pricer.price(costs.draw(k), unknown_draw(k));
    const StepMetrics drawn = measure_step(forecast.graph, simulator.steady_step(forecast.graph, table));
    seconds.push_back(drawn.seconds);
    communication.push_back(drawn.communication);
    exposed.push_back(drawn.exposed_communication);
  }
  const StepEvidence evidence = weigh_evidence(forecast, costs);
  Report& report = made.report;
  report.seconds = with_interval(central.seconds, std::move(seconds), evidence.seconds);
  report.communication = with_interval(central.communication, std::move(communication), evidence.communication);
  report.exposed_communication =
      with_interval(central.exposed_communication, std::move(exposed), evidence.exposed_communication);
  const auto flops_of = [](const EventGraph& graph) {
    return sum_of<double>(graph.works, [](const Work& work) { return work.flops.count(); });
  };
  double flops = flops_of(forecast.graph);
  for (const auto& other : forecast.graph.pipeline) flops += other ? flops_of(*other) : 0;
  const double peak = costs.cluster().gpu.peak_bf16.value();
  const double at_peak = peak > 0 ? flops / peak / as_double(made.ranks.size()) : 0;
  report.hfu = report.mfu = rate(at_peak, report.seconds);
  report.first_step_seconds = forecast.timeline.first_step.seconds();
  report.steady_step = forecast.timeline.steady_step;
}

void add_memory(const Cluster& cluster, CapturedForecast& made) {
  Report& report = made.report;
  const Forecast& forecast = made.forecast;
  report.outside = memory_outside(forecast.graph, cluster, forecast.plan.runtime);
  report.fit = fit_in(cluster, made.captured.peak_allocated, made.captured.run_peak_reserved, total(report.outside));
  const auto known = [](Bytes bytes) {
    const auto value = as_double(bytes.count());
    return Quantity{value, value, value, Evidence::kMeasured};
  };
  report.peak_allocated = known(made.captured.peak_allocated);
  report.peak_reserved = known(made.captured.peak_reserved);
  report.outside_allocator = outside_quantity(total(report.outside));
  report.fit_probability = fit_probability(report.fit);
  report.peak_event = event_name(forecast, forecast.memory.peak_event);
  report.at_peak = categories_at_peak(forecast.memory);
}

std::vector<KernelTime> kernel_times(
    const Capture& capture, const CapturedGraph& captured, const EventGraph& graph, const CostModel& costs) {
  std::map<std::int32_t, KernelTime> by_name;
  double all = 0;
  const FactorDraw center = costs.center();
  std::vector<KernelPrice> prices;
  for (const Work& work : graph.works) {
    const std::span kernels = graph.kernels_of(work);
    costs.price_row(kernels, center, prices);
    for (std::size_t k = 0; k < kernels.size(); ++k) {
      const auto [name, is_known] = captured.kernels[work.kernels_begin + k];
      all += prices[k].seconds;
      KernelTime& one = by_name[name];
      ++one.launches;
      one.bytes += kernels[k].bytes;
      one.seconds += prices[k].seconds;
      one.is_known = is_known;
    }
  }
  std::vector<KernelTime> times;
  for (auto& [name, one] : by_name) {
    one.name = name < 0 ? "copies and sets" : capture.names[at(name)];
    one.share = all > 0 ? one.seconds / all : 0;
    times.push_back(std::move(one));
  }
  std::ranges::stable_sort(times, std::greater(), &KernelTime::share);
  return times;
}

std::vector<KernelTime> unknown_kernels(const CapturedForecast& made) {
  std::vector<KernelTime> unknown;
  std::ranges::copy_if(made.kernels, std::back_inserter(unknown), [](const KernelTime& one) { return !one.is_known; });
  return unknown;
}

void add_warnings(const Capture& capture, const Cluster& cluster, CapturedForecast& made) {
  std::vector<std::string>& warnings = made.report.warnings;
  if (capture.gpu != cluster.gpu.key) {
    warnings.push_back(fmt::format(
        "captured as on {}: which kernels libraries choose on {} may differ; foreshard-null --gpu {} captures them",
        capture.gpu, cluster.gpu.key, cluster.gpu.key));
  }
  const std::vector<KernelTime> unknown = unknown_kernels(made);
  double share = sum_of<double>(unknown, &KernelTime::share);
  if (share > 0.01) {
    warnings.push_back(fmt::format(
        "{:.0f} % of the kernels' time is of {} kernels that are priced by their bytes alone: the interval is wide",
        100 * share, unknown.size()));
  }
  if (made.captured.retained > Bytes(1 << 20)) {
    warnings.push_back(fmt::format(
        "each step leaves {} of tensors behind: something keeps them across steps (outputs or losses in a list?)",
        format_bytes(made.captured.retained)));
  }
  if (made.captured.run_peak_reserved > made.captured.peak_reserved) {
    warnings.push_back(fmt::format("before its steady step the program allocated up to {} and reserved up to {}",
        format_bytes(made.captured.run_peak_allocated), format_bytes(made.captured.run_peak_reserved)));
  }
  append(warnings, made.faults);
  for (const std::int64_t rank : made.missing) {
    warnings.push_back(fmt::format(
        "rank {0} sends to a captured rank or receives from one and is not captured: what one waits for the other is "
        "not in the step; capture it, too (foreshard-null --rank {0}), and name all: --capture A B",
        rank));
  }
  for (const std::string& place : made.blind_reads)
    warnings.push_back("the host reads a tensor that nobody computed (zeros) at " + place);
  for (const std::string& place : made.level_counts)
    warnings.push_back("what nobody computed is counted as level (balanced experts) at " + place);
}

}

namespace {

// Whose curves price it: PyTorch's choice, unless the program took another backend.
AttentionKernel captured_attention(const Capture& capture) {
  AttentionKernel found = AttentionKernel::kFlash;
  for (const std::string& name : capture.names) {
    const std::string_view word = attention_kernel_of(name);
    if (word == "cudnn") return AttentionKernel::kFlash;
    if (word == "efficient") found = AttentionKernel::kEfficient;
    if (word == "flash" || word == "fa2") found = AttentionKernel::kFa2;
  }
  return found;
}

}

Plan captured_plan(const Capture& capture, const Cluster& cluster) {
  Plan plan = {.model = capture.model.empty() ? "captured" : capture.model, .cluster = cluster.spec};
  plan.mesh.shard = capture.world;
  for (const auto& [name, version] : capture.versions) {
    if (name != "torch") continue;
    const std::size_t dot = version.find('.', version.find('.') + 1);
    plan.runtime.version = version.substr(0, dot);
  }
  plan.attention = captured_attention(capture);
  return plan;
}

namespace {

// Every send has a receive, in their order.
void check_transfers(const std::vector<Capture>& captures, const std::vector<CapturedGraph>& all) {
  const auto count = [&](std::size_t of, std::size_t with, Exchange::Side side) {
    return std::ranges::count_if(
        all[of].graph.exchanges, [&](const Exchange& e) { return at(e.peer) == with && e.side == side; });
  };
  for (std::size_t from = 0; from < all.size(); ++from) {
    for (std::size_t to = 0; to < all.size(); ++to) {
      const auto sent = count(from, to, Exchange::Side::kSend), received = count(to, from, Exchange::Side::kReceive);
      if (sent == received) continue;
      throw invalid_input(
          "{}: rank {} sends {} times a step to rank {}, which receives {} times; expected captures of one program",
          captures[from].path, captures[from].rank, sent, captures[to].rank, received);
    }
  }
}

std::vector<std::int64_t> ranks_of(const std::vector<Capture>& captures, const Cluster& cluster) {
  std::vector<std::int64_t> ranks;
  for (const Capture& capture : captures) {
    if (cluster.gpus != capture.world) {
      throw invalid_input(
          "{}: is of rank {} of {}, the cluster has {} GPUs; expected --cluster {}x{}, a capture with --world {}, "
          "or its plan: foreshard import {} --out model.yaml --plan plan.yaml, then predict or search --plan plan.yaml",
          capture.path, capture.rank, capture.world, cluster.gpus, capture.world, cluster.gpu.key, cluster.gpus,
          capture.path);
    }
    if (contains(ranks, capture.rank))
      throw invalid_input("{}: is another of rank {}; expected one of each", capture.path, capture.rank);
    ranks.push_back(capture.rank);
  }
  return ranks;
}

}

CapturedForecast forecast_captures(const std::vector<Capture>& captures, const Plan& plan, const CostModel& costs) {
  const Cluster& cluster = costs.cluster();
  CapturedForecast made = {.ranks = ranks_of(captures, cluster)};
  std::vector<CapturedGraph> all;
  for (const Capture& each : captures) {
    all.push_back(capture_graph(each, made.ranks));
    for (const std::int64_t rank : all.back().awaited)
      if (!contains(made.missing, rank)) made.missing.push_back(rank);
  }
  check_transfers(captures, all);
  made.shown = at(std::ranges::max_element(all, {}, &CapturedGraph::peak_allocated) - all.begin());
  const Capture& capture = captures[made.shown];
  made.captured = std::move(all[made.shown]);
  Forecast& forecast = made.forecast;
  forecast.graph = std::move(made.captured.graph);
  if (all.size() > 1) {
    forecast.graph.pipeline_rank = static_cast<std::int32_t>(made.shown);
    for (std::size_t r = 0; r < all.size(); ++r) {
      forecast.graph.pipeline.push_back(
          r == made.shown ? nullptr : std::make_shared<const EventGraph>(std::move(all[r].graph)));
    }
  }
  forecast.plan = plan;
  forecast.model.name = plan.model;
  forecast.memory = replay_allocations(forecast.graph);
  forecast.reserved.peak = made.captured.peak_reserved;
  std::vector<RankPricer> ranks;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const bool own = r == made.shown;
    ranks.emplace_back(
        captures[r], own ? made.captured : all[r], own ? forecast.graph : *forecast.graph.pipeline[r], costs);
  }
  const Pricer pricer(std::move(ranks), made.shown);
  forecast.costs = pricer.price(costs.center(), 1);
  Simulator simulator;
  forecast.timeline = simulator.simulate(forecast.graph, forecast.costs);
  for (std::size_t r = 0; r < made.captured.before.size(); ++r)
    made.host_seconds += made.captured.before[r] + made.captured.during[r];
  for (const Capture& each : captures) {
    for (const CapturedCall& call : each.calls)
      if (call.kind == CapturedCall::Kind::kFault) made.faults.push_back(each.name_of(call));
  }
  const StepRange range = steady_step(capture);
  for (std::size_t i = range.begin; i < range.end; ++i) {
    const CapturedCall& call = capture.calls[i];
    constexpr std::string_view kLevel = "level ";
    const std::string& name = capture.name_of(call);
    const bool is_level = call.kind == CapturedCall::Kind::kMark && name.starts_with(kLevel);
    if (!is_level && call.kind != CapturedCall::Kind::kBlindRead) continue;
    std::string place = own_place(name.substr(is_level ? kLevel.size() : 0));
    if (place.empty()) place = "a place that is not Python's";
    std::vector<std::string>& places = is_level ? made.level_counts : made.blind_reads;
    if (!contains(places, place)) places.push_back(place);
  }
  made.lint = lint_capture(capture);
  made.report.origin = "captured";
  made.report.fingerprint = forecast.graph.fingerprint();
  made.report.plan = plan;
  made.report.cluster = cluster;
  made.report.parameters = capture.parameters;
  add_time(pricer, costs, made);
  add_memory(cluster, made);
  made.kernels = kernel_times(capture, made.captured, forecast.graph, costs);
  add_warnings(capture, cluster, made);
  return made;
}

Json capture_json(const Capture& capture, const CapturedForecast& made) {
  Json json = Json::object();
  json["command"] = capture.command;
  json["gpu"] = capture.gpu;
  json["rank"] = capture.rank;
  json["world"] = capture.world;
  if (made.ranks.size() > 1) json["ranks"] = made.ranks;
  json["versions"] = Json::object();
  for (const auto& [name, version] : capture.versions) json["versions"][name] = version;
  json["events"] = made.forecast.graph.rows.size();
  json["launches"] = made.captured.launches;
  json["host_s"] = made.host_seconds;
  json["run_peak_allocated_bytes"] = made.captured.run_peak_allocated.count();
  json["run_peak_reserved_bytes"] = made.captured.run_peak_reserved.count();
  // Of the same moment, where the program has seen no higher peak since it last reset them.
  json["requested_peak_bytes"] =
      capture.told_allocated == made.captured.peak_allocated.count() ? Json(capture.told_requested) : Json();
  json["retained_bytes"] = made.captured.retained.count();
  json["kernels"] = json["unknown_kernels"] = Json::array();
  for (const KernelTime& one : made.kernels) {
    json["kernels"].push_back({{"name", one.name}, {"launches", one.launches}, {"seconds", one.seconds}});
    if (one.is_known) continue;
    json["unknown_kernels"].push_back(
        {{"name", one.name}, {"launches", one.launches}, {"bytes", one.bytes.count()}, {"share", one.share}});
  }
  json["blind_reads"] = made.blind_reads;
  json["faults"] = made.faults;
  json["lint"] = lint_json(made.lint);
  return json;
}

namespace {

// Names of templates say what they are instead of where they stand.
std::string short_name(std::string name) {
  for (const std::string_view part : {"void ", "at::native::", "at::", "c10::", "(anonymous namespace)::"})
    for (std::size_t found = name.find(part); found != name.npos; found = name.find(part))
      name.erase(found, part.size());
  return name;
}

std::string listed(const std::vector<KernelTime>& kernels) {
  std::string text;
  for (std::size_t i = 0; i < std::min(kernels.size(), kMostListed); ++i) {
    const KernelTime& one = kernels[i];
    text += fmt::format("  {:5.1f} %  {} x {:.110}\n", 100 * one.share, one.launches, short_name(one.name));
  }
  return text;
}

}

std::string capture_text(const Capture& capture, const CapturedForecast& made) {
  std::string text;
  if (made.ranks.size() > 1)
    text = fmt::format("\nof the captured ranks {}, the fullest:", fmt::join(made.ranks, ", "));
  text += fmt::format("\ncaptured: rank {} of {} of `{}`, {} launches in {} events; its host takes {} of a step\n",
      capture.rank, capture.world, capture.command, made.captured.launches, made.forecast.graph.rows.size(),
      format_time(Time::seconds(made.host_seconds)));
  text += lint_text(made.lint);
  text += "kernels, by their share of the kernels' time:\n" + listed(made.kernels);
  const std::vector<KernelTime> unknown = unknown_kernels(made);
  if (!unknown.empty()) text += "of them priced by their bytes alone:\n" + listed(unknown);
  return text;
}

}
