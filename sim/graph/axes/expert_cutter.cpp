#include <algorithm>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/integers.h"
#include "sim/base/lookup.h"
#include "sim/graph/axes/layer_cutter.h"
#include "sim/graph/axes/layer_part.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

// models/layers/moe.cpp
constexpr const char* kCounts = "rows_per_expert";
constexpr const char* kOffsets = "offsets";

}

ExpertCutter::ExpertCutter(LayerPart& part)
    : part_(part),
      counts_rows_(
          std::ranges::any_of(part.source.tensors, [](const TensorSpec& each) { return each.name == kCounts; })) {}

bool ExpertCutter::cut(Operation& op) {
  if (part_.by_plan) return part_.experts > 1 && cut_by_plan(op);
  if (routes()) {
    std::erase_if(op.released, [&](Index t) { return part_.tensor(t).name == kOffsets; });
    if (counts_rows_ && op.name == "cumsum") return true;  // behind the rows' padding, then
  }
  const bool routed = routes() && op.part > 0 && part_.source.role == LayerRole::kBlock;
  if (!routed && routing_.open) combine();
  if (part_.titan_3 && cut_around_experts(op)) return true;
  if (part_.tp > 1 && part_.experts > 1 && !part_.own_rows && cut_mixture(op)) return true;
  if (routed) cut_expert(std::move(op));
  return routed;
}

bool ExpertCutter::cut_by_plan(Operation& op) {
  const bool is_product = op.kind == OperationKind::kGemm;
  const bool is_router = is_product && op.groups == 1 && op.n == part_.experts;
  // models/layers/transformers_moe.cpp
  const auto is_named = [](const char* name) { return [name](const Operation& each) { return each.name == name; }; };
  const bool casts = std::ranges::any_of(part_.source.operations, is_named("routed_output_cast"));
  const bool ends = op.name == (casts ? "routed_output_cast" : "sum_rows");
  if (op.name == "gather_rows" || op.name == "gather_weights")
    read_instead(op, op.inputs.front(), part_.own_input(op.inputs.front(), op.part));
  if (!is_router && !ends && !(is_product && op.groups > 1)) return false;
  const Index result = op.outputs.front();
  const std::int8_t part = op.part;
  part_.place(op.outputs, is_product && !is_router ? cut_weight(op, part_.tp) : Placement::kWhole);
  part_.add(std::move(op));
  if (ends) part_.reduce(result, part);
  return true;
}

bool ExpertCutter::cut_around_experts(Operation& op) {
  if (op.name == kAddsShared && std::exchange(part_.sums_later, false)) {
    const Index result = op.outputs.front();
    const std::int8_t part = op.part;
    part_.add(std::move(op));
    part_.reduce(result, part);
    return true;
  }
  const bool sums = op.function == Function::kScatterAdd;
  if (sums && !part_.sequence)
    part_.sums_later = std::ranges::count(part_.source.operations, kAddsShared, &Operation::name) > 0;
  if (!part_.own_rows) return false;
  if (op.name == "zeros_like") part_.place(op.outputs, Placement::kSequence);
  const Index read = op.inputs.empty() ? kNone : op.inputs.front();
  const bool begins = op.name == kRouterInput || op.name == "gather_rows";
  if (begins && part_.places[at(read)] == Placement::kWhole) {
    const Index own = part_.add_like(part_.source.tensors[at(read)], " of the rank", Placement::kSequence);
    part_.tensor(own).split *= part_.tp;
    part_.move(read, own, op.part).collective_backward = {.kind = CollectiveKind::kAllGather, .waits = true};
    read_instead(op, read, own);
  }
  if (!sums || part_.sequence) return false;
  const Index result = op.outputs.front();
  const Index own = part_.add_like(part_.source.tensors[at(result)], " of the rank", Placement::kSequence);
  part_.tensor(own).split *= part_.tp;
  part_.place(op.saved, Placement::kSequence);
  const std::int8_t part = op.part;
  op.outputs = {own};
  part_.add(std::move(op));
  part_.move(own, result, part).released = {own};
  if (!part_.sums_later) part_.reduce(result, part);
  return true;
}

