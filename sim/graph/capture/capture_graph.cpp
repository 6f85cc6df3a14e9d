// One pass over the step's calls, in host order.
//
// Rows. Launches go into the row that is open as long as they are on its stream, at most kMostKernels of them; whatever
// orders streams closes it: an event, a wait, a collective, the host waiting, a launch on another stream. A row's kind
// is its phase: work of the thread that made the first launch is forward until backward begins, whose launches come
// from autograd's threads, and the optimizer's after the last of these.
//
// Streams. The one with most launches is the compute stream; another one is named after its first
// collective, or, where that name is taken, as a stream of the mesh's axes; or is a copy-in stream.
// Where calls of one captured stream land on different Streams, a wait keeps their order.
//
// Exchanges. NCCL runs a group of sends and receives as one kernel: of as many parts as there are
// ranks (or more than a ring has) an all-to-all, else a row of its own kind. Where all ranks that it
// is with are captured, too (stages of a pipeline), each part is an Exchange, sends first.
//
// Events. Recording one keeps the latest row of its stream and what the stream still waits for; a
// wait hands these to the stream's next row.
//
// CUDA graphs. Their work is that of the stream that launches them; the host launches once.
//
// Memory. Each block is a buffer; blocks of before the step that are freed in it, or live on, are
// persistent. What a step leaves behind beyond what it frees (a tensor kept across steps) is freed
// behind the last row, so that the step repeats.
#include "sim/graph/capture/capture_graph.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/graph/capture/captured_kernel.h"

namespace foreshard {
namespace {

using CallKind = CapturedCall::Kind;
constexpr double kSecondsPerNs = 1e-9;
// A small copy from the host takes as long as a small kernel.
constexpr std::int64_t kSmallCopy = 64 << 10;

bool is_one_sided(std::string_view name) { return name == "send" || name == "recv"; }

std::optional<EventKind> collective_kind(std::string_view name) {
  if (name == "all_gather") return EventKind::kAllGather;
  if (name == "reduce_scatter") return EventKind::kReduceScatter;
  if (name == "all_reduce") return EventKind::kAllReduce;
  if (name == "broadcast") return EventKind::kBroadcast;
  if (name == "reduce") return EventKind::kReduce;
  if (name == "all_to_all") return EventKind::kAllToAll;
  if (is_one_sided(name)) return EventKind::kSendRecv;
  return std::nullopt;
}

Stream stream_of(EventKind collective) {
  if (collective == EventKind::kAllGather) return Stream::kAllGather;
  if (collective == EventKind::kReduceScatter) return Stream::kReduceScatter;
  return Stream::kAllReduce;
}

std::vector<std::int64_t> numbers_of(const std::string& text) {
  std::vector<std::int64_t> list;
  for (std::size_t at = 0; at < text.size();) {
    list.push_back(std::atoll(text.c_str() + at));
    at = text.find(' ', at);
    at = at == std::string::npos ? text.size() : at + 1;
  }
  return list;
}

// Ranks of a process group as a shape, which tiles the world: equally spaced, else as far apart as they are on average.
GroupShape shape_of(const std::vector<std::int64_t>& list, std::int64_t size, std::int64_t world) {
  GroupShape shape{std::max<std::int64_t>(1, size), 1};
  if (list.size() < 2) return shape;
  const auto [first, last] = std::ranges::minmax(list);
  shape.stride = std::max<std::int64_t>(1, (last - first + std::ssize(list) - 2) / (std::ssize(list) - 1));
  shape.stride = std::min(shape.stride, std::max<std::int64_t>(1, world / shape.size));
  return shape;
}

class Builder {
 public:
  Builder(const Capture& capture, const StepRange& range, const std::vector<std::int64_t>& captured,
      std::size_t most_kernels)
      : capture_(capture), range_(range), captured_(captured), most_kernels_(most_kernels) {
    const std::size_t length = std::min(range.begin, range.end - range.begin);
    if (length > 0) longest_ns_ = 0;
    for (std::size_t i = range.begin - length; i < range.begin; ++i)
      longest_ns_ = std::max(longest_ns_, capture.calls[i].host_ns);
    find_threads();
    find_streams();
    add_communicators();
    find_memory_before();
  }

