// Settings are data: the key's kind, the assignments, what they cost. Each is forecast by itself
// beside the job as it is; one that the job's runtime or plan refuses, that changes nothing, or
// that does not fit drops out. Of one kind the best is kept: two depths of prefetch are one advice.
#include "planner/try_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>

#include "reports/view/layout.h"
#include "sim/memory/outside_allocator.h"

namespace foreshard {
namespace {

struct Setting {
  const char* kind;
  std::vector<std::string> changes;
  SettingPrice price = SettingPrice::kFree;
};

std::vector<Setting> settings_of(const Plan& plan) {
  using enum SettingPrice;
  std::vector<Setting> settings = {
      {"reshard", {"reshard_after_forward=always"}},
      {"reshard", {"reshard_after_forward=never"}},
      {"prefetch.forward", {"prefetch.forward=implicit"}},
      {"prefetch.forward", {"prefetch.forward=1"}},
      {"prefetch.forward", {"prefetch.forward=2"}},
      {"prefetch.backward", {"prefetch.backward=1", "prefetch.backward_lists=false"}},
      {"prefetch.backward", {"prefetch.backward=2"}},
      {"recompute", {"recompute=none"}},
      {"recompute", {"recompute=selective"}},
      {"optimizer", {"optimizer.implementation=fused"}},
      {"buffers", {"buffers.reduce_scatter=2"}},
      {"allocator", {"allocator=expandable_segments:True"}},
      {"communicators", {"communicators=separate"}},
      {"units", {"units.layers_per_unit=1"}},
      {"units", {fmt::format("units.layers_per_unit={}", 2 * plan.units.layers_per_unit)}},
      {"compile", {"compile=blocks"}, kCode},
      {"loss", {"loss=compiled"}, kCode},
      {"loss", {"loss=chunked-8"}, kCode},
      {"attention", {"attention=cudnn"}, kCode},
      {"attention", {"attention=fa3"}, kCode},
      {"reduce", {"dtype.reduce=bf16"}, kNumbers},
  };
  if (plan.accumulation == AccumulationMode::kReduceEach && plan.batch.accumulation > 1)
    settings.push_back({"accumulation", {"accumulation.mode=keep_unsharded"}});
  if (plan.batch.accumulation % 2 == 0) {
    settings.push_back({"micro-batch", {fmt::format("batch.micro_batch={}", 2 * plan.batch.micro_batch),
                                           fmt::format("batch.accumulation={}", plan.batch.accumulation / 2)}});
  }
  const std::int64_t ranks = plan.mesh.data_parallel();  // cp and tp stay as they are
  for (std::int64_t shard = ranks / 2; shard > 1; shard /= 2) {
    if (ranks % shard != 0 || shard == plan.mesh.shard) continue;
    settings.push_back(
        {"mesh", {fmt::format("mesh.shard={}", shard), fmt::format("mesh.replicate={}", ranks / shard)}});
  }
  return settings;
}

struct Made {
  Forecast forecast;
  Fit fit;
  double seconds() const { return forecast.timeline.period.seconds(); }
};

Made make(const Job& job) {
  Made made{forecast(job.model, job.resolved.plan, cost_model(job)), {}};
  const Bytes outside = total(memory_outside(made.forecast.graph, job.cluster, job.resolved.plan.runtime));
  made.fit = fit_in(job.cluster, made.forecast.memory.peak, made.forecast.reserved.peak, outside);
  return made;
}

// By kind: how many rows, and how long they take.
std::map<EventKind, std::pair<std::int64_t, Time>> totals(const Forecast& made) {
  std::map<EventKind, std::pair<std::int64_t, Time>> kinds;
  for (std::size_t i = 0; i < made.graph.rows.size(); ++i) {
    const Span& span = made.timeline.spans[i];
    auto& [count, time] = kinds[made.graph.rows[i].kind];
    ++count;
    time += span.end - std::max(span.start, span.arrive);
  }
  return kinds;
}

// The two kinds of events that change most, most first.
std::string what_differs(const Forecast& before, const Forecast& after) {
  const auto was = totals(before), is = totals(after);
  struct Change {
    EventKind kind;
    std::int64_t count;
    Time time;
  };
  std::vector<Change> changes;
  for (std::size_t k = 0; k < kEventKinds; ++k) {
    const auto kind = static_cast<EventKind>(k);
    const auto a = was.find(kind), b = is.find(kind);
    const auto [rows, time] = a == was.end() ? std::pair<std::int64_t, Time>{} : a->second;
    const auto [now, then] = b == is.end() ? std::pair<std::int64_t, Time>{} : b->second;
    if (now == rows && then == time) continue;
    changes.push_back({kind, now - rows, then - time});
  }
  const auto size = [](const Change& c) { return std::max(c.time, Time() - c.time); };
  std::ranges::stable_sort(changes, [&](const Change& a, const Change& b) { return size(a) > size(b); });
  std::vector<std::string> words;
  for (const Change& change : changes) {
    if (words.size() == 2 || size(change) < Time::ns(1000)) break;
    const std::string count = change.count == 0
                                  ? std::string()
                                  : fmt::format("{} {} ", std::abs(change.count), change.count < 0 ? "fewer" : "more");
    words.push_back(
        fmt::format("{}{} ({} of work)", count, to_string(change.kind), signed_seconds(change.time.seconds())));
  }
  return words.empty() ? "the same events" : fmt::format("{}", fmt::join(words, ", "));
}

}

TriedSetting as_it_is(const Job& job) {
  const Made made = make(job);
  return {{}, SettingPrice::kFree, made.seconds(), made.fit, ""};
}

std::vector<TriedSetting> try_settings(
    const JobOptions& options, const Job& base, const std::function<Job(const JobOptions&)>& load) {
  // Below a half per cent of the step or the memory it is not worth a setting.
  constexpr double kLeast = 0.005;
  const Made before = make(base);
  // A job that runs already at lower odds may keep them.
  const double odds = std::min(kConfidence, fit_probability(before.fit));
  const auto quicker = [&](double seconds) { return seconds <= before.seconds() * (1 - kLeast); };
  const auto smaller = [&](const Fit& fit) {
    const auto freed = as_double((fit.margin() - before.fit.margin()).count());
    return freed >= kLeast * as_double(fit.capacity.count());
  };
  const auto better = [&](const TriedSetting& a, const TriedSetting& b) {
    if (quicker(a.seconds) != quicker(b.seconds)) return quicker(a.seconds);
    if (quicker(a.seconds)) return a.seconds < b.seconds;
    return a.fit.margin() > b.fit.margin();
  };
  std::map<std::string, TriedSetting> best;  // by kind
  for (const Setting& setting : settings_of(base.resolved.plan)) {
    JobOptions changed = options;
    changed.assignments.push_back(setting.changes);
    std::optional<Job> job;
    try {
      job = load(changed);
    } catch (const Error&) {  // the plan or its runtime cannot have it
      continue;
    }
    const Made after = make(*job);
    const bool cheap = after.seconds() <= before.seconds() * (1 + kLeast);
    if (fit_probability(after.fit) < odds || !(quicker(after.seconds()) || (cheap && smaller(after.fit)))) continue;
    TriedSetting tried{
        setting.changes, setting.price, after.seconds(), after.fit, what_differs(before.forecast, after.forecast)};
    const auto found = best.find(setting.kind);
    if (found == best.end() || better(tried, found->second)) best[setting.kind] = std::move(tried);
  }
  auto list = list_of<TriedSetting>(best, [&](auto& each) { return std::move(each.second); });
  std::ranges::stable_sort(list, better);
  return list;
}

}
