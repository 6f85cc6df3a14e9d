// Launches of mamba_split_conv1d_scan_combined (mamba_ssm/ops/triton/ssd_combined.py of v2.3,
// _mamba_chunk_scan_combined_fwd and _bwd), each by what it reads and writes once; what heads of a group share comes
// from the cache again. They are Triton's, products of a chunk's positions with exponentials between, and reach neither
// tensor cores' rate nor the memory's: 8,192 positions of 128 heads of 64 with a state of 128 took 0.65 ms forward on
// an H100 (vllm-project/vllm#27299: 0.39 of its bandwidth by these bytes), kernels over strided rows reach 0.35 there.
// So all are taken, backward too.
#include "sim/base/integers.h"
#include "sim/graph/layers/layer_kernels.h"

namespace foreshard {
namespace {

constexpr std::int64_t kFp32 = 4;

// What kernels of scans count by, and the phase that they are of.
class ScanPhase {
 protected:
  ScanPhase(const KernelCounts& counts, const Operation& op, Pass pass, LayerPhaseProgram& phase)
      : shape_(op.scan),
        tokens_(checked_multiply(counts.options.batch, counts.options.sequence)),
        chunks_(checked_multiply(counts.options.batch, (counts.options.sequence + shape_.chunk - 1) / shape_.chunk)),
        element_(size_of(counts.options.compute)),
        pass_(pass),
        phase_(phase),
        function_(op.function) {}
  void add(std::int64_t bytes, MemoryClass memory_class = MemoryClass::kStrided) {
    add_memory_kernel(phase_, function_, pass_, bytes);
    phase_.kernels.back().memory_class = memory_class;
  }

  const ScanShape& shape_;
  const std::int64_t tokens_, chunks_, element_;
  const Pass pass_;

 private:
  LayerPhaseProgram& phase_;
  const Function function_;
};

class Scan : ScanPhase {
 public:
  Scan(const KernelCounts& counts, const Operation& op, Pass pass, LayerPhaseProgram& phase)
      : ScanPhase(counts, op, pass, phase), gates_(op.outputs.size() > 1) {
    x_ = checked_multiply(tokens_, shape_.inner()) * element_;
    shared_ = checked_multiply(tokens_, shape_.shared()) * element_;
    convolved_ = checked_multiply(tokens_, shape_.convolved()) * element_;
    steps_ = checked_multiply(tokens_, shape_.heads) * kFp32;
    states_ = checked_multiply(chunks_, checked_multiply(shape_.inner(), shape_.state)) * kFp32;
    narrow_ = states_ / kFp32 * element_;
    pairs_ = checked_multiply(checked_multiply(tokens_, shape_.chunk), shape_.groups) * kFp32;
  }

  void convolve() { add(2 * convolved_, MemoryClass::kElementwise); }
  // What forward does, of which backward does all but the last again.
  void states() {
    add(3 * steps_);                                               // sums of dt A along a chunk
    add(x_ + shared_ + steps_ + states_);                          // the state that each chunk makes
    add(states_ + (pass_ == Pass::kForward ? narrow_ : states_));  // handed on
    add(2 * shared_ + pairs_);                                     // C B of a chunk's positions
  }
  void scan() { add(x_ + shared_ + pairs_ + 2 * steps_ + narrow_ + (gates_ ? 3 : 1) * x_); }
  void backward() {
    if (gates_) add(5 * x_);                                // of the gate and of what it multiplied
    add(x_ + shared_ + states_);                            // of states, by their outputs
    add(2 * states_ + 2 * narrow_);                         // handed back
    add(3 * x_ + shared_ + pairs_ + narrow_ + 3 * steps_);  // of x and dt
    add(x_ + narrow_ + shared_ / 2 * kFp32);                // of B
    add(x_ + narrow_ + shared_ / 2 * kFp32);                // of C
    add(2 * x_ + pairs_);                                   // of C B
    for (int of = 0; of < 2; ++of) add(pairs_ + 3 * shared_);
    add(2 * x_ + pairs_ + steps_);  // of the sums
    for (int sum = 0; sum < 4; ++sum) add(3 * steps_, MemoryClass::kElementwise);
    add(4 * steps_);
  }
  void convolve_backward() { add(3 * convolved_, MemoryClass::kElementwise); }

