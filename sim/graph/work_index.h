// Works by what they were made for: looked up once for each row, so a table of its own instead of a
// hash map with lists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace foreshard {

class WorkIndex {
 public:
  // nullptr: not there.
  const std::uint16_t* find(std::uint64_t key) const {
    if (entries_.empty()) return nullptr;
    const Entry& entry = entries_[place_of(key)];
    return entry.used ? &entry.work : nullptr;
  }
  // Precondition: it is not there.
  void insert(std::uint64_t key, std::uint16_t work) {
    if (2 * (count_ + 1) > entries_.size()) grow();
    entries_[place_of(key)] = {key, work, true};
    ++count_;
  }

 private:
  struct Entry {
    std::uint64_t key = 0;
    std::uint16_t work = 0;
    bool used = false;
  };
  // Of the key, or of the free place that it would take.
  std::size_t place_of(std::uint64_t key) const {
    std::size_t at = (key * 0x9E3779B97F4A7C15U) >> shift_;
    while (entries_[at].used && entries_[at].key != key) at = (at + 1) & (entries_.size() - 1);
    return at;
  }
  void grow() {
    const std::vector<Entry> before = std::move(entries_);
    shift_ = before.empty() ? 64 - 7 : shift_ - 1;  // 128 places at first
    entries_.assign(std::size_t{1} << (64 - shift_), {});
    for (const Entry& entry : before)
      if (entry.used) entries_[place_of(entry.key)] = entry;
  }

  std::vector<Entry> entries_;  // a power of two
  unsigned shift_ = 64;
  std::size_t count_ = 0;
};

}
