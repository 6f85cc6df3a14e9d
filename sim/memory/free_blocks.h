// The cached free blocks of one pool and stream, ordered by size, then address: what best fit searches.
//
// A training step asks for the same few dozen sizes over and over. So the sizes are a small sorted table that is hardly
// ever extended, with a bit for each that has blocks, and the blocks of one size are a list by descending address: the
// lowest is taken from its end, and backward, which frees in reverse, puts it back there.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/base/integers.h"

namespace foreshard {

class FreeBlocks {
 public:
  using BlockId = std::int32_t;  // below 2^24
  static constexpr BlockId kNone = -1;
  // Addresses are multiples of 512 below 2^49.
  static constexpr int kIdBits = 24;
  static constexpr int kAddressShift = 9;

  // Where a size stands in the order; valid until a new size is inserted.
  struct Cursor {
    std::size_t position = 0;
    std::size_t index = 0;  // from the end of the list
  };

  // The size's class, under which the block can be erased. `hint` may be the class of any block that was here before.
  std::uint32_t insert(std::int64_t size, std::int64_t address, BlockId id, std::uint32_t hint) {
    if (hint >= classes_.size() || classes_[hint].size != size) hint = class_of(size);
    List& list = classes_[hint].list;
    const std::uint64_t key = key_of(address, id);
    if (list.empty()) {
      mark(classes_[hint].position, true);
      list.push_back(key);
    } else if (key < list.back()) {
      list.push_back(key);
    } else {
      list.insert(list.begin() + place_in(list, key), key);
    }
    ++count_;
    return hint;
  }

  void erase(std::uint32_t size_class, std::int64_t address, BlockId id) {
    List& list = classes_[size_class].list;
    const std::uint64_t key = key_of(address, id);
    if (list.back() == key) list.pop_back();
    else list.erase(list.begin() + place_in(list, key));
    if (list.empty()) mark(classes_[size_class].position, false);
    --count_;
  }

  // The first of at least that size: the smallest, of equal ones that with the lowest address.
  Cursor lower_bound(std::int64_t size) { return {next_filled(place_of(size)), 0}; }
  Cursor begin() const { return {next_filled(0), 0}; }
  bool at_end(Cursor c) const { return c.position >= sizes_.size(); }
  BlockId id(Cursor c) const {
    const List& list = classes_[class_at_[c.position]].list;
    return static_cast<BlockId>(list[list.size() - 1 - c.index] & kIdMask);
  }
  Cursor next(Cursor c) const {
    if (c.index + 1 < classes_[class_at_[c.position]].list.size()) return {c.position, c.index + 1};
    return {next_filled(c.position + 1), 0};
  }
  // All of them in order.
  std::vector<BlockId> ids() const {
    std::vector<BlockId> all;
    all.reserve(count_);
    for (Cursor c = begin(); !at_end(c); c = next(c)) all.push_back(id(c));
    return all;
  }
  std::size_t size() const { return count_; }

 private:
  using List = std::vector<std::uint64_t>;  // address and id, descending
  static constexpr std::uint64_t kIdMask = (std::uint64_t{1} << kIdBits) - 1;
  static constexpr std::size_t kWord = 64;
  static constexpr std::size_t kManySizes = 256;

  static std::uint64_t key_of(std::int64_t address, BlockId id) {
    return static_cast<std::uint64_t>(address) >> kAddressShift << kIdBits | static_cast<std::uint64_t>(id);
  }

  // Of the first key that is not above `key`. Without branches, which would be guessed wrong half of the time.
  static std::ptrdiff_t place_in(const List& list, std::uint64_t key) {
    const std::uint64_t* base = list.data();
    std::size_t length = list.size();
    while (length > 1) {
      const std::size_t half = length / 2;
      base += base[half - 1] > key ? half : 0;
      length -= half;
    }
    return base - list.data() + (length == 1 && *base > key ? 1 : 0);
  }

  std::size_t next_filled(std::size_t position) const {
    std::size_t word = position / kWord;
    if (word >= filled_.size()) return sizes_.size();
    std::uint64_t bits = filled_[word] >> (position % kWord) << (position % kWord);
    while (bits == 0) {
      if (++word == filled_.size()) return sizes_.size();
      bits = filled_[word];
    }
    return word * kWord + at(std::countr_zero(bits));
  }

  void mark(std::size_t position, bool filled) {
    const std::uint64_t bit = std::uint64_t{1} << (position % kWord);
    std::uint64_t& word = filled_[position / kWord];
    word = filled ? word | bit : word & ~bit;
  }

  bool is_place_of(std::size_t position, std::int64_t size) const {
    return position <= sizes_.size() && (position == sizes_.size() || sizes_[position] >= size) &&
           (position == 0 || sizes_[position - 1] < size);
  }

  // Of the first size that is at least `size`. A step asks for few different ones, so the last
  // answers are kept; they serve while they are right.
  std::size_t place_of(std::int64_t size) {
    const std::uint64_t hash = (static_cast<std::uint64_t>(size) >> 9) * 0x9E3779B97F4A7C15U;
    Place& known = places_[hash >> 57];
    if (known.size != size || !is_place_of(known.position, size)) {
      known.position = at(std::ranges::lower_bound(sizes_, size) - sizes_.begin());
      known.size = size;
    }
    return known.position;
  }

  std::uint32_t class_of(std::int64_t size) {
    const std::size_t position = place_of(size);
    if (position < sizes_.size() && sizes_[position] == size) return class_at_[position];
    if (sizes_.size() >= kManySizes) {
      // Rather than growing further, the size takes the place of a neighbour that has no blocks.
      for (std::size_t p = position > 0 ? position - 1 : 0; p <= position && p < sizes_.size(); ++p) {
        Class& unused = classes_[class_at_[p]];
        if (!unused.list.empty()) continue;
        unused.size = sizes_[p] = size;
        return class_at_[p];
      }
    }
    const auto added = static_cast<std::uint32_t>(classes_.size());
    classes_.push_back({size, 0, {}});
    sizes_.insert(sizes_.begin() + position, size);
    class_at_.insert(class_at_.begin() + position, added);
    filled_.resize((sizes_.size() + kWord - 1) / kWord, 0);
    for (std::size_t p = position; p < sizes_.size(); ++p) {
      classes_[class_at_[p]].position = p;
      mark(p, !classes_[class_at_[p]].list.empty());
    }
    return added;
  }

  struct Class {
    std::int64_t size = 0;
    std::size_t position = 0;  // in sizes_
    List list;
  };
  struct Place {
    std::int64_t size = -1;
    std::size_t position = 0;
  };

  std::array<Place, 128> places_{};      // by the hash's first seven bits
  std::vector<std::int64_t> sizes_;      // ascending
  std::vector<std::uint32_t> class_at_;  // by position in sizes_
  std::vector<std::uint64_t> filled_;    // bit per position
  std::vector<Class> classes_;           // in order of appearance
  std::size_t count_ = 0;
};

}
