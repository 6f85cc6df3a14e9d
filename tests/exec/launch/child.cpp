#include "tests/exec/launch/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "exec/comm/sockets.h"

namespace foreshard {
namespace {

using Clock = std::chrono::steady_clock;

int occurrences(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}

ChildProcess::ChildProcess(
    const std::vector<std::string>& program, const std::map<std::string, std::string>& environment) {
  std::vector<std::string> variables;
  for (const char* name : {"PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "ASAN_OPTIONS"}) {
    const char* value = std::getenv(name);
    if (value != nullptr) variables.push_back(std::string(name) + "=" + value);
  }
  for (const auto& [name, value] : environment) variables.push_back(std::string(name).append("=").append(value));
  std::vector<char*> argv;
  for (const std::string& word : program) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> envp;
  for (const std::string& variable : variables) envp.push_back(const_cast<char*>(variable.c_str()));
  envp.push_back(nullptr);
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  process_ = ::fork();
  if (process_ == 0) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(number, SIG_DFL);
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    ::execvpe(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  pipe_ = ends[0];
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : process_(std::exchange(other.process_, -1)),
      pipe_(std::exchange(other.pipe_, -1)),
      output_(std::move(other.output_)) {}

ChildProcess::~ChildProcess() {
  if (process_ > 0) {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  if (pipe_ >= 0) ::close(pipe_);
}

void ChildProcess::signal(int number) const { ::kill(process_, number); }

bool ChildProcess::read_some(std::chrono::milliseconds patience) {
  pollfd source{pipe_, POLLIN, 0};
  if (::poll(&source, 1, static_cast<int>(patience.count())) <= 0) return true;
  char bytes[4096];
  const ssize_t count = ::read(pipe_, bytes, sizeof bytes);
  if (count <= 0) return false;
  output_.append(bytes, static_cast<std::size_t>(count));
  return true;
}

std::string ChildProcess::wait_for(const std::string& text, int times) {
  const auto deadline = Clock::now() + std::chrono::minutes(5);  // on a machine that is busy
  while (occurrences(output_, text) < times) {
    if (Clock::now() > deadline || !read_some(std::chrono::milliseconds(100))) return "";
  }
  return output_;
}

ChildOutcome ChildProcess::finish() {
  const auto deadline = Clock::now() + std::chrono::minutes(5);  // as above
  while (Clock::now() < deadline && read_some(std::chrono::milliseconds(100))) {
  }
  if (Clock::now() >= deadline) ::kill(process_, SIGKILL);
  int status = 0;
  ::waitpid(std::exchange(process_, -1), &status, 0);
  return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), output_};
}

std::string rank_program() { return FORESHARD_TEST_PROGRAMS "/comm_rank"; }
std::string spawn_program() { return FORESHARD_TEST_PROGRAMS "/comm_spawn"; }

int free_port() {
  const int socket = listen_socket(ListenOn::kLoopback, 0);
  const int port = port_of(socket);
  ::close(socket);
  return port;
}

std::map<std::string, std::string> by_hand(int rank, int size, int port) {
  return {{"RANK", std::to_string(rank)}, {"WORLD_SIZE", std::to_string(size)}, {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port)}};
}

int process_in(const std::string& output, const std::string& prefix) {
  const std::string mark = prefix + "ready ";
  std::size_t at = ("\n" + output).find("\n" + mark);
  if (at == std::string::npos) throw std::runtime_error("no line " + mark);
  return std::stoi(output.substr(at + mark.size()));
}

}
