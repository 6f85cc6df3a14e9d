// Holds cli/schemas/ against the readers: the same keys, and the same verdict on good and bad
// files. A schema knows neither cross-references nor divisibility, so no case here depends on them.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "calibration/machine_figures.h"
#include "calibration/machines.h"
#include "models/yaml/model_yaml.h"
#include "sim/base/config.h"
#include "sim/base/embedded.h"
#include "sim/base/lookup.h"
#include "sim/spec/plan_config.h"
#include "sim/spec/plan_keys.h"
#include "tests/support/temporary_folder.h"

namespace foreshard {
namespace {

using Texts = std::vector<std::string>;

std::string source_path(const std::string& path) { return std::string(FORESHARD_SOURCE_DIR) + "/" + path; }

Json schema(const std::string& name) {
  if (name == "plan") return plan_schema();
  const std::string_view text = file_named(name + ".schema.json", schema_files()).content;
  Json json = Json::parse(text);
  if (name == "cluster") add_figures(json);
  return json;
}

struct Verdicts {
  bool is_skipped = false;
  std::vector<bool> accepted;
};

// What Python's jsonschema says.
Verdicts judge(const Json& schema, const Texts& documents) {
  const TemporaryFolder folder;
  const std::string task =
      folder.write("task.json", Json{{"schema", schema}, {"documents", documents}}.dump()).string();
  const std::string answer = (folder / "answer.json").string();
  const std::string command =
      "python3 '" + source_path("tests/cli/judge_documents.py") + "' < '" + task + "' > '" + answer + "'";
  const int status = std::system(command.c_str());
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code == 77 || code == 127) return {true, {}};
  EXPECT_EQ(code, 0);
  std::ifstream file(answer);
  return {false, code == 0 ? Json::parse(file).get<std::vector<bool>>() : std::vector<bool>{}};
}

bool accepts(auto read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_NE(error.exit_code(), ExitCode::kInternal) << error.what();
    return false;
  }
  return true;
}

bool plan_reader_accepts(const std::string& text) {
  return accepts([&] { read_plan(parse_json(text, "plan.json")); });
}
bool model_reader_accepts(const std::string& text) {
  return accepts([&] {
    const ConfigNode root = parse_yaml(text, "model.yaml");
    parse_model_yaml(root);
  });
}
bool cluster_reader_accepts(const std::string& text) {
  return accepts([&] { parse_cluster(text, "cluster.yaml"); });
}

void expect_same_verdicts(
    const char* schema_name, bool (*reader)(const std::string&), const Texts& good, const Texts& bad) {
  Texts all = good;
  append(all, bad);
  const Verdicts verdicts = judge(schema(schema_name), all);
  if (verdicts.is_skipped) {
    GTEST_SKIP() << "needs python3-jsonschema";
  }
  ASSERT_EQ(verdicts.accepted.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(reader(all[i]), i < good.size()) << "reader: " << all[i];
    EXPECT_EQ(verdicts.accepted[i], i < good.size()) << "schema: " << all[i];
  }
}

// Dotted paths of the properties that hold no properties of their own.
Texts keys_of(const Json& object, const std::string& prefix) {
  Texts keys;
  for (const auto& [name, property] : object.at("properties").items()) {
    if (property.contains("properties")) {
      const Texts below = keys_of(property, prefix + name + ".");
      append(keys, below);
    } else {
      keys.push_back(prefix + name);
    }
  }
  return keys;
}

// Every property has a text for editors, and no mapping takes other keys.
void expect_complete(const Json& object, const std::string& path) {
  for (const auto& [name, property] : object.at("properties").items()) {
    EXPECT_TRUE(property.contains("description")) << path << name;
    if (!property.contains("properties")) continue;
    EXPECT_EQ(property.value("additionalProperties", true), false) << path << name;
    expect_complete(property, path + name + ".");
  }
}

Texts sorted(Texts texts) {
  std::ranges::sort(texts);
  return texts;
}

TEST(Schema, PlanHasTheKeysOfTheReader) {
  const Json plan = schema("plan");
  EXPECT_EQ(sorted(keys_of(plan, "")), sorted(plan_keys()));
  EXPECT_EQ(plan["additionalProperties"], false);
  expect_complete(plan, "");
}

