// Forward walks the operations in order. Under recompute nothing that they save is kept but the
// layer's input, and under selective recompute the outputs of the kept operations.
//
// Recompute walks them again with fresh storages, without the kept operations, and stops early like PyTorch's
// non-reentrant checkpoint: as soon as everything that backward needs has been saved again. An operation that saves
// only its inputs is not executed for that (the hook raises before its kernel is issued).
#include <algorithm>
#include <utility>
#include <vector>

#include "sim/base/lookup.h"
#include "sim/graph/layers/fused_region.h"
#include "sim/graph/layers/given_mask.h"
#include "sim/graph/layers/layer_kernels.h"
#include "sim/graph/layers/layer_phases.h"

namespace foreshard {
namespace {

using Slots = LayerProgramWriter::Slots;

class Forward {
 public:
  explicit Forward(LayerProgramWriter& writer) : writer_(writer), graph_(writer.graph()) {}

  void run() {
    for (std::size_t o = 0; o < graph_.operations(); ++o) {
      const Operation& op = graph_.operation(o);
      writer_.enter(op.part);
      writer_.enter_modules(graph_.modules().beginning(o));
      settle_inputs(op);
      LayerStep step = LayerProgramWriter::begin_step(LayerStep::Kind::kForward, o);
      step.inputs = writer_.slots_of(op.inputs);
      const bool keeps = is_kept(op);
      make_outputs(op, MemoryCategory::kActivation);
      if (keeps) {
        for (Index t : op.outputs)
          if (is_wanted(t)) writer_.keep(t);
      }
      save(o);
      if (!graph_.is_checkpointed() || !graph_.inside(o)) hold_unread(o);
      for (Index t : graph_.releases(o)) {
        // Who comes behind it lets go of it: of a loss without a backward nobody does.
        const bool has_next = graph_.is_loss() ? graph_.options().grad_mode : graph_.is_flat();
        if (t == graph_.layer().output && has_next) continue;
        let_go(t);
      }
      step.outputs = writer_.slots_of(op.outputs);
      writer_.end_step(std::move(step));
      writer_.phase().segments.back().host_waits = op.host_reads;
      writer_.phase().segments.back().host_copies = op.host_copies;
      const bool leaves = o + 1 == graph_.operations() || !graph_.inside(o + 1);
      if (graph_.inside(o) && leaves && !graph_.is_checkpointed()) writer_.drop_kept();
      writer_.exit_modules(graph_.modules().ending(o));
    }
    drop_arguments();
  }

  // `ended`: operations whose nodes are gone.
  void run_again(const std::vector<bool>& ended) {
    const std::size_t stop = recompute_stop();
    for (std::size_t o = 0; o < stop; ++o) {
      const Operation& op = graph_.operation(o);
      if (!graph_.inside(o) || is_held_over(op)) {
        release_recomputed(o);  // a cast of the output reads forward's
        continue;
      }
      const bool from_cache = is_kept(op);
      writer_.enter(op.part);
      writer_.enter_modules(graph_.modules().beginning(o));
      LayerStep step = LayerProgramWriter::begin_step(LayerStep::Kind::kForward, o);
      if (from_cache) {
        for (Index t : op.outputs)
          if (is_wanted(t)) writer_.pop(t);
      } else {
        settle_inputs(op);
        step.inputs = writer_.slots_of(op.inputs);
        make_outputs(op, MemoryCategory::kRecomputedActivation);
        step.outputs = writer_.slots_of(op.outputs);
      }
      pack(o);
      hold_unread(o);
      const std::int32_t packed = from_cache ? pack_again(op) : LayerProgramWriter::kNoSlot;
      release_recomputed(o);
      if (packed != LayerProgramWriter::kNoSlot) writer_.free(packed);
      if (!from_cache) writer_.end_step(std::move(step));
      writer_.phase().segments.back().host_waits = op.host_reads && !from_cache;
      writer_.phase().segments.back().host_copies = op.host_copies && !from_cache;
      writer_.exit_modules(graph_.modules().ending(o));
    }
    if (stop == graph_.last_saver()) {
      writer_.enter_modules(graph_.modules().beginning(stop));
      // Packed before its kernel would be issued.
      pack(stop);
    }
    // References that would have ended in operations not executed any more end with the early stop.
    for (std::size_t o = stop; o < graph_.operations(); ++o) release_recomputed(o);
    // What nobody will unpack goes with the graph of the recomputation.
    for (const std::size_t o : packed_) {
      if (!ended[o]) continue;
      for (Index t : graph_.saves(o)) writer_.unrefer(t);
    }
  }

