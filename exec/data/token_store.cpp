// A file is read with pread, a range at a time: unlike a mapping, a file that shrinks during the
// run is then an error with a sentence instead of a SIGBUS. A folder is concatenated once.
//
// Opening scans the tokens in chunks that both the fingerprint and the largest id come from. Files
// beyond 256 MiB are sampled, since every token is checked again when it is read; where a text's
// vocabulary has fewer than 256 tokens the whole text is scanned all the same.

#include "exec/data/token_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

#include "sim/base/hash.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/spelling.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kScanChunk = std::int64_t{4} << 20;
constexpr std::int64_t kScanWhole = std::int64_t{256} << 20;
constexpr std::int64_t kScanPlaces = 64;
constexpr std::size_t kMaxFolderBytes = std::size_t{4} << 30;
constexpr std::size_t kTextProbe = 8000;

std::string errno_text() { return std::generic_category().message(errno); }

struct FoundFile {
  std::string relative;
  fs::path path;
};

bool is_hidden(const fs::path& path) { return path.filename().native().starts_with('.'); }

std::vector<FoundFile> files_below(const fs::path& folder) {
  std::vector<FoundFile> files;
  fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied);
  for (; entry != fs::recursive_directory_iterator(); ++entry) {
    const fs::file_type type = entry->symlink_status().type();
    if (is_hidden(entry->path())) {
      if (type == fs::file_type::directory) entry.disable_recursion_pending();
    } else if (type == fs::file_type::regular) {
      files.push_back({entry->path().lexically_relative(folder).generic_string(), entry->path()});
    }
  }
  std::ranges::sort(files, {}, &FoundFile::relative);
  return files;
}

// Appends the file to `image`, or says why it is left out.
std::string append_text(const fs::path& path, std::string& image) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return "cannot be read";
  const std::size_t before = image.size();
  std::string chunk(std::size_t{1} << 20, '\0');
  while (file) {
    file.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    image.append(chunk.data(), at(file.gcount()));
    if (image.size() > kMaxFolderBytes) return "too large";
    const std::string_view probe = std::string_view(image).substr(before, kTextProbe);
    if (contains(probe, '\0')) {
      image.resize(before);
      return "not text";
    }
  }
  if (file.bad()) {
    image.resize(before);
    return "cannot be read";
  }
  return "";
}

}

const char* to_string(TokenFormat format) { return word_at(format, {"auto", "bytes", "u16", "u32"}); }

TokenFormat parse_token_format(std::string_view word) {
  for (const TokenFormat format : {TokenFormat::kAuto, TokenFormat::kBytes, TokenFormat::kU16, TokenFormat::kU32})
    if (word == to_string(format)) return format;
  throw Error(ExitCode::kUsage, "{} is no token format; expected auto, bytes, u16 or u32", quote(word));
}

TokenStore::TokenStore(const fs::path& path, TokenFormat format, std::int64_t vocabulary)
    : path_(path), format_(format), vocabulary_(vocabulary) {
  FORESHARD_CHECK(vocabulary > 0, "a vocabulary has at least one token");
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  if (status.type() == fs::file_type::not_found) fail("no such file or folder");
  if (status.type() == fs::file_type::none) fail("{}", "cannot be read: " + error.message());
  if (status.type() == fs::file_type::directory) {
    if (format_ == TokenFormat::kAuto) format_ = TokenFormat::kBytes;
    if (format_ != TokenFormat::kBytes) fail("is a folder, which is read as bytes, not as {}", to_string(format_));
    try {
      read_folder();
    } catch (const fs::filesystem_error& failure) {
      fail("{}", "cannot be read: " + failure.code().message());
    }
  } else if (status.type() == fs::file_type::regular) {
    if (format_ == TokenFormat::kAuto && path_.extension() == ".bin")
      format_ = vocabulary_ <= 65536 ? TokenFormat::kU16 : TokenFormat::kU32;
    else if (format_ == TokenFormat::kAuto) format_ = TokenFormat::kBytes;
    open_file();
  } else {
    fail("is neither a regular file nor a folder");
  }
  scan();
}

