// Every verb answers: text, one JSON document, the keys that scripts count on, the same bytes twice.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/cli/program.h"

namespace foreshard::verbs_test {
namespace {

const std::string kJob = " --model llama-3.1-8b --cluster 64xh100";

std::string ok(const std::string& arguments) {
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << arguments << "\n" << outcome.err;
  EXPECT_EQ(outcome.err, "") << arguments;
  return outcome.out;
}

void expect_keys(const nlohmann::ordered_json& json, std::initializer_list<const char*> keys) {
  for (const char* key : keys) EXPECT_TRUE(json.contains(key)) << key;
}

TEST(Verbs, PredictText) {
  const std::string text = ok("predict" + kJob);
  EXPECT_LE(lines_of(text), 40U);
  for (const char* part : {"llama-3.1-8b", "step time", "MFU", "exposed", "fits", "assumed", "batch.sequence 8192"}) {
    expect_says(text, part);
  }
  EXPECT_EQ(text.find('\x1b'), std::string::npos);  // no colours where no terminal is
}

TEST(Verbs, PredictJson) {
  const auto json = json_of(run("predict --json" + kJob));
  EXPECT_EQ(json.at("schema"), "foreshard.report/1");
  expect_keys(json, {"tool", "created", "host", "origin", "fingerprint", "plan", "step", "memory", "assumed"});
  expect_keys(json.at("memory"), {"capacity_bytes", "peak_allocated_bytes", "peak_reserved_bytes",
                                     "outside_allocator_bytes", "fits", "margin_bytes", "peak_event", "at_peak"});
  for (const char* name :
      {"seconds", "tokens_per_s_per_gpu", "mfu", "hfu", "communication_s", "exposed_communication_s"}) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(json.at("step").contains(name));
    const auto& quantity = json.at("step").at(name);
    expect_keys(quantity, {"value", "low", "high", "evidence"});
    EXPECT_LE(quantity.at("low").get<double>(), quantity.at("value").get<double>());
    EXPECT_LE(quantity.at("value").get<double>(), quantity.at("high").get<double>());
  }
  EXPECT_TRUE(json.at("memory").at("fits").get<bool>());
  EXPECT_NE(json.at("assumed").dump().find("batch.sequence"), std::string::npos);
}

// One GPU that runs rank 0 waits for no slower one; memory and order are the plan's.
TEST(Verbs, PredictPaced) {
  const auto seconds = [](const std::string& job) {
    return json_of(run("predict --json" + job)).at("step").at("seconds").at("value").get<double>();
  };
  EXPECT_LT(seconds(kJob + " --paced"), seconds(kJob));
  EXPECT_GT(seconds(kJob + " --paced"), 0.9 * seconds(kJob));
  const std::string alone = " --model gpt2 --cluster 1xh100";
  EXPECT_EQ(seconds(alone + " --paced"), seconds(alone));
  const auto paced = json_of(run("predict --json --paced" + kJob));
  const auto all = json_of(run("predict --json" + kJob));
  EXPECT_EQ(paced.at("fingerprint"), all.at("fingerprint"));
  EXPECT_EQ(paced.at("memory"), all.at("memory"));
}

TEST(Verbs, PredictFiles) {
  ok("predict" + kJob + " --trace trace.json --csv events.csv");
  const auto trace = nlohmann::json::parse(read_temporary("trace.json"), nullptr, false);
  EXPECT_FALSE(trace.is_discarded());
  EXPECT_EQ(read_temporary("events.csv"), ok("schedule --csv" + kJob));
}

TEST(Verbs, Schedule) {
  const std::string csv = ok("schedule --csv" + kJob);
  EXPECT_EQ(csv.substr(0, csv.find('\n')),
      "id,kind,unit,unit_name,microbatch,stream,communicator,bytes,flops,issue_s,start_s,arrive_s,end_s");
  EXPECT_GT(lines_of(csv), 200U);
  EXPECT_EQ(ok("schedule" + kJob), csv);
  EXPECT_EQ(ok("schedule --out s.csv" + kJob), "");
  EXPECT_EQ(read_temporary("s.csv"), csv);
}

TEST(Verbs, Explain) {
  expect_says(ok("explain" + kJob), "reduce_scatter");
  const auto json = json_of(run("explain --json" + kJob));
  expect_keys(json, {"schema", "created", "host"});
}

TEST(Verbs, CompareWith) {
  expect_says(ok("compare" + kJob + " --with mesh.shard=8"), "shard");
  json_of(run("compare --json" + kJob + " --with mesh.shard=8 --with recompute=full"));
}

TEST(Verbs, ComparePlans) {
  write_temporary("a.yaml", "model: gpt2\ncluster: 8xh100\n");
  write_temporary("b.yaml", "model: gpt2\ncluster: 8xh100\nmesh: {shard: 4}\n");
  const std::string two = comparable(run("compare a.yaml b.yaml --json"));
  EXPECT_EQ(two, comparable(run("compare --plan a.yaml --with mesh.shard=4 --json")));
}

TEST(Verbs, SearchJson) {
  const auto json = json_of(run("search --json --global-batch 128" + kJob));
  expect_keys(json, {"enumerated", "rejected_memory", "simulated", "seconds", "best", "pareto"});
  expect_keys(json.at("best"), {"plan", "report"});
  EXPECT_EQ(json.at("enumerated").get<int>(),
      json.at("rejected_memory").get<int>() + json.at("simulated").get<int>() + json.at("pruned").get<int>());
  EXPECT_FALSE(json.at("pareto").empty());
  for (const auto& entry : json.at("pareto")) expect_keys(entry, {"plan", "report"});
}

TEST(Verbs, Fit) {
  const std::string job = "fit --model gpt2 --cluster 4xh100 --sequence 1024 --set stack=hf_trainer --set offload=none";
  const auto found = json_of(run(job + " --json --budget 16GiB --out fitted.yaml"));
  expect_follows_its_schema(found);
  EXPECT_EQ(found.at("budget_bytes"), std::int64_t{16} << 30);
  const auto& memory = found.at("best").at("report").at("memory");
  EXPECT_EQ(memory.at("capacity_bytes"), std::int64_t{16} << 30);
  EXPECT_GE(memory.at("fit_probability"), 0.95);
  // The file is the plan, and predict says of it what the budget did.
  const auto report = json_of(run("predict --json --plan fitted.yaml"));
  EXPECT_EQ(report.at("fingerprint"), found.at("best").at("report").at("fingerprint"));
  EXPECT_EQ(report.at("step"), found.at("best").at("report").at("step"));
  expect_says(ok(job + " --budget 16GiB"), "what memory buys");
  const Outcome below = run(job + " --json --budget 900MiB");
  EXPECT_EQ(below.exit_code, 4);
  EXPECT_TRUE(json_of(below).at("best").is_null());
  EXPECT_GT(json_of(below).at("floor").at("budget_bytes"), std::int64_t{900} << 20);
  EXPECT_EQ(run(job + " --budget 60").exit_code, 2);
  expect_says(run(job + " --budget 90GB").err, "a GPU has 79.1 GiB");
  EXPECT_EQ(run(job).exit_code, 2);
}

TEST(Verbs, SearchIsTheSameForAnyNumberOfThreads) {
  const std::string search = "search --json --global-batch 256" + kJob;
  const std::string one = comparable(run(search + " --threads 1"));
  EXPECT_EQ(one, comparable(run(search + " --threads 2")));
  EXPECT_EQ(one, comparable(run(search)));
}

TEST(Verbs, SearchKeepsWhatIsFixed) {
  const auto json =
      json_of(run("search --json --global-batch 256 --fix mesh.shard=16 --fix prefetch.backward=2 "
                  "--fix recompute=selective --set batch.micro_batch=2 --set reshard_after_forward=always "
                  "--fix mesh.tp=1 --fix mesh.cp=1" +
                  kJob));
  // Forward prefetch and the loss vary.
  EXPECT_EQ(json.at("enumerated"), 3 * 2);
  const auto plan = json.at("best").at("plan");
  EXPECT_EQ(plan.at("mesh"), (nlohmann::ordered_json{{"shard", 16}, {"replicate", 4}}));
  EXPECT_EQ(plan.at("prefetch").at("backward"), 2);
  EXPECT_EQ(plan.at("recompute"), "selective");
  EXPECT_EQ(plan.at("batch").at("micro_batch"), 2);
  EXPECT_EQ(plan.at("batch").at("accumulation"), 2);
}

TEST(Verbs, SearchWritesAPlanThatPredictsTheSame) {
  write_temporary("models/tiny.json",
      R"({"model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 4,
                      "n_positions": 512, "vocab_size": 1000})");
  // Also where a training code is told, of which more is known than its keys.
  for (const char* told : {"", " --set stack=lightning"}) {
    const auto best = json_of(
        run("search --json --model models/tiny.json --cluster 8xa100" + std::string(told) + " --out plans.yaml"));
    const auto same = json_of(run("predict --json --plan plans.yaml"));
    EXPECT_EQ(best.at("best").at("report").at("step"), same.at("step"));
    EXPECT_EQ(best.at("best").at("report").at("memory"), same.at("memory"));
  }
  // A plan in another folder still finds its model.
  write_temporary("plans/readme", "");
  run("search --model models/tiny.json --cluster 8xa100 --out plans/best.yaml");
  expect_says(read_temporary("plans/best.yaml"), "../models/tiny.json");
  EXPECT_EQ(run("predict --plan plans/best.yaml").exit_code, 0);
}

