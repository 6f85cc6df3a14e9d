// A connection is a Session: it reads a request's header, asks the gate, reads the body, and then
// either answers at once or hands a Job to its lane. A lane starts jobs while it has slots; the
// job's process writes its answer into a pipe. While a job waits or runs, its session watches
// whether the client is still there.
#include "cli/http/server.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

// Boost 1.74 needs <utility> before it.
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "cli/http/child.h"
#include "sim/base/error.h"
#include "sim/base/json.h"

namespace foreshard {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Failure = boost::system::error_code;
using asio::ip::tcp;
using std::chrono::seconds;

constexpr std::size_t kMiB = 1 << 20;
constexpr seconds kLinger{2};  // for the client to read a refusal while it still sends
constexpr seconds kLastWords{1};

std::string_view view_of(beast::string_view text) { return {text.data(), text.size()}; }

// An answer on its way through a pipe: one line of JSON, then the body.
std::string packed(const HttpAnswer& answer) {
  const Json head = {{"status", answer.status}, {"type", answer.type}, {"command", answer.command}};
  return head.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n" + answer.body;
}

std::optional<HttpAnswer> unpacked(std::string text) {
  const std::size_t end = text.find('\n');
  if (end == std::string::npos) return std::nullopt;
  const Json head = Json::parse(text.substr(0, end), nullptr, false);
  if (!head.is_object()) return std::nullopt;
  text.erase(0, end + 1);
  return HttpAnswer{head.value("status", 500), head.value("type", ""), std::move(text),
                    head.value("command", "")};
}

class Server;

// A request that waits for a process or has one.
struct Job : std::enable_shared_from_this<Job> {
  Job(asio::io_context& io, HttpQuestion asked, HttpLane lane_of)
      : question(std::move(asked)), lane(lane_of), pipe(io), timer(io) {}

  HttpQuestion question;
  HttpLane lane;
  std::filesystem::path folder;
  Child child;
  asio::posix::stream_descriptor pipe;
  asio::steady_timer timer;
  std::string output, chunk = std::string(64 << 10, '\0');
  std::optional<HttpAnswer> verdict;  // of whoever ended it before its time
  std::function<void(HttpAnswer)> done;
};

struct Lane {
  int slots = 1;
  ChildBounds bounds;
  std::deque<std::shared_ptr<Job>> queue;
  std::vector<std::shared_ptr<Job>> running;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Server& server, tcp::socket socket, std::uint64_t id)
      : server_(server), stream_(std::move(socket)), id_(id) {}
  ~Session();

  void read();
  void close() {
    Failure ignored;
    stream_.socket().close(ignored);
  }
  bool waits_for_client() const { return job_ == nullptr; }

 private:
  using Header = http::request_parser<http::empty_body>;

  void on_header(Failure failure);
  template <typename Parser>
  void read_body(std::unique_ptr<Parser> parser, std::size_t most);
  void on_question();
  void watch();
  void respond(const HttpAnswer& answer);
  void linger();

  Server& server_;
  beast::tcp_stream stream_;
  std::uint64_t id_;
  beast::flat_buffer buffer_;
  std::unique_ptr<Header> header_;
  std::unique_ptr<http::response<http::string_body>> response_;
  HttpQuestion question_;
  std::shared_ptr<Job> job_;
  std::string set_cookie_;
  bool keep_alive_ = false;
};

class Server {
 public:
  explicit Server(const HttpService& service)
      : service_(service), gate_(service.gate), acceptor_(io_), signals_(io_) {
    const HttpBounds& b = service.bounds;
    lanes_[0] = {b.quick_at_once, {b.quick_cpu_seconds, b.quick_memory_bytes}, {}, {}};
    lanes_[1] = {b.long_at_once, {b.long_cpu_seconds, b.long_memory_bytes}, {}, {}};
  }