 private:
  void pack(std::size_t o) {
    for (Index t : graph_.saves(o)) writer_.refer(t);
    packed_.push_back(o);
  }

  // A node that no gradient reaches holds what it saved as long as its result is there. (In the
  // forward of a checkpointed layer that is packed, and nothing.)
  void hold_unread(std::size_t o) {
    if (!graph_.is_unread(o)) return;
    for (Index t : graph_.operation(o).saved) writer_.refer(t);
    unread_.push_back(o);
  }
  void let_go(Index t) {
    writer_.unname(t);
    std::erase_if(unread_, [&](std::size_t o) {
      const Operation& op = graph_.operation(o);
      if (op.outputs.front() != t) return false;
      for (Index saved : op.saved) writer_.unrefer(saved);
      return true;
    });
  }

  // What names of the program's hold beside the layer, which nothing in it reads.
  bool is_held_over(const Operation& op) const {
    return op.inputs.empty() && op.function == Function::kCopy && !op.outputs.empty() &&
           std::ranges::none_of(
               graph_.layer().operations,
               [&](const Operation& other) {
                 return contains(other.inputs, op.outputs.front()) || contains(other.saved, op.outputs.front());
               });
  }

  // What an in-place operation makes of a kept tensor is that tensor's buffer, so it is kept too.
  bool is_kept(const Operation& op) const {
    const ProgramOptions& options = graph_.options();
    if (options.recompute == Recompute::kNone || !options.grad_mode) return false;
    if (options.recompute == Recompute::kFull) {
      const auto& tensors = graph_.layer().tensors;
      return !op.outputs.empty() && tensors[at(op.outputs.front())].name.starts_with(kCached);
    }
    return op.kept_by_selective || (op.in_place && writer_.is_kept(op.inputs.front()));
  }

  // What a kept operation made; one that is not under checkpointing leaves what backward or what runs again reads.
  bool is_wanted(Index t) const {
    if (!graph_.options().keeps_read || graph_.is_saved(t)) return true;
    for (std::size_t o = 0; o < graph_.operations(); ++o) {
      const Operation& op = graph_.operation(o);
      if (!is_kept(op) && contains(op.inputs, t)) return true;
    }
    return false;
  }

  // What an operation reads must have arrived; views do not read.
  void settle_inputs(const Operation& op) {
    if (graph_.is_alias(op)) return;
    for (Index t : op.inputs) writer_.settle(t);
  }

