// The loss over tp, by whom it runs: what it keeps and holds, in fp32 copies of the rank's part of the logits.
#include <gtest/gtest.h>

#include "models/zoo.h"
#include "sim/graph/axes/layer_cutter.h"
#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "tests/support/fixtures.h"

namespace foreshard::cut_loss_test {
namespace {

Plan plan_of(Loss::Kind loss) {
  Plan plan = tiny_plan();
  plan.runtime = {RuntimeKind::kFsdp2, "2.11"};
  plan.batch = {2048, 2, 1};
  plan.mesh = {2, 1};
  plan.mesh.tp = 2;
  plan.loss.kind = loss;
  return plan;
}

// On the null GPU (two ranks, PyTorch 2.11, cross_entropy of a DTensor under loss_parallel, logits
// as large as all else) eager holds 4.0 copies at most and keeps 1.0, compiled holds 2.0 beside the
// 16-bit logits, half a copy, and keeps 1.0.
TEST(CutLoss, ACompiledLossHoldsTwoCopiesWhereAnEagerOneHoldsFour) {
  const ModelSpec model = load_zoo_model("qwen3-0.6b");
  const auto peak = [&](Loss::Kind loss) {
    return replay_allocations(build_training_step(model, plan_of(loss))).peak.count();
  };
  const double copy = 2048.0 * 2 * (151936 / 2) * 4;
  const auto saved = static_cast<double>(peak(Loss::Kind::kEager) - peak(Loss::Kind::kCompiled));
  EXPECT_NEAR(saved / copy, 4.0 - 2.5, 0.01);
}

// One kernel of backward, which reads the copy and writes the logits' gradient.
TEST(CutLoss, ACompiledLossKeepsOneCopy) {
  const ModelSpec model = load_zoo_model("qwen3-0.6b");
  for (const Loss::Kind loss : {Loss::Kind::kEager, Loss::Kind::kCompiled}) {
    const LayerSpec layer = cut_loss(model.kinds.back(), plan_of(loss));
    std::int64_t kept = 0;
    for (const Operation& op : layer.operations) {
      for (const std::int16_t t : op.saved) {
        const TensorSpec& tensor = layer.tensors[at(t)];
        if (tensor.per_token > 1 && &op == &layer.operations.back()) ++kept;
      }
    }
    EXPECT_EQ(kept, 1);
    EXPECT_EQ(layer.operations.back().backward_temporaries.empty(), loss == Loss::Kind::kCompiled);
  }
}

}
}
