// Walks the operations in order. Tensors keep their numbers; what a gather or a reduction adds gets
// new ones, and later operations read those.
#include "sim/graph/axes/layer_cutter.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/integers.h"
#include "sim/graph/axes/cut_loss.h"
#include "sim/graph/axes/dispatched_rows.h"
#include "sim/spec/latent_attention.h"

namespace foreshard {
namespace {

using Index = std::int16_t;
using Indices = std::vector<Index>;

// models/layers/moe.cpp
constexpr const char* kCounts = "rows_per_expert";
constexpr const char* kOffsets = "offsets";

class Cutter {
 public:
  Cutter(const LayerSpec& layer, const Plan& plan, Placement input, Placement joined)
      : old_(layer),
        plan_(plan),
        tp_(plan.mesh.tp),
        sequence_(plan.tensor_parallel.sequence),
        native_(plan.runtime.kind == RuntimeKind::kNative),
        slices_(static_cast<std::int16_t>(slices_of_rank(plan))),
        megatron_(plan.runtime.kind == RuntimeKind::kMegatron),
        layer_(layer),
        placement_(layer.tensors.size(), Placement::kWhole),
        known_(layer.tensors.size(), false),
        gathered_(layer.tensors.size(), kNone),
        counts_rows_(std::any_of(layer.tensors.begin(), layer.tensors.end(),
                                 [](const TensorSpec& each) { return each.name == kCounts; })),
        has_latents_(has_latents(layer)) {
    layer_.operations.clear();
    place(0, layer.role == LayerRole::kEmbedding ? Placement::kWhole : input);
    if (layer.joins >= 0) place(layer.joins, joined);
    for (const Operation& op : layer.operations) experts_ = std::max(experts_, op.groups);
  }

  CutLayer run() {
    if (old_.role == LayerRole::kLoss && padded_vocabulary() > layer_.tensors[0].per_token) {
      narrow_logits();
    }
    for (const Operation& op : old_.operations) cut_in_turn(op);
    mark_replicated();
    Placement output = placement_[at(layer_.output)];
    if (old_.role == LayerRole::kHead && output == Placement::kFeature &&
        !plan_.tensor_parallel.loss) {
      gather_logits();
      output = Placement::kWhole;
    }
    for (const Operation& op : layer_.operations) {
      if (!op.casts_weight) continue;
      std::int64_t& elements = layer_.tensors[at(op.outputs.back())].fixed = 0;
      for (Index p : op.parameters) elements += layer_.parameters[at(p)].numel();
    }
    sliced_.resize(layer_.operations.size());
    return {std::move(layer_), std::move(sliced_), output};
  }

 private:
  static constexpr Index kNone = -1;

  // Of the model's own sizes: no axis cuts them.
  void mark_replicated() {
    for (std::size_t p = 0; tp_ > 1 && p < old_.parameters.size(); ++p) {
      ParameterSpec& parameter = layer_.parameters[p];
      parameter.replicated = !parameter.is_expert && parameter.shape == old_.parameters[p].shape;
    }
  }

  // --- tensors ---

  void place(Index t, Placement placement) {
    if (known_[at(t)]) return;
    known_[at(t)] = true;
    placement_[at(t)] = placement;
    TensorSpec& spec = layer_.tensors[at(t)];
    if (placement == Placement::kWhole || spec.per_token == 0) return;
    if (placement == Placement::kFeature && spec.per_token % tp_ != 0) {
      spec.per_token = chunk_of(spec.per_token, tp_, plan_.mesh.tp_index(plan_.rank));
    } else {
      spec.split *= tp_;
    }
  }
  void place(const Indices& tensors, Placement placement) {
    for (Index t : tensors) place(t, placement);
  }
  Index add_tensor(TensorSpec spec, Placement placement) {
    layer_.tensors.push_back(std::move(spec));
    placement_.push_back(placement);
    known_.push_back(true);
    gathered_.push_back(kNone);
    return static_cast<Index>(layer_.tensors.size() - 1);
  }
  TensorSpec whole(Index t, const char* suffix) const {
    TensorSpec spec = layer_.tensors[at(t)];
    if (placement_[at(t)] != Placement::kWhole && spec.per_token > 0) spec.split /= tp_;
    spec.name += suffix;
    return spec;
  }

  // --- collectives ---

  Operation& move(Index from, Index to, std::int8_t part) {
    Operation& op = layer_.operations.emplace_back();
    op.name = layer_.tensors[at(to)].name;
    op.function = Function::kCopy;
    op.inputs = {from};
    op.outputs = {to};
    op.part = part;
    return op;
  }

  // Whether what a product reads is cast before it is gathered: torchao's Float8ColwiseParallel,
  // Float8RowwiseParallel and PrepareFloat8ModuleInput (float8/float8_tensor_parallel.py), which
  // torchtitan takes with scales of tensors alone, and TransformerEngine's linear layers
  // (module/linear.py; the output's gradient: module/base.py, grad_output_preprocess).
  bool gathers_in_fp8(const Operation& op) const {
    return tp_ > 1 && sequence_ && op.fp8 != Float8::kNone && op.fp8 != Float8::kRowwise &&
           op.fp8 != Float8::kRowwiseGwHp;
  }

  // All positions of a sequence-parallel tensor, where a module that multiplies begins.
  Index gather(Index t, std::int8_t part, bool in_fp8 = false) {
    if (gathered_[at(t)] != kNone) return gathered_[at(t)];
    Index all = t;
    if (tp_ > 1) {
      all = add_tensor(whole(t, " gathered"), Placement::kWhole);
      Operation& op = move(t, all, part);
      op.collective = {
          .kind = CollectiveKind::kAllGather, .unpacks = !native_, .waits = true, .in_fp8 = in_fp8};
      // A block's modules take their inputs apart themselves (PrepareModuleInput), and wait there.
      const bool waits = native_ || old_.role == LayerRole::kBlock;
      op.collective_backward = {
          .kind = CollectiveKind::kReduceScatter, .packs = !native_, .waits = waits};
    }
    if (slices_ > 1) all = view_of_slices(all, part);
    gathered_[at(t)] = all;
    return all;
  }

