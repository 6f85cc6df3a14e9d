// What may be a word is decided by the type of the option's value: types that are not known, files among them, may not.
// So an option that is added for the command line is asked for over HTTP only if its value is harmless.
#include "cli/http/questions.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/command_line.h"
#include "cli/output.h"
#include "cli/page.h"
#include "sim/base/lookup.h"
#include "sim/base/spelling.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

constexpr int kMostThreads = 16;  // each takes memory of the request's

struct AskedVerb {
  const char* name;
  HttpLane lane;
};
constexpr AskedVerb kVerbs[] = {{"predict", HttpLane::kQuick}, {"explain", HttpLane::kQuick},
    {"compare", HttpLane::kQuick}, {"search", HttpLane::kLong}, {"fit", HttpLane::kLong},
    {"recommend", HttpLane::kLong}, {"scale", HttpLane::kLong}, {"validate", HttpLane::kLong},
    {"report", HttpLane::kLong}};

// Values that name nothing on the machine; "": a flag.
constexpr std::string_view kPlainTypes[] = {
    "", "N", "AMOUNT", "TIME", "USD", "RATE", "GPU", "LIST", "RATIO", "STEPS", "KEY=VALUE", "KEY", "RUNTIME", "BYTES"};
constexpr std::string_view kFileTypes[] = {"FILE", "DIR|TRACE"};
// Of the server, not of who asks.
constexpr std::string_view kOwnOptions[] = {
    "--help", "--json", "--threads", "--html", "--trace", "--out", "--resume", "--no-history"};

enum class Shape : std::uint8_t { kJsonAnswer, kTextAnswer, kPageDocument, kPage };

struct Way {
  const AskedVerb* verb = nullptr;
  Shape form = Shape::kJsonAnswer;
};

Way way_of(const std::string& path) {
  constexpr std::pair<std::string_view, Shape> kRoots[] = {
      {"/api/", Shape::kJsonAnswer}, {"/text/", Shape::kTextAnswer}, {"/page/", Shape::kPageDocument}};
  std::string_view name = path;
  Way way;
  if (path == "/report") {
    name = "report";
    way.form = Shape::kPage;
  } else {
    const auto root = std::ranges::find_if(kRoots, [&](const auto& known) { return path.starts_with(known.first); });
    if (root == std::end(kRoots)) return {};
    name.remove_prefix(root->first.size());
    way.form = root->second;
  }
  const auto verb = std::ranges::find_if(kVerbs, [&](const AskedVerb& known) { return name == known.name; });
  if (verb != std::end(kVerbs)) way.verb = verb;
  return way;
}

bool is_one_of(std::string_view word, std::span<const std::string_view> known) { return contains(known, word); }

bool is_alternatives(std::string_view type) {  // fsdp2|fsdp1
  return contains(type, '|') && std::ranges::none_of(
                                    type, [](char c) { return c >= 'A' && c <= 'Z'; });
}

enum class Takes : std::uint8_t { kNothing, kWord, kName, kFile };

Takes takes(const CommandOption& option) {
  const std::string& type = option.type;
  if (is_one_of(option.names.front(), kOwnOptions)) return Takes::kNothing;
  if (type == "MODEL" || type == "CLUSTER") return Takes::kName;
  if (is_one_of(type, kFileTypes)) return Takes::kFile;
  return is_one_of(type, kPlainTypes) || is_alternatives(type) ? Takes::kWord : Takes::kNothing;
}

std::string word_of(const CommandOption& option) {
  std::string word = option.names.front().substr(2);
  std::ranges::replace(word, '-', '_');
  return word;
}

std::map<std::string, CommandOption> options_of(std::string_view verb) {
  std::map<std::string, CommandOption> options;
  for (const Command& command : command_tree().commands) {
    if (command.name != verb) continue;
    for (const CommandOption& option : command.options)
      if (takes(option) != Takes::kNothing) options.emplace(word_of(option), option);
  }
  return options;
}

// A name of the catalogue or of a hub: "org/name" at most.
void check_name(const std::string& key, const std::string& value) {
  const bool is_plain = std::ranges::all_of(value, [](unsigned char c) {
    return std::isalnum(c) != 0 || contains(std::string_view("-_.:+@ /"), static_cast<char>(c));
  });
  const bool is_path =
      value.front() == '/' || value.front() == '.' || contains(value, "..") || std::ranges::count(value, '/') > 1;
  const std::string end = std::filesystem::path(value).extension();
  const bool is_file = end == ".json" || end == ".yaml" || end == ".yml";
  if (is_plain && !is_path && !is_file && value != "local") return;
  throw invalid_input("{} {}: {}", key, quote(value),
      key == "model" ? "expected a name that foreshard models lists, or the file itself"
                     : "expected GPUs and their kind, such as 64xh100, or the file itself");
}

