#include "exec/data/token_data.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "tests/support/temporary_folder.h"

namespace foreshard::token_data_test {
namespace {

namespace fs = std::filesystem;

class TokenDataTest : public testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& bytes) const { return folder_.write(name, bytes); }
  template <typename Id>
  fs::path write_ids(const std::string& name, const std::vector<Id>& ids) const {
    return write(name, {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id)});
  }

  TemporaryFolder folder_;
};

std::string text_of(std::size_t length) {
  std::string text;
  while (text.size() < length) text += static_cast<char>('a' + text.size() * 7 % 26);
  return text;
}

std::string error_of(const auto& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput) << error.what();
    return error.what();
  }
  return "no error";
}

struct Sample {
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> labels;
};

Sample training(const TokenData& data, std::int64_t sample, std::size_t sequence) {
  Sample result{std::vector<std::int64_t>(sequence), std::vector<std::int64_t>(sequence)};
  data.read_training(sample, result.tokens, result.labels);
  return result;
}

Sample held_back(const TokenData& data, std::int64_t sample, std::size_t sequence) {
  Sample result{std::vector<std::int64_t>(sequence), std::vector<std::int64_t>(sequence)};
  data.read_held_back(sample, result.tokens, result.labels);
  return result;
}

// One function, as EXPECT_PRED2 takes it.
bool says(const std::string& text, const std::string& part) { return contains(text, part); }

TEST_F(TokenDataTest, LabelsAreTheNextTokens) {
  const std::string text = text_of(103);
  const TokenData data(write("a.txt", text), {.sequence = 10, .vocabulary = 256});
  EXPECT_EQ(data.training_samples(), 10);
  EXPECT_EQ(data.held_back_samples(), 0);
  for (std::int64_t i = 0; i < 25; ++i) {
    const Sample sample = training(data, i, 10);
    const auto first = static_cast<std::size_t>(data.window(i) * 10);
    for (std::size_t k = 0; k < 10; ++k) {
      EXPECT_EQ(sample.tokens[k], text[first + k]);
      EXPECT_EQ(sample.labels[k], text[first + k + 1]);
    }
  }
}

TEST_F(TokenDataTest, AnEpochHasEveryWindowOnceInAnOrderOfItsOwn) {
  const TokenData data(write("a.txt", text_of(1001)), {.sequence = 10, .vocabulary = 256});
  std::vector<std::vector<std::int64_t>> epochs(3);
  for (std::int64_t i = 0; i < 300; ++i) epochs[static_cast<std::size_t>(i / 100)].push_back(data.window(i));
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  for (const auto& epoch : epochs) {
    EXPECT_FALSE(std::ranges::is_sorted(epoch));
    EXPECT_EQ(std::set<std::int64_t>(epoch.begin(), epoch.end()).size(), 100U);
  }
  const TokenData other(folder_ / "a.txt", {.sequence = 10, .vocabulary = 256, .seed = 1});
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < 100; ++i) order.push_back(other.window(i));
  EXPECT_NE(order, epochs[0]);
}

// A sample is named by its number alone: however the numbers are dealt to ranks, a step has the same samples.
TEST_F(TokenDataTest, RanksTogetherReadWhatOneRankReads) {
  const fs::path path = write("a.txt", text_of(2000));
  const TokenDataOptions options{.sequence = 8, .vocabulary = 256, .seed = 5};
  std::vector<std::vector<std::int64_t>> alone;
  const TokenData one(path, options);
  for (std::int64_t i = 0; i < 64; ++i) alone.push_back(training(one, i, 8).tokens);
  for (const std::int64_t world : {2, 4, 8}) {
    std::vector<std::vector<std::int64_t>> together(64);
    for (std::int64_t rank = 0; rank < world; ++rank) {
      const TokenData data(path, options);
      for (std::int64_t i = rank; i < 64; i += world) {
        together[static_cast<std::size_t>(i)] = training(data, i, 8).tokens;
      }
    }
    EXPECT_EQ(together, alone) << world;
  }
}

