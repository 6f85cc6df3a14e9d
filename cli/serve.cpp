// The verb that answers over HTTP: the report's page with a form in front of it, and the same
// answers as JSON. Jobs are named in words, never by files, so that a request reads nothing of the
// machine's; and a page of another site that has this machine's browser ask (DNS rebinding) is
// refused by the name it asks for.
//
// Signals are blocked before the server's threads begin, so that they all inherit it, and are
// awaited here: the first SIGINT or SIGTERM stops searches and the server, and the program ends
// with 0.
#include <fmt/format.h>
#include <httplib.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/full_report.h"
#include "cli/output.h"
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
  explicit Words(const httplib::Request& request) {
    for (const auto& [key, value] : request.params) add(key, value);
    if (request.body.empty() || !request.params.empty()) return;
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

class Server {
 public:
  explicit Server(const ServeOptions& options) : options_(options) {
    server_.set_payload_max_length(kMostRequestBytes);
    // By default two programs could share a port.
    server_.set_socket_options([](auto socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server_.new_task_queue = [] { return new httplib::ThreadPool(2); };
    server_.set_pre_routing_handler([this](const auto& request, auto& response) {
      if (is_ours(request.get_header_value("Host"))) return unhandled();
      refuse(response, 403, "this name is not served; ask for localhost", ExitCode::kUsage);
      return handled();
    });
    const auto json = [this](const char* path, Json (Server::*answer)(const Question&)) {
      const auto handler = [this, answer](const auto& request, auto& response) {
        guarded(response, [&] {
          const Question question = Words(request).question();
          response.set_content((this->*answer)(question).dump(2) + "\n", "application/json");
        });
      };
      server_.Get(path, handler);
      server_.Post(path, handler);
    };
    json("/api/predict", &Server::predict);
    json("/api/search", &Server::search_plans);
    json("/api/report", &Server::report);
    server_.Get("/", [this](const auto& request, auto& response) { page(request, response); });
    server_.set_error_handler([](const auto&, auto& response) {
      if (response.body.empty()) {
        refuse(response, response.status, "there are /, /api/predict, /api/search, /api/report",
               ExitCode::kUsage);
      }
    });
  }

  ExitCode run() {
    sigset_t ends, before;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, &before);
    const int port =
        options_.port > 0
            ? (server_.bind_to_port(options_.address.c_str(), options_.port) ? options_.port : -1)
            : server_.bind_to_any_port(options_.address.c_str());
    if (port < 0) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw Error(ExitCode::kInvalidInput,
                  fmt::format("{}:{}: cannot be listened on; is it in use? --port takes another",
                              options_.address, options_.port));
    }
    std::thread thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    write_answer(fmt::format("http://{}:{}/\n", options_.address, port));
    int signal = 0;
    sigwait(&ends, &signal);
    stopping_ = true;
    server_.stop();
    thread.join();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return ExitCode::kOk;
  }

 private:
  using Handled = httplib::Server::HandlerResponse;
  static Handled handled() { return Handled::Handled; }
  static Handled unhandled() { return Handled::Unhandled; }

  // Without its port.
  bool is_ours(std::string host) const {
    const std::size_t port = host.rfind(':');
    if (port != std::string::npos && host.find(']', port) == std::string::npos) host.resize(port);
    return host == "localhost" || host == "127.0.0.1" || host == "[::1]" ||
           host == options_.address;
  }

  static void refuse(httplib::Response& response, int status, const std::string& what,
                     ExitCode code) {
    response.status = status;
    const Json body = {{"error", what}, {"exit_code", static_cast<int>(code)}};
    response.set_content(body.dump() + "\n", "application/json");
  }

  static int status_of(ExitCode code) {
    return code == ExitCode::kMissingCapability ? 501
           : code == ExitCode::kInterrupted     ? 503
           : code == ExitCode::kInternal        ? 500
                                                : 400;
  }

  template <typename Work>
  static void guarded(httplib::Response& response, Work work) {
    try {
      work();
    } catch (const Error& error) {
      refuse(response, status_of(error.exit_code()), error.what(), error.exit_code());
    } catch (const std::exception& error) {
      refuse(response, 500, std::string("internal error: ") + error.what(), ExitCode::kInternal);
    }
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
    return Json::parse(document("foreshard.report/1", body));
  }

  Json search_plans(const Question& question) {
    const Job job = without_choices(load_job(question.job));
    const CostModel costs = cost_model(job);
    const auto start = std::chrono::steady_clock::now();
    const SearchResult result = search(space_of(job), job.model, costs, search_options());
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const auto report = [&](const Candidate& candidate) {
      return report_of(job, forecast(job.model, candidate.plan, costs), costs);
    };
    std::vector<Report> pareto;
    for (const Candidate& candidate : result.pareto) pareto.push_back(report(candidate));
    std::optional<Report> best;
    if (result.best) best = report(*result.best);
    return Json::parse(document("foreshard.search/1",
                                search_json(result, pareto, best ? &*best : nullptr, seconds)));
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
  void page(const httplib::Request& request, httplib::Response& response) {
    Json document = {{"schema", "foreshard.page/1"},
                     {"title", "Foreshard"},
                     {"selected", 0},
                     {"views", Json::array()},
                     {"timelines", Json::array()}};
    Json form = {{"models", zoo_names()}, {"values", Json::object()}, {"error", nullptr}};
    try {
      const Question question = Words(request).question();
      if (!question.is_empty) document = report(question);
    } catch (const Error& error) {
      form["error"] = error.what();
      response.status = status_of(error.exit_code());
    } catch (const std::exception& error) {
      form["error"] = std::string("internal error: ") + error.what();
      response.status = 500;
    }
    for (const auto& [key, value] : request.params) {
      Json& known = form["values"][key];
      known = known.is_null() ? value : known.get<std::string>() + " " + value;
    }
    document["form"] = std::move(form);
    response.set_content(html_page(document, PageHost::kServer), "text/html; charset=utf-8");
  }

  const ServeOptions& options_;
  httplib::Server server_;
  std::atomic<bool> stopping_ = false;
};

}  // namespace

ExitCode run_serve(const ServeOptions& options) { return Server(options).run(); }

}  // namespace foreshard