 private:
  const bool gates_;  // multiplies by silu(z), and keeps what it had before
  // Bytes: of x (as of z, of the result), of B or C, of all that is convolved, of dt in fp32, of
  // the states of all chunks in fp32 and in the compute dtype, of numbers for pairs of positions.
  std::int64_t x_ = 0, shared_ = 0, convolved_ = 0, steps_ = 0, states_ = 0, narrow_ = 0, pairs_ = 0;
};

// Launches of chunk_gated_delta_rule and chunk_kda (fla/ops/gated_delta_rule/chunk.py and fla/ops/kda/ of
// flash-linear-attention 0.6), each by what it reads and writes once. Its small products reach no rate of tensor cores.
class DeltaRuleKernels : ScanPhase {
 public:
  DeltaRuleKernels(const KernelCounts& counts, const Operation& op, Pass pass, LayerPhaseProgram& phase)
      : ScanPhase(counts, op, pass, phase) {
    const std::int64_t rows = checked_multiply(tokens_, shape_.heads);
    keys_ = checked_multiply(rows, shape_.state) * element_;
    values_ = checked_multiply(rows, shape_.head_dim) * element_;
    row_ = rows * kFp32;
    decays_ = counts.bytes[at(op.inputs[3])];
    by_channel_ = decays_ > row_;
    pairs_ = checked_multiply(rows, shape_.chunk) * element_;
    states_ = checked_multiply(chunks_, checked_multiply(shape_.inner(), shape_.state)) * element_;
  }

  void forward() {
    for (int of = 0; of < 2; ++of) add(2 * keys_ + row_, MemoryClass::kElementwise);  // lengths
    add(2 * decays_);                                                                 // their sums
    add(pairs_, MemoryClass::kElementwise);                                           // zeros
    if (by_channel_) {  // pairs, the inverse's diagonals; the inverse
      add(2 * keys_ + decays_ + row_ + pairs_ + kDiagonal * row_);
      add(2 * keys_ + decays_ + row_ + kDiagonal * row_ + 2 * pairs_);
    } else {
      add(keys_ + 2 * row_ + pairs_);  // the inverse
    }
    states();
    add(by_channel_ ? keys_ + 2 * values_ + decays_ + pairs_ + states_  // the result
                    : 2 * keys_ + 2 * values_ + row_ + states_);
  }
  void backward() {
    states();
    if (by_channel_) backward_of_channels();
    else backward_of_heads();
    add(2 * decays_);  // of the sums
    for (int of = 0; of < 2; ++of) add(3 * keys_ + row_, MemoryClass::kElementwise);
  }

 private:
  static constexpr std::int64_t kDiagonal = 16;  // of a chunk's positions, in fp32

  // What keys and values of a chunk make with its inverse, then the state that each chunk starts
  // from and what values differ from what it predicts. Backward makes them again.
  void states() {
    const std::int64_t decayed = !by_channel_ ? 0 : pass_ == Pass::kForward ? keys_ : 3 * keys_;
    add(2 * keys_ + 2 * values_ + row_ + decays_ + pairs_ + decayed);
    add(2 * keys_ + 2 * values_ + row_ + states_);
  }
  void backward_of_heads() {
    add(2 * keys_ + 2 * values_ + row_);                    // of values, within a chunk
    add(3 * keys_ + 3 * values_ + row_ + states_);          // of states, handed back
    add(6 * keys_ + 3 * values_ + 2 * row_ + 2 * states_);  // of q, k, w and decays
    add(3 * row_, MemoryClass::kElementwise);
    add(3 * keys_ + 3 * values_ + 4 * row_ + pairs_);  // of the inverse
    add(3 * keys_, MemoryClass::kElementwise);
    add(3 * row_, MemoryClass::kElementwise);
  }
  // Gradients of q, k, decays and pairs are fp32 here.
  void backward_of_channels() {
    add(3 * values_ + 3 * pairs_);                  // of values, within a chunk, and of pairs
    add(3 * keys_ + 3 * values_ + row_ + states_);  // of states, handed back
    add(6 * keys_ + 5 * values_ + 2 * decays_ + 2 * row_ + 3 * pairs_ + 2 * states_);
    add(10 * keys_ + 3 * decays_ + 2 * row_ + 4 * pairs_);  // of pairs and of the inverse
  }
  // Bytes: of all heads' keys (repeated), values, of a number in fp32 and a row of a chunk's pairs
  // for each position and head, of decays, of the states of all chunks.
  std::int64_t keys_ = 0, values_ = 0, row_ = 0, decays_ = 0, pairs_ = 0, states_ = 0;
  bool by_channel_ = false;  // decays of each channel of a key
};

}

void add_scan_forward(const KernelCounts& counts, const Operation& op, LayerPhaseProgram& phase) {
  if (op.function == Function::kDeltaRule) return DeltaRuleKernels(counts, op, Pass::kForward, phase).forward();
  Scan scan(counts, op, Pass::kForward, phase);
  scan.convolve();
  scan.states();
  scan.scan();
}

void add_scan_backward(const KernelCounts& counts, const Operation& op, LayerPhaseProgram& phase) {
  if (op.function == Function::kDeltaRule) return DeltaRuleKernels(counts, op, Pass::kBackward, phase).backward();
  Scan scan(counts, op, Pass::kBackward, phase);
  scan.convolve();
  scan.states();
  scan.backward();
  scan.convolve_backward();
}

}
