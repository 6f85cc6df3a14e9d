// Host events of a thread nest, so one pass with a stack gives each its parent. What an item needs
// to know of the program around it is then a walk up the parents:
//
// recompute  the nearest operator with a sequence number was recorded by forward (forward thread
// 0),
//            and a node of backward (forward thread > 0) stands above it. Operators of backward
//            itself run without gradients and have no sequence number of their own.
// collective the kernel's `Collective name`, else NCCL's kernel name, else the c10d operator that
//            launched it (groups of one rank copy instead).
// message    the kernel's, else that of record_param_comms inside the c10d operator, else what the
//            shapes of that operator's tensors say.
#include "interop/traces/trace_items.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

using Category = TraceEvent::Category;
constexpr std::size_t kNoParent = at(-1);
constexpr std::size_t kDeepestCall = 1'000;  // as Python's recursion; parents are walked for each event

// "_allgather_base", "c10d::_reduce_scatter_base_", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)".
TracedCollective collective_of(std::string_view name) {
  std::string letters;
  for (const char c : name)
    if (std::isalpha(static_cast<unsigned char>(c)) != 0)
      letters.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  const auto has = [&](const char* word) { return contains(letters, word); };
  if (has("allgather")) return TracedCollective::kAllGather;
  if (has("reducescatter")) return TracedCollective::kReduceScatter;
  if (has("allreduce")) return TracedCollective::kAllReduce;
  return TracedCollective::kOther;
}

// What a name says by itself, asked once per name.
struct NameFacts {
  bool fsdp = false;      // a range of FSDP2 or of the optimizer
  bool c10d = false;      // an operator that starts a collective
  bool nccl = false;      // a kernel of NCCL or RCCL
  bool gloo = false;      // Gloo's range while it moves bytes
  bool profiler = false;  // the profiler's own bookkeeping
  bool norm = false;
  bool scale = false;
  bool product = false;
  bool attention = false;
  TracedCollective collective = TracedCollective::kOther;
};

NameFacts facts_of(const std::string& name) {
  const auto has = [&](const char* word) { return contains(name, word); };
  NameFacts facts;
  facts.fsdp = name.starts_with("FSDP::") || name.starts_with("Optimizer.");
  facts.c10d = name.starts_with("c10d::");
  facts.nccl = has("ncclDevKernel") || has("ncclKernel") || has("rcclGenericKernel");
  facts.gloo = name.starts_with("gloo:");
  facts.profiler = name.starts_with("profiler::");
  facts.norm = has("norm") && !has("rms_norm") && !has("layer_norm");
  facts.scale = has("clamp") || has("mul_");
  static constexpr std::string_view kProducts[] = {
      "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm"};
  facts.product = contains(kProducts, name);
  // The operator behind scaled_dot_product_attention, which selective recompute may find done.
  facts.attention =
      (name.starts_with("aten::_scaled_dot_product") || has("flash_attn") || has("FlashAttn")) && !has("ackward");
  facts.collective = collective_of(name);
  return facts;
}

class Linker {
 public:
  explicit Linker(const KinetoTrace& trace) : trace_(trace), gpu_(trace.of_gpu()) {
    facts_.reserve(trace.names.size());
    for (const std::string& name : trace.names) facts_.push_back(facts_of(name));
    parents_.resize(trace.events.size(), kNoParent);
    divided_.resize(trace.events.size(), false);
    messages_.resize(trace.events.size(), 0);
    inside_.resize(gpu_ ? 0 : trace.events.size());
    find_parents();
  }

  TracedWork link() {
    TracedWork work;
    work.messages = trace_.messages;
    gpu_ ? link_device(work) : link_host(work);
    const auto& threads = issuing_threads_;
    for (const TraceEvent& event : trace_.events) {
      if (event.category != Category::kAnnotation || facts(event).gloo) continue;
      if (!contains(threads, event.thread)) continue;
      work.ranges.push_back({event.name, event.begin, event.end});
    }
    std::ranges::stable_sort(
        work.ranges,
        [](const auto& a, const auto& b) { return a.begin != b.begin ? a.begin < b.begin : a.end > b.end; });
    std::ranges::stable_sort(work.items, [](const auto& a, const auto& b) { return a.issue < b.issue; });
    return work;
  }

