// One layer of a model as a rank of mesh.tp, mesh.cp and mesh.ep computes it (rank_part.cpp has the rules).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/graph/axes/rank_part.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"
#include "sim/spec/runtime_options.h"

namespace foreshard {

// Of a tensor over the ranks of mesh.tp.
enum class Placement : std::uint8_t { kWhole, kSequence, kFeature };

// The tensor that says in which order a rank's experts have the rows that came.
inline constexpr const char* kRowOrder = "order of rows";

struct CutLayer {
  LayerSpec layer;
  std::vector<Slices> slices;  // of its operations
  Placement output = Placement::kWhole;
};

// `input`: of what the layer before hands on; `joined`: of what waited for the layer.
CutLayer cut_layer(const LayerSpec& layer, const Plan& plan, Placement input, Placement joined);

// Elements of part `index` of `all` that are cut into `parts` as torch.chunk does: the last parts
// may have fewer, or none.
std::int64_t chunk_of(std::int64_t all, std::int64_t parts, std::int64_t index);

// Products of one input that a library runs as one: Megatron-Core's linear_qkv and linear_fc1
// (core/transformer/attention.py, mlp.py).

// The products of a layer that read the same tensor become one, whose weight is theirs below each
// other and whose result is split into theirs (views).
// `exactly`: in front of attention alone, groups of so many.
LayerSpec fuse_columns(LayerSpec layer, std::ptrdiff_t exactly = 0);

// An attention that reads its packed projection reads three views of it instead, which ranks of cp send round apart.
LayerSpec unpack_attention(LayerSpec layer);

// Values that lie between keys in what one product made are copied where queries do not:
// TransformerEngine's attention takes the three in one layout (get_qkv_layout of 2.11).
LayerSpec copy_values(LayerSpec layer);

// nanotron (models/llama.py) lays fewer values side by side with keys, and a product copies what
// attention made of several sequences where it is no collective's module that reads it.
LayerSpec copy_around_attention(LayerSpec layer, bool values, bool result);

// Fewer heads of keys and values than `ranks`: copies, one for each. All ranks gather what the
// others project and pick theirs (core/transformer/attention.py, get_query_key_value_tensors).
LayerSpec copy_keys(LayerSpec layer, std::int64_t ranks);

// Of a layer as a rank executes it: products keep their inputs in fp8, of one layout (TransformerEngine). But for
// delayed scaling what attention keeps, or two products of latents read, is kept as it is (set_save_original_input).
LayerSpec keep_narrow_inputs(LayerSpec layer);

// Selective recompute as Megatron-Core has it: of named modules.

// Of a block as a rank executes it: Operation::kept_by_selective of all that no module of the list
// computes (core/transformer/transformer_config.py, recompute_modules).
void recompute_modules(LayerSpec& block, std::span<const MegatronOptions::Module> modules);

// Cross entropy over logits that are cut by vocabulary (torch.distributed.tensor.parallel
// loss_parallel): log-softmax with all-reduces of the greatest logit and of the sum of
// exponentials, and one of the chosen log-probabilities, which only one rank has.
LayerSpec cut_loss(const LayerSpec& layer, const Plan& plan);

// The engine's: each slice of the vocabulary (TensorParallel::slices) has, of every token, its greatest logit, the sum
// of exponentials from there, and the label's logit if it is one of its own. They are gathered; from them every rank
// computes the loss, and the gradient of its own logits in their place.
inline constexpr std::int64_t kSliceStatistics = 3;  // fp32, of a token
LayerSpec cut_native_loss(const LayerSpec& layer, const Plan& plan);

// What other codes of mixtures than torchtitan's do around their experts, whose layers models/layers/moe.cpp writes.

// Whether the plan's dispatcher takes tokens. (torchtitan's tensor parallel cuts rows before them.)
bool sends_tokens(const Plan& plan);

// torchtitan 0.3's: the router in fp32 where its input `is_narrow`, the shared expert behind the experts, which are
// summed into zeros; then both are added. Experts with biases are gpt-oss'.
LayerSpec use_titan_3_mixture(LayerSpec layer, bool is_narrow);
inline constexpr const char* kRouterInput = "router_input_fp32";
inline constexpr const char* kAddsShared = "add_shared";

inline constexpr const char* kScoresCast = "scores_cast";  // its operation that makes them narrow

// Scores are multiplied into the experts' activation instead of into their rows in fp32
// (Megatron-Core, core/fusions/fused_bias_swiglu.py: WeightedSwiGLUFunction; DeepEP's users too).
// `adds_bias`: a bias of the last product is not the product's.
LayerSpec weigh_in_activation(LayerSpec layer, bool adds_bias);

// A dispatcher that takes tokens and hands back their sums (DeepEP, HybridEP): no copy of a token
// for each of its experts before they travel, and none is summed after (deep_ep/buffer.py:
// dispatch, combine). What comes back is as wide as a token.
LayerSpec send_tokens(LayerSpec layer);

// What Megatron-Core's router and dispatcher launch besides models/layers/moe.cpp: routing maps,
// scores of the auxiliary loss and its sums, rows of each expert for the host, selections by mask.
LayerSpec route_by_maps(LayerSpec layer, const Plan& plan);

// Rows (tokens times experts each goes to) that reach the rank of mesh.ep whose experts receive most.

struct ExpertGroup {
  std::int64_t ranks = 1, experts = 1;
};

// `sent`: rows of each rank of the group. As listed; in proportion to the counts of experts, which
// lie on the ranks in their order; or to a Zipf distribution of the experts dealt out to the ranks
// like cards, for an expert's number says nothing about how often it is chosen.
std::int64_t received_rows(const ExpertParallel& how, ExpertGroup group, std::int64_t sent);

}
