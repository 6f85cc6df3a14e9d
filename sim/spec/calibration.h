// What the hardware really does: coefficients of cost curves, each with its evidence, interval and source.
//
// Every curve is fitted to published or own micro-measurements, never to whole training steps (validation would be
// circular). Forms and their leave-one-source-out errors: reports/calibration.md; the fits live in calibration/fit_*.
//
//   GEMM        compute = 2mnk / (efficiency*sustained*clock*P) * (1 + m_half/m) * (1 + n_half/n)
//                         * (1 + k_half/k) * (1 + tail*SM/(mn/128^2)) * (1 + wave*(W - 1)) * A
//               t = (compute^blend + memory^blend)^(1/blend) + overhead, the larger of the two
//               where blend is 0;  memory = bytes / (hbm_fraction*BW)
//               W: whole waves of 128 x 256 tiles (AMD: 256 x 256) over the waves that are
//               needed, at most 4
//               A = 1 + misaligned[h - 1], h the halvings below 16 bytes to which the narrowest
//               contiguous row is a multiple of: 8, 4 or 2 bytes
//               clock = (power limit of the Gpu / that of the card that was
//               measured)^power_exponent A single product on a cool chip: sustained is 1, but
//               compute takes 1 + slowdown*log2(2mnk/1e12) times as long above 1 TFLOP
//   attention   t = F / (efficiency*P) * (1 + s_half/S) * (1 + c_half/C) + overhead;  F =
//   2*B*h*S^2*d forward when causal,
//               2.5 times that backward; C = B*h*ceil(S/128)/SM; full_efficiency and full_s_half
//               where every query sees every key, F twice as large
//   memory      t = bytes / (fraction*BW) + overhead; timed_overhead instead where a kernel is
//               timed by itself and its launch is part of it
//   collective  t = latency + per_hop*hops + factor*S/busbw;  hops n-1, for all-reduce (a ring
//   twice round) 2(n-1);
//                busbw = min(link_fraction*link, network_fraction*network)
//               * per_doubling^log2(nodes/2);  factor (n-1)/n for all-gather and reduce-scatter,
//               2(n-1)/n for all-reduce; S bytes of the whole unsharded buffer, as nccl-tests
//               counts
// P and BW are data-sheet values of the Gpu; times in seconds.
//
// Of a machine that was measured itself (foreshard calibrate) P and BW are the best measured rates,
// and MeasuredPoints hold what was measured: exact where a shape or size was measured, an
// interpolation between, the curves above where nothing is near (sim/cost/measured.h says how).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/letters.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

enum class Evidence : std::uint8_t { kMeasured, kInterpolated, kExtrapolated, kDatasheet, kAssumed };
constexpr const char* to_string(Evidence evidence) {
  return word_at(evidence, {"measured", "interpolated", "extrapolated", "datasheet", "assumed"}, "assumed");
}
// The weaker of two: a sum is no better founded than its weakest term.
Evidence weaker(Evidence a, Evidence b);

struct GemmCurve {
  double efficiency = 0;          // of the data-sheet peak, large shapes, burst
  double sustained = 1;           // rate in a training step over burst rate (power-limited clocks)
  double k_half = 0;              // inner width at which half the ramp is lost
  double tail = 0;                // weight of tiles too few for the chip
  double hbm_fraction = 0;        // of bandwidth, for thin products
  double overhead = 0;            // s
  double m_half = 0, n_half = 0;  // as k_half
  double wave = 0;                // weight of the last, partly filled wave
  double blend = 0;               // exponent by which compute and memory add up; 0: they overlap wholly
  double slowdown = 0;            // of one long product, per doubling beyond 1 TFLOP
  // Time added, over the time of an aligned product, where the narrowest contiguous row is a
  // multiple of 8, 4 or 2 bytes only.
  std::array<double, 3> misaligned{};
  Evidence evidence = Evidence::kAssumed;
  std::string source;  // measurement files and their rows
};

