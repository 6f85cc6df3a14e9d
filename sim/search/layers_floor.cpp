// A pipeline's stage is the sum of its blocks: graphs with one and with two blocks of a kind, two
// micro-batches and three, tell what each further one takes and holds.
#include "sim/search/layers_floor.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>

#include "sim/base/lookup.h"
#include "sim/graph/pipeline/stages.h"
#include "sim/memory/memory_actions.h"
#include "sim/search/bounds.h"

namespace foreshard {
namespace {

// Whether all parameters are trained and in the shards that the mesh says.
bool has_plain_parameters(const Plan& plan) {
  return is_fully_known(plan.runtime.kind) && plan.lora.rank == 0 && !plan.frozen.any() &&
         plan.ignored == Ignored::kNone && plan.rank() == 0;
}

bool has_simple_state(const Plan& plan) { return has_plain_parameters(plan) && plan.offload == Offload::kNone; }

// What activations hold together, of a graph whose buffers are all replayed.
class ActivationLevel {
 public:
  explicit ActivationLevel(const EventGraph& graph) : bytes_(at(graph.buffer_count())) {
    const auto of = [](MemoryCategory category, Bytes bytes) {
      return category == MemoryCategory::kActivation ? bytes.count() : 0;
    };
    auto next = bytes_.begin();
    for (const LayerExecution& e : graph.executions)
      for (const Slot& slot : graph.program(e).slots) *next++ = of(slot.category, slot.bytes);
    for (const Buffer& b : graph.buffers) *next++ = b.on_host ? 0 : of(b.category, b.bytes);
    loss_ = static_cast<EventId>(std::ranges::find(graph.rows, EventKind::kLoss, &Row::kind) - graph.rows.begin());
    for (const std::int32_t buffer : graph.persistent) allocate(buffer);
    for_each_action(graph, *this);
  }

  void row(EventId id) {
    if (id == loss_) at_loss = Bytes(now_);
  }
  void allocate(std::int32_t id) {
    now_ += bytes_[at(id)];
    peak = std::max(peak, Bytes(now_));
  }
  void free(std::int32_t id) { now_ -= bytes_[at(id)]; }
  void store(std::int32_t, MemoryCategory) {}  // gradients

  Bytes peak, at_loss;