TEST(Verbs, Models) {
  expect_says(ok("models"), "llama-3.1-8b");
  const auto models = json_of(run("models --json")).at("models");
  EXPECT_GE(models.size(), 25U);
  const auto found = std::ranges::find_if(models, [](const auto& m) { return m.at("name") == "llama-2-70b"; });
  ASSERT_NE(found, models.end());
  EXPECT_EQ(found->at("parameters"), 68976648192);
  expect_says(ok("models"), "clip-vit-large-patch14");
  EXPECT_GE(json_of(run("models --json")).at("vision").size(), 10U);
  expect_says(ok("models llava-1.5-7b"), "7,063,427,072");
  expect_says(ok("models llava-1.5-7b"), "576 of them per image");
  expect_says(ok("models gpt2"), "124,439,808");
  EXPECT_EQ(json_of(run("models Llama-3.1-8B --json")).at("layers"), 32);
}

TEST(Verbs, Machines) {
  expect_says(ok("machines"), "h100-sxm");
  const auto machines = json_of(run("machines --json")).at("machines");
  EXPECT_GE(machines.size(), 5U);
  const auto h100 = json_of(run("machines h100 --json"));
  EXPECT_EQ(h100.at("gpu").at("multiprocessors"), 132);
  for (const auto& [figure, source] : h100.at("sources").items()) EXPECT_NE(source, "") << figure;
  expect_says(ok("machines h100"), "NVIDIA H100 data sheet");
  expect_says(ok("machines 16xh100 --dot"), "graph");
}

