// The engine's collectives over one group, on CPU memory.
//
// Direct exchange (everyone to everyone): all receives are posted before the first send. Sums are
// made in the order of the group's ranks, element by element in fp32, so that their bits depend on
// nothing but the order: not on the transport, not on timing. One communicator is one FIFO: it is
// used by one thread at a time. A group of one rank moves nothing but still adds.
// Sizes are those of DESIGN section 3: `whole` is the unsharded buffer of size() equal shards.
// Every call throws PeerFailure (transport.h); the buffers' contents are then unspecified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "exec/comm/transport.h"
#include "sim/spec/plan.h"

namespace foreshard {

// What a reduce-scatter does with the sum of the ranks' contributions c0, c1, ...:
// kOverwrite  shard = (c0 + c1) + c2 ...
// kContinue   shard = ((shard + c0) + c1) + c2 ...: the order of a single rank that adds them all
enum class SumInto : std::uint8_t { kOverwrite, kContinue };

class GroupCommunicator {
 public:
  explicit GroupCommunicator(std::unique_ptr<Transport> transport);
  int index() const { return transport_->index(); }
  int size() const { return transport_->size(); }

  // In place: this rank's shard lies at index() * shard_bytes of `whole` already.
  void all_gather(void* whole, std::size_t shard_bytes);
  // `whole` holds size() shards of `elements` elements of `wire` (fp32 or bf16) and is not changed;
  // `shard` holds `elements` floats outside `whole`.
  void reduce_scatter(const void* whole, DType wire, std::size_t elements, float* shard, SumInto into);
  // The same where `own`, this rank's shard, lies elsewhere.
  void all_gather(const void* own, void* whole, std::size_t shard_bytes);
  // Sums in pairs (add_in_pairs), of fp32 or bf16: `shard` holds `elements` elements of the dtype.
  void reduce_scatter_in_pairs(const void* whole, DType dtype, std::size_t elements, void* shard);
  void all_reduce_in_pairs(void* values, DType dtype, std::size_t elements);
  // Sum in rank order on every rank, in place.
  void all_reduce(std::span<float> values);
  // Exact, so in any order.
  void all_reduce(std::span<std::int64_t> values);

  // Where pieces of other ranks arrive (sim/graph/cpu_collectives.h), outliving this; without, its own memory, which
  // grows with the largest collective. A collective that takes more than it was lent is an error.
  void lend_scratch(std::span<std::byte> memory);

  void abort() { transport_->abort(); }

 private:
  std::byte* scratch(std::size_t bytes);
  // Pieces of this rank's shard of `whole`, by rank, chunk after chunk:
  // add(pieces, first element, elements).
  void exchange_shards(const void* whole, DType wire, std::size_t elements, const auto& add);

  std::unique_ptr<Transport> transport_;
  std::vector<Outgoing> sends_;
  std::vector<Incoming> receives_;
  std::span<std::byte> scratch_;
  std::unique_ptr<std::byte[]> own_;
  bool is_lent_ = false;
};

// Sums of several ranks' contributions, element by element, in the order given: the one place that
// decides the bits of a reduction.
enum class FirstPiece { kCopied, kAdded };

// sum[i] = pieces[0][i] + pieces[1][i] + ... from left to right in fp32, where kAdded puts the old
// sum[i] before the first. `pieces` are arrays of `elements` elements of `wire` (fp32 or bf16,
// which is widened exactly), at any alignment; none overlaps `sum` but pieces[0], which may be it.
void add_in_order(std::span<const void* const> pieces, DType wire, std::size_t elements, float* sum, FirstPiece first);

// sum = ((pieces[0] + pieces[1]) + (pieces[2] + pieces[3])) ...: a power of two of them, in halves,
// every sum rounded to `wire`, in which `sum` is, too. None overlaps it.
void add_in_pairs(std::span<const void* const> pieces, DType wire, std::size_t elements, void* sum);

}
