// t = bytes/(f*BW) + t0 per class. Which rows stand for what PyTorch runs in a class:
//
// H100's are PyTorch 2.11's own kernels, timed one after the other (calibration/measure/
// torch_rows.py), beside what was published; A100's what was published.
//
//   elementwise    one kernel over contiguous tensors: sums, products, activations; residual add
//                  (vidur), fused SwiGLU (Liger). Left out: torch's SwiGLU rows (chunks of one
//                  tensor, several kernels) and vLLM's SiLU*mul and RMSNorm (serving kernels).
//   norm forward   torch's fused RMSNorm and LayerNorm on H100. A100 has Liger's only: times H100's
//                  torch over Liger.
//   norm backward  H100: torch's. A100: Liger's backward.
//   eager norm     Hugging Face's RMSNorm of several operations; the rows count the input and
//                  the result (with both gradients in backward), the event graph what each kernel
//                  reads and writes.
//   generated      Liger's forward, a Triton kernel as Inductor writes them and as fast: 65.7 and
//   norm           65.5 us, 35.2 and 34.4 us, 11.5 and 11.3 us side by side on H100
//                  (pytorch/pytorch#141916). B200: its own compiled ones.
//   loss           eager cross entropy (huggingface). The rows count 12 B per fp32 logit; the
//                  event graph counts every operand of log_softmax and nll_loss, 32 B, and so does
//                  the curve.
//   optimizer      fused AdamW and foreach products; A100: what H100 loses against elementwise
//   copy           FSDP2's copy-out and copy-in (torch.ops.fsdp); A100: likewise
//   strided        rotate_half and the products of rotary embeddings over transposed and broadcast
//                  tensors; A100: likewise
//   widening       casts of 16 bits to fp32, one element at a time; A100: likewise
//
// H200's that stream or look for strided elements are its own rows; its norms, and the classes of
// B200, are H100's with more bandwidth (give_bandwidth).
#include <fmt/format.h>

#include <algorithm>

#include "calibration/fit/least_squares.h"
#include "sim/base/lookup.h"
#include "tools/profiles/published_fit.h"

namespace foreshard {
namespace {

constexpr double kLossBytesOverCounted = 32.0 / 12.0;
// Bytes per element: of the rows, and as tests/models/layers/module_kernels_test.cpp counts the graph's.
constexpr double kEagerForwardOverCounted = 36.0 / 4;
constexpr double kEagerBackwardOverCounted = 62.0 / 6;
// Smaller tensors are partly served by the L2 cache (40 MB on A100, 50 MB on H100).
constexpr double kBeyondCache = 64e6;
// Of kernels one after the other on a stream: 2.4 to 2.6 us on A100 and H200.
constexpr double kBackToBack = 2.5e-6;  // s

// A compiled RMSNorm of 65,536 x 4,096 in fp16, read and written in 204 us.
constexpr double kB200Norm = 2.0 * 2 * 65536 * 4096 / 204e-6 / 8e12;
constexpr const char* kB200NormSource = "compiled RMSNorm on B200 (pytorch/pytorch#159682)";

using MemoryRows = std::vector<MemoryRow>;

MemoryRows pick(const MemoryRows& rows, std::string_view operation) {
  MemoryRows picked;
  for (const MemoryRow& row : rows)
    if (contains(row.operation, operation)) picked.push_back(row);
  return picked;
}

MemoryRows beyond_cache(MemoryRows rows) {
  std::erase_if(rows, [](const MemoryRow& row) { return row.bytes < kBeyondCache; });
  return rows;
}

FitError error_on(std::string what, const MemoryCurve& curve, const MemoryRows& rows, const Gpu& gpu) {
  return fit_error(
      std::move(what), rows, [&](const MemoryRow& row) { return memory_seconds(curve, row.bytes, gpu); });
}

MemoryRows joined(MemoryRows a, const MemoryRows& b) {
  append(a, b);
  return a;
}

MemoryRows elementwise_rows(const MemoryRows& rows) {
  MemoryRows all = joined(beyond_cache(pick(rows, "residual add")), pick(rows, "SwiGLU forward (liger)"));
  for (const char* operation : {"add (torch)", "multiply (torch)", "silu ", "gelu ", "tanh "})
    all = joined(std::move(all), beyond_cache(pick(rows, operation)));
  return all;
}

// As the event graph counts it.
MemoryRows eager_loss(const MemoryRows& rows) {
  MemoryRows result = pick(rows, "cross entropy fwd+bwd (huggingface)");
  for (MemoryRow& row : result) row.bytes *= kLossBytesOverCounted;
  return result;
}

MemoryRows eager_norm(const MemoryRows& rows, Pass pass) {
  const bool forward = pass == Pass::kForward;
  MemoryRows result = pick(rows, forward ? "RMSNorm forward (huggingface)" : "RMSNorm backward (huggingface)");
  for (MemoryRow& row : result) row.bytes *= forward ? kEagerForwardOverCounted : kEagerBackwardOverCounted;
  return result;
}

MemoryCurve scaled(MemoryCurve curve, double factor) {
  curve.fraction *= factor;
  return curve;
}

class Collector {
 public:
  explicit Collector(const Gpu& gpu) : gpu_(gpu) {}

