// Checkpoints that somebody altered: named and passed over in a run's folder, refused alone, and
// never worse than an Error, whatever the bytes are.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#include <sys/stat.h>

#include <array>
#include <regex>

#include "exec/state/checkpoint.h"
#include "exec/state/checkpoint_index.h"
#include "exec/state/safetensors.h"
#include "tests/exec/state/checkpoint_fixture.h"

namespace foreshard {
namespace {

using namespace state_test;

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

class DamageTest : public CheckpointTest {
 protected:
  DamageTest() {
    EXPECT_EQ(save(folder_, layout_, 1), Strings(2));
    EXPECT_EQ(save(folder_, layout_, 2), Strings(2));
  }

  // Damages the newest checkpoint as told, and expects both ways of loading to say so.
  void expect_named(const std::string& reason) const {
    for (const std::int64_t shards : {1, 2, 3}) {
      TestLayout layout = layout_;
      layout.shards = shards;
      const LoadResult result = load(folder_, layout);
      EXPECT_EQ(result.errors, Strings(static_cast<std::size_t>(shards)));
      EXPECT_EQ(result.differences, 0);
      for (const LoadedCheckpoint& loaded : result.loaded) {
        EXPECT_EQ(loaded.progress, progress_at(1));
        ASSERT_EQ(loaded.passed_over.size(), 1U);
        EXPECT_PRED2(says, loaded.passed_over[0], "step-00000002 is not used: ");
        EXPECT_PRED2(says, loaded.passed_over[0], reason);
      }
      for (const std::string& error : load(newest_, layout).errors) {
        EXPECT_PRED2(says, error, "step-00000002 cannot be used: ");
        EXPECT_PRED2(says, error, reason);
        EXPECT_FALSE(error.starts_with("not the input")) << error;
      }
    }
  }

