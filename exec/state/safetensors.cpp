// The header is read with the strict JSON reader, its entries sorted by offset and walked once:
// each must begin where the one before ended and the last must end with the file. Products and sums
// of numbers from the file are checked for overflow before they are compared.

#include "exec/state/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/base/config.h"
#include "sim/base/error.h"
#include "sim/base/json.h"
#include "sim/base/spelling.h"
#include "sim/base/units.h"

namespace foreshard {
namespace {

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kMaxHeaderBytes = std::int64_t{16} << 20;
constexpr std::size_t kAlignment = 64;

struct StoredType {
  std::string_view name;
  std::int64_t bytes;
};
constexpr std::array<StoredType, 15> kStoredTypes = {
    {{"F64", 8}, {"I64", 8}, {"U64", 8}, {"F32", 4}, {"I32", 4}, {"U32", 4}, {"F16", 2}, {"BF16", 2}, {"I16", 2},
        {"U16", 2}, {"I8", 1}, {"U8", 1}, {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}}};

std::int64_t bytes_of(const ConfigNode& dtype) {
  const std::string name = dtype.as_string();
  const auto* const type = std::ranges::find(kStoredTypes, name, &StoredType::name);
  if (type == kStoredTypes.end()) throw dtype.error(quote(name) + " is no dtype of safetensors");
  return type->bytes;
}

SafetensorsEntry read_entry(const ConfigItem& item, std::int64_t data_begin) {
  const ConfigNode& node = item.value;
  node.allow_only({"dtype", "shape", "data_offsets"});
  SafetensorsEntry entry = {.name = item.key};
  std::int64_t bytes = bytes_of(node.at("dtype"));
  entry.dtype = node.at("dtype").as_string();
  const ConfigNode shape = node.at("shape");
  for (const ConfigNode& extent : shape.elements()) {
    entry.shape.push_back(extent.as_int(0));
    bytes = checked_multiply(bytes, entry.shape.back());
  }
  const ConfigNode offsets = node.at("data_offsets");
  if (offsets.elements().size() != 2) throw offsets.error("is no pair", "[begin, end]");
  entry.begin = checked_add(data_begin, offsets.elements()[0].as_int(0));
  entry.end = checked_add(data_begin, offsets.elements()[1].as_int(0));
  if (entry.end < entry.begin || entry.end - entry.begin != bytes)
    throw offsets.error(fmt::format("are not {} bytes apart, which dtype and shape need", bytes));
  return entry;
}

void check_order(const SafetensorsHeader& header, std::int64_t file_bytes, const std::string& file_name) {
  std::int64_t end = header.data_begin;
  for (const SafetensorsEntry& entry : header.tensors) {
    if (entry.begin != end) {
      throw invalid_input("{}: tensor {} begins at byte {}, but the data before it ends at {}", file_name,
          quote(entry.name), entry.begin, end);
    }
    end = entry.end;
  }
  if (end != file_bytes)
    throw invalid_input("{}: the tensors end at byte {}, but the file has {} bytes", file_name, end, file_bytes);
}

}

const SafetensorsEntry* SafetensorsHeader::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &SafetensorsEntry::name);
  return found == tensors.end() ? nullptr : &*found;
}

const char* safetensors_dtype(DType dtype) { return word_at(dtype, {"BF16", "F16", "F32"}); }

std::int64_t safetensors_header_bytes(
    std::string_view first_bytes, std::int64_t file_bytes, const std::string& file_name) {
  if (std::ssize(first_bytes) < kLengthBytes || file_bytes < kLengthBytes) {
    throw invalid_input(
        "{}: is no safetensors file: it has only {} bytes", file_name, std::min(file_bytes, std::ssize(first_bytes)));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, first_bytes.data(), sizeof length);
  const auto room = static_cast<std::uint64_t>(std::min(file_bytes - kLengthBytes, kMaxHeaderBytes));
  if (length > room) {
    throw invalid_input("{}: is no safetensors file: its header would have {} bytes, but at most {} are possible",
        file_name, length, room);
  }
  return static_cast<std::int64_t>(length);
}

SafetensorsHeader parse_safetensors_header(
    std::string_view json, std::int64_t file_bytes, const std::string& file_name) {
  const ConfigNode root = parse_json(json, file_name);
  SafetensorsHeader header = {.data_begin = kLengthBytes + std::ssize(json)};
  for (const ConfigItem& item : root.items()) {
    if (item.key == "__metadata__")
      for (const ConfigItem& pair : item.value.items()) header.metadata[pair.key] = pair.value.as_string();
    else header.tensors.push_back(read_entry(item, header.data_begin));
  }
  // An empty tensor may share its begin with the one after it.
  std::ranges::stable_sort(header.tensors,
      [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  check_order(header, file_bytes, file_name);
  return header;
}

SafetensorsHeader read_safetensors_header(const std::filesystem::path& path) {
  std::error_code error;
  const auto file_bytes = static_cast<std::int64_t>(std::filesystem::file_size(path, error));
  std::ifstream file(path, std::ios::binary);
  if (error || !file)
    throw invalid_input("{}: cannot be read{}", path.string(), error ? ": " + error.message() : std::string());
  const auto read = [&file](std::int64_t bytes) {
    std::string text(at(bytes), '\0');
    file.read(text.data(), bytes);
    text.resize(at(file.gcount()));
    return text;
  };
  const std::int64_t length = safetensors_header_bytes(read(kLengthBytes), file_bytes, path.string());
  return parse_safetensors_header(read(length), file_bytes, path.string());
}

std::string safetensors_front(
    std::span<const SafetensorsTensor> tensors, const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t begin = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    std::int64_t bytes = size_of(tensor.dtype);
    for (const std::int64_t extent : tensor.shape) bytes = checked_multiply(bytes, extent);
    FORESHARD_CHECK(bytes == std::ssize(tensor.bytes), "tensor " + tensor.name + " has other bytes than its shape");
    const std::int64_t end = checked_add(begin, bytes);
    header[tensor.name] = {
        {"dtype", safetensors_dtype(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  const std::size_t whole = (kLengthBytes + text.size() + kAlignment - 1) / kAlignment * kAlignment;
  text.resize(whole - kLengthBytes, ' ');
  const std::uint64_t length = text.size();
  std::string front(sizeof length, '\0');
  std::memcpy(front.data(), &length, sizeof length);
  return front + text;
}

}
