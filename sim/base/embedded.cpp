// Unpacked texts are kept by the place of their packed bytes.
#include "sim/base/embedded.h"

#define ZLIB_CONST  // what is read is not written
#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "sim/base/error.h"
#include "sim/base/letters.h"

namespace foreshard {
namespace {

// Of a gzip file (RFC 1952), whose last four bytes are the size of what it holds.
std::string unpack(std::string_view packed) {
  std::uint32_t size = 0;
  FORESHARD_CHECK(packed.size() > sizeof size, "an embedded file is empty");
  std::memcpy(&size, packed.data() + packed.size() - sizeof size, sizeof size);
  std::string text(size, '\0');
  z_stream stream = {};
  stream.next_in = reinterpret_cast<const Bytef*>(packed.data());
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = size;
  constexpr int kGzip = 16 + MAX_WBITS;
  const bool is_whole = inflateInit2(&stream, kGzip) == Z_OK && inflate(&stream, Z_FINISH) == Z_STREAM_END;
  inflateEnd(&stream);
  FORESHARD_CHECK(is_whole, "an embedded file is damaged");
  return text;
}

}

EmbeddedText::operator std::string_view() const {
  static std::mutex mutex;
  static std::map<const char*, std::string> texts;
  const std::scoped_lock lock(mutex);
  const auto [text, is_new] = texts.try_emplace(packed_.data());
  if (is_new) text->second = unpack(packed_);
  return text->second;
}

const EmbeddedFile& file_named(std::string_view path, std::span<const EmbeddedFile> files) {
  const auto found = std::ranges::find(files, path, &EmbeddedFile::path);
  FORESHARD_CHECK(found != files.end(), std::string(path) + " is not built in");
  return *found;
}

std::vector<std::vector<std::string_view>> rows_of_table(std::string_view text) {
  std::vector<std::vector<std::string_view>> rows;
  while (!text.empty()) {
    std::string_view line = cut(text, "\n");
    if (line.empty() || line.starts_with('#')) continue;
    std::vector<std::string_view>& cells = rows.emplace_back();
    while (!line.empty()) cells.push_back(cut(line, " | "));
  }
  return rows;
}

}
