// Walks the operations in order; what a rank's part is made of is written in layer_part.cpp.
#include "sim/graph/axes/layer_cutter.h"

#include <algorithm>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/integers.h"
#include "sim/base/lookup.h"
#include "sim/graph/axes/layer_part.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/latent_attention.h"

namespace foreshard {
namespace {

class Cutter {
 public:
  Cutter(const LayerSpec& layer, const Plan& plan, Placement input, Placement joined)
      : part_(layer, plan), experts_(part_), attention_(part_), attends_whole_(part_.by_plan && has_latents(layer)) {
    part_.place(0, layer.role == LayerRole::kEmbedding ? Placement::kWhole : input);
    if (layer.joins >= 0) part_.place(layer.joins, joined);
    last_sum_ = find_last_sum();
  }

  CutLayer run() {
    if (part_.source.role == LayerRole::kLoss && padded_vocabulary() > part_.tensor(0).per_token) narrow_logits();
    for (const Operation& op : part_.source.operations) cut_in_turn(op);
    mark_replicated();
    Placement output = part_.places[at(part_.layer.output)];
    if (part_.source.role == LayerRole::kHead && output == Placement::kFeature && !part_.plan.tensor_parallel.loss) {
      gather_logits();
      output = Placement::kWhole;
    }
    // torchtitan 0.3 makes hidden states whole behind the norm, in front of the head's chunks.
    const bool chunks = part_.plan.loss.kind == Loss::Kind::kChunkedHead && part_.tp > 1;
    if (chunks && part_.source.role == LayerRole::kFinalNorm) {
      const Index own = part_.layer.output;
      part_.layer.output = part_.sequence ? part_.gather(own, 0) : part_.own_input(own, 0);
      output = Placement::kWhole;
    }
    for (const Operation& op : part_.layer.operations) {
      if (!op.casts_weight) continue;
      std::int64_t& elements = part_.tensor(op.outputs.back()).fixed = 0;
      for (Index p : op.parameters) elements += part_.parameter(p).numel();
    }
    if (is_titan_3(part_.plan) && part_.plan.recompute.value == Recompute::kSelective) keep_regions();
    part_.sliced.resize(part_.layer.operations.size());
    return {std::move(part_.layer), std::move(part_.sliced), output};
  }

 private:
  static constexpr Index kNone = LayerPart::kNone;

  // Of the model's own sizes: no axis cuts them.
  void mark_replicated() {
    for (std::size_t p = 0; part_.tp > 1 && p < part_.source.parameters.size(); ++p) {
      ParameterSpec& parameter = part_.layer.parameters[p];
      parameter.replicated = !parameter.is_expert && parameter.shape == part_.source.parameters[p].shape;
    }
  }

  // FlexAttention is compiled, and a region returns with its results what its backward reads, all of which SelectiveAC
  // saves (torchtitan 0.3, models/common/attention.py, wrap_inductor_compiled_regions).
  void keep_regions() {
    if (part_.plan.attention != AttentionKernel::kFlex) return;
    for (std::size_t o = 0; o < part_.layer.operations.size(); ++o) {
      if (part_.layer.operations[o].kind != OperationKind::kAttention) continue;
      for (const Index read : Indices(part_.layer.operations[o].inputs)) {
        const Index kept = part_.add_like(read, " kept");
        Operation& op = part_.layer.operations[o];
        op.outputs.push_back(kept);
        std::ranges::replace(op.saved, read, kept);
      }
    }
  }

  // Every rank's part of the vocabulary, padded to the first one's.
  void gather_logits() {
    const std::int64_t all = part_.source.tensors[at(part_.source.output)].per_token;
    const std::int64_t widest = chunk_of(all, part_.tp, 0);
    const auto logits = [&](const char* suffix, std::int64_t width) {
      TensorSpec spec = part_.source.tensors[at(part_.source.output)];
      spec.per_token = width;
      return part_.add_like(std::move(spec), suffix, Placement::kWhole);
    };
    const Index own = part_.layer.output;
    Index cut = own;
    if (part_.tensor(cut).per_token < widest) {
      cut = logits(" padded", widest);
      part_.move(own, cut, 0).gradient = GradientRule::kNone;
    }
    const Index whole = logits(" gathered", widest * part_.tp);
    Operation& op = part_.move(cut, whole, 0);
    op.released = {own};
    if (cut != own) {
      op.released.push_back(cut);
      op.inputs.push_back(own);  // whose gradient is the rank's part
    }
    op.collective = {.kind = CollectiveKind::kAllGather, .reorders = true, .waits = true};
    part_.layer.output = whole;
  }