  // Of the operation added last.
  Slices& of_last() {
    sliced_.resize(layer_.operations.size());
    return sliced_.back();
  }
  // Every slice of the products that read it has a gradient of it; they are summed here.
  Index view_of_slices(Index t, std::int8_t part) {
    TensorSpec spec = layer_.tensors[at(t)];
    spec.name += " of each slice";
    spec.per_token *= slices_;
    const Index each = add_tensor(std::move(spec), Placement::kWhole);
    Operation& op = move(t, each, part);
    op.view = true;
    of_last().columns = slices_;
    return each;
  }

  bool is_gathered(Index t) const {
    return std::find(gathered_.begin(), gathered_.end(), t) != gathered_.end();
  }

  // Without sequence parallel the gradient of a product's input is summed over the ranks.
  Index own_input(Index t, std::int8_t part) {
    const Index same = add_tensor(whole(t, " of each rank"), Placement::kWhole);
    Operation& op = move(t, same, part);
    op.view = true;
    op.collective_backward = {.kind = CollectiveKind::kAllReduce, .waits = true};
    return same;
  }

  // The last operation's output, of which each rank has a summand, becomes `result`. What that
  // operation lets go of goes behind the collective, unless its module has returned before.
  void reduce(Index result, std::int8_t part, bool has_returned = false) {
    if (tp_ == 1) return place(result, Placement::kSequence);
    Operation& product = layer_.operations.back();
    const Index partial = add_tensor(layer_.tensors[at(result)], Placement::kWhole);
    layer_.tensors[at(partial)].name += " (summand)";
    std::replace(product.outputs.begin(), product.outputs.end(), result, partial);
    const Indices released = has_returned ? Indices() : std::exchange(product.released, {});
    const bool in_fp8 = gathers_in_fp8(product);
    if (in_fp8) product.fp8_gradients = tp_;
    place(result, sequence_ ? Placement::kSequence : Placement::kWhole);
    Operation& op = move(partial, result, part);
    op.released = {partial};
    op.released.insert(op.released.end(), released.begin(), released.end());
    if (sequence_) {
      // The engine's parts are rows of tokens, Megatron-Core's first dimension is positions:
      // neither needs copies.
      const bool by_rows = native_ || megatron_;
      op.collective = {.kind = CollectiveKind::kReduceScatter, .packs = !by_rows, .waits = by_rows};
      op.collective_backward = {
          .kind = CollectiveKind::kAllGather, .unpacks = !by_rows, .waits = true, .in_fp8 = in_fp8};
      op.kept_by_selective = true;
    } else {
      op.collective = {.kind = CollectiveKind::kAllReduce, .waits = megatron_};
    }
  }

  // The bias is added once, to the sum.
  void reduce_and_add(Index result, Index bias, std::int8_t part) {
    TensorSpec spec = layer_.tensors[at(result)];
    spec.name += " without bias";
    const Index sum = add_tensor(std::move(spec), Placement::kWhole);
    known_[at(sum)] = false;
    Operation& product = layer_.operations.back();
    std::replace(product.outputs.begin(), product.outputs.end(), result, sum);
    Indices released = std::exchange(product.released, {});
    reduce(sum, part);
    place(result, placement_[at(sum)]);
    Operation& op = move(sum, result, part);
    op.function = Function::kAdd;
    op.gradient = GradientRule::kAlias;
    op.parameters = {bias};
    of_last().rows = slices_;
    op.released = {sum};
    op.released.insert(op.released.end(), released.begin(), released.end());
    layer_.parameters[at(bias)].partial = tp_ > 1;
  }

  // Every rank's part of the vocabulary, padded to the first one's.
  void gather_logits() {
    const std::int64_t all = old_.tensors[at(old_.output)].per_token;
    const std::int64_t widest = chunk_of(all, tp_, 0);
    const auto logits = [&](const char* suffix, std::int64_t width) {
      TensorSpec spec = old_.tensors[at(old_.output)];
      spec.per_token = width;
      spec.name += suffix;
      return add_tensor(std::move(spec), Placement::kWhole);
    };
    const Index own = layer_.output;
    Index cut = own;
    if (layer_.tensors[at(cut)].per_token < widest) {
      cut = logits(" padded", widest);
      move(own, cut, 0).gradient = GradientRule::kNone;
    }
    const Index whole = logits(" gathered", widest * tp_);
    Operation& op = move(cut, whole, 0);
    op.released = {own};
    if (cut != own) {
      op.released.push_back(cut);
      op.inputs.push_back(own);  // whose gradient is the rank's part
    }
    op.collective = {.kind = CollectiveKind::kAllGather, .reorders = true, .waits = true};
    layer_.output = whole;
  }

  // The loss reads a view of what was gathered.
  std::int64_t padded_vocabulary() const {
    const bool gathers = tp_ > 1 && !native_ && !plan_.tensor_parallel.loss;
    return gathers ? chunk_of(layer_.tensors[0].per_token, tp_, 0) * tp_ : 0;
  }
  void narrow_logits() {
    TensorSpec spec = layer_.tensors[0];
    spec.name += " of all";
    const Index narrowed = add_tensor(std::move(spec), Placement::kWhole);
    layer_.tensors[0].per_token = padded_vocabulary();
    move(0, narrowed, 0).view = true;
    renamed_ = {0, narrowed};
  }

  // --- operations ---

  // What a module's call holds ends behind the operation that comes after the call.
  void cut_in_turn(const Operation& op) {
    Indices ended = std::exchange(held_, {});
    cut(op);
    Indices& released = layer_.operations.back().released;
    released.insert(released.end(), ended.begin(), ended.end());
  }

  void cut(const Operation& old) {
    Operation op = old;
    for (Indices* list : {&op.inputs, &op.saved}) {
      std::replace(list->begin(), list->end(), renamed_.first, renamed_.second);
    }
    if (std::find(op.released.begin(), op.released.end(), renamed_.first) != op.released.end()) {
      op.released.push_back(renamed_.second);
    }
    for (Indices* list : {&op.inputs, &op.saved}) {
      for (Index& t : *list) {
        if (gathered_[at(t)] != kNone && reads_whole(op)) t = gathered_[at(t)];
      }
    }
    add_gathered_names(op);
    if (routes()) {
      std::erase_if(op.released, [&](Index t) { return layer_.tensors[at(t)].name == kOffsets; });
    }
    const bool routed = routes() && op.part > 0 && old_.role == LayerRole::kBlock;
    const bool makes_offsets = counts_rows_ && op.name == "cumsum";
    if (routes() && makes_offsets) return;  // behind the rows' padding, then
    if (!routed && routing_.open) combine();
    if (tp_ > 1 && experts_ > 1 && !megatron_ && cut_mixture(op)) return;
    if (routed) return cut_expert(std::move(op));
    switch (op.kind) {
      case OperationKind::kGemm:
        return cut_product(std::move(op));
      case OperationKind::kEmbedding:
        return cut_lookup(std::move(op));
      default:
        return cut_other(std::move(op));
    }
  }

