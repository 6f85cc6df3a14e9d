// Heads of scores (transformers' ForSequenceClassification, ForTokenClassification and
// ForQuestionAnswering). A decoder scores every token; an encoder's class is read from its first
// token, through a transform, by operations of as many rows as sequences.
#include <string_view>
#include <utility>

#include "models/layers/block_parts.h"
#include "models/layers/family_rows.h"
#include "models/layers/layers.h"

namespace foreshard {
namespace {

// Of an encoder's sequences: models/FAMILY/modeling_FAMILY.py, FAMILYForSequenceClassification.
struct EncoderScores {
  std::string_view family;
  std::string_view transform = "classifier.dense";
  Function function = Function::kTanh;
  std::string_view last = "classifier.out_proj";
};
constexpr EncoderScores kEncoderScores[] = {
    {.family = "bert", .transform = "bert.pooler.dense", .last = "classifier"},
    {.family = "ernie", .transform = "ernie.pooler.dense", .last = "classifier"},
    {.family = "distilbert", .transform = "pre_classifier", .function = Function::kRelu, .last = "classifier"},
    {.family = "electra", .function = Function::kGelu},
    {.family = "deberta_v2", .transform = "pooler.dense", .function = Function::kGelu, .last = "classifier"},
    {.family = "nomic_bert", .transform = "nomic_bert.pooler.dense", .last = "classifier"},
};

}

LayerSpec first_token(const ModelDims& dims, LayerRole role) {
  LayerBuilder layer(dims.family + " first token", role, hidden_state(dims), Stack::kEager);
  const Index token = layer.tensor({.name = "first_token", .per_sequence = dims.hidden});
  return layer.finish(layer.elementwise("select", Function::kCopy, {0}, {}, token));
}

// trl/models/modeling_value_head.py: the model is given labels; its loss and the fp32 copy of its
// logits live till the values are there.
LayerSpec value_head(ModelDims dims) {
  const std::int64_t values = std::exchange(dims.scores, 0);
  LayerSpec head = head_layer(dims, Stack::kEager);
  for (ParameterSpec& parameter : head.parameters) {
    parameter.unused = !parameter.tied;
    parameter.trainable = false;
  }
  const Index logits = head.output, shift = static_cast<Index>(head.tensors.size() - 1);
  LayerSpec loss = loss_layer(dims, Stack::kEager);
  head.tensors.insert(head.tensors.end(), loss.tensors.begin() + 1, loss.tensors.end());
  for (Operation& op : loss.operations) {
    std::erase(op.released, Index{0});
    renumber(op, [&](Index t) { return t == 0 ? logits : static_cast<Index>(t + shift); });
    head.operations.push_back(std::move(op));
  }
  const Index probabilities = head.operations.back().inputs.front();
  LayerWriter layer(head);
  const Index dropped = layer.activation("dropped", token_width(dims));
  const Index mask = layer.activation("dropout_mask", token_width(dims), ElementType::kByte);
  Operation& dropout = layer.pass("value_dropout", Function::kDropout, {0}, {dropped, mask});
  dropout.saved = dropout.released = {mask};
  const Index value = layer.activation("values", values);
  const Index weight = layer.parameter("v_head.summary.weight", {values, token_width(dims)});
  const Index bias = layer.parameter("v_head.summary.bias", {values});
  Operation& product =
      layer.operation("v_head.summary", OperationKind::kGemm, Function::kMatrixProduct, {dropped}, {value});
  product.saved = {dropped};
  product.parameters = {weight, bias};
  product.n = values;
  product.k = token_width(dims);
  const Index wide = layer.activation("logits_returned", dims.vocabulary, ElementType::kFp32);
  layer.constant("logits_to_fp32", Function::kCast, {logits}, {wide}).released = {logits, wide, probabilities};
  return layer.finish(value);
}

LayerSpec score_head(const ModelDims& dims) {
  if (dims.score_of == ScoreOf::kValue) return value_head(dims);
  LayerBuilder layer(dims.family + " head", LayerRole::kHead, hidden_state(dims), Stack::kEager);
  const bool pools = dims.bidirectional && dims.score_of == ScoreOf::kSequence;
  const EncoderScores code = row_of(kEncoderScores, dims.family);
  Index input = 0;
  if (pools) {
    const Index dense = layer.linear(
        {.name = code.transform, .result = "transform", .n = dims.hidden, .k = dims.hidden, .bias = true}, input);
    const Index active = layer.activation("transformed", dims.hidden);
    const bool keeps_input = code.function == Function::kGelu;
    input = layer.elementwise("transform_function", code.function, {dense}, {keeps_input ? dense : active}, active);
  }
  input = layer.dropout("score_dropout", dims.score_dropout, input);
  using enum ScoreOf;
  const std::string_view name = pools                    ? code.last
                                : dims.score_of == kSpan ? "qa_outputs"
                                : dims.bidirectional     ? "classifier"
                                                         : "score";
  LayerSpec head = layer.finish(layer.linear({.name = name,
                                                 .result = "logits",
                                                 .n = dims.scores,
                                                 .k = dims.bidirectional ? dims.hidden : token_width(dims),
                                                 .bias = pools || dims.score_of != kSequence},
      input));
  if (pools) head.domain.positions = 1;
  return head;
}

}