  void add(MemoryClass which, MemoryCurve curve, Evidence evidence, std::string source, const MemoryRows& own = {}) {
    curve.evidence = evidence;
    curve.source = std::move(source);
    curve.fraction = rounded(curve.fraction);
    // What was timed by itself holds a launch that a stream of kernels hides.
    curve.timed_overhead = rounded(std::max(curve.overhead, curve.timed_overhead));
    curve.overhead = std::min(curve.timed_overhead, kBackToBack);
    static constexpr const char* kNames[] = {"elementwise", "norm forward", "norm backward", "eager norm forward",
        "eager norm backward", "generated norm", "loss", "optimizer", "copy", "strided", "widening"};
    CurveReport report = {.curve = fmt::format("memory-bound: {}", kNames[at(which)]),
        .rows = curve.source,
        .constants = fmt::format("f {:.3f}, t0 {:.1f} us", curve.fraction, curve.overhead * 1e6),
        .evidence = evidence};
    if (!own.empty()) report.errors.push_back(error_on("own rows", curve, own, gpu_));
    result_.reports.push_back(std::move(report));
    result_.curves[at(which)] = std::move(curve);
  }
  void out_of_sample(FitError error) {
    result_.log_biases.push_back(error.log_bias);
    compare(std::move(error));
  }
  // Another kernel for the same work: reported, but no spread of this one.
  void compare(FitError error) { result_.reports.back().errors.push_back(std::move(error)); }
  const MemoryCurve& curve(MemoryClass which) const { return result_.curves[at(which)]; }
  MemoryFits take() { return std::move(result_); }