TEST(Verbs, Schemas) {
  for (const char* kind : {"plan", "cluster", "report", "accuracy"}) {
    const auto schema = json_of(run(std::string("schema ") + kind));
    EXPECT_EQ(schema.at("$schema"), "http://json-schema.org/draft-07/schema#");
  }
}

TEST(Verbs, DoctorSaysWhatIsThere) {
  const std::string text = ok("doctor");
  expect_says(text, "planner");
  expect_says(text, "h100-sxm");
  const bool engine =
      std::filesystem::exists(std::filesystem::path(FORESHARD_PROGRAM).parent_path() / "foreshard-exec");
  expect_says(text, engine ? "engine                   foreshard-exec" : "foreshard-exec is not built");
  expect_says(text, "--cluster local needs one");
  expect_keys(json_of(run("doctor --json")), {"schema", "capabilities"});
}

TEST(Verbs, VersionAndHelp) {
  expect_says(ok("--version"), "foreshard 0.");
  const std::string help = ok("--help");
  for (const char* verb :
      {"predict", "schedule", "explain", "compare", "search", "models", "machines", "schema", "doctor", "completion"}) {
    expect_says(help, verb);
    const std::string own = ok(std::string(verb) + " --help");
    expect_says(own, "Example:\n");
    expect_says(own, std::string("Usage: foreshard ") + verb);
  }
}

TEST(Verbs, AModelWrittenAsYamlForecastsAsTheBuiltInOne) {
  for (const char* name : {"tinyllama-1.1b", "vit-base-patch32-224", "clip-vit-base-patch32"}) {
    const std::string model = name;
    write_temporary("own.yaml", ok("models " + model + " --yaml"));
    const auto own = json_of(run("predict --json --cluster 8xh100 --model own.yaml"));
    const auto built_in = json_of(run("predict --json --cluster 8xh100 --model " + model));
    EXPECT_EQ(own.at("fingerprint"), built_in.at("fingerprint")) << name;
    EXPECT_EQ(own.at("step"), built_in.at("step")) << name;
    EXPECT_EQ(own.at("memory"), built_in.at("memory")) << name;
  }
  expect_says(ok("models own.yaml"), "151,277,313");
  EXPECT_EQ(run("predict --model own.yaml --cluster 8xh100 --runtime native").exit_code, 6);
}

// The head's unit, which stays, is the one behind 48 blocks and their experts.
TEST(Verbs, TorchtitansFrameStandsAroundExpertsAndStages) {
  const std::string job =
      "predict --json --model qwen3-30b-a3b --cluster 64xh100 --sequence 4096 --set mesh.ep=8 "
      "--set trainer=torchtitan --set stack=torchtitan_2026";
  EXPECT_EQ(json_of(run(job)).at("plan").at("reshard_after_forward").at(0).at("units"), 97);
  EXPECT_EQ(run(job + " --set mesh.pp=4 --accumulation 8").exit_code, 0);
}

TEST(Verbs, ModelsThatReadImagesForecast) {
  expect_says(ok("predict --model llava-1.5-7b --cluster 8xh100 --set batch.images=1"), "7.06 B parameters");
  const auto vit = json_of(run("predict --json --model vit-large-patch16-224 --cluster 8xh100"));
  EXPECT_EQ(vit.at("plan").at("batch").at("sequence"), 197);
  const auto llava =
      json_of(run("predict --json --model llava-1.5-7b --cluster 8xh100 --set frozen=[tower,embedding]"));
  EXPECT_EQ(llava.at("plan").at("batch").at("images"), 1);
}

}
}
