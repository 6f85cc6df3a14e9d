// The walk: every row is given to the backend in id order, together with what it does.
//
// A row that throws stops everything: its cause is kept, communicators are aborted so that threads
// that wait for peers come back, and the host throws one StepFailure that names the row.
#include "exec/engine/engine.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "exec/compute/device_operations.h"
#include "exec/engine/update.h"
#include "reports/view/event_names.h"
#include "sim/base/integers.h"
#include "sim/graph/axes/rank_part.h"
#include "sim/spec/allocator_settings.h"

namespace foreshard {
namespace {

std::int64_t head_dim_of(const ModelSpec& model, Function function, std::int64_t otherwise) {
  for (const LayerSpec& kind : model.kinds) {
    for (const Operation& operation : kind.operations)
      if (operation.function == function) return operation.attention.head_dim;
  }
  return otherwise;
}

RankMemory& memory_of(const Engine::Options& options) {
  return options.device != nullptr ? *options.device : host_memory();
}

}

Engine::Engine(const ModelSpec& model, const Plan& plan, const EventGraph& graph, World& world, Options options)
    : model_(model),
      part_(cuts_layers(plan) ? std::optional(part_of_rank(model, plan)) : std::nullopt),
      plan_(plan),
      graph_(graph),
      rank_(world.rank()),
      part_index_(static_cast<int>(plan.mesh.tp_index(rank_))),
      shard_index_(static_cast<int>(plan.mesh.shard_index(rank_))),
      replica_(static_cast<int>(rank_ / (plan.mesh.shard * plan.mesh.tp))),
      options_(options),
      units_(part_ ? *part_ : model, plan, graph, shard_index_, memory_of(options)) {
  if (part_) units_.set_cuts(model, *part_, part_index_);
  FORESHARD_CHECK(world.size() == plan.mesh.world(), "a world of another size than the mesh");
  if (options.graph) {
    if (const auto problem = find_graph_problem(plan, world)) throw Error(ExitCode::kMissingCapability, *problem);
    FORESHARD_CHECK(!options.debug, "the checks of --debug read the device in every row");
  }
  rotary_ = rotary_table(plan.batch.sequence, head_dim_of(model, Function::kRotary, 2), model.numerics.rope_theta,
      model.numerics.rope_scaling);
  const BackendParts parts{model, plan, graph, world, units_, account_, options.pacing, options.graph};
  if (options.device == nullptr) {
    install_allocator();
    backend_ = make_cpu_backend(parts);
  } else {
    const c10::Device device = options.device->device();
    if (const std::string settings = alloc_conf(plan.allocator); !settings.empty())
      options.device->set_allocator(settings);
    rotary_ = {rotary_.cos.to(device), rotary_.sin.to(device)};
    attention_ = attention_kernel(
        {plan.attention, plan.param_dtype, head_dim_of(model, Function::kAttention, 0)}, options.device->info());
    backend_ = make_device_backend(parts, *options.device);
  }
  rows_ = std::make_unique<Rows>(rank_parts(), graph, Rows::Of::kStep);
}

RankParts Engine::rank_parts() {
  return {model_, part_ ? *part_ : model_, plan_, rotary_, units_, *backend_, rank_, part_index_, shard_index_,
      options_.device, attention_, options_.debug};
}

Engine::~Engine() = default;

std::string Engine::event_name(EventId id) const {
  return fmt::format("{} (event {} of step {})", EventNames(graph_, model_).of(id), id, number_);
}

void Engine::throw_failure() {
  backend_->abort();
  backend_->drain();
  const EventFailure failure = backend_->failure();
  const std::string where = failure.event == kNoEvent ? fmt::format("step {}", number_) : event_name(failure.event);
  try {
    std::rethrow_exception(failure.cause);
  } catch (const PeerFailure& lost) {
    throw PeerFailure(lost.rank(), fmt::format("rank {} waited in {}: {}", rank_, where, lost.what()));
  } catch (const Error& error) {
    throw StepFailure(fmt::format("rank {}, {}: {}", rank_, where, error.what()), error.exit_code());
  } catch (const c10::OutOfMemoryError& error) {
    throw StepFailure(
        fmt::format("rank {}, {}: the GPU has no memory left: {}", rank_, where, error.what_without_backtrace()),
        ExitCode::kInfeasible);
  } catch (const c10::Error& error) {
    throw StepFailure(
        fmt::format("rank {}, {}: {}", rank_, where, error.what_without_backtrace()), ExitCode::kInternal);
  } catch (const std::exception& error) {
    throw StepFailure(fmt::format("rank {}, {}: {}", rank_, where, error.what()), ExitCode::kInternal);
  }
}

void Engine::issue(std::int64_t number, std::span<MicroBatch> batches) {
  FORESHARD_CHECK(std::ssize(batches) == plan_.batch.accumulation, "a step needs every micro-batch");
  const AccountScope scope(&account_);
  number_ = number;
  try {
    rows_->begin(number, backend_->begin_step(number, batches));
    backend_->run_rows([this] { issue_rows(); });
    backend_->end_step();
  } catch (const StepStopped&) {
  } catch (...) {
    backend_->fail(issuing_, std::current_exception());
  }
  issuing_ = kNoEvent;
  if (backend_->failed()) throw_failure();
  FORESHARD_CHECK(rows_->layers().held() == 0, "a tensor outlives the step");
}

// A backend may keep this as the step: what differs from one step to the next is in its memory.
void Engine::issue_rows() {
  for (EventId id = 0; id < static_cast<EventId>(graph_.rows.size()); ++id) {
    issuing_ = id;
    rows_->attach_gathered(id);
    RECORD_USER_SCOPE(EventNames(graph_, model_).of(id));  // named where a profiler looks
    if (rows_->is_in_layer(id)) {
      const LayerCollectiveCall call = rows_->layer_collective(id);
      backend_->issue(id, [this, call] { backend_->layer_collective(call); });
      rows_->release(id);
    } else {
      backend_->issue(
          id, [this, id] { rows_->run(id); });
    }
    rows_->issued(id);
  }
  rows_->make_gradients();
  issuing_ = kNoEvent;
}

StepResult Engine::collect() {
  try {
    return backend_->collect();
  } catch (...) {
    backend_->fail(kNoEvent, std::current_exception());
  }
  throw_failure();
}

StepOutcome Engine::step(std::int64_t number, std::span<MicroBatch> batches, MeasuredStep* record) {
  issue(number, batches);
  StepResult result = collect();
  if (record != nullptr) *record = std::move(result.times);
  return {std::move(result.losses), result.gradient_norm};
}

std::int64_t Engine::activations_peak() {
  return options_.device != nullptr && options_.device->is_gpu() ? options_.device->memory().allocated_peak
                                                                 : account_.peak;
}

void Engine::forget_peak() {
  account_.peak = account_.now;
  if (options_.device != nullptr) options_.device->reset_peaks();
}

// --- parameters ---

void Engine::initialise() {
  // CPU ranks share the machine's cores; a device has the host for itself.
  const int threads =
      options_.device == nullptr ? 1 : std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 64);
  for (UnitMemory& unit : units_.all()) initialise_shard(unit, model_, plan_, units_.states(), threads);
  backend_->sync();
}