  // The loss reads a view of what was gathered.
  std::int64_t padded_vocabulary() const {
    const bool gathers = part_.tp > 1 && !part_.native && !part_.plan.tensor_parallel.loss;
    return gathers ? chunk_of(part_.layer.tensors[0].per_token, part_.tp, 0) * part_.tp : 0;
  }

  void narrow_logits() {
    const Index narrowed = part_.add_like(part_.tensor(0), " of all", Placement::kWhole);
    part_.tensor(0).per_token = padded_vocabulary();
    part_.move(0, narrowed, 0).view = true;
    part_.renamed = {0, narrowed};
  }

  // What a module's call holds ends behind the operation that comes after the call.
  void cut_in_turn(const Operation& op) {
    Indices ended = std::exchange(part_.held, {});
    cut(op);
    if (last_sum_ != kNone && contains(op.outputs, last_sum_)) scatter_sum();
    Indices& released = part_.layer.operations.back().released;
    append(released, ended);
  }

  void cut(const Operation& old) {
    Operation op = old;
    read_instead(op, part_.renamed.first, part_.renamed.second);
    if (contains(op.released, part_.renamed.first)) op.released.push_back(part_.renamed.second);
    for (Indices* list : {&op.inputs, &op.saved}) {
      for (Index& t : *list)
        if (part_.gathered[at(t)] != kNone && reads_whole(op)) t = part_.gathered[at(t)];
    }
    for (const auto& [own, seen] : seen_) {
      read_instead(op, own, seen);
      if (contains(op.released, own)) op.released.push_back(seen);
    }
    for (const auto& [own, whole] : columns_) {
      read_instead(op, own, whole);
      std::ranges::replace(op.released, own, whole);
    }
    const auto is_whole = [&](Index t) { return contains(of_columns_, t); };
    if (!columns_.empty() && op.kind != OperationKind::kGemm && std::ranges::any_of(op.inputs, is_whole))
      append(of_columns_, op.outputs);
    add_gathered_names(op);
    if (experts_.cut(op)) return;
    switch (op.kind) {
      case OperationKind::kGemm: return cut_product(std::move(op));
      case OperationKind::kEmbedding: return cut_lookup(std::move(op));
      default: return cut_other(std::move(op));
    }
  }

  bool reads_whole(const Operation& op) const {
    const bool drops = part_.plan.lora.rank > 0 && op.function == Function::kDropout && op.name.ends_with(".dropout");
    return op.kind == OperationKind::kGemm || drops;
  }

  // The name of a gathered input ends with that of what was gathered.
  void add_gathered_names(Operation& op) const {
    Indices names;
    for (Index t : op.released) {
      if (part_.gathered[at(t)] != kNone) names.push_back(part_.gathered[at(t)]);
      names.push_back(t);
    }
    op.released = std::move(names);
  }

  bool cuts() const { return part_.tp > 1 || part_.slices > 1; }

  // Sums in pairs hold one summand of each level.
  void add_workspace_of_slices(Operation& op) {
    for (std::int16_t left = part_.slices; left > 1; left /= 2) {
      const TensorSpec& made = part_.source.tensors[at(op.outputs.front())];
      op.forward_workspace.push_back(part_.add_like(made, " (slices)", Placement::kWhole));
    }
  }

  // null: none of that name.
  const Operation* find_operation(std::string_view name) const {
    const auto found = std::ranges::find(part_.source.operations, name, &Operation::name);
    return found == part_.source.operations.end() ? nullptr : &*found;
  }

