// Every row goes to the lane of its stream when it is issued:
//
//   the lane waits for the ends of the row's waits (those on its own lane are in order anyway)
//   event `start`; for a collective whose communicator was last used on another lane, the lane
//   waits for that one's end, then event `arrive`
//   what the row does; event `end`
//
// A step begins at the end of the compute lane's last row of the step before: all other lanes wait for it, for the
// optimizer writes what gathers read. There are two sets of events (DeviceStep), so that one step can be issued while
// the one before still runs; they are read when a step is collected, after its last compute row is done (which waits
// for all else). The host then knows every time relative to the step's begin. Issue times are the host's own clock, put
// onto the device's by the moments at which the first step began on both.
//
// A step may be recorded once per set of events and replayed (--graph): its rows, waits and events
// become one graph that hangs between the compute lane's last row of the step before and the end
// of the step. Rows then have one issue time.
//
// Tokens go to the device and losses come back on a lane of their own, which never waits: the host
// waits for that lane, and must not wait for the step that runs.
#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "exec/device/device_communicators.h"
#include "exec/engine/backend.h"
#include "exec/engine/device_step.h"
#include "exec/engine/device_update.h"
#include "exec/memory/flat_storage.h"
#include "reports/view/event_names.h"
#include "sim/base/integers.h"

namespace foreshard {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

constexpr std::size_t kSteps = 2;
// The norm's all-reduce moves as many bytes as the graph says (sim/graph/native.cpp, kNormBytes);
// the sum is the first of these doubles.
constexpr std::int64_t kNormDoubles = 67;
constexpr std::size_t kEnds = 4;  // more than the steps between the oldest uncollected and the next

class DeviceBackend final : public Backend {
 public:
  DeviceBackend(const BackendParts& parts, Accelerator& accelerator)
      : parts_(parts),
        graph_(parts.graph),
        units_(parts.units),
        device_(accelerator),
        update_(parts.units, parts.model, parts.plan, accelerator) {
    std::vector<DeviceGroup> groups;
    for (const auto& c : graph_.communicators) {
      const RankGroup group = rank_group(c, parts.world.rank());
      groups.push_back({accelerator, parts.world, group.name, group.ranks, parts.pacing != nullptr,
          static_cast<int>(parts.plan.collectives.max_ctas)});
    }
    communicators_ = make_device_communicators(groups);
    // Communication goes first where both wait for a place, as c10d's streams do.
    for (std::size_t s = 0; s < kStreams; ++s) lanes_[s] = accelerator.open_lane(s != 0);
    copies_ = accelerator.open_lane(false);
    fifo_.resize(graph_.communicators.size());
    for (std::size_t i = 0; i < kSteps; ++i) steps_.push_back(std::make_unique<DeviceStep>(accelerator, graph_));
    for (DeviceEvent& event : ends_) event = accelerator.new_event();
    for (DeviceEvent& event : joins_) event = accelerator.new_event();
    fork_ = accelerator.new_event();
    if (std::getenv("FORESHARD_NVTX") != nullptr) names_.emplace(graph_, parts.model);
    norm_sum_ = zeros(at::kDouble, kNormDoubles);
    host_norm_ = at::zeros({2}, at::kDouble);
    last_of_stream_.fill(kNoEvent);
    for (std::size_t i = 0; i < graph_.rows.size(); ++i)
      last_of_stream_[at(graph_.rows[i].stream)] = static_cast<EventId>(i);
    // Paced communicators measure what their kernels cost beside the request: now, while nothing else runs.
    for (std::size_t id = 0; id < graph_.rows.size(); ++id) {
      const std::uint8_t c = graph_.works[graph_.rows[id].work].communicator;
      if (is_collective(graph_.rows[id].kind) && c != kNoCommunicator) pace(static_cast<EventId>(id), c);
    }
    device_.enter(lane(Stream::kCompute));
  }

  ~DeviceBackend() override {
    // A step that nobody collected may wait for a peer that is gone.
    if (issued_ != collected_) abort();
    try {
      device_.synchronize();
    } catch (...) {  // the device failed before; that was said then
    }
    communicators_.clear();
    steps_.clear();
    for (DeviceEvent event : ends_) free(event);
    for (DeviceEvent event : joins_) free(event);
    free(fork_);
  }

  int ahead() const override { return parts_.plan.host_sync == HostSync::kStep ? 0 : 1; }

  // --- steps ---

