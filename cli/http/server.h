// An HTTP server that knows nothing of Foreshard, and Foreshard nothing of HTTP.
//
// One thread reads and writes for everybody (Boost.Asio), so that a slow client holds a connection and nothing else;
// what takes time runs in processes of their own (child.h), a few at a time, and ends when its client leaves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "cli/http/form.h"
#include "cli/http/gate.h"

namespace foreshard {

struct HttpQuestion {
  std::string path;
  HttpWords words;  // of the query
  std::string content_type;
  std::string body;                 // unless it is
  std::filesystem::path body_file;  // multipart
};

struct HttpAnswer {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::string command;  // what a shell would be told for the same
};

// What one request may take. Work that passes the bounds of kQuick begins again as kLong.
enum class HttpLane : std::uint8_t { kQuick, kLong };

// The bounds of the server, all of them; docs/serve.md says them.
struct HttpBounds {
  std::size_t header_bytes = 16 << 10;
  std::size_t text_bytes = 64 << 10;  // of a body that is no multipart/form-data
  std::uint64_t upload_bytes = 256 << 20;
  std::size_t answer_bytes = 64 << 20;
  std::size_t connections = 512;  // one more closes the oldest that waits for its client
  std::size_t queued = 32;        // requests of a lane that wait
  int header_seconds = 10;        // to send all of it, and between two requests
  int body_seconds = 10;          // and one for each MiB
  int write_seconds = 30;
  int quick_cpu_seconds = 2, long_cpu_seconds = 120;
  int wall_seconds = 120;
  std::int64_t quick_memory_bytes = 64 << 20, long_memory_bytes = 384 << 20;
  int quick_at_once = 2, long_at_once = 2;
};

struct HttpService {
  std::string address;
  int port = 0;  // 0: any that is free
  HttpGate gate;
  HttpBounds bounds;
  std::filesystem::path folder;  // a private one, for files of requests
  // What costs nothing: from this process. None: `work` answers.
  std::function<std::optional<HttpAnswer>(const HttpQuestion&)> at_once;
  std::function<HttpLane(const HttpQuestion&)> lane;
  // In a process of its own and a folder of its own, where it may write.
  std::function<HttpAnswer(const HttpQuestion&)> work;
  std::function<HttpAnswer(int status, const std::string& what)> refusal;
  std::function<void(int port)> listening;  // once it does
};

// Serves until SIGINT, SIGTERM or SIGHUP, and then ends what runs: its clients get a 503, within a
// second. False: the port cannot be listened on. This process must have one thread.
bool serve_http(const HttpService& service);

}
