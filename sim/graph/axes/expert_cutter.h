// A mixture's part: its router and experts under mesh.tp, and rows that travel to the ranks of
// mesh.ep and etp that have their experts.
#pragma once

#include <string>
#include <string_view>

#include "sim/graph/axes/layer_part.h"

namespace foreshard {

class ExpertCutter {
 public:
  explicit ExpertCutter(LayerPart& part);

  // Whether the operation was a mixture's and is cut now.
  bool cut(Operation& op);

 private:
  static constexpr Index kNone = LayerPart::kNone;

  // Rows of each local expert are padded to what a grouped product can read: where they arrive from
  // other ranks and, by torchtitan 0.2.2 (moe/utils.py, indices_padding_wrapper), without that too.
  bool routes() const;
  // Router and experts read all positions, gathered once where the mixture begins; its gradient is
  // taken as it is (torchtitan 0.2.2; PR 2416 adds a reduction). What the router makes is whole,
  // shared experts are cut as a feed-forward layer but leave a summand, and so do the experts, by
  // columns and rows (etp, or without ep) or each for a part of the rows (etp 1); the sum is
  // scattered. Returns whether the operation was one that is cut otherwise.
  bool cut_mixture(Operation& op);
  void cut_expert(Operation op);
  // Back in the order in which rows came, and back to the ranks that they came from; nobody waits
  // before the rows are read.
  void combine();

  // Ranks that share each expert.
  std::int64_t parts_of_expert() const;
  bool exchanges() const;
  // Whether rows are those of a part of the positions.
  bool has_own_rows() const;
  // Megatron-Core gathers rows over the ranks that share an expert where they have arrived, and
  // scatters their sums before they go home (core/transformer/moe/token_dispatcher.py,
  // MoEAlltoAllTokenDispatcher.dispatch_postprocess, combine_preprocess).
  std::int64_t parts_gathered() const;
  bool rows_travel() const;
  void read_whole(Operation& op) const;
  // Experts and what is put back read numbers of tokens of all ranks' rows: the rank's with its
  // offset (expert_parallel.py, ReordererSequenceParallel).
  void offset_rows(const Operation& indexed);
  // Routed rows are cut among the ranks of tp.
  void mark_rows(const Operation& op);
  // What the experts read, by products or casts.
  void enter_experts(Operation& op);
  bool cut_stack(Operation& op);
  void share_rows(Index from, Index to, CollectiveKind kind, CollectiveKind backward);
  Index find(std::string_view name) const;
  Index fixed(std::string name, std::int64_t elements, ElementType type = ElementType::kCompute);
  Operation& route(Index from, Index to, bool waits);
  // Rows go to the ranks that have their experts (moe/utils.py, expert_parallel.py): how many, by
  // an all-to-all of counts whose sums the host reads; the rows; in the order of the local experts,
  // each one's padded to a multiple of 8.
  void dispatch(const Operation& first);
  // How many by an all-to-all of counts, of whose sums the host reads both; then the rows.
  Index receive(Index rows, Index counts, std::int64_t groups, Indices& ended);
  // In the order of the local experts, behind a row of zeros for what pads.
  void permute(Index rows, Index counts, Indices ended);
  void widen(const Indices& tensors, Placement placement);
  // Of what the operation makes; products of experts are cut by columns, then by rows.
  Placement expert_placement(Operation& op);

  LayerPart& part_;
  const bool counts_rows_;  // of each expert, for grouped products
  struct Mixture {
    Index input = kNone, whole = kNone, first = kNone, entered = kNone;
    Indices rows, returned;
  } mixture_;
  struct Routing {
    bool open = false;
    std::int8_t part = 0;
    Index rows = kNone, permuted = kNone, made = kNone, sizes = kNone, order = kNone;
    std::int64_t per_token = 1;  // rows of a token
    std::int64_t width = 0, experts = 0, received = 0, padded = 0;
  } routing_;
};

}  // namespace foreshard
