// A step begins where the last one ended. A row that is not compute is queued on its stream, where it waits, takes its
// communicator's turn, runs, and is done. After the last row the streams are drained.
#include <ATen/Functions.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <thread>
#include <utility>

#include "exec/comm/communicator.h"
#include "exec/compute/kernels.h"
#include "exec/engine/backend.h"
#include "exec/engine/stream.h"
#include "exec/engine/update.h"
#include "sim/base/integers.h"

namespace foreshard {
namespace {

std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const BackendParts& parts)
      : parts_(parts),
        graph_(parts.graph),
        units_(parts.units),
        events_(parts.graph.rows.size(), parts.graph.communicators.size()),
        spans_(parts.graph.rows.size()) {
    for (const auto& c : graph_.communicators) {
      const RankGroup group = rank_group(c, parts.world.rank());
      communicators_.push_back(std::make_unique<GroupCommunicator>(parts.world.connect(group.name, group.ranks)));
    }
    const auto scratches = units_.scratches();
    for (std::size_t c = 0; c < scratches.size(); ++c) communicators_[c]->lend_scratch(scratches[c]);
    for (const Row& row : graph_.rows) {
      const auto s = at(row.stream);
      if (row.stream == Stream::kCompute || streams_[s]) continue;
      streams_[s] = std::make_unique<StreamThread>([account = &parts.account] {
        static thread_local std::optional<AccountScope> scope;
        scope.emplace(account);
      });
    }
  }

  int ahead() const override { return 0; }

  std::span<MicroBatch> begin_step(std::int64_t number, std::span<MicroBatch> batches) override {
    number_ = number;
    batches_ = batches;
    norm_ = 0;
    step_begin_ns_ = last_end_ns_ != 0 ? last_end_ns_ : steady_ns();
    events_.begin_step();
    return batches;
  }

  void issue(EventId id, const std::function<void()>& row) override {
    Span& span = spans_[at(id)];
    span.issue = now();
    if (graph_.rows[at(id)].stream != Stream::kCompute) return queue(id, row);
    for (const EventId awaited : graph_.waits_of(id)) events_.wait(awaited);
    span.start = span.arrive = now();
    row();
    span.end = now();
    events_.finish(id);
  }

  void end_step() override {
    for (const auto& stream : streams_)
      if (stream) stream->drain();
    if (!events_.failed()) last_end_ns_ = steady_ns();
  }

  StepResult collect() override {
    StepResult result;
    result.times.step = number_;
    result.times.begin = Time::ns(step_begin_ns_);
    result.times.duration = Time::ns(last_end_ns_ - step_begin_ns_);
    result.times.spans = spans_;
    for (const MicroBatch& batch : batches_) result.losses.push_back(batch.loss);
    result.gradient_norm = norm_;
    return result;
  }

  void forget_begin() override { last_end_ns_ = 0; }
  void sync() override {}
  void fail(EventId id, std::exception_ptr cause) override { events_.fail(id, std::move(cause)); }
  bool failed() const override { return events_.failed(); }
  EventFailure failure() const override { return events_.failure(); }
  void abort() override {
    for (const auto& communicator : communicators_) communicator->abort();
  }
  void drain() override {
    for (const auto& stream : streams_)
      if (stream) stream->drain();
  }

  int group_index(std::uint8_t c) const override { return communicators_[c]->index(); }
  int group_size(std::uint8_t c) const override { return communicators_[c]->size(); }

  void all_gather(EventId id, std::uint8_t c, void* whole, std::size_t shard_bytes) override {
    paced(
        id, [&] { communicators_[c]->all_gather(whole, shard_bytes); });
  }

  void reduce_scatter(const ReduceScatterCall& call) override {
    float* target = call.target;
    if (call.mode == SumMode::kApart) {
      at::Tensor& sum = apart_[call.apart];
      sum = at::empty({call.shard}, at::kFloat);  // of this rank's account
      target = sum.mutable_data_ptr<float>();
    }
    paced(call.event, [&] {
      communicators_[call.communicator]->reduce_scatter(call.whole, parts_.plan.reduce_dtype, at(call.shard), target,
          call.mode == SumMode::kAdd ? SumInto::kContinue : SumInto::kOverwrite);
    });
  }

  void accumulate(const AccumulateCall& call) override {
    const auto left = apart_.extract(call.apart);  // gone when it was added
    FORESHARD_CHECK(call.slot != nullptr || !left.empty(), "no reduce-scatter left a sum");
    const void* source = call.slot != nullptr ? static_cast<const void*>(call.slot) : left.mapped().const_data_ptr();
    const DType dtype = call.slot != nullptr ? parts_.plan.reduce_dtype : DType::kFp32;
    call.mode == SumMode::kAdd ? add_to_fp32(dtype, call.shard, source, call.target)
                               : copy_to_fp32(dtype, call.shard, source, call.target);
  }

