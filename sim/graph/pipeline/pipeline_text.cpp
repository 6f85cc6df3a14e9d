#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "sim/base/error.h"
#include "sim/base/integers.h"
#include "sim/graph/pipeline/pipeline.h"

namespace foreshard {
namespace {

using Kind = PipelineAction::Kind;

// In the order of the enums.
constexpr std::array<std::string_view, 8> kSchedules = {
    "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV", "custom"};
constexpr std::array<std::string_view, 11> kKinds = {
    "F", "B", "I", "W", "UNSHARD", "RESHARD", "REDUCE_GRAD", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};
constexpr std::string_view kOverlap = ")OVERLAP_F_B";

[[noreturn]] void refuse(std::string_view word) {
  throw invalid_input(
      "'{}' is no action of a pipeline; expected such as 3F0, 0REDUCE_GRAD or (0F4;3B1)OVERLAP_F_B", word);
}

int read_number(std::string_view& word, std::string_view whole) {
  int value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || value < 0) refuse(whole);
  word.remove_prefix(at(end - word.data()));
  return value;
}

PipelineAction read_action(std::string_view word) {
  const std::string_view whole = word;
  PipelineAction action = {.stage = read_number(word, whole)};
  const std::string_view name = word.substr(0, word.find_first_of("0123456789"));
  const auto* const kind = std::ranges::find(kKinds, name);
  if (kind == kKinds.end()) refuse(whole);
  action.kind = static_cast<Kind>(kind - kKinds.begin());
  word.remove_prefix(name.size());
  if (!word.empty()) action.microbatch = read_number(word, whole);
  if (!word.empty()) refuse(whole);
  return action;
}

std::string text_of(const PipelineAction& action) {
  std::string text = fmt::format("{}{}", action.stage, kKinds[at(action.kind)]);
  if (action.microbatch >= 0) text += std::to_string(action.microbatch);
  return text;
}

std::string text_of(const PipelineTransfer& t) {
  return fmt::format(
      "{}{}{}{}{}{}", t.sends ? 's' : 'r', t.stage, t.forward ? 'F' : 'B', t.microbatch, t.sends ? '>' : '<', t.peer);
}

std::string text_of(const PipelineRow& row) {
  switch (row.kind) {
    case PipelineRow::Kind::kWait: return fmt::format("w{}", row.batch);
    case PipelineRow::Kind::kLocal:
      return fmt::format("{}LOCAL_{}{}", row.action.stage, kKinds[at(row.action.kind)], row.action.microbatch);
    case PipelineRow::Kind::kAction: return text_of(row.action);
    case PipelineRow::Kind::kBatch: break;
  }
  std::string transfers;
  for (const PipelineTransfer& transfer : row.transfers)
    transfers += (transfers.empty() ? "" : ",") + text_of(transfer);
  return fmt::format("[{}:{}]", row.batch, transfers);
}

}

std::optional<PipelineSchedule> pipeline_schedule_of(std::string_view name) {
  const auto* const found = std::ranges::find(kSchedules, name);
  if (found == kSchedules.end()) return std::nullopt;
  return static_cast<PipelineSchedule>(found - kSchedules.begin());
}

std::string text_of(const PipelineOrder& order) {
  std::string text;
  bool inside = false;  // of a pair
  for (const PipelineAction& action : order) {
    text += inside ? ";" : text.empty() ? "" : " ";
    if (action.overlaps_next) text += "(";
    text += text_of(action);
    if (inside) text += kOverlap;
    inside = action.overlaps_next;
  }
  return text;
}

PipelineOrder read_pipeline_order(std::string_view text) {
  PipelineOrder order;
  while (!text.empty()) {
    std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (word.empty() || word == ".") continue;
    if (word.front() != '(') {
      order.push_back(read_action(word));
      continue;
    }
    const std::size_t middle = word.find(';');
    if (middle == word.npos || !word.ends_with(kOverlap)) refuse(word);
    order.push_back(read_action(word.substr(1, middle - 1)));
    order.back().overlaps_next = true;
    word.remove_suffix(kOverlap.size());
    order.push_back(read_action(word.substr(middle + 1)));
  }
  return order;
}

std::string text_of(const PipelineRows& rows) {
  std::string text;
  for (const PipelineRow& row : rows) {
    const bool of_stage = row.kind == PipelineRow::Kind::kAction &&
                          (row.action.kind == Kind::kUnshard || row.action.kind == Kind::kReshard);
    if (!of_stage) text += (text.empty() ? "" : " ") + text_of(row);
  }
  return text;
}

}
