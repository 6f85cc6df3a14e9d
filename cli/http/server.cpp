#include "cli/http/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "cli/http/session.h"

namespace foreshard {
namespace {

namespace asio = boost::asio;
using Failure = boost::system::error_code;
using asio::ip::tcp;

constexpr std::chrono::seconds kLastWords{1};
constexpr std::chrono::milliseconds kPause{50};  // where no descriptor is free, say
constexpr rlim_t kMostDescriptors = 4096;

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kMostDescriptors));
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

class Server {
 public:
  explicit Server(const HttpService& service)
      : host_{service, service.gate, io_, jobs_, {}, false}, jobs_(io_, service) {}

  bool listen() {
    Failure failure;
    const auto found = tcp::resolver(io_).resolve(host_.service.address, std::to_string(host_.service.port), failure);
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
    host_.gate.cookie += std::to_string(port);  // cookies are of a host, whatever the port
    accept();
    host_.service.listening(port);
    io_.run();
    host_.is_ending = false;  // what is left of sessions has nothing to stop
  }

 private:
  void accept() {
    acceptor_.async_accept([this](Failure failure, tcp::socket socket) {
      if (host_.is_ending) return;
      const bool is_full = host_.sessions.size() >= host_.service.bounds.connections;
      if (failure || is_full) close_oldest();
      if (!failure) {
        std::make_shared<Session>(host_, std::move(socket))->read();
        return accept();
      }
      timer_.expires_after(kPause);
      timer_.async_wait([this](Failure) {
        if (!host_.is_ending) accept();
      });
    });
  }

  void close_oldest() {
    for (const auto& [id, session] : host_.sessions)
      if (session->waits_for_client()) return session->close();
  }

  void end() {
    host_.is_ending = true;
    Failure ignored;
    acceptor_.close(ignored);
    jobs_.end();
    for (const auto& [id, session] : host_.sessions)
      if (session->waits_for_client()) session->close();
    if (host_.sessions.empty()) return io_.stop();
    timer_.expires_after(kLastWords);
    timer_.async_wait([this](Failure) { io_.stop(); });
  }

  SessionHost host_;  // longer than the sessions that `io_` holds
  asio::io_context io_{1};
  Jobs jobs_;
  tcp::acceptor acceptor_{io_};
  asio::signal_set signals_{io_};
  asio::steady_timer timer_{io_};
};

}

bool serve_http(const HttpService& service) {
  Server server(service);
  if (!server.listen()) return false;
  server.run();
  return true;
}

}