  std::span<MicroBatch> begin_step(std::int64_t number, std::span<MicroBatch> batches) override {
    FORESHARD_CHECK(issued_ - collected_ < static_cast<std::int64_t>(kSteps),
        "a step is issued before the last but one was collected");
    DeviceStep& step = next_step();
    device_.enter(copies_);
    step.upload(parts_.plan, number, batches);
    device_.enter(lane(Stream::kCompute));
    if (!follows_) {
      // Nothing runs: the moment is the same on both clocks.
      device_.synchronize();
      device_.record(end_of(issued_ - 1));
      device_.synchronize(end_of(issued_ - 1));
      host_zero_ = Clock::now();
      origin_ = 0;
      follows_ = true;
    }
    device_.wait(step.uploaded);
    for (std::size_t s = 1; s < kStreams; ++s) {
      device_.enter(lanes_[s]);
      device_.wait(end_of(issued_ - 1));
    }
    current_lane_ = -1;
    return step.batches;
  }

  // The first steps make whatever libraries make once (handles, connections, workspaces). Then one
  // step of either set of events is recorded, and from there on replayed.
  void run_rows(const std::function<void()>& rows) override {
    if (!parts_.replays || issued_ < kEagerSteps) return rows();
    DeviceStep& step = next_step();
    device_.enter(lane(Stream::kCompute));
    if (step.graph == nullptr) {
      step.graph = device_.capture([this, rows] { record_rows(rows); });
      device_.enter(lane(Stream::kCompute));
    }
    const auto begin = Clock::now();
    device_.replay(step.graph);
    std::ranges::fill(step.issued, begin);
  }

  void issue(EventId id, const std::function<void()>& run) override {
    DeviceStep& step = next_step();
    const Row& row = graph_.rows[at(id)];
    if (row.host_wait != kNoEvent) wait_for(step.rows[at(row.host_wait)].end);
    step.issued[at(id)] = Clock::now();
    const Lane own = lane(row.stream);
    if (own != current_lane_) device_.enter(own);
    current_lane_ = own;
    DeviceStep::RowEvents& events = step.rows[at(id)];
    for (const EventId awaited : graph_.waits_of(id))
      if (graph_.rows[at(awaited)].stream != row.stream) device_.wait(step.rows[at(awaited)].end);
    device_.record(events.start);
    if (row.communicator != kNoCommunicator) {
      Fifo& fifo = fifo_[row.communicator];
      if (fifo.last != nullptr && fifo.lane != own) device_.wait(fifo.last);
      device_.record(events.arrive);
      fifo = {events.end, own};
    }
    if (names_) device_.range_begin(names_->of(id).c_str());
    run();
    if (names_) device_.range_end();
    device_.record(events.end);
  }

  void end_step() override {
    device_.enter(lane(Stream::kCompute));
    device_.record(end_of(issued_));
    ++issued_;
  }

  StepResult collect() override {
    FORESHARD_CHECK(collected_ < issued_, "no step to collect");
    DeviceStep& step = *steps_[at(collected_) % kSteps];
    wait_for(end_of(collected_));
    for (const EventId last : last_of_stream_)  // done as well, for the optimizer waits for all
      if (last != kNoEvent) wait_for(step.rows[at(last)].end);
    StepResult result;
    const DeviceEvent begin = end_of(collected_ - 1);
    const auto host_zero = std::chrono::duration<double>(host_zero_.time_since_epoch()).count();
    result.times.step = step.number;
    result.times.begin = time_of(host_zero + origin_);
    result.times.spans = step.spans(begin, host_zero_, origin_);
    const double period = device_.seconds_between(begin, end_of(collected_));
    result.times.duration = time_of(period);
    origin_ += period;
    ++collected_;
    device_.enter(copies_);
    step.read_back(parts_.plan, result);
    device_.enter(lane(Stream::kCompute));
    return result;
  }

  void forget_begin() override {
    sync();
    follows_ = false;
  }
  void sync() override { device_.synchronize(); }

  // --- failures ---

  void fail(EventId id, std::exception_ptr cause) override {
    if (!failure_.cause) failure_ = {id, std::move(cause)};
  }
  bool failed() const override { return failure_.cause != nullptr; }
  EventFailure failure() const override { return failure_; }
  void abort() override {
    for (const auto& communicator : communicators_) communicator->abort();
  }
  void drain() override {}

  // --- what rows do ---

  Accelerator* device() override { return &device_; }
  int group_index(std::uint8_t c) const override { return communicators_[c]->index(); }
  int group_size(std::uint8_t c) const override { return communicators_[c]->size(); }

  void all_gather(EventId id, std::uint8_t c, void* whole, std::size_t shard_bytes) override {
    pace(id, c);
    communicators_[c]->all_gather(whole, shard_bytes, parts_.plan.param_dtype);
  }