  // ParallelLinearAdapter (Megatron-Bridge, peft/utils.py): the first product is cut as the layer
  // beside it, the second by columns; what they make is whole between them and, beside a layer that
  // is cut by rows, behind them, of which each rank then takes its positions.
  void cut_adapter(Operation op) {
    const bool is_first = op.name.ends_with(".lora_A");
    const Index read = op.inputs.front(), result = op.outputs.front();
    const std::int8_t part = op.part;
    std::vector<std::int64_t>& shape = part_.parameter(op.parameters.front()).shape;
    if (part_.places[at(read)] == Placement::kFeature) {
      op.k /= part_.tp;
      shape[1] /= part_.tp;
      part_.add(std::move(op));
      return part_.reduce(result, part, false, true);
    }
    if (part_.places[at(read)] == Placement::kSequence) read_instead(op, read, part_.gather(read, part));
    const Operation* sum = find_operation(op.name.substr(0, op.name.rfind('.')) + ".sum");
    const bool by_columns = sum != nullptr && part_.places[at(sum->inputs.front())] == Placement::kFeature;
    if (!is_first || !part_.sequence) op.reduces = {.kind = CollectiveKind::kAllReduce, .beside = true};
    op.n /= part_.tp;
    shape[0] /= part_.tp;
    if (!is_first && by_columns) {
      part_.place(result, Placement::kFeature);
      return part_.add(std::move(op));
    }
    const bool scatters = !is_first && part_.sequence;
    part_.place(result, scatters ? Placement::kSequence : Placement::kWhole);
    const auto add = [&](const char* suffix, std::int64_t width) {
      TensorSpec spec = part_.source.tensors[at(result)];
      spec.per_token = width;
      return part_.add_like(std::move(spec), suffix, Placement::kWhole);
    };
    const Index own = add(" of the rank", op.n);
    const Index whole = scatters ? add(" gathered", op.n * part_.tp) : result;
    std::ranges::replace(op.outputs, result, own);
    part_.add(std::move(op));
    Operation& gather = part_.move(own, whole, part);
    gather.released = {own};
    gather.collective = {.kind = CollectiveKind::kAllGather, .reorders = true, .waits = true};
    if (!scatters) return;
    Operation& scatter = part_.move(whole, result, part);
    scatter.released = {whole};
    scatter.collective_backward = {.kind = CollectiveKind::kAllGather, .waits = true};
  }

  void cut_product(Operation op) {
    const Index read = op.inputs.front();
    const Index result = op.outputs.front();
    const ParameterSpec& old_weight = part_.source.parameters[at(op.parameters.front())];
    FORESHARD_CHECK(part_.tp == 1 || old_weight.shape.size() == 2, "a stack of weights is not cut");
    ParameterSpec& weight = part_.parameter(op.parameters.front());
    const bool is_whole =
        part_.source.role == LayerRole::kHead && part_.plan.tensor_parallel.tables == TensorParallel::Tables::kWhole;
    const bool attends_whole = attends_whole_ && contains(op.name, "self_attn.");
    if (!cuts() || is_whole || attends_whole) return part_.add(std::move(op));
    if (part_.megatron && contains(op.name, ".lora_")) return cut_adapter(std::move(op));
    if (contains(of_columns_, read)) read_columns(op);
    if (part_.places[at(op.inputs.front())] == Placement::kFeature) {  // by rows of the input
      op.k /= part_.tp;
      if (part_.slices > 1) add_workspace_of_slices(op);
      weight.shape[op.transposed_weight ? 0 : 1] /= part_.tp;
      const std::int8_t part = op.part;
      const bool biased = part_.native && op.parameters.size() > 1;
      const Index bias = biased ? op.parameters.back() : kNone;
      // Added to the rank's own positions (RowParallelLinear).
      if (((part_.megatron && part_.sequence) || part_.titan_3) && op.parameters.size() > 1)
        part_.parameter(op.parameters.back()).partial = true;
      if (biased) op.parameters.pop_back();
      part_.add(std::move(op));
      part_.of_last().terms = part_.slices;
      return biased ? part_.reduce_and_add(result, bias, part) : part_.reduce(result, part);
    }
    // Megatron-Core's router, projections around experts and down projections to latents run on the
    // rank's own positions (core/transformer/moe/router.py, multi_latent_attention.py).
    const bool is_router = op.n == part_.experts && part_.experts > 1 && part_.source.role == LayerRole::kBlock;
    const bool on_own = part_.megatron ? is_router || latent_of(result).is_normed || is_beside_rows(op) : is_router;
    if (part_.own_rows && part_.places[at(read)] == Placement::kSequence && on_own) {
      op.split = part_.tp;
      for (Index p : op.parameters) part_.parameter(p).partial = true;
      part_.place(op.outputs, Placement::kSequence);
      part_.place(op.saved, Placement::kSequence);
      return part_.add(std::move(op));
    }
    Index input = read;
    // An adapter reads what TransformerEngine gathers for its layer (return_layernorm_output_gathered).
    const bool is_shared = part_.megatron && part_.sequence && find_operation(op.name + ".lora_A") != nullptr;
    const bool in_fp8 = part_.gathers_in_fp8(op) && part_.places[at(read)] == Placement::kSequence && !is_shared;
    if (in_fp8) op.fp8_inputs = part_.tp;
    if (is_shared) {
      input = part_.gather(read, op.part);
      Operation& gather = part_.layer.operations.back();
      gather.collective.unpacks = gather.collective_backward.packs = false;
    } else if (part_.megatron && !(part_.sequence && part_.plan.tensor_parallel.keeps_gathered)) {
      if (part_.sequence) {
        op.gathers = {.kind = CollectiveKind::kAllGather,
            .beside = true,
            .in_fp8 = in_fp8,
            .finds_amax = in_fp8 && op.fp8 == Float8::kCurrent};
      }
      op.reduces = {
          .kind = part_.sequence ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce, .beside = true};
    } else if (part_.places[at(read)] == Placement::kSequence) {
      input = part_.gather(read, op.part, in_fp8);
    } else if (sums_in_chunks(op) || part_.shared_out[at(read)]) {
    } else if (!part_.sequence || (part_.source.role == LayerRole::kBlock && !part_.is_gathered(read))) {
      // Of a latent every rank has all.
      input = part_.own_input(read, op.part);
    }
    read_instead(op, read, input);
    if (const Latent latent = latent_of(result); latent.is_normed) {
      weight.partial = latent.is_split;
      part_.place(result, Placement::kWhole);
      return part_.add(std::move(op));
    }
    const std::size_t rows = op.transposed_weight ? 1 : 0;
    const std::int64_t columns = chunk_of(op.n, part_.tp, part_.plan.mesh.tp_index(part_.plan.rank()));
    op.n = columns;
    weight.shape[rows] = columns;
    for (std::size_t i = 1; i < op.parameters.size(); ++i) part_.parameter(op.parameters[i]).shape[0] = columns;
    if (sums_in_chunks(op)) return sum_statistics(std::move(op));
    part_.known[at(result)] = true;
    part_.places[at(result)] = Placement::kFeature;
    part_.tensor(result).per_token = columns;
    part_.add(std::move(op));
    part_.of_last().columns = part_.slices;
    if (is_split_wider(result)) gather_heads(result, part_.layer.operations.back().part);
    if (is_gathered_by_plan(result)) gather_columns(result, part_.layer.operations.back().part);
    if (part_.by_plan) sum_norm_of_heads(result, part_.layer.operations.back().part);
  }

