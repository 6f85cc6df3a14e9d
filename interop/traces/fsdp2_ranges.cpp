// A range is named by what runs, and in brackets by the modules of the unit.
#include <utility>

#include "interop/traces/fsdp2_steps.h"
#include "sim/base/parse.h"

namespace foreshard {
namespace {

using Label = FsdpRange::Label;

Label label_of(std::string_view text) {
  static constexpr std::pair<std::string_view, Label> kLabels[] = {
      {"FSDP::root_pre_forward", Label::kRootPreForward},
      {"FSDP::pre_forward", Label::kPreForward},
      {"FSDP::post_forward", Label::kPostForward},
      {"FSDP::pre_backward", Label::kPreBackward},
      {"FSDP::all_gather", Label::kAllGather},
      {"FSDP::all_gather_copy_out", Label::kCopyOut},
      {"FSDP::post_backward_accumulate", Label::kAccumulate},
      {"FSDP::post_backward_reshard", Label::kReshard},
      {"FSDP::post_backward_reduce", Label::kReduce},
      {"FSDP::root_post_backward_callback", Label::kRootPostBackward},
  };
  for (const auto& [name, label] : kLabels)
    if (text == name) return label;
  if (text.starts_with("Optimizer.step#")) return Label::kOptimizer;
  if (text.starts_with("ProfilerStep#")) return Label::kProfilerStep;
  return Label::kNone;
}

// Wrappers leave their names in the module's path.
std::string module_name(std::string_view text) {
  std::string name(text);
  for (const std::string_view part : {"_checkpoint_wrapped_module", "_orig_mod"}) {
    for (std::size_t at = name.find(part); at != std::string::npos; at = name.find(part)) {
      const bool dot_before = at > 0 && name[at - 1] == '.';
      const bool dot_behind = at + part.size() < name.size() && name[at + part.size()] == '.';
      name.erase(dot_before ? at - 1 : at, part.size() + (dot_before || dot_behind ? 1 : 0));
    }
  }
  return name;
}

}

FsdpRange read_fsdp_range(std::string_view text) {
  const std::size_t bracket = text.find(" (");
  FsdpRange read = {.label = label_of(text.substr(0, bracket))};
  if (read.label == Label::kProfilerStep) read.number = leading_number(text.substr(text.find('#') + 1), read.number);
  if (read.has_unit() && bracket != std::string_view::npos && text.ends_with(')'))
    read.unit = module_name(text.substr(bracket + 2, text.size() - bracket - 3));
  return read;
}

}