  void all_reduce_gradient(EventId id, std::uint8_t c, std::span<float> gradient) override {
    paced(
        id, [&] { communicators_[c]->all_reduce(gradient); });
  }
  void layer_collective(const LayerCollectiveCall& call) override {
    GroupCommunicator& communicator = *communicators_[call.communicator];
    paced(call.event, [&] {
      if (call.kind == EventKind::kAllGather)
        return communicator.all_gather(call.in.const_data_ptr(), call.out.mutable_data_ptr(), call.in.nbytes());
      communicator.reduce_scatter_in_pairs(call.in.const_data_ptr(),
          call.in.scalar_type() == at::kFloat ? DType::kFp32 : DType::kBf16, at(call.out.numel()),
          call.out.mutable_data_ptr());
    });
  }
  void all_reduce_partial(EventId id, std::uint8_t c, std::byte* values, std::int64_t count) override {
    paced(
        id, [&] { communicators_[c]->all_reduce_in_pairs(values, parts_.plan.reduce_dtype, at(count)); });
  }
  void all_reduce_norm(EventId id, std::uint8_t c) override {
    paced(
        id, [&] { communicators_[c]->all_reduce(std::span(norm_digits_)); });
  }

  void grad_norm() override {
    ExactSum sum;
    for (const UnitMemory& unit : units_.all()) add_squares(unit.gradient, unit.counted, sum);
    norm_digits_ = sum.digits();
    not_finite_.clear();
    if (std::isfinite(sum.value())) return;
    for (std::size_t u = 0; u < units_.all().size(); ++u) {
      const UnitMemory& unit = units_.all()[u];
      const at::Tensor gradient = tensor_over(unit.gradient, unit.shard, at::kFloat);
      if (first_not_finite(gradient) < unit.shard) not_finite_.push_back(static_cast<std::int32_t>(u));
    }
  }
  std::span<const std::int32_t> not_finite_units() const override { return not_finite_; }

  void grad_scale() override {
    ExactSum sum;
    sum.digits() = norm_digits_;
    norm_ = std::sqrt(sum.value());
    // torch.nn.utils.clip_grad_norm_: the factor is at most 1.
    const auto factor = static_cast<float>(std::min(1.0, *parts_.plan.optimizer.clip_norm / (norm_ + 1e-6)));
    for (UnitMemory& unit : units_.all()) tensor_over(unit.gradient, unit.shard, at::kFloat).mul_(factor);
  }

  void optimizer(std::int64_t number) override {
    for (UnitMemory& unit : units_.all()) update_parameters(unit, parts_.model, parts_.plan, number);
  }

  std::int64_t add_over_shards(std::int64_t value) override {
    communicators_.front()->all_reduce(std::span(&value, 1));  // the shard group
    for (std::size_t c = 0; c < communicators_.size() && parts_.plan.mesh.tp > 1; ++c) {
      const GroupShape& group = graph_.communicators[c].group;
      if (group.stride != 1 || group.size != parts_.plan.mesh.tp) continue;
      communicators_[c]->all_reduce(std::span(&value, 1));
      break;
    }
    return value;
  }

 private:
  Time now() const { return Time::ns(steady_ns() - step_begin_ns_); }

  // Without pacing: what is done takes the time it takes.
  void paced(EventId id, auto collective) {
    const auto begin = std::chrono::steady_clock::now();
    collective();
    if (parts_.pacing == nullptr || id == kNoEvent) return;
    std::this_thread::sleep_until(begin + std::chrono::nanoseconds(parts_.pacing->durations[at(id)].nanoseconds()));
  }

  void queue(EventId id, std::function<void()> row) {
    const std::uint8_t communicator = graph_.rows[at(id)].communicator;
    const bool queues = communicator != kNoCommunicator;
    const std::int64_t ticket = queues ? events_.take_ticket(communicator) : 0;
    const auto stream = at(graph_.rows[at(id)].stream);
    streams_[stream]->issue([this, id, row = std::move(row), communicator, queues, ticket]() mutable {
      Span& span = spans_[at(id)];
      try {
        for (const EventId awaited : graph_.waits_of(id)) events_.wait(awaited);
        span.start = now();
        if (queues) events_.wait_turn(communicator, ticket);
        span.arrive = now();
        row();
        span.end = now();
        row = nullptr;  // its tensors are free for who waits
        if (queues) events_.end_turn(communicator);
        events_.finish(id);
      } catch (const StepStopped&) {
      } catch (...) {
        events_.fail(id, std::current_exception());
      }
    });
  }

  BackendParts parts_;
  const EventGraph& graph_;
  UnitSet& units_;
  std::vector<std::unique_ptr<GroupCommunicator>> communicators_;  // by number
  Events events_;
  // Sums that reduce-scatters left for an accumulation, by buffer; both are of one stream.
  std::map<std::int32_t, at::Tensor> apart_;
  std::array<std::int64_t, ExactSum::kDigits> norm_digits_{};
  double norm_ = 0;
  std::vector<std::int32_t> not_finite_;
  std::int64_t number_ = 0;
  std::span<MicroBatch> batches_;
  std::vector<Span> spans_;
  std::int64_t step_begin_ns_ = 0;
  std::int64_t last_end_ns_ = 0;                                 // of the previous step
  std::array<std::unique_ptr<StreamThread>, kStreams> streams_;  // last: their rows use the others
};

}

RankGroup rank_group(const Communicator& c, int rank) {
  const auto size = static_cast<int>(c.group.size);
  const auto stride = static_cast<int>(c.group.stride);
  const int block = size * stride;
  const int first = stride == 1 ? rank / size * size : rank / block * block + rank % stride;
  RankGroup group{fmt::format("{}/{}/{}", c.name, size, first), {}};
  for (int i = 0; i < size; ++i) group.ranks.push_back(first + i * stride);
  return group;
}

std::unique_ptr<Backend> make_cpu_backend(const BackendParts& parts) { return std::make_unique<CpuBackend>(parts); }

}