  // A hook of the norm of a product's heads all-reduces its weight's gradient (replicated_with_grad_allreduce).
  void sum_norm_of_heads(Index product, std::int8_t part) {
    Indices made = {product};
    std::int64_t elements = 0;
    for (const Operation& op : part_.source.operations) {
      const bool reads = std::ranges::any_of(op.inputs, [&](Index t) { return contains(made, t); });
      if (!reads || op.kind == OperationKind::kGemm || op.kind == OperationKind::kAttention) continue;
      append(made, op.outputs);
      for (Index p : op.parameters)
        if (part_.source.parameters[at(p)].is_norm) elements = part_.source.parameters[at(p)].numel();
    }
    if (elements == 0 || elements == part_.source.tensors[at(product)].per_token) return;
    const Index seen = part_.add_like(product, " to be normed");
    Operation& sum = part_.move(product, seen, part);
    sum.view = true;
    sum.n = elements;
    sum.collective_backward = {.kind = CollectiveKind::kAllReduce, .waits = true};
    seen_.emplace_back(product, seen);
  }

  // transformers' plans (base_model_tp_plan: colwise_gather_output, rowwise_split_input) leave whole what fused
  // products make, and what attends where queries are normed over all heads at once.
  bool is_gathered_by_plan(Index product) const {
    if (!part_.by_plan || part_.source.role != LayerRole::kBlock) return false;
    const bool is_of_heads = attends(product, false);
    return std::ranges::any_of(part_.source.operations, [&](const Operation& op) {
      // (Queries that are rotated in part are two, too.)
      const bool is_fused = op.view && op.inputs.front() == product && op.outputs.size() > (is_of_heads ? 2 : 1);
      return is_fused || (is_of_heads && op.kind == OperationKind::kGemm && attends(op.outputs.front(), true));
    });
  }
  // Whether attention reads what the product makes; `normed`: all of it normed at once.
  bool attends(Index product, bool normed) const {
    Indices made = {product};
    for (const Operation& op : part_.source.operations) {
      if (std::ranges::none_of(op.inputs, [&](Index t) { return contains(made, t); })) continue;
      if (op.kind == OperationKind::kAttention) return !normed;
      if (op.kind == OperationKind::kGemm) continue;
      append(made, op.outputs);
      for (Index p : op.parameters) {
        const ParameterSpec& weight = part_.source.parameters[at(p)];
        normed &= !weight.is_norm || weight.numel() != part_.source.tensors[at(product)].per_token;
      }
    }
    return false;
  }

