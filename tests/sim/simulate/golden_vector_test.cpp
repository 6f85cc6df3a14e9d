// The schedule's golden vector: an independent 90-line event model of FSDP2's rules gave these times (research,
// fsdp_semantics 1.15). Five units (embedding, four blocks) and a head that stays unsharded; durations in ms:
//
//               copy-in  AG  copy-out  forward  backward  pack  RS  cast
//   embedding      .1     2     .2        .5       .5      .3    3   .1
//   block          .2     3     .4       5        10       .6    4   .1
//   head           .1     2     .2       1.5       3       .3    3   .1
//   loss .5, optimizer 1
// Host: pre-forward .3, forward launch .8, post-forward .05, pre-backward .3, backward launch 1.2, post-backward .5.
#include <gtest/gtest.h>

#include <string>

#include "sim/graph/training_step.h"
#include "sim/simulate/simulate.h"
#include "tests/support/fixtures.h"
#include "tests/support/sweep.h"

namespace foreshard {
namespace {

constexpr double kTolerance = 0.1;  // ms: the vector is given to one decimal

Time ms(double value) { return Time::seconds(value * 1e-3); }

struct Variant {
  double block_all_gather = 3;
  double block_reduce_scatter = 4;
  std::int64_t reduce_scatter_buffers = 1;
  Communicators communicators = Communicators::kShared;
};

struct Played {
  EventGraph graph;
  Timeline timeline;

