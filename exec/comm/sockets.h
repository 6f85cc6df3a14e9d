// The few socket calls that finding each other takes. IPv4.
#pragma once

#include <chrono>
#include <string>

namespace foreshard {

enum class ListenOn { kLoopback, kEveryInterface };

// A listening socket, closed on exec; port 0 takes a free one. Throws Error(kLaunchFailure) when the port is taken.
int listen_socket(ListenOn where, int port);
int port_of(int socket);

// Whether something accepts connections there within `patience`; asks every 10 ms.
bool answers(const std::string& host, int port, std::chrono::milliseconds patience);

bool is_loopback(const std::string& host);  // by its name: localhost, 127.x.x.x, ::1
bool is_interface(const std::string& name);

// The address of this machine from which `host` is reached. Throws Error(kLaunchFailure) when `host` has no address.
std::string own_address_towards(const std::string& host);

}
