#include "cli/http/gate.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <array>

#include "sim/base/error.h"
#include "sim/base/letters.h"

namespace foreshard {
namespace {

// Without port and brackets, in lower case: names are free in it.
std::string name_of(std::string_view host) {
  const std::size_t colon = host.rfind(':');
  const bool has_port = colon != std::string_view::npos && host.find(']', colon) == host.npos;
  // An IPv6 address without brackets has no port.
  if (has_port && (host.starts_with('[') || host.find(':') == colon)) host = host.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return lower(host);
}

// The time does not tell where they differ.
bool same(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return difference == 0;
}

bool holds_token(const HttpGate& gate, const HttpCaller& caller) {
  if (same(caller.token, gate.token)) return true;
  for (const char* scheme : {"Bearer ", "token "})
    if (caller.authorization.starts_with(scheme) &&
        same(caller.authorization.substr(std::string_view(scheme).size()), gate.token))
      return true;
  std::string_view rest = caller.cookies;
  while (!rest.empty()) {
    std::string_view one = cut(rest, ";");
    one.remove_prefix(std::min(one.size(), one.find_first_not_of(' ')));
    const std::size_t is = one.find('=');
    if (is != one.npos && one.substr(0, is) == gate.cookie && same(one.substr(is + 1), gate.token)) return true;
  }
  return false;
}

}

bool is_loopback_name(std::string_view host) {
  const std::string name = name_of(host);
  return name == "localhost" || name == "127.0.0.1" || name == "::1";
}

std::optional<std::string> gate_refusal(const HttpGate& gate, const HttpCaller& caller) {
  const std::string name = name_of(caller.host);
  const bool is_ours = is_loopback_name(caller.host) || (!name.empty() && name == name_of(caller.address)) ||
                       std::ranges::any_of(gate.own_names,
                           [&](const std::string& own) { return !name.empty() && name == name_of(own); });
  if (!is_ours) return "this name is not served; ask for localhost, or start serve with --host";
  const bool is_same_origin = caller.origin.empty() || caller.origin == fmt::format("http://{}", caller.host) ||
                              caller.origin == fmt::format("https://{}", caller.host);  // behind a proxy
  const bool is_same_site = caller.fetch_site.empty() || caller.fetch_site == "same-origin" ||
                            caller.fetch_site == "none";  // typed by the user
  if (!is_same_origin || !is_same_site) return "another site's page asks; open the address in the browser yourself";
  if (!gate.token.empty() && !holds_token(gate, caller))
    return "the token is missing; open the link that foreshard serve printed (?token=...)";
  return std::nullopt;
}

std::string random_token() {
  std::array<unsigned char, 24> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw Error(ExitCode::kInternal, "serve: the system gives no random bytes for a token");
  std::string token;
  for (unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

}
