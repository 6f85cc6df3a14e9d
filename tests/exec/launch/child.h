// Programs that tests start, with an environment of their own, and what came of them.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace foreshard {

struct ChildOutcome {
  int code = -1;       // 128 + signal when killed
  std::string output;  // standard output and error
};

class ChildProcess {
 public:
  // `program` with PATH, LD_LIBRARY_PATH, HOME, TMPDIR of the test and nothing else but
  // `environment`; it starts with no signal blocked or ignored.
  explicit ChildProcess(
      const std::vector<std::string>& program, const std::map<std::string, std::string>& environment = {});
  ~ChildProcess();  // kills it
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  int process() const { return process_; }
  void signal(int number) const;
  // The output so far, as soon as it contains `text` `times` times; "" when 5 min were not
  // enough.
  std::string wait_for(const std::string& text, int times = 1);
  // Waits for its end, 5 min at most.
  ChildOutcome finish();

 private:
  bool read_some(std::chrono::milliseconds patience);  // false: at its end
  int process_ = -1;
  int pipe_ = -1;
  std::string output_;
};

// tests/exec/programs/comm_rank.cpp and comm_spawn.cpp
std::string rank_program();
std::string spawn_program();
// A port nobody listens on.
int free_port();
// The environment of one rank started by hand, all on this machine.
std::map<std::string, std::string> by_hand(int rank, int size, int port);
// The number behind "ready " in the line that starts with `prefix`.
int process_in(const std::string& output, const std::string& prefix);

}
