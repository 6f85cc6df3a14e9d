// One loop: fill the micro-batches, run the step, tell the others in the background. What a step's
// exchange said is looked at one step later, so all ranks see a wish to stop after the same step.
#include "exec/run/train.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <set>
#include <string_view>
#include <type_traits>
#include <utility>

#include "exec/data/token_data.h"
#include "exec/engine/engine.h"
#include "exec/engine/schedule.h"
#include "exec/engine/update.h"
#include "exec/run/control.h"
#include "exec/run/run_state.h"
#include "reports/view/event_names.h"
#include "sim/base/error.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

// LibTorch's own profiler over a few steps: every operator, and on a GPU every kernel and copy, in
// ranges that carry the names of the plan's events. What torch.profiler writes, for Perfetto.
class KinetoRecorder {
 public:
  // Begins at once. `gpu`: the device's activities too. One at a time in a process.
  explicit KinetoRecorder(bool gpu);
  ~KinetoRecorder();                                     // drops what was not saved
  KinetoRecorder& operator=(KinetoRecorder&&) = delete;  // nor is it copied
  // Ends it. Throws Error(kInvalidInput) where the file cannot be written.
  void save(const std::filesystem::path& file);

 private:
  bool running_ = true;
};

namespace profiler = torch::autograd::profiler;
namespace parts = torch::profiler::impl;

KinetoRecorder::KinetoRecorder(bool gpu) {
  const parts::ProfilerConfig config(parts::ProfilerState::KINETO);
  std::set<parts::ActivityType> activities = {parts::ActivityType::CPU};
  if (gpu) activities.insert(parts::ActivityType::CUDA);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities, {at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE});
}

KinetoRecorder::~KinetoRecorder() {
  if (running_) profiler::disableProfiler();
}

void KinetoRecorder::save(const std::filesystem::path& file) {
  running_ = false;
  const auto result = profiler::disableProfiler();
  if (!std::ofstream(file)) throw invalid_input("{} cannot be written", file.string());
  result->save(file.string());
}

// A RankRecord as bytes, for rank 0 to collect.
// The bytes of its parts one after the other; both sides are the same program on the same kind of machine.
template <typename Io, typename Value>
void each_part(Io& io, Value& value) {
  using Plain = std::remove_const_t<Value>;
  if constexpr (std::is_same_v<Plain, RankRecord>) {
    io(value.rank, value.clocks_shared, value.step_durations, value.timelines);
    io(value.rss_before_init, value.rss_after_init, value.peak_rss, value.arena);
    io(value.activations_peak, value.device_reserved, value.device_used);
  } else if constexpr (std::is_same_v<Plain, MeasuredStep>) {
    io(value.step, value.begin, value.duration, value.spans);
  } else if constexpr (std::is_trivially_copyable_v<Plain>) {
    io.bytes(&value, sizeof value);
  } else {
    std::size_t size = value.size();
    io(size);
    if constexpr (!std::is_const_v<Value>) value.resize(size);
    for (auto& each : value) each_part(io, each);
  }
}

struct Writer {
  template <typename... Values>
  void operator()(const Values&... values) {
    (each_part(*this, values), ...);
  }
  void bytes(const void* from, std::size_t size) { out.append(static_cast<const char*>(from), size); }
  std::string out;
};

struct Reader {
  template <typename... Values>
  void operator()(Values&... values) {
    (each_part(*this, values), ...);
  }
  void bytes(void* to, std::size_t size) {
    FORESHARD_CHECK(in.size() >= size, "a rank's record is cut off");
    std::memcpy(to, in.data(), size);
    in.remove_prefix(size);
  }
  std::string_view in;
};

std::string to_bytes(const RankRecord& record) {
  Writer writer;
  writer(record);
  return std::move(writer.out);
}

// of the same program
RankRecord rank_record_of(std::string_view bytes) {
  RankRecord record;
  Reader{bytes}(record);
  return record;
}

// Sum of those lines of /proc/self/status ("RssAnon:   123 kB"); 0 where the system has no such
// file.
Bytes process_memory(std::initializer_list<std::string_view> keys) {
  std::ifstream status("/proc/self/status");
  std::int64_t kibibytes = 0;
  for (std::string line; std::getline(status, line);) {
    for (std::string_view key : keys)
      if (line.starts_with(key)) kibibytes += std::strtoll(line.c_str() + key.size(), nullptr, 10);
  }
  return Bytes(kibibytes * 1024);
}

