#include "interop/hf/hf_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "models/zoo.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "tests/support/temporary_folder.h"

namespace foreshard::hf_config_test {
namespace {

std::filesystem::path config(const std::string& name) {
  return std::filesystem::path(FORESHARD_SOURCE_DIR) / "tests/interop/configs" / name;
}

// A llama config of which one line is replaced or added; `extra` ends with a comma.
std::string llama(const std::string& extra, const std::string& hidden = "64", const std::string& heads = "4") {
  return "{" + extra + "\n \"model_type\": \"llama\", \"hidden_size\": " + hidden +
         ",\n \"num_attention_heads\": " + heads +
         ", \"num_hidden_layers\": 2, \"intermediate_size\": 128,\n \"vocab_size\": 1000}";
}

HfConfig parse(const std::string& text) {
  const ConfigNode root = parse_json(text, "config.json");
  return parse_hf_config(root, "test");
}

std::string failure(const std::string& text) {
  try {
    parse(text);
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
    return error.what();
  }
  return "no error";
}

void expect_failure(const std::string& text, const std::string& part) {
  const std::string message = failure(text);
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

const HfKey* entry(const HfConfig& config, const std::string& key) {
  const auto found = std::ranges::find_if(config.ledger, [&](const HfKey& k) { return k.key == key; });
  return found == config.ledger.end() ? nullptr : &*found;
}

// Dropout, windows and how an activation is written are of the code that a file was trained by; the
// zoo has the architecture.
ModelSpec without_training(ModelSpec model) {
  model.numerics.gelu_new = false;
  for (LayerSpec& layer : model.kinds) {
    for (Operation& op : layer.operations) {
      const AttentionShape& shape = op.attention;
      op.attention = {shape.heads, shape.kv_heads, shape.head_dim, shape.causal, shape.value_dim};
    }
  }
  return model;
}

// The same model as the zoo's, from the file that its authors publish.
TEST(HfConfigTest, PublishedConfigsGiveTheZoosModels) {
  for (const std::string name :
      {"llama-3.1-8b", "mistral-7b-v0.3", "qwen2.5-0.5b", "qwen3-0.6b", "gpt2", "mpt-7b", "mixtral-8x7b", "deepseek-v3",
          "bert-base", "falcon-7b", "deepseek-v2-lite", "qwen1.5-moe-a2.7b", "qwen3-30b-a3b", "roberta-base",
          "falcon-40b", "gemma-2b", "gemma-2-2b", "phi-4", "pythia-6.9b", "starcoder2-3b"}) {
    HfConfig file = read_hf_config(config(name + ".json"));
    const bool encoder = file.dims.bidirectional;  // trained with dropout in the zoo, too
    if (!encoder) file.dims.dropout = file.dims.embedding_dropout = false;
    if (file.dims.rotary_dim == file.dims.head_dim) file.dims.rotary_dim = 0;
    file.dims.windowed_layers.clear();
    ModelSpec read = build_hf_model(file);
    const ModelSpec expected = load_zoo_model(name);
    EXPECT_EQ(read.parameters(), expected.parameters()) << name;
    read.source = expected.source;
    // Files that were cut short do not say it; the library's default differs between families.
    const bool says_epsilon = std::ranges::any_of(
        file.ledger, [](const auto& k) { return contains(k.key, "eps") && k.use == KeyUse::kMapped; });
    if (!says_epsilon) read.numerics.norm_epsilon = expected.numerics.norm_epsilon;
    EXPECT_EQ(without_training(read), without_training(expected)) << name;
  }
}

TEST(HfConfigTest, NestedTextConfig) {
  const HfConfig read = read_hf_config(config("nested-text-config.json"));
  // Llama-7B with 64 more words in embedding and head.
  EXPECT_EQ(build_model(read.dims).parameters(), 6738415616 + std::int64_t{2} * 64 * 4096);
  ASSERT_NE(entry(read, "vision_config"), nullptr);
  EXPECT_EQ(entry(read, "vision_config")->use, KeyUse::kIgnored);
  EXPECT_EQ(entry(read, "text_config.hidden_size")->use, KeyUse::kMapped);
}

// A class's words may stand in another order than its type's.
TEST(HfConfigTest, ClassesAndActivationsOfFurtherFamilies) {
  const auto typed = [](const std::string& type, const std::string& stem, const std::string& more) {
    return parse("{\"model_type\": \"" + type + "\", \"architectures\": [\"" + stem +
                 "ForCausalLM\"], \"hidden_size\": 64, \"num_hidden_layers\": 2, "
                 "\"num_attention_heads\": 4, \"intermediate_size\": 128, " +
                 more + "\"vocab_size\": 100}")
        .dims;
  };
  EXPECT_EQ(typed("hunyuan_v1_dense", "HunYuanDenseV1", "").family, "hunyuan_v1_dense");
  EXPECT_EQ(typed("arcee", "Arcee", "\"hidden_act\": \"relu2\", ").activation, Activation::kRelu2);
  EXPECT_EQ(typed("nemotron", "Nemotron", "").rotary_dim, 8);
  EXPECT_TRUE(typed("phi", "Phi", "").numerics.gelu_new);
  EXPECT_FALSE(typed("phi", "Phi", "\"hidden_act\": \"gelu\", ").numerics.gelu_tanh);
  EXPECT_THROW(typed("arcee", "Llama", ""), Error);
  EXPECT_EQ(
      typed("exaone", "Llama", "\"num_key_value_heads\": 4, \"activation_function\": \"silu\", ").family, "llama");
  EXPECT_THROW(typed("exaone", "Exaone", "\"num_key_value_heads\": 4, \"activation_function\": \"relu\", "), Error);
  EXPECT_THROW(typed("olmo", "Olmo", "\"clip_qkv\": 8.0, "), Error);
  EXPECT_EQ(typed("cwm", "Cwm", "\"num_key_value_heads\": 4, ").windowed_layers, std::vector<std::int64_t>{1});
  const ModelDims hunyuan = typed("hunyuan_v1_moe", "HunYuanMoEV1", "\"num_experts\": 4, \"moe_topk\": [2, 2], ");
  EXPECT_EQ(hunyuan.moe.top_k, 2);
  EXPECT_EQ(hunyuan.moe.shared_ffn, hunyuan.ffn);
  EXPECT_THROW(typed("hunyuan_v1_moe", "HunYuanMoEV1", "\"moe_topk\": [1, 2], "), Error);
  EXPECT_EQ(
      typed("exaone_moe", "ExaoneMoe", "\"num_key_value_heads\": 4, \"mlp_layer_types\": [\"sparse\", \"dense\"], ")
          .moe.dense_layers,
      std::vector<std::int64_t>{1});
  const ModelDims ernie =
      typed("ernie4_5_moe", "Ernie4_5_Moe", "\"moe_k\": 2, \"moe_num_experts\": 8, \"moe_intermediate_size\": 32, ");
  EXPECT_EQ(ernie.moe.top_k, 2);
  EXPECT_EQ(ernie.moe.shared_ffn, 2 * 32);
  EXPECT_EQ(ernie.moe.dense_layers, std::vector<std::int64_t>{0});  // experts from 1 on
  EXPECT_EQ(typed("flex_olmo", "FlexOlmo", "").residual, Residual::kPostBranch);
  EXPECT_TRUE(typed("persimmon", "Persimmon", "").drops_mlp_alone);
  EXPECT_EQ(typed("minimax_m2", "MiniMaxM2", "\"rotary_dim\": 64, \"num_key_value_heads\": 4, ").rotary_dim, 64);
}

TEST(HfConfigTest, NamedAfterFileOrFolder) {
  EXPECT_EQ(read_hf_config(config("gpt2.json")).dims.name, "gpt2");
  const TemporaryFolder folder;
  const auto path = folder.write("My-Model/config.json", llama(""));
  EXPECT_EQ(read_hf_config(path).dims.name, "My-Model");
}

TEST(HfConfigTest, DefaultsAreHuggingFaces) {
  const HfConfig read = parse(llama("\"rope_theta\": 10000.0, \"something_new\": [1],"));
  EXPECT_EQ(read.dims.kv_heads, 4);
  EXPECT_EQ(read.dims.head_dim, 16);
  EXPECT_EQ(read.dims.max_positions, 2048);
  EXPECT_FALSE(read.dims.tied);
  EXPECT_EQ(*entry(read, "num_key_value_heads"), (HfKey{"num_key_value_heads", KeyUse::kDefaulted, "4", ""}));
  EXPECT_EQ(*entry(read, "hidden_size"), (HfKey{"hidden_size", KeyUse::kMapped, "64", ""}));
  EXPECT_EQ(*entry(read, "rope_theta"), (HfKey{"rope_theta", KeyUse::kMapped, "10000.0", ""}));
  EXPECT_EQ(*entry(read, "something_new"), (HfKey{"something_new", KeyUse::kIgnored, "", ""}));
}

// Llama 3.1's own file, the older spelling of the key, and what is there but not computed.
TEST(HfConfigTest, RopeScalingIsReadWhereItIsComputed) {
  using Kind = RopeScaling::Kind;
  const auto read = [](const std::string& value) {
    return parse(llama("\"rope_scaling\": " + value + ",")).dims.numerics.rope_scaling;
  };
  const RopeScaling llama3 = read_hf_config(config("llama-3.1-8b.json")).dims.numerics.rope_scaling;
  EXPECT_EQ(llama3, (RopeScaling{Kind::kLlama3, 8, 1, 4, 8192}));
  EXPECT_EQ(read(R"({"type": "linear", "factor": 2.5})").kind, Kind::kLinear);
  EXPECT_EQ(read(R"({"type": "linear", "factor": 2.5})").factor, 2.5);
  EXPECT_EQ(read(R"({"rope_type": "default"})"), RopeScaling());
  EXPECT_EQ(read("null"), RopeScaling());
  for (const char* other : {R"({"rope_type": "yarn", "factor": 4.0})", R"({"type": "linear"})",
           R"({"rope_type": "llama3", "factor": 8.0})", R"({"mrope_section": [16, 24, 24]})"}) {
    EXPECT_EQ(read(other).kind, Kind::kOther) << other;
  }
  expect_failure(llama(R"("rope_scaling": {"type": "linear", "factor": -1},)"), "factor");
  expect_failure(llama(R"("rope_scaling": {"a": 1},)"), "rope_scaling: has no rope_type");
  expect_failure(llama(R"("rope_scaling": {"type": "spiral"},)"), "rope_type \"spiral\" is not known");
}

TEST(HfConfigTest, EveryKeyIsInTheLedgerOnce) {
  for (const std::string name : {"mpt-7b", "mixtral-8x7b", "deepseek-v3", "deepseek-v2-lite", "qwen1.5-moe-a2.7b",
           "qwen3-30b-a3b", "bert-base", "roberta-base", "gemma-2b", "gemma-2-2b", "phi-4", "pythia-6.9b", "falcon-7b",
           "falcon-40b", "starcoder2-3b"}) {
    const std::filesystem::path path = config(name + ".json");
    const HfConfig read = read_hf_config(path);
    for (const std::string& key : read_json_file(path).keys()) {
      EXPECT_EQ(std::ranges::count_if(read.ledger, [&](const HfKey& k) { return k.key == key; }), 1)
          << name << " " << key;
    }
  }
}

// Small configurations of a family: the sizes that all have, and `extra`.
std::string family(const std::string& model_type, const std::string& extra) {
  return "{\"model_type\": \"" + model_type +
         "\", \"hidden_size\": 64, \"num_attention_heads\": 4, \"num_hidden_layers\": 6, "
         "\"intermediate_size\": 128, \"vocab_size\": 1000,\n" +
         extra + "\"use_cache\": true}";
}

// Norms behind its branches are a switch.
TEST(HfConfigTest, HyperClovaXWithAndWithoutPostNorms) {
  EXPECT_EQ(parse(family("hyperclovax", "")).dims.residual, Residual::kSandwich);
  EXPECT_EQ(parse(family("hyperclovax", "\"use_post_norm\": false,")).dims.residual, Residual::kPreNorm);
}

TEST(HfConfigTest, WhichLayersHaveExperts) {
  const auto dense = [](const std::string& model_type, const std::string& extra) {
    return parse(family(model_type, extra)).dims.moe.dense_layers;
  };
  using Layers = std::vector<std::int64_t>;
  EXPECT_EQ(dense("mixtral", "\"num_key_value_heads\": 4,"), Layers{});
  // Every second layer from the second on, but not the last one.
  EXPECT_EQ(dense("qwen2_moe", "\"decoder_sparse_step\": 2, \"mlp_only_layers\": [5], \"num_key_value_heads\": 4,"),
      (Layers{0, 2, 4, 5}));
  EXPECT_EQ(dense("qwen3_moe", "\"num_key_value_heads\": 4,"), Layers{});
  EXPECT_EQ(dense("deepseek_v3", ""), (Layers{0, 1, 2}));
  EXPECT_EQ(dense("deepseek_v2", "\"first_k_dense_replace\": 1, \"moe_layer_freq\": 2, \"num_experts_per_tok\": 2,"),
      (Layers{0, 1, 3, 5}));
  EXPECT_EQ(dense("mellum",
                "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"mlp_layer_types\": [\"dense\", \"sparse\", "
                "\"sparse\", \"dense\", \"sparse\", \"sparse\"],"),
      (Layers{0, 3}));
  expect_failure(family("qwen2_moe", "\"mlp_only_layers\": [6], \"num_key_value_heads\": 4,"), "mlp_only_layers");
}

TEST(HfConfigTest, ImpossibleExperts) {
  expect_failure(family("mixtral", "\"num_local_experts\": 4, \"num_experts_per_tok\": 5, \"num_key_value_heads\": 4,"),
      "config.json:2:48: num_experts_per_tok: every token goes to 5 of 4 experts");
  expect_failure(family("mixtral", "\"num_local_experts\": 0, \"num_key_value_heads\": 4,"), "num_local_experts");
  expect_failure(family("deepseek_v2", ""), "num_experts_per_tok");
  expect_failure(family("deepseek_v3", "\"kv_lora_rank\": 0,"), "kv_lora_rank");
  expect_failure(
      family("deepseek_v3", "\"num_key_value_heads\": 2,"), "latent attention has keys and values of every head");
  expect_failure(family("deepseek_v3", "\"scoring_func\": \"softmax\","), "scoring_func");
}

TEST(HfConfigTest, LatentAttentionWithoutAQueryLatent) {
  EXPECT_EQ(parse(family("deepseek_v3", "")).dims.latent.q_rank, 1536);
  EXPECT_EQ(parse(family("deepseek_v3", "\"q_lora_rank\": null,")).dims.latent.q_rank, 0);
}

// GenericForSequenceClassification: `score` in place of the head of words, without a bias.
TEST(HfConfigTest, AHeadOfScores) {
  const auto scores = [](const std::string& labels) {
    return parse(family(
        "qwen3", "\"num_key_value_heads\": 2, \"architectures\": [\"Qwen3ForSequenceClassification\"], " + labels));
  };
  EXPECT_EQ(scores("").dims.scores, 2);
  EXPECT_EQ(scores("\"num_labels\": 1,").dims.scores, 1);
  const HfConfig config = scores("\"id2label\": {\"0\": \"a\", \"1\": \"b\", \"2\": \"c\"},");
  const ModelSpec model = build_hf_model(config);
  const LayerSpec& head = model.kinds[at((model.order.end() - 2)->kind)];
  ASSERT_EQ(head.parameters.size(), 1U);
  EXPECT_EQ(head.parameters.front().name, "score.weight");
  EXPECT_EQ(head.parameters.front().shape, (std::vector<std::int64_t>{3, model.hidden}));
  EXPECT_FALSE(model.tied_embeddings);
}

// TRL's: beside the head of words, whose logits nobody reads.
TEST(HfConfigTest, AHeadOfValues) {
  const auto built = [](const std::string& name) {
    return build_hf_model(parse(family("llama", "\"num_key_value_heads\": 2, \"architectures\": [\"" + name + "\"],")));
  };
  const ModelSpec words = built("LlamaForCausalLM"), model = built("LlamaForCausalLMWithValueHead");
  EXPECT_EQ(model.parameters() - words.parameters(), model.hidden + 1);
  const LayerSpec& head = model.kinds[at((model.order.end() - 2)->kind)];
  EXPECT_TRUE(head.parameters[0].unused && !head.parameters[0].trainable);
  EXPECT_TRUE(head.parameters[1].trainable && !head.parameters[1].unused);
  EXPECT_EQ(head.tensors[at(head.output)].per_token, 1);
}

// An encoder's class is read from its first token by as many rows as sequences, through a transform
// that MLM has not; tokens and spans are scored one by one, without a layer between.
TEST(HfConfigTest, HeadsOfScoresOfEncodersAndOfTokens) {
  const auto headed = [](const std::string& type, const std::string& name, const std::string& more = "") {
    return parse(family(type, "\"num_key_value_heads\": 4, \"architectures\": [\"" + name + "\"], " + more));
  };
  const auto last = [](const ModelSpec& model) { return model.kinds[at((model.order.end() - 2)->kind)]; };
  const auto names = [](const LayerSpec& layer) {
    std::vector<std::string> all;
    for (const ParameterSpec& p : layer.parameters) all.push_back(p.name);
    return all;
  };
  using Names = std::vector<std::string>;
  const ModelSpec bert = build_hf_model(headed("bert", "BertForSequenceClassification"));
  EXPECT_EQ(names(last(bert)),
      (Names{"bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"}));
  EXPECT_EQ(last(bert).domain.positions, 1);
  EXPECT_EQ(last(bert).numel(), bert.hidden * bert.hidden + bert.hidden + 2 * bert.hidden + 2);
  const ModelSpec xlm = build_hf_model(headed("xlm-roberta", "XLMRobertaForSequenceClassification"));
  EXPECT_EQ(names(last(xlm)).front(), "classifier.dense.weight");
  EXPECT_FALSE(xlm.head_first);
  const HfConfig tokens = headed("roberta", "RobertaForTokenClassification", "\"num_labels\": 9,");
  EXPECT_TRUE(tokens.dims.score_dropout);
  const ModelSpec roberta = build_hf_model(tokens);
  EXPECT_EQ(last(roberta).numel(), 9 * roberta.hidden + 9);
  EXPECT_EQ(last(roberta).domain.positions, 0);
  EXPECT_EQ(roberta.order.size(), at(roberta.block_count()) + 3);
  EXPECT_EQ(headed("bert", "BertForQuestionAnswering", "\"num_labels\": 9,").dims.scores, 2);
  EXPECT_FALSE(headed("bert", "BertForQuestionAnswering").dims.score_dropout);
  EXPECT_TRUE(headed("distilbert", "DistilBertForQuestionAnswering").dims.score_dropout);
  const HfConfig llama = headed("llama", "LlamaForTokenClassification");
  EXPECT_TRUE(llama.dims.score_dropout);
  EXPECT_EQ(names(last(build_hf_model(llama))), (Names{"score.weight", "score.bias"}));
  EXPECT_FALSE(headed("llama", "LlamaForTokenClassification", "\"classifier_dropout\": 0.0,").dims.score_dropout);
  EXPECT_EQ(names(last(build_hf_model(headed("llama", "LlamaForQuestionAnswering")))).front(), "qa_outputs.weight");
}

// RobertaEmbeddings defines its positions behind the types of tokens and the norm.
TEST(HfConfigTest, WhereAnEncoderDefinesItsPositions) {
  const auto last = [](const std::string& type) {
    const ModelSpec model = build_hf_model(parse(family(type, "")));
    return model.kinds.front().parameters.back().name;
  };
  EXPECT_EQ(last("roberta"), "roberta.embeddings.position_embeddings.weight");
  EXPECT_EQ(last("data2vec-text"), "data2vec_text.embeddings.position_embeddings.weight");
  EXPECT_EQ(last("bert"), "bert.embeddings.LayerNorm.bias");
  EXPECT_EQ(last("ernie"), "ernie.embeddings.LayerNorm.bias");
  expect_failure(family("ernie", "\"use_task_id\": true,"), "types of tasks");
}

// Parameters as transformers 5.17 makes them (sum of p.numel() over model.parameters()).
TEST(HfConfigTest, EncodersOfOtherBlocksAndStacksWithPositions) {
  const auto parsed = [](const std::string& text) {
    return parse(
        "{\"vocab_size\": 4096, \"hidden_size\": 512, \"num_hidden_layers\": 4, "
        "\"num_attention_heads\": 8, \"intermediate_size\": 2048, " +
        text + "}");
  };
  const auto count = [&](const std::string& text) { return build_hf_model(parsed(text)).parameters(); };
  EXPECT_EQ(count(R"("model_type": "megatron-bert")"), 15'238'656);
  EXPECT_EQ(count(R"("model_type": "rembert", "input_embedding_size": 128,
                     "output_embedding_size": 768)"),
      16'811'264);
  EXPECT_EQ(count(R"("model_type": "albert", "num_hidden_groups": 1)"), 3'878'784);
  EXPECT_EQ(count(R"("model_type": "apertus", "num_key_value_heads": 4)"), 15'733'768);
  const std::string text = "{\"vocab_size\": 4096, \"d_model\": 512, \"dropout\": 0.1, \"ffn_dim\": 2048, ";
  const std::string xglm = text + R"("model_type": "xglm", "num_layers": 4, "attention_heads": 8})";
  EXPECT_EQ(build_hf_model(parse(xglm)).parameters(), 14'707'712);
  const std::string bart = text + R"("model_type": "bart", "encoder_layers": 4,
      "decoder_layers": 4, "encoder_attention_heads": 8, "decoder_attention_heads": 8,
      "encoder_ffn_dim": 2048, "decoder_ffn_dim": )";
  EXPECT_EQ(build_hf_model(parse(bart + "2048}")).parameters(), 32'575'488);
  expect_failure(bart + "1024}", "decoder_ffn_dim");
  expect_failure(bart + "2048, \"encoder_layerdrop\": 0.1}", "left out at random");
  expect_failure(R"({"model_type": "albert", "inner_group_num": 2, )" +
                     family("x", "").substr(family("x", "").find("\"hidden_size")),
      "inner_group_num");
}

// ModernBERT: every third block attends to all, the others to 64 positions on either side; the
// first has no norm in front.
TEST(HfConfigTest, ModernBert) {
  const HfConfig config = parse(R"({"model_type": "modernbert", "vocab_size": 4096, "hidden_size": 512,
      "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 768})");
  EXPECT_EQ(config.dims.window, 64);
  EXPECT_EQ(config.dims.windowed_layers, (std::vector<std::int64_t>{1, 2}));
  const ModelSpec model = build_hf_model(config);
  EXPECT_EQ(model.parameters(), 11'281'408);
  const auto kind = [&](std::size_t layer) { return model.kinds[at(model.order[layer].kind)]; };
  EXPECT_EQ(kind(1).parameters.front().name, "attn.Wqkv.weight");
  EXPECT_EQ(kind(4).parameters.front().name, "attn_norm.weight");
  EXPECT_EQ(kind(2), kind(3));
  EXPECT_EQ(model.order[6].name, "transform");
}

TEST(HfConfigTest, EncodersAndVariants) {
  EXPECT_FALSE(parse(family("bert", "\"hidden_dropout_prob\": 0,")).dims.dropout);
  EXPECT_TRUE(parse(family("bert", "")).dims.dropout);
  EXPECT_EQ(parse(family("roberta", "\"max_position_embeddings\": 514,")).dims.max_positions, 512);
  expect_failure(family("bert", "\"is_decoder\": true,"), "is_decoder");
  expect_failure(family("bert", "\"hidden_act\": \"relu\","), "hidden_act");
  EXPECT_EQ(parse(family("gpt_neox", "\"rotary_pct\": 0.5,")).dims.rotary_dim, 8);
  EXPECT_EQ(parse(family("gpt_neox", "\"use_parallel_residual\": false,")).dims.residual, Residual::kPreNorm);
  expect_failure(family("gpt_neox", "\"rotary_pct\": 0.01,"), "no element of a head of 16");
  EXPECT_EQ(parse(family("falcon", "\"new_decoder_architecture\": true, \"num_kv_heads\": 2,")).dims.kv_heads, 2);
  EXPECT_EQ(parse(family("falcon", "\"alibi\": true,")).dims.positions, Positions::kAlibi);
  EXPECT_FALSE(parse(family("gemma2", "\"final_logit_softcapping\": null,")).dims.logit_softcap);
}

TEST(HfConfigTest, ArchitectureNamesTheFamilyWithoutModelType) {
  EXPECT_EQ(parse(R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_head": 4,
                      "n_layer": 2, "vocab_size": 100})")
                .dims.family,
      "gpt2");
  expect_failure("{\"hidden_size\": 64}", "neither model_type nor architectures");
}

TEST(HfConfigTest, AliasesThatDisagree) {
  EXPECT_EQ(parse(llama("\"n_embd\": 64,")).dims.hidden, 64);
  expect_failure(llama("\"n_embd\": 65,"), "n_embd: differs from hidden_size");
}

TEST(HfConfigTest, SlidingWindowBoundsTheSequence) {
  const std::string mistral =
      R"("model_type": "mistral", "hidden_size": 64, "num_attention_heads": 8,
         "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 1000,
         "max_position_embeddings": 32768})";
  EXPECT_EQ(parse("{" + mistral).dims.max_positions, 4096);
  EXPECT_EQ(parse("{\"sliding_window\": null, " + mistral).dims.max_positions, 32768);
  EXPECT_EQ(parse("{\"sliding_window\": 1024, " + mistral).dims.max_positions, 1024);
}

