// recommend, scale and search in depth, run as a user does.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <initializer_list>
#include <set>
#include <sstream>

#include "tests/cli/program.h"

namespace foreshard {
namespace {

using Json = nlohmann::ordered_json;

const std::string kRecommend =
    "recommend --model gpt2 --tokens 10B --cluster a100 --gpus 8,16 --cluster 8xh100 --batch-tokens 512k ";

void expect_quantity(const Json& q) {
  EXPECT_LE(q["low"].get<double>(), q["value"].get<double>());
  EXPECT_LE(q["value"].get<double>(), q["high"].get<double>());
  EXPECT_TRUE(q["evidence"].is_string());
}

TEST(Recommend, AnswersWithTheKeysThatScriptsCountOn) {
  const Json answer = json_of(run(kRecommend + "--deadline 30d --budget 100k --json"));
  EXPECT_EQ(answer["schema"], "foreshard.recommend/1");
  ASSERT_EQ(answer["choices"].size(), 3U);
  double dollars = 0;
  for (const Json& choice : answer["choices"]) {
    for (const char* key :
        {"step_s", "days", "dollars", "goodput", "gpu_hours", "energy_kwh", "dollars_per_million_tokens", "mfu"}) {
      SCOPED_TRACE(key);
      expect_quantity(choice[key]);
    }
    EXPECT_TRUE(choice["meets_deadline"].get<bool>());
    EXPECT_GE(choice["probability"].get<double>(), 0.99);
    EXPECT_GE(choice["dollars"]["value"].get<double>(), dollars);
    dollars = choice["dollars"]["value"];
    // dollars = days x 24 x GPUs x price
    const double hours = choice["days"]["value"].get<double>() * 24 * choice["gpus"].get<double>();
    const double price = choice["price"]["usd_per_gpu_hour"]["value"];
    EXPECT_NEAR(dollars, hours * price, dollars * 1e-9);
    EXPECT_FALSE(choice["price"]["date"].get<std::string>().empty());
  }
  expect_follows_its_schema(answer);
}

// Each point is the forecast that predict makes of its plan.
TEST(Recommend, StepsAreThoseOfPredict) {
  const Json answer = json_of(run(kRecommend + "--json"));
  for (const Json& choice : answer["choices"]) {
    write_temporary("plan.json", choice["plan"].dump());
    const Json report = json_of(run("predict --json --plan plan.json"));
    const double predicted = report["step"]["seconds"]["value"];
    EXPECT_NEAR(choice["step_s"]["value"].get<double>(), predicted, predicted * 1e-9) << choice["cluster"];
    EXPECT_EQ(choice["memory"]["peak_allocated_bytes"], report["memory"]["peak_allocated_bytes"]["value"]);
  }
}

TEST(Recommend, IsTheSameForOneAndTwoThreads) {
  const std::string asked = kRecommend + "--deadline 1d --what-if --json --threads ";
  EXPECT_EQ(comparable(run(asked + "1")), comparable(run(asked + "2")));
}

TEST(Recommend, SaysWhatWouldMeetAnImpossibleDeadline) {
  const Outcome outcome = run(kRecommend + "--deadline 1min --json");
  EXPECT_EQ(outcome.exit_code, 4);
  const Json answer = json_of(outcome);
  EXPECT_FALSE(answer["meets_terms"].get<bool>());
  EXPECT_FALSE(answer["choices"].empty());
  ASSERT_FALSE(answer["would_meet"].empty());
  EXPECT_EQ(answer["would_meet"][0]["change"], "deadline_s");
  const double deadline = answer["would_meet"][0]["to"];
  const Outcome met = run(kRecommend + "--deadline " + std::to_string(deadline * 1.001) + "s");
  EXPECT_EQ(met.exit_code, 0);
  const Outcome text = run(kRecommend + "--deadline 1min");
  expect_says(text.out, "no candidate fits and is in time with 95 %");
  const std::string would = "it would with --deadline ";
  expect_says(text.out, would);
  EXPECT_GE(std::stod(text.out.substr(text.out.find(would) + would.size())) * 86400, deadline);
  expect_follows_its_schema(answer);
}

TEST(Recommend, ABudgetThatIsTooSmallHasRemediesToo) {
  const Outcome outcome = run(kRecommend + "--budget 1 --json");
  EXPECT_EQ(outcome.exit_code, 4);
  const Json answer = json_of(outcome);
  EXPECT_EQ(answer["would_meet"][0]["change"], "budget_usd");
  // More than the central forecast: it has to hold with 95 %, over the range of the price too.
  const double budget = answer["would_meet"][0]["to"];
  EXPECT_GT(budget, answer["choices"][0]["dollars"]["value"].get<double>());
  EXPECT_EQ(run(kRecommend + "--budget " + std::to_string(budget)).exit_code, 0);
}

TEST(Recommend, TakesTheUsersPrices) {
  write_temporary("prices.csv", "machine,usd_per_gpu_hour,date,source\nh100,100,2026-11,dear\na100,1,2026-11,\n");
  const Json answer = json_of(run(kRecommend + "--prices prices.csv --json"));
  EXPECT_EQ(answer["choices"][2]["machine"], "h100-sxm");
  EXPECT_EQ(answer["choices"][2]["price"]["usd_per_gpu_hour"]["value"], 100);
  EXPECT_EQ(answer["choices"][2]["price"]["source"], "dear");
  // Only what has a price is looked at; a machine that is asked for needs one.
  const Json listed = json_of(run("recommend --model gpt2 --tokens 1B --gpus 8 --prices prices.csv --json"));
  EXPECT_EQ(listed["choices"].size(), 2U);
  const Outcome missing = run("recommend --model gpt2 --tokens 1B --cluster 8xh200 --prices prices.csv");
  EXPECT_EQ(missing.exit_code, 3);
  expect_says(missing.err, "prices.csv: no price of h200");
}

struct Bad {
  const char* arguments;
  int exit_code;
  std::initializer_list<const char*> says;
};

TEST(Recommend, RefusesWhatIsWrong) {
  write_temporary("gap.csv", "machine,usd_per_gpu_hour\nh100,2\nh200,\n");
  const Bad cases[] = {
      {"--tokens 0", 2, {"--tokens", "'0'", "above zero", "1T"}},
      {"--tokens -1T", 2, {"--tokens"}},
      {"--tokens 1Q", 2, {"--tokens", "'1Q'"}},
      {"--tokens 1T --deadline 0d", 2, {"--deadline", "above zero"}},
      {"--tokens 1T --budget none", 2, {"--budget"}},
      {"--tokens 1T --gpus 8,,16", 2, {"--gpus"}},
      {"--tokens 1T --prices gap.csv", 3, {"gap.csv:3:1: usd_per_gpu_hour: is empty"}},
      {"--tokens 1T --prices none.csv", 3, {"none.csv"}},
      {"--tokens 1T --cluster 64xh101", 3, {"h101", "did you mean"}},
      {"--tokens 1T --cluster 12xh100", 3, {"whole nodes"}},
      {"--tokens 1T --cluster local", 2, {"local"}},
      {"--tokens 1T --set mesh.shrad=8", 3, {"mesh.shrad", "did you mean"}},
      {"--tokens 1T --pue 0.5", 2, {"--pue"}},
      {"--tokens 1T --global-batch 8 --batch-tokens 1M", 2, {"--batch-tokens"}},
      {"--deadline 1d", 2, {"--tokens is required"}},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.arguments);
    const Outcome outcome = run(std::string("recommend --model gpt2 ") + bad.arguments);
    EXPECT_EQ(outcome.exit_code, bad.exit_code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    for (const char* part : bad.says) expect_says(outcome.err, part);
    expect_no_crash(outcome);
  }
}

TEST(Recommend, WhatIfsAreSortedByWorth) {
  const Json answer =
      json_of(run("recommend --model gpt2 --tokens 1B --cluster 16xa100 --batch-tokens 512k --what-if --json"));
  ASSERT_GE(answer["what_if"].size(), 5U);
  double worth = 1e9;
  for (const Json& one : answer["what_if"]) {
    EXPECT_LE(one["worth_usd_per_gpu_hour"].get<double>(), worth);
    worth = one["worth_usd_per_gpu_hour"];
  }
  EXPECT_GT(answer["what_if"][0]["worth_usd_per_gpu_hour"].get<double>(), 0);
  expect_follows_its_schema(answer);
}

TEST(Scale, IsACurveOfForecasts) {
  const std::string asked = "scale --model gpt2 --cluster a100 --gpus 8,16,32 --global-batch 64 ";
  const Json curve = json_of(run(asked + "--json"));
  ASSERT_EQ(curve["points"].size(), 3U);
  EXPECT_EQ(curve["points"][0]["efficiency"], 1);
  EXPECT_EQ(curve["points"][0]["global_batch"], 64);
  for (const Json& point : curve["points"]) {
    expect_quantity(point["step_s"]);
    EXPECT_LE(point["efficiency"].get<double>(), 1.05);
  }
  EXPECT_TRUE(curve["knee_gpus"].is_number());
  expect_follows_its_schema(curve);
  const Outcome csv = run(asked + "--csv");
  EXPECT_EQ(lines_of(csv.out), 4U);
  EXPECT_EQ(csv.out.rfind("gpus,global_batch,step_s,", 0), 0U);
  EXPECT_EQ(comparable(run(asked + "--json --threads 1")), comparable(run(asked + "--json --threads 2")));
  const Json weak = json_of(run("scale --model gpt2 --cluster a100 --gpus 8,16 --weak 4 --json"));
  EXPECT_EQ(weak["points"][1]["global_batch"], 64);
}

TEST(Scale, RefusesWhatIsWrong) {
  const Outcome sized = run("scale --model gpt2 --cluster 64xh100");
  EXPECT_EQ(sized.exit_code, 3);
  expect_says(sized.err, "without a count");
  EXPECT_EQ(run("scale --model gpt2").exit_code, 2);
  EXPECT_EQ(run("scale --model gpt2 --cluster h100 --weak 4 --global-batch 8").exit_code, 2);
  const Outcome few = run("scale --model gpt2 --cluster h100 --gpus 512 --global-batch 8");
  EXPECT_EQ(few.exit_code, 4);
}

TEST(SearchInDepth, IsNeverWorseThanTheGrid) {
  const std::string asked = "search --model gpt2 --cluster 16xa100 --global-batch 64 --json ";
  const Json grid = json_of(run(asked));
  const Json deep = json_of(run(asked + "--deep"));
  const auto seconds = [](const Json& answer) {
    return answer["best"]["report"]["step"]["seconds"]["value"].get<double>();
  };
  EXPECT_LE(seconds(deep), seconds(grid) * (1 + 1e-9));
  EXPECT_GT(deep["deep"]["knobs"]["pruned"].get<int>(), 0);
  EXPECT_EQ(comparable(run(asked + "--deep --threads 1")), comparable(run(asked + "--deep --threads 2")));
  EXPECT_FALSE(grid["why"].empty());
  expect_follows_its_schema(deep);
}

TEST(SearchInDepth, GoesOnWhereItWasStopped) {
  const std::string asked = "search --model gpt2 --cluster 8xa100 --global-batch 64 --json ";
  const std::string whole = comparable(run(asked));
  EXPECT_EQ(comparable(run(asked + "--resume state.txt")), whole);
  const std::string state = read_temporary("state.txt");
  EXPECT_GT(lines_of(state), 100U);
  // Cut in the middle of a line, as a stopped program leaves it.
  write_temporary("state.txt", state.substr(0, state.size() / 2));
  EXPECT_EQ(comparable(run(asked + "--resume state.txt")), whole);
  // The same plans stand there, each once.
  const auto plans_of = [](const std::string& text) {
    std::multiset<std::string> plans;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) plans.insert(line);
    return plans;
  };
  const std::string again = read_temporary("state.txt");
  EXPECT_EQ(plans_of(again), plans_of(state));
  const std::multiset<std::string> plans = plans_of(state);
  EXPECT_EQ(std::set<std::string>(plans.begin(), plans.end()).size(), plans.size());
  EXPECT_EQ(comparable(run(asked + "--resume state.txt")), whole);
  EXPECT_EQ(read_temporary("state.txt"), again);

