// What is logged where FSDP acts is said by the builder; this file knows names, groups, and which
// hooks the recorder's modules put on which tensors.
#include "sim/graph/fsdp1/fsdp1_log.h"

#include <fmt/format.h>

#include <utility>

namespace foreshard {

Fsdp1Log::Fsdp1Log(const Fsdp1& builder, LibraryWatch::Modules modules)
    : builder_(builder), sees_blocks_(modules == LibraryWatch::Modules::kBlocks) {
  for (const LayerSpec& spec : builder.model_.kinds) {
    Kind kind = {.modules = foreshard::modules_of(spec)};
    // A tied head is a module of its own name, whose parameter is the table's.
    if (spec.role == LayerRole::kHead && !spec.parameters.empty() && spec.parameters[0].tied)
      kind.modules.front().name = "lm_head";
    Indices owner(spec.parameters.size(), -1);
    for (std::size_t m = 0; m < kind.modules.size(); ++m)
      for (const std::int16_t p : kind.modules[m].parameters) owner[at(p)] = static_cast<std::int16_t>(m);
    std::vector<std::int32_t> maker(spec.tensors.size(), -1);
    for (std::size_t o = 0; o < spec.operations.size(); ++o) {
      const foreshard::Operation& op = spec.operations[o];
      Operation& made = kind.operations.emplace_back();
      if (!op.parameters.empty()) made.module = owner[at(op.parameters.front())];
      if (!op.inputs.empty()) made.input_maker = maker[at(op.inputs.front())];
      for (const std::int16_t t : op.outputs) maker[at(t)] = static_cast<std::int32_t>(o);
    }
    // A module's operations are a run.
    for (std::size_t o = 0; o < kind.operations.size(); ++o) {
      Operation& op = kind.operations[o];
      if (op.module < 0) continue;
      op.begins = o == 0 || kind.operations[o - 1].module != op.module;
      op.ends = o + 1 == kind.operations.size() || kind.operations[o + 1].module != op.module;
    }
    kinds_.push_back(std::move(kind));
  }
  passes_.resize(builder.model_.order.size());
}

// Shards are neighbours, replicas a shard group apart (init_device_mesh).
std::string Fsdp1Log::shard_group() const {
  const Mesh& mesh = builder_.plan_.mesh;
  if (mesh.shard == 1 && !builder_.plan_.fsdp1.hybrid_shard) return "world";
  return group_word(builder_.plan_.rank() / mesh.shard * mesh.shard, mesh.shard, 1, mesh.world());
}

std::string Fsdp1Log::replicate_group() const {
  const Mesh& mesh = builder_.plan_.mesh;
  return group_word(builder_.plan_.rank() % mesh.shard, mesh.replicate, mesh.shard, mesh.world());
}

void Fsdp1Log::add(LibraryEvent event) {
  event.microbatch = builder_.microbatch();
  event.actions = builder_.action_count();
  events_.push_back(std::move(event));
}

void Fsdp1Log::add_unit(std::string_view kind, std::int32_t unit, LibraryEvent rest) {
  rest.kind = kind;
  rest.unit = name_of(unit);
  add(std::move(rest));
}

std::string Fsdp1Log::name_of(std::int32_t unit) const {
  if (unit < 0) return "";
  if (unit == builder_.root()) return "root";
  const StepBuilder::Module& module = builder_.modules_of(unit).front();
  const LayerSpec& spec = builder_.spec_of(module.layer);
  LayerModule named;
  if (module.part > 0) named.name = spec.nested[at(module.part - 1)];
  else if (spec.role != LayerRole::kBlock) named.name = kind_of(module.layer).modules.front().name;
  return module_name(builder_.model_, module.layer, named);
}

std::vector<LibraryBucket> Fsdp1Log::buckets() const {
  std::vector<LibraryBucket> list;
  for (std::int32_t u = 0; u < builder_.count(); ++u) {
    const FlatSize& size = builder_.handle(u).size;
    LibraryBucket bucket;
    bucket.phase = "init";
    bucket.index = u;
    bucket.kind = "flat_param";
    bucket.bytes = size.flat * size_of(builder_.plan_.master_dtype);
    bucket.dtype = torch_word(builder_.plan_.master_dtype);
    // Without shards the recorder multiplies all the same.
    const std::int64_t ranks = flat_group(builder_.plan_);
    bucket.extra =
        fmt::format("unit={} numel={} align_pad={} flat_numel={} shard_numel={} padded_numel={} shard_pad={}",
            name_of(u), size.numel, size.flat - size.numel, size.flat, size.shard, size.shard * ranks, size.shard_pad);
    const std::string prefix = u == builder_.root() ? "" : name_of(u) + ".";
    for (const StepBuilder::Module& module : builder_.modules_of(u)) {
      const std::vector<ParameterSpec>& parameters = builder_.spec_of(module.layer).parameters;
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        const bool mine = !parameters[p].tied && builder_.unit_of_part(module.layer, parameters[p].part) == u;
        if (!mine) continue;
        const std::string name = parameter_name(builder_.model_, module.layer, static_cast<std::int16_t>(p));
        bucket.parameters.push_back(name.substr(prefix.size()));
      }
    }
    list.push_back(std::move(bucket));
  }
  return list;
}