// Of a file that lists nothing, the pattern that the class makes.
TEST(HfConfigTest, WhichLayersAttendWithinAWindow) {
  const auto dims = [](const std::string& model_type, const std::string& extra) {
    return parse(family(model_type, extra)).dims;
  };
  using Layers = std::vector<std::int64_t>;
  const ModelDims gemma = dims("gemma3", "\"sliding_window\": 512,");
  EXPECT_EQ(gemma.window, 512);
  EXPECT_EQ(gemma.windowed_layers, (Layers{0, 1, 2, 3, 4}));
  EXPECT_GT(gemma.max_positions, gemma.window);  // others attend to all
  EXPECT_EQ(dims("gemma3", "\"sliding_window_pattern\": 2,").windowed_layers, (Layers{0, 2, 4}));
  EXPECT_EQ(dims("gemma3", "\"sliding_window\": null,").window, 0);
  const std::string listed = R"("layer_types": ["full_attention", "sliding_attention",
      "full_attention", "full_attention", "full_attention", "full_attention"],)";
  EXPECT_EQ(dims("gemma3", listed).windowed_layers, Layers{1});
  const ModelDims exaone = dims("exaone4", "\"num_key_value_heads\": 4, \"sliding_window_pattern\": \"LLLG\",");
  EXPECT_EQ(exaone.windowed_layers, (Layers{0, 1, 2, 4, 5}));
  EXPECT_EQ(exaone.unrotated_layers, Layers{3});
  const std::string experts = "\"num_key_value_heads\": 4, \"num_local_experts\": 8,";
  const ModelDims oss = dims("gpt_oss", experts);
  EXPECT_EQ(oss.window, 128);
  EXPECT_EQ(oss.windowed_layers, (Layers{0, 2, 4}));
  // Chunks where positions are: every fourth layer of Llama 4 has none.
  const ModelDims llama4 = dims("llama4", experts + "\"attention_chunk_size\": 1024, \"intermediate_size_mlp\": 128,");
  EXPECT_EQ(llama4.window, 1024);
  EXPECT_EQ(llama4.windowed_layers, (Layers{0, 1, 2, 4, 5}));
  const ModelDims qwen =
      dims("qwen3", "\"num_key_value_heads\": 4, \"use_sliding_window\": true, \"max_window_layers\": 4,");
  EXPECT_EQ(qwen.windowed_layers, (Layers{4, 5}));
}

