// First what can be read without a model (infer_readings.h), then the model and its units by their sizes. With both,
// steps are built: the one of a plan that reshards always says which units are gathered again, and those of the
// prefetch depths that the trace suggests are held against its order.
#include "interop/traces/infer_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "interop/recordings/recorded_job.h"
#include "interop/traces/infer_readings.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/base/unit_strings.h"
#include "sim/graph/event_graph.h"
#include "sim/graph/training_step.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/fsdp2_version.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

// The order of a step as its host issues it: which unit is gathered, computed and reduced when. A
// trace and a plan's graph are held against each other by it.
// Likeness is a longest common subsequence. Of units gathered ahead, a unit counts once it was
// gathered in this pass and not yet computed in it; the commonest count is the pass's.
struct OrderMark {
  EventKind kind = EventKind::kForward;
  std::int32_t unit = 0;
  std::int32_t microbatch = 0;
  bool operator==(const OrderMark&) const = default;
};

bool is_marked(EventKind kind, std::int32_t unit) {
  using enum EventKind;
  return unit >= 0 && is_among(kind, {kAllGather, kForward, kRecompute, kBackward, kReduceScatter, kAllReduce});
}

void add_mark(std::vector<OrderMark>& order, OrderMark mark) {
  if (!is_marked(mark.kind, mark.unit)) return;
  // Backward begins before it asks for what is computed again.
  if (mark.kind == EventKind::kRecompute) mark.kind = EventKind::kBackward;
  if (is_collective(mark.kind) || order.empty() || order.back() != mark) order.push_back(mark);
}

std::vector<OrderMark> order_of(const JobStep& step) {
  std::vector<OrderMark> order;
  for (const TraceRun& run : step.runs) add_mark(order, {run.kind, run.unit, run.microbatch});
  return order;
}

std::vector<OrderMark> order_of(const EventGraph& graph) {
  std::vector<OrderMark> order;
  for (std::size_t i = 0; i < graph.rows.size(); ++i)
    add_mark(order, {graph.rows[i].kind, graph.details[i].unit, graph.details[i].microbatch});
  return order;
}

// Marks of both that stand in one order, as a share of those there are: 1 where both are equal.
double likeness(const std::vector<OrderMark>& a, const std::vector<OrderMark>& b) {
  if (a.empty() || b.empty()) return 0;
  std::vector<std::int32_t> above(b.size() + 1, 0), row(b.size() + 1, 0);
  for (const OrderMark& mark : a) {
    for (std::size_t j = 0; j < b.size(); ++j)
      row[j + 1] = mark == b[j] ? above[j] + 1 : std::max(row[j], above[j + 1]);
    std::swap(above, row);
  }
  return 2.0 * above.back() / as_double(a.size() + b.size());
}

