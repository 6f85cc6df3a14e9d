// Storages are counted as PyTorch's are: names, autograd's saved tensors and checkpointing's cache
// are references alike. The layer's output is the next layer's slot, which frees it.
#include "sim/graph/layers/layer_program_writer.h"

#include <algorithm>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/graph/layers/layer_kernels.h"

namespace foreshard {

LayerProgramWriter::LayerProgramWriter(const LayerAutograd& graph)
    : graph_(graph),
      storage_of_(graph.tensors(), kNoStorage),
      named_(graph.tensors(), false),
      kept_(graph.tensors(), false),
      popped_(graph.tensors(), false) {
  const bool has_input = graph.has_input_buffer();
  const std::int64_t input = has_input ? graph.bytes(0) : graph.options().waiting_bytes;
  add_slot(MemoryCategory::kActivation, input, "input");
  add_slot(MemoryCategory::kBackwardTemp, input, "input.grad");
  storages_.reserve(graph.tensors() * 2);
  add_storage(0, kInputSlot);
  if (has_input) name(0);
  if (graph.options().input_is_held) refer(0);
  if (graph.options().input_in_flight) storage(0).flight = LayerCall::kOfLayerBefore;
  const Index joined = graph.layer().joins;
  if (joined >= 0) {
    add_storage(joined, kWaitingSlot);
    name(joined);
  }
}

// --- slots and actions ---

std::int32_t LayerProgramWriter::add_slot(MemoryCategory category, std::int64_t bytes, std::string name) {
  program_.slots.push_back({category, allocated_size(bytes), std::move(name), category});
  return static_cast<std::int32_t>(program_.slots.size()) - 1;
}

std::int32_t LayerProgramWriter::make_temporary(std::int64_t bytes, std::string name) {
  const std::int32_t slot = add_slot(MemoryCategory::kBackwardTemp, bytes, std::move(name));
  allocate(slot);
  return slot;
}

void LayerProgramWriter::use_workspace(const Indices& tensors, std::int32_t library) {
  Slots slots;
  for (Index t : tensors) slots.push_back(make_temporary(graph_.bytes(t), graph_.tensor(t).name));
  if (library != kNoSlot) {
    allocate(library);
    slots.insert(slots.begin(), library);
  }
  for (std::int32_t slot : slots) free(slot);
}

// addmm of a vector and products in fp8 are cublasLt's; convolutions are cuDNN's, grouped products CUTLASS'.
std::int32_t LayerProgramWriter::library_slot(const Operation& op, Pass pass) {
  const ProductWorkspaces& bytes = graph_.options().workspaces;
  if (bytes.kept) return kNoSlot;
  const bool is_gemm = op.kind == OperationKind::kGemm;
  const bool is_head_product = op.kind == OperationKind::kAttention && op.function == Function::kMatrixProduct;
  const bool has_products = std::ranges::any_of(op.products,
      [&](const SideProduct& product) { return product.n > 0 && product.backward == (pass == Pass::kBackward); });
  if (!(is_gemm && !convolves(graph_.layer(), op) && (op.groups == 1 || op.one_by_one)) && !is_head_product &&
      !has_products)
    return kNoSlot;
  const bool is_lt = is_gemm && (op.fp8 != Float8::kNone || (pass == Pass::kForward && op.parameters.size() > 1));
  std::int32_t& slot = is_lt ? lt_ : cublas_;
  if (slot == kNoSlot)
    slot = add_slot(MemoryCategory::kBackwardTemp, is_lt ? bytes.lt : bytes.cublas, "cublas workspace");
  return slot;
}

// --- segments, hooks, steps ---

void LayerProgramWriter::close_segment() {
  if (phase_->segments.empty()) return;
  phase_->segments.back().actions_end = static_cast<std::uint32_t>(phase_->actions.size());
  phase_->segments.back().kernels_end = static_cast<std::uint32_t>(phase_->kernels.size());
}

std::uint16_t LayerProgramWriter::empty_segment() {
  std::vector<LayerSegment>& segments = phase_->segments;
  if (segments.empty()) segments.push_back({});
  const std::size_t last = segments.size() - 1;
  const bool is_empty = (last == 0 ? 0 : segments[last - 1].actions_end) == phase_->actions.size() &&
                        (last == 0 ? 0 : segments[last - 1].kernels_end) == phase_->kernels.size();
  if (!is_empty) {
    const std::int8_t part = segments[last].part;
    close_segment();
    segments.push_back({});
    segments.back().part = part;
  }
  return static_cast<std::uint16_t>(segments.size() - 1);
}

void LayerProgramWriter::enter(std::int8_t part) {
  if (part > 0 && !graph_.options().split_parts) part = 0;
  // What a second half runs again is a part of it.
  const bool is_half = !phase_->segments.empty() && phase_->segments.back().part == LayerSegment::kWeights;
  if (is_half) part = LayerSegment::kWeights;
  if (!phase_->segments.empty() && phase_->segments.back().part == part && !phase_->segments.back().host_waits &&
      !phase_->segments.back().host_copies)
    return;
  begin_segment(part);
}

void LayerProgramWriter::begin_segment(std::int8_t part) {
  close_segment();
  phase_->segments.push_back({});
  phase_->segments.back().part = part;
}

void LayerProgramWriter::add_hook(LayerHook::Kind kind, std::int16_t what) {
  if (!graph_.options().hooks) return;
  phase_->hooks.push_back({kind, what, empty_segment()});
}

void LayerProgramWriter::enter_modules(const Indices& modules) {
  for (auto m = modules.rbegin(); m != modules.rend(); ++m) add_hook(LayerHook::Kind::kEnter, *m);
}

void LayerProgramWriter::exit_modules(const Indices& modules) {
  for (std::int16_t m : modules) add_hook(LayerHook::Kind::kExit, m);
}

LayerStep LayerProgramWriter::begin_step(LayerStep::Kind kind, std::size_t operation) {
  return LayerStep{.kind = kind, .operation = static_cast<std::int16_t>(operation)};
}

void LayerProgramWriter::end_step(LayerStep step) {
  step.actions_end = static_cast<std::uint32_t>(phase_->actions.size());
  step.kernels_end = static_cast<std::uint32_t>(phase_->kernels.size());
  phase_->steps.push_back(std::move(step));
}

// --- collectives ---

std::int16_t LayerProgramWriter::add_call(LayerCall call) {
  call.segment = empty_segment();
  phase_->calls.push_back(call);
  return static_cast<std::int16_t>(phase_->calls.size() - 1);
}

std::int16_t LayerProgramWriter::launch(
    const LayerCollective& collective, std::int64_t bytes_in, std::int64_t bytes_out, TensorElement element) {
  LayerCall call = {.collective = collective, .bytes_in = bytes_in, .bytes_out = bytes_out, .element = element};
  if (collective.finds_amax) {
    LayerCall amax = {.collective = collective, .bytes_in = 4, .bytes_out = 4, .element = element};
    amax.collective.kind = CollectiveKind::kAllReduce;
    amax.element.type = ElementType::kFp32;
    await(add_call(amax));
  }
  if (collective.in_fp8) {
    call.bytes_in /= element.size();
    call.bytes_out /= element.size();
    call.element.type = ElementType::kByte;
  }
  return add_call(call);
}

void LayerProgramWriter::await(std::int16_t launch) {
  LayerCall call;
  if (launch >= 0) call = phase_->calls[at(launch)];
  call.kind = LayerCall::Kind::kWait;
  call.launch = launch;
  add_call(call);
}

void LayerProgramWriter::recompute_here() {
  LayerCall call = {.kind = LayerCall::Kind::kRecompute};
  add_call(call);
}

void LayerProgramWriter::set_flight(Index t, std::int16_t launch, Index sent) {
  refer(sent);
  storage(t).flight = launch;
  storage(t).sent = storage_of_[at(sent)];
}

void LayerProgramWriter::set_flight_of_copy(Index t, std::int16_t launch, std::int32_t copy) {
  storage(t).flight = launch;
  storage(t).sent = static_cast<std::int32_t>(storages_.size());
  storages_.push_back({copy, 1});
}

void LayerProgramWriter::settle(Index t) {
  if (!has_storage(t) || storage(t).flight == kLanded) return;
  await(std::exchange(storage(t).flight, kLanded));
  release(std::exchange(storage(t).sent, kNoStorage));
}

void LayerProgramWriter::leave_open(Index t) {
  if (!has_storage(t) || storage(t).flight < 0) return;
  phase_->open_launch = std::exchange(storage(t).flight, kLanded);
  const std::int32_t sent = std::exchange(storage(t).sent, kNoStorage);
  if (sent == kNoStorage) return;
  Storage& s = storages_[at(sent)];
  if (--s.references == 0) phase_->open_slot = s.slot;
}

// --- storages ---

void LayerProgramWriter::add_storage(Index t, std::int32_t slot) {
  storage_of_[at(t)] = static_cast<std::int32_t>(storages_.size());
  storages_.push_back({slot});
}

void LayerProgramWriter::share_storage(Index t, Index with) {
  const bool of_batch = storage_of_[at(with)] == 0 && !graph_.has_input_buffer();
  storage_of_[at(t)] = of_batch ? kNoStorage : storage_of_[at(with)];
}

std::int32_t LayerProgramWriter::slot_of(Index t) const { return has_storage(t) ? storage(t).slot : kNoSlot; }

LayerProgramWriter::Slots LayerProgramWriter::slots_of(const Indices& tensors) const {
  Slots slots;
  for (Index t : tensors) slots.push_back(slot_of(t));
  return slots;
}

void LayerProgramWriter::refer(Index t) {
  if (has_storage(t)) ++storage(t).references;
}

void LayerProgramWriter::unrefer(Index t) {
  if (has_storage(t)) release(storage_of_[at(t)]);
}

void LayerProgramWriter::release(std::int32_t storage) {
  if (storage == kNoStorage) return;
  Storage& s = storages_[at(storage)];
  if (s.slot == kNoSlot || s.references == 0 || --s.references > 0 || s.slot == kOutputSlot) return;
  free(s.slot);
  // Of a tensor that nobody waited for (a recomputation stopped before), what was sent goes with it.
  s.flight = kLanded;
  release(std::exchange(s.sent, kNoStorage));
}

void LayerProgramWriter::name(Index t) {
  refer(t);
  named_[at(t)] = true;
}

void LayerProgramWriter::unname(Index t) {
  if (!named_[at(t)]) return;
  named_[at(t)] = false;
  unrefer(t);
}

void LayerProgramWriter::take_over(Index t) {
  FORESHARD_CHECK(!graph_.is_saved(t), "an in-place input is saved");
  free(storage(t).slot);
  storage(t) = {};
  storage_of_[at(t)] = kNoStorage;
  named_[at(t)] = false;
}

LayerProgramWriter::Slots LayerProgramWriter::referred_slots() const {
  Slots slots;
  for (std::int32_t s : storage_of_) {
    if (s == kNoStorage || s == 0) continue;
    const Storage& each = storages_[at(s)];
    if (each.references == 0 || each.slot == kOutputSlot || each.slot == kWaitingSlot) continue;
    if (!contains(slots, each.slot)) slots.push_back(each.slot);
  }
  return slots;
}

// --- selective recompute's cache ---

void LayerProgramWriter::keep(Index t) {
  kept_[at(t)] = true;
  refer(t);
}

void LayerProgramWriter::pop(Index t) {
  named_[at(t)] = has_storage(t);
  popped_[at(t)] = true;
}

// A dictionary of lists by operator, which lose their last element first.
void LayerProgramWriter::drop_kept() {
  std::vector<Function> operators;
  for (const Operation& op : graph_.layer().operations)
    if (!op.outputs.empty() && is_kept(op.outputs.front()) && !contains(operators, op.function))
      operators.push_back(op.function);
  for (Function each : operators) {
    for (std::size_t o = graph_.operations(); o-- > 0;) {
      const Operation& op = graph_.operation(o);
      if (op.function != each) continue;
      for (std::size_t i = op.outputs.size(); i-- > 0;) {
        const Index t = op.outputs[i];
        if (is_unpopped(t)) unrefer(t);
        kept_[at(t)] = false;
      }
    }
  }
}

}
