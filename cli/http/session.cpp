// Every step has a deadline of its own (tcp_stream::expires_after), for all of the step: a client
// that sends a byte now and then does not put it off.
#include "cli/http/session.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/base/json.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using std::chrono::seconds;

constexpr std::size_t kBytesPerSecond = 1 << 20;
constexpr seconds kLinger{2};  // for the client to read a refusal while it still sends

std::string_view view_of(beast::string_view text) { return {text.data(), text.size()}; }

void remove_file(const std::filesystem::path& path) {
  std::error_code kept;
  if (!path.empty()) std::filesystem::remove(path, kept);
}

}

Session::Session(SessionHost& host, tcp::socket socket) : host_(host), stream_(std::move(socket)), id_(0) {
  if (!host.sessions.empty()) id_ = host.sessions.rbegin()->first + 1;
  host.sessions[id_] = this;
}

Session::~Session() {
  remove_file(question_.body_file);
  host_.sessions.erase(id_);
  if (host_.is_ending && host_.sessions.empty()) host_.io.stop();
}

void Session::close() {
  Failure ignored;
  stream_.socket().close(ignored);
}

void Session::read() {
  const HttpBounds& bounds = host_.service.bounds;
  question_ = {};
  set_cookie_.clear();
  keep_alive_ = false;
  header_ = std::make_unique<Header>();
  header_->header_limit(static_cast<std::uint32_t>(bounds.header_bytes));
  header_->body_limit(bounds.upload_bytes);
  stream_.expires_after(seconds(bounds.header_seconds));
  http::async_read_header(stream_, buffer_, *header_,
      [self = shared_from_this()](Failure failure, std::size_t) { self->on_header(failure); });
}

void Session::refuse(int status, const char* what) {
  keep_alive_ = false;  // what it still sends is not read
  respond(host_.service.refusal(status, what));
}

void Session::on_header(Failure failure) {
  if (failure == http::error::header_limit || failure == http::error::body_limit)
    return refuse(413, "the request is too large");
  const bool has_left = failure == http::error::end_of_stream || failure == http::error::partial_message;
  if (failure && (has_left || failure.category() != make_error_code(http::error{}).category())) return close();
  if (failure) return refuse(400, "this is no HTTP request");

  const auto& request = header_->get();
  const std::string_view target = view_of(request.target());
  const std::size_t query = std::min(target.find('?'), target.size());
  question_.path = target.substr(0, query);
  question_.words = read_query(target.substr(std::min(query + 1, target.size())));
  question_.content_type = view_of(request[http::field::content_type]);
  if (!passes_gate()) return;
  keep_alive_ = request.keep_alive();
  if (request.method() == http::verb::get && header_->is_done()) return on_question();
  if (request.method() != http::verb::post) return refuse(405, "ask with GET or POST");
  const HttpBounds& bounds = host_.service.bounds;
  if (!is_multipart(question_.content_type))
    return read_body(std::make_unique<http::request_parser<http::string_body>>(std::move(*header_)), bounds.text_bytes);
  auto parser = std::make_unique<http::request_parser<http::file_body>>(std::move(*header_));
  question_.body_file = host_.jobs.new_path();
  question_.body_file += ".body";
  Failure no_file;
  parser->get().body().open(question_.body_file.c_str(), beast::file_mode::write_new, no_file);
  if (no_file) return refuse(503, "there is no room for the files sent");
  read_body(std::move(parser), bounds.upload_bytes);
}

bool Session::passes_gate() {
  const auto& request = header_->get();
  std::string token;
  std::erase_if(question_.words, [&](const auto& word) {
    if (word.first != "token") return false;
    token = word.second;
    return true;
  });
  Failure ignored;
  const std::string address = stream_.socket().local_endpoint(ignored).address().to_string();
  const auto refused = gate_refusal(host_.gate,
      {view_of(request[http::field::host]), view_of(request[http::field::origin]), view_of(request["Sec-Fetch-Site"]),
          view_of(request[http::field::cookie]), view_of(request[http::field::authorization]), token, address});
  if (!refused) {
    if (!token.empty() && token == host_.gate.token)
      set_cookie_ = host_.gate.cookie + "=" + token + "; Path=/; HttpOnly; SameSite=Strict";
    return true;
  }
  HttpAnswer answer = host_.service.refusal(403, *refused);
  if (contains(view_of(request[http::field::accept]), "text/html")) {
    answer.type = "text/plain; charset=utf-8";
    answer.body = "Foreshard: " + *refused + "\n";
  }
  respond(answer);
  return false;
}

template <typename Parser>
void Session::read_body(std::unique_ptr<Parser> parser, std::size_t most) {
  const std::uint64_t length = parser->content_length() ? *parser->content_length() : 0;
  if (length > most) return refuse(413, "the request is too large");
  parser->body_limit(most);
  stream_.expires_after(seconds(host_.service.bounds.body_seconds) + seconds(length / kBytesPerSecond));
  Parser& body = *parser;
  auto on_read = [self = shared_from_this(), parser = std::move(parser)](Failure failure, std::size_t) mutable {
    if (failure == http::error::body_limit) return self->refuse(413, "the request is too large");
    if (failure) return self->close();
    if constexpr (requires { parser->get().body().append(""); }) self->question_.body = std::move(parser->get().body());
    parser.reset();  // closes a file
    self->on_question();
  };
  if (body.get()[http::field::expect] != "100-continue")
    return http::async_read(stream_, buffer_, body, std::move(on_read));
  static constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(stream_, asio::buffer(kContinue, sizeof kContinue - 1),
      [this, &body, on_read = std::move(on_read)](Failure failure, std::size_t) mutable {
        if (!failure) http::async_read(stream_, buffer_, body, std::move(on_read));
      });
}

void Session::on_question() {
  if (const auto answer = host_.service.at_once(question_)) return respond(*answer);
  // The job holds the session, and the session the job, until it is done.
  job_ = host_.jobs.submit(question_, [self = shared_from_this()](const HttpAnswer& answer) {
    self->job_ = nullptr;
    remove_file(std::exchange(self->question_.body_file, {}));
    self->respond(answer);
  });
  if (job_ != nullptr) return watch();
  remove_file(std::exchange(question_.body_file, {}));
  respond(host_.service.refusal(503, "too many ask at once; ask again in a moment"));
}

// Bytes that come while a job runs are the next request's: they wait, and leaving is not seen then.
void Session::watch() {
  stream_.expires_never();
  stream_.socket().async_wait(tcp::socket::wait_read, [weak = weak_from_this(), job = job_](Failure failure) {
    const auto self = weak.lock();
    if (failure || !self || self->job_ != job) return;
    char byte = 0;
    const int socket = self->stream_.socket().native_handle();
    if (::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0) return;
    self->job_ = nullptr;
    self->close();
    self->host_.jobs.abandon(job);
  });
}

void Session::respond(const HttpAnswer& answer) {
  if (!stream_.socket().is_open()) return;
  Failure ignored;
  stream_.socket().cancel(ignored);  // of watch()
  if (host_.is_ending) keep_alive_ = false;
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
  if (!answer.command.empty()) response.set("Foreshard-Command", Json(answer.command).dump(-1, ' ', true));
  response.body() = answer.body;
  response.keep_alive(keep_alive_);
  response.prepare_payload();
  stream_.expires_after(seconds(host_.service.bounds.write_seconds));
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
    session.stream_.async_read_some(space, [again, self = std::move(self)](Failure failure, std::size_t) {
      failure ? self->close() : again(again, self);
    });
  };
  drop(drop, shared_from_this());
}

}
