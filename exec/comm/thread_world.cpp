// Ranks that are threads of one process meet in a Hall. A group has a mailbox for each ordered pair of its members: the
// sender leaves the address of its bytes there, the receiver copies them and marks the letter done, the sender waits
// for that mark. One mutex and one condition variable per group; bytes are copied outside the mutex. A rank that leaves
// (its Transport is destroyed) fails whoever waits for it; a sender that fails takes its unread letters back before its
// buffers die, and waits for those being read.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "exec/comm/world.h"

namespace foreshard {
namespace {

struct Letter {
  enum class State { kWaiting, kBeingRead, kRead };
  const void* data = nullptr;
  std::size_t bytes = 0;
  State state = State::kWaiting;
};

struct Group {
  explicit Group(std::vector<int> members)
      : ranks(std::move(members)), mailboxes(ranks.size() * ranks.size()), joined(ranks.size()), left(ranks.size()) {}
  std::deque<Letter*>& mailbox(int from, int to) { return mailboxes[at(from) * ranks.size() + at(to)]; }
  bool has_left(int member) const { return left[at(member)]; }
  int rank_of(int member) const { return ranks[at(member)]; }

  const std::vector<int> ranks;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::deque<Letter*>> mailboxes;
  std::vector<bool> joined;
  std::vector<bool> left;
  bool aborted = false;
};

// A rank that is gone will not join any more.
void leave_unless_joined(Group& group, int rank) {
  const std::lock_guard lock(group.mutex);
  for (std::size_t member = 0; member < group.ranks.size(); ++member)
    if (group.ranks[member] == rank && !group.joined[member]) group.left[member] = true;
  group.changed.notify_all();
}

class ThreadTransport : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Group> group, int index) : group_(std::move(group)), index_(index) {
    const std::lock_guard lock(group_->mutex);
    group_->joined[at(index_)] = true;
  }

  ~ThreadTransport() override {
    const std::lock_guard lock(group_->mutex);
    group_->left[at(index_)] = true;
    group_->changed.notify_all();
  }

  int index() const override { return index_; }
  int size() const override { return static_cast<int>(group_->ranks.size()); }

  void exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives) override {
    std::deque<Letter> letters;
    std::unique_lock lock(group_->mutex);
    for (const Outgoing& send : sends) {
      if (send.bytes == 0) continue;
      letters.push_back({send.data, send.bytes});
      group_->mailbox(index_, send.peer).push_back(&letters.back());
    }
    group_->changed.notify_all();
    try {
      for (const Incoming& receive : receives)
        if (receive.bytes > 0) take(receive, lock);
      std::size_t letter = 0;
      for (const Outgoing& send : sends)
        if (send.bytes > 0) wait_until_read(letters[letter++], send.peer, lock);
    } catch (...) {
      take_back(letters, sends, lock);
      throw;
    }
  }

  void abort() override {
    const std::lock_guard lock(group_->mutex);
    group_->aborted = true;
    group_->changed.notify_all();
  }

 private:
  void take(const Incoming& receive, std::unique_lock<std::mutex>& lock) {
    std::deque<Letter*>& mailbox = group_->mailbox(receive.peer, index_);
    wait_for(receive.peer, lock, [&] { return !mailbox.empty(); });
    Letter* letter = mailbox.front();
    mailbox.pop_front();
    FORESHARD_CHECK(letter->bytes == receive.bytes, fmt::format("rank {} sent {} bytes where {} were awaited",
                                                        group_->rank_of(receive.peer), letter->bytes, receive.bytes));
    letter->state = Letter::State::kBeingRead;
    lock.unlock();
    std::memcpy(receive.data, letter->data, receive.bytes);
    lock.lock();
    letter->state = Letter::State::kRead;
    group_->changed.notify_all();
  }

  void wait_until_read(const Letter& letter, int peer, std::unique_lock<std::mutex>& lock) {
    wait_for(
        peer, lock, [&] { return letter.state == Letter::State::kRead; });
  }

  void wait_for(int peer, std::unique_lock<std::mutex>& lock, auto ready) {
    group_->changed.wait(lock, [&] { return ready() || group_->aborted || group_->has_left(peer); });
    if (group_->aborted) throw PeerFailure(-1, "the group was told to stop");
    if (ready()) return;
    const int rank = group_->rank_of(peer);
    throw PeerFailure(rank, fmt::format("rank {} closed its connection", rank));
  }

  void take_back(std::deque<Letter>& letters, std::span<const Outgoing> sends, std::unique_lock<std::mutex>& lock) {
    for (const Outgoing& send : sends) {
      std::deque<Letter*>& mailbox = group_->mailbox(index_, send.peer);
      std::erase_if(mailbox, [&](const Letter* unread) {
        return std::ranges::any_of(letters, [&](const Letter& own) { return &own == unread; });
      });
    }
    group_->changed.wait(lock, [&] {
      return std::ranges::none_of(
          letters, [](const Letter& letter) { return letter.state == Letter::State::kBeingRead; });
    });
  }

  std::shared_ptr<Group> group_;
  int index_;
};