// What a plan names must lie beside it.
void check_plan(const std::string& file) {
  const PlanDocument plan = read_plan_file(file);
  const auto check = [&](const char* key, const std::string& value) {
    const std::filesystem::path path = value;
    const bool leaves = path.is_absolute() || value.starts_with('~') || value == "local" || contains(path, "..");
    if (leaves) throw invalid_input("{}: {} {}: send the file itself along", file, key, quote(value));
  };
  if (plan.has("model")) check("model", model_of(plan));
  if (plan.has("cluster")) check("cluster", cluster_of(plan));
}

class Request {
 public:
  explicit Request(const AskedVerb& verb) : options_(options_of(verb.name)) {
    arguments_.push_back(verb.name);
    typed_ = arguments_;
  }

  void add(const HttpForm& form) {
    for (const auto& [key, value] : form.words) add_word(key, value);
    std::map<std::string, std::vector<const HttpFile*>> fields;
    for (const HttpFile& file : form.files) fields[file.field].push_back(&file);
    for (const auto& [field, files] : fields) add_files(field, files);
  }

  // Values are joined to their options, so that none is taken for an option of its own.
  const std::vector<std::string>& arguments() const { return arguments_; }
  // The same as one would type it.
  std::string command() const { return command_text(typed_); }

 private:
  void add_option(const std::string& name, const std::string& value) {
    arguments_.push_back(name + "=" + value);
    append(typed_, {name, value});
  }

  const CommandOption& option(const std::string& key) const {
    const auto found = options_.find(key);
    if (found != options_.end()) return found->second;
    auto known = list_of<std::string>(options_, [&](const auto& each) { return each.first; });
    const std::string near = nearest_spelling(key, known);
    throw invalid_input("unknown key {}; expected {}{}", quote(key), fmt::join(known, ", "),
        near.empty() ? "" : fmt::format("; did you mean {}?", near));
  }

  void add_word(const std::string& key, const std::string& value) {
    const CommandOption& known = option(key);
    if (value.empty()) return;
    const std::string& name = known.names.front();
    if (takes(known) == Takes::kFile) {
      // As a key that is not known: files are sent, not named.
      throw invalid_input("unknown key {}: send the file itself, as multipart/form-data", quote(key));
    }
    if (takes(known) == Takes::kName) check_name(key, value);
    if (key == "set" || key == "fix" || key == "with") {
      const std::string assigned = value.substr(0, value.find('='));
      if (assigned == "model" || assigned == "cluster")
        throw invalid_input("{} {}: give {} by its own name", key, value, assigned);
    }
    if (!known.type.empty()) {
      add_option(name, value);
    } else if (value != "false" && value != "0") {
      arguments_.push_back(name);
      typed_.push_back(name);
    }
  }

  void add_files(const std::string& field, const std::vector<const HttpFile*>& files) {
    const CommandOption& known = option(field);
    if (takes(known) == Takes::kWord) throw invalid_input("{}: expected a word, not a file", field);
    std::string path;
    if (files.size() == 1) {
      path = plain_file_name(files[0]->name, field);
      while (std::filesystem::exists(path)) path = field + "-" + path;
      write_file(path, files[0]->content);
      if (!contains(path, '.')) path = "./" + path;
    } else {
      path = field;
      std::filesystem::create_directory(path);
      for (const HttpFile* file : files) write_file(path + "/" + plain_file_name(file->name, field), file->content);
    }
    const std::string run_plan = path + "/plan.yaml";
    if (field == "plan") check_plan(path);
    if (std::filesystem::exists(run_plan)) check_plan(run_plan);
    add_option(known.names.front(), path);
  }

  std::map<std::string, CommandOption> options_;
  std::vector<std::string> arguments_, typed_;
};

// The body of a request with files, as memory that is not counted as its own.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (file >= 0 && ::fstat(file, &status) == 0 && status.st_size > 0) {
      size_ = at(status.st_size);
      start_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    }
    if (file >= 0) ::close(file);
    if (start_ == MAP_FAILED) throw invalid_input("the body is empty");
  }
  ~MappedFile() { ::munmap(start_, size_); }
  MappedFile& operator=(MappedFile&&) = delete;  // nor is it copied
  std::string_view text() const { return {static_cast<const char*>(start_), size_}; }

 private:
  void* start_ = MAP_FAILED;
  std::size_t size_ = 0;
};