  bool listen() {
    Failure failure;
    tcp::resolver resolver(io_);
    const auto found = resolver.resolve(service_.address, std::to_string(service_.port), failure);
    if (failure || found.empty()) return false;
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), failure);
    if (!failure) acceptor_.set_option(tcp::acceptor::reuse_address(true), failure);
    if (!failure) acceptor_.bind(endpoint, failure);
    if (!failure) acceptor_.listen(tcp::acceptor::max_listen_connections, failure);
    return !failure;
  }

  void run() {
    raise_descriptor_limit();
    for (int number : {SIGINT, SIGTERM, SIGHUP}) signals_.add(number);
    signals_.async_wait([this](Failure failure, int) {
      if (!failure) end();
    });
    const int port = acceptor_.local_endpoint().port();
    gate_.cookie += std::to_string(port);  // cookies are of a host, whatever the port
    service_.listening(port);
    accept();
    io_.run();
    for (Lane& lane : lanes_) {
      for (const auto& job : lane.running) {
        finish(*job);
        job->done = nullptr;
      }
    }
  }

  const HttpService& service() const { return service_; }
  bool is_ending() const { return is_ending_; }
  const HttpGate& gate() const { return gate_; }
  void forget(std::uint64_t session) {
    sessions_.erase(session);
    if (is_ending_ && sessions_.empty()) io_.stop();
  }

  std::filesystem::path new_path() { return service_.folder / std::to_string(++paths_); }

  // None: there is no room for it.
  std::shared_ptr<Job> submit(HttpQuestion question, std::function<void(HttpAnswer)> done) {
    const HttpLane lane = service_.lane(question);
    if (at(lane).queue.size() >= service_.bounds.queued) return nullptr;
    auto job = std::make_shared<Job>(io_, std::move(question), lane);
    job->done = std::move(done);
    at(lane).queue.push_back(job);
    start_jobs(lane);
    return job;
  }

  // Nobody wants its answer.
  void abandon(const std::shared_ptr<Job>& job) {
    job->done = [](const HttpAnswer&) {};
    stop(job, {});
  }

 private:
  Lane& at(HttpLane lane) { return lanes_[static_cast<std::size_t>(lane)]; }

  static void raise_descriptor_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }

  void accept() {
    acceptor_.async_accept([this](Failure failure, tcp::socket socket) {
      if (is_ending_) return;
      if (!failure) {
        if (sessions_.size() >= service_.bounds.connections) close_oldest();
        auto session = std::make_shared<Session>(*this, std::move(socket), ++accepted_);
        sessions_[accepted_] = session.get();
        session->read();
        accept();
        return;
      }
      // No descriptor is free, say: a moment later.
      close_oldest();
      pause_.expires_after(std::chrono::milliseconds(50));
      pause_.async_wait([this](Failure) { accept(); });
    });
  }

  void close_oldest() {
    for (const auto& [id, session] : sessions_) {
      if (session->waits_for_client()) return session->close();
    }
  }

  void start_jobs(HttpLane which) {
    Lane& lane = at(which);
    while (!is_ending_ && !lane.queue.empty() &&
           lane.running.size() < static_cast<std::size_t>(lane.slots)) {
      const auto job = lane.queue.front();
      lane.queue.pop_front();
      try {
        start(job);
      } catch (const std::exception& error) {
        asio::post(io_, [done = job->done, answer = service_.refusal(503, error.what())] {
          done(answer);
        });
      }
    }
  }

  void start(const std::shared_ptr<Job>& job) {
    Lane& lane = at(job->lane);
    job->folder = new_path();
    std::filesystem::create_directory(job->folder);
    job->child =
        start_child(lane.bounds, job->folder, [&] { return packed(service_.work(job->question)); });
    job->pipe.assign(job->child.output);
    lane.running.push_back(job);
    job->timer.expires_after(seconds(service_.bounds.wall_seconds));
    job->timer.async_wait([this, job](Failure failure) {
      if (!failure) stop(job, service_.refusal(503, too_long(job->lane)));
    });
    read_output(job);
  }

  void read_output(const std::shared_ptr<Job>& job) {
    job->pipe.async_read_some(
        asio::buffer(job->chunk), [this, job](Failure failure, std::size_t count) {
          job->output.append(job->chunk, 0, count);
          if (job->output.size() > service_.bounds.answer_bytes) {
            job->output.clear();
            stop(job, service_.refusal(503, "the answer is too long to be sent"));
          }
          if (!failure) return read_output(job);
          on_end(job);
        });
  }

  // Its process is gone, or goes.
  void on_end(const std::shared_ptr<Job>& job) {
    Lane& lane = at(job->lane);
    std::erase(lane.running, job);
    const ChildEnd end = finish(*job);
    const HttpLane was = job->lane;
    const bool passed_bounds = end == ChildEnd::kOutOfTime || end == ChildEnd::kOutOfMemory;
    if (!job->verdict && passed_bounds && was == HttpLane::kQuick && !is_ending_) {
      job->lane = HttpLane::kLong;
      job->output.clear();
      at(job->lane).queue.push_back(job);
      start_jobs(job->lane);
    } else {
      job->done(job->verdict ? *std::move(job->verdict) : answer_of(*job, end));
      job->done = nullptr;
    }
    start_jobs(was);
  }

  ChildEnd finish(Job& job) {
    Failure ignored;
    job.timer.cancel();
    job.pipe.close(ignored);
    if (job.child.pid < 0) return ChildEnd::kFailed;
    if (job.verdict || is_ending_) ::kill(job.child.pid, SIGKILL);
    const ChildEnd end = end_of(job.child);
    job.child.pid = -1;
    std::error_code kept;
    std::filesystem::remove_all(job.folder, kept);
    return end;
  }

  std::string too_long(HttpLane lane) {
    const ChildBounds& bounds = at(lane).bounds;
    return "this takes more than " + std::to_string(bounds.cpu_seconds) + " s of computing or " +
           std::to_string(bounds.memory_bytes / static_cast<std::int64_t>(kMiB)) +
           " MiB, the most that a request may; ask foreshard on the command line";
  }

  HttpAnswer answer_of(Job& job, ChildEnd end) {
    if (end == ChildEnd::kDone) {
      if (auto answer = unpacked(std::move(job.output))) return *std::move(answer);
    }
    if (end == ChildEnd::kOutOfTime || end == ChildEnd::kOutOfMemory) {
      return service_.refusal(503, too_long(job.lane));
    }
    return service_.refusal(500, "internal error: the answer's process ended without one");
  }

  // Ends it with `verdict`, wherever it is.
  void stop(const std::shared_ptr<Job>& job, HttpAnswer verdict) {
    if (job->verdict) return;
    job->verdict = std::move(verdict);
    if (job->child.pid >= 0) {
      ::kill(job->child.pid, SIGKILL);  // the pipe's end follows
    } else if (std::erase(at(job->lane).queue, job) > 0) {
      asio::post(io_, [job] { job->done(*job->verdict); });
    }
  }

  void end() {
    if (std::exchange(is_ending_, true)) return;
    Failure ignored;
    acceptor_.close(ignored);
    for (Lane& lane : lanes_) {
      for (const auto& job : std::exchange(lane.queue, {})) {
        asio::post(io_, [this, job] { job->done(service_.refusal(503, "the server ends")); });
      }
      for (const auto& job : lane.running) stop(job, service_.refusal(503, "the server ends"));
    }
    for (const auto& [id, session] : sessions_) {
      if (session->waits_for_client()) session->close();
    }
    if (sessions_.empty()) return io_.stop();
    pause_.expires_after(kLastWords);
    pause_.async_wait([this](Failure) { io_.stop(); });
  }

  const HttpService& service_;
  HttpGate gate_;
  std::map<std::uint64_t, Session*> sessions_;  // oldest first
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::signal_set signals_;
  asio::steady_timer pause_{io_};
  std::uint64_t accepted_ = 0, paths_ = 0;
  Lane lanes_[2];
  bool is_ending_ = false;
};

