// The host issues a row every 10 us, far ahead of the GPU as FSDP2's host is; kernels lie where the
// timeline has their rows, two to a row where it is long enough.
#include "tests/support/cuda_trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace foreshard {
namespace {

using nlohmann::json;

constexpr int kForwardThread = 100, kAutogradThread = 101;
constexpr std::int64_t kTick = 10'000;  // ns of the host per row

class Writer {
 public:
  Writer(const Forecast& forecast, const Timeline& timeline, const CudaTraceOptions& options)
      : forecast_(forecast), graph_(forecast.graph), timeline_(timeline), options_(options) {}

  std::string write() {
    for (std::int64_t s = 0; s <= options_.steps; ++s) step(s);
    const std::int64_t world = forecast_.plan.mesh.world();
    json document = {{"schemaVersion", 1},
        {"deviceProperties", {{{"id", 0}, {"name", options_.device}, {"totalGlobalMem", 84942979072}}}},
        {"distributedInfo", {{"backend", "nccl"}, {"rank", options_.rank}, {"world_size", world}, {"pg_count", 1},
                                {"pg_config", {{{"pg_name", "0"}, {"pg_desc", "default_pg"}, {"pg_size", world}}}}}},
        {"displayTimeUnit", "ms"}, {"baseTimeNanoseconds", options_.base_nanoseconds}, {"traceEvents", events_}};
    if (options_.shapes) document["record_shapes"] = 1;
    return document.dump();
  }

 private:
  static double microseconds(std::int64_t ns) { return static_cast<double>(ns) / 1000; }

  json& event(
      const char* category, const std::string& name, std::int64_t thread, std::int64_t begin, std::int64_t duration) {
    events_.push_back({{"ph", "X"}, {"cat", category}, {"name", name}, {"pid", 7}, {"tid", thread},
        {"ts", microseconds(begin)}, {"dur", microseconds(duration)}, {"args", {{"External id", ++external_}}}});
    return events_.back();
  }
  void range(const std::string& label, int unit, std::int64_t begin, std::int64_t duration) {
    const std::string module = unit < 0 ? "" : module_of(graph_.units[static_cast<std::size_t>(unit)].name);
    event("user_annotation", module.empty() ? label : label + " (" + module + ")", thread_, begin, duration);
  }

  // One kernel of `row`, launched at `host`.
  void kernel(const std::string& name, EventId row, std::int64_t host, std::int64_t begin, std::int64_t end) {
    const auto i = static_cast<std::size_t>(row);
    const std::int64_t stream = 7 + 13 * static_cast<std::int64_t>(graph_.rows[i].stream);
    ++correlation_;
    event("cuda_runtime", "cudaLaunchKernel", thread_, host, 200)["args"]["correlation"] = correlation_;
    json& k = event("kernel", name, stream, begin, end - begin);
    k["pid"] = 0;
    k["args"]["correlation"] = correlation_;
    k["args"]["stream"] = stream;
    k["args"]["device"] = 0;
    const EventKind kind = graph_.rows[i].kind;
    if (is_collective(kind) && options_.named_collectives) k["args"].update(message(i));
  }

  static const char* scalar_type(DType dtype) {
    return dtype == DType::kBf16 ? "BFloat16" : dtype == DType::kFp16 ? "Half" : "Float";
  }

  json message(std::size_t row) const {
    const EventKind kind = graph_.rows[row].kind;
    const Work& work = graph_.works[graph_.rows[row].work];
    const GroupShape& group = graph_.communicators[work.communicator].group;
    const bool of_unit = graph_.details[row].unit >= 0;
    const DType dtype = kind == EventKind::kAllGather ? forecast_.plan.param_dtype
                        : of_unit                     ? forecast_.plan.reduce_dtype
                                                      : DType::kFp32;
    const std::int64_t whole = work.bytes.count() / size_of(dtype);
    const std::int64_t part = kind == EventKind::kAllReduce ? whole : whole / group.size;
    const bool gathers = kind == EventKind::kAllGather;
    std::string ranks;
    for (std::int64_t r = 0; r < group.size; ++r) {
      if (r == 30) {
        ranks += ", ..., " + std::to_string((group.size - 1) * group.stride);
        break;
      }
      ranks += (r > 0 ? ", " : "") + std::to_string(r * group.stride);
    }
    return {{"Collective name", gathers                             ? "_allgather_base"
                                : kind == EventKind::kReduceScatter ? "_reduce_scatter_base"
                                                                    : "allreduce"},
        {"dtype", scalar_type(dtype)}, {"In msg nelems", gathers ? part : whole},
        {"Out msg nelems", gathers ? whole : part}, {"In split size", "[]"}, {"Out split size", "[]"},
        {"Group size", group.size}, {"Process Group Name", "1"}, {"Process Group Description", "mesh"},
        {"Process Group Ranks", "[" + ranks + "]"}};
  }