// --- forward ---

const Fsdp1Log::Kind& Fsdp1Log::kind_of(std::int32_t layer) const {
  const LayerInstance& instance = builder_.model_.order[at(layer)];
  return kinds_[at(instance.kind)];
}

void Fsdp1Log::begin_pass() {
  for (std::size_t l = 0; l < passes_.size(); ++l) {
    passes_[l] = {};
    passes_[l].hooks.resize(kind_of(static_cast<std::int32_t>(l)).operations.size());
  }
}

// Whether the tensor is part of autograd's graph.
bool Fsdp1Log::needs_gradient(std::int32_t layer, std::int32_t maker) const {
  if (maker < 0) return layer > 0 && builder_.output_needs_gradient_[std::size_t(layer) - 1];
  return builder_.output_needs_gradient_[at(layer)];
}

void Fsdp1Log::hook_on_input(std::int32_t layer, std::int32_t maker, Hook hook) {
  if (!needs_gradient(layer, maker)) return;
  Pass& pass = pass_of(maker < 0 ? layer - 1 : layer);
  if (pass.hooks.empty()) return;
  const std::size_t at = maker < 0 ? pass.hooks.size() - 1 : static_cast<std::size_t>(maker);
  pass.hooks[at].push_back(std::move(hook));
}

void Fsdp1Log::begin_layer(std::int32_t layer) {
  if (!sees_blocks_ || builder_.spec_of(layer).role != LayerRole::kBlock) return;
  const std::string name = module_name(builder_.model_, layer, {});
  add({.kind = "forward_begin", .unit = name});
  hook_on_input(layer, -1, {name, "backward_end"});
}

void Fsdp1Log::run_operations(std::int32_t layer, std::int8_t part, bool whole) {
  const Kind& kind = kind_of(layer);
  const LayerSpec& spec = builder_.spec_of(layer);
  Pass& pass = pass_of(layer);
  const bool sees_modules = !sees_blocks_ || spec.role != LayerRole::kBlock;
  for (; pass.next < kind.operations.size(); ++pass.next) {
    const Operation& op = kind.operations[pass.next];
    if (!whole && spec.operations[pass.next].part != part) break;
    if (op.module < 0 || !sees_modules) continue;
    const std::string name = module_name(builder_.model_, layer, kind.modules[at(op.module)]);
    if (op.begins) {
      add({.kind = "forward_begin", .unit = name});
      // Token ids and positions have no gradient.
      const bool is_token = spec.operations[pass.next].gradient == GradientRule::kNone;
      if (!is_token) hook_on_input(layer, op.input_maker, {name, "backward_end"});
    }
    if (op.ends) {
      add({.kind = "forward_end", .unit = name});
      pass.hooks[pass.next].push_back({name, "backward_begin"});
    }
  }
  pass.ends.push_back(pass.next);
}

void Fsdp1Log::end_layer(std::int32_t layer) {
  if (!sees_blocks_ || builder_.spec_of(layer).role != LayerRole::kBlock) return;
  const std::string name = module_name(builder_.model_, layer, {});
  add({.kind = "forward_end", .unit = name});
  Pass& pass = pass_of(layer);
  if (!pass.hooks.empty()) pass.hooks.back().push_back({name, "backward_begin"});
}

void Fsdp1Log::register_unit_hook(std::int32_t layer) {
  Pass& pass = pass_of(layer);
  if (pass.next > 0) pass.hooks[pass.next - 1].push_back({"", ""});
}

// --- backward ---

void Fsdp1Log::begin_entry(std::int32_t layer) {
  Pass& pass = pass_of(layer);
  entry_layer_ = layer;
  open_ = nullptr;
  next_hook_ = 0;
  if (pass.ends.empty()) return;
  entry_end_ = pass.ends.back();
  pass.ends.pop_back();
  entry_begin_ = pass.ends.empty() ? 0 : pass.ends.back();
  if (entry_end_ > entry_begin_) open_ = &pass.hooks[entry_end_ - 1];
}

void Fsdp1Log::run_hooks() {
  if (open_ == nullptr) return;
  for (; next_hook_ < open_->size(); ++next_hook_) {
    const Hook& hook = (*open_)[next_hook_];
    if (hook.kind.empty()) {
      ++next_hook_;
      return;
    }
    add({.kind = hook.kind, .unit = hook.name});
  }
}

void Fsdp1Log::run_inner_hooks() {
  run_hooks();
  Pass& pass = pass_of(entry_layer_);
  if (entry_end_ <= entry_begin_ + 1) return;
  for (std::size_t o = entry_end_ - 1; o-- > entry_begin_;) {
    for (const Hook& hook : pass.hooks[o])
      if (!hook.kind.empty()) add({.kind = hook.kind, .unit = hook.name});
  }
}

}
