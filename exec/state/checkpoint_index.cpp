// The checksum is computed over the text with 16 zeros in its place, which is at a fixed distance
// from the end. The checksums of a file's blocks are one string of 16 digits per block: as separate
// values, those of a large model would be more than the JSON reader takes.

#include "exec/state/checkpoint_index.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "sim/base/config.h"
#include "sim/base/error.h"
#include "sim/base/hash.h"
#include "sim/base/json.h"
#include "sim/base/parse.h"
#include "sim/base/spelling.h"
#include "sim/base/units.h"

namespace foreshard {
namespace {

constexpr std::string_view kSchema = "foreshard.checkpoint/1";
constexpr std::string_view kSealBegin = "\"checksum\": \"";
constexpr std::string_view kSealEnd = "\"\n}\n";
constexpr std::size_t kDigits = 16;
constexpr std::int64_t kMaxShards = 1'000'000;
constexpr std::size_t kMaxIndexBytes = std::size_t{16} << 20;

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

// Where the digits of the checksum are; npos where the text does not end as an index does.
std::size_t seal_position(std::string_view text) {
  const std::size_t length = kSealBegin.size() + kDigits + kSealEnd.size();
  if (text.size() < length || !text.ends_with(kSealEnd)) return std::string_view::npos;
  const std::size_t begin = text.size() - length;
  if (text.substr(begin, kSealBegin.size()) != kSealBegin) return std::string_view::npos;
  return begin + kSealBegin.size();
}

std::uint64_t text_checksum(std::string_view text, std::size_t position) {
  return Fingerprint().add(text.substr(0, position)).add(text.substr(position + kDigits)).value();
}

Json to_json(const StateUnit& unit, std::int64_t shards) {
  Json parameters = json_list(
      unit.parameters,
      [&](const StateParameter& parameter) -> Json {
        Json written = {{"name", parameter.name}, {"shape", parameter.shape}, {"offset", parameter.offset},
            {"numel", parameter.numel}};
        if (parameter.parts > 1) {
          written["parts"] = parameter.parts;
          written["cut"] = parameter.cut;
        }
        return written;
      });
  Json arrays = json_list(unit.arrays, [&](const StateArray& array) -> Json {
    return {{"name", array.name}, {"dtype", to_string(array.dtype)}};
  });
  return {{"name", unit.name}, {"shard_numel", unit.shard_numel}, {"padding", padding_of(unit, shards)},
      {"parameters", std::move(parameters)}, {"arrays", std::move(arrays)}};
}

Json to_json(const CheckpointFile& file) {
  std::string checksums;
  for (const std::uint64_t checksum : file.written.checksums) checksums += hex(checksum);
  return {{"name", file.name}, {"bytes", file.written.bytes}, {"checksums", checksums}};
}

std::uint64_t parse_hex(const ConfigNode& node, std::string_view digits) {
  const auto value = parse_number<std::uint64_t>(digits, 16);
  if (!value) throw node.error("has other characters than hexadecimal digits");
  return *value;
}

StateParameter read_parameter(const ConfigNode& node) {
  node.allow_only({"name", "shape", "offset", "numel", "parts", "cut"});
  StateParameter parameter = {.name = node.at("name").as_string()};
  const ConfigNode shape = node.at("shape");
  for (const ConfigNode& extent : shape.elements()) parameter.shape.push_back(extent.as_int(0));
  parameter.offset = node.at("offset").as_int(0);
  parameter.numel = node.at("numel").as_int(0);
  if (node.find("parts")) {
    parameter.parts = node.at("parts").as_int(2, kMaxShards);
    parameter.cut = node.at("cut").as_int(0, 1);
  }
  return parameter;
}

StateUnit read_unit(const ConfigNode& node) {
  node.allow_only({"name", "shard_numel", "padding", "parameters", "arrays"});
  StateUnit unit = {.name = node.at("name").as_string(), .shard_numel = node.at("shard_numel").as_int(0)};
  const ConfigNode parameters = node.at("parameters");
  for (const ConfigNode& item : parameters.elements()) unit.parameters.push_back(read_parameter(item));
  const ConfigNode arrays = node.at("arrays");
  constexpr DType kDTypes[] = {DType::kBf16, DType::kFp16, DType::kFp32};
  for (const ConfigNode& item : arrays.elements()) {
    item.allow_only({"name", "dtype"});
    StateArray array = {
        .name = item.at("name").as_string(), .dtype = kDTypes[item.at("dtype").as_choice({"bf16", "fp16", "fp32"})]};
    unit.arrays.push_back(std::move(array));
  }
  return unit;
}

CheckpointFile read_file(const ConfigNode& node) {
  node.allow_only({"name", "bytes", "checksums"});
  CheckpointFile file = {.name = node.at("name").as_string()};
  if (file.name.empty() || file.name == "." || file.name == ".." ||
      file.name.find_first_of(std::string_view("/\0", 2)) != std::string::npos)
    throw node.at("name").error("is no plain file name: a checkpoint's files are in its folder");
  file.written.bytes = node.at("bytes").as_int(0);
  const ConfigNode checksums = node.at("checksums");
  const std::string digits = checksums.as_string();
  const std::int64_t blocks = file.written.bytes / kChecksumBlock + (file.written.bytes % kChecksumBlock != 0 ? 1 : 0);
  // Not blocks * 16, which may overflow.
  if (digits.size() % kDigits != 0 || static_cast<std::int64_t>(digits.size() / kDigits) != blocks)
    throw checksums.error(fmt::format("are not the checksums of {} blocks", blocks));
  for (std::size_t at = 0; at < digits.size(); at += kDigits)
    file.written.checksums.push_back(parse_hex(checksums, std::string_view(digits).substr(at, kDigits)));
  return file;
}

RunProgress read_progress(const ConfigNode& root) {
  RunProgress progress = {.step = root.at("step").as_int(0),
      .next_sample = root.at("next_sample").as_int(0),
      .seed = root.at("seed").as_int()};
  const ConfigNode metadata = root.at("metadata");
  for (const ConfigItem& item : metadata.items()) progress.metadata[item.key] = item.value.as_string();
  return progress;
}

}

std::string tensor_name(const StateUnit& unit, const StateArray& array) {
  return fmt::format("unit/{}/{}", unit.name, array.name);
}

std::string index_text(const CheckpointIndex& index) {
  Json mesh = {{"shard", index.shards}, {"replicate", index.replicas}};
  if (index.parts > 1) mesh["tp"] = index.parts;
  Json units = json_list(
      index.units, [&](const StateUnit& unit) -> Json { return to_json(unit, index.shards); });
  Json files = json_list(index.files, [&](const CheckpointFile& file) -> Json { return to_json(file); });
  return seal_index(to_text({{"schema", kSchema}, {"step", index.progress.step},
      {"next_sample", index.progress.next_sample}, {"seed", index.progress.seed}, {"saved", index.saved},
      {"metadata", Json(index.progress.metadata)}, {"mesh", std::move(mesh)}, {"block_bytes", kChecksumBlock},
      {"units", std::move(units)}, {"files", std::move(files)}, {"checksum", std::string(kDigits, '0')}}));
}

std::string seal_index(std::string text) {
  const std::size_t position = seal_position(text);
  FORESHARD_CHECK(position != std::string::npos, "an index ends with its checksum");
  return text.replace(position, kDigits, hex(text_checksum(text, position)));
}

CheckpointIndex parse_index(std::string_view text, const std::string& file_name) {
  const std::size_t position = seal_position(text);
  if (position == std::string_view::npos)
    throw Error(ExitCode::kInvalidInput, file_name + ": is incomplete: it does not end with its checksum");
  CheckpointIndex index = {.checksum = text_checksum(text, position)};
  if (text.substr(position, kDigits) != hex(index.checksum))
    throw Error(ExitCode::kInvalidInput, file_name + ": was altered: its checksum is not the one that was written");
  const ConfigNode root = parse_json(text, file_name);
  root.allow_only({"schema", "step", "next_sample", "seed", "saved", "metadata", "mesh", "block_bytes", "units",
      "files", "checksum"});
  root.at("schema").as_choice({kSchema});
  index.progress = read_progress(root);
  index.saved = root.at("saved").as_int(0);
  index.shards = root.at("mesh").at("shard").as_int(1, kMaxShards);
  index.replicas = root.at("mesh").at("replicate").as_int(1);
  if (root.at("mesh").find("tp")) index.parts = root.at("mesh").at("tp").as_int(2, kMaxShards);
  root.at("block_bytes").as_int(kChecksumBlock, kChecksumBlock);
  const ConfigNode units = root.at("units");
  for (const ConfigNode& node : units.elements()) index.units.push_back(read_unit(node));
  const ConfigNode files = root.at("files");
  for (const ConfigNode& node : files.elements()) index.files.push_back(read_file(node));
  if (std::ssize(index.files) != index.shards * index.parts)
    throw files.error(fmt::format("are {}, but there are {} shards", index.files.size(), index.shards * index.parts));
  for (const StateUnit& unit : index.units) {
    for (const StateParameter& parameter : unit.parameters) {
      if (parameter.parts == 1 || parameter.parts == index.parts) continue;
      throw units.error(fmt::format(
          "parameter {} has {} parts, but mesh.tp is {}", quote(parameter.name), parameter.parts, index.parts));
    }
  }
  const std::string fault = find_layout_fault(index.shards, index.units);
  if (!fault.empty()) throw units.error(fault);
  return index;
}

CheckpointIndex read_index(const std::filesystem::path& checkpoint) {
  const std::filesystem::path path = checkpoint / kIndexName;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    throw Error(ExitCode::kInvalidInput, path.string() + ": is missing");
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxIndexBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(at(file.gcount()));
  if (file.bad() || !file.is_open()) throw Error(ExitCode::kInvalidInput, path.string() + ": cannot be read");
  return parse_index(text, path.string());
}

}
