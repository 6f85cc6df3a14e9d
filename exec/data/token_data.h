// Training data as numbered samples, the same whatever the number of ranks.
//
// The tokens are split in two: the held-back part is the end of the data. Each part is cut into
// windows of `sequence` + 1 tokens that begin `sequence` apart, so that every token but a part's
// first is a label once; what is left over at the end of a part is not used. Training sample
// i >= 0 is in epoch i / training_samples(); every epoch has another order, chosen by the seed.
//
// Rank r of a run reads the samples of its share of the global batch; nothing here knows of ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "exec/data/token_store.h"

namespace foreshard {

struct TokenDataOptions {
  std::int64_t sequence = 0;    // tokens of a sample, at least 1
  std::int64_t vocabulary = 0;  // of the model: ids are 0..vocabulary - 1
  // Share of the tokens that is held back, 0 <= held_back < 1. Above zero it is at least a sample.
  double held_back = 0;
  std::int64_t seed = 0;
  TokenFormat format = TokenFormat::kAuto;
};

class TokenData {
 public:
  // Throws Error(kInvalidInput) as TokenStore does, and where there are too few tokens for one sample of each part.
  TokenData(const std::filesystem::path& path, const TokenDataOptions& options);

  // Throws Error(kInvalidInput) where an epoch has fewer samples than a step takes.
  void check_batch(std::int64_t global_batch) const;

  const TokenStore& store() const { return store_; }
  std::int64_t training_samples() const { return training_samples_; }  // of one epoch
  std::int64_t held_back_samples() const { return held_back_samples_; }

  // The window that training sample `sample` is, in [0, training_samples()).
  std::int64_t window(std::int64_t sample) const;

  // Both spans have `sequence` elements; labels[i] is the token after tokens[i].
  // Throws Error(kInvalidInput) where the file can no longer be read.
  void read_training(std::int64_t sample, std::span<std::int64_t> tokens, std::span<std::int64_t> labels) const;
  // `sample` in [0, held_back_samples()), in the order of the data.
  void read_held_back(std::int64_t sample, std::span<std::int64_t> tokens, std::span<std::int64_t> labels) const;

 private:
  void read(std::int64_t first, std::span<std::int64_t> tokens, std::span<std::int64_t> labels) const;

  TokenStore store_;
  std::int64_t sequence_;
  std::int64_t seed_;
  std::int64_t split_ = 0;  // the first token that is held back
  std::int64_t training_samples_ = 0;
  std::int64_t held_back_samples_ = 0;
};

// A random order of n things that needs no memory: a bijection of [0, n) chosen by a key.

// Where position `index` of the order that `key` chooses leads; `count` > index >= 0. The same on
// every machine, about 20 ns.
std::int64_t shuffled(std::int64_t index, std::int64_t count, std::uint64_t key);

}