TEST(Schema, PlanJudgesAsTheReader) {
  const Texts good = {R"({})", R"({"model": "llama-3.1-8b", "cluster": "64xh100", "runtime": "fsdp2@2.11"})",
      R"({"runtime": "fsdp2"})", R"({"runtime": "native"})", R"({"runtime": "native@1"})",
      R"({"runtime": "fsdp2@2.11.0"})",
      R"({"batch": {"sequence": 16777216, "micro_batch": 1, "accumulation": 1048576}})",
      R"({"batch": {"global": 512}})", R"({"batch": {"images": 0}})", R"({"frozen": ["tower"]})",
      R"({"batch": {"sequence": 8192.0}})", R"({"mesh": {"shard": 8, "replicate": 8}})",
      R"({"mesh": {"inner": "replicate"}})", R"({"mesh": {}})",
      R"({"units": {"layers_per_unit": 65536, "embedding": "root", "head": "with_norm"}})",
      R"({"reshard_after_forward": "always"})", R"({"reshard_after_forward": 8})",
      R"({"reshard_after_forward": [{"units": "0-30", "value": "always"},
          {"units": 31, "value": "never"}, {"units": "32", "value": 4}]})",
      R"({"reshard_after_forward": [{"units": "all", "value": "never"}]})",
      R"({"prefetch": {"forward": "implicit", "backward": 0}})", R"({"prefetch": {"forward": 1024}})",
      R"({"recompute": "none"})", R"({"recompute": "every-2"})", R"({"recompute": "every-02"})",
      R"({"recompute": "every-9999999"})", R"({"recompute": [{"layers": "0-3", "value": "selective"}]})",
      R"({"dtype": {"param": "bf16", "reduce": "fp32", "master": "fp16"}})",
      R"({"accumulation": {"mode": "keep_unsharded"}})",
      R"({"optimizer": {"kind": "sgd", "implementation": "loop", "state": "bf16",
          "clip_norm": "none"}})",
      R"({"optimizer": {"clip_norm": 1}})", R"({"optimizer": {"clip_norm": 1e-3}})", R"({"trainer": "torchtitan"})",
      R"({"trainer": "none"})", R"({"runtime": "fsdp2@2.4"})",
      R"({"units": {"embedding": "with_head", "blocks": "root", "experts": "block", "shard_dim": 1}})",
      R"({"units": {"experts": "own"}})", R"({"unshard_in_backward": false})",
      R"({"unshard_in_backward": [{"units": 0, "value": false}, {"units": "3-4", "value": true}]})",
      R"({"prefetch": {"backward_lists": true, "async_unshard": false}})", R"({"recompute_wraps": "unit"})",
      R"({"recompute_early_stop": false})", R"({"dtype": {"reduce": "none", "output": "none"}})",
      R"({"dtype": {"output": "fp32"}})",
      R"({"accumulation": {"all_reduce": "last", "reshard_after_backward": "each",
          "is_last_backward": "last"}})",
      R"({"frozen": "none"})", R"({"frozen": ["embedding", "0-15", 17, "norm", "head"]})",
      R"({"lora": {"rank": 16, "targets": ["q_proj", "v_proj"], "dropout": 0.05, "base": "nf4"}})",
      R"({"lora": {"rank": 0, "targets": "all-linear"}})", R"({"batch": {"documents": 8}})", R"({"experts": "loop"})",
      R"({"ignored": "norms"})", R"({"offload": "none"})", R"({"offload": "cpu"})", R"({"offload": "cpu_unpinned"})",
      R"({"reduction": {"divide_factor": "none", "force_sum": true}})", R"({"reduction": {"divide_factor": 2.5}})",
      R"({"evaluation": {"in_step": true}})", R"({"rank": 1048575})", R"({"rank": "fullest"})",
      R"({"buffers": {"reduce_scatter": 64}})", R"({"communicators": "separate", "host_sync": "step"})",
      R"({"collectives": {"kernels": "copy_engine", "max_ctas": 8}})", R"({"mesh": {"pp": 1}})"};
  const Texts bad = {R"([])", R"("plan")", R"(null)", R"({"modle": "a"})", R"({"model": ""})", R"({"model": 8})",
      R"({"model": null})", R"({"cluster": ["64xh100"]})", R"({"runtime": "fsdp3"})", R"({"runtime": "fsdp2@"})",
      R"({"runtime": "fsdp2@2."})", R"({"runtime": "FSDP2"})", R"({"runtime": 2})", R"({"batch": 8})",
      R"({"batch": {"sequence": 0}})", R"({"batch": {"sequence": 16777217}})", R"({"batch": {"sequence": 1.5}})",
      R"({"batch": {"sequence": "8192"}})", R"({"batch": {"sequence": true}})", R"({"batch": {"sequence": null}})",
      R"({"batch": {"micro_batch": -1}})", R"({"batch": {"accumulation": 1048577}})", R"({"batch": {"global": 0}})",
      R"({"batch": {"size": 1}})", R"({"mesh": [8, 8]})", R"({"mesh": {"shard": 1048577}})",
      R"({"mesh": {"replicate": 0}})", R"({"mesh": {"inner": "node"}})", R"({"units": {"layers_per_unit": 0}})",
      R"({"units": {"layers_per_unit": 65537}})", R"({"units": {"embedding": "with_norm"}})",
      R"({"units": {"head": "norm"}})", R"({"reshard_after_forward": true})", R"({"reshard_after_forward": 0})",
      R"({"reshard_after_forward": "8"})", R"({"reshard_after_forward": []})", R"({"reshard_after_forward": {}})",
      R"({"reshard_after_forward": ["always"]})", R"({"reshard_after_forward": [{"units": 3}]})",
      R"({"reshard_after_forward": [{"value": "always"}]})",
      R"({"reshard_after_forward": [{"units": -1, "value": "always"}]})",
      R"({"reshard_after_forward": [{"units": 10000000, "value": "always"}]})",
      R"({"reshard_after_forward": [{"units": "10000000", "value": "always"}]})",
      R"({"reshard_after_forward": [{"units": "0-", "value": "always"}]})",
      R"({"reshard_after_forward": [{"units": "0-3-5", "value": "always"}]})",
      R"({"reshard_after_forward": [{"units": " 3", "value": "always"}]})",
      R"({"reshard_after_forward": [{"units": 3, "value": "full"}]})",
      R"({"reshard_after_forward": [{"units": 3, "value": "always", "why": "x"}]})",
      R"({"prefetch": {"forward": "explicit"}})", R"({"prefetch": {"forward": -1}})",
      R"({"prefetch": {"backward": "implicit"}})", R"({"prefetch": {"backward": 1025}})", R"({"recompute": "every-0"})",
      R"({"recompute": "every-"})", R"({"recompute": "every-K"})", R"({"recompute": "every-10000000"})",
      R"({"recompute": true})", R"({"recompute": 2})", R"({"recompute": [{"units": 3, "value": "full"}]})",
      R"({"recompute": [{"layers": 3, "value": "every-2"}]})", R"({"dtype": "bf16"})",
      R"({"dtype": {"param": "float16"}})", R"({"dtype": {"params": "bf16"}})", R"({"accumulation": 4})",
      R"({"accumulation": {"mode": "keep"}})", R"({"optimizer": "adamw"})", R"({"optimizer": {"kind": "adam"}})",
      R"({"optimizer": {"clip_norm": 0}})", R"({"optimizer": {"clip_norm": -1.0}})",
      R"({"optimizer": {"clip_norm": "1.0"}})", R"({"optimizer": {"clip_norm": null}})",
      R"({"optimizer": {"lr": 1e-4}})", R"({"trainer": "titan"})", R"({"units": {"blocks": "with_norm"}})",
      R"({"units": {"experts": "root"}})", R"({"units": {"shard_dim": 2}})", R"({"unshard_in_backward": "false"})",
      R"({"unshard_in_backward": 1})", R"({"unshard_in_backward": []})", R"({"unshard_in_backward": [{"units": 0}]})",
      R"({"prefetch": {"backward_lists": "true"}})", R"({"prefetch": {"async_unshard": 1}})",
      R"({"recompute_wraps": "block"})", R"({"dtype": {"param": "none"}})", R"({"dtype": {"output": null}})",
      R"({"accumulation": {"all_reduce": "never"}})", R"({"frozen": "embedding"})", R"({"frozen": []})",
      R"({"frozen": ["all"]})", R"({"frozen": [-1]})", R"({"lora": {"rank": -1}})",
      R"({"lora": {"targets": "q_proj"}})", R"({"lora": {"targets": []}})", R"({"lora": {"targets": ["all-linear"]}})",
      R"({"lora": {"targets": ["q_proj", "q_proj"]}})", R"({"lora": {"dropout": 1}})", R"({"lora": {"base": "int4"}})",
      R"({"lora": 16})", R"({"batch": {"documents": 0}})", R"({"experts": "all"})", R"({"ignored": ["norms"]})",
      R"({"offload": "disk"})", R"({"reduction": {"divide_factor": 0}})", R"({"reduction": {"force_sum": "yes"}})",
      R"({"evaluation": {"in_step": 0}})", R"({"rank": -1})", R"({"rank": 1048576})", R"({"offload": {}})",
      R"({"offload": null})", R"({"buffers": {"reduce_scatter": 65}})", R"({"buffers": {"reduce_scatter": 0}})",
      R"({"communicators": "one"})", R"({"collectives": {"kernels": "fast"}})", R"({"collectives": {"max_ctas": 65}})",
      R"({"host_sync": true})", R"({"mesh": {"pp": 0}})", R"({"mesh": {"sp": 1}})", R"({"mesh": 1})"};
  expect_same_verdicts("plan", plan_reader_accepts, good, bad);
}

