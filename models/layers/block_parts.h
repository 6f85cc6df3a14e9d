// The modules that a block is made of; internal to models/. Each appends its operations and returns
// the number of the tensor that it hands on.
#pragma once

#include <string>
#include <string_view>

#include "models/layers/layer_builder.h"
#include "models/model_dims.h"
#include "models/parameter_names.h"

namespace foreshard {

// What a block reads.
inline TensorSpec hidden_state(const ModelDims& dims) { return {.name = "input", .per_token = dims.hidden}; }

// Of a row of the table, and of what the head reads.
inline std::int64_t token_width(const ModelDims& dims) {
  return dims.embedding_width > 0 ? dims.embedding_width : dims.hidden;
}

// Of what an encoder's head reads.
inline std::int64_t head_width(const ModelDims& dims) {
  return dims.output_width > 0 ? dims.output_width : token_width(dims);
}

// Whether others read what the feed-forward layer reads: the other branch, or the stream itself.
inline bool keeps_input(const ModelDims& dims) {
  return dims.residual == Residual::kParallelOfOneNorm || dims.residual == Residual::kPostBranch;
}

// Projections, norms of q and k, rotary embedding and the attention itself; everything but the
// output projection (attention.cpp).
Index attend(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input);
// The same for multi-head latent attention (mla.cpp).
Index attend_latent(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input);

// The width of what attention hands to the output projection.
std::int64_t attention_width(const ModelDims& dims);

// Rotary embedding of `width` elements per token: complex fp32 arithmetic.
struct Rotary {
  std::string_view of;  // "q"
  std::int64_t width = 0;
  std::int64_t head_dim = 0;  // of the table
};
Index rotary(LayerBuilder& layer, const Rotary& rotary, Index input);

// Tensors that score positions (BlockParts::index_heads).
inline constexpr std::string_view kIndexQueries = "index_queries", kIndexKeys = "index_keys",
                                  kIndexWeights = "index_weights";

// What queries and keys meet beside each other (BlockParts::distances).
inline constexpr std::string_view kDistanceRows = "distance_rows", kDistanceKeys = "distance_keys",
                                  kDistanceQueries = "distance_queries";

// Fused attention of {q, k, v} or of one fused projection.
Index fused_attention(LayerBuilder& layer, const ModelDims& dims, const AttentionShape& shape, Indices inputs);

// Mamba-2's mixer, its projections included (mamba.cpp).
Index mix_by_scan(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input);

// A causal convolution of each channel over so many positions, and LFM2's mixer around one (convolution.cpp).
Index convolve(LayerBuilder& layer, const std::string& name, Indices parameters, std::int64_t positions, Index input);
Index mix_by_convolution(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input);

// Linear attention by the gated delta rule, its projections included (delta_rule.cpp).
Index mix_by_delta_rule(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input);

// Attention's output where each head also had a learned sink to attend to (Naming::kGptOss), right
// behind the attention, as torchtitan's models/gpt_oss computes it.
Index weigh_by_sinks(LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index attention);

// A feed-forward layer of the given names and width (feed_forward.cpp).
inline constexpr std::string_view kExpm1 = "expm1";  // which autocast takes in fp32
struct FeedForward {
  std::string_view gate = {}, up = {}, down = {};
  std::int64_t ffn = 0;
  std::string_view norm = {};  // of what `down` reads; empty: none
};
Index feed_forward(LayerBuilder& layer, const ModelDims& dims, const FeedForward& mlp, Index input);

// Router, experts, shared experts (moe.cpp). -1: the router reads what experts read.
Index mixture(
    LayerBuilder& layer, const ModelDims& dims, const ParameterNames& names, Index input, Index routed_by = -1);

// Blocks and norms of an encoder and of the decoder behind it (encoder_decoder.cpp). The first
// block of a stack makes the bias of positions; a decoder's first joins the encoder's result.
enum class StackPlace : std::uint8_t { kFirst, kLater };
LayerSpec encoding_block(const ModelDims& dims, StackPlace place);
LayerSpec decoding_block(const ModelDims& dims, StackPlace place);
// What a stack adds to its tokens: learned positions, with a norm and dropout.
LayerSpec stack_positions(const ModelDims& dims, const std::string& stack);
LayerSpec encoding_norm(const ModelDims& dims);
LayerSpec decoding_norm(const ModelDims& dims);

// Block, head and what precedes it of an encoder (encoders.cpp).
LayerSpec encoder_block(const ModelDims& dims);
// kFinalNorm: it stands in that one's place; kInner: behind it.
LayerSpec masked_head_transform(const ModelDims& dims, LayerRole role = LayerRole::kFinalNorm);
LayerSpec masked_head(const ModelDims& dims);
// A head of scores, and the token that an encoder's class is read from (score_heads.cpp).
LayerSpec first_token(const ModelDims& dims, LayerRole role = LayerRole::kFinalNorm);
LayerSpec score_head(const ModelDims& dims);

}
