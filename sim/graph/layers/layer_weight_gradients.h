// The gradients of a layer's weights in backward: made by a node's kernel, given their parameter's
// dtype, stored in the parameter (LayerProgram::weight_gradients) or added to what is there.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/graph/layers/layer_program_writer.h"

namespace foreshard {

// Node by node: make, validate, then settle and store. Writes to the phase that the writer is in.
class WeightGradients {
 public:
  explicit WeightGradients(LayerProgramWriter& writer);

  // Those that the node's kernel returns.
  void make(const Operation& op, bool by_product = true);
  // Those that are sums over the incoming gradient; and every one in the dtype that autograd wants.
  void validate(const Operation& op);
  // What is added to an earlier call's gradient is added now, if the weights hang on the node
  // itself. Returns the slots that go when autograd's engine is done with the node.
  LayerProgramWriter::Slots settle(const Operation& op);
  void store(const Operation& op);
  // Those of weights that an earlier operation has: autograd holds them until that one's is made.
  LayerProgramWriter::Slots take_again() { return std::exchange(again_, {}); }
  // stage_backward_weight's names for gradients that it added to those that exist.
  LayerProgramWriter::Slots take_added() { return std::exchange(added_, {}); }

 private:
  struct Fresh {  // made by the node that runs
    Index parameter;
    std::int32_t slot;
  };

  DType made_dtype(const Operation& op) const;
  bool hang_on_node(const Operation& op) const;
  std::int32_t make_slot(Index p, DType dtype, const char* suffix);
  // Returns whether the fresh gradient's slot is to be freed.
  bool settle(const Fresh& fresh);
  void store(Index p);

  LayerProgramWriter& writer_;
  const LayerAutograd& graph_;
  std::vector<Fresh> fresh_;
  LayerProgramWriter::Slots whole_;  // what rows of a table's gradient are taken from
  Indices settled_;                  // to be stored next
  LayerProgramWriter::Slots added_;  // to a gradient that exists
  LayerProgramWriter::Slots again_;
  std::set<std::string> again_of_;  // whose they are
};

}
