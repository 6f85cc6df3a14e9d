// The tokens of a text file, a folder of texts, or a `.bin` file of token ids, read a range at a time.
//
// - A text is one token per byte. A folder is all its texts, one after another in the order of
//   their relative paths (compared byte by byte), and is kept in memory (limit: 4 GiB). Left out
//   of a folder: whatever is hidden (a name that begins with a dot), symbolic links, anything that
//   is neither folder nor regular file, files that may not be read, and files that are not text (a
//   zero byte among the first 8000, as git decides).
// - A `.bin` file is little-endian token ids of 2 or 4 bytes each and is never read whole.
//
// Every failure is Error(kInvalidInput) that names the file.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "sim/base/error.h"

namespace foreshard {

// kAuto: a file whose name ends in .bin is kU16 where the vocabulary has at most 65,536 tokens,
// else kU32; everything else is kBytes.
enum class TokenFormat : std::uint8_t { kAuto, kBytes, kU16, kU32 };
const char* to_string(TokenFormat format);  // "auto", "bytes", "u16", "u32"
// The format of that name; throws Error(kUsage) for any other word.
TokenFormat parse_token_format(std::string_view word);

class TokenStore {
 public:
  // Looks at the tokens once: at all of them, or at 64 places of 4 MiB where a file has more than 256 MiB. Refused: no
  // such file, no tokens, a size that is no multiple of the token's, and ids that the vocabulary does not have.
  TokenStore(const std::filesystem::path& path, TokenFormat format, std::int64_t vocabulary);

  std::int64_t size() const { return size_; }  // tokens
  TokenFormat format() const { return format_; }
  const std::filesystem::path& path() const { return path_; }
  // Equal where the size and every token that the constructor looked at are equal. Ranks that
  // read their own copies compare it, and so does a run that resumes.
  std::uint64_t fingerprint() const { return fingerprint_; }
  // "12 files, 345,678 bytes; 3 left out, the first of them build/a.o (not text)".
  const std::string& description() const { return description_; }

  // Tokens [first, first + tokens.size()), each in [0, vocabulary).
  void read(std::int64_t first, std::span<std::int64_t> tokens) const;

 private:
  void open_file();
  void read_folder();
  void scan();
  std::int64_t width() const;  // bytes per token
  void read_bytes(std::int64_t offset, std::span<char> bytes) const;
  template <typename... Parts>
  [[noreturn]] void fail(fmt::format_string<Parts...> text, Parts&&... parts) const {
    throw invalid_input("training data {}: {}", path_.string(), fmt::format(text, std::forward<Parts>(parts)...));
  }

  std::filesystem::path path_;
  TokenFormat format_;
  std::int64_t vocabulary_;
  std::int64_t size_ = 0;
  std::uint64_t fingerprint_ = 0;
  std::string description_;
  std::shared_ptr<const std::string> image_;  // of a folder
  std::shared_ptr<const int> descriptor_;     // of a file
};

}