  TestLayout layout_ = layout_of({4, 4}, 2);
  fs::path newest_ = folder_ / "step-00000002";
  fs::path shard_ = newest_ / "rank-00001-of-00002.safetensors";
};

TEST_F(DamageTest, TornFile) {
  const auto size = fs::file_size(shard_);
  fs::resize_file(shard_, size - 5);
  expect_named("rank-00001-of-00002.safetensors: has " + std::to_string(size - 5) + " bytes instead of the " +
               std::to_string(size));
}

TEST_F(DamageTest, AlteredByteOfTheData) {
  flip_byte(shard_, fs::file_size(shard_) - 9);
  expect_named("rank-00001-of-00002.safetensors: block 0 (bytes 0 to ");
}

TEST_F(DamageTest, AlteredByteOfTheHeader) {
  flip_byte(shard_, 20);
  expect_named("was altered");
}

TEST_F(DamageTest, MissingFile) {
  fs::remove(shard_);
  expect_named("rank-00001-of-00002.safetensors: No such file");
}

TEST_F(DamageTest, PipeInTheFilesPlace) {
  fs::remove(shard_);
  ASSERT_EQ(::mkfifo(shard_.c_str(), 0600), 0);
  expect_named("is no regular file");
}

TEST_F(DamageTest, MissingIndex) {
  fs::remove(newest_ / kIndexName);
  expect_named("index.json: is missing");
}

TEST_F(DamageTest, TornIndex) {
  fs::resize_file(newest_ / kIndexName, fs::file_size(newest_ / kIndexName) / 2);
  expect_named("index.json: is incomplete");
}

TEST_F(DamageTest, AlteredIndex) {
  flip_byte(newest_ / kIndexName, 100);
  expect_named("index.json: was altered");
}

TEST_F(DamageTest, NothingLeft) {
  for (const auto& entry : list_checkpoints(folder_)) flip_byte(entry.path / kIndexName, 100);
  const std::string error = load(folder_, layout_).errors[0];
  EXPECT_PRED2(says, error, "no checkpoint in this folder can be used: ");
  EXPECT_PRED2(says, error, "step-00000001 is not used");
}

TEST_F(DamageTest, FilesOutsideTheFolderAreRefused) {
  for (const std::string name : {"../rank", "/etc/passwd", "..", "", "a/b"}) {
    CheckpointIndex index = read_index(folder_ / "step-00000001");
    index.files[1].name = name;
    write_whole(newest_ / kIndexName, index_text(index));
    EXPECT_PRED2(says, load(newest_, layout_).errors[0], "is no plain file name");
  }
}

// --- any bytes ---

// Loads on one rank; fails where anything but success or a refusal of the input comes out.
void expect_no_crash(const fs::path& checkpoint) {
  const LoadResult result = load(checkpoint, layout_of({8}, 1));
  RC_ASSERT(!result.errors[0].starts_with("not the input"));
}

struct SmallRun : CheckpointTest {
  SmallRun() { save(folder_, layout_of({4, 4}, 2), 1); }
  ~SmallRun() override = default;
  void TestBody() override {}
  fs::path checkpoint() const { return folder_ / "step-00000001"; }
};

std::string with_flips(std::string text, std::size_t flips) {
  for (std::size_t i = 0; i < flips; ++i) {
    const auto at = *rc::gen::inRange<std::size_t>(0, text.size());
    text[at] = static_cast<char>(text[at] ^ *rc::gen::inRange(1, 256));
  }
  return text;
}

// One number of the text replaced by one that hurts.
std::string with_hostile_number(const std::string& text) {
  static const std::regex kNumber("-?[0-9]+");
  static const std::array<std::string, 10> kHostile = {"-1", "0", "1", "9223372036854775807", "-9223372036854775808",
      "18446744073709551616", "4611686018427387904", "1e300", "1.5", "null"};
  const auto count = std::distance(std::sregex_iterator(text.begin(), text.end(), kNumber), {});
  auto match = std::sregex_iterator(text.begin(), text.end(), kNumber);
  std::advance(match, *rc::gen::inRange<std::ptrdiff_t>(0, count));
  const std::string& number = kHostile[*rc::gen::inRange<std::size_t>(0, kHostile.size())];
  return text.substr(0, static_cast<std::size_t>(match->position())) + number +
         text.substr(static_cast<std::size_t>(match->position() + match->length()));
}

RC_GTEST_PROP(DamageProperty, AnAlteredIndexIsRefused, ()) {
  static const SmallRun kRun;
  static const std::string kText = content_of(kRun.checkpoint() / kIndexName);
  const std::string text = with_flips(kText, *rc::gen::inRange<std::size_t>(1, 4));
  if (text == kText) return;
  try {
    parse_index(text, "index.json");
    RC_FAIL("an altered index was read");
  } catch (const Error& error) {
    RC_ASSERT(error.exit_code() == ExitCode::kInvalidInput);
  }
}

// The tail with the checksum stays, and the checksum is made to fit: all other checks are on their own.
RC_GTEST_PROP(DamageProperty, AHostileIndexIsRefusedOrRead, ()) {
  static const SmallRun kRun;
  static const std::string kText = content_of(kRun.checkpoint() / kIndexName);
  const std::size_t tail = kText.rfind("  \"checksum\"");
  std::string text = *rc::gen::arbitrary<bool>()
                         ? with_hostile_number(kText.substr(0, tail))
                         : with_flips(kText.substr(0, tail), *rc::gen::inRange<std::size_t>(1, 3));
  write_whole(kRun.checkpoint() / kIndexName, seal_index(text + kText.substr(tail)));
  expect_no_crash(kRun.checkpoint());
}

RC_GTEST_PROP(DamageProperty, AHostileHeaderIsRefusedOrRead, ()) {
  static const SmallRun kRun;
  static const std::string kShard = content_of(kRun.checkpoint() / "rank-00000-of-00002.safetensors");
  static const CheckpointIndex kIndex = read_index(kRun.checkpoint());
  static const auto kFront = static_cast<std::size_t>(
      read_safetensors_header(kRun.checkpoint() / "rank-00000-of-00002.safetensors").data_begin);
  std::string shard = kShard;
  if (*rc::gen::arbitrary<bool>()) {
    shard = with_flips(kShard.substr(0, kFront), *rc::gen::inRange<std::size_t>(1, 3)) + kShard.substr(kFront);
  } else {
    shard = kShard.substr(0, 8) + with_hostile_number(kShard.substr(8, kFront - 8)) + kShard.substr(kFront);
  }
  const fs::path path = kRun.checkpoint() / "rank-00000-of-00002.safetensors";
  write_whole(path, shard);
  CheckpointIndex index = kIndex;
  index.files[0].written = {static_cast<std::int64_t>(shard.size()), {checksum_of(shard)}};
  write_whole(kRun.checkpoint() / kIndexName, index_text(index));
  expect_no_crash(kRun.checkpoint());
  try {
    read_safetensors_header(path);
  } catch (const Error& error) {
    RC_ASSERT(error.exit_code() == ExitCode::kInvalidInput);
  }
}

}
}
