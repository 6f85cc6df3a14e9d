// Both sides become lists per (kind, unit, micro-batch). Of equal length, they are joined in order. Where the trace has
// more runs (work between units on CPU ranks, a second visit of a unit), each of the plan's takes the one whose
// neighbours among the compute runs are those of the plan, else the longest, without crossing.
#include "interop/traces/trace_join.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>

#include "reports/validate/measured.h"
#include "reports/view/event_names.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostSentences = 8;

using Key = std::tuple<EventKind, int, int>;  // kind, unit of the plan, micro-batch

bool flows(EventKind kind) {
  using enum EventKind;
  return is_among(kind, {kForward, kLoss, kRecompute, kBackward, kGradNorm, kGradScale, kOptimizer});
}

Key key_of(EventKind kind, int unit, int microbatch) {
  const bool of_step = unit < 0 && kind != EventKind::kLoss;
  return {kind, unit, of_step ? 0 : microbatch};
}

// Rows of the plan that the trace cannot tell apart, or a run of the trace.
struct Stretch {
  Key key;
  std::vector<EventId> rows;          // of the plan
  TraceRun run;                       // of the trace
  std::optional<Key> before, behind;  // neighbours among the flowing ones
};

void find_neighbours(std::vector<Stretch>& list) {
  std::size_t last = list.size();
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!flows(std::get<EventKind>(list[i].key))) continue;
    if (last < list.size()) {
      list[i].before = list[last].key;
      list[last].behind = list[i].key;
    }
    last = i;
  }
}

std::vector<Stretch> stretches_of(const EventGraph& graph) {
  std::vector<Stretch> list;
  std::size_t last = 0;  // flowing, plus one
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const RowDetail& detail = graph.details[i];
    const EventKind kind = graph.rows[i].kind;
    const Key key = key_of(kind, detail.unit, detail.microbatch);
    if (flows(kind) && last > 0 && list[last - 1].key == key) {
      list[last - 1].rows.push_back(static_cast<EventId>(i));
      continue;
    }
    list.push_back({key, {static_cast<EventId>(i)}, {}, {}, {}});
    if (flows(kind)) last = list.size();
  }
  find_neighbours(list);
  return list;
}

std::vector<Stretch> stretches_of(const JobStep& step, const std::vector<int>& units) {
  std::vector<Stretch> list;
  for (const TraceRun& run : step.runs) {
    const int unit = run.unit < 0 ? -1 : units[at(run.unit)];
    list.push_back({key_of(run.kind, unit, run.microbatch), {}, run, {}, {}});
  }
  find_neighbours(list);
  return list;
}

using Lists = std::map<Key, std::vector<const Stretch*>>;
Lists by_key(const std::vector<Stretch>& list) {
  Lists lists;
  for (const Stretch& stretch : list) lists[stretch.key].push_back(&stretch);
  return lists;
}

// Of each of the plan's, the index of its run; the runs' count where there is none.
std::vector<std::size_t> pair_up(const std::vector<const Stretch*>& plan, const std::vector<const Stretch*>& runs) {
  std::vector<std::size_t> chosen;
  std::size_t next = 0;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    if (next >= runs.size()) {
      chosen.push_back(runs.size());
      continue;
    }
    const std::size_t left = plan.size() - i - 1;
    const std::size_t spare = runs.size() - next > left ? runs.size() - next - left : 1;
    const auto rank = [&](const Stretch& run) {
      const int neighbours =
          static_cast<int>(run.before == plan[i]->before) + static_cast<int>(run.behind == plan[i]->behind);
      return std::pair(neighbours, run.run.end - run.run.begin);
    };
    std::size_t best = next;
    for (std::size_t r = next; r < next + spare; ++r)
      if (rank(*runs[r]) > rank(*runs[best])) best = r;
    chosen.push_back(best);
    next = best + 1;
  }
  return chosen;
}

// --- units ---

std::optional<std::int64_t> number_in(std::string_view name) {
  const std::size_t first = name.find_first_of("0123456789");
  if (first == std::string_view::npos) return std::nullopt;
  return leading_number<std::int64_t>(name.substr(first));
}

std::string shown(const std::string& module) { return module.empty() ? "(root)" : module; }