  // False: more rows than there are numbers for works.
  bool build() {
    for (std::size_t i = range_.begin; i < range_.end; ++i) {
      take(i, capture_.calls[i]);
      if (capture_.calls[i].kind != CallKind::kGraphLaunch && graph_calls_ > 0) --graph_calls_;
      if (graph().works.size() > std::numeric_limits<std::uint16_t>::max()) return false;
    }
    close();
    end_step();
    return true;
  }

  CapturedGraph finish() { return std::move(made_); }

 private:
  EventGraph& graph() { return made_.graph; }

  // Threads whose launches are backward's: all but the one that launched first in the run.
  void find_threads() {
    for (const CapturedCall& call : capture_.calls) {
      if (call.kind == CallKind::kLaunch || call.kind == CallKind::kProduct) {
        main_thread_ = call.thread;
        break;
      }
    }
    for (std::size_t i = range_.begin; i < range_.end; ++i) {
      const CapturedCall& call = capture_.calls[i];
      const bool works = call.kind == CallKind::kLaunch || call.kind == CallKind::kProduct;
      if (works && call.thread != main_thread_) last_backward_ = i;
    }
  }

  void find_streams() {
    std::map<std::int64_t, std::int64_t> launches;
    for (std::size_t i = range_.begin; i < range_.end; ++i) {
      const CapturedCall& call = capture_.calls[i];
      if (call.kind == CallKind::kLaunch || call.kind == CallKind::kProduct || call.kind == CallKind::kLibrary)
        ++launches[call.stream];
    }
    std::int64_t most = -1;
    for (const auto& [stream, count] : launches) {
      if (count > most) {
        most = count;
        compute_ = stream;
      }
    }
    streams_[compute_] = Stream::kCompute;
    std::set<Stream> taken;
    for (std::size_t i = range_.begin; i < range_.end; ++i) {
      const CapturedCall& call = capture_.calls[i];
      const auto kind = call.kind == CallKind::kCollective ? collective_kind(capture_.name_of(call)) : std::nullopt;
      if (!kind || streams_.contains(call.stream)) continue;
      Stream of_kind = foreshard::stream_of(*kind);
      for (const Stream other : {of_kind, Stream::kTensor, Stream::kContext, Stream::kExpert}) {
        if (!taken.insert(other).second) continue;
        of_kind = other;
        break;
      }
      streams_[call.stream] = of_kind;
    }
  }

  void add_communicators() {
    std::map<std::string, std::vector<std::int64_t>> groups;  // ranks by name
    for (const CapturedCall& call : capture_.calls) {
      const std::string& name = capture_.name_of(call);
      if (call.kind == CallKind::kMark && name.starts_with("group ")) {
        const std::size_t space = name.find(' ', 6);
        if (space != std::string::npos) groups[name.substr(6, space - 6)] = numbers_of(name.substr(space + 1));
      }
      if (call.kind != CallKind::kCommunicator) continue;
      Communicator made = {.name = name.empty() ? "world" : name};
      const std::vector<std::int64_t>& ranks = members_[call.values[0]] = groups[name];
      made.group = shape_of(ranks, call.values[1], capture_.world);
      communicators_[call.values[0]] = static_cast<std::uint8_t>(graph().communicators.size());
      if (graph().communicators.size() < kNoCommunicator) graph().communicators.push_back(made);
    }
  }

  // Blocks that live when the step begins.
  void find_memory_before() {
    std::map<std::int64_t, std::pair<std::int64_t, std::size_t>> alive;  // bytes, call
    std::size_t first_launch = capture_.calls.size(), first_step_end = 0;
    for (std::size_t i = 0; i < capture_.calls.size(); ++i) {
      const CapturedCall& call = capture_.calls[i];
      const bool is_step = call.kind == CallKind::kMark && capture_.name_of(call).starts_with("step ");
      if (is_step && first_step_end == 0) first_step_end = i;
      if (call.thread != main_thread_ && call.kind == CallKind::kLaunch && first_launch > i) first_launch = i;
      if (call.kind != CallKind::kMemory) continue;
      made_.run_peak_allocated = std::max(made_.run_peak_allocated, Bytes(call.values[2]));
      made_.run_peak_reserved = std::max(made_.run_peak_reserved, Bytes(call.values[3]));
      if (i >= range_.begin) continue;
      // A step that allocates nothing, as of a CUDA graph, has what lived before it.
      made_.peak_allocated = Bytes(call.values[2]);
      made_.peak_reserved = Bytes(call.values[3]);
      if (call.values[1] > 0) alive[call.values[0]] = {call.values[1], i};
      else alive.erase(call.values[0]);
    }
    for (const auto& [address, block] : alive) {
      const auto& [bytes, when] = block;
      const MemoryCategory category = when < first_launch     ? MemoryCategory::kShardedParam
                                      : when < first_step_end ? MemoryCategory::kOptimizerState
                                                              : MemoryCategory::kShardedGrad;
      const std::int32_t id = new_buffer(category, 0, bytes);
      graph().persistent.push_back(id);
      alive_[address] = id;
    }
  }

