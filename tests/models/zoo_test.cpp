#include "models/zoo.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "sim/base/error.h"

namespace foreshard::zoo_test {
namespace {

constexpr std::string_view kHeader =
    "name,family,layers,hidden,heads,kv_heads,head_dim,ffn,vocabulary,positions,traits,parameters,published,count,"
    "source,note\n";

std::string failure(const std::string& lines) {
  try {
    parse_zoo(std::string(kHeader) + lines, "zoo.csv");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ZooTest, EveryParameterCountIsThePublishedInteger) {
  const std::vector<ZooEntry> entries = zoo();
  int exact = 0;
  for (const ZooEntry& entry : entries) {
    const std::int64_t built = build_model(entry.dims).parameters();
    EXPECT_EQ(built, entry.parameters) << entry.dims.name;
    if (entry.exact) {
      EXPECT_EQ(built, entry.published) << entry.dims.name;
      ++exact;
    } else {
      const double ratio = static_cast<double>(built) / static_cast<double>(entry.published);
      // Blocks of prediction that share one weight have one each here.
      EXPECT_NEAR(ratio, 1.0, entry.dims.prediction_pattern.empty() ? 0.05 : 0.09) << entry.dims.name;
    }
  }
  EXPECT_GE(entries.size(), 40U);
  EXPECT_GE(exact, 40);
}

// A block more: an expert block behind a projection of two widths and two norms; logits and losses
// of as many rows again.
TEST(ZooTest, MultiTokenPredictionIsABlockAndARowOfLogitsMore) {
  const ModelSpec plain = load_zoo_model("deepseek-v3"), model = load_zoo_model("deepseek-v3-mtp");
  const auto numel = [](const LayerSpec& layer) {
    std::int64_t sum = 0;
    for (const ParameterSpec& parameter : layer.parameters) sum += parameter.numel();
    return sum;
  };
  const auto kind = [](const ModelSpec& of, std::size_t behind) -> const LayerSpec& {
    const LayerInstance& layer = of.order[of.order.size() - behind];
    return of.kinds[at(layer.kind)];
  };
  // Behind the last block stand norm, head and loss.
  EXPECT_EQ(numel(kind(model, 4)) - numel(kind(plain, 4)), 7168 * 2 * 7168 + 2 * 7168);
  EXPECT_EQ(numel(kind(model, 2)), numel(kind(plain, 2)));
  EXPECT_EQ(kind(model, 2).operations.back().rows, 2);
  EXPECT_EQ(kind(model, 2).tensors.back().per_token, 2 * 129280);
  EXPECT_EQ(kind(model, 1).tensors.front().per_token, 2 * 129280);
}

TEST(ZooTest, EveryModelIsWellFormed) {
  for (const ZooEntry& entry : zoo()) {
    const ModelSpec model = load_zoo_model(entry.dims.name);
    EXPECT_EQ(model.name, entry.dims.name);
    const std::int64_t of_prediction = std::max<std::int64_t>(1, std::ssize(entry.dims.prediction_pattern));
    EXPECT_EQ(model.block_count(),
        entry.dims.encoder_layers + entry.dims.layers + entry.dims.prediction_layers * of_prediction);
    for (const LayerSpec& layer : model.kinds) {
      const auto tensors = static_cast<std::int16_t>(layer.tensors.size());
      for (const Operation& op : layer.operations) {
        for (const auto* list : {&op.inputs, &op.outputs, &op.saved, &op.released}) {
          for (const std::int16_t t : *list) EXPECT_LT(t, tensors) << op.name;
        }
      }
      EXPECT_LT(layer.output, tensors);
    }
  }
}

TEST(ZooTest, NamesIgnoreCaseAndMistakesNameTheNearest) {
  EXPECT_EQ(load_zoo_model("Llama-3.1-8B"), load_zoo_model("llama-3.1-8b"));
  EXPECT_TRUE(is_zoo_model("gpt3-175b"));
  EXPECT_FALSE(is_zoo_model("gpt3"));
  try {
    load_zoo_model("lama-3.1-8b");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
    EXPECT_EQ(std::string(error.what()),
        "unknown model 'lama-3.1-8b'; did you mean llama-3.1-8b?; \"foreshard models\" lists "
        "those that are known, a path such as ./config.json names any other");
  }
  EXPECT_THROW(load_zoo_model(""), Error);
}

TEST(ZooTest, LoadingOneModelIsFast) {
  load_zoo_model("llama-3.1-405b");
  double best = 1.0;
  for (int i = 0; i < 20; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const ModelSpec model = load_zoo_model("qwen3-32b");
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    ASSERT_EQ(model.block_count(), 64);
    best = std::min(best, seconds.count());
  }
  EXPECT_LT(best, 1e-3);  // measured: 15 us
}

TEST(ZooTest, ReaderIsStrict) {
  const std::string good = "a,llama,2,64,4,2,16,128,1000,128,tied,1,1,exact,somewhere,\n";
  EXPECT_EQ(failure(good), "no error");
  EXPECT_EQ(failure(good + good).rfind("zoo.csv:3:1: name: the name \"a\" stands twice", 0), 0U);
  EXPECT_NE(failure("a,lama,2,64,4,2,16,128,1000,128,,1,1,exact,somewhere,\n")
                .find("zoo.csv:2:3: family: unknown family \"lama\""),
      std::string::npos);
  EXPECT_NE(failure("a,lama,2,64,4,2,16,128,1000,128,,1,1,exact,somewhere,\n").find("llama"), std::string::npos);
  EXPECT_NE(failure("a,llama,0,64,4,2,16,128,1000,128,,1,1,exact,somewhere,\n").find("layers: \"0\" is not a count"),
      std::string::npos);
  EXPECT_NE(failure("a,llama,2,64,4,2,16,128,1000,128,,1,2,exact,somewhere,\n")
                .find("an exact published count differs from parameters"),
      std::string::npos);
  EXPECT_NE(failure("a,llama,2,64,4,2,16,128,1000,128,fat,1,1,exact,somewhere,\n").find("unknown trait \"fat\""),
      std::string::npos);
  EXPECT_NE(failure("a,llama,2\n").find("does not have 16 cells"), std::string::npos);
  EXPECT_NE(failure("a,llama,2,64,4,2,16,128,1000,128,,1,1,about,somewhere,\n").find("unknown count \"about\""),
      std::string::npos);
  EXPECT_THROW(parse_zoo("name,family\n", "zoo.csv"), ConfigError);
}

}
}
