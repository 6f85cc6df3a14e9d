// The answer on one screen of 40 lines. Every block has its budget of lines, assumed values get what is left and say
// how many more there are, and the JSON form has everything; no line is cut, and warnings are given whole.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "reports/report_parts.h"
#include "reports/view/layout.h"
#include "reports/view/plan_words.h"
#include "reports/view/views.h"
#include "sim/base/unit_strings.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostLines = 40;  // unless warnings take more
constexpr std::size_t kBarWidth = 40;
constexpr std::size_t kNameWidth = 34;
constexpr std::size_t kMostBars = 9;
constexpr std::size_t kMostCategories = 7;
constexpr double kSmallestShare = 0.0005;
constexpr std::string_view kCaptured = "captured";  // Report::origin

// The answer before its reasons.
std::string verdict(const Report& report, const Paint& paint) {
  const Fit& fit = report.fit;
  const std::string words = fit_words(fit, report.fit_probability);
  if (!fit.fits()) return paint.red(paint.bold(words));
  const std::string spare =
      fmt::format("{}: {} of {} to spare", words, format_bytes(fit.margin()), format_bytes(fit.capacity));
  const bool is_sure = report.fit_probability >= kConfidence;
  return paint.bold(is_sure ? paint.green(spare) : paint.yellow(spare));
}

Lines plan_lines(const Report& report, const Forecast& forecast, const Paint& paint) {
  const Plan& plan = report.plan;
  const double sequences = as_double(global_batch(plan));
  // Of a captured program's plan its libraries are known.
  const bool is_captured = report.origin == kCaptured;
  Lines lines;
  lines.push_back(
      paint.bold(fmt::format("{} · {:.3g} B parameters · {}", forecast.model.name, as_double(report.parameters) * 1e-9,
          is_captured ? fmt::format("captured, PyTorch {}", plan.runtime.version)
                      : fmt::format("{}@{}", to_string(plan.runtime.kind), plan.runtime.version))));
  lines.push_back(cluster_words(report.cluster));
  if (is_captured) return lines;
  lines.push_back(
      fmt::format("{} · sequence {}{} · micro-batch {} x {} accumulation = {} tokens per step", words_of(plan.mesh),
          plan.batch.sequence, plan.batch.images > 0 ? fmt::format(", images {}", plan.batch.images) : "",
          plan.batch.micro_batch, plan.batch.accumulation, cardinal(sequences * as_double(plan.batch.sequence))));
  // Runtimes that hold the model whole gather nothing in a pass.
  const RuntimeKind kind = plan.runtime.kind;
  const bool gathers = kind != RuntimeKind::kDdp && kind != RuntimeKind::kMegatron && kind != RuntimeKind::kZero1 &&
                       kind != RuntimeKind::kZero2;
  const std::string gathering =
      gathers ? fmt::format("prefetch {} · reshard {} · ", words_of(plan.prefetch), reshard_words(plan)) : "";
  lines.push_back(fmt::format("{}recompute {} · {} parameters, {} reduction", gathering, recompute_words(plan),
      to_string(plan.param_dtype), to_string(plan.reduce_dtype)));
  return lines;
}

// What a quantity says after its value: interval and evidence.
std::string spread(const Quantity& q, auto&& format) {
  if (q.low == q.high) return fmt::format("({})", to_string(q.evidence));
  return fmt::format("{} .. {} ({})", format(q.low), format(q.high), to_string(q.evidence));
}

Lines figure_lines(const Report& report, const Paint& paint) {
  Lines lines;
  const auto line = [&](const char* name, const std::string& value, const std::string& rest) {
    lines.push_back(left(name, 16) + paint.bold(right(value, 10)) + "   " + rest);
  };
  const bool has_interval = report.seconds.low != report.seconds.high;
  line("step time", seconds_text(report.seconds.value),
      (!has_interval   ? ""
          : report.run ? "quartiles "
                       : "90 % between ") +
          spread(report.seconds, seconds_text));
  if (!report.pipeline.empty()) {
    double idle = 0;
    Bytes least = report.pipeline.front().peak, most;
    for (const Report::PipelineRank& rank : report.pipeline) {
      idle += rank.idle / as_double(report.pipeline.size());
      least = std::min(least, rank.peak);
      most = std::max(most, rank.peak);
    }
    const std::int64_t own = report.plan.mesh.pp_index(report.plan.rank());
    const bool is_fullest = report.pipeline[at(own)].peak == most;
    line("pipeline", percent_text(idle),
        fmt::format("idle, of {} ranks with {} stage{} each by {}; below is rank {}{} ({} at {} on the others)",
            report.pipeline.size(), report.pipeline.front().stages.size(),
            report.pipeline.front().stages.size() > 1 ? "s" : "", to_string(report.plan.pipeline.schedule), own,
            is_fullest ? ", the fullest" : "", format_bytes(is_fullest ? least : most), is_fullest ? "least" : "most"));
  }
  if (const std::string open = open_stack_text(report.open_stack); !open.empty())
    append(lines, wrapped(open, kTextWidth, 2));
  if (report.origin != kCaptured) {
    const std::int64_t gpus = report.plan.mesh.world();
    std::string rates = spread(report.tokens_per_s_per_gpu, cardinal);
    if (gpus > 1) {
      rates += fmt::format(
          "; {} on all {} GPUs", cardinal(report.tokens_per_s_per_gpu.value * as_double(gpus)), format_count(gpus));
    }
    line("tokens/s per GPU", cardinal(report.tokens_per_s_per_gpu.value), rates);
  }
  const std::string hfu = report.hfu.value > report.mfu.value
                              ? fmt::format("; {} with recomputed FLOPs", percent_text(report.hfu.value))
                              : std::string();
  // Where the machine's peak is not known there is none.
  if (report.mfu.value > 0) line("MFU", percent_text(report.mfu.value), spread(report.mfu, percent_text) + hfu);
  line("communication", seconds_text(report.communication.value),
      fmt::format("of which {} exposed, {}", seconds_text(report.exposed_communication.value),
          spread(report.exposed_communication, seconds_text)));
  return lines;
}

