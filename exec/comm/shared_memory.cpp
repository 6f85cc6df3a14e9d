// A memfd that the others open as /proc/<maker>/fd/<number>: it has no name in any file system, so
// it ends with the last process that holds it. Processes see each other's /proc when they run under
// one kernel, one process namespace and one user; the nonce tells whether what was opened is the
// right one.
#include "exec/comm/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "exec/comm/shared_transport.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

[[noreturn]] void fail_shared(const std::string& what) {
  throw Error(ExitCode::kLaunchFailure,
              fmt::format("shared memory: {}: {}", what, std::strerror(errno)));
}

std::byte* map(int fd, std::size_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) fail_shared("cannot be mapped");
  return static_cast<std::byte*>(at);
}

}  // namespace

std::string shared_memory_domain() {
  const auto pidfd = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  if (pidfd < 0) return "";
  ::close(pidfd);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat processes {};
  if (boot.empty() || ::stat("/proc/self/ns/pid", &processes) != 0) return "";
  return fmt::format("{}/{}/{}", boot, processes.st_ino, ::getuid());
}

std::shared_ptr<SharedMemory> SharedMemory::create(int members) {
  std::shared_ptr<SharedMemory> memory(new SharedMemory);
  memory->fd_ = ::memfd_create("foreshard", MFD_CLOEXEC);
  if (memory->fd_ < 0) fail_shared("cannot be made");
  memory->bytes_ = shared::Layout(nullptr, members).total();
  if (::ftruncate(memory->fd_, static_cast<off_t>(memory->bytes_)) != 0)
    fail_shared("cannot be sized");
  memory->data_ = map(memory->fd_, memory->bytes_);  // zeros: what all atomics start from
  std::uint64_t nonce = 0;
  if (::getrandom(&nonce, sizeof nonce, 0) != sizeof nonce) fail_shared("no random number");
  shared::Layout(memory->data_, members).header().nonce = nonce;
  memory->ticket_ = fmt::format("/proc/{}/fd/{} {}", ::getpid(), memory->fd_, nonce);
  return memory;
}

std::shared_ptr<SharedMemory> SharedMemory::open(const std::string& ticket, int members) {
  const std::size_t space = ticket.find(' ');
  FORESHARD_CHECK(space != std::string::npos, "a ticket is a path and a nonce");
  std::shared_ptr<SharedMemory> memory(new SharedMemory);
  memory->ticket_ = ticket;
  memory->bytes_ = shared::Layout(nullptr, members).total();
  memory->fd_ = ::open(ticket.substr(0, space).c_str(), O_RDWR | O_CLOEXEC);
  if (memory->fd_ < 0) fail_shared("cannot be opened");
  struct stat status {};
  if (::fstat(memory->fd_, &status) != 0) fail_shared("cannot be asked for its size");
  if (at(status.st_size) != memory->bytes_) fail_shared("has another size");
  memory->data_ = map(memory->fd_, memory->bytes_);
  const std::uint64_t nonce = shared::Layout(memory->data_, members).header().nonce;
  if (std::to_string(nonce) != ticket.substr(space + 1)) fail_shared("is another group's");
  return memory;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace foreshard
