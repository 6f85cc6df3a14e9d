// Small runs to save and load: a model of a few parameters, laid out by any number of shards.
//
// Every element's value is a function of its parameter, array, number and step, so that a loaded
// state is checked element by element whatever its layout.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "exec/comm/world.h"
#include "exec/state/checkpoint.h"
#include "exec/state/checkpoint_reader.h"
#include "sim/base/error.h"
#include "sim/base/hash.h"
#include "sim/base/lookup.h"
#include "tests/support/temporary_folder.h"

namespace foreshard::state_test {

// The ranks of one process, as far as checkpoints need them: they gather.
class GatherOnlyWorld : public World {
 public:
  struct Shared {
    explicit Shared(int size) : texts(static_cast<std::size_t>(size)), barrier(size) {}
    std::vector<std::string> texts;
    std::barrier<> barrier;
  };
  GatherOnlyWorld(std::shared_ptr<Shared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(shared_->texts.size()); }
  std::unique_ptr<Transport> connect(const std::string&, const std::vector<int>&) override { return nullptr; }
  std::vector<std::string> gather(const std::string& topic, const std::string& text) override {
    shared_->texts[static_cast<std::size_t>(rank_)] = topic + "\n" + text;
    shared_->barrier.arrive_and_wait();
    std::vector<std::string> texts = shared_->texts;
    shared_->barrier.arrive_and_wait();
    for (std::string& each : texts) {
      if (!each.starts_with(topic + "\n")) {
        ADD_FAILURE() << "another topic than " << topic;
      }
      each.erase(0, topic.size() + 1);
    }
    return texts;
  }
  void announce_failure(const std::string&) override {}
  std::optional<std::string> announced_failure(std::chrono::milliseconds) override { return std::nullopt; }