struct NamedAmount {
  std::string name;
  double amount = 0;
};

// The largest ones in their order, the rest as one; so small ones that their share would read 0.0 % count as rest.
std::vector<NamedAmount> largest(const std::vector<NamedAmount>& all, std::size_t most) {
  double total = 0;
  std::vector<double> amounts;
  for (const NamedAmount& a : all) {
    total += a.amount;
    amounts.push_back(a.amount);
  }
  std::sort(amounts.rbegin(), amounts.rend());
  const double least = std::max(all.size() > most ? amounts[most - 2] : 0.0, kSmallestShare * total);
  std::vector<NamedAmount> kept;
  NamedAmount rest{"others", 0};
  for (const NamedAmount& a : all)
    if (a.amount >= least && (all.size() <= most || kept.size() + 1 < most)) kept.push_back(a);
    else rest.amount += a.amount;
  if (rest.amount > 0) kept.push_back(rest);
  return kept;
}

std::string painted_bar(const std::string& name, double fraction, const Paint& paint) {
  const std::string cells = bar(fraction, kBarWidth);
  if (name.rfind("exposed", 0) == 0) return paint.yellow(cells);
  if (name == "host" || name == "stream dependency") return paint.red(cells);
  return paint.cyan(cells);
}

Lines time_lines(const Forecast& forecast, const Paint& paint) {
  auto bars = list_of<NamedAmount>(waterfall(forecast.graph, forecast.timeline), [&](const WaterfallBar& b) {
    return NamedAmount{b.what, b.time.seconds()};
  });
  bars = largest(bars, kMostBars);
  double longest = 0;
  for (const NamedAmount& b : bars) longest = std::max(longest, b.amount);
  const double step = forecast.timeline.period.seconds();
  Lines lines = {"", paint.bold("where the step goes")};
  for (const NamedAmount& b : bars) {
    lines.push_back("  " + left(b.name, kNameWidth) + right(seconds_text(b.amount), 8) +
                    right(percent_text(step > 0 ? b.amount / step : 0), 8) + "  " +
                    painted_bar(b.name, b.amount / longest, paint));
  }
  return lines;
}

// Of a measurement: what the engine holds, and what the process does.
Lines measured_memory_lines(const Report& report, const Paint& paint) {
  Lines lines = {"", paint.bold("memory per rank, the largest")};
  const auto line = [&](const std::string& name, double bytes) {
    lines.push_back("  " + left(name, kNameWidth) + right(bytes_text(bytes), 8));
  };
  for (const auto& [name, bytes] : report.at_peak) line(name, as_double(bytes.count()));
  line("peak resident memory", report.peak_reserved.value);
  return lines;
}

Lines run_lines(const RunFigures& run, const Paint& paint) {
  Lines lines = {"", paint.bold("run")};
  if (!run.losses.empty()) {
    lines.push_back(
        fmt::format("  loss {:.4f} -> {:.4f} in {} steps", run.losses.front(), run.losses.back(), run.losses.size()));
  }
  lines.push_back(fmt::format("  {} tokens/s, all ranks", cardinal(run.tokens_per_s)));
  if (!run.parameter_hash.empty()) lines.push_back("  parameters " + run.parameter_hash);
  return lines;
}

