// Requests that take time: each runs in a process of its own, a few of each lane at once; the
// others wait. For server.cpp and session.cpp only: it brings Boost.Asio along.
#pragma once

#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// Boost 1.74 needs <utility> before it.
#include <boost/asio.hpp>

#include "cli/http/child.h"
#include "cli/http/server.h"

namespace foreshard {

struct HttpJob {
  HttpJob(boost::asio::io_context& io, HttpQuestion asked, HttpLane of)
      : question(std::move(asked)), lane(of), pipe(io), timer(io) {}

  HttpQuestion question;
  HttpLane lane;
  std::function<void(const HttpAnswer&)> done;
  std::filesystem::path folder;
  Child child;
  boost::asio::posix::stream_descriptor pipe;
  boost::asio::steady_timer timer;
  std::string output, chunk = std::string(64 << 10, '\0');
  std::optional<HttpAnswer> verdict;  // of whoever ended it before its time
};

class Jobs {
 public:
  Jobs(boost::asio::io_context& io, const HttpService& service);
  ~Jobs();
  Jobs& operator=(Jobs&&) = delete;  // nor is it copied

  // `done` gets the answer, later and once. nullptr: there is no room for it.
  std::shared_ptr<HttpJob> submit(HttpQuestion question, std::function<void(const HttpAnswer&)> done);
  // Nobody wants its answer: `done` is dropped, what runs is ended.
  void abandon(const std::shared_ptr<HttpJob>& job);
  // What waits and runs gets a 503, and nothing begins from now on.
  void end();

  std::filesystem::path new_path();  // in the service's folder

 private:
  struct Lane {
    int slots = 1;
    ChildBounds bounds;
    std::deque<std::shared_ptr<HttpJob>> queue;
    std::vector<std::shared_ptr<HttpJob>> running;
  };

  Lane& at(HttpLane lane) { return lanes_[static_cast<std::size_t>(lane)]; }
  void begin(HttpLane which);
  void start(const std::shared_ptr<HttpJob>& job);
  void read_output(const std::shared_ptr<HttpJob>& job);
  void on_end(const std::shared_ptr<HttpJob>& job);
  ChildEnd finish(HttpJob& job);
  void stop(const std::shared_ptr<HttpJob>& job, HttpAnswer verdict);
  HttpAnswer answer_of(HttpJob& job, ChildEnd end);
  HttpAnswer too_much(HttpLane lane);

  boost::asio::io_context& io_;
  const HttpService& service_;
  Lane lanes_[2];
  std::uint64_t paths_ = 0;
  bool is_ending_ = false;
};

}