bool ExpertCutter::cut_mixture(Operation& op) {
  const bool is_product = op.kind == OperationKind::kGemm;
  const bool is_router = is_product && op.groups == 1 && op.n == part_.experts;
  if (mixture_.whole == kNone && (is_router || op.name == kRouterInput)) {
    mixture_.input = op.inputs.front();
    mixture_.whole = part_.sequence ? part_.gather(mixture_.input, op.part) : part_.own_input(mixture_.input, op.part);
    if (!part_.titan_3) part_.layer.operations.back().collective_backward = {};
    read_instead(op, mixture_.input, mixture_.whole);
    part_.place(op.outputs, Placement::kWhole);
    part_.add(std::move(op));
    return true;
  }
  if (mixture_.whole == kNone) return false;
  if (is_router) {
    part_.place(op.outputs, Placement::kWhole);
    part_.add(std::move(op));
    return true;
  }
  read_instead(op, mixture_.input, mixture_.whole);
  const bool splits_rows = part_.plan.mesh.ep > 1 && part_.plan.mesh.etp == 1;
  if (splits_rows) mark_rows(op);
  if (op.function == Function::kScatterAdd) {
    const Index result = op.outputs.front();
    part_.place(op.saved, Placement::kWhole);
    const std::int8_t part = op.part;
    // What the mixture read and what it made stay with its hooks until the sum has arrived.
    for (const Index read : {mixture_.whole, mixture_.input})
      if (std::erase(op.released, read) > 0) part_.held.push_back(read);
    part_.add(std::move(op));
    part_.reduce(result, part, /*has_returned=*/true);
    Indices& made = part_.layer.operations.back().released;
    append(part_.held, made);
    made.clear();
    mixture_ = {};
    return true;
  }
  if (splits_rows && op.name == "index_scores") {
    part_.layer.operations.push_back(op);
    offset_rows(op);
    return true;
  }
  if (op.part > 0 && !routes() && !part_.titan_3) enter_experts(op);
  if (!is_product) return false;
  if (op.groups > 1 && routes()) return false;
  const Index read = op.inputs.front();
  const bool by_rows = part_.places[at(read)] == Placement::kFeature;
  if (op.groups == 1 && !by_rows && op.n > 1 && !part_.titan_3) {
    const Index own = part_.own_input(read, op.part);
    std::ranges::replace(op.saved, read, own);
    op.inputs.front() = own;
  }
  if (op.groups > 1 || by_rows || op.n > 1) part_.place(op.outputs, cut_weight(op, part_.tp));
  part_.add(std::move(op));
  return true;
}

Placement ExpertCutter::cut_weight(Operation& op, std::int64_t parts) {
  const bool by_rows = part_.places[at(op.inputs.front())] == Placement::kFeature;
  (by_rows ? op.k : op.n) /= parts;
  part_.parameter(op.parameters.front()).shape[(op.groups > 1 ? 1U : 0U) + (by_rows ? 1U : 0U)] /= parts;
  return by_rows ? Placement::kWhole : Placement::kFeature;
}

void ExpertCutter::offset_rows(const Operation& indexed) {
  const Index order = indexed.inputs.back();
  const Index moved = part_.add_like(order, " of all ranks");
  Operation& add = part_.move(order, moved, indexed.part);
  add.gradient = GradientRule::kNone;
  add.released = {order};
  mixture_.rows.push_back(moved);
  part_.renamed = {order, moved};
}

void ExpertCutter::mark_rows(const Operation& op) {
  const auto is_row = [&](Index t) { return contains(mixture_.rows, t); };
  // What comes back is put in its place among all rows.
  const auto came_back = [&](Index t) { return contains(mixture_.returned, t); };
  if (std::ranges::any_of(op.inputs, came_back)) {
    append(mixture_.returned, op.outputs);
    return;
  }
  const bool begins = op.name == "argsort" || op.name == "histc";
  if (op.function == Function::kScatterAdd || op.part > 0) return;
  if (!begins && std::ranges::none_of(op.inputs, is_row)) return;
  // Rows are taken out of all tokens, and so their gradient is put into zeros of all.
  static const Indices kWholeZeros;
  const bool takes_rows = op.function == Function::kGather && op.inputs.front() == mixture_.whole;
  for (const Indices* list : {&op.outputs, &op.saved, takes_rows ? &kWholeZeros : &op.backward_temporaries}) {
    for (Index t : *list) {
      if (part_.known[at(t)]) continue;
      part_.known[at(t)] = true;
      if (part_.tensor(t).per_token > 0) part_.tensor(t).split *= part_.tp;
      mixture_.rows.push_back(t);
    }
  }
}

void ExpertCutter::enter_experts(Operation& op) {
  if (mixture_.entered == kNone) {
    mixture_.first = op.inputs.front();
    mixture_.entered = part_.own_input(mixture_.first, op.part);
  }
  read_instead(op, mixture_.first, mixture_.entered);
}

