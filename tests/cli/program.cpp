#include "tests/cli/program.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "sim/base/lookup.h"
#include "tests/support/temporary_folder.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

const TemporaryFolder& folder() {
  static const TemporaryFolder folder;
  return folder;
}

// Keys whose values may differ between runs, wherever they stand on a line of their own.
void drop_changing(nlohmann::ordered_json& json) {
  json.erase("created");
  json.erase("host");
  json.erase("seconds");
}

// The kind that foreshard schema calls the documents of this name: some verbs write several, which
// one schema describes.
std::string kind_of(const nlohmann::ordered_json& document) {
  static const std::map<std::string, std::string> kShared = {{"slower", "explain"}, {"inferred", "explain"},
      {"runtimes", "compare"}, {"model", "models"}, {"machine", "machines"}, {"topology", "machines"}};
  const std::string id = document.at("schema");  // foreshard.NAME/1
  const std::size_t begin = id.find('.') + 1;
  const std::string name = id.substr(begin, id.find('/') - begin);
  return value_of(kShared, name, name);
}

// The keys that a document of this name cannot lack: of the schema, and of those of its
// alternatives that are about documents of this name.
std::set<std::string> required_keys(const nlohmann::ordered_json& schema, const std::string& name) {
  std::set<std::string> keys;
  const nlohmann::ordered_json::json_pointer own_name("/properties/schema/const");
  const auto add = [&](const nlohmann::ordered_json& one) {
    if (one.value(own_name, name) != name) return;
    for (const std::string key : one.value("required", nlohmann::ordered_json::array())) keys.insert(key);
  };
  add(schema);
  for (const auto& one : schema.value("oneOf", nlohmann::ordered_json::array())) add(one);
  return keys;
}

}

Outcome shell(const std::string& command) {
  const fs::path out = folder() / ".out";
  const fs::path err = folder() / ".err";
  const std::string line = "cd '" + folder().path().string() +
                           "' && F='" FORESHARD_PROGRAM "' && export XDG_DATA_HOME=\"$PWD/.data\" && { " + command +
                           "\n} </dev/null >'" + out.string() + "' 2>'" + err.string() + "'";
  const int status = std::system(line.c_str());
  return Outcome{.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
      .out = content_of(out),
      .err = content_of(err)};
}

std::string write_temporary(const std::string& name, std::string_view content) {
  return folder().write(name, content).string();
}

std::string read_temporary(const std::string& name) { return content_of(folder() / name); }

nlohmann::ordered_json json_of(const Outcome& outcome) {
  auto json = nlohmann::ordered_json::parse(outcome.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << outcome.out.substr(0, 500) << outcome.err;
  return json;
}

void expect_follows_its_schema(const nlohmann::ordered_json& document) {
  const auto schema = json_of(run("schema " + kind_of(document)));
  nlohmann::ordered_json task = {{"schema", schema}, {"documents", {document.dump()}}};
  std::vector<bool> expected = {true};
  for (const std::string& key : required_keys(schema, document.at("schema"))) {
    if (!document.contains(key)) continue;  // of another alternative
    auto without = document;
    without.erase(key);
    task["documents"].push_back(without.dump());
    expected.push_back(false);
  }
  EXPECT_GT(expected.size(), 1U);
  write_temporary("task.json", task.dump());
  const Outcome judged = shell("python3 '" FORESHARD_SOURCE_DIR "/tests/cli/judge_documents.py' < task.json");
  if (judged.exit_code == 77 || judged.exit_code == 127) return;
  ASSERT_EQ(judged.exit_code, 0) << judged.err;
  EXPECT_EQ(json_of(judged).get<std::vector<bool>>(), expected) << document.dump(1).substr(0, 3000);
}

std::string comparable(const Outcome& outcome) {
  auto json = json_of(outcome);
  if (json.is_object()) drop_changing(json);
  return json.dump(1);
}

std::size_t lines_of(std::string_view text) { return static_cast<std::size_t>(std::ranges::count(text, '\n')); }

void expect_says(std::string_view text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string_view::npos) << "not said: " << part << "\nbut: " << text;
}

void expect_no_crash(const Outcome& outcome) {
  EXPECT_LT(outcome.exit_code, 128);
  for (const char* mark :
      {"terminate called", "what():", "Segmentation", "Aborted", "backtrace", "internal error", "Sanitizer", "#0 "}) {
    EXPECT_EQ(outcome.err.find(mark), std::string::npos) << outcome.err;
  }
}

}
