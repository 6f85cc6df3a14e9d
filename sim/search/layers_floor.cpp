// A pipeline's ranks whose stages have the same layers are alike: a graph of the first of them
// tells what all take, of as many micro-batches as there are ranks, which begin before one ends.
#include "sim/search/layers_floor.h"

#include <algorithm>

#include "sim/graph/pipeline/stages.h"
#include "sim/memory/memory_actions.h"
#include "sim/search/bounds.h"

namespace foreshard {
namespace {

// Whether all parameters are trained and in the shards that the mesh says.
bool has_plain_parameters(const Plan& plan) {
  return is_fully_known(plan.runtime.kind) && plan.lora.rank == 0 && !plan.frozen.any() &&
         plan.ignored == Ignored::kNone && plan.rank == 0;
}

bool has_simple_state(const Plan& plan) {
  return has_plain_parameters(plan) && plan.offload == Offload::kNone;
}

// What activations hold together, of a graph whose buffers are all replayed.
class ActivationLevel {
 public:
  explicit ActivationLevel(const EventGraph& graph) : bytes_(at(graph.buffer_count())) {
    const auto of = [](MemoryCategory category, Bytes bytes) {
      return category == MemoryCategory::kActivation ? bytes.count() : 0;
    };
    auto next = bytes_.begin();
    for (const LayerExecution& e : graph.executions) {
      for (const Slot& slot : graph.program(e).slots) *next++ = of(slot.category, slot.bytes);
    }
    for (const Buffer& b : graph.buffers) *next++ = b.on_host ? 0 : of(b.category, b.bytes);
    loss_ = static_cast<EventId>(std::ranges::find(graph.rows, EventKind::kLoss, &Row::kind) -
                                 graph.rows.begin());
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

std::int64_t element_of(const Plan& plan) {
  return plan.float8_all_gather ? 1 : size_of(plan.param_dtype);
}

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
                            plan.reshard_after_forward.value.kind == Reshard::Kind::kNever &&
                            plan.mesh.fsdp() > 1;
  const std::int64_t each =
      (held.has_gradients ? size_of(plan.reduce_dtype) : 0) + (gathers_once ? element_of(plan) : 0);
  return Bytes(held.parameters * each / (plan.mesh.tp * plan.mesh.ep));
}

// The ranks of a pipeline, and where their stages lie in their parts.
struct RankStages {
  std::vector<std::size_t> stages;
  std::vector<StageRange> ranges;
  std::vector<std::int32_t> kinds;  // of their layers; -1: a stage ends
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
    for (std::int32_t l = layers[s].begin; l < layers[s].end; ++l) {
      rank.kinds.push_back(model.order[at(l)].kind);
    }
    rank.kinds.push_back(-1);
  }
  return ranks;
}

std::int64_t parameters_of(const ModelSpec& model, const RankStages& rank) {
  std::int64_t parameters = 0;
  for (const std::int32_t kind : rank.kinds) {
    if (kind >= 0) parameters += model.kinds[at(kind)].numel();
  }
  return parameters;
}

// Whether gradients of all that the rank has are there while as many activations are as ever: in
// the middle of 1F1B; with several stages, of three rounds.
bool has_gradients(const Plan& plan, std::int64_t rank) {
  const std::int64_t ranks = plan.mesh.pp, all = plan.batch.accumulation;
  if (plan.pipeline.schedule == PipelineSchedule::k1F1B) return all > ranks - rank;
  return plan.pipeline.schedule == PipelineSchedule::kInterleaved1F1B && all >= 3 * ranks;
}

// Micro-batches of which a rank holds the activations of all its stages at one time: those that go
// forward before the first goes back. Interleaved1F1B's go through a stage in rounds.
std::int64_t least_in_flight(const Plan& plan, std::int64_t rank) {
  const std::int64_t ranks = plan.mesh.pp, all = plan.batch.accumulation;
  if (plan.pipeline.schedule == PipelineSchedule::k1F1B) return std::min(all, ranks - rank);
  if (plan.pipeline.schedule != PipelineSchedule::kInterleaved1F1B) return all;
  const std::int64_t stages = plan.pipeline.stages_per_rank;
  const std::int64_t round = all / std::max<std::int64_t>(1, all / ranks);
  const std::int64_t ahead = (stages - 1) * round + 2 * (ranks - 1 - rank) + 1;
  // (Of the last stage, which is begun last.)
  return std::clamp<std::int64_t>(ahead - (stages - 1) * round, 1, round);
}

// See stages_bound. `floors`: of each rank, by its stages; `more`: micro-batches beside those that
// they are of.
Time step_of(const std::vector<RankStages>& ranks,
             const std::vector<const std::vector<StageFloor>*>& floors, std::int64_t more) {
  std::vector<Time> passes;  // of a micro-batch, by stage
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (std::size_t s = 0; s < ranks[r].stages.size(); ++s) {
      const std::size_t stage = ranks[r].stages[s];
      if (passes.size() <= stage) passes.resize(stage + 1);
      passes[stage] = (*floors[r])[s].forward + (*floors[r])[s].backward;
    }
  }
  Time most;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    Time step;
    for (std::size_t s = 0; s < ranks[r].stages.front(); ++s) step += passes[s];
    for (std::size_t s = 0; s < ranks[r].stages.size(); ++s) {
      step += (*floors[r])[s].all + passes[ranks[r].stages[s]] * more;
    }
    most = std::max(most, step);
  }
  return most;
}

}  // namespace

