// The store's socket listens before the first rank starts, its server runs after the last one is
// started: a fork copies no thread. Each rank is a process group of its own, so that Ctrl-C reaches
// it once, through us. Signals come through a signalfd into one poll() with the ranks' output.
//
// A job is running, failing (a rank failed) or interrupted (we were told to stop). The last two have a deadline after
// which the ranks left get SIGTERM, and then SIGKILL. A rank that a signal killed before we killed any is the cause of
// what the others say, so it is written to the store at once.
#include "exec/launch/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "exec/comm/failure_board.h"
#include "exec/comm/job_store.h"
#include "exec/comm/sockets.h"
#include "sim/base/error.h"

extern char** environ;

namespace foreshard {
namespace {

// Copies what arrives on a pipe to standard error, whole lines with a prefix.
// Lines are written with one write each, so that those of several ranks do not mix.
class LineForwarder {
 public:
  // Owns `pipe`, which does not block.
  LineForwarder(int pipe, std::string prefix);
  ~LineForwarder();  // writes the rest, a line without its end too
  LineForwarder(LineForwarder&& other) noexcept;
  LineForwarder& operator=(LineForwarder&&) = delete;

  int pipe() const { return pipe_; }  // -1: at its end
  void forward();                     // what is there now

 private:
  int pipe_;
  std::string prefix_;
  std::string rest_;
};

void write_whole(const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::write(STDERR_FILENO, text.data() + done, text.size() - done);
    if (count <= 0) return;  // nobody reads our standard error
    done += at(count);
  }
}

LineForwarder::LineForwarder(int pipe, std::string prefix) : pipe_(pipe), prefix_(std::move(prefix)) {}

LineForwarder::LineForwarder(LineForwarder&& other) noexcept
    : pipe_(std::exchange(other.pipe_, -1)), prefix_(std::move(other.prefix_)), rest_(std::exchange(other.rest_, "")) {}

LineForwarder::~LineForwarder() {
  forward();
  if (!rest_.empty()) write_whole(prefix_ + rest_ + "\n");
  if (pipe_ >= 0) ::close(pipe_);
}

void LineForwarder::forward() {
  char bytes[4096];
  while (pipe_ >= 0) {
    const ssize_t count = ::read(pipe_, bytes, sizeof bytes);
    if (count < 0) return;  // nothing more for now
    if (count == 0) {
      ::close(std::exchange(pipe_, -1));
      return;
    }
    rest_.append(bytes, at(count));
    std::string lines;
    for (std::size_t end = 0; (end = rest_.find('\n')) != std::string::npos; rest_.erase(0, end + 1))
      lines += prefix_ + rest_.substr(0, end + 1);
    write_whole(lines);
  }
}

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr int kFailedLaunch = static_cast<int>(ExitCode::kLaunchFailure);
constexpr int kInterrupted = static_cast<int>(ExitCode::kInterrupted);

void say(const std::string& text) { std::fputs(fmt::format("error: {}\n", text).c_str(), stderr); }

sigset_t handled_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::sigaddset(&signals, signal);
  return signals;
}