// A file of the catalogue as JSON.
Json to_json(const ConfigNode& node) {
  if (node.is_sequence()) {
    Json list = Json::array();
    for (const ConfigNode& element : node.elements()) list.push_back(to_json(element));
    return list;
  }
  if (node.is_mapping()) {
    Json object = Json::object();
    for (const ConfigItem& item : node.items()) object[item.key] = to_json(item.value);
    return object;
  }
  const Json number = Json::parse(node.text(), nullptr, false);
  return !node.is_quoted() && number.is_number() ? number : Json(node.text());
}

// A cluster file with every figure, out of the catalogue's H100 entry.
Json full_cluster() {
  Json cluster = to_json(read_yaml_file(source_path("calibration/machines/hopper/h100-sxm.yaml")));
  cluster["gpu"]["key"] = "h100-sxm";
  cluster["gpu"]["architecture"] = "hopper";
  cluster["gpus"] = 64;
  cluster.erase("aliases");
  return cluster;
}

TEST(Schema, ClusterHasTheFiguresOfTheCatalogue) {
  Json cluster = full_cluster();
  cluster["machine"] = "h100";
  for (const char* part : {"gpu", "node", "network"}) {
    for (auto& [key, figure] : cluster[part].items()) figure = "a figure";
  }
  // What the usual machines do not need stands in the schema all the same.
  Texts keys = {"gpus", "gpu.peak_fp4", "machine", "memory_outside_allocator", "degraded", "node.link_domain",
      "node.pcie_switches", "node.peer_access", "nodes", "switches", "links", "ranks", "rings", "background"};
  for (const char* part : {"gpu", "node", "network"}) {
    for (const auto& [key, figure] : cluster[part].items()) keys.push_back(std::string(part) + "." + key);
  }
  EXPECT_EQ(sorted(keys_of(schema("cluster"), "")), sorted(keys));
  expect_complete(schema("cluster"), "");
}

