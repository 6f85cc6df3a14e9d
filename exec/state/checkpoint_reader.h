// Reads ranges of parameters from one checkpoint, whatever it was sharded by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "exec/state/checkpoint_index.h"
#include "exec/state/safetensors.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Elements [first, first + n) of a parameter's part of an array, where n elements of `dtype` fit
// into `to` (host memory).
struct StateRange {
  std::string parameter;
  std::string array;
  std::int64_t first = 0;
  DType dtype = DType::kFp32;
  std::span<std::byte> to;
};

class CheckpointReader {
 public:
  // Reads the index. Throws as read_index does.
  explicit CheckpointReader(const std::filesystem::path& checkpoint);

  const CheckpointIndex& index() const { return index_; }
  // nullptr where the checkpoint has no such parameter.
  const StateParameter* find(const std::string& parameter) const;
  bool has_array(const std::string& parameter, const std::string& array) const;

  // Every range must be inside a parameter and array of the index. Reads the blocks that hold the
  // ranges, each once, and the files' headers, and converts dtypes. Throws Error(kInvalidInput)
  // naming file and block where one is missing, short or altered; `to` then holds anything.
  void read(std::span<const StateRange> ranges);

  std::int64_t bytes_read() const { return bytes_read_; }  // without the index

 private:
  struct Place {
    std::size_t unit = 0;
    std::size_t parameter = 0;
  };
  struct Piece;

  std::vector<std::vector<Piece>> cut(std::span<const StateRange> ranges) const;
  void read_file(std::size_t shard, std::vector<Piece> pieces);

  std::filesystem::path path_;
  CheckpointIndex index_;
  std::map<std::string, Place> places_;  // by parameter
  std::int64_t bytes_read_ = 0;
};

// Elements from one floating-point dtype to another.

// `from` and `to` hold the same number of elements, in host memory, and do not overlap. Rounds to
// nearest, ties to even; overflow becomes infinity and NaN stays NaN. Equal dtypes copy the bytes.
void convert(DType from_dtype, std::span<const std::byte> from, DType to_dtype, std::span<std::byte> to);

}
