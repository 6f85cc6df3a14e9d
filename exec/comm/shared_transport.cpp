// Each ordered pair of members has a ring of bytes with one writer and one reader. A message is its length (8 bytes)
// and its bytes. exchange() goes round its peers: it copies into every ring that has room and out of every ring that
// has bytes, a quantum at a time so that both directions keep moving while the bytes are still in the cache, until all
// messages are through. A member that can do nothing looks on for some microseconds, then says so (`sleeping`), looks
// once more, and sleeps on its bell (a futex). Whoever moves bytes rings the bell of a sleeping peer. The two fences
// make sure that one of the two sees the other. Every 50 ms a sleeper asks whether its peers live. Bytes that a peer
// left before it went still count.
#include "exec/comm/shared_transport.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/integers.h"

namespace foreshard {
namespace {

// A group's shared memory: a header, one Member per rank, one Ring per ordered pair, then the rings' bytes. It is a
// memfd that the others open as /proc/<maker>/fd/<number>: it has no name in any file system, so it ends with the last
// process that holds it. Processes see each other's /proc when they run under one kernel, one process namespace and one
// user; the nonce tells whether what was opened is the right one.

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

constexpr std::size_t kCacheLine = 64;

// Rings small enough to stay in the caches, smaller where there are many.
constexpr std::size_t ring_bytes(int members) {
  if (members <= 4) return std::size_t{512} * 1024;
  return members <= 16 ? std::size_t{128} * 1024 : std::size_t{32} * 1024;
}

struct alignas(kCacheLine) Member {
  std::atomic<std::uint32_t> bell;      // rung when there is news for a member that sleeps
  std::atomic<std::uint32_t> sleeping;  // it waits for the bell
  std::atomic<std::uint32_t> closed;    // it will move no more bytes
};

// Bytes written and read since the start: their difference lies in the ring.
struct Ring {
  alignas(kCacheLine) std::atomic<std::uint64_t> written;
  alignas(kCacheLine) std::atomic<std::uint64_t> read;
};

struct alignas(kCacheLine) Header {
  std::uint64_t nonce;  // in the ticket too: this is the memory that was meant
};

class Layout {
 public:
  Layout(std::byte* base, int members) : base_(base), members_(at(members)) {}

  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  Member& member(int index) const { return reinterpret_cast<Member*>(base_ + sizeof(Header))[at(index)]; }
  Ring& ring(int from, int to) const {
    return reinterpret_cast<Ring*>(base_ + sizeof(Header) + members_ * sizeof(Member))[slot(from, to)];
  }
  std::byte* bytes(int from, int to) const {
    return base_ + fixed() + slot(from, to) * ring_bytes(static_cast<int>(members_));
  }
  std::size_t total() const { return fixed() + members_ * members_ * ring_bytes(static_cast<int>(members_)); }

 private:
  std::size_t slot(int from, int to) const { return at(from) * members_ + at(to); }
  std::size_t fixed() const {
    constexpr std::size_t kPage = 4096;
    const std::size_t bytes = sizeof(Header) + members_ * sizeof(Member) + members_ * members_ * sizeof(Ring);
    return (bytes + kPage - 1) / kPage * kPage;
  }

  std::byte* base_;
  std::size_t members_;
};

[[noreturn]] void fail_shared(const std::string& what) {
  throw Error(ExitCode::kLaunchFailure, "shared memory: {}: {}", what, std::strerror(errno));
}

std::byte* map(int fd, std::size_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) fail_shared("cannot be mapped");
  return static_cast<std::byte*>(at);
}

using Clock = std::chrono::steady_clock;
constexpr std::size_t kQuantum = std::size_t{64} * 1024;
constexpr int kLooks = 200;
constexpr long kSleepNanoseconds = 50'000'000;

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  const timespec limit{0, kSleepNanoseconds};
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void ring_bell(Member& member) {
  member.bell.fetch_add(1);
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&member.bell), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// One direction of one pair during one exchange.
struct Message {
  const std::byte* from = nullptr;  // of a message that is sent
  std::byte* to = nullptr;          // of one that is received
  std::uint64_t bytes = 0;
};
struct SharedLane {
  std::vector<Message> messages;
  std::size_t current = 0;
  std::size_t done = 0;  // bytes of the current one, its length included
  bool finished() const { return current == messages.size(); }
};

class SharedTransport : public Transport {
 public:
  SharedTransport(std::shared_ptr<SharedMemory> memory, const SharedGroup& group)
      : memory_(std::move(memory)),
        group_(group),
        layout_(memory_->data(), size()),
        capacity_(ring_bytes(size())),
        out_(group.ranks.size()),
        in_(group.ranks.size()) {
    for (int peer = 0; peer < size(); ++peer) {
      const int process = group_.processes[at(peer)];
      pidfds_.push_back(peer == index() ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
      // No such process any more: it ended since it said its number.
      if (peer != index() && pidfds_.back() < 0) layout_.member(peer).closed = 1;
    }
  }

  ~SharedTransport() override {
    close();
    for (const int fd : pidfds_)
      if (fd >= 0) ::close(fd);
  }

  int index() const override { return group_.index; }
  int size() const override { return static_cast<int>(group_.ranks.size()); }

  void exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives) override {
    for (SharedLane& lane : out_) lane = {};
    for (SharedLane& lane : in_) lane = {};
    for (const Outgoing& send : sends) {
      if (send.bytes == 0) continue;
      lane(out_, send.peer).messages.push_back({static_cast<const std::byte*>(send.data), nullptr, send.bytes});
    }
    for (const Incoming& receive : receives) {
      if (receive.bytes == 0) continue;
      lane(in_, receive.peer).messages.push_back({nullptr, static_cast<std::byte*>(receive.data), receive.bytes});
    }
    try {
      move_all();
    } catch (...) {
      close();
      throw;
    }
  }