std::string Engine::parameter_hash() {
  backend_->sync();
  std::uint64_t sum = 0;
  std::vector<std::byte> copy;
  for (const UnitMemory& unit : units_.all()) {
    const std::byte* master = unit.master;
    if (options_.device != nullptr) {
      copy.resize(at(unit.shard * size_of(plan_.master_dtype)));
      units_.states().to_host(copy.data(), unit.master, copy.size());
      master = copy.data();
    }
    sum += hash_shard(unit, master, model_, plan_);
  }
  const std::int64_t all = backend_->add_over_shards(static_cast<std::int64_t>(sum));
  return fmt::format("{:016x}", static_cast<std::uint64_t>(all));
}

// --- evaluation ---

// One row after the other: every dependency of a row has a smaller id, and a slot is filled again
// only by a row behind its last use.
double Engine::evaluate(MicroBatch& host_batch) {
  const AccountScope scope(&account_);
  if (!evaluation_) evaluation_ = std::make_unique<Evaluation>(model_, plan_, rank_parts());
  backend_->sync();
  MicroBatch batch = host_batch;
  if (options_.device != nullptr) {
    const c10::Device device = options_.device->device();
    batch.tokens = batch.tokens.to(device);
    batch.labels = batch.labels.to(device);
    batch.loss_sum = at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device));
  }
  Rows& rows = evaluation_->rows;
  rows.begin(number_, std::span(&batch, 1));
  for (EventId id = 0; id < static_cast<EventId>(evaluation_->graph.rows.size()); ++id) {
    rows.attach_gathered(id);
    if (rows.is_in_layer(id)) {
      backend_->layer_collective(rows.layer_collective(id));
      rows.release(id);
    } else {
      rows.run(id);
    }
  }
  FORESHARD_CHECK(rows.layers().held() == 0, "a tensor outlives the evaluation");
  if (options_.device != nullptr) batch.loss = batch.loss_sum.item<double>() / as_double(batch.count());
  backend_->forget_begin();
  host_batch.loss = batch.loss;
  return batch.loss;
}

}
