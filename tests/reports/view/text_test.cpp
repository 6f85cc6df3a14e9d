#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "reports/view/layout.h"
#include "reports/view/views.h"
#include "tests/reports/random_plans.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

// A report that has as much to say as possible.
Report talkative(const Forecast& f) {
  Report r = summarize(f, round_costs(), 8);
  for (int i = 0; i < 30; ++i) {
    r.assumed.emplace_back("batch.key_" + std::to_string(i), "value (default)");
    r.warnings.push_back("something about key " + std::to_string(i) +
                         " that takes many words to say and hardly fits on one line of text, sadly");
  }
  return r;
}

TEST(Layout, BarsAreEighthsOfACell) {
  EXPECT_EQ(bar(0, 4), "");
  EXPECT_EQ(bar(0.001, 4), "▏");
  EXPECT_EQ(bar(0.5, 4), "██");
  EXPECT_EQ(bar(0.40625, 4), "█▋");  // 1.625 cells
  EXPECT_EQ(bar(7, 4), "████");
}

TEST(Layout, WrapsAtSpacesAndCutsNothing) {
  EXPECT_EQ(wrapped("aa bb cc dd", 6, 2), (std::vector<std::string>{"aa bb", "  cc", "  dd"}));
  EXPECT_EQ(wrapped("aa wider_than_that b", 6, 2), (std::vector<std::string>{"aa", "  wider_than_that", "  b"}));
  EXPECT_EQ(display_width("\x1b[31m▏x\x1b[0m"), 2U);
}

TEST(Layout, TerminalsGetSentencesWrappedAndTablesCut) {
  const std::string sentence = "one two three four five six seven";
  EXPECT_EQ(fitted(sentence + "\n", 20), "one two three four\n  five six seven\n");
  EXPECT_EQ(fitted("    " + sentence, 24), "    one two three four\n      five six seven");
  EXPECT_EQ(fitted("name      größer    a third", 20), "name      größer   …");
  EXPECT_EQ(fitted("\x1b[1mname      größer    a third\x1b[0m", 20), "\x1b[1mname      größer   …\x1b[0m");
  for (const char* as_it_is : {"", "\n", "\n\n", "short\n", "short", "exactly twenty chars"}) {
    EXPECT_EQ(fitted(as_it_is, 20), as_it_is);
  }
}

TEST(ReportText, FitsAHundredColumnsAndLeavesNothingOut) {
  RandomPlans plans(9);
  for (int i = 0; i < 60; ++i) {
    const Forecast f = plans.next_forecast();
    for (const Report& r : {summarize(f, round_costs(), 8), talkative(f)}) {
      const std::string text = to_text(r, f, Color::kNever);
      const auto lines = text_lines(text);
      if (r.warnings.size() < 5) {
        EXPECT_LE(lines.size(), 40U) << text;
      }
      for (const std::string& line : text_lines(fitted(text, 100))) EXPECT_LE(display_width(line), 100U) << line;
      EXPECT_EQ(text.find("…"), std::string::npos) << text;
      std::string words;
      for (const std::string& line : lines)
        words += line.substr(std::min(line.find_first_not_of(' '), line.size())) + " ";
      for (const std::string& warning : r.warnings) {
        EXPECT_NE(words.find(warning), std::string::npos) << warning << "\n" << text;
      }
      EXPECT_EQ(text.find('\x1b'), std::string::npos);
    }
  }
}

TEST(ReportText, ColoursOnlyWhenAsked) {
  RandomPlans plans(10);
  const Forecast f = plans.next_forecast();
  const Report r = summarize(f, round_costs(), 8);
  std::string coloured = to_text(r, f, Color::kAlways);
  EXPECT_NE(coloured.find('\x1b'), std::string::npos);
  for (std::size_t at; (at = coloured.find('\x1b')) != std::string::npos;) {
    coloured.erase(at, coloured.find('m', at) - at + 1);
  }
  EXPECT_EQ(coloured, to_text(r, f, Color::kNever));
}

TEST(ReportText, SaysByHowMuchAPlanDoesNotFit) {
  RandomPlans plans(11);
  const Forecast f = plans.next_forecast();
  Report r = summarize(f, round_costs(), 0);
  EXPECT_EQ(to_text(r, f, Color::kNever).rfind("fits with ", 0), 0U);  // the first words
  r.fit.capacity = r.fit.outside + r.fit.reserved - Bytes(std::int64_t{3} << 20);
  EXPECT_EQ(to_text(r, f, Color::kNever).rfind("does not fit: 3.00 MiB more than there is", 0), 0U);
}

TEST(ExplainText, ListsEveryBarAndCutsNothing) {
  RandomPlans plans(12);
  for (int i = 0; i < 20; ++i) {
    const Forecast f = plans.next_forecast();
    const std::string text = explain_text(f, summarize(f, round_costs(), 0), Color::kNever);
    for (const WaterfallBar& bar : waterfall(f.graph, f.timeline)) {
      EXPECT_NE(text.find("  " + bar.what), std::string::npos) << text;
    }
    EXPECT_EQ(text.find("…"), std::string::npos) << text;
  }
}

TEST(ExplainJson, SumsToTheStepAndToTheMemoryPeak) {
  RandomPlans plans(13);
  for (int i = 0; i < 20; ++i) {
    const Forecast f = plans.next_forecast();
    const Json json = explain_json(f, summarize(f, round_costs(), 0));
    std::int64_t step = 0, alive = 0;
    double exposed = 0;
    for (const Json& bar : json["waterfall"]) step += bar["nanoseconds"].get<std::int64_t>();
    for (const Json& group : json["memory_peak"]["alive"]) alive += group["bytes"].get<std::int64_t>();
    for (const Json& event : json["exposed"]) {
      exposed += event["exposed_s"].get<double>();
      const std::string end = event["chain_end"];
      EXPECT_TRUE(end == "host" || end == "step_begin") << end;
    }
    EXPECT_EQ(step, f.timeline.period.nanoseconds());
    EXPECT_EQ(alive, f.memory.peak.count());
    EXPECT_NEAR(exposed, json["report"]["step"]["exposed_communication_s"]["value"], 1e-12);
  }
}

}
}
