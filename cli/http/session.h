// One client's connection. For server.cpp and session.cpp only: it brings Boost.Beast along.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cli/http/jobs.h"
// After jobs.h, which has what Boost 1.74 lacks.
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

namespace foreshard {

class Session;

// What the sessions of a server share.
struct SessionHost {
  const HttpService& service;
  HttpGate gate;
  boost::asio::io_context& io;
  Jobs& jobs;
  std::map<std::uint64_t, Session*> sessions;  // oldest first
  bool is_ending = false;
};

// Reads a request's header, asks the gate, reads the body, and then either answers at once or
// submits a job; then the next request. While its job waits or runs, it watches whether the client
// is still there. It lives as long as something is to come.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(SessionHost& host, boost::asio::ip::tcp::socket socket);
  ~Session();

  void read();
  void close();
  bool waits_for_client() const { return job_ == nullptr; }

 private:
  using Header = boost::beast::http::request_parser<boost::beast::http::empty_body>;
  using Failure = boost::system::error_code;

  void on_header(Failure failure);
  bool passes_gate();
  void refuse(int status, const char* what);
  template <typename Parser>
  void read_body(std::unique_ptr<Parser> parser, std::size_t most);
  void on_question();
  void watch();
  void respond(const HttpAnswer& answer);
  void linger();

  SessionHost& host_;
  boost::beast::tcp_stream stream_;
  std::uint64_t id_;
  boost::beast::flat_buffer buffer_;
  std::unique_ptr<Header> header_;
  std::unique_ptr<boost::beast::http::response<boost::beast::http::string_body>> response_;
  HttpQuestion question_;
  std::shared_ptr<HttpJob> job_;
  std::string set_cookie_;
  bool keep_alive_ = false;
};

}