  static bool reads_whole(const Operation& op) { return op.kind == OperationKind::kGemm; }

  // The name of a gathered input ends with that of what was gathered.
  void add_gathered_names(Operation& op) const {
    Indices names;
    for (Index t : op.released) {
      if (gathered_[at(t)] != kNone) names.push_back(gathered_[at(t)]);
      names.push_back(t);
    }
    op.released = std::move(names);
  }

  // --- experts under tensor parallel ---

  // Router and experts read all positions, gathered once where the mixture begins; its gradient is
  // taken as it is (torchtitan 0.2.2; PR 2416 adds a reduction). What the router makes is whole,
  // shared experts are cut as a feed-forward layer but leave a summand, and so do the experts, by
  // columns and rows (etp, or without ep) or each for a part of the rows (etp 1); the sum is
  // scattered. Returns whether the operation was one that is cut otherwise.
  bool cut_mixture(Operation& op) {
    const bool is_product = op.kind == OperationKind::kGemm;
    if (is_product && op.groups == 1 && op.n == experts_) {
      mixture_.input = op.inputs.front();
      mixture_.whole = gather(mixture_.input, op.part);
      layer_.operations.back().collective_backward = {};
      read_whole(op);
      place(op.outputs, Placement::kWhole);
      layer_.operations.push_back(std::move(op));
      return true;
    }
    if (mixture_.whole == kNone) return false;
    read_whole(op);
    const bool splits_rows = plan_.mesh.ep > 1 && plan_.mesh.etp == 1;
    if (splits_rows) mark_rows(op);
    if (op.function == Function::kScatterAdd) {
      const Index result = op.outputs.front();
      place(op.saved, Placement::kWhole);
      const std::int8_t part = op.part;
      // What the mixture read and what it made stay with its hooks until the sum has arrived.
      for (const Index read : {mixture_.whole, mixture_.input}) {
        if (std::erase(op.released, read) > 0) held_.push_back(read);
      }
      layer_.operations.push_back(std::move(op));
      reduce(result, part, /*has_returned=*/true);
      Indices& made = layer_.operations.back().released;
      held_.insert(held_.end(), made.begin(), made.end());
      made.clear();
      mixture_ = {};
      return true;
    }
    if (splits_rows && op.name == "index_scores") {
      layer_.operations.push_back(op);
      offset_rows(op);
      return true;
    }
    if (op.part > 0 && !routes()) enter_experts(op);
    if (!is_product) return false;
    if (op.groups > 1) return !routes() && cut_stack(op);
    const Index result = op.outputs.front();
    ParameterSpec& weight = layer_.parameters[at(op.parameters.front())];
    if (placement_[at(op.inputs.front())] == Placement::kFeature) {
      op.k /= tp_;
      weight.shape[1] /= tp_;
      place(result, Placement::kWhole);
    } else if (op.n > 1) {
      const Index own = own_input(op.inputs.front(), op.part);
      std::replace(op.saved.begin(), op.saved.end(), op.inputs.front(), own);
      op.inputs.front() = own;
      op.n /= tp_;
      weight.shape[0] /= tp_;
      place(result, Placement::kFeature);
    }
    layer_.operations.push_back(std::move(op));
    return true;
  }

  void read_whole(Operation& op) const {
    for (Indices* list : {&op.inputs, &op.saved}) {
      std::replace(list->begin(), list->end(), mixture_.input, mixture_.whole);
    }
  }

  // Experts and what is put back read numbers of tokens of all ranks' rows: the rank's with its
  // offset (expert_parallel.py, ReordererSequenceParallel).
  void offset_rows(const Operation& indexed) {
    const Index order = indexed.inputs.back();
    TensorSpec spec = layer_.tensors[at(order)];
    spec.name += " of all ranks";
    const Index moved = add_tensor(std::move(spec), placement_[at(order)]);
    Operation& add = move(order, moved, indexed.part);
    add.gradient = GradientRule::kNone;
    add.released = {order};
    mixture_.rows.push_back(moved);
    renamed_ = {order, moved};
  }

  // Routed rows are cut among the ranks of tp.
  void mark_rows(const Operation& op) {
    const auto is_row = [&](Index t) {
      return std::find(mixture_.rows.begin(), mixture_.rows.end(), t) != mixture_.rows.end();
    };
    // What comes back is put in its place among all rows.
    const auto came_back = [&](Index t) {
      return std::find(mixture_.returned.begin(), mixture_.returned.end(), t) !=
             mixture_.returned.end();
    };
    if (std::any_of(op.inputs.begin(), op.inputs.end(), came_back)) {
      mixture_.returned.insert(mixture_.returned.end(), op.outputs.begin(), op.outputs.end());
      return;
    }
    const bool begins = op.name == "argsort" || op.name == "histc";
    if (op.function == Function::kScatterAdd || op.part > 0) return;
    if (!begins && std::none_of(op.inputs.begin(), op.inputs.end(), is_row)) return;
    // Rows are taken out of all tokens, and so their gradient is put into zeros of all.
    static const Indices kWholeZeros;
    const bool takes_rows = op.function == Function::kGather && op.inputs.front() == mixture_.whole;
    for (const Indices* list :
         {&op.outputs, &op.saved, takes_rows ? &kWholeZeros : &op.backward_temporaries}) {
      for (Index t : *list) {
        if (known_[at(t)]) continue;
        known_[at(t)] = true;
        if (layer_.tensors[at(t)].per_token > 0) layer_.tensors[at(t)].split *= tp_;
        mixture_.rows.push_back(t);
      }
    }
  }