  void gather_columns(Index own, std::int8_t part) {
    const Index whole = part_.add_like(part_.source.tensors[at(own)], " gathered", Placement::kWhole);
    Operation& op = part_.move(own, whole, part);
    op.released = {own};
    op.collective = {.kind = CollectiveKind::kAllGather, .reorders = true, .waits = true};
    columns_.emplace_back(own, whole);
    of_columns_.push_back(whole);
  }

  // The rank's columns of what it has whole; gradients of them are gathered.
  void read_columns(Operation& op) {
    const Index whole = op.inputs.front();
    TensorSpec spec = part_.tensor(whole);
    spec.per_token /= part_.tp;
    const Index own = part_.add_like(std::move(spec), " of the rank", Placement::kFeature);
    Operation& slice = part_.move(whole, own, op.part);
    slice.collective_backward = {.kind = CollectiveKind::kAllGather, .waits = true};
    read_instead(op, whole, own);
  }

  bool sums_in_chunks(const Operation& product) const {
    return part_.plan.loss.kind == Loss::Kind::kChunkedHead && product.function == Function::kCrossEntropy;
  }

  // Of each chunk the greatest logit, the sum of exponentials and the chosen log-probability.
  void sum_statistics(Operation product) {
    const Plan& plan = part_.plan;
    const std::int64_t tokens = plan.batch.micro_batch * plan.batch.sequence / plan.mesh.cp;
    const auto statistic = [&](const char* suffix) {
      const TensorSpec of_chunk = {
          .name = "of a chunk", .fixed = tokens / plan.loss.chunks, .type = ElementType::kFp32};
      return part_.add_like(of_chunk, suffix, Placement::kWhole);
    };
    const Index own = statistic("");
    product.outputs.push_back(own);
    const std::int8_t part = product.part;
    part_.add(std::move(product));
    Index last = own;
    for (std::int64_t i = 0; i < 3 * plan.loss.chunks; ++i) {
      const Index sum = statistic(" of all");
      Operation& op = part_.move(last, sum, part);
      op.gradient = GradientRule::kNone;
      op.collective = {.kind = CollectiveKind::kAllReduce, .waits = true, .maximum = i % 3 == 0};
      op.released = {last};
      last = sum;
    }
    part_.layer.operations.back().released.push_back(last);
  }

  // Into keys and values that are copied for the ranks (copy_keys).
  bool is_split_wider(Index product) const {
    return part_.megatron && std::ranges::any_of(
                                 part_.source.operations,
                                 [&](const auto& op) {
                                   std::int64_t width = 0;
                                   for (Index t : op.outputs) width += part_.source.tensors[at(t)].per_token;
                                   return op.view && op.outputs.size() == 3 && op.inputs.front() == product &&
                                          width > part_.source.tensors[at(product)].per_token;
                                 });
  }

  void gather_heads(Index own, std::int8_t part) {
    heads_ = part_.add_like(part_.source.tensors[at(own)], " gathered", Placement::kWhole);
    Operation& op = part_.move(own, heads_, part);
    op.collective = {.kind = CollectiveKind::kAllGather, .reorders = true, .waits = true};
    op.collective_backward = {.kind = CollectiveKind::kReduceScatter, .packs = true, .waits = true};
    part_.renamed = {own, heads_};
  }