// Pages of files are left out: code is read in as it first runs, in MiB that no plan decides.
Bytes written_memory() { return process_memory({"RssAnon:", "RssShmem:"}); }

class Training {
 public:
  Training(const ModelSpec& model, const Plan& plan, const EventGraph& graph, World& world, const TrainOptions& options,
      RunRecord& record)
      : model_(model),
        plan_(plan),
        graph_(graph),
        world_(world),
        options_(options),
        record_(record),
        data_(options.data, {.sequence = plan.batch.sequence,
                                .vocabulary = model.vocabulary,
                                .held_back = plan.evaluation.every ? plan.evaluation.held_back : 0,
                                .seed = plan.seed,
                                .format = options.format}),
        samples_per_step_(microbatches_of_step(plan) * plan.batch.micro_batch) {
    Facts facts = options.facts;
    facts.push_back(fact_of(data_.store()));
    agree(world, "data", {facts.back()}, ExitCode::kInvalidInput);
    job_ = identity_of(facts);
    data_.check_batch(samples_per_step_);
    RankRecord& own = record_.ranks.emplace_back(RankRecord{.rank = world.rank(), .rss_before_init = written_memory()});
    engine_.emplace(model, plan, graph, world,
        Engine::Options{
            .debug = options.debug, .device = options.device, .pacing = options.pacing, .graph = options.graph});
    own.arena = Bytes(engine_->units().arena_bytes());
    own.rss_after_init = written_memory();
    record_.paced = options.pacing != nullptr;
    if (options.device != nullptr) record_.device = options.device->info().name;
    state_.emplace(model, plan, *engine_, world, options);
    control_.emplace(world, at(plan.batch.accumulation));
    make_batches();
  }

  void run() {
    state_->start(job_);
    record_.first_step = progress().step + 1;
    bool stopped = false;
    while (progress().step < options_.steps && !stopped) {
      one_step();
      if (control_->posted() > 1) stopped = hear();
      const bool evaluates = plan_.evaluation.every && progress().step % *plan_.evaluation.every == 0;
      const bool due = options_.checkpoint_every > 0 && !options_.checkpoint.empty() &&
                       progress().step % options_.checkpoint_every == 0;
      if (stopped || evaluates || due || progress().step == options_.steps) {
        while (pending_ > 0) collect();
        while (control_->posted() > 0) stopped |= hear();
      }
      const bool last = stopped || progress().step == options_.steps;
      if (evaluates && finite()) evaluate();
      if ((last || due) && finite()) check_parameters();
      if (!finite()) stopped = true;
      if ((last || due) && finite() && !options_.checkpoint.empty()) state_->save();
    }
    record_.complete = !stopped;
    finish();
  }

 private:
  RankRecord& own() { return record_.ranks.front(); }
  RunProgress& progress() { return state_->progress(); }

  void make_batches() {
    for (auto& batches : batches_)
      for (std::int64_t m = 0; m < plan_.batch.accumulation; ++m) batches.push_back(empty_batch());
  }

  MicroBatch empty_batch() const {
    MicroBatch batch;
    batch.sequences = plan_.batch.micro_batch;
    batch.sequence = plan_.batch.sequence;
    batch.loss_scale = 1.0 / as_double(microbatches_of_step(plan_));
    batch.tokens = at::empty({batch.count()}, at::kLong);
    batch.labels = at::empty({batch.count()}, at::kLong);
    return batch;
  }

  // Sequence i of a batch as two spans.
  static std::pair<std::span<std::int64_t>, std::span<std::int64_t>> sequence_of(MicroBatch& batch, std::int64_t i) {
    const auto length = at(batch.sequence);
    return {{batch.tokens.mutable_data_ptr<std::int64_t>() + i * batch.sequence, length},
        {batch.labels.mutable_data_ptr<std::int64_t>() + i * batch.sequence, length}};
  }

  // --- steps ---

