#include "exec/device/paced_move.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "exec/comm/sum.h"

namespace foreshard {

void paced_move(const PacedCollective& c) {
  const std::size_t bytes = c.shard_elements * at(size_of(c.dtype));
  auto* whole = static_cast<std::byte*>(c.whole);
  if (c.kind == PacedCollective::Kind::kAllGather) {
    const std::byte* own = whole + at(c.index) * bytes;
    for (int p = 0; p < c.ranks; ++p) {
      if (p != c.index) std::memcpy(whole + at(p) * bytes, own, bytes);
    }
  } else if (c.kind == PacedCollective::Kind::kReduceScatter) {
    std::vector<const void*> pieces;
    for (int p = 0; p < c.ranks; ++p) {
      pieces.push_back(whole + at(p) * bytes);
    }
    std::vector<float> sum(c.shard_elements);
    add_in_order(pieces, c.dtype, c.shard_elements, sum.data(), FirstPiece::kCopied);
    if (c.dtype == DType::kFp32) {
      std::memcpy(c.shard, sum.data(), bytes);
    } else {
      auto* to = static_cast<c10::BFloat16*>(c.shard);
      std::ranges::copy(sum, to);
    }
  }
}

}  // namespace foreshard
