// Who read and wrote which bytes last, and whether what comes now is ordered after it.
//
// Lanes count their work; a vector clock says how much of every lane's work is done before what comes next. Two pieces
// of work that touch the same bytes, one of them writing, must be so ordered (Flanagan, Freund: FastTrack, PLDI 2009).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace foreshard {

class VectorClock {
 public:
  std::uint64_t of(int lane) const {
    const auto i = static_cast<std::size_t>(lane);
    return i < counts_.size() ? counts_[i] : 0;
  }
  void count(int lane) {
    const auto i = static_cast<std::size_t>(lane);
    if (i >= counts_.size()) counts_.resize(i + 1);
    ++counts_[i];
  }
  bool is_within(const VectorClock& other) const {
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] > other.of(static_cast<int>(i))) return false;
    }
    return true;
  }
  void join(const VectorClock& other) {
    counts_.resize(std::max(counts_.size(), other.counts_.size()));
    for (std::size_t i = 0; i < other.counts_.size(); ++i) counts_[i] = std::max(counts_[i], other.counts_[i]);
  }

 private:
  std::vector<std::uint64_t> counts_;  // by lane
};

// Bytes that a piece of work touches.
struct Extent {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
  bool writes = false;
};

class AccessLog {
 public:
  // `lane`'s work number clock.of(lane). The earlier work that it is not ordered after: one
  // sentence; nullopt, and it is kept, where there is none.
  std::optional<std::string> add(int lane, const VectorClock& clock, const std::string& name, const Extent& extent);
  // What was done with this memory does not count for who gets it next.
  void forget(const std::byte* begin, std::size_t bytes);

 private:
  struct Access {
    int lane = 0;
    std::uint64_t number = 0;
    std::string name;
  };
  struct Span {
    const std::byte* end = nullptr;
    std::optional<Access> writer;
    std::vector<Access> readers;  // since then, the last of every lane
  };
  void split(const std::byte* at);

  std::map<const std::byte*, Span> spans_;  // by their begin; they do not overlap
};

}
