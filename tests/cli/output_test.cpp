// Standard output, standard error, colours, pipes and signals.
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "reports/view/layout.h"
#include "sim/base/lookup.h"
#include "tests/cli/program.h"

namespace foreshard::output_test {
namespace {

const std::string kJob = " --model llama-3.1-8b --cluster 64xh100";

TEST(Output, EqualInputsGiveEqualBytes) {
  for (const char* verb : {"predict", "explain", "compare --with mesh.shard=8", "search"}) {
    const std::string arguments = verb + kJob + " --json";
    EXPECT_EQ(comparable(run(arguments)), comparable(run(arguments))) << verb;
  }
}

TEST(Output, DependsOnNoLocale) {
  const std::string line = "\"$F\" predict --json" + kJob;
  EXPECT_EQ(comparable(shell(line)), comparable(shell("LC_ALL=de_DE.UTF-8 " + line)));
}

TEST(Output, CreatedHonoursTheSourceDate) {
  const auto json = json_of(shell("SOURCE_DATE_EPOCH=86400 \"$F\" doctor --json"));
  EXPECT_EQ(json.at("created"), "1970-01-02T00:00:00Z");
}

TEST(Output, AReaderThatLeavesEarlyIsNoFailure) {
  for (const char* verb : {"schedule", "predict", "explain", "search", "predict --json"}) {
    const Outcome outcome = shell("{ \"$F\" " + (verb + kJob) + "; echo $? >status; } | head -n 1");
    EXPECT_EQ(lines_of(outcome.out), 1U) << verb;
    EXPECT_EQ(outcome.err, "") << verb;
    EXPECT_EQ(read_temporary("status"), "0\n") << verb;
  }
  // One that is gone before the first byte.
  const Outcome gone = shell("{ sleep 0.2; \"$F\" schedule" + kJob + "; echo $? >status; } | true");
  EXPECT_EQ(gone.err, "");
  EXPECT_EQ(read_temporary("status"), "0\n");
}

TEST(Output, Colours) {
  const auto is_coloured = [](const std::string& line) { return contains(shell(line + kJob).out, '\x1b'); };
  EXPECT_FALSE(is_coloured("\"$F\" predict"));
  EXPECT_TRUE(is_coloured("\"$F\" predict --color always"));
  EXPECT_TRUE(is_coloured("NO_COLOR=1 \"$F\" --color=always predict"));
  EXPECT_FALSE(is_coloured("\"$F\" predict --color never"));
}

TEST(Output, ProgressStaysOffAPipe) { EXPECT_EQ(run("search" + kJob).err, ""); }

TEST(Output, InterruptStopsASearch) {
  // A space that takes far longer than the test waits. In the foreground timeout signals the
  // program alone; otherwise also its group, and a second Ctrl-C ends the program without a word.
  const Outcome outcome = shell(
      "timeout --foreground --preserve-status -s INT 1 \"$F\" search --model gpt3-175b --cluster 1024xh100 --sequence "
      "2048 --global-batch 1048576 --threads 1");
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_EQ(outcome.out, "");
  expect_says(outcome.err, "stopped");
}

// A terminal of 60 columns (script makes one), and a pipe.
TEST(Output, FollowsTheTerminalsWidthAndCutsNothingInAPipe) {
  const std::string verb = "predict --model llama-3.1-8b --cluster 8xh100 --color never";
  const Outcome narrow =
      shell("export F; COLUMNS=60 script -qec '\"$F\" " + verb + "' /dev/null </dev/null | tr -d '\\r'");
  ASSERT_EQ(narrow.exit_code, 0) << narrow.err;
  EXPECT_NE(narrow.out.find("llama-3.1-8b"), std::string::npos) << narrow.out;
  std::istringstream lines(narrow.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), 60U) << line;
  const Outcome piped = shell("COLUMNS=60 \"$F\" " + verb + " | cat");
  EXPECT_EQ(piped.out, run(verb).out);
  EXPECT_EQ(piped.out.find("…"), std::string::npos) << piped.out;
}

}
}