  // Copies around the collective, its buffers, and who waits for it.
  void communicate(const Operation& op, MemoryCategory category) {
    const LayerCollective& collective = op.collective;
    const Index input = op.inputs.front(), output = op.outputs.front();
    const std::int64_t in = graph_.bytes(input), out = graph_.bytes(output);
    const auto copy = [&](std::int64_t bytes) {
      add_memory_kernel(writer_.phase(), Function::kCopy, Pass::kForward, 2 * bytes);
    };
    const auto temporary = [&](std::int64_t bytes, const char* what) {
      const std::int32_t slot = writer_.add_slot(category, bytes, graph_.tensor(output).name + what);
      writer_.allocate(slot);
      return slot;
    };
    std::int32_t packed = LayerProgramWriter::kNoSlot, raw = LayerProgramWriter::kNoSlot;
    if (collective.packs) {
      packed = temporary(in, " packed");
      copy(in);
    }
    const bool unpacks = collective.reorders || (collective.unpacks && graph_.options().batch > 1);
    const std::int32_t slot = output_slot(output, category);
    if (unpacks) raw = temporary(out, " as it arrives");
    else writer_.allocate(slot);
    // A functional all-reduce is one in place of a copy.
    if (collective.kind == CollectiveKind::kAllReduce) copy(out);
    const std::int16_t launch = writer_.launch(collective, in, out, graph_.element(output));
    writer_.add_storage(output, slot);
    writer_.name(output);
    if (!collective.waits) {
      // What is sent stays until somebody waits, too: the copy, or the input itself.
      return packed == LayerProgramWriter::kNoSlot ? writer_.set_flight(output, launch, input)
                                                   : writer_.set_flight_of_copy(output, launch, packed);
    }
    writer_.await(launch);
    if (packed != LayerProgramWriter::kNoSlot) writer_.free(packed);
    if (!unpacks) return;
    writer_.allocate(slot);
    copy(out);
    writer_.free(raw);
  }

  // The copy in front of a collective is an operator of its own, which no list keeps.
  std::int32_t pack_again(const Operation& op) {
    if (!op.collective.packs) return LayerProgramWriter::kNoSlot;
    const std::int64_t bytes = graph_.bytes(op.inputs.front());
    const std::int32_t slot = writer_.add_slot(
        MemoryCategory::kRecomputedActivation, bytes, graph_.tensor(op.outputs.front()).name + " packed");
    writer_.allocate(slot);
    add_memory_kernel(writer_.phase(), Function::kCopy, Pass::kForward, 2 * bytes);
    return slot;
  }

  void make_outputs(const Operation& op, MemoryCategory category) {
    if (op.collective.kind != CollectiveKind::kNone) return communicate(op, category);
    Slots ended;
    if (op.ring.ranks > 1) ended = write_ring_forward(writer_, op, category);
    // The bytes of an in-place operation's input change their name.
    if (op.in_place && !graph_.is_loss() && op.function != Function::kSiluMultiply)
      writer_.take_over(op.inputs.front());
    for (Index t : op.outputs) {
      if (graph_.is_alias(op)) {
        writer_.share_storage(t, op.inputs.front());
        if (!writer_.has_storage(t)) continue;
      } else {
        const std::int32_t slot = output_slot(t, category);
        writer_.add_storage(t, slot);
        writer_.allocate(slot);
      }
      writer_.name(t);
    }
    for (const std::int32_t slot : ended) writer_.free(slot);
    const bool gathers = op.kind == OperationKind::kGemm && op.gathers.kind != CollectiveKind::kNone;
    const std::int32_t library = writer_.library_slot(op, Pass::kForward);
    writer_.use_workspace(op.forward_workspace, gathers ? LayerProgramWriter::kNoSlot : library);
    if (graph_.is_alias(op) || op.ring.ranks > 1) return;
    std::int16_t launched = -1;
    if (gathers) {
      launched = gather_input(op, category);
      writer_.use_workspace({}, library);
    }
    if (is_synchronized(op)) writer_.await(launch_statistics(writer_, op, op.gathers));
    if (op.region >= 0) region_.forward(op, graph_.bytes(), writer_.phase());
    else add_forward_kernels(graph_.counts(), op, writer_.phase());
    if (launched < 0) return;
    if (graph_.options().pipelines_products) writer_.await(launched);
    writer_.free(std::exchange(whole_input_, LayerProgramWriter::kNoSlot));
  }