  // The n-th row of a kind (and unit), in issue order.
  double at(EventKind kind, const std::string& unit, int nth, bool end) const {
    for (std::size_t i = 0; i < graph.rows.size(); ++i) {
      const int u = graph.details[i].unit;
      if (graph.rows[i].kind != kind) continue;
      if (!unit.empty() && (u < 0 || graph.units[static_cast<std::size_t>(u)].name != unit)) continue;
      if (nth-- > 0) continue;
      const Span& span = timeline.spans[i];
      return (end ? span.end : span.arrive).seconds() * 1e3;
    }
    ADD_FAILURE() << "no such row: " << to_string(kind) << " " << unit;
    return std::nan("");
  }
  double start(EventKind kind, const std::string& unit, int nth = 0) const { return at(kind, unit, nth, false); }
  double end(EventKind kind, const std::string& unit, int nth = 0) const { return at(kind, unit, nth, true); }
};

Cost cost_of(const Work& work, const std::string& unit, const Variant& variant) {
  const bool embedding = unit == "embedding";
  const bool head = unit == "norm+head";
  auto pick = [&](double of_embedding, double of_block, double of_head) {
    return ms(embedding ? of_embedding : head ? of_head : of_block);
  };
  Cost cost;
  switch (work.kind) {
    case EventKind::kAllGatherCopyIn:
      cost.duration = pick(.1, .2, .1);
      // Forward: its own pre-forward, and from the second unit on the post-forward of the one before. In backward a
      // prefetch costs the host nothing of its own; the head's is issued first thing in its pre-backward.
      cost.before = ms(work.hooks == 2 ? .3 + .05 : work.hooks == 1 ? .3 : 0);
      break;
    case EventKind::kAllGather: cost.duration = pick(2, variant.block_all_gather, 2); break;
    case EventKind::kAllGatherCopyOut:
      cost.duration = pick(.2, .4, .2);
      cost.before = ms(work.hooks == 1 ? .3 : 0);  // pre-backward
      break;
    case EventKind::kForward:
      cost.duration = pick(.5, 5, 1.5);
      cost.before = ms(.8);
      break;
    case EventKind::kLoss:
      cost.duration = ms(.5);
      cost.before = ms(.05);
      break;
    case EventKind::kBackward:
      cost.duration = pick(.5, 10, 3);
      cost.before = ms(1.2);
      break;
    case EventKind::kReduceScatterCopyIn:
      cost.duration = pick(.3, .6, .3);
      cost.before = ms(.5);
      break;
    case EventKind::kReduceScatter: cost.duration = pick(3, variant.block_reduce_scatter, 3); break;
    case EventKind::kAccumulate: cost.duration = ms(.1); break;
    case EventKind::kOptimizer: cost.duration = ms(1); break;
    default: ADD_FAILURE() << "unexpected row " << to_string(work.kind);
  }
  return cost;
}

Played play(const Variant& variant) {
  ModelSpec model = tiny_model(4);
  Plan plan = tiny_plan();
  plan.reduce_dtype = DType::kBf16;  // so that the reduced gradient is cast to the stored fp32
  plan.reshard_after_forward.ranges = {{5, 5, {Reshard::Kind::kNever, 0}}};
  plan.reduce_scatter_buffers = variant.reduce_scatter_buffers;
  plan.communicators = variant.communicators;
  Played result{build_training_step(model, plan), {}};
  CostTable costs = table_costs(result.graph, [&](const Work& work, int unit) {
    return cost_of(work, unit < 0 ? "" : result.graph.units[static_cast<std::size_t>(unit)].name, variant);
  });
  // The head's unit runs two rows, the norm and the head: the vector counts one.
  for (std::size_t i = 0; i < result.graph.rows.size(); ++i) {
    const int layer = result.graph.details[i].layer;
    if (layer >= 0 && model.kinds[static_cast<std::size_t>(model.order[static_cast<std::size_t>(layer)].kind)].role ==
                          LayerRole::kFinalNorm) {
      costs.works[result.graph.rows[i].work] = Cost{};
    }
  }
  // The vector does not model that two communicators share a link.
  for (std::size_t w = 0; w < costs.works.size(); ++w) {
    const Work& work = result.graph.works[w];
    if (is_collective(work.kind) && work.communicator != 0) costs.works[w].uses = {0, Contention::kOne};
  }
  const Timeline swept = sweep_once(result.graph, costs);
  result.timeline = Simulator().simulate_once(result.graph, costs);
  EXPECT_EQ(swept.spans, result.timeline.spans) << "without contention both give the same times";
  return result;
}

TEST(GoldenVector, ForwardRunsTwoGathersAhead) {
  const Played r = play({});
  const double starts[] = {.4, 2.4, 5.4, 8.4, 11.4, 16.7};
  const double ends[] = {2.4, 5.4, 8.4, 11.4, 14.4, 18.7};
  for (int unit = 0; unit < 6; ++unit) {
    EXPECT_NEAR(r.start(EventKind::kAllGather, "", unit), starts[unit], kTolerance) << unit;
    EXPECT_NEAR(r.end(EventKind::kAllGather, "", unit), ends[unit], kTolerance) << unit;
  }
  EXPECT_NEAR(r.end(EventKind::kForward, "embedding"), 3.1, kTolerance);
  const double forward_ends[] = {10.8, 16.2, 21.6, 27.0};
  for (int b = 0; b < 4; ++b) {
    EXPECT_NEAR(r.end(EventKind::kForward, "layers." + std::to_string(b)), forward_ends[b], kTolerance);
  }
  EXPECT_NEAR(r.end(EventKind::kForward, "norm+head", 1), 28.7, kTolerance);
  EXPECT_NEAR(r.end(EventKind::kLoss, ""), 29.2, kTolerance);
}

TEST(GoldenVector, BackwardPrefetchesOneUnitAndSharesTheCommunicator) {
  const Played r = play({});
  // Rows 6.. of the all-gathers: blocks 3, 2, 1, 0 and the embedding.
  const double gather_starts[] = {27.4, 35.5, 47.5, 58.5, 69.5};
  const double gather_ends[] = {30.4, 38.5, 50.5, 61.5, 71.5};
  for (int n = 0; n < 5; ++n) {
    EXPECT_NEAR(r.start(EventKind::kAllGather, "", 6 + n), gather_starts[n], kTolerance) << n;
    EXPECT_NEAR(r.end(EventKind::kAllGather, "", 6 + n), gather_ends[n], kTolerance) << n;
  }
  const double backward_ends[] = {42.9, 53.9, 64.9, 75.9};
  for (int b = 0; b < 4; ++b) {
    EXPECT_NEAR(r.end(EventKind::kBackward, "layers." + std::to_string(3 - b)), backward_ends[b], kTolerance);
  }
  EXPECT_NEAR(r.end(EventKind::kBackward, "norm+head"), 32.2, kTolerance);
  EXPECT_NEAR(r.end(EventKind::kBackward, "embedding"), 77.2, kTolerance);
  const double reduce_starts[] = {32.5, 43.5, 54.5, 65.5, 76.5, 80.8};
  const double reduce_ends[] = {35.5, 47.5, 58.5, 69.5, 80.5, 83.8};
  for (int n = 0; n < 6; ++n) {
    EXPECT_NEAR(r.start(EventKind::kReduceScatter, "", n), reduce_starts[n], kTolerance) << n;
    EXPECT_NEAR(r.end(EventKind::kReduceScatter, "", n), reduce_ends[n], kTolerance) << n;
  }
}

struct StepCase {
  Variant variant;
  double step;
};

class GoldenStep : public testing::TestWithParam<StepCase> {};

TEST_P(GoldenStep, EndsWhenTheVectorSays) {
  EXPECT_NEAR(play(GetParam().variant).timeline.period.seconds() * 1e3, GetParam().step, kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Variants, GoldenStep,
    testing::Values(StepCase{{}, 84.9}, StepCase{{3, 4, 2, Communicators::kShared}, 84.7},
        StepCase{{8, 12, 1, Communicators::kShared}, 129.6}, StepCase{{8, 12, 2, Communicators::kShared}, 129.4},
        StepCase{{8, 12, 1, Communicators::kSeparate}, 113.4}, StepCase{{8, 12, 2, Communicators::kSeparate}, 111.7}));

}
}