  std::int32_t new_buffer(MemoryCategory category, std::int64_t stream, std::int64_t bytes) {
    Buffer buffer = {.category = category, .pool = of(stream), .bytes = Bytes(bytes)};
    graph().buffers.push_back(buffer);
    return static_cast<std::int32_t>(graph().buffers.size()) - 1;
  }

  Stream of(std::int64_t stream) const {
    const auto it = streams_.find(stream);
    return it == streams_.end() ? Stream::kCopyIn : it->second;
  }

  enum class Phase : std::uint8_t { kForward, kBackward, kOptimizer };
  Phase phase(std::size_t i, const CapturedCall& call) const {
    if (call.thread != main_thread_) return Phase::kBackward;
    return last_backward_ != 0 && i > last_backward_ ? Phase::kOptimizer : Phase::kForward;
  }

  static EventKind kind_of(Phase phase) {
    return phase == Phase::kForward    ? EventKind::kForward
           : phase == Phase::kBackward ? EventKind::kBackward
                                       : EventKind::kOptimizer;
  }

  void take(std::size_t i, const CapturedCall& call) {
    host_ += as_double(std::min(call.host_ns, longest_ns_)) * kSecondsPerNs;
    switch (call.kind) {
      case CallKind::kLaunch:
      case CallKind::kProduct:
      case CallKind::kLibrary: {
        const Pass pass = phase(i, call) == Phase::kBackward ? Pass::kBackward : Pass::kForward;
        const auto kernel = captured_kernel(capture_, call, pass);
        add_kernel(phase(i, call), call, kernel->kernel, {call.name, kernel->known});
        break;
      }
      case CallKind::kCopy: copy(i, call); break;
      case CallKind::kCollective: collective(i, call); break;
      case CallKind::kRecordEvent:
        close();
        events_[call.values[0]] = {latest_of(call.stream), pending_[call.stream]};
        break;
      case CallKind::kWaitEvent: {
        close();
        const auto event = events_.find(call.values[0]);
        if (event == events_.end()) break;
        std::vector<EventId>& waits = pending_[call.stream];
        if (event->second.first != kNoEvent) waits.push_back(event->second.first);
        append(waits, event->second.second);
        break;
      }
      case CallKind::kHostWait: host_wait(call); break;
      case CallKind::kMemory: memory(i, call); break;
      case CallKind::kGraphLaunch:
        graph_calls_ = call.values[1];
        graph_launches_ = 1;
        break;
      default: break;
    }
  }

  // What the host launches for the next kernel: all of a CUDA graph are one launch.
  std::uint16_t launches() {
    if (graph_calls_ == 0) return 1;
    return std::exchange(graph_launches_, std::uint16_t{0});
  }

  EventId latest_of(std::int64_t stream) const { return value_of(latest_, stream, kNoEvent); }

  void add_kernel(Phase phase, const CapturedCall& call, const Kernel& kernel, CapturedGraph::Launch launch) {
    const EventKind kind = kind_of(phase);
    if (open_ != kNoEvent && (open_stream_ != call.stream || row(open_).kind != kind || open_kernels_ >= most_kernels_))
      close();
    if (open_ == kNoEvent) {
      open_ = new_row(kind, of(call.stream), call.stream, kNoCommunicator);
      open_stream_ = call.stream;
      open_kernels_ = 0;
    }
    // What the host did since the last launch is part of enqueuing this one, but for the first.
    if (open_kernels_ > 0) made_.during.back() += std::exchange(host_, 0);
    Work& work = graph().works.back();
    graph().kernels.push_back(kernel);
    made_.kernels.push_back(launch);
    work.kernels_end = static_cast<std::uint32_t>(graph().kernels.size());
    // Attention's kernels are launched one by one; those of a recurrent layer in a tight loop, all as one of PyTorch's.
    const bool is_several = kernel.kind == KernelKind::kAttention && graph_calls_ == 0;
    const auto launched = static_cast<std::uint16_t>(launches() + (is_several ? kernel.kernels - 1 : 0));
    if (work.launches < std::numeric_limits<std::uint16_t>::max()) work.launches += launched;
    if (kernel.kind != KernelKind::kMemory) work.flops += kernel.flops;
    ++open_kernels_;
    ++made_.launches;
  }