struct Hall {
  explicit Hall(int ranks) : left(at(ranks)) {}
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::shared_ptr<Group>> groups;
  std::map<std::string, std::map<int, std::string>> texts;
  std::vector<bool> left;
  std::optional<std::string> failure;
};

class ThreadWorld : public World {
 public:
  ThreadWorld(std::shared_ptr<Hall> hall, int rank) : hall_(std::move(hall)), rank_(rank) {}

  ~ThreadWorld() override {
    const std::lock_guard lock(hall_->mutex);
    hall_->left[at(rank_)] = true;
    hall_->changed.notify_all();
    for (const auto& [name, group] : hall_->groups) leave_unless_joined(*group, rank_);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(hall_->left.size()); }
  bool one_process() const override { return true; }

  std::unique_ptr<Transport> connect(const std::string& name, const std::vector<int>& ranks) override {
    const auto place = std::ranges::find(ranks, rank_);
    FORESHARD_CHECK(place != ranks.end(), "a rank connects to groups it is in");
    const std::string key = fmt::format("{} {}", name, fmt::join(ranks, ","));
    const std::string once = fmt::format("{} #{}", key, connected_[key]++);
    const std::lock_guard lock(hall_->mutex);
    std::shared_ptr<Group>& group = hall_->groups[once];
    if (!group) {
      group = std::make_shared<Group>(ranks);
      for (const int rank : ranks)
        if (hall_->left[at(rank)]) leave_unless_joined(*group, rank);
    }
    return std::make_unique<ThreadTransport>(group, static_cast<int>(place - ranks.begin()));
  }

  std::vector<std::string> gather(const std::string& topic, const std::string& text) override {
    const std::string once = fmt::format("{} #{}", topic, gathered_[topic]++);
    std::unique_lock lock(hall_->mutex);
    std::map<int, std::string>& texts = hall_->texts[once];
    texts[rank_] = text;
    hall_->changed.notify_all();
    const auto missing = [&] {  // a rank that left without its text
      for (int rank = 0; rank < size(); ++rank)
        if (hall_->left[at(rank)] && !texts.contains(rank)) return rank;
      return -1;
    };
    const auto complete = [&] { return texts.size() == hall_->left.size(); };
    hall_->changed.wait(lock, [&] { return complete() || hall_->failure || missing() >= 0; });
    if (!complete() && hall_->failure) throw PeerFailure(missing(), *hall_->failure);
    if (!complete()) throw PeerFailure(missing(), fmt::format("rank {} closed its connection", missing()));
    return list_of<std::string>(texts, [&](const auto& each) { return each.second; });
  }

  void announce_failure(const std::string& text) override {
    const std::lock_guard lock(hall_->mutex);
    if (!hall_->failure) hall_->failure = text;
    hall_->changed.notify_all();
  }

  std::optional<std::string> announced_failure(std::chrono::milliseconds patience) override {
    std::unique_lock lock(hall_->mutex);
    hall_->changed.wait_for(lock, patience, [&] { return hall_->failure.has_value(); });
    return hall_->failure;
  }

 private:
  std::shared_ptr<Hall> hall_;
  int rank_;
  std::map<std::string, int> connected_;  // how often, by name and ranks
  std::map<std::string, int> gathered_;   // by topic
};

}

std::vector<std::unique_ptr<World>> thread_worlds(int size) {
  const auto hall = std::make_shared<Hall>(size);
  std::vector<std::unique_ptr<World>> worlds;
  for (int rank = 0; rank < size; ++rank) worlds.push_back(std::make_unique<ThreadWorld>(hall, rank));
  return worlds;
}

}