template <typename... Parts>
[[noreturn]] void refuse(const FsdpTrace& trace, fmt::format_string<Parts...> text, Parts&&... parts) {
  throw ConfigError({trace.file, 0, 0, ""}, fmt::format(text, std::forward<Parts>(parts)...));
}

// Of each unit of the trace, that of the plan.
std::vector<int> match_units(const EventGraph& graph, const FsdpTrace& trace) {
  std::vector<int> plan, result;
  int root = -1;
  for (std::size_t u = 0; u < graph.units.size(); ++u)
    if (graph.units[u].name == "root") root = static_cast<int>(u);
    else plan.push_back(static_cast<int>(u));
  std::vector<std::string> modules, names;
  for (const std::string& module : trace.units) modules.push_back(shown(module));
  for (const Unit& unit : graph.units) names.push_back(unit.name);
  const std::string both = fmt::format("the job shards {} unit{} ({}), the plan {} ({})", modules.size(),
      modules.size() == 1 ? "" : "s", fmt::join(modules, "; "), names.size(), fmt::join(names, "; "));
  const char* keys = "units.layers_per_unit, units.embedding and units.head say how the plan groups layers";
  std::size_t next = 0;
  for (const std::string& module : trace.units) {
    if (module.empty()) {
      if (root < 0) refuse(trace, "{}: the plan has no root unit; {}", both, keys);
      result.push_back(root);
      continue;
    }
    if (next == plan.size()) refuse(trace, "{}; {}", both, keys);
    const int unit = plan[next++];
    const std::string& name = graph.units[at(unit)].name;
    const auto there = number_in(module), here = number_in(name);
    if (there.has_value() != here.has_value() || there != here)
      refuse(trace, "{}: in order of forward, {} meets {}; {}", both, module, name, keys);
    result.push_back(unit);
  }
  if (result.size() != graph.units.size()) refuse(trace, "{}; {}", both, keys);
  return result;
}

// --- one step ---

class StepJoin {
 public:
  StepJoin(const Forecast& forecast, const std::vector<Stretch>& plan)
      : forecast_(forecast), graph_(forecast.graph), lists_(by_key(plan)) {}

  struct Result {
    MeasuredStep step;
    std::vector<bool> found;            // by event id
    std::vector<const Stretch*> extra;  // of the trace
  };

  Result join(const JobStep& traced, const std::vector<Stretch>& runs, bool of_gpu) const {
    Result result;
    result.found.assign(graph_.rows.size(), false);
    result.step.step = traced.number;
    result.step.duration = traced.end - traced.begin;
    result.step.spans.resize(graph_.rows.size());
    for (const TraceRun& run : traced.runs)
      if (flows(run.kind)) result.step.gaps += std::max(Time(), run.end - run.begin - run.busy);
    const Lists traced_lists = by_key(runs);
    for (const auto& [key, list] : traced_lists) {
      const auto plan = lists_.find(key);
      std::vector<bool> used(list.size(), false);
      if (plan != lists_.end()) {
        const std::vector<std::size_t> chosen = pair_up(plan->second, list);
        for (std::size_t i = 0; i < chosen.size(); ++i) {
          if (chosen[i] == list.size()) continue;
          used[chosen[i]] = true;
          place(*plan->second[i], list[chosen[i]]->run, traced.begin, result);
        }
      }
      for (std::size_t i = 0; i < list.size(); ++i)
        if (!used[i]) result.extra.push_back(list[i]);
    }
    for (const Stretch* extra : result.extra)
      if (flows(extra->run.kind)) result.step.beyond += extra->run.busy;
    if (!of_gpu) lengthen_reductions(traced.begin, result);
    fill_gaps(result);
    return result;
  }

