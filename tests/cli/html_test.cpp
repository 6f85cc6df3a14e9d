// The files of --html and of the verb report: whole or not there, and what they are made from.
#include <gtest/gtest.h>

#include "sim/base/json.h"
#include "tests/cli/program.h"

namespace foreshard::html_test {
namespace {

const std::string kJob = " --model llama-3.1-8b --cluster 64xh100";

Json document_in(const std::string& html) {
  const std::string open = "id=\"document\">";
  const std::size_t begin = html.find(open) + open.size();
  return Json::parse(html.substr(begin, html.find("</script>", begin) - begin));
}

TEST(Html, AFileThatCannotBeWrittenIsNamedAndNothingIsLeft) {
  write_temporary("plain", "a file, no folder");
  const std::string job = " --model gpt2 --cluster 8xa100";
  const std::string sizes = " --gpus 8,16 --batch-tokens 512k";
  for (const std::string& verb : {"predict" + job, "report" + job, "search" + job,
           "recommend --model gpt2 --tokens 1B --cluster a100" + sizes, "scale --model gpt2 --cluster a100" + sizes}) {
    for (const char* path : {"nowhere/page.html", "plain/page.html", "."}) {
      const Outcome outcome = run(verb + " --html " + path);
      EXPECT_EQ(outcome.exit_code, 3) << verb << " " << path;
      EXPECT_EQ(outcome.out, "");
      expect_says(outcome.err, std::string(path) + ": cannot be written: ");
    }
  }
  EXPECT_EQ(shell("find . -name '*.part*' -o -path './*/page.html*'").out, "");
  const Outcome full = run("predict" + kJob + " --html /dev/full");
  EXPECT_EQ(full.exit_code, 3);
  expect_says(full.err, "No space left");
}

TEST(Html, AFileThatIsThereStaysAsItWasWhenWritingFails) {
  write_temporary("page.html", "as it was");
  // 64 KiB at most, by the shell's own limit.
  const Outcome outcome = shell("trap '' XFSZ; ulimit -f 64; \"$F\" predict" + kJob + " --html page.html");
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  EXPECT_EQ(read_temporary("page.html"), "as it was");
  EXPECT_EQ(shell("ls -A | grep part").out, "");
}

TEST(Html, LinksAndModesOfAFileThatIsReplacedStay) {
  write_temporary("real.html", "old");
  const Outcome outcome = shell("ln -sf real.html link.html && chmod 640 real.html && \"$F\" predict" + kJob +
                                " --html link.html >/dev/null && stat -c %a real.html && readlink link.html");
  EXPECT_EQ(outcome.out, "640\nreal.html\n") << outcome.err;
  expect_says(read_temporary("real.html"), "<!DOCTYPE html>");
}

TEST(Html, ReportWritesThePageOfItsDocument) {
  const Outcome outcome = run("report" + kJob + " --html page.html");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_says(outcome.out, "page.html: ");
  EXPECT_EQ(outcome.err, "");
  const Json shown = document_in(read_temporary("page.html"));
  EXPECT_EQ(shown["command"], "foreshard report" + kJob + " --html page.html");
  const Json said = json_of(run("report" + kJob + " --json"));
  for (const char* block : {"views", "timelines", "operations", "sensitivity", "scaling"}) {
    EXPECT_EQ(shown[block], said[block]) << block;
  }
  // Without a file the page is the answer.
  EXPECT_EQ(run("report" + kJob).out.substr(0, 15), "<!DOCTYPE html>");
}

TEST(Html, TheCommandCanBeTypedAgain) {
  const Outcome outcome = shell("\"$F\" predict --html 'a b.html' --json" + kJob + " --set 'frozen=none'");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string command = document_in(read_temporary("a b.html"))["command"].get<std::string>();
  expect_says(command, "--html 'a b.html'");
  EXPECT_EQ(comparable(shell("\"$F\"" + command.substr(std::string("foreshard").size()))), comparable(outcome));
}

TEST(Html, OnlyWholeAnswersBecomePages) {
  const std::pair<std::string, std::string> verbs[] = {
      {"recommend --model gpt2 --tokens 1B --cluster 8xa100 --batch-tokens 512k", "choices"},
      {"scale --model gpt2 --cluster a100 --gpus 8 --batch-tokens 512k", "points"}};
  for (const auto& [verb, key] : verbs) {
    const std::string answer = run(verb + " --json").out;
    write_temporary("answer.json", answer);
    EXPECT_EQ(run("report answer.json --html page.html").exit_code, 0) << verb;
    Json lacking = Json::parse(answer);
    lacking.erase(key);
    for (const std::string& part : {answer.substr(0, answer.size() / 2), lacking.dump()}) {
      write_temporary("answer.json", part);
      const Outcome refused = run("report answer.json --html page.html");
      EXPECT_EQ(refused.exit_code, 3) << verb;
      expect_says(refused.err, "answer.json:");
    }
  }
  write_temporary("answer.json", run("search" + kJob + " --json").out);
  EXPECT_EQ(run("report answer.json --html page.html").exit_code, 0);
  const std::pair<std::string, std::string> bad[] = {{read_temporary("answer.json").substr(0, 3000), "not valid JSON"},
      {"", "the file is empty"}, {"[1, 2]", "no answer that can be shown"},
      {"{\"schema\": 5}", "no answer that can be shown"},
      {"{\"schema\": \"foreshard.machines/1\"}", "expected one JSON document of predict"},
      {"{\"schema\": \"foreshard.explain/1\"}", "no whole answer"},
      {"{\"schema\": \"foreshard.search/1\", \"best\": 3}", "no whole answer"},
      {"{\"schema\": \"foreshard.page/1\"}", "no whole answer"}};
  for (const auto& [text, words] : bad) {
    write_temporary("bad.json", text);
    const Outcome outcome = run("report bad.json --html bad.html");
    EXPECT_EQ(outcome.exit_code, 3) << text.substr(0, 60);
    expect_says(outcome.err, words);
    expect_no_crash(outcome);
  }
  EXPECT_EQ(shell("ls bad.html").out, "");
  EXPECT_EQ(run("report absent.json").exit_code, 3);
}

TEST(Html, APlanThatDoesNotFitIsShownAllTheSame) {
  const Outcome outcome = run("report --model llama-3.1-70b --cluster 8xh100 --html page.html");
  EXPECT_EQ(outcome.exit_code, 4);
  expect_says(outcome.err, "does not fit");
  EXPECT_EQ(document_in(read_temporary("page.html"))["views"][0]["report"]["memory"]["fits"], false);
}

}
}
