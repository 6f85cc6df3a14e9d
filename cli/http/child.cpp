// Limits are the kernel's (setrlimit). Memory is bounded as private data (RLIMIT_DATA): address
// space would count what allocators and sanitizers only reserve. What cannot be allocated is a
// std::bad_alloc in the child, which says so by its exit status.
#include "cli/http/child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <new>

#include "cli/output.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

constexpr int kOutOfMemoryStatus = 101;
constexpr int kFailedStatus = 102;

std::int64_t private_data_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0;
  for (int field = 0; field < 6; ++field) file >> pages;  // the sixth: data and stack
  return pages * ::sysconf(_SC_PAGESIZE);
}

void limit(int resource, std::int64_t value) {
  const rlimit both{static_cast<rlim_t>(value), static_cast<rlim_t>(value)};
  ::setrlimit(static_cast<__rlimit_resource_t>(resource), &both);
}

// Nothing of the parent's is left: its terminal, sockets, signal handlers, or the user's folders.
void isolate(int output) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setpgid(0, 0);  // Ctrl-C is the parent's
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGXCPU}) ::signal(number, SIG_DFL);
  const int null = ::open("/dev/null", O_RDWR);
  for (int standard : {0, 1, 2}) ::dup2(null, standard);
  if (output > 3) ::close_range(3, static_cast<unsigned>(output) - 1, 0);
  ::close_range(static_cast<unsigned>(output) + 1, ~0U, 0);
  ::umask(077);
  for (const char* name : {"HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE",
           "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"})
    ::unsetenv(name);
}

[[noreturn]] void run(const ChildBounds& bounds, const std::filesystem::path& folder, int output,
    const std::function<std::string()>& work) {
  int status = kFailedStatus;
  try {
    isolate(output);
    std::filesystem::current_path(folder);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_CPU, bounds.cpu_seconds);
    limit(RLIMIT_DATA, private_data_bytes() + bounds.memory_bytes);
    if (write_all(output, work()) == 0) status = 0;
  } catch (const std::bad_alloc&) {
    status = kOutOfMemoryStatus;
  } catch (...) {
    status = kFailedStatus;
  }
  ::_exit(status);
}

}

Child start_child(
    const ChildBounds& bounds, const std::filesystem::path& folder, const std::function<std::string()>& work) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(ExitCode::kInternal, "serve: the system gives no more pipes");
  const pid_t pid = ::fork();
  if (pid == 0) run(bounds, folder, ends[1], work);
  ::close(ends[1]);
  if (pid < 0) {
    ::close(ends[0]);
    throw Error(ExitCode::kInternal, "serve: the system gives no more processes");
  }
  return {pid, ends[0]};
}

ChildEnd end_of(const Child& child) {
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0)
    if (errno != EINTR) return ChildEnd::kFailed;
  if (WIFEXITED(status)) {
    return WEXITSTATUS(status) == 0                    ? ChildEnd::kDone
           : WEXITSTATUS(status) == kOutOfMemoryStatus ? ChildEnd::kOutOfMemory
                                                       : ChildEnd::kFailed;
  }
  // A hard limit on CPU time kills where the soft one, which is the same, was not noticed.
  return WTERMSIG(status) == SIGXCPU || WTERMSIG(status) == SIGKILL ? ChildEnd::kOutOfTime : ChildEnd::kFailed;
}

}