  void reduce_scatter(const ReduceScatterCall& call) override {
    void* target = call.target;
    const bool is_apart = call.mode == SumMode::kApart;
    if (is_apart) {
      at::Tensor& sum = apart_[call.apart];
      sum = at::empty({call.shard}, options(scalar_type(parts_.plan.reduce_dtype)));
      target = sum.mutable_data_ptr();
    }
    FORESHARD_CHECK(call.mode != SumMode::kAdd, "the library's sums begin anew");
    FORESHARD_CHECK(is_apart || parts_.plan.reduce_dtype == DType::kFp32, "gradients of another dtype are added later");
    pace(call.event, call.communicator);
    communicators_[call.communicator]->reduce_scatter(call.whole, target, at(call.shard), parts_.plan.reduce_dtype);
  }

  void accumulate(const AccumulateCall& call) override {
    at::Tensor gradient = tensor_over(call.target, call.shard, at::kFloat, device_.device());
    at::Tensor source;
    if (call.slot != nullptr) {
      source = tensor_over(
          const_cast<std::byte*>(call.slot), call.shard, scalar_type(parts_.plan.reduce_dtype), device_.device());
    } else {
      const auto left = apart_.extract(call.apart);
      FORESHARD_CHECK(!left.empty(), "no reduce-scatter left a sum");
      source = left.mapped();
    }
    call.mode == SumMode::kAdd ? gradient.add_(source) : gradient.copy_(source);
  }

  void all_reduce_gradient(EventId id, std::uint8_t c, std::span<float> gradient) override {
    pace(id, c);
    communicators_[c]->all_reduce(gradient.data(), gradient.size());
  }
  void layer_collective(const LayerCollectiveCall& call) override {
    pace(call.event, call.communicator);
    DeviceCommunicator& communicator = *communicators_[call.communicator];
    const DType dtype = call.in.scalar_type() == at::kFloat ? DType::kFp32 : DType::kBf16;
    if (call.kind != EventKind::kAllGather) {
      return communicator.reduce_scatter(
          call.in.const_data_ptr(), call.out.mutable_data_ptr(), at(call.out.numel()), dtype);
    }
    auto* whole = static_cast<std::byte*>(call.out.mutable_data_ptr());
    device_.copy(whole + at(communicator.index()) * call.in.nbytes(),
        static_cast<const std::byte*>(call.in.const_data_ptr()), call.in.nbytes());
    communicator.all_gather(whole, call.in.nbytes(), dtype);
  }
  void all_reduce_partial(EventId id, std::uint8_t c, std::byte* values, std::int64_t count) override {
    pace(id, c);
    communicators_[c]->all_reduce(reinterpret_cast<float*>(values), at(count));
  }
  void all_reduce_norm(EventId id, std::uint8_t c) override {
    pace(id, c);
    communicators_[c]->all_reduce(norm_sum_.mutable_data_ptr<double>(), at(norm_sum_.numel()));
  }
  void grad_norm() override {
    if (!units_.offloads()) return update_.sum_of_squares(norm_sum_);
    update_.sum_of_squares(host_norm_);
    device_.to_device(norm_sum_.mutable_data_ptr(), host_norm_.const_data_ptr(), sizeof(double));
  }
  void grad_scale() override {
    const at::Tensor norm = next_step().norm.select(0, 0);
    if (!units_.offloads()) return update_.clip(norm_sum_, norm);
    device_.to_host(host_norm_.mutable_data_ptr(), norm_sum_.const_data_ptr(), sizeof(double));
    update_.clip(host_norm_, host_norm_.select(0, 1));
    device_.to_device(norm.mutable_data_ptr(), host_norm_.select(0, 1).const_data_ptr(), sizeof(double));
  }
  void optimizer(std::int64_t /*number*/) override {
    const DeviceStep& step = next_step();
    update_.step(units_.offloads() ? step.host_scalars : step.scalars);
  }

  std::int64_t add_over_shards(std::int64_t value) override {
    std::int64_t sum = 0;
    const std::int64_t ranks = parts_.plan.mesh.shard * parts_.plan.mesh.tp;
    const std::int64_t first = parts_.world.rank() / ranks * ranks;
    const auto texts = parts_.world.gather("add over shards", std::to_string(value));
    for (std::int64_t r = first; r < first + ranks; ++r) {
      sum = static_cast<std::int64_t>(
          static_cast<std::uint64_t>(sum) + static_cast<std::uint64_t>(std::stoll(texts[at(r)])));
    }
    return sum;
  }