  void copy(std::size_t i, const CapturedCall& call) {
    const auto kind = static_cast<char>(call.values[0]);
    const std::int64_t bytes = call.values[1];
    const bool crosses = kind == 'h' || kind == 'd';
    if (crosses && bytes >= kSmallCopy) {
      close();
      new_row(kind == 'h' ? EventKind::kHostToDevice : EventKind::kDeviceToHost, of(call.stream), call.stream,
          kNoCommunicator);
      graph().works.back().bytes = Bytes(bytes);
      graph().works.back().launches = launches();
    } else {
      Kernel kernel = {.function = Function::kCopy,
          .memory_class = MemoryClass::kCopy,
          .bytes = Bytes(kind == 'D' ? 2 * bytes : bytes)};
      add_kernel(phase(i, call), call, kernel, {});
    }
    if (call.values[2] != 0) {
      close();
      pending_host_wait_ = latest_of(call.stream);
    }
  }

  void collective(std::size_t i, const CapturedCall& call) {
    const std::optional<EventKind> of_name = collective_kind(capture_.name_of(call));
    const auto communicator = communicators_.find(call.values[0]);
    if (!of_name || communicator == communicators_.end()) return;
    EventKind kind = *of_name;
    std::int64_t bytes = call.values[1];
    if (kind == EventKind::kSendRecv) {
      if (i < exchange_end_) return;  // a part of the group before
      const Group all = group_at(i);
      exchange_end_ = all.end;
      if (meets(all)) return exchange(all, communicator->second);
      bytes = std::max(all.sent, all.received);
      constexpr std::size_t kRing = 2;  // tensors that go to a neighbour at once: keys and values
      const std::size_t parts = std::max(all.sends.size(), all.receives.size());
      const std::int64_t ranks = graph().communicators[communicator->second].group.size;
      if (parts > kRing || static_cast<std::int64_t>(parts) == ranks) kind = EventKind::kAllToAll;
    }
    close();
    const Stream stream = of(call.stream);
    new_row(kind, stream == Stream::kCompute ? foreshard::stream_of(kind) : stream, call.stream, communicator->second);
    Work& work = graph().works.back();
    work.bytes = Bytes(bytes);
    work.launches = launches();
    work.communicator = communicator->second;
  }

  // Sends and receives on one communicator with nothing between them: PyTorch records an event behind each group.
  struct Group {
    std::size_t end = 0;
    std::vector<const CapturedCall*> sends, receives;
    std::int64_t sent = 0, received = 0;
  };
  Group group_at(std::size_t i) const {
    Group all;
    const CapturedCall& first = capture_.calls[i];
    for (all.end = i; all.end < range_.end; ++all.end) {
      const CapturedCall& call = capture_.calls[all.end];
      const std::string& name = capture_.name_of(call);
      const bool is_part = call.kind == CallKind::kCollective && is_one_sided(name);
      if (call.thread != first.thread && !is_part) continue;
      if (call.thread != first.thread || !is_part || call.values[0] != first.values[0]) break;
      const bool sends = name == "send";
      (sends ? all.sends : all.receives).push_back(&call);
      (sends ? all.sent : all.received) += call.values[1];
    }
    return all;
  }

  std::optional<std::int64_t> peer_of(const CapturedCall& call) const {
    const std::vector<std::int64_t>& ranks = members_.at(call.values[0]);
    const std::int64_t peer = call.values[3] - 1;
    if (peer < 0 || peer >= std::ssize(ranks) || ranks[at(peer)] == capture_.rank) return std::nullopt;
    return ranks[at(peer)];
  }

  // Whether all that it is with is captured.
  bool meets(const Group& all) {
    const auto is_captured = [&](const CapturedCall* call) {
      const std::optional<std::int64_t> peer = peer_of(*call);
      const bool found = peer && contains(captured_, *peer);
      const bool is_one_way = all.sends.empty() || all.receives.empty();
      if (peer && !found && is_one_way && !contains(made_.awaited, *peer)) made_.awaited.push_back(*peer);
      return found;
    };
    return std::ranges::all_of(all.sends, is_captured) && std::ranges::all_of(all.receives, is_captured);
  }

