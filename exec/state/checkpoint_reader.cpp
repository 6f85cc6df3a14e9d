// A range of a parameter is cut into runs that one part has (tensor parallel), each a range of its
// unit's buffer, which the shards cut into pieces, one file each. The pieces of a file are sorted
// by their place in it and read front to back, so that each block is read and verified once and one
// block per rank is in memory.

#include "exec/state/checkpoint_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "exec/memory/parameter_cut.h"
#include "exec/state/block_reader.h"
#include "exec/state/convert.h"
#include "sim/base/error.h"
#include "sim/base/spelling.h"

namespace foreshard {

struct CheckpointReader::Piece {
  const StateUnit* unit = nullptr;
  const StateArray* array = nullptr;
  std::int64_t first = 0;  // element of the shard; later the byte of the file
  DType dtype = DType::kFp32;
  std::span<std::byte> to;
};

namespace {

constexpr std::size_t kConvertBytes = std::size_t{1} << 20;

const StateArray* find_array(const StateUnit& unit, const std::string& name) {
  const auto found = std::ranges::find(unit.arrays, name, &StateArray::name);
  return found == unit.arrays.end() ? nullptr : &*found;
}

SafetensorsHeader read_header(BlockReader& file, std::int64_t file_bytes,
                              const std::string& file_name) {
  std::string length(at(std::min<std::int64_t>(8, file_bytes)), '\0');
  file.read(0, std::as_writable_bytes(std::span(length)));
  std::string json(at(safetensors_header_bytes(length, file_bytes, file_name)), '\0');
  file.read(8, std::as_writable_bytes(std::span(json)));
  return parse_safetensors_header(json, file_bytes, file_name);
}

// Where the tensor of that array begins in the file.
std::int64_t tensor_begin(const SafetensorsHeader& header, const StateUnit& unit,
                          const StateArray& array, const std::string& file_name) {
  const std::string name = tensor_name(unit, array);
  const SafetensorsEntry* const entry = header.find(name);
  if (entry == nullptr || entry->dtype != safetensors_dtype(array.dtype) ||
      entry->shape != std::vector{unit.shard_numel}) {
    throw Error(ExitCode::kInvalidInput,
                fmt::format("{}: has no tensor {} of {} {} elements, which index.json names",
                            file_name, quote(name), unit.shard_numel, to_string(array.dtype)));
  }
  return entry->begin;
}

void read_converted(BlockReader& file, std::int64_t offset, DType stored, DType wanted,
                    std::span<std::byte> to) {
  if (stored == wanted) {
    file.read(offset, to);
    return;
  }
  const auto stored_size = at(size_of(stored));
  const auto wanted_size = at(size_of(wanted));
  std::vector<std::byte> chunk(std::min(kConvertBytes, to.size() / wanted_size * stored_size));
  while (!to.empty()) {
    const std::size_t count = std::min(to.size() / wanted_size, chunk.size() / stored_size);
    const std::span<std::byte> from = std::span(chunk).first(count * stored_size);
    file.read(offset, from);
    convert(stored, from, wanted, to.first(count * wanted_size));
    to = to.subspan(count * wanted_size);
    offset += std::ssize(from);
  }
}

}  // namespace

CheckpointReader::CheckpointReader(const std::filesystem::path& checkpoint)
    : path_(checkpoint), index_(read_index(checkpoint)) {
  for (std::size_t u = 0; u < index_.units.size(); ++u) {
    const std::vector<StateParameter>& parameters = index_.units[u].parameters;
    for (std::size_t p = 0; p < parameters.size(); ++p) places_[parameters[p].name] = {u, p};
  }
}

const StateParameter* CheckpointReader::find(const std::string& parameter) const {
  const auto place = places_.find(parameter);
  if (place == places_.end()) return nullptr;
  return &index_.units[place->second.unit].parameters[place->second.parameter];
}

bool CheckpointReader::has_array(const std::string& parameter, const std::string& array) const {
  const auto place = places_.find(parameter);
  return place != places_.end() && find_array(index_.units[place->second.unit], array) != nullptr;
}

std::vector<std::vector<CheckpointReader::Piece>> CheckpointReader::cut(
    std::span<const StateRange> ranges) const {
  std::vector<std::vector<Piece>> pieces(index_.files.size());
  for (const StateRange& range : ranges) {
    const auto place = places_.find(range.parameter);
    FORESHARD_CHECK(place != places_.end(), "the checkpoint has no parameter " + range.parameter);
    const StateUnit& unit = index_.units[place->second.unit];
    const StateParameter& parameter = unit.parameters[place->second.parameter];
    const StateArray* const array = find_array(unit, range.array);
    FORESHARD_CHECK(array != nullptr, "the checkpoint has no array " + range.array);
    const std::int64_t size = size_of(range.dtype);
    std::span<std::byte> rest = range.to;
    const std::int64_t count = std::ssize(rest) / size;
    const std::int64_t numel = parameter.numel * parameter.parts;
    FORESHARD_CHECK(range.first >= 0 && count <= numel && range.first <= numel - count,
                    "a range beyond the end of parameter " + range.parameter);
    const ParameterCut part = cut_of(parameter.shape, parameter.cut, parameter.parts, 0);
    std::int64_t element = range.first;
    while (!rest.empty()) {
      const PlaceInParts at = place_in_parts(part, element);
      const std::int64_t in_unit = parameter.offset + at.element;
      const std::int64_t shard = in_unit / unit.shard_numel;
      const std::int64_t first = in_unit % unit.shard_numel;
      const std::int64_t left = std::ssize(rest) / size;
      const std::int64_t take = std::min(part.run(at.element, left), unit.shard_numel - first);
      const auto bytes = static_cast<std::size_t>(take * size);
      pieces[static_cast<std::size_t>(at.part * index_.shards + shard)].push_back(
          {&unit, array, first, range.dtype, rest.first(bytes)});
      rest = rest.subspan(bytes);
      element += take;
    }
  }
  return pieces;
}

void CheckpointReader::read(std::span<const StateRange> ranges) {
  std::vector<std::vector<Piece>> pieces = cut(ranges);
  for (std::size_t shard = 0; shard < pieces.size(); ++shard) {
    if (!pieces[shard].empty()) read_file(shard, std::move(pieces[shard]));
  }
}

void CheckpointReader::read_file(std::size_t shard, std::vector<Piece> pieces) {
  const CheckpointFile& entry = index_.files[shard];
  const std::filesystem::path path = path_ / entry.name;
  BlockReader file(path, entry.written);
  const SafetensorsHeader header = read_header(file, entry.written.bytes, path.string());
  for (Piece& piece : pieces) {
    piece.first = tensor_begin(header, *piece.unit, *piece.array, path.string()) +
                  piece.first * size_of(piece.array->dtype);
  }
  std::ranges::sort(pieces, {}, &Piece::first);
  for (const Piece& piece : pieces) {
    read_converted(file, piece.first, piece.array->dtype, piece.dtype, piece.to);
  }
  bytes_read_ += file.bytes_read();
}

}  // namespace foreshard