  void one_step() {
    std::vector<MicroBatch>& batches = batches_[at(progress().step % 2)];
    for (std::int64_t m = 0; m < plan_.batch.accumulation; ++m) {
      MicroBatch& batch = batches[at(m)];
      const std::int64_t first =
          progress().next_sample + global_microbatch(plan_, world_.rank(), m) * plan_.batch.micro_batch;
      for (std::int64_t i = 0; i < batch.sequences; ++i) {
        const auto [tokens, labels] = sequence_of(batch, i);
        data_.read_training(first + i, tokens, labels);
      }
    }
    if (!options_.kineto.empty() && world_.rank() == 0 && !kineto_ && progress().step + kKinetoSteps >= options_.steps)
      kineto_.emplace(options_.device != nullptr && options_.device->is_gpu());
    ++progress().step;
    const auto begin = std::chrono::steady_clock::now();
    engine_->issue(progress().step, batches);
    issue_seconds_.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    ++pending_;
    progress().next_sample += samples_per_step_;
    while (pending_ > engine_->ahead()) collect();
  }

  // The oldest step that was issued.
  void collect() {
    StepResult result = engine_->collect();
    --pending_;
    own().step_durations.push_back(result.times.duration);
    own().timelines.push_back(std::move(result.times));
    if (static_cast<std::int64_t>(own().timelines.size()) > options_.recorded_steps)
      own().timelines.erase(own().timelines.begin());
    own().activations_peak = Bytes(engine_->activations_peak());
    const bool wants_stop = options_.stop && options_.stop();
    // A paced rank's numbers mean nothing.
    const EventId not_finite = options_.pacing == nullptr ? engine_->find_not_finite(result) : kNoEvent;
    control_->post({result.losses, not_finite, wants_stop});
  }

  std::vector<ControlMessage> take_messages() {
    try {
      return control_->take();
    } catch (const PeerFailure& lost) {
      const auto step = record_.first_step + std::ssize(record_.losses);
      throw PeerFailure(lost.rank(),
          fmt::format("rank {} waited in the exchange of losses of step {}: {}", world_.rank(), step, lost.what()));
    }
  }

  // Takes the oldest exchange: the loss of its step. True where the run has to stop.
  bool hear() {
    std::vector<std::vector<double>> losses;
    std::vector<EventId> not_finite;
    bool stop = false;
    for (ControlMessage& message : take_messages()) {
      losses.push_back(std::move(message.losses));
      not_finite.push_back(message.not_finite);
      stop |= message.stop;
    }
    const double loss = mean_loss(plan_, losses);
    record_.losses.push_back(loss);
    note_not_finite(not_finite);
    if (world_.rank() == 0 && options_.progress) {
      StepReport report;
      report.step = record_.first_step + std::ssize(record_.losses) - 1;
      report.last_step = options_.steps;
      report.loss = loss;
      report.seconds = own().step_durations[record_.losses.size() - 1].seconds();
      report.tokens_per_s = record_.tokens_per_step / report.seconds;
      options_.progress(report);
    }
    return stop || !finite();
  }

  // --- what is no longer finite; the same on all ranks ---

  bool finite() const { return record_.not_finite.empty(); }

  // Of the step whose losses came last: the first row, by rank, whose result is not.
  void note_not_finite(const std::vector<EventId>& first_rows) {
    if (!finite()) return;
    std::size_t rank = first_rows.size();
    for (std::size_t r = 0; r < first_rows.size(); ++r) {
      if (first_rows[r] == kNoEvent) continue;
      if (rank == first_rows.size() || first_rows[r] < first_rows[rank]) rank = r;
    }
    if (rank == first_rows.size()) return;
    const EventId event = first_rows[rank];
    record_.not_finite = fmt::format("step {}, rank {}: {} (event {}) is not finite",
        record_.first_step + std::ssize(record_.losses) - 1, rank, EventNames(graph_, model_).of(event), event);
  }

  void check_parameters() {
    if (options_.pacing != nullptr) return;
    const auto found = world_.gather("finite", engine_->find_not_finite_parameter());
    for (std::size_t rank = 0; rank < found.size() && finite(); ++rank) {
      if (found[rank].empty()) continue;
      record_.not_finite = fmt::format(
          "step {}, rank {}: parameter {} after the optimizer is not finite", progress().step, rank, found[rank]);
    }
  }

