#include "cli/http/gate.h"

#include <gtest/gtest.h>

#include <set>

namespace foreshard {
namespace {

const HttpGate kGate{"secret", "foreshard_80", {"planner.example"}};

HttpCaller caller(std::string_view host, std::string_view cookies = "foreshard_80=secret") {
  return HttpCaller{.host = host, .cookies = cookies, .address = "10.0.0.7"};
}

bool is_let_in(const HttpCaller& asks) { return !gate_refusal(kGate, asks); }

TEST(HttpGate, KnowsItsNamesWithAndWithoutPort) {
  for (const char* host :
      {"localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:1", "[::1]", "planner.example:80", "10.0.0.7:8080"}) {
    EXPECT_TRUE(is_let_in(caller(host))) << host;
  }
  for (const char* host : {"", "evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example",
           "10.0.0.8", "planner.example.evil", ":80", "["}) {
    EXPECT_FALSE(is_let_in(caller(host))) << host;
  }
}

TEST(HttpGate, ForeignPagesAreRefusedWhateverTheyHold) {
  HttpCaller asks = caller("localhost:8080");
  asks.token = "secret";
  for (const char* origin : {"http://evil.example", "null", "http://localhost", "http://localhost:80",
           "http://localhost:8080.evil", "file://"}) {
    asks.origin = origin;
    EXPECT_FALSE(is_let_in(asks)) << origin;
  }
  asks.origin = "http://localhost:8080";
  EXPECT_TRUE(is_let_in(asks));
  for (const char* site : {"cross-site", "same-site", "anything"}) {
    asks.fetch_site = site;
    EXPECT_FALSE(is_let_in(asks)) << site;
  }
  for (const char* site : {"same-origin", "none"}) {
    asks.fetch_site = site;
    EXPECT_TRUE(is_let_in(asks)) << site;
  }
}

TEST(HttpGate, TheTokenComesAsCookieWordOrHeader) {
  EXPECT_TRUE(is_let_in(caller("localhost", "a=b; foreshard_80=secret; c=d")));
  for (const char* cookies : {"", "foreshard_80=", "foreshard_80=secre", "foreshard_80=secrets", "foreshard_81=secret",
           "xforeshard_80=secret", "foreshard_80", ";;="}) {
    EXPECT_FALSE(is_let_in(caller("localhost", cookies))) << cookies;
  }
  HttpCaller asks = caller("localhost", "");
  asks.authorization = "Bearer secret";
  EXPECT_TRUE(is_let_in(asks));
  asks.authorization = "Bearer secret2";
  EXPECT_FALSE(is_let_in(asks));
  asks.token = "secret";
  EXPECT_TRUE(is_let_in(asks));
}

TEST(HttpGate, WithoutATokenTheOriginStillCounts) {
  HttpGate open = kGate;
  open.token.clear();
  HttpCaller asks = caller("localhost", "");
  EXPECT_FALSE(gate_refusal(open, asks));
  asks.origin = "http://evil.example";
  EXPECT_TRUE(gate_refusal(open, asks));
}

TEST(HttpGate, TokensAreLongAndNeverTheSame) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const std::string token = random_token();
    EXPECT_EQ(token.size(), 48U);
    EXPECT_TRUE(seen.insert(token).second);
  }
}

}
}