 private:
  std::vector<std::int64_t> bytes_;  // by buffer; 0: not an activation
  std::int64_t now_ = 0;
  EventId loss_ = kNoEvent;
};

std::int64_t element_of(const Plan& plan) { return plan.float8_all_gather ? 1 : size_of(plan.param_dtype); }

// When forward ends; the root stays whole whatever the policy.
Bytes kept_after_forward(const Plan& plan, std::int64_t parameters) {
  const Reshard& reshard = plan.reshard_after_forward.value;
  if (plan.mesh.fsdp() == 1 || !plan.reshard_after_forward.ranges.empty()) return Bytes();
  const Bytes whole(parameters * element_of(plan) / (plan.mesh.tp * plan.mesh.ep));
  if (reshard.kind == Reshard::Kind::kNever) return whole;
  return reshard.kind == Reshard::Kind::kGroup ? whole / reshard.group : Bytes();
}

// Of so many parameters.
Bytes state_of(const Plan& plan, std::int64_t parameters) {
  if (!has_simple_state(plan)) return Bytes();
  std::int64_t each = size_of(plan.master_dtype);
  if (plan.optimizer.kind == Optimizer::Kind::kAdamW) each += 2 * size_of(plan.optimizer.state);
  return Bytes(parameters * plan.mesh.replicate / plan.mesh.stage_ranks() * each);
}

// What a rank of a pipeline has whole beside activations: gradients, and parameters that stay
// gathered from one micro-batch to the next.
Bytes kept_by_stage(const Plan& plan, const LayersFloor::Held& held) {
  if (plan.runtime.kind != RuntimeKind::kFsdp2 || !has_plain_parameters(plan)) return Bytes();
  const bool gathers_once = plan.pipeline.stages_per_rank == 1 &&
                            plan.reshard_after_forward.value.kind == Reshard::Kind::kNever && plan.mesh.fsdp() > 1;
  const std::int64_t each =
      (held.has_gradients ? size_of(plan.reduce_dtype) : 0) + (gathers_once ? element_of(plan) : 0);
  return Bytes(held.parameters * each / (plan.mesh.tp * plan.mesh.ep));
}

// The ranks of a pipeline, and where their stages lie in their parts.
struct RankStages {
  std::vector<std::size_t> stages;
  std::vector<StageRange> ranges;
  std::int64_t parameters = 0;
};

std::vector<RankStages> stages_of_ranks(const ModelSpec& model, const Plan& plan) {
  const std::vector<StageLayers> layers = split_into_stages(model, plan);
  const std::vector<int> rank_of = stage_ranks(stage_pipeline(plan));
  std::vector<RankStages> ranks(at(plan.mesh.pp));
  for (std::size_t s = 0; s < layers.size(); ++s) {
    RankStages& rank = ranks[at(rank_of[s])];
    const std::int32_t begin = rank.ranges.empty() ? 0 : rank.ranges.back().second;
    rank.stages.push_back(s);
    rank.ranges.emplace_back(begin, begin + layers[s].end - layers[s].begin);
    for (std::int32_t l = layers[s].begin; l < layers[s].end; ++l)
      rank.parameters += model.kinds[at(model.order[at(l)].kind)].numel();
  }
  return ranks;
}

// What a stage passes on and back of a micro-batch takes at the least. (Halves of a backward pass
// back before all of it is done.)
Time pass_of(const Plan& plan, Time forward, Time backward) {
  return plan.pipeline.splits_backward() ? forward : forward + backward;
}

// Whether gradients of all that the rank has are there while as many activations are as ever: in
// the middle of 1F1B; with several stages, of three rounds.
bool has_gradients(const Plan& plan, std::int64_t rank) {
  const std::int64_t ranks = plan.mesh.pp, all = plan.batch.accumulation;
  if (plan.pipeline.schedule == PipelineSchedule::k1F1B) return all > ranks - rank;
  return plan.pipeline.schedule == PipelineSchedule::kInterleaved1F1B && all >= 3 * ranks;
}

// Micro-batches of each of a rank's stages that have gone forward when the first one goes back, and
// when the first one reaches its last stage.
struct InFlight {
  std::vector<std::int64_t> most, at_last;
};

InFlight in_flight_of(const Plan& plan, std::int64_t rank) {
  const std::int64_t ranks = plan.mesh.pp, all = plan.batch.accumulation;
  const std::int64_t stages = plan.pipeline.stages_per_rank;
  std::vector<std::int64_t> of(at(stages), 0);
  switch (plan.pipeline.schedule) {
    case PipelineSchedule::k1F1B: return {{std::min(all, ranks - rank)}, {1}};
    case PipelineSchedule::kGPipe:
    case PipelineSchedule::kLoopedBfs: of.assign(at(stages), all); return {of, of};
    case PipelineSchedule::kInterleaved1F1B: {
      const std::int64_t round = all / std::max<std::int64_t>(1, all / ranks);
      const auto forwards = [&](std::int64_t count) {
        std::vector<std::int64_t> done(at(stages), 0);
        for (std::int64_t i = 0; i < std::min(count, all * stages); ++i) ++done[at(i / round % stages)];
        return done;
      };
      const std::int64_t first_of_last = (stages - 1) * round + 1;
      return {forwards(first_of_last + 2 * (ranks - 1 - rank)), forwards(first_of_last)};
    }
    default: return {of, of};
  }
}

}

LayersFloor::Held activations_of(const EventGraph& graph) {
  const ActivationLevel activations(graph);
  return {activations.peak, activations.at_loss};
}

namespace {

// Stages of a sample: the first, a middle one, the last.
constexpr std::int64_t kSampled = 3;

bool is_block(const ModelSpec& model, const LayerInstance& layer) {
  return model.kinds[at(layer.kind)].role == LayerRole::kBlock;
}

// Whether a stage of few blocks tells of one with more.
bool has_uniform_blocks(const ModelSpec& model, const Plan& plan) {
  return plan.runtime.kind == RuntimeKind::kFsdp2 && plan.recompute.ranges.empty() && plan.units.experts_every == 1 &&
         plan.units.layers_per_unit == 1 && plan.mesh.inner == MeshInner::kShard && plan.rank() == 0 &&
         std::ranges::all_of(
             model.order, [](const LayerInstance& layer) { return layer.same_as < 0; });
}

// A pipeline of three ranks with a stage each, whose layers are computed as the plan's.
Plan sample_plan(Plan plan) {
  Mesh& mesh = plan.mesh;
  mesh.shard = mesh.data_parallel() == 1 ? 1 : 2 * mesh.ep * mesh.etp;
  mesh.replicate = 1;
  mesh.pp = kSampled;
  plan.pipeline.schedule = PipelineSchedule::kGPipe;
  plan.pipeline.stages_per_rank = 1;
  plan.pipeline.first_less = plan.pipeline.last_less = 0;
  plan.pipeline.microbatches = plan.pipeline.stands_for = 0;
  plan.pipeline.orders.clear();
  plan.batch.accumulation = std::min<std::int64_t>(plan.batch.accumulation, 2);
  plan.reshard_after_forward = {};
  plan.prefetch = {};
  plan.allocator = {};
  return plan;
}

// Blocks of one kind behind each other.
struct Run {
  LayerInstance block;
  std::int64_t count = 1;
};

std::vector<LayerInstance> blocks_of(const std::vector<Run>& runs) {
  std::vector<LayerInstance> blocks;
  for (const Run& run : runs) blocks.insert(blocks.end(), at(run.count), run.block);
  return blocks;
}

StageSamples::Sample measured(
    const ModelSpec& whole, Plan sample, const CostModel& costs, std::size_t place, const std::vector<Run>& runs) {
  const auto of_model = [&](const LayerInstance& layer) { return is_block(whole, layer); };
  const auto first = std::ranges::find_if(whole.order, of_model);
  const auto last = std::find_if(whole.order.rbegin(), whole.order.rend(), of_model).base();
  // An end without blocks is beside stages of one.
  const std::vector<LayerInstance> blocks = runs.empty() ? std::vector{*first} : blocks_of(runs);
  if (runs.empty()) (place == 0 ? sample.pipeline.first_less : sample.pipeline.last_less) = 1;
  ModelSpec model = whole;
  model.order.assign(whole.order.begin(), first);
  for (std::int64_t s = runs.empty() ? 1 : 0; s < kSampled; ++s) append(model.order, blocks);
  model.order.insert(model.order.end(), last, whole.order.end());
  Plan of_rank = at_pipeline_rank(sample, static_cast<std::int64_t>(place));
  const LayerPrograms programs(model, of_rank);
  const auto build = [&](std::int64_t micro_batches) {
    of_rank.batch.accumulation = micro_batches;
    return build_pipeline_rank(model, of_rank, programs);
  };
  const std::int64_t few = sample.batch.accumulation;
  EventGraph graph = build(few);
  // Groups outside of layers are none of the cluster's, and nothing is asked of them.
  for (Communicator& communicator : graph.communicators) {
    const bool is_inside = std::ranges::any_of(std::array{MeshDim::kTp, MeshDim::kCp, MeshDim::kEp, MeshDim::kEtp},
        [&](MeshDim dim) { return communicator.name == to_string(dim); });
    if (!is_inside) communicator.group = {2, 1};
  }
  const auto layers = static_cast<std::int32_t>(programs.model_of(model).order.size());
  const StageFloor floor = stage_floors(graph, costs.price(graph), std::array{StageRange{0, layers}}).front();
  StageSamples::Sample found{floor.forward, floor.backward};
  found.held = activations_of(graph).activations.count();
  if (few == 1) return found;
  const std::int64_t two = found.held;
  found.held = activations_of(build(few + 1)).activations.count() - two;
  found.beside = std::max<std::int64_t>(0, two - few * found.held);
  return found;
}

}

class StageSamples::Memory {
 public:
  // Of a model, a plan and prices.
  std::size_t family_of(const ModelSpec& model, const Plan& sample, const FactorDraw& draw) {
    const std::lock_guard lock(mutex_);
    const auto number = [](auto& list, const auto& value) {
      const auto found = std::ranges::find(list, value);
      const auto index = at(found - list.begin());
      if (found == list.end()) list.push_back(value);
      return index;
    };
    return number(families_, std::tuple(number(models_, model), number(plans_, sample), number(draws_, draw)));
  }

