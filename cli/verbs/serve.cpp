// The verb that answers over HTTP: an application for browsers (app/), and the verbs' answers as JSON. What a request
// says is made a command line by http/questions.h, and answered in a process of its own by http/server.h.
#include <fmt/format.h>
#include <stdlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>

#include "cli/http/questions.h"
#include "cli/http/server.h"
#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "sim/base/embedded.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

// Files of requests live there while they are answered.
class PrivateFolder {
 public:
  PrivateFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "foreshard-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw invalid_input(
          "{}: no folder can be made there; TMPDIR names another", std::filesystem::temp_directory_path().string());
    }
    path_ = name;
  }
  ~PrivateFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  PrivateFolder& operator=(PrivateFolder&&) = delete;  // nor is it copied
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

const char* type_of(std::string_view file) {
  return file.ends_with(".html")  ? "text/html; charset=utf-8"
         : file.ends_with(".css") ? "text/css; charset=utf-8"
                                  : "text/javascript; charset=utf-8";
}

// The application's own files and those of the report's page that it draws with, by their names alone.
std::optional<HttpAnswer> asset(std::string_view name) {
  for (const auto files : {app_files(), page_files()}) {
    for (const EmbeddedFile& file : files) {
      const std::size_t slash = file.path.rfind('/');
      if (file.path.substr(slash == file.path.npos ? 0 : slash + 1) != name) continue;
      return HttpAnswer{200, type_of(name), std::string(file.content), ""};
    }
  }
  return std::nullopt;
}

std::optional<HttpAnswer> at_once(const HttpQuestion& question) {
  if (is_question(question.path)) return std::nullopt;
  if (question.path == "/") return asset("app.html");
  if (question.path == "/api/words") return HttpAnswer{200, "application/json", to_text(words_json()), ""};
  constexpr std::string_view kAssets = "/assets/";
  if (question.path.starts_with(kAssets)) {
    if (auto answer = asset(std::string_view(question.path).substr(kAssets.size()))) return answer;
  }
  return http_refusal(404, known_paths(), ExitCode::kUsage);
}

// What a browser is sent to: a name that the gate lets in.
std::string link(const ServeOptions& options, const std::string& token, int port) {
  const bool is_any = options.address == "0.0.0.0" || options.address == "::";
  std::string name = !options.hosts.empty() ? options.hosts.front() : is_any ? "127.0.0.1" : options.address;
  if (contains(name, ':') && !name.starts_with('[')) name = "[" + name + "]";
  return fmt::format("http://{}:{}/{}\n", name, port, token.empty() ? "" : "?token=" + token);
}

}

ExitCode run_serve(const ServeOptions& options) {
  if (options.no_token && !is_loopback_name(options.address)) {
    throw Error(ExitCode::kUsage,
        "serve --no-token: {} can be reached from other machines; only 127.0.0.1 is served without the token",
        options.address);
  }
  const PrivateFolder folder;
  HttpService service = {.address = options.address, .port = options.port};
  if (!options.no_token) service.gate.token = random_token();
  service.gate.own_names = options.hosts;
  service.folder = folder.path();
  service.at_once = at_once;
  service.lane = lane_of;
  service.work = [&](const HttpQuestion& question) { return answer_question(question, options.threads); };
  service.refusal = [](int status, const std::string& what) {
    return http_refusal(status, what, status == 500 ? ExitCode::kInternal : ExitCode::kUsage);
  };
  service.listening = [&](int port) { write_answer(link(options, service.gate.token, port)); };
  if (serve_http(service)) return ExitCode::kOk;
  throw invalid_input(
      "{}:{}: cannot be listened on; is it in use? --port takes another", options.address, options.port);
}

}