  // What the experts read, by products or casts.
  void enter_experts(Operation& op) {
    if (mixture_.entered == kNone) {
      mixture_.first = op.inputs.front();
      mixture_.entered = own_input(mixture_.first, op.part);
    }
    for (Indices* list : {&op.inputs, &op.saved}) {
      std::replace(list->begin(), list->end(), mixture_.first, mixture_.entered);
    }
  }

  bool cut_stack(Operation& op) {
    const Index read = op.inputs.front();
    ParameterSpec& weight = layer_.parameters[at(op.parameters.front())];
    if (placement_[at(read)] == Placement::kFeature) {
      op.k /= tp_;
      weight.shape[2] /= tp_;
      place(op.outputs, Placement::kWhole);
    } else {
      op.n /= tp_;
      weight.shape[1] /= tp_;
      place(op.outputs, Placement::kFeature);
    }
    layer_.operations.push_back(std::move(op));
    return true;
  }

  // --- experts ---

  // Rows of each local expert are padded to what a grouped product can read: where they arrive from
  // other ranks and, by torchtitan 0.2.2 (moe/utils.py, indices_padding_wrapper), without that too.
  bool routes() const {
    const bool is_titans =
        plan_.step_frame != StepFrame::kPlain && plan_.experts == ExpertKernels::kGrouped;
    return rows_travel() || (is_titans && counts_rows_);
  }
  // Ranks that share each expert.
  std::int64_t parts_of_expert() const { return exchanges() ? plan_.mesh.etp : tp_; }
  bool exchanges() const { return plan_.mesh.ep > 1; }
  // Whether rows are those of a part of the positions.
  bool has_own_rows() const {
    return tp_ > 1 && (megatron_ || (exchanges() && plan_.mesh.etp == 1));
  }
  // Megatron-Core gathers rows over the ranks that share an expert where they have arrived, and
  // scatters their sums before they go home (core/transformer/moe/token_dispatcher.py,
  // MoEAlltoAllTokenDispatcher.dispatch_postprocess, combine_preprocess).
  std::int64_t parts_gathered() const { return megatron_ ? plan_.mesh.etp : 1; }
  bool rows_travel() const { return exchanges() || parts_gathered() > 1; }
  void share_rows(Index from, Index to, CollectiveKind kind, CollectiveKind backward) {
    Operation& op = move(from, to, routing_.part);
    op.collective = {.kind = kind, .dim = MeshDim::kEtp, .waits = true};
    op.collective_backward = {.kind = backward, .dim = MeshDim::kEtp, .waits = true};
  }

  Index find(std::string_view name) const {
    for (std::size_t t = 0; t < old_.tensors.size(); ++t) {
      if (old_.tensors[t].name == name) return static_cast<Index>(t);
    }
    FORESHARD_CHECK(false, "a router without the tensor");
    return kNone;
  }
  Index fixed(std::string name, std::int64_t elements, ElementType type = ElementType::kCompute) {
    return add_tensor({.name = std::move(name), .fixed = elements, .type = type},
                      Placement::kWhole);
  }
  Operation& route(Index from, Index to, bool waits) {
    Operation& op = move(from, to, routing_.part);
    op.collective = {.kind = CollectiveKind::kAllToAll, .dim = MeshDim::kEp, .waits = waits};
    op.collective_backward = {
        .kind = CollectiveKind::kAllToAll, .dim = MeshDim::kEp, .waits = true};
    if (plan_.expert_parallel.dispatcher == ExpertParallel::Dispatcher::kDeepEp) {
      op.collective.copies = op.collective_backward.copies = routing_.per_token;
    }
    // torchtitan's per-operation checkpointing keeps them, but for Qwen3's list.
    op.kept_by_selective = !old_.name.starts_with("qwen3");
    return op;
  }

  // Rows go to the ranks that have their experts (moe/utils.py, expert_parallel.py): how many, by
  // an all-to-all of counts whose sums the host reads; the rows; in the order of the local experts,
  // each one's padded to a multiple of 8.
  void dispatch(const Operation& first) {
    constexpr std::int64_t kAlignment = 8;
    // `first` may be a cast of the rows, in front of what the experts multiply.
    const Operation& product = *std::find_if(old_.operations.begin(), old_.operations.end(),
                                             [](const Operation& op) { return op.groups > 1; });
    routing_ = {};
    routing_.open = true;
    routing_.part = first.part;
    routing_.rows = first.inputs.front();
    routing_.per_token = product.rows;
    routing_.width = layer_.tensors[at(routing_.rows)].per_token / product.rows;
    routing_.experts = product.groups / plan_.mesh.ep;
    const std::int64_t tokens = plan_.batch.micro_batch * plan_.batch.sequence / plan_.mesh.cp;
    const std::int64_t parts = has_own_rows() ? tp_ : 1;
    routing_.received = received_rows(plan_.expert_parallel, {plan_.mesh.ep, product.groups},
                                      tokens * product.rows / parts) *
                        parts_gathered();
    const std::int64_t padded = routing_.received + kAlignment * routing_.experts;
    routing_.padded = (padded + kAlignment - 1) / kAlignment * kAlignment;

    Index rows = routing_.rows;
    if (parts_of_expert() > parts_gathered()) {
      rows = own_input(rows, first.part);
      if (exchanges()) layer_.operations.back().collective_backward.dim = MeshDim::kEtp;
    }
    Index counts = find(kCounts);
    Indices ended;  // with the call that permutes
    if (rows_travel()) {
      rows = receive(rows, counts, product.groups, ended);
      counts = ended.front();
    }
    permute(rows, counts, std::move(ended));
    const Index offsets = find(kOffsets);
    layer_.tensors[at(offsets)].fixed = 4 * routing_.experts;
    known_[at(offsets)] = true;
    move(routing_.sizes, offsets, first.part).gradient = GradientRule::kNone;
  }