  void abort() override {
    aborted_ = true;
    close();
    ring_bell(layout_.member(index()));
  }

 private:
  static SharedLane& lane(std::vector<SharedLane>& lanes, int peer) { return lanes[at(peer)]; }

  void close() {
    layout_.member(index()).closed = 1;
    for (int peer = 0; peer < size(); ++peer)
      if (peer != index()) ring_bell(layout_.member(peer));
  }

  bool finished() const {
    const auto done = [](const SharedLane& lane) { return lane.finished(); };
    return std::ranges::all_of(out_, done) && std::ranges::all_of(in_, done);
  }

  void move_all() {
    Member& self = layout_.member(index());
    std::optional<Clock::time_point> idle_since;
    int looks = 0;
    while (true) {
      if (aborted_) throw PeerFailure(-1, "the group was told to stop");
      if (move_some()) {
        if (finished()) return;
        idle_since.reset();
        looks = 0;
        continue;
      }
      if (finished()) return;
      if (++looks < kLooks) {
        pause();
        continue;
      }
      self.sleeping = 1;
      std::atomic_thread_fence(std::memory_order_seq_cst);
      const std::uint32_t seen = self.bell;
      if (move_some()) {
        self.sleeping = 0;
        idle_since.reset();
        looks = 0;
        continue;
      }
      if (!aborted_) futex_wait(self.bell, seen);
      self.sleeping = 0;
      if (!idle_since) idle_since = Clock::now();
      look_after_peers(*idle_since);
    }
  }

  // True when a byte moved.
  bool move_some() {
    bool moved = false;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == index()) continue;
      if (send_some(peer) + receive_some(peer) == 0) continue;
      moved = true;
      std::atomic_thread_fence(std::memory_order_seq_cst);
      Member& other = layout_.member(peer);
      if (other.sleeping.load(std::memory_order_relaxed) != 0) ring_bell(other);
    }
    return moved;
  }

  std::size_t send_some(int peer) {
    SharedLane& messages = lane(out_, peer);
    if (messages.finished()) return 0;
    Ring& ring = layout_.ring(index(), peer);
    const std::uint64_t written = ring.written.load(std::memory_order_relaxed);
    const std::size_t room = capacity_ - (written - ring.read.load(std::memory_order_acquire));
    std::byte* bytes = layout_.bytes(index(), peer);
    std::size_t moved = 0;
    const auto put = [&](const void* from, std::size_t count) {
      const std::size_t at = (written + moved) % capacity_;
      const std::size_t first = std::min(count, capacity_ - at);
      std::memcpy(bytes + at, from, first);
      std::memcpy(bytes, static_cast<const std::byte*>(from) + first, count - first);
      moved += count;
    };
    while (!messages.finished() && moved < std::min(room, kQuantum)) {
      const Message& message = messages.messages[messages.current];
      if (messages.done == 0) {
        if (room - moved < sizeof message.bytes) break;
        put(&message.bytes, sizeof message.bytes);
        messages.done = sizeof message.bytes;
      }
      const std::size_t sent = messages.done - sizeof message.bytes;
      const std::size_t count = std::min({message.bytes - sent, room - moved, kQuantum});
      put(message.from + sent, count);
      advance(messages, count);
    }
    ring.written.store(written + moved, std::memory_order_release);
    return moved;
  }

  std::size_t receive_some(int peer) {
    SharedLane& messages = lane(in_, peer);
    if (messages.finished()) return 0;
    Ring& ring = layout_.ring(peer, index());
    const std::uint64_t read = ring.read.load(std::memory_order_relaxed);
    const std::size_t there = ring.written.load(std::memory_order_acquire) - read;
    const std::byte* bytes = layout_.bytes(peer, index());
    std::size_t moved = 0;
    const auto take = [&](void* to, std::size_t count) {
      const std::size_t at = (read + moved) % capacity_;
      const std::size_t first = std::min(count, capacity_ - at);
      std::memcpy(to, bytes + at, first);
      std::memcpy(static_cast<std::byte*>(to) + first, bytes, count - first);
      moved += count;
    };
    while (!messages.finished() && moved < std::min(there, kQuantum)) {
      const Message& message = messages.messages[messages.current];
      if (messages.done == 0) {
        std::uint64_t sent = 0;  // the length is written whole
        take(&sent, sizeof sent);
        messages.done = sizeof sent;
        FORESHARD_CHECK(sent == message.bytes,
            fmt::format("rank {} sent {} bytes where {} were awaited", rank_of(peer), sent, message.bytes));
      }
      const std::size_t received = messages.done - sizeof message.bytes;
      const std::size_t count = std::min({message.bytes - received, there - moved, kQuantum});
      take(message.to + received, count);
      advance(messages, count);
    }
    ring.read.store(read + moved, std::memory_order_release);
    return moved;
  }

  static void advance(SharedLane& messages, std::size_t count) {
    messages.done += count;
    if (messages.done == messages.messages[messages.current].bytes + sizeof(std::uint64_t)) {
      ++messages.current;
      messages.done = 0;
    }
  }

  int rank_of(int peer) const { return group_.ranks[at(peer)]; }

  bool awaited(int peer) { return peer != index() && !(lane(out_, peer).finished() && lane(in_, peer).finished()); }

  bool is_gone(int peer) const {
    if (layout_.member(peer).closed != 0) return true;
    pollfd process{pidfds_[at(peer)], POLLIN, 0};
    return ::poll(&process, 1, 0) == 1;
  }

  void look_after_peers(Clock::time_point idle_since) {
    const bool late = Clock::now() - idle_since > group_.timeout;
    for (int peer = 0; peer < size(); ++peer) {
      if (!awaited(peer)) continue;
      const bool gone = is_gone(peer);
      if (!gone && !late) continue;
      if (move_some()) return;  // what it left behind
      const int rank = rank_of(peer);
      if (gone) throw PeerFailure(rank, fmt::format("rank {} closed its connection", rank));
      throw PeerFailure(
          rank, fmt::format("rank {} did not answer within {} s", rank, as_double(group_.timeout.count()) / 1000));
    }
  }

  std::shared_ptr<SharedMemory> memory_;
  SharedGroup group_;
  Layout layout_;
  std::size_t capacity_;
  std::vector<SharedLane> out_;
  std::vector<SharedLane> in_;
  std::vector<int> pidfds_;  // -1 for this rank
  std::atomic<bool> aborted_ = false;
};

}

