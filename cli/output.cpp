// Standard output is written with write(2), so that an early reader's EPIPE and a full disk's
// ENOSPC arrive here and not in a destructor.
#include "cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "reports/view/layout.h"
#include "sim/base/error.h"
#include "sim/base/parse.h"

namespace foreshard {
namespace {

[[noreturn]] void fail(std::string_view what, int error) {
  throw invalid_input("{}: cannot be written: {}", what, std::generic_category().message(error));
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string now() {
  std::time_t time = std::time(nullptr);
  if (const char* epoch = std::getenv("SOURCE_DATE_EPOCH")) time = parse_number<std::int64_t>(epoch).value_or(time);
  std::tm utc{};
  if (::gmtime_r(&time, &utc) == nullptr) return "";
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
      utc.tm_hour, utc.tm_min, utc.tm_sec);
}

// Of standard output in characters; 0 where it is no terminal, or none that says its width.
std::size_t terminal_width() {
  if (::isatty(STDOUT_FILENO) == 0) return 0;
  if (const char* variable = std::getenv("COLUMNS")) {
    const auto columns = parse_number<std::size_t>(variable);
    if (columns.value_or(0) > 0) return *columns;
  }
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

thread_local AnswerCapture* capture = nullptr;  // the innermost of this thread

}

int write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(file, text.data(), text.size());
    if (count >= 0) text.remove_prefix(at(count));
    else if (errno != EINTR) return errno;
  }
  return 0;
}

AnswerCapture::AnswerCapture() : outer_(std::exchange(capture, this)) {}
AnswerCapture::~AnswerCapture() { capture = outer_; }

void write_answer(std::string_view text) {
  if (capture != nullptr) {
    capture->answer += text;
    return;
  }
  const int error = write_all(STDOUT_FILENO, text);
  if (error != 0 && error != EPIPE) fail("standard output", error);
}

void write_text(std::string_view text) {
  const std::size_t width = capture == nullptr ? terminal_width() : 0;
  write_answer(width > 0 ? fitted(text, width) : std::string(text));
}

// A regular file appears whole or stays as it was: the text goes to a file beside it, which then
// takes its name. Pipes and devices are written as they are.
void write_file(const std::string& path, std::string_view text) {
  std::error_code ignored;
  const std::filesystem::path target = std::filesystem::weakly_canonical(path, ignored);
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  const bool is_there = std::filesystem::exists(status);
  if (is_there && ::access(path.c_str(), W_OK) != 0) fail(path, errno);
  const bool replaces = !target.empty() && (!is_there || std::filesystem::is_regular_file(status));
  const std::string beside = replaces ? fmt::format("{}.{}.part", target.string(), ::getpid()) : path;
  const int file = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) fail(path, errno);
  int error = write_all(file, text);
  if (replaces && is_there && error == 0) ::fchmod(file, static_cast<mode_t>(status.permissions()) & 07777U);
  // A network file system reports a full disk here.
  if (::close(file) != 0 && error == 0) error = errno;
  if (replaces && error == 0 && ::rename(beside.c_str(), target.c_str()) != 0) error = errno;
  if (error == 0) return;
  if (replaces) ::unlink(beside.c_str());
  fail(path, error);
}

void write_error(std::string_view text) {
  if (capture != nullptr) {
    capture->errors += text;
    return;
  }
  write_all(STDERR_FILENO, text);  // nobody can be told when this fails
}

void note(std::string_view text) { write_error(fmt::format("foreshard: {}\n", text)); }

Color color_of(ColorChoice choice) {
  if (choice == ColorChoice::kAlways) return Color::kAlways;
  if (choice == ColorChoice::kNever || ::isatty(STDOUT_FILENO) == 0) return Color::kNever;
  const auto variable = [](const char* name) -> std::string_view {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  return variable("NO_COLOR").empty() && variable("TERM") != "dumb" ? Color::kAlways : Color::kNever;
}

Json document_json(std::string_view schema, const Json& body) {
  Json root;
  const auto own = body.find("schema");
  root["schema"] = own == body.end() ? Json(schema) : *own;
  root["tool"] = {{"name", "foreshard"}, {"version", FORESHARD_VERSION}};
  root["created"] = now();
  root["host"] = host_name();
  for (const auto& [key, value] : body.items()) root[key] = value;
  return root;
}

std::string document(std::string_view schema, const Json& body) { return to_text(document_json(schema, body)); }

ExitCode report_failure() {
  try {
    throw;
  } catch (const ConfigError& error) {
    // Starts with the place, file:line:column, where editors look for it.
    write_error(std::string(error.what()) + "\n");
    return error.exit_code();
  } catch (const Error& error) {
    note(error.what());
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    note("not enough memory: what was asked for needs more than this process may have");
    return ExitCode::kInternal;
  } catch (const std::exception& error) {
    note(std::string("internal error: ") + error.what());
    return ExitCode::kInternal;
  }
}

}