  // How many by an all-to-all of counts, of whose sums the host reads both; then the rows.
  Index receive(Index rows, Index counts, std::int64_t groups, Indices& ended) {
    const std::int64_t gathered = exchanges() ? 1 : parts_gathered();
    const Index came = fixed("rows_per_expert received", groups * gathered, ElementType::kInt64);
    if (exchanges()) {
      route(counts, came, true).collective.copies = 1;
    } else {
      share_rows(counts, came, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter);
    }
    layer_.operations.back().gradient = GradientRule::kNone;
    const auto read = [&](Index of, const char* name, bool Operation::*how) -> Index {
      const Index splits = fixed(name, plan_.mesh.ep, ElementType::kInt64);
      move(of, splits, routing_.part).gradient = GradientRule::kNone;
      Operation& copy = move(splits, fixed("splits on the host", 0), routing_.part);
      copy.gradient = GradientRule::kNone;
      copy.*how = copy.kept_by_selective = true;
      return splits;
    };
    const Index sent = read(counts, "splits sent", &Operation::host_copies);
    const Index received = read(came, "splits received", &Operation::host_reads);
    ended = {came};
    const std::int64_t all = routing_.received * routing_.width;
    const auto arrive = [&](const char* name, std::int64_t elements) {
      ended.push_back(fixed(name, elements));
      return ended.back();
    };
    if (exchanges()) {
      // Where they go is worked out while they travel.
      const Index arrived = arrive("rows received", all / parts_gathered());
      route(rows, arrived, false);
      rows = arrived;
    }
    if (parts_gathered() > 1) {
      const Index shared = arrive("rows of the ranks of etp", all);
      share_rows(rows, shared, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter);
      rows = shared;
    }
    ended.insert(ended.end(), {sent, received});
    return rows;
  }

  // In the order of the local experts, behind a row of zeros for what pads.
  void permute(Index rows, Index counts, Indices ended) {
    const std::int64_t local = 4 * routing_.experts;
    routing_.sizes = fixed("rows of experts, padded", local, ElementType::kByte);
    const Index places = fixed("offsets while permuting", local, ElementType::kByte);
    const Index order = fixed(exchanges() ? kRowOrder : "order of padded rows", 4 * routing_.padded,
                              ElementType::kByte);
    Operation& make = move(counts, order, routing_.part);
    make.gradient = GradientRule::kNone;
    make.outputs = {order, routing_.sizes, places};
    const std::int64_t with_zeros = (routing_.received + 1) * routing_.width;
    Index whole = rows;
    if (!megatron_) {  // whose permutation reads the rows as they came
      whole = fixed("rows with zeros", with_zeros);
      move(rows, whole, routing_.part).gradient = GradientRule::kAlias;
    }
    routing_.permuted = fixed("rows permuted", routing_.padded * routing_.width);
    Operation& permute = move(whole, routing_.permuted, routing_.part);
    permute.function = Function::kGather;
    permute.inputs.push_back(order);
    permute.saved = {order};
    permute.released = {places};
    if (whole != rows) permute.released.push_back(whole);
    permute.released.insert(permute.released.end(), ended.begin(), ended.end());
    routing_.order = order;
    // The module holds it until its next forward, which torchtitan's frame follows.
    if (exchanges() && plan_.step_frame != StepFrame::kPlain) {
      layer_.tensors[at(order)].held = true;
    } else if (exchanges()) {
      permute.released.push_back(order);
    }
    permute.backward_temporaries = {fixed("row zeros", with_zeros)};
  }

  void widen(const Indices& tensors, Placement placement) {
    const std::int64_t parts = placement == Placement::kFeature ? parts_of_expert() : 1;
    for (Index t : tensors) {
      if (known_[at(t)] || layer_.tensors[at(t)].per_token == 0) continue;
      TensorSpec& spec = layer_.tensors[at(t)];
      spec.fixed = spec.per_token / routing_.per_token * routing_.padded / parts;
      spec.per_token = 0;
      known_[at(t)] = true;
      placement_[at(t)] = placement;
    }
  }

  // Of what the operation makes; products of experts are cut by columns, then by rows.
  Placement expert_placement(Operation& op) {
    const std::int64_t parts = parts_of_expert();
    const bool reads_features =
        placement_[at(op.inputs.front())] == Placement::kFeature && parts > 1;
    if (parts == 1 || op.groups == 1) {
      return reads_features ? Placement::kFeature : Placement::kWhole;
    }
    (reads_features ? op.k : op.n) /= parts;
    ParameterSpec& weight = layer_.parameters[at(op.parameters.front())];
    weight.shape[reads_features ? 2 : 1] /= parts;
    return reads_features ? Placement::kWhole : Placement::kFeature;
  }

  void cut_expert(Operation op) {
    if (!routing_.open) dispatch(op);
    for (Indices* list : {&op.inputs, &op.saved, &op.released}) {
      std::replace(list->begin(), list->end(), routing_.rows, routing_.permuted);
    }
    const Placement placement = expert_placement(op);
    for (Indices* list : {&op.outputs, &op.saved, &op.backward_temporaries, &op.forward_workspace,
                          &op.backward_workspace}) {
      widen(*list, placement);
    }
    for (Index p : op.parameters) {
      ParameterSpec& weight = layer_.parameters[at(p)];
      if (weight.is_expert || !exchanges()) continue;
      weight.is_expert = true;
      weight.shape.front() = routing_.experts;
    }
    if (op.groups > 1) {
      op.groups = routing_.experts;
      // All rows that arrive here, whatever the tokens of this rank are.
      op.rows = routing_.received;
      op.split = plan_.batch.micro_batch * plan_.batch.sequence / plan_.mesh.cp;
    }
    routing_.made = op.outputs.front();
    layer_.operations.push_back(std::move(op));
  }

