// A model of the zoo is looked at where its parameters could be what is gathered in all; padding
// only adds. Its units are then listed under every grouping, and must be as large as the trace's.
//
// Without a model of the zoo: every family is a model without sizes (models/families.h). Sizes come
// from the tables, attention and packed gradients of the trace; what they leave open (width of the
// feed-forward layer, number of key heads, biases, tied embeddings) is tried, and a candidate must
// have the very shapes of the trace's blocks and the sizes of all its units.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "interop/recordings/recorded_job.h"
#include "interop/traces/infer_readings.h"
#include "models/families.h"
#include "models/model_dims.h"
#include "models/zoo.h"
#include "sim/base/error.h"
#include "sim/graph/training_step.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

constexpr std::int64_t kShortSequence = 128;  // sizes of units do not depend on it

Plan plan_of(const ModelSpec& model, std::int64_t shards, const Units& units) {
  Plan plan = {.model = model.name};
  plan.batch.sequence = model.fixed_sequence > 0 ? model.fixed_sequence : std::min(model.max_positions, kShortSequence);
  plan.mesh = {shards, 1};
  plan.units = units;
  return plan;
}

bool has_sizes(const ModelSpec& model, const Plan& plan, const TracedUnits& traced) {
  const std::vector<std::int64_t>& sizes = traced.sizes;
  if (unit_count(plan, model) != std::ssize(sizes)) return false;
  if (has_root_unit(plan, model) != traced.has_root) return false;
  if (find_problem(plan, model, recorded_cluster(plan))) return false;
  const std::vector<Unit> units = list_units(model, plan);
  return std::equal(units.begin(), units.end(), sizes.begin(), sizes.end(),
      [](const Unit& unit, std::int64_t size) { return size == 0 || unit.padded_numel() == size; });
}

// The shapes of one block; blocks that share a unit repeat theirs.
struct Blocks {
  std::vector<TensorShape> shapes;
  std::int64_t count = 0;
};

std::vector<TensorShape> period_of(const std::vector<TensorShape>& list) {
  for (std::size_t period = 1; period <= list.size() / 2; ++period) {
    if (list.size() % period != 0) continue;
    const auto end = list.end() - static_cast<std::ptrdiff_t>(period);
    if (std::equal(list.begin(), end, list.begin() + period)) return {list.begin(), list.begin() + period};
  }
  return list;
}

Blocks blocks_of(const std::map<std::string, std::vector<TensorShape>>& parameters) {
  std::map<std::vector<TensorShape>, std::int64_t> counts;
  for (const auto& [unit, shapes] : parameters) {
    const std::vector<TensorShape> one = period_of(shapes);
    counts[one] += static_cast<std::int64_t>(shapes.size() / one.size());
  }
  Blocks blocks;
  for (const auto& [shapes, count] : counts) {
    // A block has matrices and something beside them, an embedding has not.
    if (shapes.size() > 1 && count > blocks.count) blocks = {shapes, count};
  }
  return blocks;
}

std::vector<TensorShape> sorted(std::vector<TensorShape> shapes) {
  std::ranges::sort(shapes);
  return shapes;
}

std::vector<TensorShape> block_shapes(const ModelSpec& model) {
  std::vector<TensorShape> shapes;
  for (const LayerSpec& kind : model.kinds) {
    if (kind.role != LayerRole::kBlock) continue;
    for (const ParameterSpec& parameter : kind.parameters) shapes.push_back(parameter.shape);
    break;
  }
  return sorted(std::move(shapes));
}

// What the families leave open beside sizes.
using Trait = void (*)(ModelDims&);
constexpr std::array<Trait, 4> kTraits = {[](ModelDims&) {}, [](ModelDims& dims) { dims.qkv_bias = true; },
    [](ModelDims& dims) { dims.qk_norm = HeadNorm::kEach; }, add_biases};

class FromShapes {
 public:
  FromShapes(const FsdpTrace& trace, std::int64_t shards, const TracedUnits& units)
      : facts_(trace.facts), shards_(shards), units_(units), blocks_(blocks_of(facts_.parameters)) {
    wanted_ = sorted(blocks_.shapes);
  }

  std::optional<FoundModel> find() const {
    if (facts_.tables.empty() || facts_.heads == 0 || blocks_.count == 0) return std::nullopt;
    for (const std::string_view family : family_names()) {
      ModelDims dims = *family_dims(family);
      set_sizes(dims);
      for (const Trait trait : kTraits) {
        ModelDims candidate = dims;
        trait(candidate);
        if (auto found = with_widths(candidate)) return found;
      }
    }
    return std::nullopt;
  }