TEST(Schema, ClusterJudgesAsTheReader) {
  const Json full = full_cluster();
  Texts good = {
      full.dump(),
      R"({"gpus": 64, "machine": "h100-sxm"})",
      R"({"gpus": 4, "machine": "a100"})",
      R"({"gpus": 64, "machine": "h100", "node": {"nics": 4, "nic_rate": "200Gbit/s"},
          "network": {"oversubscription": 2}, "memory_outside_allocator": "2GiB"})",
      R"({"gpus": 64, "machine": "h100",
          "node": {"nic_rate": {"value": "0.4Tbit/s", "source": "a quote"}}})",
      R"({"machine": "h100", "nodes": [{"names": "a[1-5]", "leaf": "l1"},
          {"count": 3, "leaf": ["l1", "l2"], "degraded": [{"nic": 1, "fraction": 0}]}],
          "switches": ["l1", {"name": "l2", "latency": "300ns"}],
          "links": [{"between": ["l1", "l2"], "rate": "400Gbit/s", "count": 4}],
          "ranks": ["a[1-5]"], "background": {"l1-l2": [0.1, 0.5]}})",
  };
  Texts bad = {
      R"([])",
      R"({})",
      R"({"gpus": 64})",
      R"({"machine": "h100"})",
      R"({"gpus": 0, "machine": "h100"})",
      R"({"gpus": "64", "machine": "h100"})",
      R"({"gpus": 64, "machine": ""})",
      R"({"gpus": 64, "machine": "h100", "gpu": {"key": "x"}})",
      R"({"gpus": 64, "machine": "h100", "disks": 1})",
      R"({"gpus": 64, "machine": "h100", "node": 8})",
      R"({"gpus": 64, "machine": "h100", "node": {"nic": 4}})",
      R"({"gpus": 64, "machine": "h100", "node": {"gpus": 4097}})",
      R"({"gpus": 64, "machine": "h100", "node": {"nic_rate": 400}})",
      R"({"gpus": 64, "machine": "h100", "node": {"nic_rate": "400Gbps"}})",
      R"({"gpus": 64, "machine": "h100", "node": {"nic_rate": {"value": "400Gbit/s"}}})",
      R"({"gpus": 64, "machine": "h100", "node": {"nic_rate": {"source": "a quote"}}})",
      R"({"gpus": 64, "machine": "h100", "node": {"link_latency": "600"}})",
      R"({"gpus": 64, "machine": "h100", "gpu": {"peak_bf16": "989TFLOPS"}})",
      R"({"gpus": 64, "machine": "h100", "gpu": {"architecture": "hoper"}})",
      R"({"gpus": 64, "machine": "h100", "network": {"kind": "torus"}})",
      R"({"gpus": 64, "machine": "h100", "network": {"oversubscription": 0.5}})",
      R"({"gpus": 64, "machine": "h100", "memory_outside_allocator": "2 G"})",
      R"({"machine": "h100", "nodes": [{"leaf": "l1"}], "switches": ["l1"]})",
      R"({"machine": "h100", "nodes": [{"count": 2, "on": "l1"}], "switches": ["l1"]})",
      R"({"machine": "h100", "nodes": [{"count": 2}], "switches": ["a", "b"],
          "links": [{"between": ["a"], "rate": "1GB/s"}]})",
  };
  // Without a machine every figure is needed but those with a default.
  for (const char* part : {"gpu", "node", "network"}) {
    for (const auto& [key, figure] : full[part].items()) {
      Json without = full;
      without[part].erase(key);
      // What only offload, fp8, other power limits or prices need has a default.
      static const Texts kWithDefault = {"host_link", "host_memory_bandwidth", "link_domain", "storage_bandwidth",
          "pcie_switches", "architecture", "clock", "peak_fp8", "peak_fp4", "power_limit", "price_per_hour"};
      const bool has_default = contains(kWithDefault, key);
      (has_default ? good : bad).push_back(without.dump());
    }
  }
  for (const char* key : {"gpu", "node", "network", "gpus"}) {
    Json without = full;
    without.erase(key);
    bad.push_back(without.dump());
  }
  expect_same_verdicts("cluster", cluster_reader_accepts, good, bad);
}