  // --- record_shapes=True ---

  json& operation(const char* name, std::int64_t begin, std::int64_t duration, const json& shapes) {
    json& op = event("cpu_op", name, thread_, begin, duration);
    json types = json::array();
    for (const json& shape : shapes) {
      types.push_back(!shape.empty() && shape[0].is_array() ? "TensorList" : "c10::BFloat16");
    }
    op["args"]["Input Dims"] = shapes;
    op["args"]["Input type"] = types;
    return op;
  }

  // Of the tables and of attention, which the kernels of the graph do not have.
  void shapes_of_layer(std::size_t row, std::int64_t host) {
    const std::int32_t l = graph_.details[row].layer;
    if (l < 0) return;
    const ModelSpec& model = forecast_.model;
    const auto kind = model.order[static_cast<std::size_t>(l)].kind;
    const LayerSpec& layer = model.kinds[static_cast<std::size_t>(kind)];
    if (layer.role != LayerRole::kEmbedding) return;
    const Batch& batch = forecast_.plan.batch;
    for (const ParameterSpec& parameter : layer.parameters) {
      if (parameter.shape.size() != 2) continue;
      operation("aten::embedding", host, 100, {parameter.shape, {batch.micro_batch, batch.sequence}, json::array()});
      host += 120;
    }
  }

  // Gradients of the unit's parameters, and what they are packed into.
  void packing(std::size_t row, std::int64_t host) {
    const std::int32_t unit = graph_.details[row].unit;
    const ModelSpec& model = forecast_.model;
    json gradients = json::array();
    std::set<std::int32_t> layers;
    for (std::size_t i = 0; i < graph_.rows.size(); ++i) {
      const RowDetail& detail = graph_.details[i];
      if (detail.unit == unit && detail.layer >= 0) layers.insert(detail.layer);
    }
    for (const std::int32_t l : layers) {
      const auto kind = model.order[static_cast<std::size_t>(l)].kind;
      for (const auto& parameter : model.kinds[static_cast<std::size_t>(kind)].parameters) {
        if (!parameter.tied) gradients.push_back(parameter.shape);
      }
    }
    if (gradients.empty()) return;
    operation("fsdp::chunk_cat", host, 100, {gradients, json::array(), json::array(), {forecast_.plan.mesh.shard, 1}});
  }

  // An operator and a kernel for each kernel of the graph's row.
  void kernels(EventId row, std::int64_t host, std::int64_t begin, std::int64_t end) {
    const auto i = static_cast<std::size_t>(row);
    const Work& work = graph_.works[graph_.rows[i].work];
    const std::int64_t count = std::max<std::int64_t>(work.kernels_end - work.kernels_begin, 1);
    const std::int64_t room = 2400 / count;  // ns of the host for each
    for (std::int64_t k = 0; k < count; ++k) {
      const Kernel kernel_of = work.kernels_begin < work.kernels_end
                                   ? graph_.kernels[work.kernels_begin + static_cast<std::size_t>(k)]
                                   : Kernel();
      const std::int64_t at = host + 100 + k * room;
      const bool backward = kernel_of.pass == Pass::kBackward;
      const Batch& batch = forecast_.plan.batch;
      if (kernel_of.kind == KernelKind::kGemm) {
        operation("aten::mm", at, room - 10, {{kernel_of.m, kernel_of.k}, {kernel_of.k, kernel_of.n}});
      } else if (kernel_of.kind == KernelKind::kAttention && !backward) {
        const json heads = {batch.micro_batch, kernel_of.heads, batch.sequence, kernel_of.k};
        operation("aten::_scaled_dot_product_flash_attention", at, room - 10, {heads, heads, heads});
      }
      kernel("void at::native::vectorized_elementwise_kernel<4, bf16>", row, at + 1, begin + (end - begin) * k / count,
          begin + (end - begin) * (k + 1) / count);
    }
  }