 private:
  void place(const Stretch& stretch, const TraceRun& run, Time begin, Result& result) const {
    double whole = 0;
    std::vector<double> shares;
    for (const EventId id : stretch.rows) {
      const Row& row = forecast_.graph.rows[at(id)];
      const Time cost = forecast_.costs.works[row.work].duration;
      shares.push_back(std::max(cost, Time::ns(1)).seconds());
      whole += shares.back();
    }
    const Time length = run.end - run.begin;
    double before = 0;
    for (std::size_t i = 0; i < stretch.rows.size(); ++i) {
      const auto at = [&](double share) { return run.begin - begin + Time::seconds(length.seconds() * share / whole); };
      const auto id = static_cast<std::size_t>(stretch.rows[i]);
      Span& span = result.step.spans[id];
      span.start = i == 0 ? run.begin - begin : at(before);
      before += shares[i];
      span.end = i + 1 == stretch.rows.size() ? run.end - begin : at(before);
      span.arrive = span.start;
      span.issue = std::min(run.issue - begin, span.start);
      result.found[id] = true;
    }
  }

  // Gloo's reduce-scatter is an all-reduce and a copy: where the plan has no row for what comes
  // behind it, that is part of it.
  void lengthen_reductions(Time begin, Result& result) const {
    std::erase_if(
        result.extra,
        [&](const Stretch* extra) {
          if (std::get<EventKind>(extra->key) != EventKind::kAccumulate) return false;
          Key key = extra->key;
          std::get<EventKind>(key) = EventKind::kReduceScatter;
          const auto reductions = lists_.find(key);
          if (reductions == lists_.end()) return false;
          for (const Stretch* reduction : reductions->second) {
            const auto id = at(reduction->rows.front());
            if (!result.found[id]) continue;
            Span& span = result.step.spans[id];
            span.end = std::max(span.end, extra->run.end - begin);
            return true;
          }
          return false;
        });
  }

  void fill_gaps(Result& result) const {
    std::array<Time, kStreams> tail{};
    Time issue;
    for (std::size_t i = 0; i < graph_.rows.size(); ++i) {
      Span& span = result.step.spans[i];
      Time& end = tail[at(graph_.rows[i].stream)];
      if (!result.found[i]) span = {std::min(issue, end), end, end, end};
      end = std::max(end, span.end);
      issue = span.issue;
    }
  }

  const Forecast& forecast_;
  const EventGraph& graph_;
  Lists lists_;  // of the plan
};

// --- sentences ---

std::string clip_list(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 4;
  if (names.size() <= kMost) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.begin(), names.begin() + kMost, ", "), names.size() - kMost);
}

std::vector<std::string> missing_sentences(
    const EventGraph& graph, const EventNames& names, const std::vector<bool>& found) {
  std::map<EventKind, std::pair<int, std::vector<std::string>>> kinds;  // rows, those not found
  for (std::size_t i = 0; i < found.size(); ++i) {
    auto& [rows, lost] = kinds[graph.rows[i].kind];
    ++rows;
    if (!found[i]) lost.push_back(names.of(static_cast<EventId>(i)));
  }
  std::vector<std::string> sentences;
  for (const auto& [kind, entry] : kinds) {
    if (entry.second.empty()) continue;
    sentences.push_back(fmt::format("{} of the plan's {} {} events: {}", entry.second.size(), entry.first,
        to_string(kind), clip_list(entry.second)));
  }
  return sentences;
}

std::vector<std::string> beyond_sentences(
    const FsdpTrace& trace, const JobStep& step, const std::vector<const Stretch*>& extra) {
  struct Group {
    int runs = 0;
    Time time;
    std::vector<std::string> where;
  };
  std::map<EventKind, Group> kinds;
  for (const Stretch* stretch : extra) {
    Group& group = kinds[std::get<EventKind>(stretch->key)];
    const TraceRun& run = stretch->run;
    ++group.runs;
    group.time += run.end - run.begin;
    const std::string where = run.unit < 0 ? "" : shown(trace.units[at(run.unit)]);
    const auto& known = group.where;
    if (!where.empty() && !contains(known, where)) group.where.push_back(where);
  }
  const auto milliseconds = [](Time time) { return fmt::format("{:.3f} ms", time.seconds() * 1e3); };
  std::vector<std::string> sentences;
  for (const auto& [kind, group] : kinds) {
    sentences.push_back(fmt::format("{} {}{}{}, {}", group.runs, to_string(kind), group.where.empty() ? "" : " of ",
        clip_list(group.where), milliseconds(group.time)));
  }
  for (const OutsideWork& work : step.outside)
    sentences.push_back(fmt::format("{} ({} pieces), {}", work.what, work.pieces, milliseconds(work.time)));
  return sentences;
}

