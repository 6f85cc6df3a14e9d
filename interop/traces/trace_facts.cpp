// Names are looked at once each; then one pass over the operators. Which unit a packed gradient
// belongs to is the innermost FSDP2 range around it on its thread.

#include <algorithm>
#include <string_view>

#include "interop/traces/fsdp2_steps.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

using Category = TraceEvent::Category;

enum class Interest : std::uint8_t { kNone, kTable, kAttention, kPacking, kAdam };

Interest interest_of(const std::string& name) {
  if (name == "aten::embedding") return Interest::kTable;
  if (name.ends_with("chunk_cat")) return Interest::kPacking;
  const auto has = [&](const char* word) { return contains(name, word); };
  if (has("ackward")) return Interest::kNone;
  const bool chosen = has("aten::_scaled_dot_product") || has("_attn_forward") || has("_attn_func") ||
                      name == "aten::scaled_dot_product_attention";
  return chosen ? Interest::kAttention : Interest::kNone;
}

class FactReader {
 public:
  explicit FactReader(const KinetoTrace& trace) : trace_(trace) {
    facts_.backend = trace.backend;
    facts_.device_memory = Bytes(trace.device_bytes);
    facts_.groups = trace.groups;
    facts_.has_shapes = trace.has_shapes;
    for (const std::string& name : trace.names) interests_.push_back(interest_of(name));
  }

  TraceFacts read() {
    read_names();
    for (const TraceEvent& event : trace_.events) {
      if (event.category != Category::kOperator) continue;
      const std::string& name = trace_.name(event);
      if (name.starts_with("aten::_fused_adam") || name.starts_with("aten::_fused_sgd"))
        facts_.optimizer_step = "fused";
      if (event.shapes != 0) facts_.has_shapes = true;
      switch (interests_[event.name]) {
        case Interest::kTable: read_table(event); break;
        case Interest::kAttention: read_attention(event); break;
        case Interest::kPacking: packings_.push_back(&event); break;
        default: break;
      }
    }
    read_packings();
    return std::move(facts_);
  }

 private:
  void read_names() {
    static constexpr std::string_view kOptimizer = "Optimizer.step#";
    bool foreach_step = false;
    for (const std::string& name : trace_.names) {
      const auto has = [&](const char* word) { return contains(name, word); };
      if (name.starts_with(kOptimizer)) {
        facts_.optimizer = name.substr(kOptimizer.size());
        facts_.optimizer.resize(std::min(facts_.optimizer.find('.'), facts_.optimizer.size()));
      }
      foreach_step =
          foreach_step || name.starts_with("aten::_foreach_addcdiv_") || name.starts_with("aten::_foreach_lerp_");
      facts_.compiled = facts_.compiled || name.starts_with("triton_") || name.starts_with("Torch-Compiled Region") ||
                        has("CompiledFxGraph");
      // multi_tensor_apply_kernel<..., FusedAdamMathFunctor<float, 4, ...>, float const*, ...>
      const std::size_t functor = name.find("FusedAdamMathFunctor<");
      if (functor == std::string::npos) continue;
      const std::size_t begin = name.find('<', functor) + 1;
      facts_.master_dtype = name.substr(begin, name.find(',', begin) - begin);
    }
    if (!facts_.optimizer.empty()) facts_.optimizer_step = foreach_step ? "foreach" : "loop";
  }

  void read_table(const TraceEvent& event) {
    const std::vector<TensorShape> shapes = shapes_of(event);
    if (shapes.size() < 2 || shapes[0].size() != 2) return;
    auto& tables = facts_.tables;
    if (contains(tables, shapes[0])) return;
    const bool longest =
        std::ranges::none_of(tables, [&](const TensorShape& table) { return table[0] >= shapes[0][0]; });
    tables.push_back(shapes[0]);
    if (!longest) return;
    facts_.micro_batch = shapes[1].size() > 1 ? shapes[1][0] : 1;
    facts_.sequence = shapes[1].back();
  }

  // scaled_dot_product_attention takes [batch, heads, sequence, size], the flash_attn package
  // [batch, sequence, heads, size].
  void read_attention(const TraceEvent& event) {
    const std::string& name = trace_.name(event);
    // The operator behind scaled_dot_product_attention says which kernel was chosen.
    if (facts_.attention.empty() || name.starts_with("aten::_scaled_dot_product")) facts_.attention = name;
    const std::vector<TensorShape> shapes = shapes_of(event);
    if (shapes.size() < 2 || shapes[0].size() != 4 || shapes[1].size() != 4) return;
    const std::size_t heads = name.starts_with("aten::") ? 1 : 2;
    facts_.heads = shapes[0][heads];
    facts_.head_dim = shapes[0][3];
    facts_.kv_heads = facts_.kv_heads == 0 ? shapes[1][heads] : std::min(facts_.kv_heads, shapes[1][heads]);
  }

  std::vector<TensorShape> shapes_of(const TraceEvent& event) const {
    return list_of<TensorShape>(
        tensors_of(trace_, event), [&](TracedTensor& tensor) { return std::move(tensor.shape); });
  }

  void read_packings() {
    for (const TraceEvent& range : trace_.events) {
      if (range.category != Category::kAnnotation) continue;
      const FsdpRange read = read_fsdp_range(trace_.name(range));
      if (read.label != FsdpRange::Label::kReduce || facts_.parameters.contains(read.unit)) continue;
      for (const TraceEvent* packing : packings_) {
        const bool inside =
            packing->thread == range.thread && packing->begin >= range.begin && packing->end <= range.end;
        if (!inside) continue;
        std::vector<TensorShape> shapes = shapes_of(*packing);
        // The last one is the output, [ranks, elements of one], where there is one.
        const bool to_output = trace_.name(*packing).starts_with("fsdp::");
        if (to_output && !shapes.empty()) shapes.pop_back();
        if (!shapes.empty()) facts_.parameters.emplace(read.unit, std::move(shapes));
        break;
      }
    }
  }

  const KinetoTrace& trace_;
  std::vector<Interest> interests_;  // by name
  std::vector<const TraceEvent*> packings_;
  TraceFacts facts_;
};

}

TraceFacts read_facts(const KinetoTrace& trace) { return FactReader(trace).read(); }

std::string other_library(const KinetoTrace& trace) {
  static constexpr std::pair<std::string_view, const char*> kRanges[] = {
      {"FullyShardedDataParallel.", "FSDP1"}, {"DistributedDataParallel.", "DDP"}, {"DeepSpeed", "DeepSpeed"}};
  for (const auto& [range, library] : kRanges) {
    for (const std::string& name : trace.names)
      if (contains(name, range)) return library;
  }
  return "";
}

}