 private:
  const Gpu& gpu_;
  MemoryFits result_;
};

void add_generated_norm(const MemoryRows& rows, const Gpu& gpu, Collector& out) {
  const MemoryRows liger = pick(rows, "RMSNorm forward (liger)");
  out.add(MemoryClass::kGeneratedNorm, fit_memory(liger, gpu), Evidence::kMeasured, "RMSNorm forward (liger)", liger);
}

struct StreamClass {
  MemoryClass which;
  std::vector<const char*> operations;
  const char* source;
};
const std::vector<StreamClass>& stream_classes() {
  static const std::vector<StreamClass> kClasses = {
      {MemoryClass::kOptimizer, {"AdamW (fused)", "foreach multiply (torch)"}, "fused AdamW and foreach products"},
      {MemoryClass::kCopy, {"all_gather copy-out (fsdp)", "reduce_scatter copy-in (fsdp)"}, "FSDP2's copies"},
      {MemoryClass::kStrided, {"rotate half (torch)", "multiply broadcast strided (torch)"},
          "rotate_half and products over transposed tensors"},
      {MemoryClass::kWidening, {"cast bf16 to fp32 (torch)"}, "casts of 16 bits to fp32"}};
  return kClasses;
}
MemoryRows rows_of(const StreamClass& stream, const MemoryRows& rows) {
  MemoryRows picked;
  for (const char* operation : stream.operations) picked = joined(std::move(picked), pick(rows, operation));
  return picked;
}

struct EagerClass {
  MemoryClass which;
  Pass pass;
  const char* rows;
};
constexpr EagerClass kEagerClasses[] = {
    {MemoryClass::kEagerNormForward, Pass::kForward, "RMSNorm forward (huggingface), 36 B a value"},
    {MemoryClass::kEagerNormBackward, Pass::kBackward, "RMSNorm backward (huggingface), 62 B a value"}};

void add_norms_and_loss(const MemoryRows& rows, const Gpu& gpu, Collector& out) {
  for (const EagerClass& eager : kEagerClasses) {
    const MemoryRows own = eager_norm(rows, eager.pass);
    out.add(eager.which, fit_memory(own, gpu), Evidence::kMeasured, eager.rows, own);
  }
  add_generated_norm(rows, gpu, out);
  const MemoryRows loss = eager_loss(rows);
  out.add(MemoryClass::kLoss, fit_memory(loss, gpu), Evidence::kMeasured,
      "cross entropy fwd+bwd (huggingface), 32 B per logit", loss);
}

void add_elementwise(const MemoryRows& rows, const Gpu& gpu, Collector& out) {
  const MemoryRows own = elementwise_rows(rows);
  out.add(MemoryClass::kElementwise, fit_memory(own, gpu), Evidence::kMeasured,
      "residual add (vidur), SwiGLU forward (Liger), PyTorch's elementwise kernels", own);
  // Each operation from the others'.
  for (const char* operation : {"residual add", "SwiGLU forward (liger)"}) {
    const MemoryRows held = pick(own, operation);
    MemoryRows rest = own;
    std::erase_if(rest, [&](const MemoryRow& row) { return contains(row.operation, operation); });
    if (held.empty() || rest.empty()) continue;
    out.out_of_sample(error_on(fmt::format("left out: {}", operation), fit_memory(rest, gpu), held, gpu));
  }
  const MemoryRows other = beyond_cache(pick(rows, "SiLU*mul (vLLM kernel)"));
  if (!other.empty())
    out.compare(error_on("another kernel: SiLU*mul (vLLM)", out.curve(MemoryClass::kElementwise), other, gpu));
}

MemoryFits fit_h100(const std::vector<Chip>& chips) {
  const Gpu& gpu = chip_named("h100", chips).gpu;
  const MemoryRows rows = memory_rows("h100");
  Collector out(gpu);
  add_elementwise(rows, gpu, out);
  const MemoryRows forward = joined(pick(rows, "RMSNorm forward (torch)"), pick(rows, "LayerNorm forward (torch)"));
  out.add(MemoryClass::kNormForward, fit_memory(forward, gpu), Evidence::kMeasured,
      "RMSNorm and LayerNorm forward (torch)", forward);
  out.compare(error_on("another kernel: RMSNorm forward (liger)", out.curve(MemoryClass::kNormForward),
      pick(rows, "RMSNorm forward (liger)"), gpu));
  const MemoryRows backward = pick(rows, "Norm backward alone (torch)");
  out.add(MemoryClass::kNormBackward, fit_memory(backward, gpu), Evidence::kMeasured,
      "RMSNorm and LayerNorm backward (torch)", backward);
  add_norms_and_loss(rows, gpu, out);
  for (const StreamClass& stream : stream_classes()) {
    const MemoryRows own = rows_of(stream, rows);
    out.add(stream.which, fit_memory(own, gpu), Evidence::kMeasured, stream.source, own);
  }
  return out.take();
}

MemoryFits fit_a100(const std::vector<Chip>& chips) {
  const Gpu& gpu = chip_named("a100", chips).gpu;
  const Gpu& h100 = chip_named("h100", chips).gpu;
  const MemoryRows rows = memory_rows("a100");
  const MemoryRows h = memory_rows("h100");
  Collector out(gpu);
  add_elementwise(rows, gpu, out);
  const double torch_over_liger = fit_memory(pick(h, "RMSNorm forward (torch)"), h100).fraction /
                                  fit_memory(pick(h, "RMSNorm forward (liger)"), h100).fraction;
  const MemoryRows forward = pick(rows, "RMSNorm forward (liger)");
  out.add(MemoryClass::kNormForward, scaled(fit_memory(forward, gpu), torch_over_liger), Evidence::kExtrapolated,
      "RMSNorm forward (liger) times H100's torch over Liger");
  const MemoryRows backward = pick(rows, "RMSNorm backward (liger)");
  out.add(
      MemoryClass::kNormBackward, fit_memory(backward, gpu), Evidence::kMeasured, "RMSNorm backward (liger)", backward);
  add_norms_and_loss(rows, gpu, out);
  for (const StreamClass& stream : stream_classes()) {
    const double share = fit_memory(rows_of(stream, h), h100).fraction / fit_memory(elementwise_rows(h), h100).fraction;
    out.add(stream.which, scaled(out.curve(MemoryClass::kElementwise), share), Evidence::kExtrapolated,
        fmt::format("{} on H100, times A100's elementwise kernels over H100's", stream.source));
  }
  return out.take();
}

// Norms keep what steps showed: rows of one kernel by itself put a part of theirs into the launch.
void use_own_rows_of_h200(MemoryFits& fits, const Gpu& gpu) {
  const MemoryRows rows = memory_rows("h200");
  Collector out(gpu);
  std::vector<MemoryClass> classes;
  const auto add = [&](MemoryClass which, const MemoryRows& own, const char* source) {
    out.add(which, fit_memory(own, gpu), Evidence::kMeasured, source, own);
    classes.push_back(which);
  };
  MemoryRows streams = elementwise_rows(rows);
  // With this bandwidth its error function takes longer than its bytes (captured_kernel.cpp).
  std::erase_if(streams, [](const MemoryRow& row) { return row.operation.starts_with("gelu"); });
  add(MemoryClass::kElementwise, streams, "PyTorch's elementwise kernels, timed (torch_rows.py)");
  add(MemoryClass::kLoss, eager_loss(rows), "cross entropy fwd+bwd (huggingface), 32 B per logit");
  for (const StreamClass& stream : stream_classes()) add(stream.which, rows_of(stream, rows), stream.source);
  const MemoryFits own = out.take();
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const auto at = static_cast<std::size_t>(classes[i]);
    fits.curves[at] = own.curves[at];
    fits.reports[at] = own.reports[i];
  }
}

}

