// Who may ask: pages of this server in a browser that holds its token, and programs that name it.
//
// A foreign page that has this machine's browser ask is refused by what the browser says of it
// (Origin, Sec-Fetch-Site), by the name it asks for (Host: DNS rebinding), and because its requests
// come without the cookie (SameSite=Strict).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace foreshard {

struct HttpGate {
  std::string token;                   // "": none is asked for
  std::string cookie = "foreshard_";   // the name of the one that holds it; the port follows
  std::vector<std::string> own_names;  // beside the loopback's and the address that was reached
};

// What a request says of who sends it; "" where it does not.
struct HttpCaller {
  std::string_view host, origin, fetch_site, cookies, authorization;
  std::string_view token;    // of the query
  std::string_view address;  // that was reached, without port
};

// Why it is refused; none: it may ask.
std::optional<std::string> gate_refusal(const HttpGate& gate, const HttpCaller& caller);

bool is_loopback_name(std::string_view host);  // localhost, 127.0.0.1, ::1, [::1]

// 192 bits of the operating system's, as 48 hexadecimal digits.
std::string random_token();

}
