#include "tests/cli/program.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace foreshard {
namespace {

namespace fs = std::filesystem;

// A folder that goes with the process: each test runs in a process of its own.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("foreshard_cli_" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

const fs::path& folder() {
  static const Folder folder;
  return folder.path();
}

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Keys whose values may differ between runs, wherever they stand on a line of their own.
void drop_changing(nlohmann::ordered_json& json) {
  json.erase("created");
  json.erase("host");
  json.erase("seconds");
}

}  // namespace

Outcome shell(const std::string& command) {
  const fs::path out = folder() / ".out";
  const fs::path err = folder() / ".err";
  const std::string line =
      "cd '" + folder().string() +
      "' && F='" FORESHARD_PROGRAM "' && export XDG_DATA_HOME=\"$PWD/.data\" && { " + command +
      "\n} </dev/null >'" + out.string() + "' 2>'" + err.string() + "'";
  const int status = std::system(line.c_str());
  Outcome outcome;
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = read(out);
  outcome.err = read(err);
  return outcome;
}

std::string write_temporary(const std::string& name, std::string_view content) {
  const fs::path path = folder() / name;
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
  return path.string();
}

std::string read_temporary(const std::string& name) { return read(folder() / name); }

nlohmann::ordered_json json_of(const Outcome& outcome) {
  auto json = nlohmann::ordered_json::parse(outcome.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << outcome.out.substr(0, 500) << outcome.err;
  return json;
}

std::string comparable(const Outcome& outcome) {
  auto json = json_of(outcome);
  if (json.is_object()) drop_changing(json);
  return json.dump(1);
}

std::size_t lines_of(std::string_view text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

void expect_says(std::string_view text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string_view::npos) << "not said: " << part << "\nbut: " << text;
}

void expect_no_crash(const Outcome& outcome) {
  EXPECT_LT(outcome.exit_code, 128);
  for (const char* mark : {"terminate called", "what():", "Segmentation", "Aborted", "backtrace",
                           "internal error", "Sanitizer", "#0 "}) {
    EXPECT_EQ(outcome.err.find(mark), std::string::npos) << outcome.err;
  }
}

}  // namespace foreshard