// Products run as fast as the power limit allows: at the greatest clock (1: the top one) at which idle + joules/seconds
// * clock^energy_exponent is within it. Their rate follows clock^rate_exponent, for memory does not slow down with it.
struct HeatCurve {
  double idle = 0;             // W, of what does not follow the clock; 0: no such curve
  double joules_per_flop = 0;  // of products and attention in 16 bits, at the top clock
  double joules_per_byte = 0;  // that kernels move
  double energy_exponent = 0;
  double rate_exponent = 0;
  double cool = 1;  // seconds of a product at the top clock over those of its curve
  Evidence evidence = Evidence::kAssumed;
  std::string source;
};

enum class Pass : std::uint8_t { kForward, kBackward };

struct AttentionCurve {
  std::string kernel;  // fa1, fa2, fa3, triton, cudnn, sdpa_efficient, math, aotriton
  std::int64_t head_dim = 0;
  Pass pass = Pass::kForward;
  double efficiency = 0;
  double s_half = 0;
  double c_half = 0;
  double overhead = 0;         // s
  double full_efficiency = 0;  // without a causal mask; 0: as with it
  double full_s_half = 0;
  Evidence evidence = Evidence::kAssumed;
  std::string source;
};

// Classes of memory-bound work that reach different fractions of bandwidth.
enum class MemoryClass : std::uint8_t {
  kElementwise,
  kNormForward,
  kNormBackward,
  kEagerNormForward,  // the kernels of a norm written as several operations, by what they move
  kEagerNormBackward,
  kGeneratedNorm,  // of a compiler, both passes
  kLoss,
  kOptimizer,
  kCopy,
  kStrided,  // an elementwise kernel over transposed, broadcast or half tensors
  kWidening  // a cast to a wider type, one element at a time
};
inline constexpr std::size_t kMemoryClasses = 11;

struct MemoryCurve {
  double fraction = 0;        // of data-sheet bandwidth
  double overhead = 0;        // s, of one kernel among many on a stream
  double timed_overhead = 0;  // s, of one kernel timed by itself; 0: not known
  Evidence evidence = Evidence::kAssumed;
  std::string source;
};

// One fabric a communicator can live on: inside a node, or across nodes.
struct CollectiveCurve {
  double latency = 0;           // s
  double per_hop = 0;           // s
  double link_fraction = 0;     // reachable bus bandwidth over the GPU link rate (NVLink, one direction)
  double network_fraction = 0;  // over the group's share of the NICs; unused inside a node
  double per_doubling = 1;      // factor on the bus bandwidth for every doubling of nodes beyond two
  Evidence evidence = Evidence::kAssumed;
  std::string source;
};

// Fabrics that behave alike.
enum class FabricKind : std::uint8_t {
  kNvlink,      // inside one NVLink domain, or AMD's links
  kPcie,        // inside a node without NVLink
  kRdma,        // InfiniBand, RoCE
  kEfa,         // AWS
  kSlingshot,   // libfabric over CXI
  kTcpOffload,  // GPUDirect-TCPX and its successor
  kTcp          // sockets
};
inline constexpr std::size_t kFabricKinds = 7;
constexpr const char* to_string(FabricKind kind) {
  return word_at(kind, {"nvlink", "pcie", "rdma", "efa", "slingshot", "tcp_offload", "tcp"});
}

// Corrections of NCCL's own cost table on one kind of fabric; form and use: sim/cost/collective.h.
// All 1, with nothing fixed, is NCCL's table as it is.
struct FabricCurve {
  FabricKind kind = FabricKind::kNvlink;
  double fixed = 0;                     // s
  std::array<double, 3> hops{1, 1, 1};  // on NCCL's latency, by protocol: LL, LL128, Simple
  std::array<double, 3> ring{1, 1, 1};  // reached share of NCCL's bandwidth, by protocol
  double nvls = 1;                      // the same of NVLS and its tree
  double tree = 1;
  double own = 0;           // steps a ring takes for each rank's own piece
  double pipeline = 0;      // weight of the pipeline's filling
  double per_doubling = 0;  // longer transfer for every doubling of nodes beyond two
  Evidence evidence = Evidence::kAssumed;
  std::string source;
};