TEST(Schema, ModelJudgesAsTheReader) {
  // Rows of 8 features and a loss over them.
  const Json model = {{"model", "small"}, {"positions", 64},
      {"layers",
          {{"words", {{"role", "embedding"}, {"tensors", {{"ids", {{"per_token", 1}, {"type", "int64"}}}, {"rows", 8}}},
                         {"parameters", {{"table", {100, 8}}}},
                         {"operations", {{{"op", "embedding"}, {"inputs", "ids"}, {"outputs", {"rows"}},
                                            {"parameters", "table"}}}},
                         {"output", "rows"}}},
              {"loss", {{"role", "loss"}, {"tensors", {{"a", 8}, {"loss", {{"fixed", 1}, {"type", "fp32"}}}}},
                           {"operations", {{{"op", "cross_entropy"}, {"inputs", "a"}, {"outputs", "loss"}}}},
                           {"output", "loss"}}}}},
      {"order", {"words", {{"kind", "loss"}, {"name", "end"}}}}};
  Texts good = {model.dump()};
  Texts bad = {"{}", "[]"};
  const auto add = [&](Texts& texts, auto change) {
    Json other = model;
    change(other);
    texts.push_back(other.dump());
  };
  add(good, [](Json& m) { m["numerics"] = {{"rope_theta", 500000}}; });
  add(good, [](Json& m) { m["layers"]["words"]["domain"] = {{"positions", 0}}; });
  add(good, [](Json& m) { m["layers"]["words"]["parameters"]["table"] = {{"shape", {100, 8}}}; });
  add(good, [](Json& m) { m["layers"]["loss"]["operations"][0]["kept_by_selective"] = true; });
  add(bad, [](Json& m) { m["positions"] = 0; });
  add(bad, [](Json& m) { m.erase("order"); });
  add(bad, [](Json& m) { m["depth"] = 3; });
  add(bad, [](Json& m) { m["layers"]["words"]["role"] = "table"; });
  add(bad, [](Json& m) { m["layers"]["words"].erase("output"); });
  add(bad, [](Json& m) { m["layers"]["words"]["tensors"]["rows"] = 0; });
  add(bad, [](Json& m) { m["layers"]["words"]["tensors"]["rows"] = {{"per_row", 8}}; });
  add(bad, [](Json& m) { m["layers"]["words"]["parameters"]["table"] = Json::array(); });
  add(bad, [](Json& m) { m["layers"]["loss"]["operations"] = Json::array(); });
  add(bad, [](Json& m) { m["layers"]["loss"]["operations"][0]["op"] = "adamw"; });
  add(bad, [](Json& m) { m["layers"]["loss"]["operations"][0]["gradient"] = "sum"; });
  add(bad, [](Json& m) { m["layers"]["loss"]["operations"][0].erase("outputs"); });
  add(bad, [](Json& m) { m["order"][1]["repeat"] = 0; });
  add(bad, [](Json& m) { m["order"] = Json::array(); });
  expect_same_verdicts("model", model_reader_accepts, good, bad);
}

