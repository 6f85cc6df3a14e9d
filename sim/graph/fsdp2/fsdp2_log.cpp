// The host log of runtime fsdp2, and the waits that it names.
#include "sim/base/letters.h"
#include "sim/graph/fsdp2/fsdp2_builder.h"

namespace foreshard {

std::string_view Fsdp2::word(Training training) {
  return word_at(training, {"idle", "forward", "pre_backward", "post_backward"}, "");
}

namespace {

std::string_view short_name(Stream stream) { return word_at(stream, {"D", "CI", "AG", "RS", "AR"}, ""); }

constexpr std::string_view kWholeStreams[] = {"stream D", "stream CI", "stream AG", "stream RS", "stream AR"};

}

void Fsdp2::log(std::string_view kind, HostEvent event) {
  event.kind = kind;
  if (event.stream.empty()) event.stream = "D";
  if (event.unit >= 0) event.state = group(event.unit).logged;
  event.microbatch = log_microbatch_;
  event.actions = static_cast<std::uint32_t>(graph().actions.size());
  events_.push_back(event);
}

void Fsdp2::log_here(std::string_view kind, HostEvent event) {
  event.unit = log_unit_;
  log(kind, event);
}

void Fsdp2::log_operator(std::string_view name, Stream stream, std::int64_t bytes, DType dtype) {
  if (!logging_) return;
  log_here("operator", {.stream = short_name(stream), .bytes_out = bytes, .dtype = to_string(dtype), .on = name});
}

std::string_view Fsdp2::name(Stream stream) { return short_name(stream); }

Fsdp2::DeviceEvent Fsdp2::record(Stream stream, std::string_view label, std::int32_t unit) const {
  return {tail(stream), label, unit, true};
}

void Fsdp2::wait_event(Stream stream, const DeviceEvent& event) {
  wait(stream, event.row);
  if (logging_) log_here("wait", {.stream = short_name(stream), .on = event.label, .on_unit = event.unit});
}

void Fsdp2::wait_stream(Stream stream, Stream other) {
  wait(stream, tail(other));
  if (logging_) log_here("wait", {.stream = short_name(stream), .on = kWholeStreams[at(other)]});
}

void Fsdp2::wait_gather_streams(const DeviceEvent& event) {
  wait_event(Stream::kCopyIn, event);
  wait_event(Stream::kAllGather, event);
}

}