 private:
  const NameFacts& facts(const TraceEvent& event) const { return facts_[event.name]; }
  const TraceEvent& event(std::size_t i) const { return trace_.events[i]; }
  bool on_host(const TraceEvent& e) const {
    return e.category == Category::kOperator || e.category == Category::kAnnotation || e.category == Category::kLaunch;
  }

  void find_parents() {
    std::map<std::int64_t, std::vector<std::size_t>> threads;
    for (std::size_t i = 0; i < trace_.events.size(); ++i)
      if (on_host(event(i))) threads[event(i).thread].push_back(i);
    for (auto& [thread, list] : threads) {
      std::ranges::stable_sort(list, [&](std::size_t a, std::size_t b) {
        const TraceEvent &x = event(a), &y = event(b);
        return x.begin != y.begin ? x.begin < y.begin : x.end > y.end;
      });
      std::vector<std::size_t> open;
      bool fsdp = false;
      for (const std::size_t i : list) {
        while (!open.empty() && event(open.back()).end <= event(i).begin) open.pop_back();
        if (!open.empty()) parents_[i] = open.back();
        open.push_back(i);
        if (open.size() > kDeepestCall) {
          throw ConfigError({trace_.file, 0, 0, ""}, "the events are nested too deeply",
              fmt::format("at most {} calls inside each other", kDeepestCall));
        }
        fsdp = fsdp || facts(event(i)).fsdp;
        // What an operator has inside that must be told apart from it.
        const bool again = recomputes(i) && (parents_[i] == kNoParent || !recomputes(parents_[i]));
        if (event(i).message != 0) tell_callers(i);
        if (!gpu_ && (facts(event(i)).product || facts(event(i)).attention)) count_inside(i);
        const bool inner = facts(event(i)).fsdp || facts(event(i)).c10d || again;
        for (std::size_t p = parents_[i]; inner && p != kNoParent && !divided_[p]; p = parents_[p]) divided_[p] = true;
      }
      if (fsdp) issuing_threads_.push_back(thread);
      append(order_, list);
    }
  }

  // The c10d operator around record_param_comms has its message too.
  void tell_callers(std::size_t i) {
    for (std::size_t p = i; p != kNoParent && messages_[p] == 0; p = parents_[p])
      if (event(p).category == Category::kOperator) messages_[p] = event(i).message;
  }

  void count_inside(std::size_t i) {
    const NameFacts& f = facts(event(i));
    for (std::size_t p = i; p != kNoParent; p = parents_[p]) {
      inside_[p].first += f.product ? 1 : 0;
      inside_[p].second += f.attention ? 1 : 0;
    }
  }

  // `i` and its parents, from the inside.
  bool recomputes(std::size_t i) const {
    bool in_forward = false;
    for (; i != kNoParent; i = parents_[i]) {
      const TraceEvent& e = event(i);
      if (e.category != Category::kOperator || e.sequence < 0) continue;
      if (in_forward && e.forward_thread > 0) return true;
      if (e.forward_thread > 0) return false;  // backward's own
      in_forward = true;
    }
    return false;
  }

  void look_around(std::size_t i, WorkItem& item, TracedWork& work) const {
    item.recompute = recomputes(i);
    const std::size_t inside = i;
    for (; i != kNoParent; i = parents_[i]) {
      const TraceEvent& e = event(i);
      if (e.category != Category::kOperator) continue;
      item.norm = item.norm || facts(e).norm;
      item.scale = item.scale || facts(e).scale;
      if (gpu_ && facts(e).product) item.products = 1;
      if (gpu_ && facts(e).attention) item.attentions = 1;
      if (item.collective == TracedCollective::kNone && facts(e).c10d) item.collective = facts(e).collective;
    }
    if (item.collective == TracedCollective::kNone || item.message != 0) return;
    for (i = inside; i != kNoParent && item.message == 0; i = parents_[i]) {
      item.message = messages_[i];
      if (item.message == 0 && facts(event(i)).c10d) item.message = message_of_shapes(i, work);
    }
  }