// Units gathered ahead of the one that is computed, as most of a pass has it: 0 where each is
// gathered when it is reached. `pass`: kForward or kBackward.
std::int64_t units_ahead(const std::vector<OrderMark>& order, EventKind pass) {
  std::set<std::int32_t> waiting;  // gathered, not computed
  std::map<std::int64_t, int> counts;
  bool backward = false;
  for (const OrderMark& mark : order) {
    if (mark.microbatch > 0) break;
    const bool of_backward = mark.kind == EventKind::kBackward;
    if (of_backward && !backward) {
      backward = true;
      if (pass == EventKind::kForward) break;
    }
    if (mark.kind == EventKind::kAllGather) waiting.insert(mark.unit);
    if (mark.kind == EventKind::kForward && pass == EventKind::kBackward) waiting.erase(mark.unit);
    const bool computes = pass == EventKind::kForward ? mark.kind == EventKind::kForward : of_backward;
    if (!computes) continue;
    const bool gathered = waiting.erase(mark.unit) > 0;
    if (gathered) ++counts[std::ssize(waiting)];
  }
  const auto most = std::ranges::max_element(counts, [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == counts.end() ? 0 : most->first;
}

// All but the last, which may reduce, are alike from the second on.
constexpr std::int64_t kComparedMicrobatches = 3;

class Inference {
 public:
  Inference(const FsdpTrace& trace, const std::optional<ModelSpec>& named)
      : trace_(trace), step_(trace), named_(named) {
    JobReadings readings = read_job(step_);
    plan_ = std::move(readings.plan);
    how_ = std::move(readings.how);
    job_.asked = std::move(readings.asked);
    units_.sizes.resize(trace.units.size());
    units_.has_root = !trace.units.empty() && trace.units.front().empty();
  }

  InferredJob infer() {
    read_gathers();
    find_the_model();
    read_recompute();
    read_accumulation();
    refine();
    write();
    return std::move(job_);
  }

 private:
  void say(const std::string& key, std::string how) { how_.emplace(key, std::move(how)); }
  void ask(std::string key, std::string flag, std::string why) {
    job_.asked.push_back({std::move(key), std::move(flag), std::move(why)});
  }

  // Gathers in backward, by unit, in the first micro-batch.
  std::vector<int> gathers_in_backward(const std::vector<OrderMark>& order) const {
    std::vector<int> counts(trace_.units.size(), 0);
    bool backward = false;
    for (const OrderMark& mark : order) {
      if (mark.microbatch > 0) break;
      backward = backward || mark.kind == EventKind::kBackward;
      const auto unit = at(mark.unit);
      const bool again = backward || seen_before(order, mark);
      if (mark.kind == EventKind::kAllGather && again && unit < counts.size()) ++counts[unit];
    }
    return counts;
  }
  // The first gather of backward is issued before any work of backward: that unit's forward is over.
  static bool seen_before(const std::vector<OrderMark>& order, const OrderMark& gather) {
    const OrderMark forward = {EventKind::kForward, gather.unit, gather.microbatch};
    for (const OrderMark& mark : order) {
      if (&mark == &gather) return false;
      if (mark == forward) return true;
    }
    return false;
  }

  void read_gathers() {
    for (const TraceRun& run : step_.runs()) {
      if (run.kind != EventKind::kAllGather || run.unit < 0 || step_.in_backward(run)) continue;
      std::int64_t& size = units_.sizes[at(run.unit)];
      size = std::max(size, std::max(step_.message(run).in_elements, step_.message(run).out_elements));
    }
    const std::vector<OrderMark> order = order_of(trace_.steps.front());
    const std::vector<int> again = gathers_in_backward(order);
    const auto units = std::ssize(again);
    const std::int64_t count = units - std::ranges::count(again, 0);
    const std::int64_t group = step_.group_of(EventKind::kAllGather, true);
    Reshard& reshard = plan_.reshard_after_forward.value;
    if (count == 0) reshard.kind = Reshard::Kind::kNever;
    if (count > 0 && group > 0 && group < plan_.mesh.shard) reshard = {Reshard::Kind::kGroup, group};
    say("reshard_after_forward",
        count == 0 ? "no all_gather in backward"
                   : fmt::format("{} of {} are gathered again in backward{}", count, plural(units, "unit"),
                         reshard.kind == Reshard::Kind::kGroup ? fmt::format(", in groups of {}", group) : ""));
    ahead_forward_ = units_ahead(order, EventKind::kForward);
    ahead_backward_ = units_ahead(order, EventKind::kBackward);
    if (ahead_forward_ > 0) plan_.prefetch.forward = ahead_forward_;
    say("prefetch.forward", ahead_forward_ > 0
                                ? fmt::format("{} gathered ahead of forward", plural(ahead_forward_, "unit"))
                                : "each unit is gathered when forward reaches it");
    if (count == 0) return;
    plan_.prefetch.backward = ahead_backward_;
    say("prefetch.backward", fmt::format("{} gathered ahead of backward", plural(ahead_backward_, "unit")));
  }

  // --- the model ---

  void find_the_model() {
    if (named_) {
      plan_.model = named_->name;
      const auto units = find_units(*named_, plan_.mesh.shard, units_);
      if (!units) {
        throw invalid_input("{}: no grouping of the layers of {} has its {} of {} elements", trace_.file, named_->name,
            plural(std::ssize(units_.sizes), "unit"), sizes_text());
      }
      model_ = named_;
      plan_.units = *units;
    } else if (auto found = find_model(trace_, plan_.mesh.shard, units_)) {
      plan_.units = found->units;
      plan_.model = found->names.empty() ? found->model.name : found->names.front();
      std::string how = fmt::format("its {} have these sizes", plural(std::ssize(units_.sizes), "unit"));
      if (found->names.empty()) {
        how = fmt::format("of its shapes: {} with these sizes", plural(std::ssize(units_.sizes), "unit"));
        job_.model = found->model;
      } else if (found->names.size() > 1) {
        how += fmt::format("; so have {}", fmt::join(found->names.begin() + 1, found->names.end(), ", "));
      }
      say("model", how);
      model_ = std::move(found->model);
    } else {
      ask("model", "--model NAME|config.json",
          fmt::format("no model of the zoo has {} of {} elements{}", plural(std::ssize(units_.sizes), "unit"),
              sizes_text(), trace_.facts.has_shapes ? "" : "; shapes would tell (record_shapes=True)"));
      return;
    }
    const bool told = !contains(units_.sizes, 0);
    const std::string how = told ? "sizes of the units" : "number of units; their sizes are not told";
    for (const char* key : {"units.layers_per_unit", "units.embedding", "units.head"}) say(key, how);
    if (plan_.units.blocks == UnitPlacement::kRoot) say("units.blocks", how);
  }

  std::string sizes_text() const {
    std::vector<std::string> sizes;
    std::size_t last = 0;
    for (std::size_t i = 0; i <= units_.sizes.size(); ++i) {
      if (i < units_.sizes.size() && units_.sizes[i] == units_.sizes[last]) continue;
      const std::string size = units_.sizes[last] == 0 ? "untold" : format_count(units_.sizes[last]);
      sizes.push_back(i - last > 1 ? fmt::format("{} x {}", i - last, size) : size);
      last = i;
    }
    return fmt::format("{}", fmt::join(sizes, ", "));
  }

  // --- recompute, accumulation ---

  void read_recompute() {
    struct Work {
      int products = 0, attentions = 0, pieces = 0;
    };
    std::vector<Work> forward(trace_.units.size()), again(trace_.units.size());
    for (const TraceRun& run : step_.runs()) {
      const bool is_forward = run.kind == EventKind::kForward;
      if (run.unit < 0 || run.microbatch > 0) continue;
      if (!is_forward && run.kind != EventKind::kRecompute) continue;
      Work& work = (is_forward ? forward : again)[at(run.unit)];
      work.products += run.products;
      work.attentions += run.attentions;
      work.pieces += run.pieces;
    }
    std::vector<Recompute> blocks;
    int count = 0;
    Work all_forward, all_again;
    for (std::size_t u = 0; u < again.size(); ++u) {
      if (again[u].pieces == 0) continue;
      ++count;
      all_forward.products += forward[u].products;
      all_forward.attentions += forward[u].attentions;
      all_again.products += again[u].products;
      all_again.attentions += again[u].attentions;
    }
    if (count == 0) return say("recompute", "backward runs no operator of forward again");
    // Full recompute runs all attention again and all products but the last (six of seven in a
    // gated block). Of work that a dispatch mode finds done, a CPU trace has one operator, not two.
    const auto less = [](int again, int once) { return 4 * again < 3 * once; };
    const bool selective = all_forward.attentions > 0 ? less(all_again.attentions, all_forward.attentions)
                                                      : less(all_again.products, all_forward.products);
    const Recompute mode = selective ? Recompute::kSelective : Recompute::kFull;
    say("recompute", fmt::format("{} of {} run forward again in backward{}", count, plural(std::ssize(again), "unit"),
                         selective ? ", but for attention" : ""));
    set_recompute(mode, [&](std::size_t unit) { return again[unit].pieces > 0; });
  }

  // Blocks of the units that run again.
  void set_recompute(Recompute mode, auto runs) {
    plan_.recompute.value = mode;
    if (!model_) return;
    const std::int64_t blocks = model_->block_count();
    const std::int64_t first = first_block_unit();
    std::vector<bool> chosen;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t unit =
          plan_.units.blocks == UnitPlacement::kRoot ? 0 : first + block / plan_.units.layers_per_unit;
      chosen.push_back(runs(at(unit)));
    }
    if (std::ranges::count(chosen, true) == blocks) return;
    plan_.recompute.value = Recompute::kNone;
    for (std::int64_t block = 0; block < blocks; ++block) {
      if (!chosen[at(block)]) continue;
      auto& ranges = plan_.recompute.ranges;
      if (!ranges.empty() && ranges.back().last == block - 1) ranges.back().last = block;
      else ranges.push_back({block, block, mode});
    }
  }

  std::int64_t first_block_unit() const {
    return (has_root_unit(plan_, *model_) ? 1 : 0) + (plan_.units.embedding == UnitPlacement::kRoot ? 0 : 1);
  }

  void read_accumulation() {
    if (step_.microbatches() < 2) return;
    const auto any = [&](EventKind kind, bool last) {
      return std::ranges::any_of(step_.runs(), [&](const TraceRun& run) {
        return run.kind == kind && run.unit >= 0 && (run.microbatch == step_.microbatches() - 1) == last;
      });
    };
    if (!any(EventKind::kReduceScatter, false) && any(EventKind::kReduceScatter, true)) {
      plan_.accumulation = AccumulationMode::kKeepUnsharded;
      say("accumulation.mode", "only the last micro-batch reduces gradients");
    } else {
      say("accumulation.mode", "every micro-batch reduces gradients");
      if (!any(EventKind::kAllReduce, false) && any(EventKind::kAllReduce, true)) {
        plan_.accumulation_details.all_reduce = When::kLast;
        say("accumulation.all_reduce", "only in the last micro-batch");
      }
    }
    const bool later = std::ranges::any_of(
        step_.runs(), [](const TraceRun& run) { return run.kind == EventKind::kAllGather && run.microbatch > 0; });
    if (!later && plan_.mesh.shard > 1) {
      plan_.accumulation_details.reshard_after_backward = When::kLast;
      say("accumulation.reshard_after_backward", "only the first micro-batch gathers");
    }
  }

  // --- steps that are built ---

  std::vector<OrderMark> order_with(const Plan& plan) const {
    Plan tried = plan;
    if (tried.batch.sequence == 0) tried.batch.sequence = std::min<std::int64_t>(model_->max_positions, 128);
    tried.batch.accumulation = std::min(tried.batch.accumulation, kComparedMicrobatches);
    if (model_->fixed_sequence > 0) tried.batch.sequence = model_->fixed_sequence;
    if (find_problem(tried, *model_, recorded_cluster(tried))) return {};
    return order_of(build_training_step(*model_, tried));
  }

  std::vector<OrderMark> traced_order() const {
    std::vector<OrderMark> order = order_of(trace_.steps.front());
    std::erase_if(order, [](const OrderMark& mark) { return mark.microbatch >= kComparedMicrobatches; });
    return order;
  }

  // A list of plans, PyTorch's default first; the first of those nearest to the trace is kept.
  void keep_nearest(const std::vector<Plan>& plans) {
    const std::vector<OrderMark> order = traced_order();
    const Prefetch usual = plan_.prefetch;  // as most of the order has it
    double best = -1;
    Plan chosen = plan_;
    for (const Plan& plan : plans) {
      const double near = likeness(order, order_with(plan));
      if (near <= best) continue;
      best = near;
      chosen = plan;
    }
    plan_ = chosen;
    const char* whose = "of those tried, its order of gathers is nearest to the trace's";
    if (plan_.prefetch.forward != usual.forward) how_["prefetch.forward"] = whose;
    if (plan_.prefetch.backward != usual.backward) how_["prefetch.backward"] = whose;
    if (plan_.prefetch.backward_lists) say("prefetch.backward_lists", whose);
    job_.order = best;
  }

  void refine() {
    if (!model_) return;
    refine_reshard();
    // The defaults first, then up to a little beyond what most of the order shows.
    constexpr std::int64_t kBeyond = 2;
    std::vector<std::int64_t> forward = {Prefetch::kImplicit}, backward = {1, 0};
    for (std::int64_t n = 1; n <= ahead_forward_ + kBeyond; ++n) forward.push_back(n);
    for (std::int64_t n = 2; n <= ahead_backward_ + kBeyond; ++n) backward.push_back(n);
    std::vector<Plan> plans;
    for (const std::int64_t f : forward) {
      for (const std::int64_t b : backward) {
        Plan& plan = plans.emplace_back(plan_);
        plan.prefetch.forward = f;
        plan.prefetch.backward = b;
      }
      plans.emplace_back(plan_).prefetch = {f, 1, true, false};
    }
    keep_nearest(plans);
    if (job_.order < 1 && !how_.contains("runtime")) refine_version();
  }

  // A version whose order is the trace's, the newest of them.
  void refine_version() {
    const std::vector<OrderMark> order = traced_order();
    for (std::int32_t minor = kNewestFsdp2; minor >= kOldestFsdp2; --minor) {
      Plan plan = plan_;
      plan.runtime.version = fmt::format("2.{}", minor);
      if (likeness(order, order_with(plan)) < 1) continue;
      plan_ = plan;
      job_.order = 1;
      return say("runtime", "the newest with this order of events");
    }
  }

  // Units that are gathered again where a plan that reshards always would not, or the other way round.
  void refine_reshard() {
    const Reshard again = plan_.reshard_after_forward.value;
    if (again.kind == Reshard::Kind::kNever) return;
    Plan always = plan_;
    always.reshard_after_forward = {};
    always.prefetch = {};
    const std::vector<OrderMark> order = order_with(always);
    if (order.empty()) return;
    const std::vector<int> planned = gathers_in_backward(order);
    const std::vector<int> traced = gathers_in_backward(order_of(trace_.steps.front()));
    std::vector<Reshard> units;
    for (std::size_t u = 0; u < traced.size(); ++u) {
      const bool less = traced[u] < planned[u];
      units.push_back(less ? Reshard{Reshard::Kind::kNever, 0} : again);
    }
    auto& ranges = plan_.reshard_after_forward.ranges;
    ranges.clear();
    for (std::size_t u = 0; u < units.size(); ++u) {
      const bool more = traced[u] > planned[u];
      if (units[u] == again && !more) continue;
      const auto unit = static_cast<std::int64_t>(u);
      if (!ranges.empty() && ranges.back().last == unit - 1 && ranges.back().value == units[u])
        ranges.back().last = unit;
      else ranges.push_back({unit, unit, units[u]});
    }
  }

  // --- the answer ---

  void write() {
    if (model_ || named_) plan_.model = model_->name;
    Json plan = to_json(plan_);
    for (const std::string& key : plan_keys()) {
      const auto how = how_.find(key);
      if (how == how_.end()) continue;
      const Json* value = &plan;
      std::size_t begin = 0;
      for (; value != nullptr && begin <= key.size();) {
        const std::size_t dot = std::min(key.find('.', begin), key.size());
        const std::string part = key.substr(begin, dot - begin);
        value = value->contains(part) ? &(*value)[part] : nullptr;
        begin = dot + 1;
      }
      if (value == nullptr) continue;
      job_.keys.push_back({key, value->is_string() ? value->get<std::string>() : value->dump(), how->second});
    }
  }

  const FsdpTrace& trace_;
  StepOfTrace step_;
  const std::optional<ModelSpec>& named_;
  std::optional<ModelSpec> model_;
  Plan plan_;
  InferredJob job_;
  std::map<std::string, std::string> how_;  // by key
  TracedUnits units_;
  std::int64_t ahead_forward_ = 0, ahead_backward_ = 1;
};

}

InferredJob infer_job(const FsdpTrace& trace, const std::optional<ModelSpec>& named) {
  return Inference(trace, named).infer();
}

}
