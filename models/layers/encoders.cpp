// Encoders as Hugging Face's BertLayer and BertForMaskedLM compute them: attention over all positions, dropout behind
// both branches and the embeddings, norms behind the sums. The head's transform (dense, gelu, norm) stands where a
// decoder has its final norm; the head multiplies by the table of tokens and adds a bias of its own.
//
// Assumed: logits of all positions are computed, as BertForMaskedLM does; labels that are masked
// out save nothing. Padding masks are not passed: sequences are full.
#include "models/layers/block_parts.h"
#include "sim/base/lookup.h"

namespace foreshard {
LayerSpec encoder_block(const ModelDims& dims) {
  const ParameterNames& names = parameter_names(dims);
  LayerBuilder layer(dims.family + " block", LayerRole::kBlock, hidden_state(dims), Stack::kEager);
  const Index attention = attend(layer, dims, names, 0);
  Indices held = layer.last().inputs;
  const Index projected = layer.linear({.name = names.o,
                                           .result = "attention_projection",
                                           .n = dims.hidden,
                                           .k = attention_width(dims),
                                           .bias = dims.output_bias},
      attention);
  held.push_back(attention);
  const Index dropped = layer.dropout("attention_dropout", dims.dropout && !dims.drops_mlp_alone, projected);
  const Index sum = layer.residual_add("attention_residual", dims.hidden, dropped, 0);
  const Index middle = layer.norm(names.norm1, "norm1", dims.norm, dims.hidden, sum);
  append(held, {sum, dropped});
  layer.release(held);
  const Index down =
      feed_forward(layer, dims, {.gate = names.gate, .up = names.up, .down = names.down, .ffn = dims.ffn}, middle);
  const Index thinned = layer.dropout("mlp_dropout", dims.dropout && !dims.drops_attention_alone, down);
  const Index total = layer.residual_add("mlp_residual", dims.hidden, thinned, middle);
  const Index output = layer.norm(names.norm2, "norm2", dims.norm, dims.hidden, total);
  layer.release({total, thinned, middle});
  return layer.finish(output);
}

LayerSpec masked_head_transform(const ModelDims& dims, LayerRole role) {
  const ParameterNames& names = parameter_names(dims);
  LayerBuilder layer(dims.family + " head transform", role, hidden_state(dims), Stack::kEager);
  const std::int64_t width = head_width(dims);
  const Index dense = layer.linear(
      {.name = names.head_transform, .result = "transform", .n = width, .k = dims.hidden, .bias = dims.transform_bias},
      0);
  const Index gelu = layer.elementwise("gelu", Function::kGelu, {dense}, {dense}, layer.activation("gelu", width));
  layer.release({dense});
  return layer.finish(layer.norm(names.head_norm, "head_norm", dims.norm, width, gelu));
}

LayerSpec masked_head(const ModelDims& dims) {
  const ParameterNames& names = parameter_names(dims);
  const std::int64_t width = head_width(dims);
  LayerBuilder layer(dims.family + " head", LayerRole::kHead, {.name = "input", .per_token = width}, Stack::kEager);
  const Index weight = layer.parameter(dims.tied ? names.embedding : names.head, ".weight", {dims.vocabulary, width});
  layer.last_parameter().tied = dims.tied;
  Indices parameters = {weight};
  if (dims.head_bias) parameters.push_back(layer.parameter(names.head_bias, ".bias", {dims.vocabulary}));
  return layer.finish(layer.matrix_product(
      {.name = names.head, .result = "logits", .n = dims.vocabulary, .k = width}, 0, std::move(parameters)));
}

}