  Sample get(std::size_t family, std::size_t place, const std::vector<Run>& runs, const auto& make) {
    std::vector<std::int64_t> key = {static_cast<std::int64_t>(family), static_cast<std::int64_t>(place)};
    for (const Run& run : runs) {
      key.push_back(run.block.kind);
      key.push_back(run.count);
    }
    {
      const std::lock_guard lock(mutex_);
      if (const auto known = samples_.find(key); known != samples_.end()) return known->second;
    }
    const Sample made = make();
    const std::lock_guard lock(mutex_);
    return samples_.emplace(std::move(key), made).first->second;
  }

 private:
  std::mutex mutex_;
  std::vector<ModelSpec> models_;
  std::vector<Plan> plans_;
  std::vector<FactorDraw> draws_;
  std::vector<std::tuple<std::size_t, std::size_t, std::size_t>> families_;
  std::map<std::vector<std::int64_t>, Sample> samples_;
};

StageSamples::StageSamples() : memory_(std::make_unique<Memory>()) {}
StageSamples::~StageSamples() = default;

std::vector<StageSamples::Sample> StageSamples::of(const ModelSpec& model, const Plan& plan, const CostModel& costs) {
  std::vector<Sample> samples;
  if (!has_uniform_blocks(model, plan)) return samples;
  const Plan sample = sample_plan(plan);
  const std::size_t family = memory_->family_of(model, sample, costs.center());
  const auto measure = [&](std::size_t place, const std::vector<Run>& runs) {
    return memory_->get(family, place, runs, [&] { return measured(model, sample, costs, place, runs); });
  };
  const std::vector<StageLayers> stages = split_into_stages(model, plan);
  for (const StageLayers& stage : stages) {
    const bool is_last = &stage == &stages.back();
    const std::size_t place = stage.stage == 0 ? 0 : is_last ? 2 : 1;
    std::vector<Run> runs;
    for (std::int32_t l = stage.begin; l < stage.end; ++l) {
      const LayerInstance& layer = model.order[at(l)];
      if (!is_block(model, layer)) continue;
      const bool goes_on = !runs.empty() && runs.back().block.kind == layer.kind;
      if (goes_on) ++runs.back().count;
      else runs.push_back({layer});
    }
    std::vector<Run> single = runs;
    for (Run& run : single) run.count = 1;
    const Sample base = measure(place, single);
    Sample sum = base;
    for (std::size_t r = 0; r < runs.size(); ++r) {
      if (runs[r].count == 1) continue;
      std::vector<Run> more = single;
      more[r].count = 2;
      const Sample with = measure(place, more);
      const std::int64_t further = runs[r].count - 1;
      sum.forward += (with.forward - base.forward) * further;
      sum.backward += (with.backward - base.backward) * further;
      sum.held += (with.held - base.held) * further;
      sum.beside = std::min(sum.beside, with.beside);
    }
    samples.push_back(sum);
  }
  return samples;
}

LayersFloor pipeline_floor(const ModelSpec& model, const Plan& plan, const CostModel& costs, StageSamples& samples) {
  LayersFloor floor;
  const std::vector<StageSamples::Sample> stages = samples.of(model, plan, costs);
  if (stages.empty()) return floor;
  const std::vector<RankStages> ranks = stages_of_ranks(model, plan);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::vector<std::size_t>& own = ranks[r].stages;
    Time step;
    for (std::size_t s = 0; s < own.front(); ++s) step += pass_of(plan, stages[s].forward, stages[s].backward);
    for (const std::size_t s : own) step += (stages[s].forward + stages[s].backward) * plan.batch.accumulation;
    floor.step = std::max(floor.step, step);

    const auto rank = static_cast<std::int64_t>(r);
    const InFlight passes = in_flight_of(plan, rank);
    const auto held = [&](const std::vector<std::int64_t>& counts) {
      std::int64_t bytes = 0;
      for (std::size_t s = 0; s < own.size(); ++s) bytes += stages[own[s]].held * counts[s];
      return bytes;
    };
    // Beside all that is in flight is what one stage alone goes back with.
    const std::int64_t beside = stages[own.back()].beside;
    const std::int64_t most =
        own.size() == 1 ? held(passes.most) + (passes.most.front() > 0 ? beside : 0)
                        : std::max(held(passes.most), held(passes.at_last) + (passes.at_last.back() > 0 ? beside : 0));
    LayersFloor::Held all{Bytes(most), Bytes()};
    all.parameters = ranks[r].parameters;
    all.has_gradients = has_gradients(plan, rank);
    const bool is_less = std::ranges::any_of(floor.ranks, [&](const LayersFloor::Held& other) {
      return all.activations <= other.activations && all.parameters <= other.parameters &&
             all.has_gradients <= other.has_gradients;
    });
    if (!is_less) floor.ranks.push_back(all);
  }
  return floor;
}