Session::~Session() { server_.forget(id_); }

void Session::read() {
  const HttpBounds& bounds = server_.service().bounds;
  question_ = {};
  set_cookie_.clear();
  keep_alive_ = false;
  header_ = std::make_unique<Header>();
  header_->header_limit(static_cast<std::uint32_t>(bounds.header_bytes));
  header_->body_limit(bounds.upload_bytes);
  stream_.expires_after(seconds(bounds.header_seconds));
  http::async_read_header(
      stream_, buffer_, *header_,
      [self = shared_from_this()](Failure failure, std::size_t) { self->on_header(failure); });
}

void Session::on_header(Failure failure) {
  const HttpService& service = server_.service();
  if (failure == http::error::header_limit || failure == http::error::body_limit) {
    return respond(service.refusal(413, "the request is too large"));
  }
  if (failure.category() == http::make_error_code(http::error::bad_method).category() &&
      failure != http::error::end_of_stream && failure != http::error::partial_message) {
    return respond(service.refusal(400, "this is no HTTP request"));
  }
  if (failure) return close();

  const auto& request = header_->get();
  const std::string_view target = view_of(request.target());
  const std::size_t query = std::min(target.find('?'), target.size());
  question_.path = target.substr(0, query);
  question_.words = read_query(target.substr(std::min(query + 1, target.size())));
  question_.content_type = view_of(request[http::field::content_type]);
  std::string token;
  std::erase_if(question_.words, [&](const auto& word) {
    if (word.first != "token") return false;
    token = word.second;
    return true;
  });
  Failure ignored;
  const std::string address = stream_.socket().local_endpoint(ignored).address().to_string();
  const HttpCaller caller{view_of(request[http::field::host]),
                          view_of(request[http::field::origin]),
                          view_of(request["Sec-Fetch-Site"]),
                          view_of(request[http::field::cookie]),
                          view_of(request[http::field::authorization]),
                          token,
                          address};
  if (const auto refused = gate_refusal(server_.gate(), caller)) {
    return respond(service.refusal(403, *refused));
  }
  if (!token.empty() && !server_.gate().token.empty()) {
    set_cookie_ = server_.gate().cookie + "=" + token + "; Path=/; HttpOnly; SameSite=Strict";
  }
  keep_alive_ = request.keep_alive();
  if (request.method() == http::verb::get && header_->is_done()) return on_question();
  if (request.method() != http::verb::post) {
    keep_alive_ = false;  // its body is not read
    return respond(service.refusal(405, "ask with GET or POST"));
  }
  if (is_multipart(question_.content_type)) {
    auto parser = std::make_unique<http::request_parser<http::file_body>>(std::move(*header_));
    question_.body_file = server_.new_path();
    question_.body_file += ".body";
    Failure no_file;
    parser->get().body().open(question_.body_file.c_str(), beast::file_mode::write_new, no_file);
    if (no_file) return respond(service.refusal(503, "there is no room for the files sent"));
    read_body(std::move(parser), service.bounds.upload_bytes);
  } else {
    read_body(std::make_unique<http::request_parser<http::string_body>>(std::move(*header_)),
              service.bounds.text_bytes);
  }
}