TEST(HfConfigTest, OptWithNarrowEmbeddings) {
  const std::string opt = R"("model_type": "opt", "hidden_size": 1024, "num_attention_heads": 16,
      "num_hidden_layers": 24, "ffn_dim": 4096, "vocab_size": 50272,
      "max_position_embeddings": 2048})";
  const HfConfig small = parse("{\"word_embed_proj_dim\": 512, \"do_layer_norm_before\": false, " + opt);
  EXPECT_EQ(small.dims.residual, Residual::kPostNorm);
  const ModelSpec model = build_hf_model(small);
  EXPECT_EQ(model.parameters(), 331196416);  // of facebook/opt-350m
  expect_failure("{\"do_layer_norm_before\": false, " + opt, "nothing would stand between");
  try {
    build_hf_model(small, Stack::kNative);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kMissingCapability);
  }
}

TEST(HfConfigTest, EncoderAndDecoder) {
  const std::string t5 = R"("architectures": ["T5ForConditionalGeneration"], "model_type": "t5",
      "d_model": 768, "d_kv": 64, "num_heads": 12, "num_layers": 12, "vocab_size": 32128)";
  const auto build = [](const std::string& text) { return build_hf_model(parse(text)); };
  EXPECT_EQ(build("{\"d_ff\": 3072, " + t5 + "}").parameters(), 222903552);  // t5-base
  const std::string gated = "{\"d_ff\": 2048, \"feed_forward_proj\": \"gated-gelu\", " + t5;
  const ModelSpec model = build(gated + ", \"tie_word_embeddings\": false}");
  EXPECT_EQ(model.parameters(), 247577856);  // google/flan-t5-base
  EXPECT_EQ(model.block_count(), 24);
  const HfConfig shallow = parse(gated + ", \"num_decoder_layers\": 2}");
  EXPECT_EQ(shallow.dims.layers, 2);
  EXPECT_EQ(shallow.dims.encoder_layers, 12);
  expect_failure("{\"feed_forward_proj\": \"tanh\", " + t5 + "}", "feed_forward_proj");
  // The class's sizes: google/mt5-small.
  EXPECT_EQ(build("{\"model_type\": \"mt5\"}").parameters(), 300176768);
  // Of the classes on the meta device (transformers 5.17), tables of positions that nobody trains among them.
  EXPECT_EQ(build("{\"model_type\": \"pegasus\"}").parameters(), 406287360);
  EXPECT_EQ(build("{\"model_type\": \"marian\"}").parameters(), 414307328);
  EXPECT_EQ(build("{\"model_type\": \"blenderbot\"}").parameters(), 2696268800);
  EXPECT_EQ(build("{\"model_type\": \"m2m_100\"}").parameters(), 483905536);
  expect_failure("{\"model_type\": \"marian\", \"decoder_vocab_size\": 7}", "a table for each stack");
}

