// The module foreshard-http.so: cpp-httplib behind cli/http/service.h.
//
// Signals are blocked before the server's threads begin, so that they all inherit it, and are
// awaited here.
#include <httplib.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "cli/http/service.h"

namespace foreshard {
namespace {

void answer(const HttpService& service, const httplib::Request& request,
            httplib::Response& response) {
  HttpQuestion question{request.get_header_value("Host"), request.path, {}, request.body};
  for (const auto& word : request.params) question.words.push_back(word);
  const HttpAnswer given = service.answer(question);
  response.status = given.status;
  response.set_content(given.body, given.type.c_str());
}

}  // namespace
}  // namespace foreshard

extern "C" bool foreshard_serve_http(const foreshard::HttpService& service) {
  httplib::Server server;
  server.set_payload_max_length(service.most_request_bytes);
  server.new_task_queue = [&] {
    return new httplib::ThreadPool(static_cast<std::size_t>(service.threads));
  };
  // By default two programs could share a port.
  server.set_socket_options([](auto socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  const auto handler = [&](const auto& request, auto& response) {
    foreshard::answer(service, request, response);
  };
  server.Get(".*", handler);
  server.Post(".*", handler);

  sigset_t ends, before;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, &before);
  int port = service.port;
  if (port == 0) {
    port = server.bind_to_any_port(service.address.c_str());
  } else if (!server.bind_to_port(service.address.c_str(), port)) {
    port = -1;
  }
  if (port >= 0) {
    std::thread listener([&] { server.listen_after_bind(); });
    while (!server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    service.listening(port);
    int signal = 0;
    sigwait(&ends, &signal);
    service.ending();
    server.stop();
    listener.join();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return port >= 0;
}
