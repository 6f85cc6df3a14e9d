#include "exec/engine/device_step.h"

#include <ATen/Functions.h>

#include "exec/engine/device_update.h"

namespace foreshard {
DeviceStep::DeviceStep(Accelerator& accelerator, const EventGraph& event_graph)
    : device(accelerator), rows(event_graph.rows.size()), issued(event_graph.rows.size()) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].start = device.new_event();
    rows[i].end = device.new_event();
    if (event_graph.rows[i].communicator != kNoCommunicator) rows[i].arrive = device.new_event();
  }
  uploaded = device.new_event();
  const auto on_device = at::TensorOptions().device(device.device());
  norm = at::zeros({1}, on_device.dtype(at::kDouble));
  scalars = at::zeros({2}, on_device.dtype(at::kFloat));
  host_scalars = at::zeros({2}, at::TensorOptions().dtype(at::kFloat));
}

DeviceStep::~DeviceStep() {
  if (graph != nullptr) device.free_graph(graph);
  for (const RowEvents& row : rows) {
    for (DeviceEvent event : {row.start, row.arrive, row.end})
      if (event != nullptr) device.free_event(event);
  }
  if (uploaded != nullptr) device.free_event(uploaded);
}

void DeviceStep::upload(const Plan& plan, std::int64_t step, std::span<MicroBatch> host_batches) {
  number = step;
  const auto on_device = at::TensorOptions().device(device.device());
  if (batches.empty()) {
    batches.assign(host_batches.begin(), host_batches.end());
    for (MicroBatch& batch : batches) {
      batch.tokens = at::empty({batch.count()}, on_device.dtype(at::kLong));
      batch.labels = at::empty({batch.count()}, on_device.dtype(at::kLong));
      batch.loss_sum = at::zeros({1}, on_device.dtype(at::kFloat));
    }
  }
  for (std::size_t m = 0; m < host_batches.size(); ++m) {
    batches[m].loss_scale = host_batches[m].loss_scale;
    batches[m].tokens.copy_(host_batches[m].tokens);
    batches[m].labels.copy_(host_batches[m].labels);
    batches[m].loss_sum.zero_();
  }
  host_scalars.copy_(step_scalars(plan, step));
  scalars.copy_(host_scalars);
  device.record(uploaded);
}

std::vector<Span> DeviceStep::spans(
    DeviceEvent begin, std::chrono::steady_clock::time_point zero, double offset) const {
  std::vector<Span> spans(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto after = [&](DeviceEvent event) { return time_of(device.seconds_between(begin, event)); };
    const double at = std::chrono::duration<double>(issued[i] - zero).count();
    spans[i].issue = time_of(at - offset);
    spans[i].start = after(rows[i].start);
    spans[i].arrive = rows[i].arrive == nullptr ? spans[i].start : after(rows[i].arrive);
    spans[i].end = after(rows[i].end);
  }
  return spans;
}

void DeviceStep::read_back(const Plan& plan, StepResult& result) const {
  for (const MicroBatch& batch : batches) {
    float sum = 0;
    device.to_host(&sum, batch.loss_sum.const_data_ptr(), sizeof sum);
    result.losses.push_back(static_cast<double>(sum) / as_double(batch.count()));
  }
  if (plan.optimizer.clip_norm) device.to_host(&result.gradient_norm, norm.const_data_ptr(), sizeof(double));
}

}