  // Back in the order in which rows came, and back to the ranks that they came from; nobody waits
  // before the rows are read.
  void combine() {
    routing_.open = false;
    Operation& last = layer_.operations.back();
    const Index result = routing_.made;
    const Index own = fixed("expert rows", routing_.padded * routing_.width);
    std::replace(last.outputs.begin(), last.outputs.end(), result, own);
    last.released.push_back(find(kOffsets));  // a local, as what the last product reads
    layer_.tensors[at(result)] = old_.tensors[at(result)];
    if (sends_tokens(plan_)) layer_.tensors[at(result)].per_token = routing_.width;
    if (has_own_rows()) layer_.tensors[at(result)].split *= tp_;
    placement_[at(result)] = megatron_ && tp_ > 1 ? Placement::kSequence : Placement::kWhole;
    if (exchanges()) mixture_.returned.push_back(result);
    const Index unpermuted = fixed("rows unpermuted", (routing_.received + 1) * routing_.width);
    Operation& back = move(own, unpermuted, routing_.part);
    back.function = Function::kScatterAdd;
    if (!rows_travel()) back.released = {own, routing_.permuted, routing_.sizes, routing_.order};
    // All but the row of zeros.
    const auto cut_zeros = [&](Index to) -> Operation& {
      Operation& op = move(unpermuted, to, routing_.part);
      op.view = true;
      if (!megatron_) op.gradient = GradientRule::kAliasFirst;
      return op;
    };
    if (!rows_travel()) {
      cut_zeros(result).released = {unpermuted};
      return;
    }
    const std::int64_t all = routing_.received * routing_.width;
    Index sent = fixed("rows to send", all);
    cut_zeros(sent);
    Indices ended = {unpermuted, sent, own};
    if (parts_gathered() > 1) {
      const Index summed =
          exchanges() ? fixed("rows to send home", all / parts_gathered()) : result;
      share_rows(sent, summed, CollectiveKind::kReduceScatter, CollectiveKind::kAllGather);
      if (exchanges()) ended.push_back(sent = summed);
    }
    if (exchanges()) route(sent, result, false);
    // The module has returned when its output is on its way; then its caller lets go.
    layer_.operations.back().released = std::move(ended);
    TensorSpec spec = layer_.tensors[at(result)];
    spec.name += " returned";
    const Index returned = add_tensor(std::move(spec), placement_[at(result)]);
    Operation& call = move(result, returned, 0);
    call.view = true;
    call.released = {routing_.sizes, routing_.permuted, returned};
  }

  bool cuts() const { return tp_ > 1 || slices_ > 1; }

  // Sums in pairs hold one summand of each level.
  void add_workspace_of_slices(Operation& op) {
    for (std::int16_t left = slices_; left > 1; left /= 2) {
      TensorSpec spec = old_.tensors[at(op.outputs.front())];
      spec.name += " (slices)";
      op.forward_workspace.push_back(add_tensor(std::move(spec), Placement::kWhole));
    }
  }

  void cut_product(Operation op) {
    const Index read = op.inputs.front();
    const Index result = op.outputs.front();
    const ParameterSpec& old_weight = old_.parameters[at(op.parameters.front())];
    FORESHARD_CHECK(tp_ == 1 || old_weight.shape.size() == 2, "a stack of weights is not cut");
    ParameterSpec& weight = layer_.parameters[at(op.parameters.front())];
    if (!cuts()) {
      layer_.operations.push_back(std::move(op));
      return;
    }
    if (placement_[at(read)] == Placement::kFeature) {  // by rows of the input
      op.k /= tp_;
      if (slices_ > 1) add_workspace_of_slices(op);
      weight.shape[op.transposed_weight ? 0 : 1] /= tp_;
      const std::int8_t part = op.part;
      const bool biased = native_ && op.parameters.size() > 1;
      const Index bias = biased ? op.parameters.back() : kNone;
      if (biased) op.parameters.pop_back();
      layer_.operations.push_back(std::move(op));
      of_last().terms = slices_;
      return biased ? reduce_and_add(result, bias, part) : reduce(result, part);
    }
    // Megatron-Core's router, projections around experts and down projections to latents run on the
    // rank's own positions (core/transformer/moe/router.py, multi_latent_attention.py).
    const bool is_router = op.n == experts_ && experts_ > 1 && old_.role == LayerRole::kBlock;
    if (megatron_ && placement_[at(read)] == Placement::kSequence &&
        (is_router || latent_of(result).is_normed || is_beside_rows(op))) {
      op.split = tp_;
      weight.partial = true;
      place(op.outputs, Placement::kSequence);
      place(op.saved, Placement::kSequence);
      layer_.operations.push_back(std::move(op));
      return;
    }
    Index input = read;
    const bool in_fp8 = gathers_in_fp8(op) && placement_[at(read)] == Placement::kSequence;
    if (in_fp8) op.fp8_inputs = tp_;
    if (megatron_) {
      if (sequence_) {
        op.gathers = {.kind = CollectiveKind::kAllGather, .beside = true, .in_fp8 = in_fp8};
      }
      op.reduces = {.kind = sequence_ ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce,
                    .beside = true};
    } else if (placement_[at(read)] == Placement::kSequence) {
      input = gather(read, op.part, in_fp8);
    } else if (!sequence_ || (old_.role == LayerRole::kBlock && !is_gathered(read))) {
      // Of a latent every rank has all.
      input = own_input(read, op.part);
    }
    for (Indices* list : {&op.inputs, &op.saved})
      std::replace(list->begin(), list->end(), read, input);
    if (const Latent latent = latent_of(result); latent.is_normed) {
      weight.partial = latent.is_split;
      place(result, Placement::kWhole);
      layer_.operations.push_back(std::move(op));
      return;
    }
    const std::size_t rows = op.transposed_weight ? 1 : 0;
    const std::int64_t columns = chunk_of(op.n, tp_, plan_.mesh.tp_index(plan_.rank));
    op.n = columns;
    weight.shape[rows] = columns;
    for (std::size_t i = 1; i < op.parameters.size(); ++i) {
      layer_.parameters[at(op.parameters[i])].shape[0] = columns;
    }
    known_[at(result)] = true;
    placement_[at(result)] = Placement::kFeature;
    layer_.tensors[at(result)].per_token = columns;
    layer_.operations.push_back(std::move(op));
    of_last().columns = slices_;
  }

  // The projections around what experts read and make (moe_latent_size): of the rows that are
  // gathered, and of their sum (core/transformer/moe/moe_layer.py).
  bool is_beside_rows(const Operation& product) const {
    return std::ranges::any_of(old_.operations, [&](const Operation& op) {
      return (op.name == "gather_rows" && op.inputs.front() == product.outputs.front()) ||
             (op.name == "scatter_add" && op.outputs.front() == product.inputs.front());
    });
  }

