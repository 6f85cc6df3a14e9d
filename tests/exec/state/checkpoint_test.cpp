// Saving and loading when nothing breaks: every layout into every other, and which ones stay.
#include "exec/state/checkpoint.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>

#include "exec/state/checkpoint_index.h"
#include "exec/state/checkpoint_reader.h"
#include "exec/state/safetensors.h"
#include "sim/base/lookup.h"
#include "tests/exec/state/checkpoint_fixture.h"

namespace foreshard {
namespace {

using namespace state_test;

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

TEST_F(CheckpointTest, EveryLayoutLoadsEveryOther) {
  const std::vector<std::vector<std::size_t>> groupings = {{8}, {2, 2, 2, 2}, {1, 3, 0, 4}};
  std::vector<TestLayout> layouts;
  for (const std::int64_t shards : {1, 2, 3, 4}) {
    for (const auto& grouping : groupings) {
      layouts.push_back(layout_of(grouping, shards));
      layouts.back().alignment = shards == 3 ? 32 : 1;
    }
  }
  for (std::size_t from = 0; from < layouts.size(); ++from) {
    const fs::path folder = folder_ / std::to_string(from);
    EXPECT_EQ(save(folder, layouts[from], 3), Strings(at(layouts[from].shards)));
    for (const TestLayout& to : layouts) {
      const LoadResult result = load(folder, to);
      EXPECT_EQ(result.errors, Strings(at(to.shards)));
      EXPECT_EQ(result.differences, 0);
      for (const LoadedCheckpoint& loaded : result.loaded) {
        EXPECT_EQ(loaded.progress, progress_at(3));
        EXPECT_EQ(loaded.path, folder / "step-00000003");
        EXPECT_TRUE(loaded.passed_over.empty());
      }
    }
  }
}

TEST_F(CheckpointTest, ReplicasDoNotWriteButLoad) {
  TestLayout layout = layout_of({4, 4}, 2);
  layout.replicas = 3;
  EXPECT_EQ(save(folder_, layout, 1), Strings(6));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "step-00000001"), {}), 3);
  const LoadResult result = load(folder_, layout);
  EXPECT_EQ(result.errors, Strings(6));
  EXPECT_EQ(result.differences, 0);
}

TEST_F(CheckpointTest, MomentsMayChangeTheirDtype) {
  const DType dtypes[] = {DType::kFp32, DType::kBf16, DType::kFp16};
  for (const DType stored : dtypes) {
    TestLayout from = layout_of({3, 5}, 2);
    from.moments = stored;
    const fs::path folder = folder_ / to_string(stored);
    EXPECT_EQ(save(folder, from, 1), Strings(2));
    for (const DType wanted : dtypes) {
      TestLayout to = layout_of({8}, 3);
      to.moments = wanted;
      const LoadResult result = load(folder, to, stored);
      EXPECT_EQ(result.errors, Strings(3));
      EXPECT_EQ(result.differences, 0) << to_string(stored) << " to " << to_string(wanted);
    }
  }
}

TEST_F(CheckpointTest, TheNewestIsTheOneSavedLastAndOneMayBeNamed) {
  const TestLayout layout = layout_of({8}, 1);
  for (const std::int64_t step : {5, 10, 6}) EXPECT_EQ(save(folder_, layout, step), Strings(1));
  EXPECT_EQ(load(folder_, layout).loaded[0].progress.step, 6);
  EXPECT_EQ(load(folder_ / "step-00000010", layout).loaded[0].progress.step, 10);
  EXPECT_EQ(load(folder_ / "step-00000010/", layout).loaded[0].progress.step, 10);
  fs::create_symlink(folder_ / "step-00000005", root_ / "link");
  EXPECT_EQ(load(root_ / "link", layout).loaded[0].progress.step, 5);
  std::vector<std::int64_t> steps;
  for (const CheckpointEntry& entry : list_checkpoints(folder_)) steps.push_back(entry.step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{5, 10, 6}));
}