TEST_F(TokenDataTest, HeldBackTokensAreNeverTrainedOn) {
  std::vector<std::uint16_t> ids(1000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint16_t>(i);
  const fs::path path = write_ids("a.bin", ids);
  for (const double share : {0.001, 0.1, 0.37, 0.9}) {
    const TokenData data(path, {.sequence = 9, .vocabulary = 1000, .held_back = share});
    ASSERT_GE(data.held_back_samples(), 1);
    std::int64_t last_trained = 0;
    for (std::int64_t i = 0; i < data.training_samples(); ++i) {
      last_trained = std::max(last_trained, training(data, i, 9).labels.back());
    }
    for (std::int64_t i = 0; i < data.held_back_samples(); ++i) {
      const Sample sample = held_back(data, i, 9);
      EXPECT_GT(sample.tokens.front(), last_trained);
      EXPECT_EQ(sample.labels.back(), sample.tokens.back() + 1);
    }
  }
}

TEST_F(TokenDataTest, ReadsWideAndNarrowIds) {
  const fs::path narrow = write_ids<std::uint16_t>("a.bin", {1, 65535, 3, 4});
  const TokenStore u16(narrow, TokenFormat::kAuto, 65536);
  EXPECT_EQ(u16.format(), TokenFormat::kU16);
  std::vector<std::int64_t> tokens(4);
  u16.read(0, tokens);
  EXPECT_EQ(tokens, (std::vector<std::int64_t>{1, 65535, 3, 4}));

  const fs::path wide = write_ids<std::uint32_t>("b.bin", {1, 100000, 3});
  const TokenStore u32(wide, TokenFormat::kAuto, 100001);
  EXPECT_EQ(u32.format(), TokenFormat::kU32);
  tokens.resize(2);
  u32.read(1, tokens);
  EXPECT_EQ(tokens, (std::vector<std::int64_t>{100000, 3}));
  // A small vocabulary in wide ids, and ids as bytes, are there for those who ask.
  EXPECT_EQ(TokenStore(write_ids<std::uint32_t>("c.bin", {1, 2}), TokenFormat::kU32, 3).size(), 2);
  EXPECT_EQ(TokenStore(narrow, TokenFormat::kBytes, 256).size(), 8);
}

TEST_F(TokenDataTest, AFolderIsItsTextsByPath) {
  write("texts/b/two.txt", "22");
  write("texts/a.txt", "1");
  write("texts/b.txt", "3");  // "b.txt" is before "b/two.txt", byte by byte
  write("texts/.git/config", "hidden");
  write("texts/.hidden", "hidden");
  write("texts/code.o", std::string("ELF\0\0", 5));
  fs::create_symlink(folder_.path(), folder_ / "texts/loop");
  ASSERT_EQ(::mkfifo((folder_ / "texts/pipe").c_str(), 0600), 0);
  const TokenStore store(folder_ / "texts", TokenFormat::kAuto, 256);
  std::vector<std::int64_t> tokens(4);
  ASSERT_EQ(store.size(), 4);
  store.read(0, tokens);
  EXPECT_EQ(tokens, (std::vector<std::int64_t>{'1', '3', '2', '2'}));
  EXPECT_EQ(store.description(), "3 files, 4 bytes; 1 left out, the first of them code.o (not text)");
}

TEST_F(TokenDataTest, TheFingerprintSeesEveryToken) {
  const auto of = [this](const std::string& text) {
    return TokenStore(write("f.txt", text), TokenFormat::kAuto, 256).fingerprint();
  };
  EXPECT_EQ(of("abc"), of("abc"));
  EXPECT_NE(of("abc"), of("abd"));
  EXPECT_NE(of("abc"), of("abcd"));
}

TEST_F(TokenDataTest, NamesWhatIsWrong) {
  const auto open = [](const fs::path& path, TokenDataOptions options) {
    return error_of([&] { TokenData(path, options); });
  };
  const TokenDataOptions bytes{.sequence = 4, .vocabulary = 256};
  EXPECT_PRED2(says, open(folder_ / "none.txt", bytes), "none.txt: no such file");
  EXPECT_PRED2(says, open(write("empty.txt", ""), bytes), "empty.txt: is empty");
  fs::create_directory(folder_ / "bare");
  EXPECT_PRED2(says, open(folder_ / "bare", bytes), "has no tokens (0 files");
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_PRED2(says, open(folder_ / "pipe", bytes), "neither a regular file nor");
  EXPECT_PRED2(says, open(write("short.txt", "abcd"), bytes), "4 tokens are too few for one sample of 4 + 1");
  EXPECT_PRED2(says, open(write("odd.bin", "abc"), bytes), "3 bytes, which is no mult");
  EXPECT_PRED2(says,
      open(write("x.txt",
               "ab\xC8"
               "ab"),
          {.sequence = 4, .vocabulary = 128}),
      "token 2 is 200, but the model's vocabulary has only the ids 0 to 127");
  EXPECT_PRED2(says, open(write_ids<std::uint16_t>("x.bin", {1, 2, 50, 4, 5}), {.sequence = 4, .vocabulary = 50}),
      "token 2 is 50");
  EXPECT_PRED2(says, open(write("six.txt", "abcdef"), {.sequence = 4, .vocabulary = 256, .held_back = 0.1}),
      "beside the 5 tokens that are held back");
  EXPECT_PRED2(says, open(folder_.path(), {.sequence = 4, .vocabulary = 256, .format = TokenFormat::kU16}),
      "is a folder, which is read as bytes, not as u16");
  const TokenData data(write("many.txt", text_of(41)), bytes);
  EXPECT_PRED2(
      says, error_of([&] { data.check_batch(11); }), "41 tokens to train on are 10 samples of 4, fewer than the 11");
  data.check_batch(10);
  EXPECT_THROW(parse_token_format("u8"), Error);
  EXPECT_EQ(parse_token_format("u32"), TokenFormat::kU32);
}

TEST_F(TokenDataTest, AFileThatShrinksIsAnErrorAndNoSignal) {
  const fs::path path = write("a.txt", text_of(10000));
  const TokenData data(path, {.sequence = 9, .vocabulary = 256});
  fs::resize_file(path, 5);
  EXPECT_PRED2(says, error_of([&] {
    for (std::int64_t i = 0; i < 10; ++i) training(data, i, 9);
  }),
      "it was longer when it was opened");
}

TEST(Shuffled, IsPinnedSinceRunsResumeByIt) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < 10; ++i) order.push_back(shuffled(i, 10, 42));
  EXPECT_EQ(order, (std::vector<std::int64_t>{9, 2, 0, 4, 3, 1, 6, 8, 7, 5}));
}

RC_GTEST_PROP(ShuffledProperty, IsABijection, ()) {
  const auto count = *rc::gen::inRange<std::int64_t>(1, 3000);
  const auto key = *rc::gen::arbitrary<std::uint64_t>();
  std::vector<bool> seen(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t to = shuffled(i, count, key);
    RC_ASSERT(to >= 0 && to < count);
    RC_ASSERT(!seen[static_cast<std::size_t>(to)]);
    seen[static_cast<std::size_t>(to)] = true;
  }
}

}
}
