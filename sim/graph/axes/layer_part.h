// The rank's part of one layer while it is written: tensors keep their numbers; what a gather or a
// reduction adds gets new ones, and later operations read those.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/graph/axes/layer_cutter.h"

namespace foreshard {

struct LayerPart {
  static constexpr Index kNone = -1;

  LayerPart(const LayerSpec& layer, const Plan& plan);

  void place(Index t, Placement placement);
  void place(const Indices& tensors, Placement placement);
  Index add_tensor(TensorSpec spec, Placement placement);
  Index add_like(TensorSpec spec, const char* suffix, Placement placement);
  Index add_like(Index t, const char* suffix, std::int64_t times = 1);  // placed as it is
  TensorSpec whole(Index t) const;
  TensorSpec& tensor(Index t);
  ParameterSpec& parameter(Index p);
  void add(Operation op);
  Operation& move(Index from, Index to, std::int8_t part);
  // Whether what a product reads is cast before it is gathered: torchao's Float8ColwiseParallel,
  // Float8RowwiseParallel and PrepareFloat8ModuleInput (float8/float8_tensor_parallel.py), which
  // torchtitan takes with scales of tensors alone, and TransformerEngine's linear layers
  // (module/linear.py; the output's gradient: module/base.py, grad_output_preprocess).
  bool gathers_in_fp8(const Operation& op) const;
  // All positions of a sequence-parallel tensor, where a module that multiplies begins.
  Index gather(Index t, std::int8_t part, bool in_fp8 = false);
  // Of the operation added last.
  Slices& of_last();
  // Every slice of the products that read it has a gradient of it; they are summed here.
  Index view_of_slices(Index t, std::int8_t part);
  bool is_gathered(Index t) const;
  // Without sequence parallel the gradient of a product's input is summed over the ranks.
  Index own_input(Index t, std::int8_t part);
  // The last operation's output, of which each rank has a summand, becomes `result`. What that
  // operation lets go of goes behind the collective, unless its module has returned before.
  // `whole`: all-reduced, whatever the plan says of sequences.
  void reduce(Index result, std::int8_t part, bool has_returned = false, bool whole = false);
  // The bias is added once, to the sum.
  void reduce_and_add(Index result, Index bias, std::int8_t part);

  const LayerSpec& source;
  const Plan& plan;
  const std::int64_t tp;
  const bool sequence;
  const bool native;
  const bool own_rows;        // what routes tokens runs on the rank's own positions
  const bool by_plan;         // transformers' own tensor parallel (base_model_tp_plan)
  const bool titan_3;         // under tp a module shares out what it reads where it begins, once
  const bool megatron;        // Megatron-Core's linear layers, with positions as the first dimension
  const std::int16_t slices;  // of the rank
  LayerSpec layer;
  std::vector<Slices> sliced;     // of the operations
  std::vector<Placement> places;  // of tensors
  std::vector<bool> known;
  Indices gathered;  // tensors: what is read of them by products
  // Tensors that every rank has whole with a summand of their gradient (spmd_types' R, in titan_3): what is whole and
  // read with them has one, too.
  std::vector<bool> shared_out;
  bool sums_later = false;  // summands of ranks are added up first
  std::int64_t experts = 1;
  Indices held;                                   // by a call that has returned
  std::pair<Index, Index> renamed{kNone, kNone};  // later operations read the second instead
};

// What the operation reads and saves is another tensor.
void read_instead(Operation& op, Index from, Index to);

// Attention over the positions of mesh.cp's ranks: a ring, a gather of keys and values, or an
// exchange of positions for heads (Ulysses).
class AttentionCutter {
 public:
  explicit AttentionCutter(LayerPart& part);

  // The rank's own positions: their part of the rotary table is gathered once and kept.
  void rotate_own_positions(Operation& op);
  void attend(Operation op);

 private:
  // Keys and values of the other ranks of cp come round. What a step with a part of the queries
  // leaves is merged in another order of dimensions and copied back.
  void ring();
  void put_in_order();  // a copy of the last operation's result
  void replace_read(Operation& op, Index from, Index to);
  // Heads are a dimension in front of positions there.
  Index make_contiguous(Operation& op, std::size_t i);
  // FlexAttention's context parallel (torch 2.11 experimental/_context_parallel/_attention.py,
  // _ContextParallel._flex_input_fn: keys, then values are gathered along the positions), and
  // TransformerEngine's cp_comm_type all_gather.
  void attend_to_all(Operation op);
  // DeepSpeed-Ulysses (deepspeed/sequence/layer.py of 0.19, DistributedAttention) and
  // Megatron-Core's cp_comm_type a2a: queries, keys, values and the result change between parts of
  // the positions and parts of the heads, each by an all-to-all with copies in front and behind.
  void attend_with_heads(Operation op);

  LayerPart& part_;
  Index rotary_ = LayerPart::kNone;
  const bool has_latents_;
};

// A mixture's part: its router and experts under mesh.tp, and rows that travel to the ranks of
// mesh.ep and etp that have their experts.
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
  // Router and experts read all positions, gathered once where the mixture begins; its gradient is taken as it is
  // (torchtitan 0.2.2; PR 2416 adds a reduction). What the router makes is whole, shared experts are cut as a
  // feed-forward layer but leave a summand, and so do the experts, by columns and rows (etp, or without ep) or each for
  // a part of the rows (etp 1); the sum is scattered. Returns whether the operation was one that is cut otherwise.
  bool cut_mixture(Operation& op);
  // transformers' moe_tp_experts (distributed/tensor_parallel.py): rows and weights are the module's inputs, whose
  // gradients are summed; experts are cut by columns and rows, their sum is reduced.
  bool cut_by_plan(Operation& op);
  // torchtitan 0.3: without sequence parallel each rank takes its positions where rows travel, puts what comes back
  // among zeros, and the sum with the shared expert's summand is reduced.
  bool cut_around_experts(Operation& op);
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
  // Experts and what is put back read numbers of tokens of all ranks' rows: the rank's with its
  // offset (expert_parallel.py, ReordererSequenceParallel).
  void offset_rows(const Operation& indexed);
  // Routed rows are cut among the ranks of tp.
  void mark_rows(const Operation& op);
  // What the experts read, by products or casts.
  void enter_experts(Operation& op);
  // By columns, or by rows where the input is cut by features; returns how the result lies.
  Placement cut_weight(Operation& op, std::int64_t parts);
  void share_rows(Index from, Index to, CollectiveKind kind, CollectiveKind backward, MeshDim dim = MeshDim::kEtp);
  Index find(std::string_view name) const;
  Index find_scores() const;  // kNone: rows are not weighed in the activation
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
    Index own_scores = kNone, scores = kNone;  // of rows: of the rank's tokens, where they arrived
    std::int64_t per_token = 1;                // rows of a token
    std::int64_t width = 0, experts = 0, received = 0, padded = 0;
  } routing_;
};

}
