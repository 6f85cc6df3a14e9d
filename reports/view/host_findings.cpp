// The host runs ahead of the device, so that what it does costs nothing until it is late. How late:
// the gaps of the compute stream that end when the host issues the row behind them, and what rows
// take beyond their kernels because those were enqueued too slowly.

#include <nlohmann/json.hpp>
#include <numeric>

#include "reports/view/findings.h"

namespace foreshard {
namespace {

constexpr double kBindingShare = 0.05;  // of the step

struct Remedy {
  bool (*helps)(const Plan& plan, const HostCounts& backward);
  std::string_view words;
};
// Megatron-Core's modules are not compiled, whatever kernels they fuse.
bool is_megatron(const Plan& plan) { return plan.runtime.kind == RuntimeKind::kMegatron; }

constexpr Remedy kRemedies[] = {
    {[](const Plan& plan, const HostCounts&) { return plan.compile == Compile::kNone && !is_megatron(plan); },
        "compile the blocks (compile: blocks): fewer kernels, and no Python between them"},
    {[](const Plan& plan, const HostCounts&) {
       return is_megatron(plan) && plan.megatron.cuda_graphs == MegatronOptions::CudaGraphs::kNone;
     },
        "CUDA graphs of layers or of the whole iteration (megatron.cuda_graphs)"},
    {[](const Plan& plan, const HostCounts&) { return plan.batch.accumulation > 1; },
        "a larger micro-batch with less accumulation: every micro-batch costs the host a whole pass"},
    {[](const Plan& plan, const HostCounts&) { return plan.batch.accumulation <= 1; },
        "a larger micro-batch or longer sequences: the host's time stays, the GPU's grows"},
    {[](const Plan& plan, const HostCounts&) {
       return plan.optimizer.kind == Optimizer::Kind::kAdamW &&
              plan.optimizer.implementation != Optimizer::Implementation::kFused;
     },
        "a fused optimizer (optimizer.implementation: fused)"},
    {[](const Plan&, const HostCounts& backward) { return backward[at(HostCall::kRecomputed)] > 0; },
        "less recomputation where memory allows: it issues the forward a second time"},
    {[](const Plan&, const HostCounts&) { return true; },
        "fewer and larger parameters (fused projections), CUDA graphs where shapes never change"},
};

}

Time HostFindings::all() const { return std::accumulate(busy.begin(), busy.end(), Time()); }

bool HostFindings::binds(Time step) const { return held_up.seconds() > kBindingShare * step.seconds(); }

HostFindings host_findings(const Forecast& forecast) {
  const EventGraph& graph = forecast.graph;
  HostFindings host;
  if (forecast.costs.works.size() != graph.works.size()) return host;
  const std::vector<Phase> phases = phases_of(graph);
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const Cost& cost = forecast.costs.works[graph.rows[i].work];
    const auto phase = at(phases[i]);
    host.busy[phase] += cost.before + cost.during;
    host.launches[phase] += graph.works[graph.rows[i].work].launches;
    const HostCounts counts = host_calls(graph, graph.works[graph.rows[i].work]);
    for (std::size_t c = 0; c < kHostCalls; ++c) host.calls[phase][c] += counts[c];
    if (computes(graph.rows[i])) host.held_up += excess_of(forecast.timeline.spans[i], cost).launches;
  }
  for (const Gap& gap : compute_gaps(graph, forecast.timeline))
    if (gap.collective == kNoEvent && gap.otherwise == Cause::kHost) host.held_up += gap.end - gap.begin;
  if (graph.host.python && host.binds(forecast.timeline.period)) {
    for (const Remedy& remedy : kRemedies)
      if (remedy.helps(forecast.plan, host.calls[at(Phase::kBackward)])) host.remedies.emplace_back(remedy.words);
  }
  return host;
}

Json host_json(const HostFindings& host, Time step) {
  Json phases = Json::object();
  for (std::size_t p = 0; p < kPhases; ++p) {
    Json calls = Json::object();
    for (std::size_t c = 0; c < kHostCalls; ++c)
      if (host.calls[p][c] > 0) calls[to_string(static_cast<HostCall>(c))] = host.calls[p][c];
    phases[to_string(static_cast<Phase>(p))] = {
        {"busy_s", host.busy[p].seconds()}, {"launches", host.launches[p]}, {"calls", std::move(calls)}};
  }
  return {{"busy_s", host.all().seconds()}, {"held_up_s", host.held_up.seconds()}, {"binds", host.binds(step)},
      {"phases", std::move(phases)}, {"remedies", host.remedies}};
}

}
