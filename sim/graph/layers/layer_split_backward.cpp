// The half of a backward that makes gradients of weights, as stage_backward_weight does
// (torch/distributed/pipelining/_backward.py, 2.11): one call of autograd for every node that reads
// weights, in the order of the parameters.
//
// The node's gradient, kept since the first half, is summed up with nothing, which copies it
// (sum() begins with 0). What the node had saved goes with it. What it was called with goes when
// the next one's names take its names' places: the kept gradient and the node itself, and with that
// all nodes behind which no other one is left, before the next copy is made; the copy, and the
// gradient that was added to one that was there, behind it. Nodes of layers in front are behind
// those of the layers that follow: they end with the stage's last one (LayerSegment::kGraph).
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "sim/graph/layers/layer_kernels.h"
#include "sim/graph/layers/layer_phases.h"

namespace foreshard {
namespace {

using Slots = LayerProgramWriter::Slots;

class WeightBackward {
 public:
  WeightBackward(LayerProgramWriter& writer, WeightGradients& weights, const Slots& captured)
      : writer_(writer), graph_(writer.graph()), weights_(weights), captured_(captured) {
    const LayerSpec& layer = graph_.layer();
    ends_ = graph_.options().ends_stage || layer.role == LayerRole::kHead;
    ended_.resize(graph_.operations());
    recomputed_.resize(graph_.operations());
    for (std::size_t o = 0; o < graph_.operations(); ++o) {
      ended_[o] = !graph_.has_node(o);
      if (captured_[o] == LayerProgramWriter::kNoSlot) continue;
      groups_.push_back(o);
      ++references_[captured_[o]];
    }
    // Who holds what a stage was given lets go of it.
    if (graph_.options().ends_stage) ++references_[LayerProgramWriter::kOutputGradSlot];
    std::ranges::stable_sort(groups_, {}, [&](std::size_t o) { return first_parameter(o); });
  }

  void run() {
    if (ends_) end_nodes_without(0);  // the stage's outputs are detached
    writer_.begin_segment(LayerSegment::kWeights);
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (g > 0) leave(g - 1);
      run_group(groups_[g]);
    }
    if (!groups_.empty()) leave(groups_.size() - 1);
    free_all(copy_);
    free_all(added_);
    writer_.begin_segment(LayerSegment::kGraph);
    for (std::size_t o = 0; o < graph_.operations(); ++o) end_node(o);
    if (!graph_.is_checkpointed()) return;
    for (const Index t : graph_.checkpoint_inputs()) writer_.unrefer(t);
    writer_.drop_kept();
  }

 private:
  Index first_parameter(std::size_t o) const {
    const Indices& list = graph_.operation(o).parameters;
    return list.empty() ? Index{0} : list.front();
  }

  void run_group(std::size_t o) {
    const Operation& op = graph_.operation(o);
    const std::int64_t bytes = graph_.bytes(op.outputs.front());
    LayerPhaseProgram& phase = writer_.phase();
    const std::int32_t copy = writer_.make_temporary(bytes, graph_.tensor(op.outputs.front()).name + ".grad copy");
    add_memory_kernel(phase, Function::kAdd, Pass::kBackward, 2 * bytes);
    free_all(copy_);
    copy_ = {copy};
    if (graph_.is_checkpointed() && graph_.inside(o)) recompute();
    Slots unasked;
    for (std::size_t i = 0; op.makes_all && i < op.inputs.size(); ++i)
      unasked.push_back(writer_.make_temporary(graph_.bytes(op.inputs[i]), graph_.tensor(op.inputs[i]).name + ".grad"));
    weights_.make(op);
    if (op.gradient == GradientRule::kAlias) add_memory_kernel(phase, Function::kColumnSum, Pass::kBackward, bytes);
    else add_backward_kernels(graph_.counts(), op, {true, op.makes_all}, phase);
    weights_.validate(op);
    end_node(o);
    free_all(unasked);
    free_all_of(weights_.settle(op));
    weights_.store(op);
    free_all(added_);
    added_ = weights_.take_added();
  }

  // Names of the group `g` are given to the next one.
  void leave(std::size_t g) {
    std::int32_t& references = references_[captured_[groups_[g]]];
    if (--references == 0) writer_.free(captured_[groups_[g]]);
    if (ends_) end_nodes_without(g + 1);
  }

  // Nodes that none of the groups from `next` on reaches.
  void end_nodes_without(std::size_t next) {
    std::vector<bool> reached(graph_.operations());
    std::vector<bool> read(graph_.tensors());
    for (std::size_t g = next; g < groups_.size(); ++g) reached[groups_[g]] = true;
    for (std::size_t o = graph_.operations(); o-- > 0;) {
      const Operation& op = graph_.operation(o);
      const auto is_read = [&](Index t) { return read[at(t)]; };
      if (!reached[o]) reached[o] = std::ranges::any_of(op.outputs, is_read);
      if (!reached[o]) {
        end_node(o);
        continue;
      }
      for (const Index t : op.inputs) read[at(t)] = true;
    }
  }

  void end_node(std::size_t o) {
    if (ended_[o]) return;
    ended_[o] = true;
    if (!graph_.is_checkpointed() || !graph_.inside(o))
      for (const Index t : graph_.saves(o)) writer_.unrefer(t);
    for (const std::int32_t storage : recomputed_[o]) writer_.release(storage);
  }

  // Each call of autograd computes a checkpointed block anew for all nodes that are left, which
  // keep that until they end.
  void recompute() {
    recompute_again(writer_, ended_);
    for (std::size_t o = 0; o < graph_.operations(); ++o) {
      if (ended_[o] || !graph_.inside(o)) continue;
      for (const Index t : graph_.saves(o)) recomputed_[o].push_back(writer_.storage_of(t));
    }
  }

  void free_all(Slots& slots) { free_all_of(std::exchange(slots, {})); }
  void free_all_of(const Slots& slots) {
    for (const std::int32_t slot : slots) writer_.free(slot);
  }

  LayerProgramWriter& writer_;
  const LayerAutograd& graph_;
  WeightGradients& weights_;
  const Slots& captured_;
  bool ends_ = false;                                  // the last layer of its stage that has weights
  std::vector<std::size_t> groups_;                    // operations
  std::map<std::int32_t, std::int32_t> references_;    // of captured slots
  std::vector<bool> ended_;                            // operations
  std::vector<std::vector<std::int32_t>> recomputed_;  // storages, by who keeps them
  Slots copy_, added_;
};

}

void write_weight_backward(
    LayerProgramWriter& writer, WeightGradients& weights, const std::vector<std::int32_t>& captured) {
  WeightBackward(writer, weights, captured).run();
}

}