bool ExpertCutter::routes() const {
  // (0.3 pads no rows.)
  const bool is_titans = part_.plan.step_frame != StepFrame::kPlain && !is_titan_3(part_.plan) &&
                         part_.plan.experts == ExpertKernels::kGrouped;
  return rows_travel() || (is_titans && counts_rows_);
}

std::int64_t ExpertCutter::parts_of_expert() const { return exchanges() ? part_.plan.mesh.etp : part_.tp; }

bool ExpertCutter::exchanges() const { return part_.plan.mesh.ep > 1; }

bool ExpertCutter::has_own_rows() const {
  return part_.tp > 1 && (part_.megatron || (exchanges() && part_.plan.mesh.etp == 1));
}

std::int64_t ExpertCutter::parts_gathered() const { return part_.megatron ? part_.plan.mesh.etp : 1; }

bool ExpertCutter::rows_travel() const { return exchanges() || parts_gathered() > 1; }

void ExpertCutter::share_rows(Index from, Index to, CollectiveKind kind, CollectiveKind backward, MeshDim dim) {
  Operation& op = part_.move(from, to, routing_.part);
  op.collective = {.kind = kind, .dim = dim, .waits = true};
  op.collective_backward = {.kind = backward, .dim = dim, .waits = true};
}

Index ExpertCutter::find(std::string_view name) const {
  for (std::size_t t = 0; t < part_.source.tensors.size(); ++t)
    if (part_.source.tensors[t].name == name) return static_cast<Index>(t);
  FORESHARD_CHECK(false, "a router without the tensor");
  return kNone;
}

Index ExpertCutter::find_scores() const {
  const auto cast = std::ranges::find(part_.source.operations, kScoresCast, &Operation::name);
  return cast == part_.source.operations.end() ? kNone : cast->outputs.front();
}

Index ExpertCutter::fixed(std::string name, std::int64_t elements, ElementType type) {
  return part_.add_tensor({.name = std::move(name), .fixed = elements, .type = type}, Placement::kWhole);
}

Operation& ExpertCutter::route(Index from, Index to, bool waits) {
  Operation& op = part_.move(from, to, routing_.part);
  op.collective = {.kind = CollectiveKind::kAllToAll, .dim = MeshDim::kEp, .waits = waits};
  op.collective_backward = {.kind = CollectiveKind::kAllToAll, .dim = MeshDim::kEp, .waits = true};
  if (part_.plan.expert_parallel.dispatcher == ExpertParallel::Dispatcher::kDeepEp)
    op.collective.copies = op.collective_backward.copies = routing_.per_token;
  // torchtitan's per-operation checkpointing keeps them, but for Qwen3's list.
  op.kept_by_selective = !is_titan_3(part_.plan) && !part_.source.name.starts_with("qwen3");
  return op;
}

void ExpertCutter::dispatch(const Operation& first) {
  constexpr std::int64_t kAlignment = 8;
  // Megatron-Core's rows are padded for fp8 alone (moe_router_padding_for_fp8).
  const bool pads = (!part_.megatron && !is_titan_3(part_.plan)) || part_.plan.float8 != Float8::kNone;
  // `first` may be a cast of the rows, in front of what the experts multiply.
  const Operation& product =
      *std::ranges::find_if(part_.source.operations, [](const Operation& op) { return op.groups > 1; });
  routing_ = {};
  routing_.open = true;
  routing_.part = first.part;
  routing_.rows = first.inputs.front();
  routing_.per_token = product.rows;
  routing_.width = part_.tensor(routing_.rows).per_token / product.rows;
  routing_.experts = product.groups / part_.plan.mesh.ep;
  const std::int64_t tokens = part_.plan.batch.micro_batch * part_.plan.batch.sequence / part_.plan.mesh.cp;
  const std::int64_t parts = has_own_rows() ? part_.tp : 1;
  routing_.received =
      received_rows(part_.plan.expert_parallel, {part_.plan.mesh.ep, product.groups}, tokens * product.rows / parts) *
      parts_gathered();
  const std::int64_t padded = routing_.received + kAlignment * routing_.experts;
  routing_.padded = pads ? (padded + kAlignment - 1) / kAlignment * kAlignment : routing_.received;

  Index rows = routing_.rows;
  if (parts_of_expert() > parts_gathered()) {
    rows = part_.own_input(rows, first.part);
    if (exchanges()) part_.layer.operations.back().collective_backward.dim = MeshDim::kEtp;
  }
  Index counts = find(kCounts);
  Indices ended;  // with the call that permutes
  if (rows_travel()) {
    // Weighed where the experts are, so what weighs them goes, too (a DeepEP dispatcher sends both).
    if (part_.megatron && !sends_tokens(part_.plan)) routing_.own_scores = find_scores();
    routing_.scores = routing_.own_scores;
    rows = receive(rows, counts, product.groups, ended);
    counts = ended.front();
  }
  permute(rows, counts, std::move(ended));
  const Index offsets = find(kOffsets);
  part_.tensor(offsets).fixed = 4 * routing_.experts;
  part_.known[at(offsets)] = true;
  part_.move(routing_.sizes, offsets, first.part).gradient = GradientRule::kNone;
}

