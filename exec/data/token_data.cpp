// The split is a token position; a part of t tokens has (t - 1) / sequence windows. A sample is its
// inputs, read from the store, and its labels: the inputs moved by one, and one more token.

#include "exec/data/token_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "sim/base/error.h"
#include "sim/base/hash.h"

namespace foreshard {

TokenData::TokenData(const std::filesystem::path& path, const TokenDataOptions& options)
    : store_(path, options.format, options.vocabulary), sequence_(options.sequence), seed_(options.seed) {
  FORESHARD_CHECK(sequence_ > 0, "a sample has at least one token");
  FORESHARD_CHECK(options.held_back >= 0 && options.held_back < 1, "the held-back share lies in [0, 1)");
  const std::int64_t size = store_.size();
  std::int64_t held_back = 0;
  if (options.held_back > 0) {
    held_back = static_cast<std::int64_t>(as_double(size) * options.held_back);
    held_back = std::max(held_back, sequence_ + 1);
  }
  split_ = size - held_back;
  if (split_ < sequence_ + 1) {
    const std::string beside = held_back > 0 ? fmt::format(" beside the {} tokens that are held back", held_back) : "";
    throw invalid_input(
        "training data {}: {} tokens are too few for one sample of {} + 1{}; use more data or a shorter sequence",
        path.string(), size, sequence_, beside);
  }
  training_samples_ = (split_ - 1) / sequence_;
  held_back_samples_ = held_back > 0 ? (held_back - 1) / sequence_ : 0;
}

void TokenData::check_batch(std::int64_t global_batch) const {
  if (training_samples_ >= global_batch) return;
  throw invalid_input(
      "training data {}: its {} tokens to train on are {} samples of {}, fewer than the {} of one step; use more data, "
      "a shorter sequence or a smaller batch",
      store_.path().string(), split_, training_samples_, sequence_, global_batch);
}

std::int64_t TokenData::window(std::int64_t sample) const {
  FORESHARD_CHECK(sample >= 0, "samples count from 0");
  const std::int64_t epoch = sample / training_samples_;
  return shuffled(sample % training_samples_, training_samples_, Fingerprint().add(seed_).add(epoch).value());
}

void TokenData::read_training(
    std::int64_t sample, std::span<std::int64_t> tokens, std::span<std::int64_t> labels) const {
  read(window(sample) * sequence_, tokens, labels);
}

void TokenData::read_held_back(
    std::int64_t sample, std::span<std::int64_t> tokens, std::span<std::int64_t> labels) const {
  FORESHARD_CHECK(sample >= 0 && sample < held_back_samples_, "no such held-back sample");
  read(split_ + sample * sequence_, tokens, labels);
}

void TokenData::read(std::int64_t first, std::span<std::int64_t> tokens, std::span<std::int64_t> labels) const {
  const auto length = at(sequence_);
  FORESHARD_CHECK(tokens.size() == length && labels.size() == length, "tokens and labels have the length of a sample");
  store_.read(first, tokens);
  std::copy(tokens.begin() + 1, tokens.end(), labels.begin());
  store_.read(first + sequence_, labels.last(1));
}

// A Feistel network on 2k bits, the smallest even number of bits that holds `count`, permutes up to
// 4 x count numbers; a result outside [0, count) is permuted again until it falls inside (cycle
// walking), which keeps the whole a bijection. The round function is the Fingerprint of key, round
// and half. Black, Rogaway: "Ciphers with Arbitrary Finite Domains", CT-RSA 2002.

namespace {

constexpr std::int64_t kRounds = 6;

}

std::int64_t shuffled(std::int64_t index, std::int64_t count, std::uint64_t key) {
  FORESHARD_CHECK(index >= 0 && index < count, "a position outside the order");
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(count - 1)));
  const int half = (bits + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half;
    std::uint64_t right = value & mask;
    for (std::int64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t mixed =
          Fingerprint().add(static_cast<std::int64_t>(key)).add(round).add(static_cast<std::int64_t>(right)).value();
      const std::uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    value = (left << half) | right;
  } while (value >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(value);
}

}