  // Micro-batches of held-back sequences in turn to the ranks; all ranks do the same number.
  void evaluate() {
    const std::int64_t size = plan_.batch.micro_batch;
    const std::int64_t sequences = std::min(plan_.evaluation.sequences, data_.held_back_samples()) / size * size;
    const std::int64_t count = std::max<std::int64_t>(1, sequences / size);
    const std::int64_t ranks = plan_.mesh.data_parallel();  // those of mesh.tp share theirs
    const std::int64_t rounds = (count + ranks - 1) / ranks;
    MicroBatch batch = empty_batch();
    std::string mine;
    for (std::int64_t round = 0; round < rounds; ++round) {
      const std::int64_t number = (round * ranks + data_rank(plan_, world_.rank())) % count;
      for (std::int64_t i = 0; i < size; ++i) {
        const auto [tokens, labels] = sequence_of(batch, i);
        data_.read_held_back((number * size + i) % data_.held_back_samples(), tokens, labels);
      }
      const double loss = engine_->evaluate(batch);
      mine.append(reinterpret_cast<const char*>(&loss), sizeof loss);
    }
    const auto all = world_.gather("evaluation", mine);
    double sum = 0;
    for (std::int64_t number = 0; number < count; ++number) {
      double loss = 0;
      std::memcpy(
          &loss, all[at(number % ranks * plan_.mesh.tp)].data() + at(number / ranks) * sizeof loss, sizeof loss);
      if (!std::isfinite(loss) && finite() && options_.pacing == nullptr) {
        record_.not_finite = fmt::format("step {}, rank {}: the loss on held-back data is not finite", progress().step,
            number % ranks * plan_.mesh.tp);
      }
      sum += loss;
    }
    record_.evaluations.emplace_back(progress().step, sum / as_double(count));
    state_->note(fmt::format("step {}: loss {:.4f} on {} held-back sequences", progress().step,
        record_.evaluations.back().second, count * size));
  }

  void finish() {
    if (kineto_) kineto_->save(options_.kineto);
    if (options_.device != nullptr) {
      note_device_memory();
      note_issue();
    }
    // The shards of ranks that are not there would belong to it.
    if (options_.pacing == nullptr) record_.parameter_hash = engine_->parameter_hash();
    own().peak_rss = process_memory({"VmHWM:"});
    if (options_.pacing != nullptr) return;
    const auto texts = world_.gather("record", to_bytes(own()));
    if (world_.rank() != 0) return;
    record_.ranks.clear();
    for (const std::string& text : texts) record_.ranks.push_back(rank_record_of(text));
  }

  void note_device_memory() {
    const AcceleratorMemory memory = options_.device->memory();
    own().device_reserved = own().arena + Bytes(memory.reserved_peak);
    own().device_used = Bytes(memory.total - memory.free);
    // A rank's process is a feeder: its own memory is no part of the plan.
    own().rss_before_init = own().rss_after_init = Bytes();
    if (memory.retries > 0) {
      record_.notes.push_back(
          fmt::format("the caching allocator gave its cache back {} times to find memory", memory.retries));
    }
  }

  // What the host took to hand a step to the device: of the later half of the steps, when nothing
  // is made any more. It waits wherever the driver's queue of launches (about a thousand) is full,
  // so for a long step that is not replayed this is nearly the step itself.
  void note_issue() {
    if (issue_seconds_.size() < 2) return;
    std::vector<double> later(issue_seconds_.begin() + (issue_seconds_.size() / 2), issue_seconds_.end());
    std::ranges::sort(later);
    state_->note(fmt::format("the host issued a step in {:.1f} us{}", later[later.size() / 2] * 1e6,
        options_.graph ? ", replayed as one graph" : ", with its waits for room in the device's queue"));
  }

  static constexpr std::int64_t kKinetoSteps = 2;

  const ModelSpec& model_;
  const Plan& plan_;
  const EventGraph& graph_;
  World& world_;
  const TrainOptions& options_;
  RunRecord& record_;
  TokenData data_;
  std::int64_t samples_per_step_;
  JobIdentity job_;
  std::optional<Engine> engine_;
  std::optional<RunState> state_;
  std::optional<Control> control_;
  std::array<std::vector<MicroBatch>, 2> batches_;  // of steps of even and odd number
  int pending_ = 0;                                 // steps that were issued and not collected
  std::vector<double> issue_seconds_;               // per step
  std::optional<KinetoRecorder> kineto_;
};

}

RunRecord train(const ModelSpec& model, const Plan& plan, const EventGraph& graph, World& world,
    const TrainOptions& options, RunRecord* partial) {
  RunRecord record;
  if (partial != nullptr) record = *partial;
  record.world = world.size();
  record.fingerprint = graph.fingerprint();
  record.tokens_per_step = as_double(global_batch(plan)) * as_double(plan.batch.sequence);
  try {
    Training(model, plan, graph, world, options, record).run();
  } catch (...) {
    record.complete = false;
    if (partial != nullptr) *partial = record;
    throw;
  }
  return record;
}

}