// Takes the signals while it lives.
class Signals {
 public:
  Signals() {
    const sigset_t signals = handled_signals();
    ::sigprocmask(SIG_BLOCK, &signals, &before_);
    fd_ = ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    FORESHARD_CHECK(fd_ >= 0, "no signalfd");
  }
  ~Signals() {
    ::close(fd_);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  Signals& operator=(Signals&&) = delete;  // nor is it copied

  int fd() const { return fd_; }
  const sigset_t& before() const { return before_; }
  // The next one that came; 0: none.
  int next() const {
    signalfd_siginfo info{};
    return ::read(fd_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t before_{};
  int fd_ = -1;
};

// Our environment with the rank's place in it.
std::vector<std::string> environment_of(int rank, int ranks, int port) {
  const std::vector<std::string> own = {
      fmt::format("RANK={}", rank),
      fmt::format("WORLD_SIZE={}", ranks),
      fmt::format("LOCAL_RANK={}", rank),
      fmt::format("LOCAL_WORLD_SIZE={}", ranks),
      "MASTER_ADDR=127.0.0.1",
      fmt::format("MASTER_PORT={}", port),
      "TORCHELASTIC_USE_AGENT_STORE=True",
      "TORCHELASTIC_RESTART_COUNT=0",
      "FORESHARD_SPAWNED=1",
      fmt::format("FORESHARD_RUN_ID=spawn-{}", ::getpid()),
  };
  std::vector<std::string> all = own;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string variable = *entry;
    const std::string name = variable.substr(0, variable.find('=') + 1);
    const bool replaced = std::ranges::any_of(own, [&](const std::string& ours) { return ours.starts_with(name); });
    if (!replaced) all.push_back(variable);
  }
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  auto result = list_of<char*>(texts, [&](std::string& text) { return text.data(); });
  result.push_back(nullptr);
  return result;
}

struct Rank {
  int process = -1;
  std::optional<int> status;  // of waitpid, once it is over
};

class Job {
 public:
  Job(int ranks, const SpawnOptions& options) : options_(options), ranks_(at(ranks)) {}

  ~Job() {  // also when a rank could not be started
    signal_all(SIGKILL);
    for (Rank& rank : ranks_)
      if (rank.process > 0 && !rank.status) ::waitpid(rank.process, nullptr, 0);
  }

  int run() {
    const int socket = listen_socket(ListenOn::kLoopback, 0);
    const int port = port_of(socket);
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) start(rank, port);
    const std::string run_id = fmt::format("spawn-{}/0", ::getpid());
    store_ = JobStore::serve(socket, {"127.0.0.1", port}, run_id);
    while (running() > 0) {
      wait_for_news();
      take_signals();
      collect_ended();
      hurry();
    }
    if (interrupted_) return kInterrupted;
    return failure_ ? failure_->code : 0;
  }

 private:
  struct Failure {
    int code = 0;
    std::string text;
  };

  void start(int rank, int port) {
    std::vector<std::string> arguments = options_.arguments;
    std::vector<std::string> environment = environment_of(rank, static_cast<int>(ranks_.size()), port);
    const std::vector<char*> argv = pointers(arguments);
    const std::vector<char*> envp = pointers(environment);
    int output[2] = {-1, -1};
    if (rank > 0) FORESHARD_CHECK(::pipe2(output, O_CLOEXEC) == 0, "no pipe");
    const int parent = ::getpid();
    std::fflush(nullptr);
    const int process = ::fork();
    if (process == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(kFailedLaunch);  // it died before the line above
      ::setpgid(0, 0);
      ::sigprocmask(SIG_SETMASK, &signals_.before(), nullptr);
      const int nothing = ::open("/dev/null", O_RDONLY);
      ::dup2(nothing, STDIN_FILENO);
      if (rank > 0) {
        ::dup2(output[1], STDOUT_FILENO);
        ::dup2(output[1], STDERR_FILENO);
      }
      ::execve(options_.program.c_str(), argv.data(), envp.data());
      say(fmt::format("{} cannot be started: {}", options_.program, std::strerror(errno)));
      ::_exit(kFailedLaunch);
    }
    if (process < 0) throw Error(ExitCode::kLaunchFailure, "rank {} cannot be started: {}", rank, std::strerror(errno));
    ranks_[at(rank)].process = process;
    if (rank == 0) return;
    ::close(output[1]);
    ::fcntl(output[0], F_SETFL, O_NONBLOCK);
    outputs_.emplace_back(output[0], fmt::format("[rank {}] ", rank));
  }

  std::ptrdiff_t running() const {
    return std::ranges::count_if(
        ranks_, [](const Rank& rank) { return !rank.status.has_value(); });
  }

  void signal_all(int signal) {
    for (const Rank& rank : ranks_)
      if (rank.process > 0 && !rank.status) ::kill(rank.process, signal);
  }

  void wait_for_news() {
    std::vector<pollfd> sources = {{signals_.fd(), POLLIN, 0}};
    for (const LineForwarder& output : outputs_) sources.push_back({output.pipe(), POLLIN, 0});
    int limit = -1;
    if (deadline_) {
      const auto left = std::chrono::ceil<milliseconds>(*deadline_ - Clock::now());
      limit = static_cast<int>(std::max<milliseconds::rep>(0, left.count()));
    }
    ::poll(sources.data(), sources.size(), limit);
    for (LineForwarder& output : outputs_) output.forward();
  }

  void take_signals() {
    while (const int signal = signals_.next()) {
      if (signal == SIGCHLD) continue;
      const bool again = interrupted_;
      interrupted_ = true;
      if (again) {
        deadline_ = Clock::now();
        continue;
      }
      signal_all(signal);
      deadline_ = Clock::now() + options_.interrupt_grace;
    }
  }

  void collect_ended() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      int status = 0;
      if (ranks_[rank].status || ::waitpid(ranks_[rank].process, &status, WNOHANG) <= 0) continue;
      ranks_[rank].status = status;
      if (!interrupted_ && !hurried_ && status != 0) take_failure(static_cast<int>(rank), status);
    }
  }

  void take_failure(int rank, int status) {
    Failure failure;
    const bool killed = WIFSIGNALED(status);
    if (killed) {
      const int signal = WTERMSIG(status);
      failure = {kFailedLaunch, fmt::format("rank {} was killed by signal {} ({})", rank, signal, ::strsignal(signal))};
    } else {
      failure = {WEXITSTATUS(status), fmt::format("rank {} ended with exit code {}", rank, WEXITSTATUS(status))};
    }
    const bool first = !failure_.has_value();
    // A rank that lost another one ends with 7, perhaps before the one it lost is quite over.
    const bool nearer =
        !first && !killed_ && failure_->code == kFailedLaunch && (killed || failure.code != kFailedLaunch);
    if (!first && !nearer) return;
    failure_ = failure;
    killed_ = killed;
    if (killed) say(failure.text);
    announce(killed ? kCauseKey : kFailureKey, failure.text);
    if (first) deadline_ = Clock::now() + options_.grace;
  }

  void announce(const char* key, const std::string& text) {
    try {
      store_->set_once(key, text);
    } catch (const Error&) {  // the ranks learn of it by themselves, later
    }
  }

  // SIGTERM at the deadline, SIGKILL at the next.
  void hurry() {
    if (!deadline_ || Clock::now() < *deadline_ || running() == 0) return;
    signal_all(hurried_ ? SIGKILL : SIGTERM);
    hurried_ = true;
    deadline_ = Clock::now() + options_.last;
  }

  SpawnOptions options_;
  Signals signals_;
  std::vector<Rank> ranks_;
  std::vector<LineForwarder> outputs_;
  std::shared_ptr<JobStore> store_;
  std::optional<Failure> failure_;
  bool killed_ = false;       // failure_ was a signal
  bool interrupted_ = false;  // we were told to stop
  bool hurried_ = false;      // SIGTERM is sent: what ends now does so because of us
  std::optional<Clock::time_point> deadline_;
};

}

int spawn_ranks(int ranks, const SpawnOptions& options) {
  FORESHARD_CHECK(ranks > 0 && !options.arguments.empty(), "ranks to start, and argv[0]");
  return Job(ranks, options).run();
}

}