TEST_F(CheckpointTest, KeepsTheNewest) {
  const TestLayout layout = layout_of({8}, 2);
  for (std::int64_t step = 1; step <= 5; ++step) EXPECT_EQ(save(folder_, layout, step, 2), Strings(2));
  EXPECT_EQ(names(), (Strings{"step-00000004", "step-00000005"}));
  // A run that goes back keeps what it saves.
  EXPECT_EQ(save(folder_, layout, 2, 2), Strings(2));
  EXPECT_EQ(names(), (Strings{"step-00000002", "step-00000005"}));
  // Names of others are not touched.
  fs::create_directory(folder_ / "step-7");
  fs::create_directory(folder_ / "notes");
  EXPECT_EQ(save(folder_, layout, 3, 1), Strings(2));
  EXPECT_EQ(names(), (Strings{"notes", "step-00000003", "step-7"}));
}

TEST_F(CheckpointTest, ReplacesTheSameStep) {
  EXPECT_EQ(save(folder_, layout_of({8}, 1), 4), Strings(1));
  EXPECT_EQ(save(folder_, layout_of({4, 4}, 3), 4), Strings(3));
  EXPECT_EQ(names(), Strings{"step-00000004"});
  EXPECT_EQ(read_index(folder_ / "step-00000004").shards, 3);
  EXPECT_EQ(load(folder_, layout_of({8}, 1)).differences, 0);
}

TEST_F(CheckpointTest, RemovesWhatDeadRunsLeft) {
  const TestLayout layout = layout_of({8}, 1);
  EXPECT_EQ(save(folder_, layout, 1), Strings(1));
  EXPECT_EQ(save(folder_, layout, 2), Strings(1));
  fs::create_directories(folder_ / ".writing-step-00000003-99" / "more");
  // A replacement that was cut off between its two renames, and one after them.
  fs::rename(folder_ / "step-00000001", folder_ / ".replaced-step-00000001");
  fs::create_directory(folder_ / ".replaced-step-00000002");
  EXPECT_EQ(list_checkpoints(folder_).size(), 2U);
  EXPECT_EQ(list_checkpoints(folder_)[0].path, folder_ / ".replaced-step-00000001");
  EXPECT_EQ(save(folder_, layout, 3), Strings(1));
  EXPECT_EQ(names(), (Strings{"step-00000001", "step-00000002", "step-00000003"}));
  EXPECT_EQ(load(folder_ / "step-00000001", layout).differences, 0);
}

TEST_F(CheckpointTest, ReadsOnlyTheBlocksOfItsRanges) {
  // 8 MiB per array: a quarter of each lies within half a block, the first of them in the header's.
  TestLayout one = layout_of({8}, 1);
  one.units = {{{"large", {2, 1024, 1024}}}};
  EXPECT_EQ(save(folder_, one, 1), Strings(1));
  TestLayout four = one;
  four.shards = 4;
  const LoadResult result = load(folder_, four);
  EXPECT_EQ(result.errors, Strings(4));
  EXPECT_EQ(result.differences, 0);
  EXPECT_EQ(result.loaded[0].bytes_read, 3 * kChecksumBlock);
  EXPECT_EQ(load(folder_, one).loaded[0].bytes_read,
      static_cast<std::int64_t>(fs::file_size(folder_ / "step-00000001" / "rank-00000-of-00001.safetensors")));
}

TEST_F(CheckpointTest, ReadsPartsOfParameters) {
  EXPECT_EQ(save(folder_, layout_of({3, 5}, 3), 9), Strings(3));
  CheckpointReader reader(folder_ / "step-00000009");
  ASSERT_NE(reader.find("head"), nullptr);
  EXPECT_EQ(reader.find("head")->shape, (std::vector<std::int64_t>{17, 3}));
  EXPECT_EQ(reader.find("tail"), nullptr);
  EXPECT_TRUE(reader.has_array("head", "exp_avg"));
  EXPECT_FALSE(reader.has_array("head", "momentum"));
  std::vector<float> part(20);
  const StateRange range{"head", "exp_avg", 30, DType::kFp32, std::as_writable_bytes(std::span(part))};
  reader.read(std::span(&range, 1));
  for (std::size_t i = 0; i < part.size(); ++i) {
    EXPECT_EQ(part[i], value_of("head", "exp_avg", static_cast<std::int64_t>(30 + i), 9));
  }
}