Index ExpertCutter::receive(Index rows, Index counts, std::int64_t groups, Indices& ended) {
  // Megatron-Core's ranks tell all counts to all (token_dispatcher.py, preprocess).
  const bool tells_all = part_.megatron || !exchanges();
  const std::int64_t ranks = exchanges() ? part_.plan.mesh.ep * parts_gathered() : parts_gathered();
  const std::int64_t told = tells_all ? ranks : 1;
  const Index came = fixed("rows_per_expert received", groups * told, ElementType::kInt64);
  if (tells_all) {
    share_rows(counts, came, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
        exchanges() ? MeshDim::kEp : MeshDim::kEtp);
  } else {
    route(counts, came, true).collective.copies = 1;
  }
  part_.layer.operations.back().gradient = GradientRule::kNone;
  const auto read = [&](Index of, const char* name, bool Operation::*how) -> Index {
    const Index splits = fixed(name, part_.plan.mesh.ep, ElementType::kInt64);
    part_.move(of, splits, routing_.part).gradient = GradientRule::kNone;
    Operation& copy = part_.move(splits, fixed("splits on the host", 0), routing_.part);
    copy.gradient = GradientRule::kNone;
    copy.*how = copy.kept_by_selective = true;
    return splits;
  };
  const Index sent = read(counts, "splits sent", &Operation::host_copies);
  const Index received = read(came, "splits received", &Operation::host_reads);
  ended = {came};
  // Rows, and what weighs them, by `send`.
  const auto come = [&](const char* from, std::int64_t parts, const auto& send) {
    ended.push_back(fixed(std::string("rows ") + from, routing_.received * routing_.width / parts));
    send(rows, ended.back());
    rows = ended.back();
    if (routing_.scores == kNone) return;
    const Index scores = fixed(std::string("scores ") + from, routing_.received / parts);
    send(routing_.scores, scores);
    if (routing_.scores != routing_.own_scores) ended.push_back(routing_.scores);
    routing_.scores = scores;
  };
  // Where they go is worked out while they travel.
  if (exchanges()) come("received", parts_gathered(), [&](Index from, Index to) { route(from, to, false); });
  if (parts_gathered() > 1) {
    come(
        "of the ranks of etp", 1,
        [&](Index from, Index to) {
          share_rows(from, to, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter);
        });
  }
  append(ended, {sent, received});
  return rows;
}

void ExpertCutter::permute(Index rows, Index counts, Indices ended) {
  const std::int64_t local = 4 * routing_.experts;
  routing_.sizes = fixed("rows of experts, padded", local, ElementType::kByte);
  const Index places = fixed("offsets while permuting", local, ElementType::kByte);
  const Index order = fixed(exchanges() ? kRowOrder : "order of padded rows", 4 * routing_.padded, ElementType::kByte);
  Operation& make = part_.move(counts, order, routing_.part);
  make.gradient = GradientRule::kNone;
  make.outputs = {order, routing_.sizes, places};
  const bool adds_zeros = !part_.megatron && !is_titan_3(part_.plan);
  const std::int64_t with_zeros = (routing_.received + (adds_zeros ? 1 : 0)) * routing_.width;
  Index whole = rows;
  if (adds_zeros) {  // whose permutation reads the rows as they came
    whole = fixed("rows with zeros", with_zeros);
    part_.move(rows, whole, routing_.part).gradient = GradientRule::kAlias;
  }
  routing_.permuted = fixed("rows permuted", routing_.padded * routing_.width);
  Operation& permute = part_.move(whole, routing_.permuted, routing_.part);
  permute.function = Function::kGather;
  permute.inputs.push_back(order);
  permute.saved = {order};
  permute.released = {places};
  if (whole != rows) permute.released.push_back(whole);
  append(permute.released, ended);
  routing_.order = order;
  // The module holds it until its next forward, which torchtitan's frame follows.
  if (exchanges() && part_.plan.step_frame != StepFrame::kPlain) part_.tensor(order).held = true;
  else if (exchanges()) permute.released.push_back(order);
  permute.backward_temporaries = {fixed("row zeros", with_zeros)};
}