  // Of "c10d::_allgather_base_(output, input)", "c10d::_reduce_scatter_base_(output, input)".
  std::uint32_t message_of_shapes(std::size_t i, TracedWork& work) const {
    const std::vector<TracedTensor> tensors = tensors_of(trace_, event(i));
    if (tensors.size() < 2) return 0;
    TracedMessage message;
    message.dtype = tensors[0].dtype;
    message.out_elements = tensors[0].elements();
    message.in_elements = tensors[1].elements();
    const auto [less, more] = std::minmax(message.in_elements, message.out_elements);
    if (less > 0) message.group_size = more / less;
    work.messages.push_back(message);
    return static_cast<std::uint32_t>(work.messages.size() - 1);
  }

  void link_device(TracedWork& work) {
    std::unordered_map<std::int64_t, std::size_t> launches, operators;
    for (std::size_t i = 0; i < trace_.events.size(); ++i) {
      const TraceEvent& e = event(i);
      if (e.category == Category::kLaunch && e.correlation >= 0) launches.emplace(e.correlation, i);
      if (e.category == Category::kOperator && e.external >= 0) operators.emplace(e.external, i);
    }
    for (const TraceEvent& e : trace_.events) {
      if (e.category != Category::kDevice) continue;
      auto cause = launches.find(e.correlation);
      if (cause == launches.end()) {
        cause = operators.find(e.external);
        if (cause == operators.end()) {
          ++work.orphans;
          continue;
        }
      }
      WorkItem item = {
          .issue = event(cause->second).begin, .begin = e.begin, .end = e.end, .stream = e.thread, .name = e.name};
      if (e.collective != 0) item.collective = facts_[e.collective].collective;
      else if (facts(e).nccl) item.collective = facts(e).collective;
      item.message = e.message;
      look_around(cause->second, item, work);
      work.items.push_back(item);
    }
  }

  void link_host(TracedWork& work) {
    std::vector<std::size_t> gloo;
    for (std::size_t i = 0; i < trace_.events.size(); ++i)
      if (event(i).category == Category::kAnnotation && facts(event(i)).gloo) gloo.push_back(i);
    std::ranges::stable_sort(gloo, [&](auto a, auto b) { return event(a).begin < event(b).begin; });
    for (const std::size_t i : order_) {
      const TraceEvent& e = event(i);
      if (e.category != Category::kOperator || divided_[i] || facts(e).profiler) continue;
      std::size_t p = parents_[i];
      while (p != kNoParent && event(p).category != Category::kOperator) p = parents_[p];
      if (p != kNoParent && !divided_[p]) continue;  // the outermost operator stands for it
      WorkItem item = {.issue = e.begin, .begin = e.begin, .end = e.end, .name = e.name};
      std::tie(item.products, item.attentions) = inside_[i];
      look_around(i, item, work);
      work.items.push_back(item);
    }
    std::ranges::stable_sort(work.items, [](const auto& a, const auto& b) { return a.issue < b.issue; });
    // Gloo's threads take up operations in the order of their issue.
    std::size_t next = 0;
    for (WorkItem& item : work.items) {
      if (item.collective == TracedCollective::kNone) continue;
      while (next < gloo.size() && event(gloo[next]).begin < item.begin) ++next;
      if (next < gloo.size()) item.end = std::max(item.end, event(gloo[next++]).end);
    }
  }

  const KinetoTrace& trace_;
  bool gpu_;
  std::vector<NameFacts> facts_;
  std::vector<std::size_t> parents_;
  std::vector<std::uint32_t> messages_;
  std::vector<std::pair<int, int>> inside_;  // of CPU work: products and attention
  std::vector<bool> divided_;                // an FSDP range, a collective or recomputed work lies inside
  std::vector<std::size_t> order_;
  std::vector<std::int64_t> issuing_threads_;
};

}

TracedWork link_work(const KinetoTrace& trace) { return Linker(trace).link(); }

}
