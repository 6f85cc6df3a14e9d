// The coordinator is asked once what the builder would ask it place by place; the answers are kept
// with the place. A place is kept if it asks for a row, an allocation or a wait: entries that
// fetch, await or prefetch, the first one behind those that did (there compute waits for the gather
// stream), exits that let go, gradients, ends of phases, the loss.
#include "sim/graph/zero/zero3_trace.h"

#include <utility>

#include "sim/base/lookup.h"
#include "sim/graph/zero/zero3_coordinator.h"

namespace foreshard {
namespace {

using Kind = Zero3Place::Kind;
using Turn = Zero3Coordinator::Pass;

class Tracer {
 public:
  Tracer(Zero3Trace& trace, Zero3Coordinator& coordinator)
      : trace_(trace), script_(trace.script), coordinator_(coordinator) {}

  Zero3Trace::Range put(Zero3Trace::Parameters list) {
    const std::uint32_t begin = end();
    append(trace_.lists, list);
    return {begin, end()};
  }

  std::vector<Zero3Trace::Stop> walk(const std::vector<Zero3Place>& places) {
    std::vector<Zero3Trace::Stop> stops;
    stops.reserve(places.size());
    const bool is_backward = &places == &script_.backward;
    if (!is_backward) where_ = {Kind::kEnter, EventKind::kForward, 0, -1, -1};
    for (const Zero3Place& place : places) {
      Zero3Trace::Stop stop = {.place = place};
      if (place.kind != Kind::kLoss) {
        if (place.layer >= 0) where_ = place;
        stop.place.layer = where_.layer;
        stop.place.segment = where_.segment;
        stop.place.phase = where_.phase;
      }
      if (place.kind == Kind::kEnter) forget(coordinator_.expect(place.id), stop.place, stops);
      stop.begin = stop.first_end = stop.second_end = stop.third_end = stop.fourth_end = end();
      bool matters = decide(place, stop);
      stop.ends_gradients = is_backward && &place - places.data() == script_.last_gradient;
      matters |= stop.ends_gradients || &place == &places.back();
      if (!matters) continue;
      stop.hooks = static_cast<std::uint16_t>(std::exchange(hooks_, 0));
      stops.push_back(stop);
    }
    return stops;
  }

 private:
  std::uint32_t end() const { return static_cast<std::uint32_t>(trace_.lists.size()); }

  // The recorded order did not hold.
  void forget(Zero3Trace::Parameters dropped, Zero3Place place, std::vector<Zero3Trace::Stop>& stops) {
    if (dropped.empty()) return;
    place.kind = Kind::kExit;
    const auto [begin, let_go] = put(dropped);
    const std::uint32_t awaited = put(dropped).end;
    stops.push_back({place, 0, false, begin, let_go, awaited, awaited, awaited});
  }

  // Whether anything happens there.
  bool decide(const Zero3Place& place, Zero3Trace::Stop& stop) {
    const bool backward = place.phase == EventKind::kBackward;
    if (place.kind == Kind::kEnter) {
      ++hooks_;
      if (backward) coordinator_.begin_backward(place.id);
      put(coordinator_.fetch(place.id));
      stop.first_end = end();
      for (const std::int32_t p : script_.owned_of(place.id))
        if (coordinator_.use(place.id, p, place.phase == EventKind::kRecompute)) trace_.lists.push_back(p);
      stop.second_end = end();
      put(coordinator_.prefetch(place.id));
      stop.third_end = end();
      put(coordinator_.read_ahead());
      stop.fourth_end = end();
      const bool asks = stop.fourth_end > stop.begin;
      return std::exchange(was_asked_, asks) || asks;
    }
    if (place.kind == Kind::kExit) {
      ++hooks_;
      put(coordinator_.release(place.id, backward ? Turn::kBackward : Turn::kForward));
      stop.first_end = stop.second_end = stop.third_end = stop.fourth_end = end();
      return stop.first_end > stop.begin;
    }
    return true;
  }

  Zero3Trace& trace_;
  const Zero3Script& script_;
  Zero3Coordinator& coordinator_;
  Zero3Place where_;
  std::int32_t hooks_ = 0;
  bool was_asked_ = true;
};

class TracedBuilder final : public StepBuilder {
 public:
  using StepBuilder::StepBuilder;

 private:
  UnitWork unit_work(EventKind, const UnitShape&, std::int32_t) const override { return {}; }
  UnitWork step_work(EventKind) const override { return {}; }
};

}

Zero3Trace::Zero3Trace(const StepBuilder& builder, const ModelSpec& model, const Plan& plan, bool forward_alone,
    const std::vector<Zero3Place>& base)
    : script(builder, model, plan),
      zero_(plan.zero),
      recompute_(plan.recompute),
      frozen_(plan.frozen),
      accumulation_(plan.batch.accumulation),
      ranks_(plan.zero.offload_param == ZeroOffload::kNvme ? plan.mesh.fsdp() : 0) {
  if (forward_alone) script.backward.clear();
  Zero3Coordinator coordinator(script, plan, !base.empty());
  if (plan.batch.accumulation > 1 && base.empty()) coordinator.rehearse();
  using Order = Zero3Coordinator::Trace;
  coordinator.start(base.empty() ? Order::kComplete : Order::kInvalid);
  lists.reserve(script.owned.size() * 6);
  const auto all = [&](auto&& is_meant) {
    const auto begin = static_cast<std::uint32_t>(lists.size());
    for (std::int32_t p = 0; p < script.parameter_count(); ++p)
      if (is_meant(p)) lists.push_back(p);
    return Range{begin, static_cast<std::uint32_t>(lists.size())};
  };
  at_start = all([&](std::int32_t p) { return !coordinator.is_gone(p); });
  const auto same = [&](Range a, Range b) {
    const Parameters x = list(a), y = list(b);
    return std::equal(x.begin(), x.end(), y.begin(), y.end());
  };
  Range before = at_start;
  for (std::int64_t m = 0; m < plan.batch.accumulation; ++m) {
    Tracer tracer(*this, coordinator);
    Pass pass = {.stale = tracer.put(coordinator.reset_step())};
    const Range now = all([&](std::int32_t p) { return !coordinator.is_gone(p); });
    // From what is there follows all that is decided, but for the first of several micro-batches.
    if (m > 1 && same(now, before) && same(pass.stale, passes.back().stale)) break;
    before = now;
    pass.forward = tracer.walk(script.forward);
    if (!base.empty()) {
      pass.stale_in_base = tracer.put(coordinator.reset_step());
      pass.base = tracer.walk(base);
    }
    pass.backward = tracer.walk(script.backward);
    pass.leftovers = tracer.put(coordinator.release_backward_leftovers());
    in_flight = all([&](std::int32_t p) { return coordinator.is_in_flight(p); });
    at_end = all([&](std::int32_t p) { return !coordinator.is_gone(p); });
    passes.push_back(std::move(pass));
  }
}

bool Zero3Trace::serves(const Plan& plan) const {
  return plan.zero == zero_ && plan.recompute == recompute_ && plan.frozen == frozen_ &&
         plan.batch.accumulation == accumulation_ && plan.reference != Reference::kBase &&
         (ranks_ == 0 || ranks_ == plan.mesh.fsdp());
}

std::shared_ptr<const Zero3Trace> trace_zero3(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs) {
  const TracedBuilder builder(model, plan, programs, {});
  return std::make_shared<const Zero3Trace>(builder, model, plan);
}

}