  // The captured stream keeps the order of its parts, so none joins its communicator's.
  void exchange(const Group& all, std::uint8_t communicator) {
    using Side = Exchange::Side;
    close();
    for (const Side side : {Side::kSend, Side::kReceive}) {
      for (const CapturedCall* call : side == Side::kSend ? all.sends : all.receives) {
        const EventId id = new_row(EventKind::kSendRecv,
            side == Side::kSend ? Stream::kPipelineSend : Stream::kPipeline, call->stream, kNoCommunicator);
        Work& work = graph().works.back();
        work.bytes = Bytes(call->values[1]);
        work.launches = launches();
        work.communicator = communicator;
        const auto place = std::ranges::find(captured_, *peer_of(*call)) - captured_.begin();
        graph().exchanges.push_back({id, static_cast<std::int32_t>(place), side});
      }
    }
  }

  void host_wait(const CapturedCall& call) {
    close();
    const auto what = static_cast<char>(call.values[0]);
    EventId on = kNoEvent;
    if (what == 'e') {
      const auto event = events_.find(call.values[1]);
      if (event != events_.end()) on = event->second.first;
    } else if (what == 's') {
      on = latest_of(call.values[1]);
    } else {
      for (const auto& [stream, latest] : latest_) on = std::max(on, latest);
    }
    pending_host_wait_ = std::max(pending_host_wait_, on);
  }

  MemoryCategory category(Phase phase, std::int64_t stream) const {
    if (of(stream) != Stream::kCompute) {
      return of(stream) == Stream::kReduceScatter ? MemoryCategory::kReduceScatterInput
                                                  : MemoryCategory::kAllGatherOutput;
    }
    return phase == Phase::kForward    ? MemoryCategory::kActivation
           : phase == Phase::kBackward ? MemoryCategory::kBackwardTemp
                                       : MemoryCategory::kOptimizerTemp;
  }

  void memory(std::size_t i, const CapturedCall& call) {
    const std::int64_t address = call.values[0], bytes = call.values[1];
    made_.peak_allocated = std::max(made_.peak_allocated, Bytes(call.values[2]));
    made_.peak_reserved = std::max(made_.peak_reserved, Bytes(call.values[3]));
    if (bytes > 0) {
      const std::int32_t id = new_buffer(category(phase(i, call), call.stream), call.stream, bytes);
      alive_[address] = id;
      actions_.emplace_back(MemoryAction::Kind::kAllocate, id);
    } else if (const auto it = alive_.find(address); it != alive_.end()) {
      actions_.emplace_back(MemoryAction::Kind::kFree, it->second);
      alive_.erase(it);
    }
    if (open_ != kNoEvent) flush_actions();
  }

  void flush_actions() {
    append(graph().actions, actions_);
    actions_.clear();
    graph().details.back().actions_end = static_cast<std::uint32_t>(graph().actions.size());
  }

  Row& row(EventId id) { return graph().rows[at(id)]; }

  EventId new_row(EventKind kind, Stream stream, std::int64_t captured, std::uint8_t communicator) {
    EventGraph& g = graph();
    const auto id = static_cast<EventId>(g.rows.size());
    Row made;
    made.kind = kind;
    made.stream = stream;
    made.communicator = communicator;
    made.work = static_cast<std::uint16_t>(g.works.size());
    made.waits_begin = static_cast<std::uint32_t>(g.waits.size());
    made.host_wait = std::exchange(pending_host_wait_, kNoEvent);
    std::array<EventId, kStreams> latest;
    latest.fill(kNoEvent);
    std::vector<EventId>& pending = pending_[captured];
    // The order of the captured stream, where its calls are on several streams here.
    pending.push_back(latest_of(captured));
    for (const EventId event : pending) {
      if (event == kNoEvent) continue;
      EventId& of_source = latest[at(row(event).stream)];
      of_source = std::max(of_source, event);
    }
    pending.clear();
    const auto bit = only(stream);
    for (std::size_t source = 0; source < kStreams; ++source) {
      if (latest[source] == kNoEvent || source == at(stream)) continue;
      g.waits.push_back(latest[source]);
      ++made.wait_count;
      row(latest[source]).wakes |= bit;
    }
    made.wakes = bit;
    if (communicator != kNoCommunicator) {
      EventId& tail = communicator_tails_.try_emplace(communicator, kNoEvent).first->second;
      if (tail != kNoEvent) row(tail).wakes |= bit;
      tail = id;
    }
    Work work = {.kind = kind};
    work.kernels_begin = work.kernels_end = static_cast<std::uint32_t>(g.kernels.size());
    RowDetail detail;
    detail.actions_begin = detail.actions_end = static_cast<std::uint32_t>(g.actions.size());
    g.rows.push_back(made);
    g.works.push_back(work);
    g.details.push_back(detail);
    made_.before.push_back(std::exchange(host_, 0));
    made_.during.push_back(0);
    latest_[captured] = id;
    flush_actions();
    return id;
  }