  static bool is_model(EventKind kind) {
    return kind == EventKind::kForward || kind == EventKind::kRecompute || kind == EventKind::kBackward;
  }

  // The operators of a row around its launches.
  void work(EventId row, std::int64_t host, std::int64_t offset) {
    const auto i = static_cast<std::size_t>(row);
    const Span& span = timeline_.spans[i];
    const std::int64_t begin = offset + span.start.nanoseconds();
    const std::int64_t end = offset + span.end.nanoseconds();
    const std::int64_t middle = (begin + end) / 2;
    std::string name = "void at::native::elementwise_kernel<128, 4>";
    std::string op = "aten::copy_";
    switch (graph_.rows[i].kind) {
      case EventKind::kAllGather:
        name = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
        op = "c10d::_allgather_base_";
        break;
      case EventKind::kReduceScatter:
        name = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
        op = "c10d::_reduce_scatter_base_";
        break;
      case EventKind::kAllReduce:
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
        op = "c10d::allreduce_";
        break;
      case EventKind::kGradNorm: op = "aten::_foreach_norm"; break;
      case EventKind::kGradScale: op = "aten::_foreach_mul_"; break;
      case EventKind::kForward:
      case EventKind::kBackward:
      case EventKind::kRecompute: op = options_.shapes ? "aten::linear" : "aten::mm"; break;
      default: break;
    }
    if (is_collective(graph_.rows[i].kind)) {
      event("cpu_op", op, thread_, host, 1500);
      kernel(name, row, host + 500, begin, end);
      return;
    }
    const bool in_autograd =
        graph_.rows[i].kind == EventKind::kBackward || graph_.rows[i].kind == EventKind::kRecompute;
    if (in_autograd) {
      for (const char* wrapper : {"autograd::engine::evaluate_function: MmBackward0", "MmBackward0"}) {
        json& node = event("cpu_op", wrapper, thread_, host, 3500);
        node["args"]["Sequence number"] = 40;
        node["args"]["Fwd thread id"] = 1;
      }
    }
    json& operation = event("cpu_op", op, thread_, host + 100, 3000);
    if (graph_.rows[i].kind == EventKind::kForward || graph_.rows[i].kind == EventKind::kRecompute) {
      operation["args"]["Sequence number"] = 41;
      operation["args"]["Fwd thread id"] = 0;
    }
    if (options_.shapes && graph_.rows[i].kind == EventKind::kForward) shapes_of_layer(i, host);
    if (options_.shapes && graph_.rows[i].kind == EventKind::kReduceScatterCopyIn) packing(i, host + 10);
    if (options_.shapes && is_model(graph_.rows[i].kind)) return kernels(row, host, begin, end);
    kernel(name, row, host + 500, begin, middle);
    kernel(name, row, host + 1500, middle, end);
  }