// What the host of an eager Python step calls, by what it is called for; counted by sim/cost/host_calls.h. Their
// seconds are fitted to steps whose kernels take no time (calibration/evidence/host_calls.json).
enum class HostCall : std::uint8_t {
  kPass,              // once per micro-batch: masks, positions, the loss, the engine's start
  kForwardProduct,    // a module around a matrix product, its views and its autograd node
  kForwardAttention,  // an attention kernel, with the views and masks around it
  kForwardOperation,  // any other operation
  kBackwardProduct,   // the same of backward: one kernel each
  kBackwardAttention,
  kBackwardOperation,
  kRecomputed,  // on top, per layer that runs a second time under checkpointing
  kCompiled,    // instead of the above: a kernel of a compiled block
  kHook,        // of the sharding runtime, around a unit's forward or backward
  kUnitRow,     // a copy of a whole unit into or out of a collective's buffer
  kUnitTensor,  // and per parameter of it
  kReducedRow,  // the copy into a reduction's buffer, with what awaits its end
  kCollective,
  kFunctionalCollective,  // of a layer: a call of torch.distributed._functional_collectives
  kRedistribution,        // of a layer: a DTensor changes its placement by a collective
  kBucketRow,             // DDP's reducer, in C++: a bucket's all-reduce
  kBucketTensor,          // and per gradient in it
  kClippedTensor,         // norm and scaling, per parameter
  kClippedShard,          // on top where it is a DTensor
  kUpdatedTensor,         // optimizer.step and zero_grad, per parameter
  kUpdatedShard,          // on top where it is a DTensor
  kUpdatedOperation,      // an operation of a for-each optimizer, per parameter
  kStep                   // once a step
};
inline constexpr std::size_t kHostCalls = 24;
constexpr const char* to_string(HostCall call) {
  return word_at(call, "pass", "forward_product", "forward_attention", "forward_operation", "backward_product",
      "backward_attention", "backward_operation", "recomputed", "compiled", "hook", "unit_row", "unit_tensor",
      "reduced_row", "collective", "functional_collective", "redistribution", "bucket_row", "bucket_tensor",
      "clipped_tensor", "clipped_shard", "updated_tensor", "updated_shard", "updated_operation", "step");
}

struct HostCurve {
  // Rows of the engine, and of a machine that was measured itself.
  double per_hook = 0;        // s of host work before enqueuing, per hook call
  double per_launch = 0;      // s per kernel launch
  double per_row = 0;         // s before every event, and what a collective takes on top: only where the
  double per_collective = 0;  // machine was measured itself
  Evidence evidence = Evidence::kAssumed;
  std::string source;
  // Rows that Python issues: s of each call on the processor that the calls were fitted on, how
  // many times as long this machine's takes, and what the driver takes per launch.
  std::array<double, kHostCalls> calls{};
  double processor = 1;
  double per_driver_launch = 0;
  Evidence processor_evidence = Evidence::kAssumed;
  std::string processor_source;
};

// Slowdown factors (>= 1) while compute and collectives run at the same time. Where `memory` is above zero the factor
// on compute follows from what the collective's kernel occupies (slowdown_of in sim/cost/collective.h); `compute` is
// then that of the collective it was set by, on the links of one node.
struct ContentionCurve {
  double compute = 1;
  double communication = 1;
  double memory = 0;  // how much of the bandwidth a collective takes off memory matters to products
  Evidence evidence = Evidence::kAssumed;
  std::string source;
};

// Latent factors of one machine: a whole class is off together. log_sd is the standard deviation of the logarithm.
enum class Factor : std::uint8_t { kGemm, kAttention, kMemoryBound, kIntraNode, kInterNode, kHost, kOverlap };
inline constexpr std::size_t kFactors = 7;
struct FactorSpread {
  double log_sd = 0;
  std::string source;
};

// What is known of the factors beyond their spreads (calibration/training_evidence.h). Their logarithms are center +
// mixing * z with z independent standard normal; mixing is lower triangular.
struct FactorKnowledge {
  std::array<double, kFactors> center{};
  std::array<std::array<double, kFactors>, kFactors> mixing{};
  double plan_log_sd = 0;  // of what no factor explains: the plan's own shape
  // Of what the training code does besides: of a step at half of the peak or more, and how much its
  // logarithm grows from there to a step that does next to nothing at the peak.
  double code_log_sd = 0;
  double code_slope = 0;
  std::string informed_by;  // families of training steps: "LF, ME22"
};