template <typename Parser>
void Session::read_body(std::unique_ptr<Parser> parser, std::size_t most) {
  const HttpService& service = server_.service();
  const std::uint64_t length = parser->content_length() ? *parser->content_length() : 0;
  if (length > most) {
    keep_alive_ = false;
    return respond(service.refusal(413, "the request is too large"));
  }
  parser->body_limit(most);
  stream_.expires_after(seconds(service.bounds.body_seconds) + seconds(length / kMiB));
  Parser& read_into = *parser;
  const auto read = [this, &read_into](auto then) {
    http::async_read(stream_, buffer_, read_into, std::move(then));
  };
  auto on_read = [self = shared_from_this(), parser = std::move(parser)](Failure failure,
                                                                         std::size_t) mutable {
    if (failure == http::error::body_limit) {
      self->keep_alive_ = false;
      return self->respond(self->server_.service().refusal(413, "the request is too large"));
    }
    if (failure) {
      std::error_code kept;
      std::filesystem::remove(self->question_.body_file, kept);
      return self->close();
    }
    if constexpr (requires { parser->get().body().append(""); }) {
      self->question_.body = std::move(parser->get().body());
    }
    parser.reset();  // closes a file
    self->on_question();
  };
  if (read_into.get()[http::field::expect] == "100-continue") {
    static constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(stream_, asio::buffer(kContinue, sizeof kContinue - 1),
                      [read, on_read = std::move(on_read)](Failure failure, std::size_t) mutable {
                        if (!failure) read(std::move(on_read));
                      });
  } else {
    read(std::move(on_read));
  }
}