  // The projections around what experts read and make (moe_latent_size): of the rows that are
  // gathered, and of their sum (core/transformer/moe/moe_layer.py).
  bool is_beside_rows(const Operation& product) const {
    return std::ranges::any_of(
        part_.source.operations,
        [&](const Operation& op) {
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
    std::vector<bool> is_part(part_.source.tensors.size(), false);
    Index normed = kNone;
    is_part[at(made)] = true;
    for (const Operation& op : part_.source.operations) {
      const auto reads = [&](Index t) { return is_part[at(t)]; };
      const bool reads_part = std::ranges::any_of(op.inputs, reads);
      if (reads_part && op.view)
        for (Index t : op.outputs) is_part[at(t)] = true;
      else if (reads_part && op.kind == OperationKind::kNorm) normed = op.outputs.front();
      else if (reads_part) latent.is_split = true;
      const bool reads_normed = normed != kNone && contains(op.inputs, normed);
      if (reads_normed && op.kind == OperationKind::kGemm) latent.is_normed = true;
    }
    return latent;
  }

  // Every rank has all rows, which its own tokens read.
  void look_up_positions(Operation op) {
    part_.parameter(op.parameters.front()).partial = part_.tp > 1;
    part_.add(std::move(op));
    part_.of_last().rows = part_.slices;
  }

  // A column for each head (T5's bias of positions): the rank reads those of its own heads.
  void look_up_heads(Operation op) {
    part_.parameter(op.parameters.front()).shape.back() /= part_.tp;
    const Index result = op.outputs.front();
    part_.known[at(result)] = true;
    part_.places[at(result)] = Placement::kFeature;
    part_.tensor(result).split *= part_.tp;
    part_.add(std::move(op));
  }

  // A masked lookup in a part of the vocabulary; the gradient is made for all of it.
  void cut_lookup(Operation op) {
    if (part_.source.role == LayerRole::kBlock) return look_up_heads(std::move(op));
    if (part_.native && op.inputs.front() != 0) return look_up_positions(std::move(op));
    if (part_.megatron && op.inputs.front() != 0) return part_.add(std::move(op));  // of positions: whole on every rank
    if (part_.tp == 1 || part_.plan.tensor_parallel.tables != TensorParallel::Tables::kCut) {
      if (part_.slices > 1) part_.place(op.outputs, Placement::kSequence);
      return part_.add(std::move(op));
    }
    const Index result = op.outputs.front();
    ParameterSpec& table = part_.parameter(op.parameters.front());
    if (!part_.native && !part_.megatron) table.gradient_numel = table.numel();
    table.shape[0] = chunk_of(table.shape[0], part_.tp, part_.plan.mesh.tp_index(part_.plan.rank()));
    const std::int8_t part = op.part;
    part_.add(std::move(op));
    part_.reduce(result, part, false, last_sum_ != kNone);
  }

  // What Megatron-Core adds to words (positions, kinds of tokens) is whole: so is their sum, of
  // which each rank then takes its positions (language_model_embedding.py).
  Index find_last_sum() const {
    Index last = kNone;
    if (!part_.megatron || !part_.sequence || part_.tp == 1) return last;
    if (part_.source.role != LayerRole::kEmbedding) return last;
    const bool adds = std::ranges::count(part_.source.operations, OperationKind::kEmbedding, &Operation::kind) > 1;
    for (const Operation& op : part_.source.operations)
      if (adds && op.function == Function::kAdd) last = op.outputs.front();
    return last;
  }

  void scatter_sum() {
    const Index whole = std::exchange(last_sum_, kNone);
    const Index own = part_.add_like(part_.source.tensors[at(whole)], " of the rank", Placement::kSequence);
    part_.tensor(own).split *= part_.tp;
    Operation& op = part_.move(whole, own, part_.source.operations.back().part);
    op.released = {whole};
    op.collective_backward = {.kind = CollectiveKind::kAllGather, .waits = true};
    part_.renamed = {whole, own};
    if (part_.layer.output == whole) part_.layer.output = own;
  }

  // Heads and groups of the rank: whatever the operation has for each of them, and the weights of
  // the norm behind it, is cut with them.
  void cut_scan(Operation& op) {
    op.scan.heads /= part_.tp;
    op.scan.groups /= part_.tp;
    for (Index p : op.parameters) part_.parameter(p).shape.front() /= part_.tp;
  }

  void cut_other(Operation op) {
    const bool gathers_positions = part_.plan.mesh.cp > 1 || is_titan_3(part_.plan);  // (0.3: always given)
    if (gathers_positions && op.function == Function::kRotary) attention_.rotate_own_positions(op);
    Placement placement = Placement::kWhole;
    for (Index t : op.inputs)
      if (part_.places[at(t)] != Placement::kWhole) placement = part_.places[at(t)];
    // What all heads share is repeated for the rank's own; rows of experts are the tokens'.
    const auto width = [&](Index t) {  // (what was gathered is none of the source's)
      return (at(t) < part_.source.tensors.size() ? part_.source : part_.layer).tensors[at(t)].per_token;
    };
    const bool expands =
        op.view && op.function != Function::kGather && width(op.outputs.front()) > width(op.inputs.front());
    if (expands && part_.tp > 1 && !attends_whole_) {
      if (placement == Placement::kSequence) {
        const Index own = op.inputs.front();
        std::ranges::replace(op.inputs, own, part_.gather(own, op.part));
      }
      placement = Placement::kFeature;
    }
    if (op.view && op.inputs.front() == heads_) placement = Placement::kFeature;
    for (Indices* list :
        {&op.outputs, &op.saved, &op.backward_temporaries, &op.forward_workspace, &op.backward_workspace})
      part_.place(*list, placement);
    if (placement == Placement::kFeature) {
      op.attention.heads /= part_.tp;
      op.attention.kv_heads /= part_.tp;
    }
    const bool is_norm = op.kind == OperationKind::kNorm && placement != Placement::kWhole;
    // Biases of experts, sinks of heads; a bias of what is summed is each rank's.
    for (std::size_t p = 0; part_.titan_3 && op.kind != OperationKind::kNorm && p < op.parameters.size(); ++p) {
      ParameterSpec& parameter = part_.parameter(op.parameters[p]);
      if (placement == Placement::kFeature && !parameter.is_norm) parameter.shape.back() /= part_.tp;
      if (placement == Placement::kWhole && op.part > 0) parameter.partial = true;
    }
    // Of one kernel or, in eager mode, of several, the last of which multiplies by the weight.
    const bool scans = op.scan.heads > 0 && placement == Placement::kFeature;
    if (scans) cut_scan(op);
    for (std::size_t p = 0; placement != Placement::kWhole && !scans && p < op.parameters.size(); ++p) {
      ParameterSpec& parameter = part_.parameter(op.parameters[p]);
      if (is_norm || parameter.is_norm) parameter.partial = part_.tp > 1 && !part_.by_plan;
    }
    if (op.kind == OperationKind::kAttention && part_.plan.mesh.cp > 1) return attention_.attend(std::move(op));
    part_.add(std::move(op));
    if (is_norm) part_.of_last().rows = part_.slices;
  }

  LayerPart part_;
  ExpertCutter experts_;
  AttentionCutter attention_;
  const bool attends_whole_;                      // the plans have no entry for attention with latents
  std::vector<std::pair<Index, Index>> columns_;  // gathered: of the rank, whole
  std::vector<std::pair<Index, Index>> seen_;     // views
  Indices of_columns_;                            // what is made of them
  Index heads_ = kNone;                           // of all ranks
  Index last_sum_ = kNone;                        // whole, to be scattered
};

// Megatron-Core's cross entropy is its own without tensor parallelism, too.
bool is_megatrons(const LayerSpec& loss, const Plan& plan) {
  using enum Loss::Kind;
  const Loss::Kind kind = plan.loss.kind;
  return plan.runtime.kind == RuntimeKind::kMegatron &&
         (kind == kEager || kind == kEagerCompute || kind == kCompiled || kind == kFused) &&
         std::ranges::count_if(loss.operations, [](const Operation& op) {
           return op.function == Function::kNegativeLogLikelihood || op.function == Function::kCrossEntropy;
         }) == 1;
}

}

std::int64_t chunk_of(std::int64_t all, std::int64_t parts, std::int64_t index) {
  const std::int64_t chunk = (all + parts - 1) / parts;
  return std::clamp<std::int64_t>(all - index * chunk, 0, chunk);
}

CutLayer cut_layer(const LayerSpec& layer, const Plan& plan, Placement input, Placement joined) {
  if (layer.role == LayerRole::kLoss && (input == Placement::kFeature || is_megatrons(layer, plan))) {
    if (plan.runtime.kind != RuntimeKind::kNative) return {cut_loss(layer, plan), {}, Placement::kWhole};
    CutLayer loss{cut_native_loss(layer, plan), {}, Placement::kWhole};
    loss.slices.assign(loss.layer.operations.size(), {.columns = static_cast<std::int16_t>(slices_of_rank(plan))});
    return loss;
  }
  return Cutter(layer, plan, input, joined).run();
}

}