  void step(std::int64_t number) {
    // The step before the first has the same rows one period earlier.
    const std::int64_t period = timeline_.period.nanoseconds();
    const std::int64_t offset = 1'000'000'000 + number * period;
    const auto rows = static_cast<std::int64_t>(graph_.rows.size());
    // The host's steps do not overlap, wherever the GPU is.
    const std::int64_t host = 500'000 + number * (rows + 20) * kTick;
    thread_ = kForwardThread;
    event("user_annotation", "ProfilerStep#" + std::to_string(options_.first_step - 1 + number), kForwardThread,
        host - 2 * kTick, (rows + 18) * kTick);
    std::int32_t microbatch = -1;
    bool callback = false;
    std::set<int> open, opened_backward;
    bool backward = false;
    std::int64_t optimizer = 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const Row& row = graph_.rows[at];
      const RowDetail& detail = graph_.details[at];
      const std::int64_t now = host + i * kTick;
      const auto id = static_cast<EventId>(i);
      const bool of_update = row.kind == EventKind::kGradNorm || row.kind == EventKind::kGradScale ||
                             row.kind == EventKind::kOptimizer || detail.unit < 0;
      if (row.kind != EventKind::kLoss && of_update && !callback) {
        thread_ = kAutogradThread;
        range("FSDP::root_post_backward_callback", -1, now - 900, 100);
        callback = true;
        thread_ = kForwardThread;
      }
      if (detail.microbatch != microbatch && !of_update) {
        if (microbatch >= 0) range("FSDP::root_post_backward_callback", -1, now - 900, 100);
        thread_ = kForwardThread;
        microbatch = detail.microbatch;
        backward = false;
        open.clear();
        opened_backward.clear();
        range("FSDP::root_pre_forward", -1, now - 700, 100);
      }
      if (row.kind == EventKind::kLoss) backward = true;
      if (backward && !of_update) thread_ = kAutogradThread;
      switch (row.kind) {
        case EventKind::kAllGatherCopyIn: range("FSDP::all_gather", detail.unit, now, 2 * kTick - 1000); break;
        case EventKind::kAllGatherCopyOut:
          if (!backward && open.insert(detail.unit).second) {
            range("FSDP::pre_forward", detail.unit, now - 300, kTick - 1000);
          }
          if (backward && opened_backward.insert(detail.unit).second) {
            range("FSDP::pre_backward", detail.unit, now - 300, kTick - 1000);
          }
          range("FSDP::all_gather_copy_out", detail.unit, now, kTick - 2000);
          break;
        case EventKind::kForward:
          if (open.insert(detail.unit).second) range("FSDP::pre_forward", detail.unit, now - 300, 50);
          break;
        case EventKind::kRecompute:
        case EventKind::kBackward:
          if (opened_backward.insert(detail.unit).second) range("FSDP::pre_backward", detail.unit, now - 300, 50);
          break;
        case EventKind::kReduceScatterCopyIn: {
          std::int64_t end = i;
          // Up to what the next gather or unit begins.
          const auto belongs = [&](std::int64_t j) {
            const auto& next = graph_.details[static_cast<std::size_t>(j)];
            const EventKind kind = graph_.rows[static_cast<std::size_t>(j)].kind;
            return next.unit == detail.unit && next.microbatch == microbatch && kind > EventKind::kReduceScatterCopyIn;
          };
          while (end + 1 < rows && belongs(end + 1)) ++end;
          range("FSDP::post_backward_accumulate", detail.unit, now - 800, 100);
          range("FSDP::post_backward_reduce", detail.unit, now, (end - i + 1) * kTick - 1000);
          break;
        }
        case EventKind::kOptimizer: optimizer = now; break;
        default: break;
      }
      work(id, now, offset);
      if (row.kind == EventKind::kForward && last_of_unit(at)) {
        range("FSDP::post_forward", detail.unit, now + 5000, 100);
      }
    }
    if (options_.optimizer_range) range("Optimizer.step#AdamW.step", -1, optimizer - 100, kTick);
    if (options_.peak_allocated > 0) {
      events_.push_back({{"ph", "i"}, {"cat", "cpu_instant_event"}, {"s", "t"}, {"name", "[memory]"}, {"pid", 7},
          {"tid", kForwardThread}, {"ts", microseconds(offset + period / 2)},
          {"args", {{"Total Reserved", options_.peak_allocated * 2}, {"Total Allocated", options_.peak_allocated},
                       {"Bytes", 512}, {"Device Id", 0}, {"Device Type", 1}, {"Addr", 18446744073709551000U}}}});
    }
  }

  // Whether no later row of this micro-batch is the unit's forward.
  bool last_of_unit(std::size_t row) const {
    for (std::size_t i = row + 1; i < graph_.rows.size(); ++i) {
      if (graph_.details[i].microbatch != graph_.details[row].microbatch) return true;
      if (graph_.rows[i].kind == EventKind::kForward && graph_.details[i].unit == graph_.details[row].unit) {
        return false;
      }
    }
    return true;
  }

  const Forecast& forecast_;
  const EventGraph& graph_;
  const Timeline& timeline_;
  CudaTraceOptions options_;
  json events_ = json::array();
  int thread_ = kForwardThread;
  std::int64_t external_ = 0, correlation_ = 0;
};

}

std::string module_of(const std::string& unit) {
  if (unit == "root") return "";
  if (unit == "embedding") return "tok_embeddings";
  if (unit == "norm+head") return "norm, output";
  if (unit == "head") return "output";
  return unit;
}

std::string cuda_trace(const Forecast& forecast, const Timeline& timeline, const CudaTraceOptions& options) {
  return Writer(forecast, timeline, options).write();
}

}