void Session::on_question() {
  const HttpService& service = server_.service();
  if (const auto answer = service.at_once(question_)) return respond(*answer);
  // The job holds the session, and the session the job, until it is done.
  const std::filesystem::path body_file = question_.body_file;
  job_ = server_.submit(std::move(question_),
                        [self = shared_from_this(), body_file](const HttpAnswer& answer) {
                          std::error_code kept;
                          if (!body_file.empty()) std::filesystem::remove(body_file, kept);
                          self->job_ = nullptr;
                          self->respond(answer);
                        });
  if (job_ == nullptr) {
    std::error_code kept;
    if (!body_file.empty()) std::filesystem::remove(body_file, kept);
    return respond(service.refusal(503, "too many ask at once; ask again in a moment"));
  }
  watch();
}

// Bytes that come while a job runs are the next request's: they wait, and leaving is not seen then.
void Session::watch() {
  stream_.expires_never();
  stream_.socket().async_wait(
      tcp::socket::wait_read, [weak = weak_from_this(), job = job_](Failure failure) {
        const auto self = weak.lock();
        if (failure || !self || self->job_ != job || job == nullptr) return;
        char byte = 0;
        const ssize_t got =
            ::recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (got > 0) return;
        self->job_ = nullptr;
        self->close();
        self->server_.abandon(job);
      });
}

void Session::respond(const HttpAnswer& answer) {
  if (!stream_.socket().is_open()) return;
  Failure ignored;
  stream_.socket().cancel(ignored);  // of watch()
  if (server_.is_ending()) keep_alive_ = false;
  response_ = std::make_unique<http::response<http::string_body>>();
  auto& response = *response_;
  response.result(static_cast<unsigned>(answer.status));
  response.set(http::field::content_type, answer.type);
  response.set(http::field::cache_control, "no-store");
  response.set("Content-Security-Policy", "frame-ancestors 'none'");
  response.set("Cross-Origin-Resource-Policy", "same-origin");
  response.set("Referrer-Policy", "no-referrer");
  response.set("X-Content-Type-Options", "nosniff");
  if (!set_cookie_.empty()) response.set(http::field::set_cookie, set_cookie_);
  if (answer.status == 503) response.set(http::field::retry_after, "1");
  if (!answer.command.empty()) {
    response.set("Foreshard-Command", Json(answer.command).dump(-1, ' ', true));
  }
  response.body() = answer.body;
  response.keep_alive(keep_alive_);
  response.prepare_payload();
  stream_.expires_after(seconds(server_.service().bounds.write_seconds));
  http::async_write(stream_, response, [self = shared_from_this()](Failure failure, std::size_t) {
    self->response_.reset();
    if (failure) return self->close();
    self->keep_alive_ ? self->read() : self->linger();
  });
}

// A connection that is closed with bytes unread takes what was just written from the client.
void Session::linger() {
  Failure ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  stream_.expires_after(kLinger);
  const auto drop = [](auto again, std::shared_ptr<Session> self) -> void {
    self->buffer_.clear();
    auto space = self->buffer_.prepare(16 << 10);
    Session& session = *self;
    session.stream_.async_read_some(space,
                                    [again, self = std::move(self)](Failure failure, std::size_t) {
                                      failure ? self->close() : again(again, self);
                                    });
  };
  drop(drop, shared_from_this());
}

}  // namespace

bool serve_http(const HttpService& service) {
  Server server(service);
  if (!server.listen()) return false;
  server.run();
  return true;
}

}  // namespace foreshard
