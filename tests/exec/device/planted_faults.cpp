#include "tests/exec/device/planted_faults.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <ostream>
#include <utility>

#include "sim/base/lookup.h"
#include "sim/graph/training_step.h"
#include "tests/exec/engine/engine_runs.h"

namespace foreshard {
namespace {

using Pair = std::pair<EventKind, EventKind>;  // rows of the first kind wait for some of the second

// The step without those waits.
EventGraph without(EventGraph graph, const Pair& pair) {
  std::vector<EventId> waits;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const auto begin = static_cast<std::uint32_t>(waits.size());
    for (const EventId awaited : graph.waits_of(static_cast<EventId>(i))) {
      if (Pair{graph.rows[i].kind, graph.rows[static_cast<std::size_t>(awaited)].kind} != pair) {
        waits.push_back(awaited);
      }
    }
    graph.rows[i].waits_begin = begin;
    graph.rows[i].wait_count = static_cast<decltype(Row::wait_count)>(waits.size() - begin);
  }
  graph.waits = std::move(waits);
  return graph;
}

}

Plan device_plan(std::int64_t shard, std::int64_t replicate) {
  Plan plan = small_plan(shard, replicate);
  plan.host = HostKind::kFeedsDevice;
  plan.reduction_order = ReductionOrder::kLibrary;
  plan.batch.accumulation = 2;
  return plan;
}

void PrintTo(const Trained& t, std::ostream* out) {
  *out << t.hash;
  for (const double loss : t.losses) *out << ' ' << loss;
  for (const double norm : t.norms) *out << ' ' << norm;
}

Trained train_alone(
    Accelerator& device, const Plan& plan, const EventGraph& graph, const ModelSpec& model, const DeviceSteps& steps) {
  at::set_num_threads(1);
  Pacing pacing;
  pacing.durations.resize(graph.rows.size());
  pacing.ctas.assign(graph.rows.size(), 1);
  const auto world =
      plan.mesh.world() > 1 ? paced_world(static_cast<int>(plan.mesh.world())) : std::move(thread_worlds(1).front());
  Engine engine(model, plan, graph, *world,
      {.device = &device, .pacing = plan.mesh.world() > 1 ? &pacing : nullptr, .graph = steps.replays});
  engine.initialise();
  Trained outcome;
  int pending = 0;
  const auto collect = [&] {
    const StepResult result = engine.collect();
    append(outcome.losses, result.losses);
    outcome.norms.push_back(result.gradient_norm);
    --pending;
  };
  for (int s = 0; s < steps.count; ++s) {
    std::vector<MicroBatch> batches(static_cast<std::size_t>(plan.batch.accumulation));
    for (std::size_t m = 0; m < batches.size(); ++m) {
      batches[m] =
          batch_of(model, plan, s * 100 + static_cast<std::int64_t>(m), 1.0 / static_cast<double>(batches.size()));
    }
    engine.issue(s + 1, batches);
    ++pending;
    while (pending > engine.ahead()) collect();
  }
  while (pending > 0) collect();
  outcome.hash = engine.parameter_hash();
  return outcome;
}

Lanes::Lanes(std::unique_ptr<Accelerator> of)
    : device(std::move(of)), a(device->open_lane(false)), b(device->open_lane(false)), event(device->new_event()) {
  device->enter(a);
}
void Lanes::hand_over(Lane from, Lane to) const {
  device->enter(from);
  device->record(event);
  device->enter(to);
  device->wait(event);
}
at::Tensor Lanes::tensor(std::int64_t count) const {
  return at::zeros({count}, at::TensorOptions().device(device->device()));
}

std::vector<MissingWait> missing_waits(const ModelSpec& model) {
  using enum EventKind;
  struct Faulty {
    void (*change)(Plan&);
    std::vector<Pair> pairs;
  };
  const Faulty cases[] = {
      {[](Plan&) {}, {{kAllGather, kForward},  // into the slot of a unit that is still used
                         {kForward, kAllGather}, {kBackward, kAllGather}, {kReduceScatter, kBackward},
                         {kGradNorm, kAccumulate}, {kAllReduce, kGradNorm}, {kGradScale, kAllReduce}}},
      {[](Plan& p) {  // the next block's gradients lie where the last one's are still sent
         p.reduce_scatter_buffers = 0;
       },
          {{kBackward, kReduceScatter}}},
      {[](Plan& p) {
         p.mesh = {4, 2};
       },
          {{kAllReduce, kAccumulate}, {kGradNorm, kAllReduce}}},
      {[](Plan& p) {
         p.reshard_after_forward.value = {Reshard::Kind::kGroup, 2};
       },
          {{kAllGather, kReshard}}},
      {[](Plan& p) { p.offload = Offload::kCpu; },
          {{kAllGather, kHostToDevice}, {kHostToDevice, kForward}, {kHostToDevice, kDeviceToHost},
              {kReduceScatter, kHostToDevice}, {kReduceScatter, kDeviceToHost}, {kDeviceToHost, kReduceScatter},
              {kDeviceToHost, kAccumulate}}},
  };
  std::vector<MissingWait> found;
  for (const Faulty& c : cases) {
    Plan plan = device_plan(8);
    c.change(plan);
    const EventGraph whole = build_training_step(model, plan);
    for (const Pair& pair : c.pairs) {
      found.push_back({fmt::format("{} without waiting for {}", to_string(pair.first), to_string(pair.second)), plan,
          whole, without(whole, pair)});
    }
  }
  return found;
}

