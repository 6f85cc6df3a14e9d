// Every document that a verb prints with --json follows the schema that `foreshard schema` prints
// for it. Those of recommend, scale, search in depth, validate and calibrate: in their own tests.
#include <gtest/gtest.h>

#include <string>

#include "tests/cli/program.h"

namespace foreshard::documents_test {
namespace {

const std::string kJob = " --model gpt2 --cluster 8xa100 ";

// The document of `arguments`, which is called `name`.
void expect_document(const std::string& name, const std::string& arguments) {
  SCOPED_TRACE(arguments);
  const auto document = json_of(run(arguments + " --json"));
  ASSERT_TRUE(document.is_object());
  EXPECT_EQ(document.at("schema"), "foreshard." + name + "/1");
  expect_follows_its_schema(document);
}

TEST(Documents, OfForecasts) {
  expect_document("report", "predict" + kJob);
  expect_document("report", "predict --model llama-3.1-405b --cluster 8xh100");  // does not fit
  expect_document("explain", "explain" + kJob);
  expect_document("explain", "explain --model llama-3.1-405b --cluster 8xh100");
  expect_document("compare", "compare --with mesh.shard=4" + kJob);
  expect_document("runtimes", "compare --runtimes fsdp2,zero3,ddp" + kJob);
  // A runtime that refuses the model stands there with its reason.
  expect_document("runtimes", "compare --runtimes fsdp2,native --model mixtral-8x7b --cluster 8xh100");
  expect_document("search", "search --global-batch 64" + kJob);
  expect_document("page", "report" + kJob);
}

TEST(Documents, OfCatalogues) {
  expect_document("models", "models");
  // A decoder, experts, one that reads images, and one of both.
  for (const char* model : {"gpt2", "mixtral-8x7b", "vit-large-patch16-224", "llava-1.5-7b"}) {
    expect_document("model", std::string("models ") + model);
  }
  write_temporary("config.json",
      R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4,
                      "vocab_size": 100, "n_positions": 128})");
  expect_document("model", "models config.json");
  expect_document("machines", "machines");
  expect_document("machine", "machines 64xh100");
  write_temporary("listed.yaml",
      "machine: h100\nnodes: [{names: \"a[1-5]\", leaf: l1}, {count: 3, leaf: l2}]\n"
      "switches: [l1, l2]\nlinks: [{between: [l1, l2], rate: 200GB/s}]\n");
  expect_document("topology", "machines --topology listed.yaml");
  expect_document("doctor", "doctor");
}

TEST(Documents, OfFiles) {
  expect_document("export", "export --to fsdp2 --out train.py --ledger l.txt" + kJob);
  expect_document("launch", "launch" + kJob);
  write_temporary("accelerate.yaml",
      "distributed_type: FSDP\nnum_processes: 8\n"
      "fsdp_config: {fsdp_version: 2}\n");
  expect_document("import", "import accelerate.yaml --out plan.yaml" + kJob);
}

// Three rows of the published steps, scored and frozen.
TEST(Documents, OfAccuracy) {
  expect_document("accuracy", "accuracy --history");
  const std::string table = FORESHARD_SOURCE_DIR "/calibration/published/training_steps.csv";
  shell("head -n 4 '" + table + "' > steps.csv");
  expect_document("accuracy", "accuracy steps.csv --freeze frozen.json");
  const auto frozen = nlohmann::ordered_json::parse(read_temporary("frozen.json"));
  EXPECT_EQ(frozen.at("schema"), "foreshard.forecasts/1");
  EXPECT_EQ(frozen.at("forecasts").size(), 3U);
  expect_follows_its_schema(frozen);
  // Without what the rows say of their code the same code is likely, but the interval is wider.
  const auto relative_width = [](const std::string& arguments) {
    const auto row = json_of(run("accuracy steps.csv --json " + arguments)).at("rows").at(1);
    return (row.at("high").get<double>() - row.at("low").get<double>()) / row.at("predicted").get<double>();
  };
  EXPECT_GT(relative_width("--blank details"), 1.05 * relative_width(""));
  EXPECT_EQ(run("accuracy steps.csv --blank no_such_column").exit_code, 3);
  expect_document("conformance", "conform --only base '" FORESHARD_SOURCE_DIR "/tests/recordings/fsdp2'");
}

// all_gather of 8 H100: 7/8 of 1 MiB in 50 us and of 2 MiB in 80 us.
TEST(Documents, OfSweeps) {
  std::string log =
      "# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22703\n"
      "# Collective test starting: all_gather_perf\n# Using devices\n";
  for (int rank = 0; rank < 8; ++rank) {
    const std::string r = std::to_string(rank);
    for (const char* part : {"#  Rank  ", " Group  0 Pid   1", " on node0 device  "}) log.append(part).append(r);
    log += " [0000:1b:00] NVIDIA H100 80GB HBM3\n";
  }
  log +=
      "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
      "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)\n"
      "     1048576         32768     float    none      -1    50.00   20.97   18.35      0\n"
      "     2097152         65536     float    none      -1    80.00   26.21   22.94      0\n"
      "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 20.6\n";
  write_temporary("all_gather.log", log);
  expect_document("calibrate", "calibrate all_gather.log --machine h100 --out p.json");
}

}
}
