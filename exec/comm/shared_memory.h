// How a group's shared memory is laid out: a header, one Member per rank, one Ring per ordered
// pair, then the rings' bytes. Only for the .cpp files of the shared transport.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace foreshard::shared {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

inline constexpr std::size_t kCacheLine = 64;

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
  Member& member(int index) const {
    return reinterpret_cast<Member*>(base_ + sizeof(Header))[at(index)];
  }
  Ring& ring(int from, int to) const {
    return reinterpret_cast<Ring*>(base_ + sizeof(Header) +
                                   members_ * sizeof(Member))[slot(from, to)];
  }
  std::byte* bytes(int from, int to) const {
    return base_ + fixed() + slot(from, to) * ring_bytes(static_cast<int>(members_));
  }
  std::size_t total() const {
    return fixed() + members_ * members_ * ring_bytes(static_cast<int>(members_));
  }

 private:
  std::size_t slot(int from, int to) const { return at(from) * members_ + at(to); }
  std::size_t fixed() const {
    constexpr std::size_t kPage = 4096;
    const std::size_t bytes =
        sizeof(Header) + members_ * sizeof(Member) + members_ * members_ * sizeof(Ring);
    return (bytes + kPage - 1) / kPage * kPage;
  }

  std::byte* base_;
  std::size_t members_;
};

}  // namespace foreshard::shared
