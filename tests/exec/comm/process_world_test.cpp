// Ranks that are processes, started by hand: how they meet, and how they fail to.
#include "exec/comm/process_world.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>

#include "exec/comm/sockets.h"
#include "sim/base/error.h"
#include "tests/exec/launch/child.h"

namespace foreshard {
namespace {

using Variables = std::map<std::string, std::string>;

ChildProcess start(const std::string& what, Variables environment, const Variables& more = {}) {
  environment.insert(more.begin(), more.end());
  return ChildProcess({rank_program(), what}, environment);
}

std::vector<ChildOutcome> finish(std::vector<ChildProcess> children) {
  std::vector<ChildOutcome> outcomes;
  for (ChildProcess& child : children) outcomes.push_back(child.finish());
  return outcomes;
}

std::vector<ChildOutcome> run(const std::string& what, int size, const Variables& more) {
  const int port = free_port();
  std::vector<ChildProcess> children;
  for (int rank = size - 1; rank >= 0; --rank) {  // rank 0 last: the others wait for it
    children.push_back(start(what, by_hand(rank, size, port), more));
  }
  return finish(std::move(children));
}

const Variables kImpatient = {{"COMM_RANK_RENDEZVOUS_MS", "1500"}};

TEST(ProcessWorld, EveryTransportGivesTheSameBits) {
  for (const int size : {2, 4}) {
    std::set<std::string> hashes;
    for (const char* transport : {"shm", "gloo"}) {
      for (const ChildOutcome& outcome : run("sums", size, {{"FORESHARD_TRANSPORT", transport}})) {
        EXPECT_EQ(outcome.code, 0) << outcome.output;
        hashes.insert(outcome.output);
      }
    }
    std::istringstream lines(ChildProcess({rank_program(), "threads", std::to_string(size)}).finish().output);
    for (std::string line; std::getline(lines, line);) hashes.insert(line + "\n");
    EXPECT_EQ(hashes.size(), 1U);
    EXPECT_EQ(hashes.begin()->size(), 17U) << *hashes.begin();  // 16 hexadecimal digits
  }
}

TEST(ProcessWorld, APortInUse) {
  const int socket = listen_socket(ListenOn::kLoopback, 0);
  const int port = port_of(socket);
  ChildProcess rank0 = start("meet", by_hand(0, 2, port), kImpatient);
  ChildProcess rank1 = start("meet", by_hand(1, 2, port), kImpatient);
  const ChildOutcome outcome0 = rank0.finish();
  const ChildOutcome outcome1 = rank1.finish();
  ::close(socket);
  EXPECT_EQ(outcome0.code, 7);
  EXPECT_EQ(outcome0.output, "error: port " + std::to_string(port) +
                                 " cannot be opened for the ranks to meet: another program listens there; is another "
                                 "job running, or is MASTER_PORT shared by two jobs?\n");
  EXPECT_EQ(outcome1.code, 7);
  EXPECT_EQ(outcome1.output, "error: what listens at 127.0.0.1:" + std::to_string(port) +
                                 " is no rendezvous store of LibTorch (no answer within 1.5 s)\n");
}

TEST(ProcessWorld, TwoJobsOnOnePort) {
  const int port = free_port();
  ChildProcess job0 = start("forever", by_hand(0, 2, port));
  ChildProcess job1 = start("forever", by_hand(1, 2, port));
  ASSERT_NE(job0.wait_for("ready"), "");
  ASSERT_NE(job1.wait_for("ready"), "");
  const ChildOutcome rank0 = start("meet", by_hand(0, 2, port)).finish();
  const ChildOutcome rank1 = start("meet", by_hand(1, 2, port)).finish();
  const ChildOutcome named = start("meet", by_hand(1, 2, port), {{"FORESHARD_RUN_ID", "other"}}).finish();
  const std::string at = "127.0.0.1:" + std::to_string(port);
  EXPECT_EQ(rank0.code, 7);
  EXPECT_NE(rank0.output.find("another program listens there"), std::string::npos) << rank0.output;
  EXPECT_EQ(rank1.code, 7);
  EXPECT_EQ(rank1.output, "error: a process is there already as rank 1 at " + at +
                              ": another job uses this port, or two processes were started as one rank\n");
  EXPECT_EQ(named.code, 7);
  EXPECT_EQ(named.output, "error: the store at " + at +
                              " belongs to another job (job/0; this one is other/0); is MASTER_PORT "
                              "shared by two jobs?\n");
  job0.signal(0);  // the first job goes on
  EXPECT_EQ(::kill(job0.process(), 0), 0);
  EXPECT_EQ(::kill(job1.process(), 0), 0);
}

TEST(ProcessWorld, RanksThatDisagreeAboutTheSize) {
  const int port = free_port();
  std::vector<ChildProcess> children;
  children.push_back(start("meet", by_hand(0, 2, port)));
  children.push_back(start("meet", by_hand(1, 3, port)));
  for (const ChildOutcome& outcome : finish(std::move(children))) {
    EXPECT_EQ(outcome.code, 7);
    EXPECT_EQ(outcome.output,
        "error: the ranks disagree about the world's size: rank 0 was started for 2 ranks, rank 1 for 3\n");
  }
}

TEST(ProcessWorld, MissingRanksAreNamed) {
  const int port = free_port();
  std::vector<ChildProcess> children;
  children.push_back(start("meet", by_hand(0, 5, port), kImpatient));
  children.push_back(start("meet", by_hand(2, 5, port), {{"COMM_RANK_RENDEZVOUS_MS", "20000"}}));
  for (const ChildOutcome& outcome : finish(std::move(children))) {
    EXPECT_EQ(outcome.code, 7);
    EXPECT_EQ(outcome.output,
        "error: ranks 1, 3, 4 of 5 did not come to 127.0.0.1:" + std::to_string(port) + " within 1.5 s\n");
  }
}

TEST(ProcessWorld, NobodyAtTheMasterPort) {
  const int port = free_port();
  const ChildOutcome outcome = start("meet", by_hand(1, 2, port), kImpatient).finish();
  EXPECT_EQ(outcome.code, 7);
  EXPECT_NE(outcome.output.find("rank 1 found nobody at 127.0.0.1:" + std::to_string(port)), std::string::npos)
      << outcome.output;
}

TEST(ProcessWorld, AnUnknownHost) {
  Variables environment = by_hand(1, 2, 1234);
  environment["MASTER_ADDR"] = "no-such-host.invalid";
  const ChildOutcome outcome = start("meet", environment).finish();
  EXPECT_EQ(outcome.code, 7);
  EXPECT_TRUE(outcome.output.starts_with("error: host no-such-host.invalid has no address")) << outcome.output;
}

// Without a launcher nobody knows that rank 1 was killed, only that it is gone.
TEST(ProcessWorld, ALostRankIsNamedWithoutALauncher) {
  for (const char* transport : {"shm", "gloo"}) {
    for (const int killed : {0, 1}) {  // rank 0 serves the store
      const int port = free_port();
      std::vector<ChildProcess> children;
      for (int rank = 0; rank < 2; ++rank) {
        children.push_back(start("forever", by_hand(rank, 2, port), {{"FORESHARD_TRANSPORT", transport}}));
      }
      for (ChildProcess& child : children) ASSERT_NE(child.wait_for("ready"), "");
      children[static_cast<std::size_t>(killed)].signal(SIGKILL);
      const ChildOutcome left = children[static_cast<std::size_t>(1 - killed)].finish();
      EXPECT_EQ(left.code, 7);
      const std::string said =
          "error: rank " + std::to_string(1 - killed) + ": rank " + std::to_string(killed) + " closed its connection\n";
      EXPECT_NE(left.output.find(said), std::string::npos) << left.output;
    }
  }
}

// The lines of /proc/net/tcp that listen (state 0A) on `port`; addresses are hexadecimal.
std::vector<std::string> listeners(const std::string& file, int port) {
  std::ifstream lines(file);
  std::ostringstream mark;
  mark << ':' << std::uppercase << std::hex << port;
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state;
    words >> number >> local >> remote >> state;
    if (state == "0A" && local.ends_with(mark.str())) found.push_back(local);
  }
  return found;
}

TEST(ProcessWorld, TheStoreListensOnTheLoopbackOnly) {
  const int port = free_port();
  std::vector<ChildProcess> children;
  for (int rank = 0; rank < 2; ++rank) children.push_back(start("forever", by_hand(rank, 2, port)));
  for (ChildProcess& child : children) ASSERT_NE(child.wait_for("ready"), "");
  const std::vector<std::string> found = listeners("/proc/net/tcp", port);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_TRUE(found[0].starts_with("0100007F:")) << found[0];  // 127.0.0.1, little endian
  EXPECT_TRUE(listeners("/proc/net/tcp6", port).empty());
}

Variables options_with(const std::string& name, const std::string& value) { return {{name, value}}; }

ConnectOptions options_of(const Variables& variables) {
  return connect_options([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

TEST(ConnectOptions, FromTheEnvironment) {
  EXPECT_EQ(options_of({}).transport, TransportChoice::kAutomatic);
  EXPECT_EQ(options_of(options_with("FORESHARD_TRANSPORT", "shm")).transport, TransportChoice::kShared);
  EXPECT_EQ(options_of(options_with("FORESHARD_TRANSPORT", "gloo")).transport, TransportChoice::kGloo);
  EXPECT_EQ(options_of(options_with("FORESHARD_TIMEOUT_S", "7")).timeout, std::chrono::seconds(7));
  EXPECT_THROW(options_of(options_with("FORESHARD_TRANSPORT", "tcp")), Error);
  EXPECT_THROW(options_of(options_with("FORESHARD_TIMEOUT_S", "0")), Error);
  EXPECT_THROW(options_of(options_with("FORESHARD_TIMEOUT_S", "5s")), Error);
}

// Gloo's headers and Gloo's code are of different years: no class of theirs may be emitted by us,
// or ours would take the place of the one inside LibTorch.
TEST(GlooSymbols, NoneOfOurs) {
  if (std::system("command -v nm > /dev/null 2>&1") != 0) GTEST_SKIP() << "no nm here";
  const ChildOutcome symbols = ChildProcess({"nm", "--demangle", "--defined-only", rank_program()}).finish();
  EXPECT_EQ(symbols.code, 0);
  EXPECT_EQ(symbols.output.find("vtable for gloo::"), std::string::npos);
  EXPECT_EQ(symbols.output.find("typeinfo for gloo::"), std::string::npos);
  EXPECT_NE(symbols.output.find("vtable for foreshard::"), std::string::npos);  // nm saw symbols
}

}
}