  // What a product makes that is normed before the next one reads it: a latent (NoParallel, each
  // rank makes all of it); whether a part of it goes elsewhere, so that each rank has a summand of
  // its gradient (the rotated part of the keys, which only the rank's heads read).
  struct Latent {
    bool is_normed = false, is_split = false;
  };
  Latent latent_of(Index made) const {
    Latent latent;
    std::vector<bool> is_part(old_.tensors.size(), false);
    Index normed = kNone;
    is_part[at(made)] = true;
    for (const Operation& op : old_.operations) {
      const auto reads = [&](Index t) { return is_part[at(t)]; };
      const bool reads_part = std::any_of(op.inputs.begin(), op.inputs.end(), reads);
      if (reads_part && op.view) {
        for (Index t : op.outputs) is_part[at(t)] = true;
      } else if (reads_part && op.kind == OperationKind::kNorm) {
        normed = op.outputs.front();
      } else if (reads_part) {
        latent.is_split = true;
      }
      const bool reads_normed = normed != kNone && std::find(op.inputs.begin(), op.inputs.end(),
                                                             normed) != op.inputs.end();
      if (reads_normed && op.kind == OperationKind::kGemm) latent.is_normed = true;
    }
    return latent;
  }

  // Every rank has all rows, which its own tokens read.
  void look_up_positions(Operation op) {
    layer_.parameters[at(op.parameters.front())].partial = tp_ > 1;
    layer_.operations.push_back(std::move(op));
    of_last().rows = slices_;
  }

  // A column for each head (T5's bias of positions): the rank reads those of its own heads.
  void look_up_heads(Operation op) {
    layer_.parameters[at(op.parameters.front())].shape.back() /= tp_;
    const Index result = op.outputs.front();
    known_[at(result)] = true;
    placement_[at(result)] = Placement::kFeature;
    layer_.tensors[at(result)].split *= tp_;
    layer_.operations.push_back(std::move(op));
  }

  // A masked lookup in a part of the vocabulary; the gradient is made for all of it.
  void cut_lookup(Operation op) {
    if (old_.role == LayerRole::kBlock) return look_up_heads(std::move(op));
    if (native_ && op.inputs.front() != 0) return look_up_positions(std::move(op));
    if (tp_ == 1) {
      if (cuts()) place(op.outputs, Placement::kSequence);
      layer_.operations.push_back(std::move(op));
      return;
    }
    const Index result = op.outputs.front();
    ParameterSpec& table = layer_.parameters[at(op.parameters.front())];
    if (!native_ && !megatron_) table.gradient_numel = table.numel();
    table.shape[0] = chunk_of(table.shape[0], tp_, plan_.mesh.tp_index(plan_.rank));
    const std::int8_t part = op.part;
    layer_.operations.push_back(std::move(op));
    reduce(result, part);
  }

  // The rank's own positions: their part of the rotary table is gathered once and kept.
  void rotate_own_positions(Operation& op) {
    if (op.backward_temporaries.empty()) return;
    TensorSpec& table = layer_.tensors[at(op.backward_temporaries.front())];
    table.per_token = std::exchange(table.per_position, 0);
    // Latent attention rotates queries and keys in calls of their own.
    if (rotary_ == kNone || has_latents_) {
      TensorSpec own = table;
      own.name = "rotary of own positions";
      rotary_ = add_tensor(std::move(own), Placement::kWhole);
      Operation& gather = layer_.operations.emplace_back();
      gather.name = "gather_positions";
      gather.function = Function::kGather;
      gather.outputs = {rotary_};
      gather.gradient = GradientRule::kNone;
    }
    op.inputs.push_back(rotary_);
    op.saved.push_back(rotary_);
  }

  // Keys and values of the other ranks of cp come round. What a step with a part of the queries
  // leaves is merged in another order of dimensions and copied back.
  void ring(const Operation& op) {
    const Mesh& mesh = plan_.mesh;
    const ContextParallel& how = plan_.context_parallel;
    RingAttention ring{.ranks = mesh.cp,
                       .rank = mesh.cp_index(plan_.rank),
                       .exchanges = how.rotate == ContextParallel::Rotate::kAllToAll,
                       .balanced = how.balance == ContextParallel::Balance::kHeadTail,
                       .narrow = megatron_};
    layer_.operations.back().ring = ring;
    // One head's result is in order whatever the order of dimensions.
    if (!ring.halves(mesh.cp - 1) || op.attention.heads == 1) return;
    const Index made = op.outputs.front();
    TensorSpec spec = layer_.tensors[at(made)];
    spec.name += " in order";
    const Index copy = add_tensor(std::move(spec), placement_[at(made)]);
    move(made, copy, op.part).released = {made};
    renamed_ = {made, copy};
  }

  // Heads and groups of the rank: whatever the operation has for each of them, and the weights of
  // the norm behind it, is cut with them.
  void cut_scan(Operation& op) {
    op.scan.heads /= tp_;
    op.scan.groups /= tp_;
    for (Index p : op.parameters) layer_.parameters[at(p)].shape.front() /= tp_;
  }

  void cut_other(Operation op) {
    if (plan_.mesh.cp > 1 && op.function == Function::kRotary) rotate_own_positions(op);
    Placement placement = Placement::kWhole;
    for (Index t : op.inputs) {
      if (placement_[at(t)] != Placement::kWhole) placement = placement_[at(t)];
    }
    // What all heads share is repeated for the rank's own; rows of experts are the tokens'.
    const bool expands = op.view && op.function != Function::kGather &&
                         old_.tensors[at(op.outputs.front())].per_token >
                             old_.tensors[at(op.inputs.front())].per_token;
    if (expands && tp_ > 1) {
      if (placement == Placement::kSequence) {
        const Index own = op.inputs.front();
        std::replace(op.inputs.begin(), op.inputs.end(), own, gather(own, op.part));
      }
      placement = Placement::kFeature;
    }
    for (Indices* list : {&op.outputs, &op.saved, &op.backward_temporaries, &op.forward_workspace,
                          &op.backward_workspace}) {
      place(*list, placement);
    }
    if (placement == Placement::kFeature) {
      op.attention.heads /= tp_;
      op.attention.kv_heads /= tp_;
    }
    const bool is_norm = op.kind == OperationKind::kNorm && placement != Placement::kWhole;
    // Of one kernel or, in eager mode, of several, the last of which multiplies by the weight.
    const bool scans = op.scan.heads > 0 && placement == Placement::kFeature;
    if (scans) cut_scan(op);
    for (std::size_t p = 0; placement != Placement::kWhole && !scans && p < op.parameters.size();
         ++p) {
      ParameterSpec& parameter = layer_.parameters[at(op.parameters[p])];
      if (is_norm || parameter.is_norm) parameter.partial = tp_ > 1;
    }
    const bool attends = op.kind == OperationKind::kAttention && plan_.mesh.cp > 1;
    const auto rotate = plan_.context_parallel.rotate;
    if (attends && rotate == ContextParallel::Rotate::kUlysses) {
      return attend_with_heads(std::move(op));
    }
    const bool gathers = megatron_ && rotate == ContextParallel::Rotate::kAllGather;
    if (attends && (gathers || plan_.attention == AttentionKernel::kFlex)) {
      return attend_to_all(std::move(op));
    }
    layer_.operations.push_back(std::move(op));
    if (is_norm) of_last().rows = slices_;
    if (attends) ring(Operation(layer_.operations.back()));
  }