LayersFloor::Held activations_of(const EventGraph& graph) {
  const ActivationLevel activations(graph);
  return {activations.peak, activations.at_loss};
}

LayersFloor pipeline_floor(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs,
                           const CostModel& costs) {
  // Of few micro-batches all go forward before one goes back (but on the last rank of several
  // stages), and each further one takes and holds as much as the second.
  Plan few = plan;
  few.batch.accumulation = std::min<std::int64_t>(plan.batch.accumulation, 2);
  few.pipeline.schedule = plan.pipeline.stages_per_rank > 1 ? PipelineSchedule::kInterleaved1F1B
                                                            : PipelineSchedule::kGPipe;
  if (plan.runtime.kind != RuntimeKind::kFsdp2) {  // has no such order
    few = plan;
    few.batch.accumulation = std::min(plan.batch.accumulation, plan.mesh.pp);
  }
  const std::vector<RankStages> ranks = stages_of_ranks(model, plan);
  std::vector<std::vector<StageFloor>> made(ranks.size());  // of those that are like none before
  std::vector<const std::vector<StageFloor>*> floors;
  LayersFloor floor;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto alike =
        at(std::ranges::find(ranks, ranks[r].kinds, &RankStages::kinds) - ranks.begin());
    floors.push_back(&made[alike]);
    if (alike != r) continue;
    const auto rank = static_cast<std::int64_t>(r);
    const auto build = [&](std::int64_t micro_batches) {
      Plan of_rank = at_pipeline_rank(few, rank);
      of_rank.batch.accumulation = micro_batches;
      return build_pipeline_rank(model, of_rank, programs);
    };
    const EventGraph graph = build(few.batch.accumulation);
    made[r] = stage_floors(graph, costs.price(graph), ranks[r].ranges);
    LayersFloor::Held& held = floor.ranks.emplace_back(activations_of(graph));
    if (few.batch.accumulation == 2 && plan.runtime.kind == RuntimeKind::kFsdp2) {
      const Bytes two = held.activations, three = activations_of(build(3)).activations;
      held.activations = two + (three - two) * (least_in_flight(plan, rank) - 2);
    }
    held.parameters = parameters_of(model, ranks[r]);
    held.has_gradients = has_gradients(plan, rank);
  }
  floor.step = step_of(ranks, floors, plan.batch.accumulation - few.batch.accumulation);
  return floor;
}

Time stages_bound(const EventGraph& graph, const CostTable& costs, const ModelSpec& model,
                  const Plan& plan) {
  const std::vector<RankStages> ranks = stages_of_ranks(model, plan);
  std::vector<std::vector<StageFloor>> made;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const bool is_own = !graph.pipeline[r];
    made.push_back(stage_floors(is_own ? graph : *graph.pipeline[r],
                                is_own ? costs : costs.pipeline[r], ranks[r].ranges));
  }
  std::vector<const std::vector<StageFloor>*> floors;
  for (const std::vector<StageFloor>& each : made) floors.push_back(&each);
  return step_of(ranks, floors, 0);
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
    if (is_stage) {
      most += kept_by_stage(plan, held);
    } else if (has_plain_parameters(plan)) {
      most = std::max(most, kept_after_forward(plan, parameters) + held.activations_at_loss);
    }
    if (has_simple_state(plan)) {
      most = std::max(most, Bytes(parameters * plan.mesh.replicate / plan.mesh.stage_ranks() *
                                  size_of(plan.master_dtype)));
    }
    return state_of(plan, parameters) + most;
  };
  if (floor.ranks.empty()) return of({});
  Bytes most;
  for (const LayersFloor::Held& held : floor.ranks) most = std::max(most, of(held));
  return most;
}

}  // namespace foreshard