TEST(Schema, ReportTakesReportsOnly) {
  const Json quantity = {{"value", 1.5}, {"low", 1.0}, {"high", 2.0}, {"evidence", "interpolated"}};
  Json report = {{"schema", "foreshard.report/1"}, {"origin", "predicted"}, {"fingerprint", "0123456789abcdef"},
      {"plan", foreshard::to_json(Plan{})}};
  for (const char* key :
      {"seconds", "tokens_per_s_per_gpu", "mfu", "hfu", "communication_s", "exposed_communication_s"}) {
    report["step"][key] = quantity;
  }
  for (const char* key : {"peak_allocated_bytes", "peak_reserved_bytes", "outside_allocator_bytes"}) {
    report["memory"][key] = quantity;
  }
  report["memory"].update({{"capacity_bytes", 8e10}, {"fits", true}, {"margin_bytes", -5},
      {"peak_event", "backward layers.1"}, {"at_peak", {{"activation", 12}}}});
  Json measured = report;
  measured["origin"] = "measured";
  measured["run"] = {{"losses", {3.5, 3.25}}, {"parameter_hash", "abc"}, {"tokens_per_s", 1e4}};
  Texts documents = {report.dump(), measured.dump()};
  const auto add_bad = [&](auto change) {
    Json wrong = report;
    change(wrong);
    documents.push_back(wrong.dump());
  };
  add_bad([](Json& r) { r["schema"] = "foreshard.report/2"; });
  add_bad([](Json& r) { r["origin"] = "guessed"; });
  add_bad([](Json& r) { r["fingerprint"] = "12"; });
  add_bad([](Json& r) { r.erase("plan"); });
  add_bad([](Json& r) { r["step"]["seconds"] = 1.5; });
  add_bad([](Json& r) { r["step"]["mfu"].erase("low"); });
  add_bad([](Json& r) { r["step"]["mfu"]["evidence"] = "felt"; });
  add_bad([](Json& r) { r["memory"].erase("at_peak"); });
  add_bad([](Json& r) { r["memory"]["at_peak"]["activation"] = "12 GiB"; });
  const Verdicts verdicts = judge(schema("report"), documents);
  if (verdicts.is_skipped) {
    GTEST_SKIP() << "needs python3-jsonschema";
  }
  ASSERT_EQ(verdicts.accepted.size(), documents.size());
  for (std::size_t i = 0; i < documents.size(); ++i) EXPECT_EQ(verdicts.accepted[i], i < 2) << documents[i];
}

}
}
