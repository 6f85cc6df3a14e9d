// A job's process writes its answer into a pipe, whose end is the job's. What passes the bounds of
// the quick lane begins again in the long one: nobody need know before how much a question takes.
#include "cli/http/jobs.h"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>

#include "sim/base/json.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

using Failure = boost::system::error_code;
using std::chrono::seconds;

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
  return HttpAnswer{head.value("status", 500), head.value("type", ""), std::move(text), head.value("command", "")};
}

}

Jobs::Jobs(boost::asio::io_context& io, const HttpService& service) : io_(io), service_(service) {
  const HttpBounds& b = service.bounds;
  at(HttpLane::kQuick) = {b.quick_at_once, {b.quick_cpu_seconds, b.quick_memory_bytes}, {}, {}};
  at(HttpLane::kLong) = {b.long_at_once, {b.long_cpu_seconds, b.long_memory_bytes}, {}, {}};
}

Jobs::~Jobs() {
  is_ending_ = true;
  for (Lane& lane : lanes_) {
    for (const auto& job : lane.running) {
      finish(*job);
      job->done = nullptr;  // it holds its session, which holds the job
    }
  }
}

std::filesystem::path Jobs::new_path() { return service_.folder / std::to_string(++paths_); }

std::shared_ptr<HttpJob> Jobs::submit(HttpQuestion question, std::function<void(const HttpAnswer&)> done) {
  const HttpLane lane = service_.lane(question);
  if (is_ending_ || at(lane).queue.size() >= service_.bounds.queued) return nullptr;
  auto job = std::make_shared<HttpJob>(io_, std::move(question), lane);
  job->done = std::move(done);
  at(lane).queue.push_back(job);
  begin(lane);
  return job;
}

void Jobs::abandon(const std::shared_ptr<HttpJob>& job) {
  job->done = [](const HttpAnswer&) {};
  stop(job, {});
}

void Jobs::end() {
  is_ending_ = true;
  for (Lane& lane : lanes_) {
    auto all = lane.running;
    append(all, lane.queue);
    for (const auto& job : all) stop(job, service_.refusal(503, "the server ends"));
  }
}

// Whatever the lane has room for.
void Jobs::begin(HttpLane which) {
  Lane& lane = at(which);
  while (!is_ending_ && !lane.queue.empty() && lane.running.size() < static_cast<std::size_t>(lane.slots)) {
    const auto job = lane.queue.front();
    try {
      start(job);
      lane.queue.pop_front();
    } catch (const std::exception& error) {
      stop(job, service_.refusal(503, error.what()));
    }
  }
}

void Jobs::start(const std::shared_ptr<HttpJob>& job) {
  Lane& lane = at(job->lane);
  job->folder = new_path();
  std::filesystem::create_directory(job->folder);
  job->child = start_child(lane.bounds, job->folder, [&] { return packed(service_.work(job->question)); });
  job->pipe.assign(job->child.output);
  lane.running.push_back(job);
  job->timer.expires_after(seconds(service_.bounds.wall_seconds));
  job->timer.async_wait([this, job](Failure failure) {
    if (!failure) stop(job, too_much(job->lane));
  });
  read_output(job);
}

void Jobs::read_output(const std::shared_ptr<HttpJob>& job) {
  job->pipe.async_read_some(
      boost::asio::buffer(job->chunk),
      [this, job](Failure failure, std::size_t count) {
        job->output.append(job->chunk, 0, count);
        if (job->output.size() > service_.bounds.answer_bytes) {
          job->output.clear();
          stop(job, service_.refusal(503, "the answer is too long to be sent"));
        }
        if (!failure) return read_output(job);
        if (failure != boost::asio::error::operation_aborted) on_end(job);
      });
}

void Jobs::on_end(const std::shared_ptr<HttpJob>& job) {
  const HttpLane was = job->lane;
  std::erase(at(was).running, job);
  const ChildEnd end = finish(*job);
  const bool passed_bounds = end == ChildEnd::kOutOfTime || end == ChildEnd::kOutOfMemory;
  if (!job->verdict && passed_bounds && was == HttpLane::kQuick) {
    job->lane = HttpLane::kLong;
    job->output.clear();
    at(job->lane).queue.push_back(job);
    begin(job->lane);
  } else {
    std::exchange(job->done, nullptr)(job->verdict ? *job->verdict : answer_of(*job, end));
  }
  begin(was);
}

// Its process is gone, or goes.
ChildEnd Jobs::finish(HttpJob& job) {
  Failure ignored;
  job.timer.cancel();
  job.pipe.close(ignored);
  if (job.verdict || is_ending_) ::kill(job.child.pid, SIGKILL);
  const ChildEnd end = end_of(job.child);
  job.child.pid = -1;
  std::error_code kept;
  std::filesystem::remove_all(job.folder, kept);
  return end;
}

// Ends it with `verdict`, wherever it is.
void Jobs::stop(const std::shared_ptr<HttpJob>& job, HttpAnswer verdict) {
  if (job->verdict) return;
  job->verdict = std::move(verdict);
  if (job->child.pid >= 0) ::kill(job->child.pid, SIGKILL);  // the pipe's end follows
  else if (std::erase(at(job->lane).queue, job) > 0)
    boost::asio::post(io_, [job] { std::exchange(job->done, nullptr)(*job->verdict); });
}

HttpAnswer Jobs::answer_of(HttpJob& job, ChildEnd end) {
  if (end == ChildEnd::kDone) {
    if (auto answer = unpacked(std::move(job.output))) return *std::move(answer);
  }
  if (end == ChildEnd::kOutOfTime || end == ChildEnd::kOutOfMemory) return too_much(job.lane);
  return service_.refusal(500, "internal error: the answer's process ended without one");
}

HttpAnswer Jobs::too_much(HttpLane lane) {
  const ChildBounds& bounds = at(lane).bounds;
  return service_.refusal(503, fmt::format("this takes more than {} s of computing or {} MiB, the most that a request "
                                           "may; ask foreshard on the command line",
                                   bounds.cpu_seconds, bounds.memory_bytes >> 20));
}

}