TEST(HfConfigTest, MptVariants) {
  const std::string mpt = R"("model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2,
                             "vocab_size": 1000})";
  EXPECT_EQ(parse("{" + mpt).dims.positions, Positions::kAlibi);
  const ModelDims learned = parse("{\"attn_config\": {\"alibi\": false}, \"no_bias\": false, " + mpt).dims;
  EXPECT_EQ(learned.positions, Positions::kLearned);
  EXPECT_EQ(learned.position_rows, 2048);
  EXPECT_TRUE(learned.mlp_bias);
  EXPECT_EQ(
      parse("{\"attn_config\": {\"attn_type\": \"grouped_query_attention\", \"kv_n_heads\": 2}, " + mpt).dims.kv_heads,
      2);
  expect_failure("{\"attn_config\": {\"rope\": true}, " + mpt, "rotary positions");
  expect_failure("{\"attn_config\": {\"qk_ln\": true}, " + mpt, "attn_config.qk_ln");
}

TEST(HfConfigTest, UnsupportedModels) {
  expect_failure("{\"model_type\": \"rwkv\"}", "model_type \"rwkv\" is not supported");
  // The nearest by name, else by the keys that are there, and the way on.
  expect_failure("{\"model_type\": \"rwkv\"}", "the nearest is llama");
  expect_failure("{\"model_type\": \"some_moe_2\", \"n_routed_experts\": 8}", "the nearest is glm4_moe");
  expect_failure("{\"model_type\": \"rwkv\"}", "foreshard models NAME --yaml");
  expect_failure("{\"model_type\": \"rwkv\"}", "foreshard-null --gpu h100 --config");
  expect_failure("{\"model_type\": \"lama\"}", "did you mean llama");
  expect_failure("{\"architectures\": [\"BertModel\"]}", "architecture \"BertModel\" is not supported");
  expect_failure("{\"architectures\": [\"T5ForTokenClassification\"], \"model_type\": \"t5\"}",
      "architecture \"T5ForTokenClassification\"");
  expect_failure("{\"architectures\": [\"T5ForSequenceClassification\"], \"model_type\": \"t5\"}",
      "architecture \"T5ForSequenceClassification\"");
  expect_failure(llama("\"num_local_experts\": 8,"), "mixtures of experts are not supported");
  expect_failure(llama("\"hidden_act\": \"gelu\","), "activation \"gelu\" is not supported");
}