// One measured operation; n, k and m as Kernel has them.
struct GemmPoint {
  Pass pass = Pass::kForward;
  bool fp32 = true;
  std::int64_t m = 0, n = 0, k = 0;
  double seconds = 0;
  bool operator==(const GemmPoint&) const = default;
};

struct AttentionPoint {
  Pass pass = Pass::kForward;
  bool fp32 = true;
  bool causal = true;
  std::int64_t batch = 0, sequence = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double seconds = 0;
  std::string kernel = {};  // AttentionCurve::kernel, of which alone it says something; "": of any
  bool operator==(const AttentionPoint&) const = default;
};

struct SizePoint {
  double bytes = 0;
  double seconds = 0;
  bool operator==(const SizePoint&) const = default;
};

// Points by ascending bytes, seconds never falling.
struct FunctionPoints {
  Function function = Function::kCopy;
  Pass pass = Pass::kForward;
  bool fp32 = true;
  std::vector<SizePoint> points;  // bytes read plus written
  bool operator==(const FunctionPoints&) const = default;
};

enum class CollectiveOperation : std::uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllToAll,
  kSendRecv
};
inline constexpr std::size_t kCollectiveOperations = 7;
constexpr const char* to_string(CollectiveOperation operation) {
  return word_at(
      operation, {"all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all", "send_recv"});
}

struct CollectivePoints {
  CollectiveOperation operation = CollectiveOperation::kAllGather;
  ReductionOrder order = ReductionOrder::kMicrobatch;
  std::int64_t group = 2;
  std::vector<SizePoint> points;  // bytes of the whole unsharded buffer
  bool operator==(const CollectivePoints&) const = default;
};

// A sweep over sizes on one fabric (nccl-tests), by ascending bytes of the whole unsharded buffer.
struct CollectiveSweep {
  CollectiveOperation operation = CollectiveOperation::kAllGather;
  std::int64_t ranks = 2;
  std::int64_t nodes = 1;
  std::vector<SizePoint> points;
  std::string source;
  bool operator==(const CollectiveSweep&) const = default;
};

// What was measured on one machine. Empty in the shipped profiles.
struct MeasuredPoints {
  std::vector<GemmPoint> gemm;  // each shape, pass and dtype once
  std::vector<AttentionPoint> attention;
  std::vector<FunctionPoints> functions;
  std::vector<CollectivePoints> collectives;
  // Of an exact point: weaker where the points are of another number of ranks.
  Evidence evidence = Evidence::kMeasured;
  bool operator==(const MeasuredPoints&) const = default;
};

struct Calibration {
  std::string gpu;  // key of the machine catalogue
  std::string id;   // name of the profile
  GemmCurve gemm_bf16;
  GemmCurve gemm_fp32;  // TF32 tensor cores off: PyTorch's default for fp32 products
  GemmCurve gemm_fp8;   // of peak_fp8, without quantisation; efficiency 0: no such units
  // Power limit of the cards that were measured, W (0: not known), and the exponent by which the
  // sustained rate of products follows a limit.
  double power_limit = 0;
  double power_exponent = 0;
  HeatCurve heat;  // in place of the exponent; of chips whose clocks were seen in whole steps
  std::vector<AttentionCurve> attention;
  std::string sdpa_kernel;     // the attention kernel PyTorch's flash backend runs on this GPU
  std::string sdpa_preferred;  // what PyTorch picks by itself from 2.11 on, no backend being named
  std::string sdpa_source;
  std::array<MemoryCurve, kMemoryClasses> memory;
  CollectiveCurve intra_node;  // where there are no `fabrics`: CPU ranks over Gloo
  CollectiveCurve inter_node;
  std::vector<FabricCurve> fabrics;     // each kind once, or none
  std::vector<CollectiveSweep> sweeps;  // of the cluster itself
  HostCurve host;
  ContentionCurve contention;
  std::array<FactorSpread, kFactors> spread;
  std::optional<FactorKnowledge> knowledge;  // none: factors are 1, spread as above
  MeasuredPoints measured;

  const MemoryCurve& memory_curve(MemoryClass c) const { return memory[at(c)]; }
  const FactorSpread& factor(Factor f) const { return spread[at(f)]; }
};

}