 private:
  void set_sizes(ModelDims& dims) const {
    TensorShape tokens = facts_.tables.front();
    for (const TensorShape& table : facts_.tables) tokens = std::max(tokens, table);
    dims.name = "model of the trace";
    dims.source = "shapes of the trace";
    dims.layers = blocks_.count;
    dims.vocabulary = tokens[0];
    dims.hidden = tokens[1];
    dims.heads = facts_.heads;
    dims.head_dim = facts_.head_dim;
    dims.max_positions = facts_.sequence;
    for (const TensorShape& table : facts_.tables) {
      if (table == tokens || dims.positions != Positions::kLearned) continue;
      dims.position_rows = table[0];
      dims.max_positions = std::max(dims.max_positions, table[0]);
    }
  }

  std::optional<FoundModel> with_widths(ModelDims dims) const {
    std::set<std::int64_t> widths, key_heads = {facts_.kv_heads};
    for (const TensorShape& shape : blocks_.shapes) {
      for (const std::int64_t size : shape)
        for (const std::int64_t width : {size, size / 2}) widths.insert(width);
      if (shape.size() == 2 && shape[0] % dims.head_dim == 0) key_heads.insert(shape[0] / dims.head_dim);
    }
    for (const std::int64_t kv : key_heads) {
      if (kv < 1 || dims.heads % kv != 0) continue;
      for (const std::int64_t width : widths) {
        if (width < 1) continue;
        dims.kv_heads = kv;
        dims.ffn = width;
        if (auto found = with_ends(dims)) return found;
      }
    }
    return std::nullopt;
  }

  std::optional<FoundModel> with_ends(ModelDims dims) const {
    try {
      ModelDims small = dims;
      small.layers = 1;
      if (block_shapes(build_model(small)) != wanted_) return std::nullopt;
      for (const bool tied : {false, true}) {
        dims.tied = tied;
        ModelSpec model = build_model(dims);
        if (const auto units = find_units(model, shards_, units_)) return FoundModel{std::move(model), *units, {}};
      }
    } catch (const Error&) {  // a family that cannot have these sizes
    }
    return std::nullopt;
  }

  const TraceFacts& facts_;
  std::int64_t shards_;
  const TracedUnits& units_;
  Blocks blocks_;
  std::vector<TensorShape> wanted_;
};

bool may_be(const ZooEntry& entry, const TraceFacts& facts, std::int64_t gathered) {
  const ModelDims& dims = entry.dims;
  if (gathered < entry.parameters || facts.sequence > dims.max_positions) return false;
  if (facts.heads > 0 && (facts.heads != dims.heads || facts.head_dim != dims.head_dim))
    return dims.latent.kv_rank > 0;  // attention there sees other heads
  return true;
}

}

std::optional<Units> find_units(const ModelSpec& model, std::int64_t shards, const TracedUnits& traced) {
  using Place = UnitPlacement;
  static constexpr std::pair<Place, Place> kEnds[] = {{Place::kOwn, Place::kWithNorm}, {Place::kOwn, Place::kOwn},
      {Place::kRoot, Place::kRoot}, {Place::kOwn, Place::kRoot}, {Place::kRoot, Place::kOwn},
      {Place::kRoot, Place::kWithNorm}, {Place::kWithHead, Place::kWithNorm}};
  const std::int64_t blocks = model.block_count();
  for (const auto& [embedding, head] : kEnds) {
    Units units = {.embedding = embedding, .head = head};
    std::int64_t together = 0;  // the number of block units falls as more share one
    for (std::int64_t layers = 1; layers <= blocks; ++layers) {
      const std::int64_t groups = (blocks + layers - 1) / layers;
      if (groups == together) continue;
      together = groups;
      units.layers_per_unit = layers;
      if (has_sizes(model, plan_of(model, shards, units), traced)) return units;
    }
  }
  Units whole;
  whole.embedding = whole.head = whole.blocks = Place::kRoot;
  if (has_sizes(model, plan_of(model, shards, whole), traced)) return whole;
  return std::nullopt;
}

std::optional<FoundModel> find_model(const FsdpTrace& trace, std::int64_t shards, const TracedUnits& traced) {
  std::int64_t gathered = 0;
  for (const std::int64_t size : traced.sizes) {
    if (size == 0) return std::nullopt;
    gathered += size;
  }
  std::optional<FoundModel> found;
  for (const ZooEntry& entry : zoo()) {
    if (!may_be(entry, trace.facts, gathered)) continue;
    ModelSpec model = build_model(entry.dims);
    const auto units = find_units(model, shards, traced);
    if (!units) continue;
    if (!found) found = FoundModel{std::move(model), *units, {}};
    found->names.push_back(entry.dims.name);
  }
  return found ? found : FromShapes(trace, shards, traced).find();
}

}
