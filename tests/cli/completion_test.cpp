// Completion scripts: they name every verb and option, and bash's works.
#include <gtest/gtest.h>

#include "cli/command_line.h"
#include "tests/cli/program.h"

namespace foreshard {
namespace {

TEST(Completion, NamesEveryVerbAndOption) {
  const CommandTree tree = command_tree();
  ASSERT_GE(tree.commands.size(), 10U);
  for (const char* name : {"bash", "zsh", "fish", "json"}) {
    SCOPED_TRACE(name);
    const Outcome outcome = run(std::string("completion ") + name);
    EXPECT_EQ(outcome.exit_code, 0);
    for (const Command& command : tree.commands) {
      expect_says(outcome.out, command.name);
      for (const CommandOption& option : command.options) expect_says(outcome.out, option.names.front().substr(2));
    }
    expect_says(outcome.out, "llama-3.1-8b");
    expect_says(outcome.out, "mesh.shard=");
  }
}

TEST(Completion, TreeIsWhatHelpSays) {
  for (const Command& command : command_tree().commands) {
    const std::string help = run(command.name + " --help").out;
    for (const CommandOption& option : command.options) expect_says(help, option.names.front());
  }
}

TEST(Completion, HelpAndWordsNameEveryRuntime) {
  const std::string help = run("predict --help").out;
  const std::string offers = run("completion bash").out;
  for (const char* runtime : {"fsdp2", "native", "fsdp1", "ddp", "zero1", "zero2", "zero3"}) {
    expect_says(help, runtime);
    expect_says(offers, runtime);
  }
}

// What bash offers for a command line, whose last word is being typed.
std::string offered(const std::string& words) {
  write_temporary("complete.sh",
      "source <(\"$F\" completion bash)\n"
      "COMP_WORDS=(" +
          words +
          ")\n"
          "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
          "_foreshard\n"
          "printf '<%s>' \"${COMPREPLY[@]}\"\n");
  return shell("export F; bash complete.sh").out;
}

TEST(Completion, Bash) {
  EXPECT_EQ(offered("foreshard pre"), "<predict>");
  EXPECT_EQ(offered("foreshard predict --seq"), "<--sequence>");
  EXPECT_EQ(offered("foreshard predict --model llama-3.1-8"), "<llama-3.1-8b>");
  EXPECT_EQ(offered("foreshard predict --set mesh.sh"), "<mesh.shard=>");
  EXPECT_EQ(offered("foreshard predict --cluster 8xh20"),
      "<8xh20><8xh20-96gb><8xh20-sxm><8xh200><8xh200-sxm><8xh200-sxm-141gb>");
  EXPECT_EQ(offered("foreshard predict --cluster 8xp5.4"), "<8xp5.48xlarge>");
  EXPECT_EQ(offered("foreshard predict --runtime zero3"), "<zero3><zero3@0.19>");
  EXPECT_EQ(offered("foreshard schema pl"), "<plan>");
  EXPECT_EQ(offered("foreshard search --color al"), "<always>");
  write_temporary("my plan.yaml", "");
  EXPECT_EQ(offered("foreshard predict --plan my"), "<my plan.yaml>");
}

}
}