void ExpertCutter::widen(const Indices& tensors, Placement placement) {
  const std::int64_t parts = placement == Placement::kFeature ? parts_of_expert() : 1;
  for (Index t : tensors) {
    if (part_.known[at(t)] || part_.tensor(t).per_token == 0) continue;
    TensorSpec& spec = part_.tensor(t);
    spec.fixed = spec.per_token / routing_.per_token * routing_.padded / parts;
    spec.per_token = 0;
    part_.known[at(t)] = true;
    part_.places[at(t)] = placement;
  }
}

Placement ExpertCutter::expert_placement(Operation& op) {
  const std::int64_t parts = parts_of_expert();
  const bool reads_features = part_.places[at(op.inputs.front())] == Placement::kFeature && parts > 1;
  if (parts == 1 || op.groups == 1) return reads_features ? Placement::kFeature : Placement::kWhole;
  return cut_weight(op, parts);
}

void ExpertCutter::cut_expert(Operation op) {
  if (!routing_.open) dispatch(op);
  for (Indices* list : {&op.inputs, &op.saved, &op.released}) {
    std::replace(list->begin(), list->end(), routing_.rows, routing_.permuted);
    if (routing_.own_scores != kNone) std::replace(list->begin(), list->end(), routing_.own_scores, routing_.scores);
  }
  const Placement placement = expert_placement(op);
  for (Indices* list :
      {&op.outputs, &op.saved, &op.backward_temporaries, &op.forward_workspace, &op.backward_workspace})
    widen(*list, placement);
  for (Index p : op.parameters) {
    ParameterSpec& weight = part_.parameter(p);
    if (weight.is_expert || !exchanges()) continue;
    weight.is_expert = true;
    weight.shape.front() = routing_.experts;
  }
  if (op.groups > 1) {
    op.groups = routing_.experts;
    // All rows that arrive here, whatever the tokens of this rank are.
    op.rows = routing_.received;
    op.split = part_.plan.batch.micro_batch * part_.plan.batch.sequence / part_.plan.mesh.cp;
  }
  routing_.made = op.outputs.front();
  part_.add(std::move(op));
}

void ExpertCutter::combine() {
  routing_.open = false;
  Operation& last = part_.layer.operations.back();
  const Index result = routing_.made;
  const Index own = fixed("expert rows", routing_.padded * routing_.width);
  std::ranges::replace(last.outputs, result, own);
  last.released.push_back(find(kOffsets));  // a local, as what the last product reads
  part_.tensor(result) = part_.source.tensors[at(result)];
  if (sends_tokens(part_.plan)) part_.tensor(result).per_token = routing_.width;
  if (has_own_rows()) part_.tensor(result).split *= part_.tp;
  part_.places[at(result)] = part_.own_rows && part_.tp > 1 ? Placement::kSequence : Placement::kWhole;
  if (exchanges()) mixture_.returned.push_back(result);
  const Index unpermuted = fixed("rows unpermuted", (routing_.received + 1) * routing_.width);
  Operation& back = part_.move(own, unpermuted, routing_.part);
  back.function = Function::kScatterAdd;
  if (!rows_travel()) back.released = {own, routing_.permuted, routing_.sizes, routing_.order};
  // All but the row of zeros.
  const auto cut_zeros = [&](Index to) -> Operation& {
    Operation& op = part_.move(unpermuted, to, routing_.part);
    op.view = true;
    if (!part_.megatron) op.gradient = GradientRule::kAliasFirst;
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
    const Index summed = exchanges() ? fixed("rows to send home", all / parts_gathered()) : result;
    share_rows(sent, summed, CollectiveKind::kReduceScatter, CollectiveKind::kAllGather);
    if (exchanges()) ended.push_back(sent = summed);
  }
  if (exchanges()) route(sent, result, false);
  // The module has returned when its output is on its way; then its caller lets go.
  part_.layer.operations.back().released = std::move(ended);
  const Index returned = part_.add_like(result, " returned");
  Operation& call = part_.move(result, returned, 0);
  call.view = true;
  call.released = {routing_.sizes, routing_.permuted, returned};
}

}