  // All of a product's input, for the product alone; where products are pipelined, both run chunk
  // by chunk and what follows waits for both.
  std::int16_t gather_input(const Operation& op, MemoryCategory category) {
    const Index input = op.inputs.front();
    const std::int64_t in = graph_.bytes(input), out = graph_.whole_bytes(input);
    whole_input_ = writer_.add_slot(category, graph_.gathered_bytes(input), graph_.tensor(input).name + " gathered");
    writer_.allocate(whole_input_);
    const std::int16_t launched = writer_.launch(op.gathers, in, out, graph_.element(input));
    if (!graph_.options().pipelines_products) writer_.await(launched);
    return launched;
  }

  std::int32_t output_slot(Index t, MemoryCategory category) {
    const std::string& name = graph_.tensor(t).name;
    const bool again = category == MemoryCategory::kRecomputedActivation;
    if (!again && t == graph_.border() && !graph_.is_loss()) return LayerProgramWriter::kOutputSlot;
    return writer_.add_slot(category, graph_.bytes(t), again ? name + " (recomputed)" : name);
  }

  void save(std::size_t o) {
    if (!graph_.is_checkpointed() || !graph_.inside(o))
      for (Index t : graph_.saves(o)) writer_.refer(t);
    else if (o == graph_.first_inside())
      for (Index t : graph_.checkpoint_inputs()) writer_.refer(t);
  }

  // The caller lets go of the layer's input, and the module of the input's cast.
  void drop_arguments() {
    for (std::size_t t = graph_.tensors(); t-- > 0;) {
      const auto argument = static_cast<Index>(t);
      if (!writer_.is_named(argument)) continue;
      if (t != 0 && !graph_.is_cast_input(argument)) continue;
      if (writer_.references(argument) == 1) writer_.enter(LayerSegment::kAfter);
      writer_.unname(argument);
    }
  }

  void release_recomputed(std::size_t o) {
    for (Index t : graph_.releases(o))
      if (t != 0 && t != graph_.reentrant_output()) let_go(t);
  }

  // Operations [0, stop) are executed again.
  std::size_t recompute_stop() const {
    if (!graph_.options().early_stop || graph_.reentrant_output() >= 0) return graph_.operations();
    const std::size_t last = graph_.last_saver();
    const Indices& outputs = graph_.operation(last).outputs;
    const Indices& saved = graph_.saves(last);
    const bool saves_output =
        std::find_first_of(saved.begin(), saved.end(), outputs.begin(), outputs.end()) != saved.end();
    return saves_output ? last + 1 : last;
  }

  LayerProgramWriter& writer_;
  const LayerAutograd& graph_;
  FusedRegion region_;
  std::int32_t whole_input_ = LayerProgramWriter::kNoSlot;
  std::vector<std::size_t> unread_, packed_;  // operations
};

}

void write_forward(LayerProgramWriter& writer) {
  writer.begin(writer.program().forward);
  Forward(writer).run();
  writer.program().saved = writer.referred_slots();
  copy_stacked(writer, Pass::kForward);
  // (A stage sends what it waits for first.)
  const LayerAutograd& graph = writer.graph();
  graph.options().ends_stage ? writer.settle(graph.border()) : writer.leave_open(graph.border());
  writer.end();
}

void write_recompute(LayerProgramWriter& writer) {
  writer.begin(writer.program().recompute);
  copy_stacked(writer, Pass::kForward);
  recompute_again(writer, std::vector<bool>(writer.graph().operations()));
  writer.end();
}

void recompute_again(LayerProgramWriter& writer, const std::vector<bool>& ended) { Forward(writer).run_again(ended); }

// The layer's input, which the loop hands on, is kept of every layer, too.
void copy_stacked(LayerProgramWriter& writer, Pass pass) {
  if (!writer.graph().options().stacked) return;
  const LayerProgram& program = writer.program();
  const Bytes kept = program.saved_bytes() + program.slots[LayerProgramWriter::kInputSlot].bytes;
  add_memory_kernel(writer.phase(), Function::kCopy, pass, 2 * kept.count());
}

}