  const Outcome other = run(asked + "--max-memory 0.5 --resume state.txt");
  EXPECT_EQ(other.exit_code, 3);
  expect_says(other.err, "state.txt:1:1: is of another search");
  write_temporary("state.txt", "model: gpt2\n");
  EXPECT_EQ(run(asked + "--resume state.txt").exit_code, 3);
  write_temporary("broken.txt", state.substr(0, state.find('\n') + 1) + "1 2 x\n");
  expect_says(run(asked + "--resume broken.txt").err, "broken.txt:2:1: is no judged plan");
  EXPECT_EQ(run(asked + "--resume none/state.txt").exit_code, 3);
  // A figure that was edited: the step of the second plan, and a line of another search's state.
  std::string edited = state;
  const std::size_t figure = edited.find(' ', edited.find('\n') + 1) + 3;
  edited[figure] = edited[figure] == '9' ? '8' : '9';
  write_temporary("edited.txt", edited);
  expect_says(run(asked + "--resume edited.txt").err, "edited.txt:2:1: was edited");
  // What follows a header without its end is a line of its own.
  write_temporary("begun.txt", state.substr(0, state.find('\n')));
  EXPECT_EQ(comparable(run(asked + "--resume begun.txt")), whole);
  EXPECT_EQ(lines_of(read_temporary("begun.txt")), lines_of(state));
}

TEST(SearchInDepth, LimitsAndObjectives) {
  const std::string asked = "search --model gpt2 --cluster 8xa100 --global-batch 64 --json ";
  const Json fast = json_of(run(asked));
  const Json small = json_of(run(asked + "--objective memory"));
  const auto memory = [](const Json& answer) {
    return answer["best"]["report"]["memory"]["peak_allocated_bytes"]["value"].get<double>();
  };
  EXPECT_LT(memory(small), memory(fast));
  const Json limited = json_of(run(asked + "--max-memory 0.3"));
  const Json& report = limited["best"]["report"]["memory"];
  EXPECT_LE(
      report["peak_reserved_bytes"]["value"].get<double>() + report["outside_allocator_bytes"]["value"].get<double>(),
      0.3 * report["capacity_bytes"].get<double>());
  const Json robust = json_of(run(asked + "--robust"));
  EXPECT_LE(robust["robust"]["step_s"]["high"].get<double>(), robust["robust"]["fastest_step_s"]["high"].get<double>());
  expect_follows_its_schema(robust);
  EXPECT_EQ(run(asked + "--max-memory 1.5").exit_code, 2);
  EXPECT_EQ(run(asked + "--objective speed").exit_code, 2);
  EXPECT_EQ(run(asked + "--deep --robust").exit_code, 2);
  const Outcome unknown = run(asked + "--vary dtype.reduc");
  EXPECT_EQ(unknown.exit_code, 2);
  expect_says(unknown.err, "did you mean dtype.reduce?");
}

}
}