TEST_F(CheckpointTest, FilesAreSafetensorsWithAlignedData) {
  EXPECT_EQ(save(folder_, layout_of({4, 4}, 2), 1), Strings(2));
  const fs::path path = folder_ / "step-00000001" / "rank-00001-of-00002.safetensors";
  const SafetensorsHeader header = read_safetensors_header(path);
  EXPECT_EQ(header.tensors.size(), 6U);
  EXPECT_EQ(header.data_begin % 64, 0);
  ASSERT_NE(header.find("unit/u1/exp_avg"), nullptr);
  EXPECT_EQ(header.find("unit/u1/exp_avg")->dtype, "F32");
}

TEST_F(CheckpointTest, RefusesAnotherModel) {
  const TestLayout layout = layout_of({4, 4}, 2);
  EXPECT_EQ(save(folder_, layout, 1), Strings(2));
  TestLayout other = layout;
  other.units[1][3].shape = {3, 17};
  EXPECT_PRED2(says, load(folder_, other).errors[1],
      "is of another model: its parameter 'head' has the shape [17, 3], but the model's has [3, 17]");
  other.units[1][3] = {"tail", {17, 3}};
  EXPECT_PRED2(says, load(folder_, other).errors[0], "it has no parameter 'tail'");
  other.units[1].pop_back();
  EXPECT_PRED2(says, load(folder_, other).errors[0], "its parameter 'head' is not in the model");
  const auto errors = on_ranks(1, [&](int rank, World& world) {
    TestRank state = make_rank(layout_of({8}, 1), rank);
    state.state.units[0].arrays[1].name = "momentum";
    load_checkpoint(folder_, state.state, world);
  });
  EXPECT_PRED2(says, errors[0], "it has no array 'momentum' for parameter 'embedding'");
}

TEST_F(CheckpointTest, SaysThatThereIsNone) {
  const TestLayout layout = layout_of({8}, 2);
  EXPECT_PRED2(says, load(folder_, layout).errors[1], "No such file or directory");
  fs::create_directories(folder_);
  EXPECT_PRED2(says, load(folder_, layout).errors[1], "there is no checkpoint in this folder");
  EXPECT_TRUE(list_checkpoints(root_ / "nowhere").empty());
}

TEST(Convert, RoundsToNearestEven) {
  const auto through = [](float value, DType dtype) {
    std::byte narrow[2] = {};
    float back = 0;
    convert(DType::kFp32, std::as_bytes(std::span(&value, 1)), dtype, narrow);
    convert(dtype, narrow, DType::kFp32, std::as_writable_bytes(std::span(&back, 1)));
    return back;
  };
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(through(1.00390625F, DType::kBf16), 1.0F);       // a tie, down to even
  EXPECT_EQ(through(1.01171875F, DType::kBf16), 1.015625F);  // a tie, up to even
  EXPECT_EQ(through(3.4e38F, DType::kBf16), infinity);
  EXPECT_EQ(through(-infinity, DType::kBf16), -infinity);
  EXPECT_TRUE(std::isnan(through(std::nanf("1"), DType::kBf16)));
  EXPECT_EQ(through(65504.0F, DType::kFp16), 65504.0F);
  EXPECT_EQ(through(65519.0F, DType::kFp16), 65504.0F);
  EXPECT_EQ(through(65520.0F, DType::kFp16), infinity);
  EXPECT_EQ(through(-1e9F, DType::kFp16), -infinity);
  EXPECT_EQ(through(5.9604645e-8F, DType::kFp16), 5.9604645e-8F);  // the smallest subnormal
  EXPECT_EQ(through(2.9802322e-8F, DType::kFp16), 0.0F);           // half of it: a tie
  EXPECT_EQ(through(6.1035156e-5F, DType::kFp16), 6.1035156e-5F);  // the smallest normal
  EXPECT_EQ(through(6.1e-5F, DType::kFp16), 1023 * 5.9604645e-8F);
  EXPECT_TRUE(std::isnan(through(std::nanf("1"), DType::kFp16)));
}

RC_GTEST_PROP(ConvertProperty, SixteenBitsSurviveARoundTrip, (std::uint16_t bits)) {
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    float wide = 0;
    std::uint16_t back = 0;
    convert(dtype, std::as_bytes(std::span(&bits, 1)), DType::kFp32, std::as_writable_bytes(std::span(&wide, 1)));
    convert(DType::kFp32, std::as_bytes(std::span(&wide, 1)), dtype, std::as_writable_bytes(std::span(&back, 1)));
    RC_ASSERT(std::isnan(wide) || back == bits);
  }
}

}
}
