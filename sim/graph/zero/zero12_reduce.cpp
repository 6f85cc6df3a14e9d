// One bucket: average_tensor, allreduce_and_scatter, allreduce_no_retain, copy_grads_in_partition.
//
// The bucket is divided, its slices of one collective are concatenated into a new tensor where they
// are several, and what this rank owns is copied back and then into the partition's buffer. With
// overlap_comm all of that is on the reduction stream, for whose earlier buckets the compute stream
// waits, so that a buffer is not written while it is reduced.
#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "sim/graph/zero/zero12_builder.h"

namespace foreshard {

// A collective is closed when it exceeds the bucket's size: only a parameter larger than that, or
// of several owners, makes more than one.
void Zero12::find_collectives() {
  collectives_.clear();
  if (!is_contiguous() || !options().reduce_scatter) {
    Slices all{-1, bucket_.elements, 1, 0};
    if (!is_contiguous()) all.count = std::ssize(bucket_.parameters);
    for (const std::int32_t p : bucket_.parameters) all.own += own_numel(p);
    collectives_.push_back(all);
    return;
  }
  const std::int64_t apart = sums_in_fp32() ? rank_ : -1;
  const auto for_each = [&](auto take) {
    for_each_slice(std::span<const ZeroPartition>(groups_), parameters(), bucket_.parameters, apart, take);
  };
  if (options().use_multi_rank_bucket_allreduce) {
    Slices open{-1, 0, 0, 0};
    for_each([&](const ZeroSlice& slice) {
      if (add_slice(slice, open)) collectives_.push_back(std::exchange(open, {-1, 0, 0, 0}));
    });
    if (open.count > 0) collectives_.push_back(open);
    return;
  }
  std::vector<std::vector<Slices>> owners;  // in the order of their first slices
  std::unordered_map<std::int64_t, std::size_t> place_of;
  for_each([&](const ZeroSlice& slice) {
    const auto [place, is_new] = place_of.try_emplace(slice.rank, owners.size());
    if (is_new) owners.push_back({{slice.rank, 0, 0, 0}});
    std::vector<Slices>& own = owners[place->second];
    if (add_slice(slice, own.back())) own.push_back({slice.rank, 0, 0, 0});
  });
  for (const std::vector<Slices>& own : owners)
    std::ranges::copy_if(own, std::back_inserter(collectives_), [](const Slices& slices) { return slices.count > 0; });
}

// Whether the collective is full.
bool Zero12::add_slice(const ZeroSlice& slice, Slices& open) const {
  open.numel += slice.numel;
  open.own += slice.rank == rank_ ? slice.numel : 0;
  ++open.count;
  return open.numel > options().reduce_bucket_size;
}

void Zero12::average_tensor() {
  const Stream stream = reducing();
  if (overlaps()) {
    const EventId before = tail(stream);
    wait(stream, tail(Stream::kCompute));
    wait(Stream::kCompute, before);
  }
  find_collectives();
  if (is_contiguous())  // div_, or mul_ behind the all-reduce
    add_copy(EventKind::kGradScale, stream, 2 * bucket_.elements * gradient_size(), 1);
  for (const Slices& slices : collectives_) reduce(slices);
}

EventId Zero12::collective(EventKind kind, std::int64_t bytes, Stream stream) {
  const std::uint8_t ranks = kind == EventKind::kAllGather ? kShard : world_;
  if (stream != Stream::kCompute) return add_collective(kind, stream, bytes, ranks);
  wait(Stream::kAllReduce, tail(Stream::kCompute));
  const EventId event = add_collective(kind, Stream::kAllReduce, bytes, ranks);
  wait(Stream::kCompute, event);
  return event;
}

void Zero12::reduce(const Slices& slices) {
  const Stream stream = reducing();
  const std::int64_t held = gradient_size(), wire = size_of(wire_dtype());
  const bool is_reduce = slices.rank >= 0;
  std::int32_t flat = kNoBuffer, cast = kNoBuffer;
  if (slices.count > 1) {
    add_copy(EventKind::kGradientCopyIn, stream, 2 * slices.numel * held, 1);
    flat = allocate(MemoryCategory::kCommTemp, stream, -1, Bytes(slices.numel * held));
  }
  if (held != wire) {
    add_copy(EventKind::kQuantize, stream, slices.numel * (held + wire), 1);
    cast = allocate(MemoryCategory::kCommTemp, stream, -1, Bytes(slices.numel * wire));
  }
  const std::int64_t bytes = slices.numel * wire;
  collective(is_reduce ? EventKind::kReduce : EventKind::kAllReduce, bytes, stream);
  if (logging()) {
    auto names = list_of<std::string>(bucket_.parameters, [&](const std::int32_t p) { return name_of(p); });
    const bool untold = !is_contiguous() && sums_in_fp32();  // a function nobody watches
    std::string note = untold ? "" : "n=" + std::to_string(names.size()) + " ";
    if (!is_contiguous() && !untold) note += "noncontiguous ";
    log({.kind = is_reduce ? "reduce" : "all_reduce",
        .unit = untold ? "" : span_of(names),
        .bytes_in = bytes,
        .bytes_out = is_reduce && slices.rank != rank_ ? 0 : bytes,
        .dtype = torch_word(wire_dtype()),
        .group = "world",
        .note = note + (is_reduce ? "dst=" + std::to_string(slices.rank) : "op=SUM")});
  }
  std::int64_t copied = is_contiguous() && options().reduce_scatter ? slices.own : 0;
  if (!is_contiguous()) copied = slices.numel;
  std::int64_t moved = 2 * copied * held;
  if (sums_in_fp32()) moved += slices.own * (wire + 8);
  if (held != wire) moved += slices.numel * (held + wire);
  if (moved > 0) add_copy(EventKind::kGradientCopyOut, stream, moved, slices.count);
  StepBuilder::free(cast);
  StepBuilder::free(flat);
}

// What is done with the gradients of a bucket once it is reduced.
void Zero12::take_own_parts() {
  const Stream stream = reducing();
  std::int64_t elements = 0, own = 0, count = 0;
  for (const std::int32_t p : bucket_.parameters) {
    if (is_own(p)) {
      elements += parameter(p).numel;
      own += own_numel(p);
      ++count;
    }
  }
  if (count > 0 && offloads()) {
    // Norm and copy of each slice; earlier micro-batches' sums go to the host and back.
    if (plan_.batch.accumulation > 1) {
      if (microbatch() > 0) add_copy(EventKind::kHostToDevice, stream, 2 * elements * gradient_size(), count);
      add_copy(EventKind::kDeviceToHost, stream, 2 * elements * gradient_size(), count);
    }
    if (boundary_) {
      add_copy(EventKind::kGradNorm, stream, own * (gradient_size() + 16), count);
      add_copy(EventKind::kDeviceToHost, stream, 2 * own * 4, count);
    }
  } else if (count > 0 && is_contiguous() && !sums_in_fp32()) {
    add_copy(EventKind::kGradientCopyOut, stream, 2 * elements * gradient_size(), count);
    if (own_gradients_ == kNoBuffer)
      own_gradients_ = allocate(MemoryCategory::kShardedGrad, stream, -1, Bytes(own_elements() * gradient_size()));
  }
  for (const std::int32_t p : bucket_.parameters) {
    const bool cleared = is_own(p) ? is_contiguous() : partitions_gradients();
    if (cleared) free_gradient(p);
  }
}

void Zero12::list_bucket() {
  if (!is_contiguous() && sums_in_fp32() && !bucket_.parameters.empty()) return;
  LibraryBucket& bucket = listed_.emplace_back();
  bucket.index = std::ssize(listed_) - 1;
  bucket.kind = "zero_ipg_bucket";
  bucket.bytes = bucket_.elements * gradient_size();
  const bool is_empty = bucket_.parameters.empty();
  if (is_contiguous() || !is_empty) bucket.dtype = torch_word(accumulates_fp32() ? DType::kFp32 : plan_.param_dtype);
  bucket.extra = "micro=" + std::to_string(microbatch());
  bucket.extra += is_contiguous() ? " slot=" + std::to_string(bucket_.slot) : " noncontiguous";
  for (const std::int32_t p : bucket_.parameters) bucket.parameters.push_back(name_of(p));
}

}
