// A range of a parameter is cut into runs that one part has (tensor parallel), each a range of its unit's buffer, which
// the shards cut into pieces, one file each. The pieces of a file are sorted by their place in it and read front to
// back, so that each block is read and verified once and one block per rank is in memory.

#include "exec/state/checkpoint_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "exec/memory/parameter_cut.h"
#include "exec/state/durable_file.h"
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

// Reading ranges of a file whose blocks have known checksums: no byte is handed out before its
// block has been read and compared.
// A range is served from the block it lies in, one block at a time. A block is read into memory,
// hashed there, and copied from there, so that what is handed out is what was verified.
class BlockReader {
 public:
  // Throws Error(kInvalidInput) where the file is missing, no regular file, or has another size
  // than `expected`, which must outlive the reader and have a checksum for every block.
  BlockReader(const std::filesystem::path& path, const WrittenFile& expected);
  ~BlockReader();
  BlockReader& operator=(BlockReader&&) = delete;  // nor is it copied

  // The bytes at `offset`, inside the file. Ascending offsets read each block once: the last block
  // is kept. Throws Error(kInvalidInput) naming file and block where it was altered.
  void read(std::int64_t offset, std::span<std::byte> bytes);

  std::int64_t bytes_read() const { return bytes_read_; }  // from the disk, whole blocks

 private:
  void load_block(std::int64_t block);

  std::filesystem::path path_;
  const WrittenFile* expected_;
  int descriptor_ = -1;
  std::int64_t loaded_ = -1;
  std::string block_;
  std::int64_t bytes_read_ = 0;
};

BlockReader::BlockReader(const std::filesystem::path& path, const WrittenFile& expected)
    : path_(path), expected_(&expected) {
  // Not blocking, so that a pipe in the file's place is refused instead of waited for.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) throw invalid_input("{}", file_error(path, errno));
  struct stat status = {};
  std::string wrong;
  if (::fstat(descriptor_, &status) != 0) {
    wrong = file_error(path, errno);
  } else if (!S_ISREG(status.st_mode)) {
    wrong = fmt::format("{}: is no regular file", path.string());
  } else if (status.st_size != expected.bytes) {
    wrong = fmt::format(
        "{}: has {} bytes instead of the {} that were written", path.string(), status.st_size, expected.bytes);
  }
  if (wrong.empty()) return;
  ::close(descriptor_);  // the destructor of a half-made object does not run
  throw invalid_input("{}", wrong);
}

BlockReader::~BlockReader() { ::close(descriptor_); }

void BlockReader::read(std::int64_t offset, std::span<std::byte> bytes) {
  const auto count = std::ssize(bytes);
  FORESHARD_CHECK(offset >= 0 && count <= expected_->bytes && offset <= expected_->bytes - count,
      "a range beyond the end of a checkpoint's file");
  while (!bytes.empty()) {
    const std::int64_t block = offset / kChecksumBlock;
    if (block != loaded_) load_block(block);
    const auto begin = at(offset % kChecksumBlock);
    const std::size_t take = std::min(bytes.size(), block_.size() - begin);
    std::memcpy(bytes.data(), block_.data() + begin, take);
    bytes = bytes.subspan(take);
    offset += static_cast<std::int64_t>(take);
  }
}

void BlockReader::load_block(std::int64_t block) {
  loaded_ = -1;
  const std::int64_t begin = block * kChecksumBlock;
  const std::int64_t end = std::min(begin + kChecksumBlock, expected_->bytes);
  block_.resize(at(end - begin));
  for (std::int64_t at = begin; at < end;) {
    const ssize_t count = ::pread(descriptor_, block_.data() + (at - begin), static_cast<std::size_t>(end - at), at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw invalid_input("{}", file_error(path_, errno));
    if (count == 0) throw invalid_input("{}: ends at byte {}", path_.string(), at);
    at += count;
    bytes_read_ += count;
  }
  if (checksum_of(block_) != expected_->checksums.at(at(block))) {
    throw invalid_input("{}: block {} (bytes {} to {}) was altered: its checksum is not the one that was written",
        path_.string(), block, begin, end - 1);
  }
  loaded_ = block;
}

constexpr std::size_t kConvertBytes = std::size_t{1} << 20;

const StateArray* find_array(const StateUnit& unit, const std::string& name) {
  const auto found = std::ranges::find(unit.arrays, name, &StateArray::name);
  return found == unit.arrays.end() ? nullptr : &*found;
}

SafetensorsHeader read_header(BlockReader& file, std::int64_t file_bytes, const std::string& file_name) {
  std::string length(at(std::min<std::int64_t>(8, file_bytes)), '\0');
  file.read(0, std::as_writable_bytes(std::span(length)));
  std::string json(at(safetensors_header_bytes(length, file_bytes, file_name)), '\0');
  file.read(8, std::as_writable_bytes(std::span(json)));
  return parse_safetensors_header(json, file_bytes, file_name);
}

// Where the tensor of that array begins in the file.
std::int64_t tensor_begin(
    const SafetensorsHeader& header, const StateUnit& unit, const StateArray& array, const std::string& file_name) {
  const std::string name = tensor_name(unit, array);
  const SafetensorsEntry* const entry = header.find(name);
  if (entry == nullptr || entry->dtype != safetensors_dtype(array.dtype) ||
      entry->shape != std::vector{unit.shard_numel}) {
    throw invalid_input("{}: has no tensor {} of {} {} elements, which index.json names", file_name, quote(name),
        unit.shard_numel, to_string(array.dtype));
  }
  return entry->begin;
}

void read_converted(BlockReader& file, std::int64_t offset, DType stored, DType wanted, std::span<std::byte> to) {
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

}

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

std::vector<std::vector<CheckpointReader::Piece>> CheckpointReader::cut(std::span<const StateRange> ranges) const {
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
  for (std::size_t shard = 0; shard < pieces.size(); ++shard)
    if (!pieces[shard].empty()) read_file(shard, std::move(pieces[shard]));
}

void CheckpointReader::read_file(std::size_t shard, std::vector<Piece> pieces) {
  const CheckpointFile& entry = index_.files[shard];
  const std::filesystem::path path = path_ / entry.name;
  BlockReader file(path, entry.written);
  const SafetensorsHeader header = read_header(file, entry.written.bytes, path.string());
  for (Piece& piece : pieces) {
    piece.first =
        tensor_begin(header, *piece.unit, *piece.array, path.string()) + piece.first * size_of(piece.array->dtype);
  }
  std::ranges::sort(pieces, {}, &Piece::first);
  for (const Piece& piece : pieces) read_converted(file, piece.first, piece.array->dtype, piece.dtype, piece.to);
  bytes_read_ += file.bytes_read();
}

}
