// Launches of mamba_split_conv1d_scan_combined (mamba_ssm/ops/triton/ssd_combined.py of v2.3,
// _mamba_chunk_scan_combined_fwd and _bwd), each by what it reads and writes once; what heads of a
// group share comes from the cache again. They are Triton's, products of a chunk's positions with
// exponentials between, and reach neither tensor cores' rate nor the memory's: 8,192 positions of
// 128 heads of 64 with a state of 128 took 0.65 ms forward on an H100 (vllm-project/vllm#27299:
// 0.39 of its bandwidth by these bytes), kernels over strided rows reach 0.35 there. So all are
// taken, backward too.
#include "sim/graph/layers/scan_kernels.h"

#include "sim/base/integers.h"

namespace foreshard {
namespace {

constexpr std::int64_t kFp32 = 4;

class Scan {
 public:
  Scan(const KernelCounts& counts, const Operation& op, Pass pass, LayerPhaseProgram& phase)
      : phase_(phase), pass_(pass), gates_(op.outputs.size() > 1) {
    const ScanShape& shape = op.scan;
    const std::int64_t sequence = counts.options.sequence, batch = counts.options.batch;
    const std::int64_t tokens = checked_multiply(batch, sequence);
    const std::int64_t chunks = checked_multiply(batch, (sequence + shape.chunk - 1) / shape.chunk);
    const std::int64_t element = size_of(counts.options.compute);
    x_ = checked_multiply(tokens, shape.inner()) * element;
    shared_ = checked_multiply(tokens, shape.shared()) * element;
    convolved_ = checked_multiply(tokens, shape.convolved()) * element;
    steps_ = checked_multiply(tokens, shape.heads) * kFp32;
    states_ = checked_multiply(chunks, checked_multiply(shape.inner(), shape.state)) * kFp32;
    narrow_ = states_ / kFp32 * element;
    pairs_ = checked_multiply(checked_multiply(tokens, shape.chunk), shape.groups) * kFp32;
  }

  void convolve() { add(2 * convolved_, MemoryClass::kElementwise); }
  // What forward does, of which backward does all but the last again.
  void states() {
    add(3 * steps_);                       // sums of dt A along a chunk
    add(x_ + shared_ + steps_ + states_);  // the state that each chunk makes
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
  void add(std::int64_t bytes, MemoryClass memory_class = MemoryClass::kStrided) {
    add_memory_kernel(phase_, Function::kScan, pass_, bytes);
    phase_.kernels.back().memory_class = memory_class;
  }

  LayerPhaseProgram& phase_;
  const Pass pass_;
  const bool gates_;  // multiplies by silu(z), and keeps what it had before
  // Bytes: of x (as of z, of the result), of B or C, of all that is convolved, of dt in fp32, of
  // the states of all chunks in fp32 and in the compute dtype, of numbers for pairs of positions.
  std::int64_t x_ = 0, shared_ = 0, convolved_ = 0, steps_ = 0, states_ = 0, narrow_ = 0,
               pairs_ = 0;
};

}  // namespace

void add_scan_forward(const KernelCounts& counts, const Operation& op, LayerPhaseProgram& phase) {
  Scan scan(counts, op, Pass::kForward, phase);
  scan.convolve();
  scan.states();
  scan.scan();
}

void add_scan_backward(const KernelCounts& counts, const Operation& op, LayerPhaseProgram& phase) {
  Scan scan(counts, op, Pass::kBackward, phase);
  scan.convolve();
  scan.states();
  scan.backward();
  scan.convolve_backward();
}

}  // namespace foreshard