 private:
  std::shared_ptr<Shared> shared_;
  int rank_;
};

// Runs `work(rank, world)` on that many ranks. Returns what each threw ("" for nothing).
inline std::vector<std::string> on_ranks(int size, const std::function<void(int, World&)>& work) {
  const auto shared = std::make_shared<GatherOnlyWorld::Shared>(size);
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      GatherOnlyWorld world(shared, rank);
      try {
        work(rank, world);
      } catch (const Error& error) {
        const bool is_input = error.exit_code() == ExitCode::kInvalidInput;
        errors[static_cast<std::size_t>(rank)] = (is_input ? "" : "not the input: ") + std::string(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

struct TestParameter {
  std::string name;
  std::vector<std::int64_t> shape;
};

struct TestLayout {
  std::vector<std::vector<TestParameter>> units;
  std::int64_t shards = 1;
  std::int64_t replicas = 1;
  std::int64_t alignment = 1;  // of parameters, elements
  DType moments = DType::kFp32;
};

inline std::vector<TestParameter> test_parameters() {
  return {{"embedding", {11, 7}}, {"scale", {}}, {"block.0.w", {13, 5}}, {"block.0.b", {5}}, {"block.1.w", {13, 5}},
      {"block.1.b", {5}}, {"none", {0, 4}}, {"head", {17, 3}}};
}

inline TestLayout layout_of(const std::vector<std::size_t>& unit_sizes, std::int64_t shards) {
  const std::vector<TestParameter> parameters = test_parameters();
  TestLayout layout = {.shards = shards};
  std::size_t next = 0;
  for (const std::size_t size : unit_sizes) {
    layout.units.emplace_back();
    for (std::size_t i = 0; i < size; ++i) layout.units.back().push_back(parameters[next++]);
  }
  EXPECT_EQ(next, parameters.size());
  return layout;
}

// One rank's state and the memory behind it.
struct TestRank {
  TrainingState state;
  std::deque<std::vector<std::byte>> memory;
};

inline TestRank make_rank(const TestLayout& layout, std::int64_t world_rank) {
  TestRank rank;
  rank.state.shards = layout.shards;
  rank.state.replicas = layout.replicas;
  rank.state.shard_index = world_rank % layout.shards;
  rank.state.replica_index = world_rank / layout.shards;
  for (std::size_t u = 0; u < layout.units.size(); ++u) {
    StateUnit unit = {.name = "u" + std::to_string(u)};
    std::int64_t offset = 0;
    for (const TestParameter& parameter : layout.units[u]) {
      offset = (offset + layout.alignment - 1) / layout.alignment * layout.alignment;
      const std::int64_t numel = numel_of(parameter.shape);
      unit.parameters.push_back({parameter.name, parameter.shape, offset, numel});
      offset += numel;
    }
    unit.shard_numel = (offset + layout.shards - 1) / layout.shards;
    for (const auto& [name, dtype] : {std::pair("master", DType::kFp32), std::pair("exp_avg", layout.moments),
             std::pair("exp_avg_sq", layout.moments)}) {
      rank.memory.emplace_back(static_cast<std::size_t>(unit.shard_numel * size_of(dtype)));
      unit.arrays.push_back({name, dtype, rank.memory.back()});
    }
    rank.state.units.push_back(std::move(unit));
  }
  return rank;
}

inline float value_of(const std::string& parameter, const std::string& array, std::int64_t element, std::int64_t step) {
  const std::uint64_t hash = Fingerprint().add(parameter).add(array).add(element).add(step).value();
  return static_cast<float>(static_cast<std::int64_t>(hash % 2000003) - 1000001) / 1024.0F;
}

// Calls visit(array, bytes of the element, its value at that step; 0 for padding) for every element
// of the rank's shards.
inline void for_each_element(const TestRank& rank, std::int64_t step,
    const std::function<void(const StateArray&, std::span<std::byte>, float)>& visit) {
  for (const StateUnit& unit : rank.state.units) {
    const std::int64_t begin = rank.state.shard_index * unit.shard_numel;
    for (const StateArray& array : unit.arrays) {
      std::vector<float> values(static_cast<std::size_t>(unit.shard_numel));
      for (const StateParameter& parameter : unit.parameters) {
        for (std::int64_t i = 0; i < parameter.numel; ++i) {
          const std::int64_t at = parameter.offset + i - begin;
          if (at < 0 || at >= unit.shard_numel) continue;
          values[static_cast<std::size_t>(at)] = value_of(parameter.name, array.name, i, step);
        }
      }
      const auto size = static_cast<std::size_t>(size_of(array.dtype));
      for (std::size_t i = 0; i < values.size(); ++i) visit(array, array.data.subspan(i * size, size), values[i]);
    }
  }
}

inline void store(float value, DType dtype, std::span<std::byte> to) {
  convert(DType::kFp32, std::as_bytes(std::span(&value, 1)), dtype, to);
}

inline void fill(const TestRank& rank, std::int64_t step) {
  for_each_element(
      rank, step, [](const StateArray& array, std::span<std::byte> at, float value) { store(value, array.dtype, at); });
}

// The elements that are not what `step` has, where the array went through `stored` on its way.
inline std::int64_t count_differences(const TestRank& rank, std::int64_t step, DType stored_moments = DType::kFp32) {
  std::int64_t differences = 0;
  for_each_element(rank, step, [&](const StateArray& array, std::span<std::byte> at, float value) {
    const DType stored = array.name == "master" ? DType::kFp32 : stored_moments;
    std::byte through[4] = {};
    std::byte expected[4] = {};
    const auto stored_size = static_cast<std::size_t>(size_of(stored));
    store(value, stored, std::span(through).first(stored_size));
    convert(stored, std::span(through).first(stored_size), array.dtype, std::span(expected).first(at.size()));
    if (std::memcmp(expected, at.data(), at.size()) != 0) ++differences;
  });
  return differences;
}

inline RunProgress progress_at(std::int64_t step) {
  return RunProgress{.step = step,
      .next_sample = step * 8,
      .seed = -7,
      .metadata = {{"plan", "model: x\n\tbatch: \"1\" # \xC3\xA4\n"}, {"version", "0.1.0"}}};
}

// Saves that step with the layout; returns what each rank threw.
inline std::vector<std::string> save(
    const std::filesystem::path& folder, const TestLayout& layout, std::int64_t step, std::int64_t keep = 0) {
  return on_ranks(static_cast<int>(layout.shards * layout.replicas), [&](int rank, World& world) {
    const TestRank state = make_rank(layout, rank);
    fill(state, step);
    save_checkpoint({folder, keep}, state.state, progress_at(step), world);
  });
}

struct LoadResult {
  std::vector<std::string> errors;  // by rank
  std::vector<LoadedCheckpoint> loaded;
  std::int64_t differences = 0;  // of all ranks, from the step that was loaded
};

inline LoadResult load(
    const std::filesystem::path& path, const TestLayout& layout, DType stored_moments = DType::kFp32) {
  const std::int64_t world_size = layout.shards * layout.replicas;
  LoadResult result;
  result.loaded.resize(static_cast<std::size_t>(world_size));
  std::mutex mutex;
  result.errors = on_ranks(static_cast<int>(world_size), [&](int rank, World& world) {
    TestRank state = make_rank(layout, rank);
    for (auto& memory : state.memory) std::ranges::fill(memory, std::byte{0xA5});
    const LoadedCheckpoint loaded = load_checkpoint(path, state.state, world);
    const std::int64_t differences = count_differences(state, loaded.progress.step, stored_moments);
    const std::lock_guard lock(mutex);
    result.loaded[static_cast<std::size_t>(rank)] = loaded;
    result.differences += differences;
  });
  return result;
}

inline void write_whole(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline void flip_byte(const std::filesystem::path& path, std::size_t at) {
  std::string bytes = content_of(path);
  bytes.at(at) = static_cast<char>(bytes.at(at) ^ 0x10);
  write_whole(path, bytes);
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() : folder_(root_ / "run" / "checkpoints") {}

  // The names in the checkpoint folder, without the lock.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (entry.path().filename() != ".lock") names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }

  TemporaryFolder root_;
  std::filesystem::path folder_;
};

// One function, as EXPECT_PRED2 takes it.
inline bool says(const std::string& text, const std::string& part) { return contains(text, part); }

}