// Events that the host issued before one that the plan puts earlier, one sentence for each pair of
// kinds. Rows of one range have one issue, so only the first of a stretch counts.
std::vector<std::string> order_sentences(const EventGraph& graph, const EventNames& names,
    const std::vector<Stretch>& plan, const StepJoin::Result& result) {
  std::vector<EventId> issued;
  for (const Stretch& stretch : plan)
    if (result.found[at(stretch.rows.front())]) issued.push_back(stretch.rows.front());
  const auto issue = [&](EventId id) { return result.step.spans[at(id)].issue; };
  std::ranges::stable_sort(issued, [&](EventId a, EventId b) { return issue(a) < issue(b); });
  struct Swap {
    EventId early, late;
    int count;
  };
  std::map<std::pair<EventKind, EventKind>, Swap> swaps;
  EventId ahead = kNoEvent;  // the latest of the plan so far
  for (const EventId id : issued) {
    if (ahead != kNoEvent && id < ahead) {
      const std::pair kinds(graph.rows[at(ahead)].kind, graph.rows[at(id)].kind);
      ++swaps.emplace(kinds, Swap{ahead, id, 0}).first->second.count;
    }
    ahead = std::max(ahead, id);
  }
  std::vector<std::string> sentences;
  for (const auto& [kinds, swap] : swaps) {
    sentences.push_back(fmt::format(
        "the job issues {} before {}, the plan behind it{}: are the job's prefetch and units those of the plan?",
        names.of(swap.early), names.of(swap.late), swap.count > 1 ? fmt::format(" ({} such pairs)", swap.count) : ""));
  }
  return sentences;
}

void limit(std::vector<std::string>& sentences) {
  if (sentences.size() <= kMostSentences) return;
  const std::size_t more = sentences.size() - kMostSentences;
  sentences.resize(kMostSentences);
  sentences.push_back(fmt::format("and {} more", more));
}

// --- the job ---

void check_device(const Forecast& forecast, const FsdpTrace& trace) {
  const bool of_gpus = forecast.plan.host == HostKind::kFeedsDevice;
  if (of_gpus == trace.of_gpu) return;
  if (!of_gpus) {
    refuse(trace,
        "is of {}, the cluster is '{}', whose ranks compute on the host: name "
        "the GPUs with --cluster, for example 8xh100",
        trace.device.empty() ? "a GPU" : trace.device, forecast.plan.cluster);
  }
  refuse(trace, "{}",
      trace.device.empty()
          ? fmt::format("is of CPU ranks{}, whose times say nothing of '{}': name --cluster "
                        "local, or record on the GPUs with ProfilerActivity.CUDA",
                trace.facts.backend.empty() ? "" : " over " + trace.facts.backend, forecast.plan.cluster)
          : fmt::format("has no kernels of {}, so nothing tells how long they ran: record with "
                        "ProfilerActivity.CUDA",
                trace.device));
}

void check_job(const Forecast& forecast, const FsdpTrace& trace) {
  check_device(forecast, trace);
  if (!forecast.plan.mesh.is_plain()) {
    refuse(trace,
        "collectives inside layers are not read from traces: validate compares those that the "
        "exported script's --record lists (rank-0.timed.json)");
  }
  const std::int64_t world = forecast.plan.mesh.world();
  if (trace.world > 0 && trace.world != world) {
    refuse(trace, "the job has {} ranks, the plan {} (mesh.shard {} x mesh.replicate {})", trace.world, world,
        forecast.plan.mesh.shard, forecast.plan.mesh.replicate);
  }
  int microbatches = 0;
  for (const TraceRun& run : trace.steps.front().runs)
    if (run.kind == EventKind::kBackward) microbatches = std::max(microbatches, run.microbatch + 1);
  if (microbatches != forecast.plan.batch.accumulation) {
    refuse(trace, "a step of the job has {} micro-batch{}, the plan's {} (batch.accumulation)", microbatches,
        microbatches == 1 ? "" : "es", forecast.plan.batch.accumulation);
  }
}