std::string shared_memory_domain() {
  const auto pidfd = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  if (pidfd < 0) return "";
  ::close(pidfd);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat processes {};
  if (boot.empty() || ::stat("/proc/self/ns/pid", &processes) != 0) return "";
  return fmt::format("{}/{}/{}", boot, processes.st_ino, ::getuid());
}

std::shared_ptr<SharedMemory> SharedMemory::create(int members) {
  std::shared_ptr<SharedMemory> memory(new SharedMemory);
  memory->fd_ = ::memfd_create("foreshard", MFD_CLOEXEC);
  if (memory->fd_ < 0) fail_shared("cannot be made");
  memory->bytes_ = Layout(nullptr, members).total();
  if (::ftruncate(memory->fd_, static_cast<off_t>(memory->bytes_)) != 0) fail_shared("cannot be sized");
  memory->data_ = map(memory->fd_, memory->bytes_);  // zeros: what all atomics start from
  std::uint64_t nonce = 0;
  if (::getrandom(&nonce, sizeof nonce, 0) != sizeof nonce) fail_shared("no random number");
  Layout(memory->data_, members).header().nonce = nonce;
  memory->ticket_ = fmt::format("/proc/{}/fd/{} {}", ::getpid(), memory->fd_, nonce);
  return memory;
}

std::shared_ptr<SharedMemory> SharedMemory::open(const std::string& ticket, int members) {
  const std::size_t space = ticket.find(' ');
  FORESHARD_CHECK(space != std::string::npos, "a ticket is a path and a nonce");
  std::shared_ptr<SharedMemory> memory(new SharedMemory);
  memory->ticket_ = ticket;
  memory->bytes_ = Layout(nullptr, members).total();
  memory->fd_ = ::open(ticket.substr(0, space).c_str(), O_RDWR | O_CLOEXEC);
  if (memory->fd_ < 0) fail_shared("cannot be opened");
  struct stat status {};
  if (::fstat(memory->fd_, &status) != 0) fail_shared("cannot be asked for its size");
  if (at(status.st_size) != memory->bytes_) fail_shared("has another size");
  memory->data_ = map(memory->fd_, memory->bytes_);
  const std::uint64_t nonce = Layout(memory->data_, members).header().nonce;
  if (std::to_string(nonce) != ticket.substr(space + 1)) fail_shared("is another group's");
  return memory;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  if (fd_ >= 0) ::close(fd_);
}

std::unique_ptr<Transport> shared_transport(std::shared_ptr<SharedMemory> memory, const SharedGroup& group) {
  return std::make_unique<SharedTransport>(std::move(memory), group);
}

}
