// Faults of a program that feeds a GPU, to be planted in the engine's own steps and at its device
// interface: on the hostile stand-in (hostile_test.cpp), and in the engine's CUDA half on the null
// GPU (tests/exec/programs/null_engine.cpp).
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "exec/device/accelerator.h"
#include "exec/engine/engine.h"
#include "models/model_dims.h"
#include "sim/graph/event_graph.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

Plan device_plan(std::int64_t shard, std::int64_t replicate = 1);

struct Trained {
  std::string hash;
  std::vector<double> losses, norms;
  bool operator==(const Trained&) const = default;
};
void PrintTo(const Trained& t, std::ostream* out);

struct DeviceSteps {
  int count = 1;
  bool replays = false;
};
// Rank 0 of the plan alone, its collectives paced.
Trained train_alone(
    Accelerator& device, const Plan& plan, const EventGraph& graph, const ModelSpec& model, const DeviceSteps& steps);

// Two lanes that use one device, as a step's do.
struct Lanes {
  explicit Lanes(std::unique_ptr<Accelerator> of);
  ~Lanes() { device->free_event(event); }
  Lanes& operator=(Lanes&&) = delete;  // nor is it copied

  // Lane `to` waits for what lane `from` has; it is the current one then.
  void hand_over(Lane from, Lane to) const;
  at::Tensor tensor(std::int64_t count = 1024) const;

  std::unique_ptr<Accelerator> device;
  Lane a, b;
  DeviceEvent event;
};

// Rows of a step that no longer wait for what they need: each kind of need that a step has.
struct MissingWait {
  std::string name;
  Plan plan;
  EventGraph whole, faulty;
};
std::vector<MissingWait> missing_waits(const ModelSpec& model);

// Each frees what another lane still uses; with `waits` it does as it should.
struct EarlyFree {
  const char* name;
  std::function<void(const Lanes&, bool waits)> run;
};
std::vector<EarlyFree> early_frees();

// What a lane must not do while it is captured.
struct ForbiddenCall {
  const char* name;
  std::function<void(const Lanes&, const at::Tensor&)> call;
};
std::vector<ForbiddenCall> forbidden_calls();
// Captures an addition to `x` and the call, and gives the graph back.
void capture_with(const Lanes& lanes, const at::Tensor& x, const ForbiddenCall& call);

}