  void close() { open_ = kNoEvent; }

  // What the step leaves behind beyond what it takes away.
  void end_step() {
    EventGraph& g = graph();
    if (g.rows.empty()) {
      throw Error(ExitCode::kInvalidInput, capture_.path +
                                               ": the step launches nothing; expected a program that trains on "
                                               "the GPU");
    }
    g.final_host_wait = pending_host_wait_;
    made_.during.back() += host_;
    std::int64_t before = 0, after = 0;
    for (const std::int32_t id : g.persistent) before += size(id);
    for (const auto& [address, id] : alive_) after += size(id);
    // The newest first; where that is too much, the difference is taken again.
    for (auto it = alive_.rbegin(); it != alive_.rend() && after > before; ++it) {
      if (it->second < static_cast<std::int32_t>(g.persistent.size())) continue;
      after -= size(it->second);
      made_.retained += Bytes(size(it->second));
      actions_.emplace_back(MemoryAction::Kind::kFree, it->second);
    }
    if (after < before) {
      made_.retained -= Bytes(before - after);
      Buffer rest = {.bytes = Bytes(before - after)};
      g.buffers.push_back(rest);
      actions_.emplace_back(MemoryAction::Kind::kAllocate, static_cast<std::int32_t>(g.buffers.size()) - 1);
    }
    flush_actions();
  }

  std::int64_t size(std::int32_t id) { return graph().buffers[at(id)].bytes.count(); }

  const Capture& capture_;
  const StepRange range_;
  const std::vector<std::int64_t>& captured_;  // ranks
  const std::size_t most_kernels_;
  CapturedGraph made_;
  std::int32_t main_thread_ = 0;
  std::size_t last_backward_ = 0;
  std::int64_t compute_ = 0;
  std::map<std::int64_t, Stream> streams_;
  std::map<std::int64_t, std::uint8_t> communicators_;
  std::map<std::int64_t, std::vector<std::int64_t>> members_;  // ranks of a communicator; none: not said
  std::map<std::uint8_t, EventId> communicator_tails_;
  std::map<std::int64_t, EventId> latest_;                // by captured stream
  std::map<std::int64_t, std::vector<EventId>> pending_;  // waits of its next row
  std::unordered_map<std::int64_t, std::pair<EventId, std::vector<EventId>>> events_;
  std::map<std::int64_t, std::int32_t> alive_;  // buffers by address
  std::vector<MemoryAction> actions_;           // of the next row
  std::size_t exchange_end_ = 0;                // of the group of sends and receives before
  EventId open_ = kNoEvent;
  std::int64_t open_stream_ = 0;
  std::size_t open_kernels_ = 0;
  EventId pending_host_wait_ = kNoEvent;
  std::int64_t graph_calls_ = 0;  // of a launched CUDA graph, still to come
  std::uint16_t graph_launches_ = 0;
  double host_ = 0;  // seconds since the last row or launch
  // No call takes longer than the longest of the step before: a collection of garbage would.
  std::int64_t longest_ns_ = std::numeric_limits<std::int64_t>::max();
};

}

CapturedGraph capture_graph(const Capture& capture, const std::vector<std::int64_t>& captured) {
  const StepRange range = steady_step(capture);
  for (std::size_t most = 16;; most *= 4) {
    Builder builder(capture, range, captured, most);
    if (builder.build()) return builder.finish();
    if (most > (std::size_t{1} << 20)) {
      throw Error(ExitCode::kMissingCapability, capture.path +
                                                    ": the step has more than 65,536 events; expected fewer streams "
                                                    "that take turns");
    }
  }
}

}
