// Models that read images: parameters, FLOPs and memory derived once more by hand.
//
// ViT-B/16 at 224 pixels: 14 x 14 = 196 patches and a class token: 197 positions; width d = 768,
// f = 3072, 12 blocks of 12 heads. CLIP-L/14 at 336: 24 x 24 = 576 patches, 577 positions, d =
// 1024, f = 4096, 24 blocks of 16 heads. LLaVA-1.5-7B: that tower, and Llama-2-7B with 32064 words.
#include "models/vision.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "calibration/machines.h"
#include "models/layers/variants.h"
#include "models/zoo.h"
#include "sim/base/error.h"
#include "sim/graph/training_step.h"
#include "sim/memory/memory_actions.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/plan_config.h"

namespace foreshard::vision_test {
namespace {

const LayerSpec& kind_of(const ModelSpec& model, std::string_view layer) {
  for (const LayerInstance& instance : model.order) {
    if (instance.name == layer) return model.kinds[at(instance.kind)];
  }
  throw std::logic_error("no such layer");
}

// settings as the user writes them; on 8 H100s.
struct Resolved {
  ModelSpec model;
  Plan plan;
};
Resolved resolved(std::string_view name, const std::vector<const char*>& settings = {}) {
  const Cluster cluster = load_cluster("8xh100");
  PlanDocument document;
  for (const char* setting : settings) document = apply_set(document, setting);
  const ModelSpec model = load_zoo_model(name);
  const ResolvedPlan plan = resolve(document, model, cluster);
  check(plan, model, cluster);
  return {with_variants(model, plan.plan), plan.plan};
}

std::string failure(std::string_view name, const std::vector<const char*>& settings) {
  try {
    resolved(name, settings);
  } catch (const Error& error) {
    return std::to_string(static_cast<int>(error.exit_code())) + " " + error.what();
  }
  return "no error";
}

std::int64_t rounded(std::int64_t bytes) { return allocated_size(bytes).count(); }

TEST(VisionTest, EveryParameterCountIsThePublishedInteger) {
  int exact = 0;
  for (const VisionEntry& entry : vision_zoo()) {
    const std::int64_t built = build_vision_model(entry.dims).parameters();
    EXPECT_EQ(built, entry.parameters) << entry.dims.name;
    if (entry.exact) {
      EXPECT_EQ(built, entry.published) << entry.dims.name;
      ++exact;
    } else {
      const double ratio = static_cast<double>(built) / static_cast<double>(entry.published);
      EXPECT_NEAR(ratio, 1.0, 0.05) << entry.dims.name;
    }
  }
  EXPECT_GE(exact, 9);
}

TEST(VisionTest, ParametersByHand) {
  const std::int64_t d = 768, f = 3072;
  const std::int64_t block = 4 * (d * d + d) + (d * f + f) + (f * d + d) + 4 * d;
  const std::int64_t embedding = 3 * 16 * 16 * d + d + d + 197 * d;  // weight, bias, class, positions
  EXPECT_EQ(load_zoo_model("vit-base-patch16-224").parameters(), embedding + 12 * block + 2 * d + d * 1000 + 1000);

  const std::int64_t v = 1024, vf = 4096, h = 4096;
  const std::int64_t tower = 3 * 14 * 14 * v + v + 577 * v + 2 * v +  // no bias; norm in front
                             24 * (4 * (v * v + v) + (v * vf + vf) + (vf * v + v) + 4 * v) + 2 * v;
  EXPECT_EQ(tower, 303'507'456);
  const std::int64_t projector = v * h + h + h * h + h;
  const std::int64_t decoder = 6'738'415'616 + 2 * 64 * h;  // Llama-2-7B with 64 words more
  EXPECT_EQ(load_zoo_model("llava-1.5-7b").parameters(), tower + projector + decoder);
  EXPECT_EQ(tower + projector + decoder, 7'063'427'072);
}

TEST(VisionTest, FlopsOfVitByHand) {
  const double d = 768, f = 3072, s = 197;
  const double block = 2 * s * d * (4 * d) + 2 * 2 * s * d * f + 4 * s * s * d;  // no causal half
  const double forward = 2 * 196 * 768 * d + 12 * block + 2 * d * 1000;
  const ModelSpec model = load_zoo_model("vit-base-patch16-224");
  EXPECT_DOUBLE_EQ(model.training_flops_per_sequence(197).count(), 3 * forward);
  // 17.6 GFLOPs per image (torchvision vit_b_16 prints 17.56 multiply-adds): two each.
  EXPECT_NEAR(forward / 2 / 17.56e9, 1.0, 0.01);
}

TEST(VisionTest, FlopsOfLlavaGrowWithItsImages) {
  const ModelSpec one = load_zoo_model("llava-1.5-7b");
  ModelSpec text = load_zoo_model("llama-2-7b");
  const double v = 1024, vf = 4096, h = 4096, p = 576, s = 577;
  const double image = 2 * p * (3 * 14 * 14) * v + 24 * (2 * s * 4 * v * v + 4 * s * v * vf + 4 * s * s * v) +
                       2 * p * v * h + 2 * p * h * h;
  const double words = text.training_flops_per_sequence(4096).count() / 3 + 2.0 * 4096 * h * 64;
  EXPECT_DOUBLE_EQ(one.training_flops_per_sequence(4096).count(), 3 * (words + image));
  EXPECT_DOUBLE_EQ(with_images(one, 3).training_flops_per_sequence(4096).count(), 3 * (words + 3 * image));
}

// What blocks, norms, heads, projectors and masks keep was held against what torch.autograd.graph's
// saved_tensors_hooks see of small models of transformers (ViT, CLIP and LLaVA with its tower
// frozen and trained; PyTorch 2.11 on a CPU): the same bytes.
//
// norm1, q, k, v, attention, residual, norm2: 7 of width d; before and after gelu: 2 f; logsumexp
// per head and two means and 1/std in fp32; two seeds.
TEST(VisionTest, AVitBlockKeepsWhatItsImagesNeed) {
  const auto [model, plan] = resolved("vit-base-patch16-224", {"batch.micro_batch=64"});
  EXPECT_EQ(plan.batch.sequence, 197);
  const LayerPrograms programs(model, plan);
  const std::int64_t tokens = 64 * 197;
  const std::int64_t expected = 7 * rounded(2 * tokens * 768) + 2 * rounded(2 * tokens * 3072) +
                                rounded(4 * tokens * 12) + 4 * rounded(4 * tokens) + 2 * 512;
  EXPECT_EQ(programs.at(1, Recompute::kNone)->saved_bytes().count(), expected);
}

// Quick gelu keeps its input, the sigmoid and the product: 3 f. With two samples of three images
// the tower runs on six sequences of 577, whatever the plan's sequence.
TEST(VisionTest, ATowerRunsOnTheImagesOfItsSamples) {
  const auto [model, plan] = resolved("llava-1.5-7b", {"batch.micro_batch=2", "batch.images=3", "batch.sequence=2048"});
  const LayerPrograms programs(model, plan);
  const std::int64_t tokens = 2 * 3 * 577;
  const std::int64_t expected = 7 * rounded(2 * tokens * 1024) + 3 * rounded(2 * tokens * 4096) +
                                rounded(4 * tokens * 16) + 4 * rounded(4 * tokens) + 2 * 512;
  EXPECT_EQ(model.order[2].name, "vision.layers.0");
  EXPECT_EQ(programs.at(2, Recompute::kNone)->saved_bytes().count(), expected);
  // The projector keeps its input (the layer before's), linear_1's output and gelu's.
  EXPECT_EQ(model.order[26].name, "projector");
  EXPECT_EQ(programs.at(26, Recompute::kNone)->saved_bytes().count(), 2 * 2 * 3 * 576 * 2 * 4096);
}

// The words wait while the tower runs: the input slot of the tower's embedding is their buffer, as
// large as the words' embedding, and merging frees it.
TEST(VisionTest, WordsWaitForTheImages) {
  const auto [model, plan] = resolved("llava-1.5-7b", {"batch.sequence=1024"});
  const EventGraph graph = build_training_step(model, plan);
  const LayerExecution& tower = graph.executions[1];
  EXPECT_EQ(model.order[1].name, "vision.embedding");
  EXPECT_EQ(graph.buffer(tower.first_buffer).bytes, Bytes(2 * 1024 * 4096));
  const auto merge =
      std::ranges::find_if(model.order, [](const LayerInstance& layer) { return layer.name == "merge"; });
  const LayerExecution& execution = graph.executions[at(merge - model.order.begin())];
  EXPECT_EQ(execution.joined, 1);
  const std::vector<std::int32_t>& actions = graph.program(execution).forward.actions;
  const std::int32_t frees = -(LayerPhaseProgram::kWaiting + 1);
  EXPECT_EQ(std::ranges::count(actions, frees), 1);
}

// Pixels in fp32, words and labels as 64 bit integers: a class per image, a word per position.
TEST(VisionTest, WhatABatchConsistsOf) {
  const std::int64_t pixels = 3 * 224 * 224 * 4;
  const ModelSpec vit = load_zoo_model("vit-base-patch16-224");
  EXPECT_EQ(input_bytes(vit, 64, 197), 64 * pixels);
  EXPECT_EQ(label_bytes(vit, 64, 197), 64 * 8);
  EXPECT_EQ(input_bytes(load_zoo_model("clip-vit-base-patch32"), 4, 77), 4 * (pixels + 77 * 8));
  const ModelSpec llava = with_images(load_zoo_model("llava-1.5-7b"), 5);
  EXPECT_EQ(input_bytes(llava, 2, 4096), 2 * (5 * 3 * 336 * 336 * 4 + 4096 * 8));
  EXPECT_EQ(label_bytes(llava, 2, 4096), 2 * 4096 * 8);
  const ModelSpec words = load_zoo_model("llama-2-7b");
  EXPECT_EQ(input_bytes(words, 2, 4096), 2 * 4096 * 8);
  EXPECT_EQ(label_bytes(words, 2, 4096), 2 * 4096 * 8);
}

// Allocates and frees every buffer in turn, whatever the plan trains and recomputes.
struct Balance {
  const EventGraph& graph;
  std::map<std::int32_t, int> alive;
  int wrong = 0;
  void row(EventId /*row*/) {}
  void allocate(std::int32_t buffer) { wrong += ++alive[buffer] != 1; }
  void free(std::int32_t buffer) { wrong += --alive[buffer] != 0; }
  void store(std::int32_t buffer, MemoryCategory /*category*/) { wrong += alive[buffer] != 1; }
};

TEST(VisionTest, EveryBufferIsAllocatedAndFreedInTurn) {
  const std::vector<std::vector<const char*>> settings = {{}, {"recompute=full"},
      {"recompute=selective", "compile=blocks"}, {"frozen=[tower]"}, {"frozen=[embedding, norm, head]"},
      {"batch.accumulation=3", "accumulation.mode=keep_unsharded"}, {"dtype.param=fp32"}, {"dtype.output=fp32"},
      {"evaluation.in_step=true"}, {"attention=math"}, {"loss=compiled"},
      {"units.embedding=root", "units.head=root", "units.blocks=root"}, {"trainer=torchtitan"},
      {"runtime=fsdp2@2.4", "frozen=[0-3]"}};
  for (const char* name : {"vit-base-patch32-224", "clip-vit-base-patch32", "llava-1.5-7b"}) {
    for (const auto& each : settings) {
      const bool vit = std::string_view(name).starts_with("vit");
      if (vit && each == std::vector<const char*>{"frozen=[tower]"}) continue;
      SCOPED_TRACE(std::string(name) + " " + (each.empty() ? "" : each.front()));
      const auto [model, plan] = resolved(name, each);
      const EventGraph graph = build_training_step(model, plan);
      Balance balance{graph, {}};
      for (const std::int32_t buffer : graph.persistent) balance.alive[buffer] = 1;
      for_each_action(graph, balance);
      EXPECT_EQ(balance.wrong, 0);
      for (const auto& [buffer, count] : balance.alive) {
        if (buffer < graph.first_own_buffer) {
          EXPECT_EQ(count, 0) << graph.buffer_name(buffer) << " of "
                              << model.order[at(graph.execution_of(buffer)->layer)].name;
        }
      }
    }
  }
}

// Frozen, the tower keeps nothing and runs no backward; the words' embedding still does.
TEST(VisionTest, AFrozenTowerKeepsNothing) {
  const auto [model, plan] = resolved("llava-1.5-7b", {"frozen=[tower]"});
  const LayerPrograms programs(model, plan);
  for (std::int32_t l = 1; l <= 25; ++l) {
    EXPECT_TRUE(model.order[at(l)].name.starts_with("vision.")) << l;
    EXPECT_EQ(programs.at(l, Recompute::kNone)->saved_bytes().count(), 0) << l;
    EXPECT_TRUE(programs.at(l, Recompute::kNone)->backward.actions.empty()) << l;
  }
  EXPECT_FALSE(programs.at(0, Recompute::kNone)->backward.actions.empty());
  EXPECT_FALSE(programs.at(26, Recompute::kNone)->backward.actions.empty());
}

// Nothing reads the last block: it keeps nothing and makes no gradient but that of what it hands on.
TEST(VisionTest, TheUnreadBlockOfLlavaIsNeverTrained) {
  const auto [model, plan] = resolved("llava-1.5-7b");
  const LayerPrograms programs(model, plan);
  const LayerProgram& last = *programs.at(25, Recompute::kNone);
  EXPECT_EQ(model.order[25].name, "vision.layers.23");
  EXPECT_TRUE(kind_of(model, "vision.layers.23").unread);
  EXPECT_EQ(last.saved_bytes().count(), 0);
  EXPECT_TRUE(std::ranges::all_of(last.weight_gradients, [](std::int32_t slot) { return slot < 0; }));
  EXPECT_GT(last.forward.flops.count(), 0);
  EXPECT_EQ(last.backward.flops.count(), 0);
}

TEST(VisionTest, TowersAreUnitsLikeBlocks) {
  const auto [model, plan] = resolved("clip-vit-base-patch32");
  std::vector<std::string> names;
  for (const Unit& unit : list_units(model, plan)) names.push_back(unit.name);
  // root, two embeddings, 12 + 12 blocks, head
  ASSERT_EQ(names.size(), 28U);
  EXPECT_EQ(names[1], "vision.embedding");
  EXPECT_EQ(names[2], "vision.layers.0");
  EXPECT_EQ(names[14], "embedding");
  EXPECT_EQ(names[15], "layers.0");
  EXPECT_EQ(names.back(), "head");
  EXPECT_EQ(unit_count(plan, model), 28);
}

TEST(VisionTest, WhatAPlanCannotAskFor) {
  EXPECT_EQ(failure("vit-base-patch16-224", {"batch.sequence=256"}).substr(0, 1), "3");
  EXPECT_NE(
      failure("vit-base-patch16-224", {"batch.sequence=256"}).find("runs on the 197 positions that its images have"),
      std::string::npos);
  EXPECT_NE(failure("llama-2-7b", {"batch.images=1"}).find("has no images among its words"), std::string::npos);
  EXPECT_NE(failure("llava-1.5-7b", {"batch.images=0"}).find("at least 1"), std::string::npos);
  EXPECT_NE(failure("llava-1.5-7b", {"batch.images=-1"}).find("--set:1:14"), std::string::npos);
  EXPECT_NE(failure("llava-1.5-7b", {"batch.images=8"}).find("at most 7"), std::string::npos);
  EXPECT_EQ(failure("llava-1.5-7b", {"batch.images=7"}), "no error");
  EXPECT_NE(failure("llama-2-7b", {"frozen=[tower]"}).find("has no vision tower"), std::string::npos);
  EXPECT_NE(failure("clip-vit-base-patch32", {"batch.sequence=78"}).find("77 learned positions"), std::string::npos);
  for (const char* name : {"vit-base-patch16-224", "clip-vit-base-patch32", "llava-1.5-7b"}) {
    const std::string text = failure(name, {"runtime=native"});
    EXPECT_EQ(text.substr(0, 1), "6") << text;
    EXPECT_NE(text.find("runtime: fsdp2"), std::string::npos) << text;
  }
}

TEST(VisionTest, BadSizesAreNamed) {
  VisionDims dims = find_vision_model("llava-1.5-7b")->dims;
  dims.tower.heads = 7;
  EXPECT_THROW(build_vision_model(dims), Error);
  dims = find_vision_model("VIT-base-patch16-224")->dims;
  dims.tower.patch = 225;
  EXPECT_THROW(build_vision_model(dims), Error);
  dims.tower.patch = 16;
  dims.labels = -1;
  EXPECT_THROW(build_vision_model(dims), Error);
  dims.family = "dino";
  EXPECT_THROW(build_vision_model(dims), Error);
}

}
}