 private:
  struct Fifo {
    DeviceEvent last = nullptr;
    Lane lane = -1;
  };

  // Every lane joins what the compute lane begins, and ends in it.
  void record_rows(const std::function<void()>& rows) {
    fifo_.assign(fifo_.size(), Fifo{});
    current_lane_ = -1;
    device_.enter(lane(Stream::kCompute));
    device_.record(fork_);
    for (std::size_t s = 1; s < kStreams; ++s) {
      device_.enter(lanes_[s]);
      device_.wait(fork_);
    }
    rows();
    for (std::size_t s = 1; s < kStreams; ++s) {
      device_.enter(lanes_[s]);
      device_.record(joins_[s]);
    }
    device_.enter(lane(Stream::kCompute));
    for (std::size_t s = 1; s < kStreams; ++s) device_.wait(joins_[s]);
  }

  Lane lane(Stream stream) const { return lanes_[at(stream)]; }
  DeviceStep& next_step() { return *steps_[at(issued_) % kSteps]; }
  at::TensorOptions options(at::ScalarType type) const {
    return at::TensorOptions().dtype(type).device(device_.device());
  }
  at::Tensor zeros(at::ScalarType type, std::int64_t count) const { return at::zeros({count}, options(type)); }
  void free(DeviceEvent event) {
    if (event != nullptr) device_.free_event(event);
  }

  // Of step `number` from 0; -1: what the first step begins with.
  DeviceEvent end_of(std::int64_t number) const { return ends_[at(number + 4) % kEnds]; }

  // Outside of steps a collective takes what the last one took.
  void pace(EventId id, std::uint8_t c) {
    if (parts_.pacing == nullptr || id == kNoEvent) return;
    communicators_[c]->pace(parts_.pacing->durations[at(id)].nanoseconds(), parts_.pacing->ctas[at(id)]);
  }

  // Waits for a step while looking after the communicators: a lost peer must not hang the host.
  void wait_for(DeviceEvent event) {
    const auto begin = Clock::now();
    if (std::ranges::none_of(communicators_, [](const auto& communicator) { return communicator->has_peers(); }))
      return device_.synchronize(event);
    while (!device_.done(event)) {
      for (const auto& communicator : communicators_)
        if (const auto failure = communicator->failure())
          throw PeerFailure(-1, fmt::format("{} after {:.0f} s", *failure, seconds_since(begin)));
      if (seconds_since(begin) > kPatience)
        throw PeerFailure(-1, fmt::format("{} was not done within {:.0f} s", oldest_unfinished(), kPatience));
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  std::string oldest_unfinished() {
    const DeviceStep& step = *steps_[at(collected_) % kSteps];
    for (std::size_t i = 0; i < step.rows.size(); ++i)
      if (!device_.done(step.rows[i].end)) return EventNames(graph_, parts_.model).of(static_cast<EventId>(i));
    return "the step";
  }

  static constexpr double kPatience = 600;  // s
  static constexpr std::int64_t kEagerSteps = 3;

  BackendParts parts_;
  const EventGraph& graph_;
  UnitSet& units_;
  Accelerator& device_;
  DeviceUpdate update_;
  std::vector<std::unique_ptr<DeviceCommunicator>> communicators_;
  std::array<Lane, kStreams> lanes_{};
  Lane copies_ = 0;
  Lane current_lane_ = -1;
  std::vector<Fifo> fifo_;  // by communicator
  std::vector<std::unique_ptr<DeviceStep>> steps_;
  std::map<std::int32_t, at::Tensor> apart_;  // sums that reduce-scatters left, by buffer
  std::array<EventId, kStreams> last_of_stream_{};
  at::Tensor norm_sum_;
  at::Tensor host_norm_;                   // with offload: the sum and the norm
  std::array<DeviceEvent, kEnds> ends_{};  // of steps: their last compute row is done
  bool follows_ = false;                   // the next step begins where the last one ended
  DeviceEvent fork_ = nullptr;             // of a recorded step
  std::array<DeviceEvent, kStreams> joins_{};
  std::int64_t issued_ = 0, collected_ = 0;
  Clock::time_point host_zero_;      // when the first step began
  double origin_ = 0;                // when the oldest uncollected step began, from host_zero_
  std::optional<EventNames> names_;  // of NVTX ranges
  EventFailure failure_;
};

}

std::unique_ptr<Backend> make_device_backend(const BackendParts& parts, Accelerator& accelerator) {
  return std::make_unique<DeviceBackend>(parts, accelerator);
}

}