// What a byte costs beside the memory's time is the multiprocessors'.
//
// More bandwidth for each cycle: seconds on an H200 over those on an H100 of what five codes launched on both
// (reports/validation, 20261123T092043Z and 103019Z), where memory alone says 0.70; a norm by operations has the mean
// of its kernels. B200's compiled norm streams (pytorch/pytorch#159682: 6.4 TB/s), so a compiler's is the memory's.
// Less: a byte of a reduction takes the memory's time, as one of an elementwise kernel does, and
// the multiprocessors' for what it is slower. An A10G (600 GB/s) runs a Triton RMSNorm at 0.91 of
// its memory's rate by the profiler and at 0.72, launch included (resume-site-4js.pages.dev,
// kernel-normalization-fusion, 2026-05); this says 0.85, where A100's Triton norms reach 0.74.
void give_bandwidth(std::array<MemoryCurve, kMemoryClasses>& curves, const Gpu& own, const Gpu& measured) {
  constexpr double kMemory = 3.35 / 4.8;
  constexpr std::array<double, kMemoryClasses> kOfH200 = {
      0.734, 0.964, 0.913, 0.878, 0.810, kMemory, 0.733, 0.764, 0.791, 0.980, 0.953};
  const auto per_cycle = [](const Gpu& gpu) {
    return gpu.memory_bandwidth.value() / (as_double(gpu.multiprocessors) * gpu.clock);
  };
  const double ratio = per_cycle(own) / per_cycle(measured);
  if (ratio == 1) return;
  const double streams = curves[at(MemoryClass::kElementwise)].fraction;
  for (std::size_t i = 0; i < kMemoryClasses; ++i) {
    MemoryCurve& curve = curves[i];
    const double memory = (1 - kOfH200[i]) / (1 - kMemory);
    if (ratio > 1) curve.fraction = rounded(curve.fraction / (memory + (1 - memory) * ratio));
    else if (curve.fraction < streams)
      curve.fraction = rounded(1 / (1 / streams + ratio * (1 / curve.fraction - 1 / streams)));
    else continue;
    curve.source = fmt::format("with {:.2f} of the bandwidth for each cycle: {}", ratio, curve.source);
  }
}

MemoryFits fit_memory_of(std::string_view chip, const std::vector<Chip>& chips) {
  if (chip == "a100") return fit_a100(chips);
  MemoryFits fits = fit_h100(chips);
  if (chip == "h100") return fits;
  give_bandwidth(fits.curves, chip_named(chip, chips).gpu, chip_named("h100", chips).gpu);
  for (std::size_t i = 0; i < kMemoryClasses; ++i) {
    MemoryCurve& curve = fits.curves[i];
    curve.evidence = weaker(curve.evidence, Evidence::kExtrapolated);
    curve.source = fmt::format("H100's ({})", curve.source);
    if (chip == "b200" && i == at(MemoryClass::kGeneratedNorm)) {
      curve.fraction = rounded(kB200Norm);
      curve.source = kB200NormSource;
    }
    fits.reports[i].evidence = curve.evidence;
    fits.reports[i].rows = curve.source;
    fits.reports[i].errors.clear();
  }
  if (chip == "h200") use_own_rows_of_h200(fits, chip_named(chip, chips).gpu);
  return fits;
}

}
