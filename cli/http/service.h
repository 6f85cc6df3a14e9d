// Between the verb serve and the HTTP server that it loads: a server knows nothing of Foreshard,
// and Foreshard nothing of HTTP. The server is a module of its own (bin/foreshard-http.so), because
// the library behind it brings TLS along, which would cost every other verb a tenth of its time to
// load.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace foreshard {

struct HttpQuestion {
  std::string host;  // the name that was asked for, as the request has it
  std::string path;
  std::vector<std::pair<std::string, std::string>> words;  // of the query, decoded
  std::string body;
};

struct HttpAnswer {
  int status = 200;
  std::string type = "application/json";
  std::string body;
};

struct HttpService {
  std::string address;
  int port = 0;  // 0: any that is free
  std::size_t most_request_bytes = 0;
  int threads = 2;
  std::function<HttpAnswer(const HttpQuestion&)> answer;  // of GET and POST; from any thread
  std::function<void(int port)> listening;                // once it does
  std::function<void()> ending;                           // a signal came; questions may still run
};

// Serves until SIGINT or SIGTERM, then waits for the questions that run. False: the port cannot be
// listened on. Call it before other threads begin, which would get the signals else.
using ServeHttp = bool (*)(const HttpService& service);
inline constexpr const char* kServeHttp = "foreshard_serve_http";  // exported by the module
inline constexpr const char* kHttpModule = "foreshard-http.so";    // beside the program

}  // namespace foreshard
