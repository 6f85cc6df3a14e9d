// Plain POSIX sockets.
#include "exec/comm/sockets.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "sim/base/error.h"

namespace foreshard {
namespace {

class Socket {
 public:
  explicit Socket(int type) : fd_(::socket(AF_INET, type | SOCK_CLOEXEC, 0)) { FORESHARD_CHECK(fd_ >= 0, "no socket"); }
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket& operator=(Socket&&) = delete;  // nor is it copied
  int fd() const { return fd_; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
};

sockaddr_in resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) throw Error(ExitCode::kLaunchFailure, "host {} has no address: {}", host, ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  sockaddr_in address{};
  std::memcpy(&address, found->ai_addr, sizeof address);
  return address;
}

const sockaddr* general(const sockaddr_in& address) { return reinterpret_cast<const sockaddr*>(&address); }

sockaddr_in own_name(int socket) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  const int error = ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  FORESHARD_CHECK(error == 0, "a bound socket has a name");
  return address;
}

}

int listen_socket(ListenOn where, int port) {
  Socket socket(SOCK_STREAM);
  const int on = 1;  // a port of a job that has just ended is free
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(where == ListenOn::kLoopback ? INADDR_LOOPBACK : INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (::bind(socket.fd(), general(address), sizeof address) != 0 || ::listen(socket.fd(), SOMAXCONN) != 0) {
    const char* why =
        errno == EADDRINUSE
            ? "another program listens there; is another job running, or is MASTER_PORT shared by two jobs?"
            : std::strerror(errno);
    throw Error(ExitCode::kLaunchFailure, "port {} cannot be opened for the ranks to meet: {}", port, why);
  }
  return socket.release();
}

int port_of(int socket) { return ntohs(own_name(socket).sin_port); }

bool answers(const std::string& host, int port, std::chrono::milliseconds patience) {
  const sockaddr_in address = resolve(host, port);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (true) {
    const Socket socket(SOCK_STREAM);
    if (::connect(socket.fd(), general(address), sizeof address) == 0) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

bool is_interface(const std::string& name) { return ::if_nametoindex(name.c_str()) != 0; }

std::string own_address_towards(const std::string& host) {
  const Socket socket(SOCK_DGRAM);  // connecting one chooses a route and sends nothing
  const sockaddr_in address = resolve(host, 9);
  if (::connect(socket.fd(), general(address), sizeof address) != 0)
    throw Error(ExitCode::kLaunchFailure, "host {} cannot be reached: {}", host, std::strerror(errno));
  const sockaddr_in own = own_name(socket.fd());
  char text[INET_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET, &own.sin_addr, text, sizeof text);
  return text;
}

}
