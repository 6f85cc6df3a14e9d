// The verb that answers over HTTP: the report's page with a form in front of it, and the same
// answers as JSON. Jobs are named in words, never by files, so that a request reads nothing of the
// machine's; and a page of another site that has this machine's browser ask (DNS rebinding) is
// refused by the name it asks for.
#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "cli/full_report.h"
#include "cli/http/service.h"
#include "cli/output.h"
#include "cli/search_body.h"
#include "cli/search_space.h"
#include "cli/verbs.h"
#include "models/zoo.h"
#include "reports/views.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostRequestBytes = 65536;

struct Question {
  JobOptions job;
  bool is_empty = true;  // no job is named
};

// Of the query, or of a JSON object in the body: model, cluster, runtime, sequence, micro_batch,
// accumulation, and set, which may be repeated (a list in JSON).
class Words {
 public:
  explicit Words(const HttpQuestion& request) : words_(request.words) {
    if (request.body.empty() || !words_.empty()) return;
    const Json body = Json::parse(request.body, nullptr, false);
    if (!body.is_object()) throw Error(ExitCode::kInvalidInput, "the body is no JSON object");
    for (const auto& [key, value] : body.items()) {
      for (const Json& one : value.is_array() ? value : Json::array({value})) {
        add(key, one.is_string() ? one.get<std::string>() : one.dump());
      }
    }
  }

  Question question() const {
    Question question;
    question.job.assignments.resize(1);
    for (const auto& [key, value] : words_) {
      if (value.empty()) continue;
      question.is_empty = false;
      if (key == "model") {
        if (!is_zoo_model(value)) {
          throw Error(ExitCode::kInvalidInput,
                      fmt::format("model {}: expected a name that foreshard models lists", value));
        }
        question.job.model = value;
      } else if (key == "cluster") {
        if (value == "local" ||
            value.find_first_not_of("abcdefghijklmnopqrstuvwxyz"
                                    "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") != std::string::npos) {
          throw Error(
              ExitCode::kInvalidInput,
              fmt::format("cluster {}: expected GPUs and their kind, such as 64xh100", value));
        }
        question.job.cluster = value;
      } else if (key == "set") {
        question.job.assignments[0].push_back(assignment(value));
      } else {
        flag(question.job, key) = value;
      }
    }
    return question;
  }

 private:
  void add(const std::string& key, const std::string& value) { words_.emplace_back(key, value); }

  static std::string assignment(const std::string& text) {
    const std::string key = text.substr(0, text.find('='));
    if (key == "model" || key == "cluster") {
      throw Error(ExitCode::kInvalidInput,
                  fmt::format("set {}: give {} by its own name", text, key));
    }
    return text;
  }

  static std::optional<std::string>& flag(JobOptions& job, const std::string& key) {
    if (key == "runtime") return job.runtime;
    if (key == "sequence") return job.sequence;
    if (key == "micro_batch") return job.micro_batch;
    if (key == "accumulation") return job.accumulation;
    throw Error(ExitCode::kInvalidInput,
                fmt::format("unknown key '{}'; expected model, cluster, runtime, sequence, "
                            "micro_batch, accumulation or set",
                            key));
  }

  std::vector<std::pair<std::string, std::string>> words_;
};

int status_of(ExitCode code) {
  return code == ExitCode::kMissingCapability ? 501
         : code == ExitCode::kInterrupted     ? 503
         : code == ExitCode::kInternal        ? 500
                                              : 400;
}