TEST(HfConfigTest, BrokenFiles) {
  expect_failure("", "config.json");
  expect_failure("{\"model_type\": \"llama\", \"hidden_si", "config.json:1:");
  expect_failure("not json", "config.json:1:");
  expect_failure("[1, 2]", "this is not a JSON object");
  expect_failure("\"text\"", "this is not a JSON object");
  expect_failure("{\"text_config\": 3}", "text_config: this is not an object");
  EXPECT_THROW(read_hf_config(config("absent.json")), Error);
  EXPECT_THROW(read_hf_config(config("")), Error);  // a folder
}

TEST(HfConfigTest, ImpossibleSizes) {
  expect_failure(llama("", "0"), "config.json:2:40: hidden_size");
  expect_failure(llama("", "-64"), "hidden_size");
  expect_failure(llama("", "64.5"), "hidden_size");
  expect_failure(llama("", "\"64\""), "hidden_size");
  expect_failure(llama("", "99999999999999999999"), "hidden_size");
  expect_failure(llama("", "null"), "hidden_size");
  expect_failure(llama("", "66"), "the hidden size 66 is not divisible by 4 heads");
  EXPECT_EQ(parse(llama("\"head_dim\": 16,", "66")).dims.head_dim, 16);
  expect_failure(llama("\"num_key_value_heads\": 3,"), "3 key/value heads do not divide 4 heads");
  expect_failure("{\"model_type\": \"llama\"}", "num_hidden_layers");
}

