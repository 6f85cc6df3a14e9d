#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "reports/validate/validate.h"
#include "reports/view/layout.h"
#include "reports/view/plan_words.h"

namespace foreshard {
namespace {

using Cells = std::vector<std::vector<std::string>>;

void append_indented(Lines& lines, const Lines& more) {
  for (const std::string& line : more) lines.push_back("  " + line);
}

constexpr const char* kNotMeasured = "not measured";

std::string verdict(double error, double allowed) { return std::abs(error) <= allowed ? "ok" : "OUTSIDE"; }

// What decides comes first: "not passed: step time -20.0 % (10 % allowed); memory not measured".
std::string verdict_of(const Validation& v) {
  std::vector<std::string> outside, within;
  const auto judge = [&](const char* what, double error, double allowed) {
    (std::abs(error) <= allowed ? within : outside)
        .push_back(fmt::format("{} {} ({} allowed)", what, signed_percent(error), percent_text(allowed)));
  };
  judge("step time", v.step_error, v.tolerances.step);
  judge("exposed communication", v.exposed_communication_error, v.tolerances.exposed);
  for (const MemoryComparison& m : v.memory) {
    if (!m.judged) continue;
    judge(m.what == "peak" ? "peak memory" : m.what.c_str(), m.bytes.error(), v.tolerances.memory);
  }
  return fmt::format("{}: {}{}", v.passed ? "passed" : "not passed", fmt::join(v.passed ? within : outside, ", "),
      v.memory_known ? "" : "; memory not measured");
}

Lines heading(const Validation& v, const RunRecord& record, const Paint& paint) {
  const Plan& plan = v.measured.plan;
  const bool traced = record.source == RunSource::kTrace;
  const std::string threads =
      record.threads > 0 ? fmt::format(", {} thread{} each", record.threads, record.threads == 1 ? "" : "s") : "";
  return {
      paint.bold(fmt::format("forecast against run · {} · {}@{} · {}", plan.model, to_string(plan.runtime.kind),
          plan.runtime.version, words_of(plan.mesh))),
      fmt::format("{}{} rank{} on {} ({}){}, {} step{}{}{}",
          traced         ? "trace of "
          : record.paced ? "rank 0, paced, of "
                         : "",
          record.world, record.world == 1 ? "" : "s", record.host, record.device.empty() ? record.cpu : record.device,
          record.device.empty() ? threads : "", v.steps, v.steps == 1 ? "" : "s", record.created.empty() ? "" : ", ",
          record.created),
  };
}

Lines figures(const Validation& v) {
  Cells cells = {{"", "forecast", "measured", "error", "allowed", ""}};
  const auto add = [&](const std::string& name, const std::string& predicted, const std::string& measured, double error,
                       double allowed) {
    cells.push_back({name, predicted, measured, signed_percent(error), percent_text(allowed), verdict(error, allowed)});
  };
  add("step time", seconds_text(v.step.predicted), seconds_text(v.step.measured), v.step_error, v.tolerances.step);
  add("exposed communication, of the step", seconds_text(v.exposed.predicted), seconds_text(v.exposed.measured),
      v.exposed_communication_error, v.tolerances.exposed);
  for (const MemoryComparison& m : v.memory) {
    const std::string name = m.what == "peak" ? "peak memory" : "  " + m.what;
    if (m.judged) {
      add(name, bytes_text(m.bytes.predicted), bytes_text(m.bytes.measured), m.bytes.error(), v.tolerances.memory);
    } else {
      cells.push_back({name, bytes_text(m.bytes.predicted),
          m.bytes.measured > 0 ? bytes_text(m.bytes.measured) : kNotMeasured, "", "", ""});
    }
  }
  cells.push_back({"waiting for peers and communicators", seconds_text(v.waiting.predicted),
      seconds_text(v.waiting.measured), "", "", ""});
  return aligned(cells);
}

Lines kinds(const Validation& v) {
  Cells cells = {{"by kind", "events", "forecast", "measured", "error", "waiting"}};
  for (const KindComparison& k : v.by_kind) {
    const bool waits = k.waiting.predicted > 0 || k.waiting.measured > 0;
    cells.push_back({to_string(k.kind), std::to_string(k.count), seconds_text(k.seconds.predicted),
        seconds_text(k.seconds.measured), k.seconds.measured > 0 ? signed_percent(k.seconds.error()) : "-",
        waits ? fmt::format("{} -> {}", seconds_text(k.waiting.predicted), seconds_text(k.waiting.measured)) : ""});
  }
  return aligned(cells);
}

Lines worst(const Validation& v) {
  Cells cells;
  for (const EventComparison& e : v.worst)
    cells.push_back({e.name, signed_seconds(e.seconds.measured - e.seconds.predicted), e.cause});
  // The cause on the left of its column: nothing stands behind it.
  std::size_t longest = 0;
  for (const auto& row : cells) longest = std::max(longest, display_width(row[2]));
  for (auto& row : cells) row[2] = left(row[2], longest);
  return aligned(cells);
}

Json comparison(const Comparison& c) { return {{"predicted_s", c.predicted}, {"measured_s", c.measured}}; }

Json with_error(Json json, const Comparison& c) {
  json["error"] = c.measured > 0 ? Json(c.error()) : Json(nullptr);
  return json;
}

}

std::string validation_text(const Validation& v, const RunRecord& record, Color color) {
  const Paint paint(color);
  Lines lines;
  for (const std::string& line : wrapped(verdict_of(v), kTextWidth, 2))
    lines.push_back(v.passed ? paint.green(line) : paint.red(line));
  for (std::string& line : heading(v, record, paint)) lines.push_back(std::move(line));
  lines.emplace_back();
  append_indented(lines, figures(v));
  lines.emplace_back();
  append_indented(lines, kinds(v));
  if (!v.worst.empty()) {
    lines.emplace_back();
    lines.push_back(paint.bold("events that differ most (measured - forecast)"));
    append_indented(lines, worst(v));
  }
  if (!v.notes.empty()) lines.emplace_back();
  for (const std::string& note : v.notes)
    for (const std::string& line : wrapped("note: " + note, kTextWidth, 2)) lines.push_back(paint.yellow(line));
  for (const MemoryComparison& m : v.memory)
    if (!m.note.empty()) lines.push_back(paint.dim(fmt::format("{}: {}", m.what, m.note)));
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

Json to_json(const Validation& v) {
  Json by_kind = json_list(v.by_kind, [&](const KindComparison& k) -> Json {
    Json entry = {{"kind", to_string(k.kind)}, {"count", k.count}};
    entry.update(comparison(k.seconds));
    entry = with_error(std::move(entry), k.seconds);
    entry["waiting"] = comparison(k.waiting);
    return entry;
  });
  Json worst = json_list(v.worst, [&](const EventComparison& e) -> Json {
    Json entry = {{"id", e.event}, {"name", e.name}};
    entry.update(comparison(e.seconds));
    entry["difference_s"] = e.seconds.measured - e.seconds.predicted;
    entry["host"] = comparison(e.host);
    entry["waiting"] = comparison(e.waiting);
    entry["duration"] = comparison(e.duration);
    entry["cause"] = e.cause;
    return entry;
  });
  Json memory = json_list(v.memory, [&](const MemoryComparison& m) -> Json {
    Json entry = {{"what", m.what}, {"predicted_bytes", static_cast<std::int64_t>(m.bytes.predicted)},
        {"measured_bytes", m.bytes.measured > 0 ? Json(static_cast<std::int64_t>(m.bytes.measured)) : Json(nullptr)}};
    entry = with_error(std::move(entry), m.bytes);
    entry["judged"] = m.judged;
    if (!m.note.empty()) entry["note"] = m.note;
    return entry;
  });
  Json json;
  json["schema"] = "foreshard.validation/1";
  json["fingerprint"] = v.measured.fingerprint;
  json["step_error"] = v.step_error;
  json["exposed_communication_error"] = v.exposed_communication_error;
  json["memory_error"] = v.memory_known ? Json(v.memory_error) : Json(nullptr);
  json["passed"] = v.passed;
  json["verdict"] = verdict_of(v);
  json["tolerances"] = {{"step_error", v.tolerances.step}, {"exposed_communication_error", v.tolerances.exposed},
      {"memory_error", v.tolerances.memory}};
  json["steps"] = v.steps;
  json["repeat_spread"] = v.spread;
  json["step"] = comparison(v.step);
  json["exposed_communication"] = comparison(v.exposed);
  json["waiting"] = comparison(v.waiting);
  json["memory"] = std::move(memory);
  json["by_kind"] = std::move(by_kind);
  json["worst"] = std::move(worst);
  json["notes"] = v.notes;
  json["predicted"] = to_json(v.predicted);
  json["measured"] = to_json(v.measured);
  return json;
}

}