  void replace_read(Operation& op, Index from, Index to) {
    for (Indices* list : {&op.inputs, &op.saved})
      std::replace(list->begin(), list->end(), from, to);
    if (std::find(op.released.begin(), op.released.end(), from) != op.released.end()) {
      op.released.push_back(to);
    }
  }

  // Heads are a dimension in front of positions there.
  Index make_contiguous(Operation& op, std::size_t i) {
    const Index from = op.inputs[i];
    TensorSpec spec = layer_.tensors[at(from)];
    spec.name += " contiguous";
    const Index copy = add_tensor(std::move(spec), placement_[at(from)]);
    move(from, copy, op.part).gradient = GradientRule::kAlias;
    replace_read(op, from, copy);
    return copy;
  }

  // FlexAttention's context parallel (torch 2.11 experimental/_context_parallel/_attention.py,
  // _ContextParallel._flex_input_fn: keys, then values are gathered along the positions), and
  // TransformerEngine's cp_comm_type all_gather.
  void attend_to_all(Operation op) {
    const auto keys_and_values = {std::size_t{1}, std::size_t{2}};
    Indices copies;
    // As in the ring, those of one head are contiguous as they are.
    for (const std::size_t i : keys_and_values) {
      if (!megatron_ && op.attention.kv_heads > 1) copies.push_back(make_contiguous(op, i));
    }
    for (const std::size_t i : keys_and_values) {
      const Index own = op.inputs[i];
      TensorSpec spec = layer_.tensors[at(own)];
      spec.per_token *= plan_.mesh.cp;
      spec.name += " of all ranks";
      const Index all = add_tensor(std::move(spec), placement_[at(own)]);
      Operation& gather = move(own, all, op.part);
      gather.collective = {
          .kind = CollectiveKind::kAllGather, .dim = MeshDim::kCp, .reorders = true, .waits = true};
      gather.collective_backward = {.kind = CollectiveKind::kReduceScatter,
                                    .dim = MeshDim::kCp,
                                    .packs = true,
                                    .waits = true};
      replace_read(op, own, all);
    }
    layer_.operations.back().released = std::move(copies);
    // (_cp_custom_ops.py, flex_cp_allgather: one operator for both)
    layer_.operations.back().continues_node = !megatron_;
    op.attention.key_ranks = plan_.mesh.cp;
    layer_.operations.push_back(std::move(op));
  }

  // DeepSpeed-Ulysses (deepspeed/sequence/layer.py of 0.19, DistributedAttention) and
  // Megatron-Core's cp_comm_type a2a: queries, keys, values and the result change between parts of
  // the positions and parts of the heads, each by an all-to-all with copies in front and behind.
  void attend_with_heads(Operation op) {
    const LayerCollective exchange{.kind = CollectiveKind::kAllToAll,
                                   .dim = MeshDim::kCp,
                                   .packs = true,
                                   .reorders = true,
                                   .waits = true};
    const auto change = [&](Index from, const char* suffix) {
      TensorSpec spec = layer_.tensors[at(from)];
      spec.name += suffix;
      return add_tensor(std::move(spec), placement_[at(from)]);
    };
    const std::int8_t part = op.part;
    for (const Index own : Indices(op.inputs)) {
      const Index heads = change(own, " by heads");
      Operation& there = move(own, heads, part);
      there.collective = there.collective_backward = exchange;
      replace_read(op, own, heads);
    }
    const Index result = op.outputs.front();
    const Index heads = change(result, " by heads");
    for (Indices* list : {&op.outputs, &op.saved}) {
      std::replace(list->begin(), list->end(), result, heads);
    }
    op.attention.heads /= plan_.mesh.cp;
    op.attention.kv_heads /= plan_.mesh.cp;
    op.attention.query_ranks = op.attention.key_ranks = plan_.mesh.cp;
    layer_.operations.push_back(std::move(op));
    Operation& back = move(heads, result, part);
    back.collective = back.collective_backward = exchange;
  }

  const LayerSpec& old_;
  const Plan& plan_;
  const std::int64_t tp_;
  const bool sequence_;
  const bool native_;
  const std::int16_t slices_;   // of the rank
  std::vector<Slices> sliced_;  // of the operations
  const bool megatron_;  // Megatron-Core's linear layers, with positions as the first dimension
  LayerSpec layer_;
  std::vector<Placement> placement_;  // of tensors
  std::vector<bool> known_;
  Indices gathered_;  // tensors: what is read of them by products
  std::int64_t experts_ = 1;
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
  Indices held_;  // by a call that has returned
  Index rotary_ = kNone;
  const bool counts_rows_;  // of each expert, for grouped products
  const bool has_latents_;
  std::pair<Index, Index> renamed_{kNone, kNone};  // later operations read the second instead
};

}  // namespace

std::int64_t chunk_of(std::int64_t all, std::int64_t parts, std::int64_t index) {
  const std::int64_t chunk = (all + parts - 1) / parts;
  return std::clamp<std::int64_t>(all - index * chunk, 0, chunk);
}

CutLayer cut_layer(const LayerSpec& layer, const Plan& plan, Placement input, Placement joined) {
  if (layer.role == LayerRole::kLoss && input == Placement::kFeature) {
    if (plan.runtime.kind != RuntimeKind::kNative) {
      return {cut_loss(layer, plan), {}, Placement::kWhole};
    }
    CutLayer loss{cut_native_loss(layer, plan), {}, Placement::kWhole};
    loss.slices.assign(loss.layer.operations.size(),
                       {.columns = static_cast<std::int16_t>(slices_of_rank(plan))});
    return loss;
  }
  return Cutter(layer, plan, input, joined).run();
}

}  // namespace foreshard