Lines memory_lines(const Report& report, const Paint& paint) {
  if (report.run) return measured_memory_lines(report, paint);
  auto categories = list_of<NamedAmount>(report.at_peak, [&](const auto& each) {
    return NamedAmount{each.first, as_double(each.second.count())};
  });
  categories = largest(categories, kMostCategories);
  const Fit& fit = report.fit;
  const auto capacity = as_double(fit.capacity.count());
  Lines lines = {"", paint.bold("memory per GPU at the peak: " + report.peak_event)};
  const auto line = [&](const std::string& name, double bytes, const std::string& cells) {
    lines.push_back("  " + left(name, kNameWidth) + right(bytes_text(bytes), 8) + " " +
                    right(percent_text(capacity > 0 ? bytes / capacity : 0), 7) + "  " + cells);
  };
  for (const NamedAmount& c : categories)
    line(c.name, c.amount, paint.cyan(bar(capacity > 0 ? c.amount / capacity : 0, kBarWidth)));
  const auto used = as_double((fit.outside + fit.reserved).count());
  const std::string cells = bar(capacity > 0 ? used / capacity : 0, kBarWidth);
  line("in all, with cache and context", used, fit.fits() ? paint.green(cells) : paint.red(cells));
  lines.push_back(fmt::format("  {} allocated + {} cached by the allocator + {} outside it",
      format_bytes(fit.allocated), format_bytes(fit.reserved - fit.allocated), format_bytes(fit.outside)));
  const Quantity total = total_memory(report);
  lines.push_back(fmt::format("  90 % between {} and {} in all", bytes_text(total.low), bytes_text(total.high)));
  if (!report.outside.empty()) {
    auto items = list_of<std::string>(
        report.outside, [&](const OutsideItem& item) { return format_bytes(item.bytes) + " " + item.name; });
    lines.push_back("  outside: " + fmt::format("{}", fmt::join(items, ", ")));
  }
  if (report.host_peak >= Bytes(1 << 20))  // less than that is step counters
    lines.push_back(fmt::format("  host memory: {} per rank", format_bytes(report.host_peak)));
  if (const Report::DriverCalls& calls = report.steady_calls; calls.retries > 0) {
    lines.push_back(fmt::format("  short of memory: {} retries a step, {} cudaMalloc, {} cudaFree, {} of the host{}",
        calls.retries, calls.allocs, calls.frees, format_time(Time::seconds(calls.seconds)),
        report.driver_calls_repeat ? "" : "; no two steps alike"));
  }
  // Decimal, as the claims about sharding are ("280 MB instead of 140 GB").
  constexpr double kMega = 1e6, kGiga = 1e9;
  const Sharding& sharding = report.sharding;
  if (sharding.whole == Bytes(0)) return lines;  // a captured program's
  lines.push_back(fmt::format("  parameters in {}: {:.1f} GB whole, {:.1f} MB per GPU ({:.2f} % padding)",
      to_string(sharding.dtype), as_double(sharding.whole.count()) / kGiga, as_double(sharding.per_gpu.count()) / kMega,
      100.0 * as_double(sharding.padding.count()) / as_double(std::max<std::int64_t>(1, sharding.per_gpu.count()))));
  return lines;
}

// Keys and values without their reasons, as many as `most` lines hold; a key that shares its
// mapping with the one before is written without it.
Lines assumed_lines(const Report& report, std::size_t most, const Paint& paint) {
  if (report.assumed.empty() || most < 2) return {};
  std::string text = "assumed:";
  std::string mapping;
  Lines lines;
  std::size_t shown = 0;
  for (const auto& [key, value] : report.assumed) {
    const std::size_t dot = key.find('.');
    const std::string own = dot == std::string::npos ? "" : key.substr(0, dot + 1);
    const bool joins = !own.empty() && own == mapping;
    if (text.back() != ':') text += joins ? "," : ";";
    text += " " + (joins ? key.substr(dot + 1) : key) + " " + value.substr(0, value.find(" ("));
    mapping = own;
    ++shown;
    const std::size_t rest = report.assumed.size() - shown;
    const std::string more = rest > 0 ? fmt::format("; and {} more (--json)", rest) : "";
    Lines longer = wrapped(text + more, kTextWidth, 2);
    if (longer.size() > most - 1) break;
    lines = std::move(longer);
  }
  for (std::string& line : lines) line = paint.dim(line);
  lines.insert(lines.begin(), "");
  return lines;
}

Lines warning_lines(const Report& report, const Paint& paint) {
  Lines lines;
  for (const std::string& warning : report.warnings)
    for (const std::string& line : wrapped("warning: " + warning, kTextWidth, 2)) lines.push_back(paint.yellow(line));
  return lines;
}

}

std::string to_text(const Report& report, const Forecast& forecast, Color color) {
  const Paint paint(color);
  Lines lines;
  if (!report.run) lines.push_back(verdict(report, paint));
  append(lines, plan_lines(report, forecast, paint));
  lines.emplace_back();
  append(lines, figure_lines(report, paint));
  append(lines, time_lines(forecast, paint));
  append(lines, memory_lines(report, paint));
  if (report.run) append(lines, run_lines(*report.run, paint));
  const Lines warned = warning_lines(report, paint);
  const std::size_t taken = lines.size() + warned.size();
  append(lines, assumed_lines(report, kMostLines - std::min(taken, kMostLines), paint));
  append(lines, warned);
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

}