void TokenStore::open_file() {
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail("{}", "cannot be read: " + errno_text());
  descriptor_ = std::shared_ptr<const int>(new int(descriptor), [](const int* owned) {
    ::close(*owned);
    delete owned;
  });
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) fail("{}", "cannot be read: " + errno_text());
  const auto bytes = static_cast<std::int64_t>(status.st_size);
  if (bytes == 0) fail("is empty: it has no tokens");
  if (bytes % width() != 0)
    fail("has {} bytes, which is no multiple of the {} bytes of a {} token", bytes, width(), to_string(format_));
  size_ = bytes / width();
  description_ = format_ == TokenFormat::kBytes
                     ? fmt::format("1 file, {} bytes", format_count(bytes))
                     : fmt::format("1 file, {} tokens of {}", format_count(size_), to_string(format_));
}

void TokenStore::read_folder() {
  std::string image;
  std::int64_t files = 0;
  std::int64_t left_out = 0;
  std::string first_left_out;
  for (const FoundFile& file : files_below(path_)) {
    const std::string reason = append_text(file.path, image);
    if (image.size() > kMaxFolderBytes) fail("holds more than 4 GiB of text; name one file of it");
    ++files;
    if (reason.empty()) continue;
    --files;
    if (left_out++ == 0) first_left_out = fmt::format("{} ({})", file.relative, reason);
  }
  description_ = fmt::format("{} files, {} bytes", files, format_count(std::ssize(image)));
  if (left_out > 0) description_ += fmt::format("; {} left out, the first of them {}", left_out, first_left_out);
  if (image.empty()) fail("has no tokens ({})", description_);
  size_ = std::ssize(image);
  image_ = std::make_shared<const std::string>(std::move(image));
}

void TokenStore::scan() {
  const std::int64_t per_chunk = kScanChunk / width();
  const bool must_see_all = format_ == TokenFormat::kBytes && vocabulary_ < 256;
  const std::int64_t chunks = (size_ - 1) / per_chunk + 1;
  const bool sees_all = must_see_all || size_ * width() <= kScanWhole;
  const std::int64_t places = sees_all ? chunks : kScanPlaces;
  Fingerprint fingerprint;
  fingerprint.add(size_).add(width());
  std::vector<std::int64_t> tokens(at(std::min(per_chunk, size_)));
  for (std::int64_t place = 0; place < places; ++place) {
    // The last place is the last chunk, wherever the others fall.
    const std::int64_t chunk = sees_all ? place : place * (chunks - 1) / (places - 1);
    const std::int64_t first = chunk * per_chunk;
    const auto count = at(std::min(per_chunk, size_ - first));
    read(first, std::span(tokens).first(count));
    for (std::size_t i = 0; i < count; ++i) fingerprint.add(tokens[i]);
  }
  fingerprint_ = fingerprint.value();
}

void TokenStore::read(std::int64_t first, std::span<std::int64_t> tokens) const {
  const auto count = std::ssize(tokens);
  FORESHARD_CHECK(first >= 0 && count <= size_ && first <= size_ - count, "tokens beyond the end of the data");
  // The narrow tokens are read into the front of the span and widened from its end: a wide token
  // is written only where the narrow ones have been taken.
  const auto narrow_bytes = at(count * width());
  char* const narrow = reinterpret_cast<char*>(tokens.data());
  read_bytes(first * width(), {narrow, narrow_bytes});
  const auto step = at(width());
  for (std::size_t i = tokens.size(); i-- > 0;) {
    std::uint32_t id = 0;
    std::memcpy(&id, narrow + i * step, step);
    tokens[i] = id;
  }
  const auto wrong = std::ranges::find_if(tokens, [this](std::int64_t id) { return id >= vocabulary_; });
  if (wrong != tokens.end()) {
    fail("token {} is {}, but the model's vocabulary has only the ids 0 to {}", first + (wrong - tokens.begin()),
        *wrong, vocabulary_ - 1);
  }
}

std::int64_t TokenStore::width() const {
  if (format_ == TokenFormat::kU32) return 4;
  return format_ == TokenFormat::kU16 ? 2 : 1;
}

void TokenStore::read_bytes(std::int64_t offset, std::span<char> bytes) const {
  if (image_ != nullptr) {
    std::memcpy(bytes.data(), image_->data() + offset, bytes.size());
    return;
  }
  while (!bytes.empty()) {
    const ssize_t count = ::pread(*descriptor_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("{}", "cannot be read: " + errno_text());
    if (count == 0) fail("ends at byte {} now; it was longer when it was opened", offset);
    offset += count;
    bytes = bytes.subspan(at(count));
  }
}

}
