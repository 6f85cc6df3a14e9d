// Tensor parallel or stages alone: with one rank per group of shard, cp and replicate torchtitan
// applies no fully_shard (torchtitan 0.2.2 models/llama3/infra/parallelize.py). Parameters are what
// the rank holds and computes with; gradients stay until the next zero_grad. Nobody completes the
// norms' gradients, of which each rank has a summand: DTensor adds them up where they are read, for
// the norm of all gradients, for their scaling, and again in the optimizer's step.
//
// The recorder sees modules begin and end in forward; in backward a unit begins with its first
// operator, which is not the launch of a gather.
#include <utility>
#include <vector>

#include "sim/base/lookup.h"
#include "sim/graph/fsdp2/fsdp2_builder.h"

namespace foreshard {

void Fsdp2::note_module(std::string_view kind, std::int32_t unit) {
  if (logging_ && log_where_ == "forward" && !is_pipelined()) log(kind, {.unit = unit});
}

void Fsdp2::begin_plain_backward() {
  if (is_wrapped() || plain_next_ < 0) return;
  const std::int32_t unit = std::exchange(plain_next_, HostEvent::kNobody);
  end_plain_backward("first operator of the next unit");
  plain_unit_ = unit;
  if (logging_) log("backward_begin", {.unit = unit});
}

void Fsdp2::end_plain_backward(std::string_view cause) {
  const std::int32_t unit = std::exchange(plain_unit_, HostEvent::kNobody);
  if (logging_ && unit >= 0) log("backward_end", {.unit = unit, .cause = cause});
}

// The loss' own gradient ends when the engine returns, its name one statement later.
void Fsdp2::leave_backward(std::int32_t loss) {
  const LayerPhaseProgram& p = phase(EventKind::kBackward, loss);
  for (std::size_t s = 0; s < p.segments.size(); ++s) {
    if (p.segments[s].part != LayerSegment::kAfter) continue;
    add_segment(EventKind::kBackward, loss, static_cast<std::uint16_t>(s));
    end_plain_backward("");
  }
}

// visit(program's slot, its buffer), of each gradient that backward leaves.
template <typename Visit>
void Fsdp2::visit_plain_gradients(const Visit& visit) {
  for (std::int32_t l = 0; l < static_cast<std::int32_t>(model_.order.size()); ++l) {
    const auto layers = static_cast<std::int32_t>(model_.order.size());
    const LayerExecution& execution = graph().executions[at(storing_pass(l) * layers + l)];
    const LayerProgram& program = graph().program(execution);
    for (std::size_t p = 0; p < program.weight_gradients.size(); ++p) {
      const std::int32_t slot = program.weight_gradients[p];
      if (slot < 0 || spec_of(l).parameters[p].tied) continue;
      visit(program.slots[at(slot)], execution.first_buffer + slot);
    }
  }
}

// Of the step before, as backward made them.
void Fsdp2::hold_plain_gradients() {
  visit_plain_gradients([&](const Slot& slot, std::int32_t) {
    plain_gradients_.push_back(allocate_persistent(MemoryCategory::kBackwardTemp, -1, slot.bytes));
  });
}

void Fsdp2::drop_plain_gradients() {
  visit_plain_gradients([&](const Slot&, std::int32_t buffer) { drop_gradient(buffer); });
}

// One after the other; the sums live until the caller has read them all.
std::vector<std::int32_t> Fsdp2::sum_plain_gradients() {
  std::vector<std::int32_t> sums;
  for (std::int32_t u = 0; u < count() && !is_wrapped(); ++u) {
    for (const UnitParameter& p : shape(u).list) {
      if (!p.partial) continue;
      const std::int64_t bytes = p.numel * master_size();
      sums.push_back(allocate(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, Bytes(bytes)));
      const EventId row = communicate({.kind = CollectiveKind::kAllReduce, .dim = MeshDim::kTp}, bytes, bytes,
          {.dtype = to_string(plan_.master_dtype), .on = "SUM"});
      await_collective(row, CollectiveKind::kAllReduce, MeshDim::kTp, HostEvent::kNobody);
    }
  }
  return sums;
}

// Each argument of a kernel is made whole: the fused one has one list of gradients, of those over
// lists lerp_ has one, then addcmul_ two (torch/optim/adam.py, _multi_tensor_adam). The rank's part
// of a gradient that was made for the whole vocabulary is copied out.
void Fsdp2::step_plain_gradients() {
  if (is_wrapped()) return;
  const Optimizer& optimizer = plan_.optimizer;
  const bool by_lists =
      optimizer.kind == Optimizer::Kind::kAdamW && optimizer.implementation == Optimizer::Implementation::kForeach;
  for (const int arguments : by_lists ? std::vector{1, 2} : std::vector{1}) {
    std::vector<std::int32_t> made;
    for (int a = 0; a < arguments; ++a) {
      for (std::int32_t u = 0; u < count(); ++u) {
        for (const UnitParameter& p : shape(u).list) {
          if (p.gradient_numel == 0) continue;
          made.push_back(
              allocate(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, Bytes(p.numel * master_size())));
        }
      }
      const std::vector<std::int32_t> sums = sum_plain_gradients();
      append(made, sums);
    }
    free_all(made);
  }
}

}