// Steps that every trace has.
std::vector<std::int64_t> common_steps(const std::vector<FsdpTrace>& traces) {
  std::map<std::int64_t, std::size_t> counts;
  for (const FsdpTrace& trace : traces)
    for (const JobStep& step : trace.steps) ++counts[step.number];
  std::vector<std::int64_t> common;
  for (const auto& [number, count] : counts)
    if (count == traces.size()) common.push_back(number);
  return common;
}

}

TraceJoin join_traces(const Forecast& forecast, const std::vector<FsdpTrace>& traces) {
  FORESHARD_CHECK(!traces.empty(), "no trace");
  const EventGraph& graph = forecast.graph;
  const std::vector<Stretch> plan = stretches_of(graph);
  const StepJoin joiner(forecast, plan);
  const EventNames names(graph, forecast.model);
  const std::vector<std::int64_t> common = common_steps(traces);
  if (common.empty()) refuse(traces.front(), "the traces of the ranks have no step in common");
  const std::int64_t world = forecast.plan.mesh.world();
  const bool all_ranks = std::ssize(traces) == world;
  const bool one_host =
      std::ranges::all_of(traces, [&](const FsdpTrace& t) { return !t.host.empty() && t.host == traces.front().host; });

  TraceJoin join;
  RunRecord& record = join.record;
  record.source = RunSource::kTrace;
  record.fingerprint = graph.fingerprint();
  record.host = traces.front().host.empty() ? "a host that is not named" : traces.front().host;
  record.cpu = traces.front().device.empty() ? "CPU" : traces.front().device;
  record.versions = traces.front().versions;
  record.created = traces.front().created;
  record.launcher = "trace";
  record.threads = 0;
  record.warm_up = 0;  // the profiler's schedule had its own
  record.world = static_cast<int>(traces.size());
  record.first_step = common.front();
  record.tokens_per_step = as_double(
      forecast.plan.batch.micro_batch * forecast.plan.batch.sequence * forecast.plan.batch.accumulation * world);
  for (std::size_t t = 0; t < traces.size(); ++t) {
    const FsdpTrace& trace = traces[t];
    check_job(forecast, trace);
    const std::vector<int> units = match_units(graph, trace);
    const Time offset = Time::ns(trace.base_nanoseconds - traces.front().base_nanoseconds);
    RankRecord rank;
    rank.rank = all_ranks ? static_cast<int>(trace.rank) : static_cast<int>(t);
    rank.clocks_shared = all_ranks && one_host;
    rank.peak_allocated = trace.peak_allocated;
    rank.peak_reserved = trace.peak_reserved;
    rank.retries = trace.retries;
    rank.grown = trace.grown;
    for (const JobStep& step : trace.steps) {
      if (!std::ranges::binary_search(common, step.number)) continue;
      const std::vector<Stretch> runs = stretches_of(step, units);
      StepJoin::Result result = joiner.join(step, runs, trace.of_gpu);
      const auto found = std::ranges::count(result.found, true);
      if (2 * at(found) < result.found.size()) {
        refuse(trace, "step {} has {} of the plan's {} events: it is of another plan", step.number, found,
            result.found.size());
      }
      if (rank.timelines.empty() && t == 0) {
        join.missing = missing_sentences(graph, names, result.found);
        join.beyond = beyond_sentences(trace, step, result.extra);
        join.order = order_sentences(graph, names, plan, result);
      }
      result.step.begin = step.begin + offset;
      rank.step_durations.push_back(result.step.duration);
      rank.timelines.push_back(std::move(result.step));
    }
    if (!trace.without_profiler.empty()) rank.step_durations = trace.without_profiler;
    if (t == 0) {
      if (!trace.collectives.empty()) {
        join.compared = std::ssize(trace.collectives);
        join.collectives = collective_differences(graph, names, trace.collectives);
      }
      for (std::size_t u = 0; u < units.size(); ++u)
        join.units.emplace_back(shown(trace.units[u]), graph.units[at(units[u])].name);
    }
    for (const std::string& note : trace.notes) record.notes.push_back(fmt::format("{}: {}", trace.file, note));
    record.ranks.push_back(std::move(rank));
  }
  if (!all_ranks) {
    record.notes.push_back(
        fmt::format("traces of {} of the {} ranks: waiting for peers counts as communication", traces.size(), world));
  }
  limit(join.missing);
  limit(join.beyond);
  limit(join.order);
  return join;
}

}