Time stages_bound(
    std::span<const EventGraph> graphs, std::span<const CostTable> costs, const ModelSpec& model, const Plan& plan) {
  const std::vector<RankStages> ranks = stages_of_ranks(model, plan);
  std::vector<Time> passes;  // of a micro-batch, by stage
  std::vector<Time> own(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::vector<StageFloor> floors = stage_floors(graphs[r], costs[r], ranks[r].ranges);
    for (std::size_t s = 0; s < floors.size(); ++s) {
      const std::size_t stage = ranks[r].stages[s];
      if (passes.size() <= stage) passes.resize(stage + 1);
      passes[stage] = pass_of(plan, floors[s].forward, floors[s].backward);
      own[r] += floors[s].all;
    }
  }
  Time most;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto first = static_cast<std::ptrdiff_t>(ranks[r].stages.front());
    most = std::max(most, std::accumulate(passes.begin(), passes.begin() + first, own[r]));
  }
  return most;
}

Bytes state_floor(const Plan& plan, const ModelSpec& model) {
  // (Of a pipeline no rank's is less than the average.)
  return state_of(plan, model.parameters() / plan.mesh.pp);
}

Bytes memory_floor(const Plan& plan, const ModelSpec& model, const LayersFloor& floor) {
  const auto of = [&](const LayersFloor::Held& held) {
    const bool is_stage = held.parameters > 0;
    const std::int64_t parameters = is_stage ? held.parameters : model.parameters() / plan.mesh.pp;
    Bytes most = held.activations;
    if (is_stage) most += kept_by_stage(plan, held);
    else if (has_plain_parameters(plan))
      most = std::max(most, kept_after_forward(plan, parameters) + held.activations_at_loss);
    if (has_simple_state(plan))
      most = std::max(
          most, Bytes(parameters * plan.mesh.replicate / plan.mesh.stage_ranks() * size_of(plan.master_dtype)));
    return state_of(plan, parameters) + most;
  };
  if (floor.ranks.empty()) return of({});
  Bytes most;
  for (const LayersFloor::Held& held : floor.ranks) most = std::max(most, of(held));
  return most;
}

}