std::vector<EarlyFree> early_frees() {
  return {
      {"an activation that another lane reads",
          [](const Lanes& l, bool waits) {
            at::Tensor kept;
            {
              const at::Tensor x = l.tensor();
              l.hand_over(l.a, l.b);
              kept = x.mul(2);
            }
            waits ? l.hand_over(l.b, l.a) : l.device->enter(l.a);
            l.tensor();
          }},
      {"the sum of a reduce-scatter that another lane accumulates",
          [](const Lanes& l, bool waits) {
            const at::Tensor whole = l.tensor(), gradient = l.tensor(128);
            {
              const at::Tensor sum = at::empty({128}, gradient.options());
              l.device->paced({.kind = PacedCollective::Kind::kReduceScatter,
                  .whole = whole.mutable_data_ptr(),
                  .shard = sum.mutable_data_ptr(),
                  .shard_elements = 128,
                  .dtype = DType::kFp32,
                  .ranks = 8});
              l.hand_over(l.a, l.b);
              gradient.add_(sum);
            }
            waits ? l.hand_over(l.b, l.a) : l.device->enter(l.a);
            l.tensor();
          }},
      {"a tensor that is gone when its address is used",
          [](const Lanes& l, bool waits) {
            const at::Tensor to = l.tensor();
            at::Tensor from = l.tensor();
            const void* const address = from.const_data_ptr();
            if (!waits) from = at::Tensor();
            l.device->copy(to.mutable_data_ptr(), address, 4096);
          }},
      {"an arena that is released before what is given to it",
          [](const Lanes& l, bool waits) {
            std::byte* const arena = l.device->allocate(4096);
            if (!waits) l.device->release(arena, 4096);
            l.device->fill(arena, 0, 4096);
            if (waits) l.device->release(arena, 4096);
          }},
      {"a tensor of a recorded step that another lane reads",
          [](const Lanes& l, bool waits) {
            const at::Tensor kept = l.tensor();
            const DeviceGraph graph = l.device->capture([&] {
              {
                const at::Tensor x = l.tensor();
                l.hand_over(l.a, l.b);
                kept.add_(x);
              }
              if (waits) l.hand_over(l.b, l.a);
              l.device->enter(l.a);
              l.tensor();
              l.hand_over(l.b, l.a);
            });
            try {
              l.device->replay(graph);
            } catch (...) {
              l.device->free_graph(graph);
              throw;
            }
            l.device->free_graph(graph);
          }},
  };
}

std::vector<ForbiddenCall> forbidden_calls() {
  return {
      {"wait for the device", [](const Lanes& l, auto&) { l.device->synchronize(); }},
      {"wait for an event", [](const Lanes& l, auto&) { l.device->synchronize(l.event); }},
      {"ask for an event", [](const Lanes& l, auto&) { l.device->done(l.event); }},
      {"read a number", [](const Lanes&, auto& x) { x.sum().template item<float>(); }},
      {"read memory",
          [](const Lanes& l, auto& x) {
            float value = 0;
            l.device->to_host(&value, x.const_data_ptr(), sizeof value);
          }},
      {"copy from the host", [](const Lanes&, auto& x) { x.copy_(at::ones({1024})); }},
      {"allocate", [](const Lanes& l, auto&) { l.device->allocate(4096); }},
      {"pin", [](const Lanes& l, auto&) { l.device->allocate_pinned(4096); }},
      {"capture", [](const Lanes& l, auto&) { l.device->capture([] {}); }},
      {"leave a lane behind",
          [](const Lanes& l, auto& x) {
            l.hand_over(l.a, l.b);
            x.add_(1);
          }},
  };
}

void capture_with(const Lanes& l, const at::Tensor& x, const ForbiddenCall& forbidden) {
  l.device->record(l.event);
  l.device->free_graph(l.device->capture([&] {
    x.add_(1);
    forbidden.call(l, x);
  }));
}

}