HttpAnswer refusal(int status, const std::string& what, ExitCode code) {
  const Json body = {{"error", what}, {"exit_code", static_cast<int>(code)}};
  return {status, "application/json",
          body.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"};
}

class Server {
 public:
  explicit Server(const ServeOptions& options) : options_(options) {}

  HttpAnswer reply(const HttpQuestion& request) {
    if (!is_ours(request.host)) {
      return refusal(403, "this name is not served; ask for localhost", ExitCode::kUsage);
    }
    if (request.path == "/") return page(request);
    try {
      Json (Server::*ask)(const Question&) = request.path == "/api/predict"  ? &Server::predict
                                             : request.path == "/api/search" ? &Server::search_plans
                                             : request.path == "/api/report" ? &Server::report
                                                                             : nullptr;
      if (ask == nullptr) {
        return refusal(404, "there are /, /api/predict, /api/search, /api/report",
                       ExitCode::kUsage);
      }
      return {200, "application/json", to_text((this->*ask)(Words(request).question()))};
    } catch (const Error& error) {
      return refusal(status_of(error.exit_code()), error.what(), error.exit_code());
    } catch (const std::exception& error) {
      return refusal(500, std::string("internal error: ") + error.what(), ExitCode::kInternal);
    }
  }

  void stop() { stopping_ = true; }

 private:
  // Without its port.
  bool is_ours(std::string host) const {
    const std::size_t port = host.rfind(':');
    if (port != std::string::npos && host.find(']', port) == std::string::npos) host.resize(port);
    return host == "localhost" || host == "127.0.0.1" || host == "[::1]" ||
           host == options_.address;
  }

  SearchOptions search_options() {
    SearchOptions search;
    search.threads = options_.threads;
    search.progress = [this](std::int64_t, std::int64_t) { return !stopping_.load(); };
    return search;
  }

  Json predict(const Question& question) {
    const Answer a = answer(question.job);
    Json body = to_json(a.report);
    if (!a.shortfall.empty()) body["infeasible"] = a.infeasible;
    return document_json("foreshard.report/1", body);
  }

  Json search_plans(const Question& question) {
    const Job job = without_choices(load_job(question.job));
    const CostModel costs = cost_model(job);
    const auto start = std::chrono::steady_clock::now();
    const SearchResult result = search(space_of(job), job.model, costs, search_options());
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::optional<BestPlan> best;
    if (result.best) best = best_of(job, result.best->plan, costs);
    return document_json("foreshard.search/1",
                         search_body(job, result, best ? &*best : nullptr, costs, seconds));
  }

  Json report(const Question& question) {
    const Answer a = answer(question.job);
    PageDocument page(page_title(a.job), command(question));
    add_full_report(page, a, question.job, "", search_options());
    return page_json(page);
  }

  // What a shell would be told for the same report.
  static std::string command(const Question& question) {
    const JobOptions& job = question.job;
    std::string line = "foreshard report";
    const auto add = [&](const char* name, const std::optional<std::string>& value) {
      if (value) line += fmt::format(" {} {}", name, *value);
    };
    add("--model", job.model);
    add("--cluster", job.cluster);
    add("--runtime", job.runtime);
    add("--sequence", job.sequence);
    add("--micro-batch", job.micro_batch);
    add("--accumulation", job.accumulation);
    for (const std::string& assignment : job.assignments[0]) line += " --set '" + assignment + "'";
    return line + " --html report.html";
  }

  // A refusal stands in the page, above the form with what was asked.
  HttpAnswer page(const HttpQuestion& request) {
    HttpAnswer answer{200, "text/html; charset=utf-8", ""};
    Json document = {{"schema", "foreshard.page/1"},
                     {"title", "Foreshard"},
                     {"selected", 0},
                     {"views", Json::array()},
                     {"timelines", Json::array()}};
    Json form = {{"models", zoo_names()}, {"values", Json::object()}, {"error", nullptr}};
    const auto refuse = [&](int status, const std::string& what) {
      answer.status = status;
      form["error"] = what;
    };
    try {
      const Question question = Words(request).question();
      if (!question.is_empty) document = report(question);
    } catch (const Error& error) {
      refuse(status_of(error.exit_code()), error.what());
    } catch (const std::exception& error) {
      refuse(500, std::string("internal error: ") + error.what());
    }
    for (const auto& [key, value] : request.words) {
      Json& known = form["values"][key];
      known = known.is_null() ? value : known.get<std::string>() + " " + value;
    }
    document["form"] = std::move(form);
    answer.body = html_page(document, PageHost::kServer);
    return answer;
  }

  const ServeOptions& options_;
  std::atomic<bool> stopping_ = false;
};

// Beside the program. The module stays loaded: its code may be on a stack.
ServeHttp load_server() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path module = program.parent_path() / kHttpModule;
  void* library = ::dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* entry = library == nullptr ? nullptr : ::dlsym(library, kServeHttp);
  if (entry == nullptr) {
    throw Error(ExitCode::kMissingCapability,
                fmt::format("serve: {} cannot be loaded; build it with the package "
                            "libcpp-httplib-dev installed",
                            module.string()));
  }
  return reinterpret_cast<ServeHttp>(entry);
}

}  // namespace

ExitCode run_serve(const ServeOptions& options) {
  const ServeHttp serve_http = load_server();
  Server server(options);
  HttpService service;
  service.address = options.address;
  service.port = options.port;
  service.most_request_bytes = kMostRequestBytes;
  service.answer = [&](const HttpQuestion& question) { return server.reply(question); };
  service.listening = [&](int port) {
    write_answer(fmt::format("http://{}:{}/\n", options.address, port));
  };
  service.ending = [&] { server.stop(); };
  if (serve_http(service)) return ExitCode::kOk;
  throw Error(ExitCode::kInvalidInput,
              fmt::format("{}:{}: cannot be listened on; is it in use? --port takes another",
                          options.address, options.port));
}

}  // namespace foreshard
