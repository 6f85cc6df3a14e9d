// all_gather: every rank sends its shard to every other; the receives land in place.
// reduce_scatter: every rank sends shard p of its buffer to rank p and adds the pieces it receives
// in rank order, its own among them. It goes over the shard in chunks; the scratch is therefore
// small whatever the buffer's size (sim/graph/cpu_collectives.h, also for what all_reduce does).
#include "exec/comm/communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "sim/base/error.h"
#include "sim/graph/cpu_collectives.h"

namespace foreshard {
namespace {

struct Range {
  std::size_t begin = 0;
  std::size_t count = 0;
};

Range range_of(std::size_t total, std::size_t parts, std::size_t part) {
  const std::size_t least = total / parts;
  const std::size_t longer = total % parts;  // the first ranges have one element more
  return {part * least + std::min(part, longer), least + (part < longer ? 1 : 0)};
}

}

GroupCommunicator::GroupCommunicator(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}

void GroupCommunicator::lend_scratch(std::span<std::byte> memory) {
  scratch_ = memory;
  is_lent_ = true;
}

std::byte* GroupCommunicator::scratch(std::size_t bytes) {
  if (bytes > scratch_.size()) {
    FORESHARD_CHECK(!is_lent_, "a collective of more scratch than it was lent");
    own_.reset();  // before the new one is there: never both
    own_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    scratch_ = {own_.get(), bytes};
  }
  return scratch_.data();
}

void GroupCommunicator::all_gather(void* whole, std::size_t shard_bytes) {
  if (shard_bytes == 0) return;
  auto* base = static_cast<std::byte*>(whole);
  sends_.clear();
  receives_.clear();
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == index()) continue;
    receives_.push_back({peer, base + at(peer) * shard_bytes, shard_bytes});
    sends_.push_back({peer, base + at(index()) * shard_bytes, shard_bytes});
  }
  transport_->exchange(sends_, receives_);
}

void GroupCommunicator::all_gather(const void* own, void* whole, std::size_t shard_bytes) {
  std::memcpy(static_cast<std::byte*>(whole) + at(index()) * shard_bytes, own, shard_bytes);
  all_gather(whole, shard_bytes);
}

void GroupCommunicator::exchange_shards(const void* whole, DType wire, std::size_t elements, const auto& add) {
  const auto* base = static_cast<const std::byte*>(whole);
  const auto width = at(size_of(wire));
  const std::size_t chunk = std::min(elements, at(kReduceChunkBytes) / width);
  const auto shard_bytes = static_cast<std::int64_t>(elements * width);
  std::byte* received = scratch(at(reduce_scatter_scratch(size(), shard_bytes)));
  std::vector<const void*> pieces(at(size()));
  for (std::size_t begin = 0; begin < elements; begin += chunk) {
    const std::size_t count = std::min(chunk, elements - begin);
    std::byte* next = received;
    sends_.clear();
    receives_.clear();
    for (int peer = 0; peer < size(); ++peer) {
      const auto slot = at(peer);
      const std::byte* ours = base + (slot * elements + begin) * width;
      if (peer == index()) {
        pieces[slot] = ours;
        continue;
      }
      sends_.push_back({peer, ours, count * width});
      receives_.push_back({peer, next, count * width});
      pieces[slot] = next;
      next += chunk * width;
    }
    transport_->exchange(sends_, receives_);
    add(pieces, begin, count);
  }
}

void GroupCommunicator::reduce_scatter(
    const void* whole, DType wire, std::size_t elements, float* shard, SumInto into) {
  exchange_shards(
      whole, wire, elements,
      [&](const auto& pieces, std::size_t begin, std::size_t count) {
        add_in_order(
            pieces, wire, count, shard + begin, into == SumInto::kContinue ? FirstPiece::kAdded : FirstPiece::kCopied);
      });
}

void GroupCommunicator::reduce_scatter_in_pairs(const void* whole, DType dtype, std::size_t elements, void* shard) {
  exchange_shards(
      whole, dtype, elements,
      [&](const auto& pieces, std::size_t begin, std::size_t count) {
        add_in_pairs(pieces, dtype, count, static_cast<std::byte*>(shard) + begin * at(size_of(dtype)));
      });
}

// Of few values: norm weights and biases.
void GroupCommunicator::all_reduce_in_pairs(void* values, DType dtype, std::size_t elements) {
  if (size() == 1 || elements == 0) return;
  const auto ranks = at(size());
  const std::size_t bytes = elements * at(size_of(dtype));
  std::byte* all = scratch(ranks * bytes);
  all_gather(values, all, bytes);
  std::vector<const void*> pieces;
  for (std::size_t rank = 0; rank < ranks; ++rank) pieces.push_back(all + rank * bytes);
  add_in_pairs(pieces, dtype, elements, values);
}

void GroupCommunicator::all_reduce(std::span<float> values) {
  if (size() == 1 || values.empty()) return;
  const auto ranks = at(size());
  const auto self = at(index());
  const bool one_round = values.size_bytes() <= std::size_t{kOneRoundBytes};
  const auto part = [&](std::size_t rank) {
    return one_round ? Range{0, values.size()} : range_of(values.size(), ranks, rank);
  };
  const Range own = part(self);
  auto* slots = reinterpret_cast<float*>(scratch(ranks * own.count * sizeof(float)));
  std::vector<const void*> pieces(ranks);
  sends_.clear();
  receives_.clear();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    float* slot = slots + rank * own.count;
    pieces[rank] = slot;
    if (rank == self) {
      std::copy_n(values.data() + own.begin, own.count, slot);
      continue;
    }
    const Range theirs = part(rank);
    const int peer = static_cast<int>(rank);
    sends_.push_back({peer, values.data() + theirs.begin, theirs.count * sizeof(float)});
    receives_.push_back({peer, slot, own.count * sizeof(float)});
  }
  transport_->exchange(sends_, receives_);
  add_in_order(pieces, DType::kFp32, own.count, values.data() + own.begin, FirstPiece::kCopied);
  if (one_round) return;

  sends_.clear();
  receives_.clear();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (rank == self) continue;
    const Range theirs = part(rank);
    const int peer = static_cast<int>(rank);
    sends_.push_back({peer, values.data() + own.begin, own.count * sizeof(float)});
    receives_.push_back({peer, values.data() + theirs.begin, theirs.count * sizeof(float)});
  }
  transport_->exchange(sends_, receives_);
}

void GroupCommunicator::all_reduce(std::span<std::int64_t> values) {
  if (size() == 1 || values.empty()) return;
  const auto others = at(size() - 1);
  auto* slots = reinterpret_cast<std::int64_t*>(scratch(others * values.size_bytes()));
  sends_.clear();
  receives_.clear();
  std::int64_t* next = slots;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == index()) continue;
    sends_.push_back({peer, values.data(), values.size_bytes()});
    receives_.push_back({peer, next, values.size_bytes()});
    next += values.size();
  }
  transport_->exchange(sends_, receives_);
  for (std::size_t i = 0; i < others * values.size(); ++i) values[i % values.size()] += slots[i];
}

}