// Parameters of the classes of transformers 5.17 for these files (on the meta device).
TEST(HfConfigTest, LayersOfSeveralKinds) {
  const auto parameters = [](const std::string& rest) {
    return build_hf_model(parse("{\"vocab_size\": 1000, \"hidden_size\": 256, " + rest + "}")).parameters();
  };
  const std::string attention = "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, ";
  const std::string mixers = "\"mamba_n_heads\": 8, \"mamba_d_head\": 64";
  const std::string hybrid =
      attention +
      "\"model_type\": \"nemotron_h\", \"head_dim\": 32, \"intermediate_size\": 512, \"mamba_num_heads\": 8, "
      "\"mamba_head_dim\": 64, \"n_groups\": 2, \"n_routed_experts\": 8, \"moe_latent_size\": 64, "
      "\"moe_intermediate_size\": 128, \"moe_shared_expert_intermediate_size\": 192, ";
  EXPECT_EQ(parameters(hybrid + "\"hybrid_override_pattern\": \"M-*E\""), 1'669'912);
  EXPECT_EQ(parameters(hybrid + "\"layers_block_type\": [\"mamba\", \"mlp\", \"attention\", \"moe\"]"), 1'669'912);
  EXPECT_EQ(parameters("\"model_type\": \"mamba2\", \"num_hidden_layers\": 1, \"num_heads\": 8, \"head_dim\": 64"),
      1'445'400);
  EXPECT_EQ(parameters(attention + mixers +
                       ", \"model_type\": \"bamba\", \"num_hidden_layers\": 2, "
                       "\"attn_layer_indices\": [1], \"intermediate_size\": 512"),
      2'028'312);
  EXPECT_EQ(parameters(attention + mixers +
                       ", \"model_type\": \"granitemoehybrid\", \"num_hidden_layers\": 2, "
                       "\"layer_types\": [\"mamba\", \"attention\"], \"intermediate_size\": 128, "
                       "\"shared_intermediate_size\": 192, \"num_local_experts\": 4"),
      2'325'272);
  expect_failure("{\"vocab_size\": 1000, \"hidden_size\": 256, " + hybrid + "\"hybrid_override_pattern\": \"MQ\"}",
      "a layer that is not known");
}