int status_of(ExitCode code) {
  return code == ExitCode::kMissingCapability ? 501
         : code == ExitCode::kInterrupted     ? 503
         : code == ExitCode::kInternal        ? 500
                                              : 400;
}

std::string own_threads(int threads) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return fmt::format("--threads={}", threads > 0 ? threads : std::clamp(cores, 1, kMostThreads));
}

bool has_option(const AskedVerb& verb, std::string_view name) {
  for (const Command& command : command_tree().commands) {
    if (command.name != verb.name) continue;
    return std::ranges::any_of(
        command.options, [&](const CommandOption& option) { return option.names.front() == name; });
  }
  return false;
}

struct Said {
  std::string answer, notes;
};

Said said(std::vector<std::string> arguments) {
  const CommandLine line = parse_command_line(std::move(arguments));
  if (!line.verb) {  // "foreshard predict: what is wrong", and where help is
    std::string what = line.usage_error.substr(0, line.usage_error.find('\n'));
    const std::size_t colon = what.find(": ");
    if (colon != std::string::npos) what.erase(0, colon + 2);
    throw Error(ExitCode::kUsage, what);
  }
  AnswerCapture capture;
  line.verb();
  return {std::move(capture.answer), std::move(capture.errors)};
}

HttpAnswer answer_of(const Way& way, const std::vector<std::string>& asked, int threads) {
  std::vector<std::string> arguments = asked;
  if (has_option(*way.verb, "--threads")) arguments.push_back(own_threads(threads));
  if (has_option(*way.verb, "--no-history")) arguments.push_back("--no-history");
  const bool is_json = way.form == Shape::kJsonAnswer || way.form == Shape::kPageDocument;
  if (is_json) arguments.push_back("--json");
  auto [text, notes] = said(std::move(arguments));
  if (way.form == Shape::kPage) return {200, "text/html; charset=utf-8", std::move(text), ""};
  if (way.form == Shape::kTextAnswer) {
    if (!notes.empty()) text += "\n" + notes;
    return {200, "text/plain; charset=utf-8", std::move(text), ""};
  }
  return {200, "application/json", std::move(text), ""};
}

}

bool is_question(const std::string& path) { return way_of(path).verb != nullptr; }

std::string known_paths() {
  std::string paths = "there are /, /report";
  for (const AskedVerb& verb : kVerbs) paths += fmt::format(", /api/{}", verb.name);
  return paths;
}

HttpLane lane_of(const HttpQuestion& question) { return way_of(question.path).verb->lane; }

HttpAnswer answer_question(const HttpQuestion& question, int threads) {
  std::string command;
  HttpAnswer answer;
  try {
    const Way way = way_of(question.path);
    Request request(*way.verb);
    request.add({question.words, {}});
    if (!question.body_file.empty()) {
      const MappedFile body(question.body_file);
      request.add(read_body(question.content_type, body.text()));
    } else if (!question.body.empty()) {
      request.add(read_body(question.content_type, question.body));
    }
    command = request.command();
    if (way.form == Shape::kPage || std::string_view(way.verb->name) == "report") command += " --html report.html";
    answer = answer_of(way, request.arguments(), threads);
    if (way.form == Shape::kPageDocument) {
      const Json json = Json::parse(answer.body);
      Json page = page_of_answer(json, command);
      page["command"] = command;
      if (json.contains("infeasible")) page["infeasible"] = json["infeasible"];
      answer.body = to_text(page);
    }
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const Error& error) {
    answer = http_refusal(status_of(error.exit_code()), error.what(), error.exit_code());
  } catch (const std::exception& error) {
    answer = http_refusal(500, std::string("internal error: ") + error.what(), ExitCode::kInternal);
  }
  answer.command = std::move(command);
  return answer;
}

HttpAnswer http_refusal(int status, const std::string& what, ExitCode code) {
  const Json body = {{"error", what}, {"exit_code", static_cast<int>(code)}};
  return {status, "application/json", body.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n", ""};
}

Json words_json() {
  Json verbs = Json::object();
  for (const AskedVerb& verb : kVerbs) {
    Json& words = verbs[verb.name] = Json::object();
    for (const auto& [word, option] : options_of(verb.name)) {
      words[word] = {{"help", option.help}, {"type", option.type},
          {"file", takes(option) == Takes::kFile || takes(option) == Takes::kName}, {"words", option.value.words}};
    }
  }
  return verbs;
}

}