// The same of linear attention and short convolutions, in layers that the file lists or the class.
TEST(HfConfigTest, LinearAttentionAndConvolutions) {
  const auto file = [](const std::string& rest) {
    return R"({"vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 4,
               "num_attention_heads": 4, "intermediate_size": 512, )" +
           rest + "}";
  };
  const std::string heads = R"("head_dim": 64, "linear_num_value_heads": 8,
      "linear_num_key_heads": 4, "linear_value_head_dim": 64, "linear_key_head_dim": 32, )";
  const std::string experts = R"("num_experts": 8, "num_experts_per_tok": 2,
      "num_experts_per_token": 2, "moe_intermediate_size": 128, )";
  const std::string qwen = heads + experts + R"("shared_expert_intermediate_size": 192,
      "num_key_value_heads": 2, "model_type": )";
  const std::string dense = heads + R"("num_key_value_heads": 2, "model_type": "qwen3_5_text")";
  const std::string types = R"(, "layer_types": ["linear_attention", "linear_attention",
      "linear_attention", "full_attention"])";
  const std::string kimi = experts + R"("q_lora_rank": null, "kv_lora_rank": 64,
      "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "num_key_value_heads": 4,
      "model_type": "kimi_linear", )";
  const std::string lfm2 = R"("num_key_value_heads": 2, "model_type": "lfm2)";
  const std::string convolutions = R"(, "layer_types": ["conv", "full_attention", "conv", "conv"])";
  const std::pair<std::string, std::int64_t> kParameters[] = {{qwen + R"("qwen3_next")", 5'919'344},
      {qwen + R"("qwen3_next", "mlp_only_layers": [1])", 5'376'368}, {qwen + R"("qwen3_5_moe_text")", 5'919'344},
      {dense + types, 3'747'440}, {heads + R"("num_key_value_heads": 4, "model_type": "olmo_hybrid")", 3'747'824},
      {kimi + R"("linear_num_heads": 8, "linear_head_dim": 32)" + types, 4'587'704},
      {kimi + R"("linear_attn_config": {"full_attn_layers": [4], "num_heads": 8, "head_dim": 32,
                                        "short_conv_kernel_size": 4})",
          4'587'704},
      {lfm2 + "\"" + convolutions, 2'816'640}, {lfm2 + R"(", "full_attn_idxs": [1], "block_ff_dim": 512)", 2'816'640},
      {lfm2 + R"(", "conv_bias": true, "block_auto_adjust_ff_dim": false)" + convolutions, 2'820'480},
      {experts + lfm2 + "_moe\"" + convolutions, 3'607'168}};
  for (const auto& [rest, parameters] : kParameters) {
    EXPECT_EQ(build_hf_model(parse(file(rest))).parameters(), parameters) << rest;
  }
  expect_failure(file(dense + R"(, "layer_types": ["linear_attention"])"), "there are 4 layers");
}

TEST(HfConfigTest, Overflow) {
  const TemporaryFolder folder;
  const auto path = folder.write("config.json",
      "{\"model_type\": \"llama\", \"hidden_size\": 1000000000, \"num_attention_heads\": 8, \"num_hidden_layers\": "
      "90000, \"intermediate_size\": 1000000000, \"vocab_size\": 1000}");
  try {
    build_hf_model(read_hf_config(path));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("overflows"), std::string::npos) << error.what();
  }
}

}
}
