// A folder written here, in the format of the recorder of DDP, FSDP1 and DeepSpeed: options as a
// plan, rows as they stand, what is refused and where the error says it is.
#include "interop/recordings/library_recordings.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModels =
    R"({"models": {"m": {"arch": "llama", "L": 2, "d": 64, "h": 4, "kv": 2, "f": 96, "V": 200, "tied": false}},
        "defaults": {"steps": 3}, "configs": [{"id": "a", "full_steps": [2, 3], "S": 16, "B": 2)";

class LibraryRecordings : public testing::Test {
 protected:
  LibraryRecordings() {
    write("events.csv",
        "config,step,micro,seq,kind,unit,bytes_in,bytes_out,dtype,group,note\n"
        "a,1,0,4,all_reduce,,8,8,int32,world,op=SUM\n"
        "a,3,0,0,forward_begin,layers.0,0,0,,,\n");
    write("buckets.csv",
        "config,phase,index,kind,n_params,bytes,dtype,extra,params\n"
        "a,step1,0,ddp_bucket,2,512,float32,is_last=1,norm.weight;lm_head.weight\n");
    configure("");
  }
  void write(const std::string& name, const std::string& text) { root_.write(name, text); }
  void configure(const std::string& more) { write("configs.json", kModels + more + "}]}"); }
  // One configuration of `lib` with these options (JSON).
  void record(const std::string& lib, std::string options, const std::string& facts = "{}") {
    const auto quoted = [](std::string text) {
      for (std::size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2) text.insert(at, 1, '"');
      return "\"" + text + "\"";
    };
    write("index.csv",
        "config,lib,model,world,rank,pg,ranks_recorded,ranks_agree,steps,accum,options,status,error,rows,facts\na," +
            lib + ",m,8,3,null,1,1,3,2," + quoted(std::move(options)) + ",ok,,2," + quoted(facts) + "\n");
  }
  LibraryJob job() const { return read_library_job(RecordingFolder(root_.path()), 0); }
  std::string refusal() const {
    try {
      job();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kMissingCapability);
      return error.what();
    }
    return "no failure";
  }

  TemporaryFolder root_;
};

TEST_F(LibraryRecordings, RowsBucketsAndCountsAsTheyStand) {
  record("ddp", "{}", R"({"step1": {"bytes": 7}, "sizes": [1, 2], "class": "Adam", "on": true})");
  const RecordingFolder folder(root_.path());
  ASSERT_TRUE(has_library_recordings(folder));
  const LibraryRecording r = read_library_recording(folder, 0);
  ASSERT_EQ(r.events.size(), 2U);
  EXPECT_EQ(r.events[0].seq, 4);
  EXPECT_EQ(r.events[0].note, "op=SUM");
  EXPECT_EQ(r.whole_steps, (std::set<std::int64_t>{2, 3}));
  ASSERT_EQ(r.buckets.size(), 1U);
  EXPECT_EQ(r.buckets[0].parameters, (std::vector<std::string>{"norm.weight", "lm_head.weight"}));
  EXPECT_EQ(r.facts, (std::map<std::string, std::int64_t>{{"sizes.0", 1}, {"sizes.1", 2}, {"step1.bytes", 7}}));
  EXPECT_EQ(r.words.at("class"), "Adam");
}

TEST_F(LibraryRecordings, DdpReplicatesAModelOfOneDtype) {
  record("ddp", R"({"model_dtype": "bfloat16", "bucket_cap_mb": 25, "static_graph": true})");
  const LibraryJob j = job();
  EXPECT_EQ(j.plan.runtime.kind, RuntimeKind::kDdp);
  EXPECT_EQ(j.plan.mesh, (Mesh{1, 8}));
  EXPECT_EQ(j.plan.rank(), 3);
  EXPECT_EQ(j.plan.batch, (Batch{16, 2, 2}));
  EXPECT_EQ(j.plan.master_dtype, DType::kBf16);
  EXPECT_EQ(j.plan.ddp.bucket_cap_mb, 25.0);  // written out: no first bucket of 1 MiB
  EXPECT_TRUE(j.plan.ddp.static_graph);
  EXPECT_EQ(j.model.parameters(), 2 * 200 * 64 + 64 + 2 * (2 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96));
}

TEST_F(LibraryRecordings, StrategiesAreMeshes) {
  const auto mesh_of = [&](const std::string& options) {
    record("fsdp1", options);
    return job().plan;
  };
  EXPECT_EQ(mesh_of(R"({"strategy": "FULL_SHARD"})").mesh, (Mesh{8, 1}));
  EXPECT_EQ(mesh_of(R"({"strategy": "NO_SHARD"})").mesh, (Mesh{1, 8}));
  const Plan hybrid = mesh_of(R"({"strategy": "_HYBRID_SHARD_ZERO2", "shard_size": 4})");
  EXPECT_EQ(hybrid.mesh, (Mesh{4, 2}));
  EXPECT_EQ(hybrid.reshard_after_forward.value.kind, Reshard::Kind::kNever);
  const Plan mixed =
      mesh_of(R"({"strategy": "SHARD_GRAD_OP", "mp": {"param_dtype": "bfloat16"}, "backward_prefetch": null})");
  EXPECT_EQ(mixed.reduce_dtype, DType::kBf16);  // None: as the parameters
  EXPECT_EQ(mixed.master_dtype, DType::kFp32);
  EXPECT_EQ(mixed.prefetch.backward, 0);
}

TEST_F(LibraryRecordings, DeepSpeedsOptionsCarryItsNames) {
  record("zero",
      R"({"zero": {"stage": 3, "stage3_prefetch_bucket_size": 5, "overlap_comm": false,
             "offload_optimizer": {"device": "cpu"}}, "precision": "fp16", "clip": 1.0})");
  const Plan plan = job().plan;
  EXPECT_EQ(plan.runtime.kind, RuntimeKind::kZero3);
  EXPECT_EQ(plan.zero.stage3_prefetch_bucket_size, 5);
  EXPECT_EQ(plan.zero.overlap_comm, false);
  EXPECT_EQ(plan.zero.offload_optimizer, ZeroOffload::kCpu);
  EXPECT_EQ(plan.param_dtype, DType::kFp16);
  EXPECT_EQ(plan.optimizer.clip_norm, 1.0);
}

TEST_F(LibraryRecordings, StagesReduceInTheCommunicationDtype) {
  for (const char* stage : {"1", "2", "3"}) {
    const std::string zero = R"({"zero": {"stage": )" + std::string(stage) + "}";
    record("zero", zero + R"(, "precision": "bf16", "communication_data_type": "fp32"})");
    EXPECT_EQ(job().plan.reduce_dtype, DType::kFp32) << stage;
    record("zero", zero + R"(, "precision": "bf16", "communication_data_type": null})");
    EXPECT_EQ(job().plan.reduce_dtype, DType::kBf16) << stage;
  }
}

TEST_F(LibraryRecordings, WhatNoPlanHasIsNamed) {
  record("ddp", R"({"delay_all_reduce_named_params": 1})");
  EXPECT_NE(refusal().find("delay_all_reduce_named_params"), std::string::npos);
  record("zero", R"({"zero": {"stage": 2, "mics_shard_size": 4}})");
  EXPECT_NE(refusal().find("zero.mics_shard_size: MiCS has been removed"), std::string::npos);
  EXPECT_NE(refusal().find("the nearest is zero_hpz_partition_size"), std::string::npos);
  // It is listed with its reason and counts as different.
  const ConformanceFolder result = conform_library_folder(RecordingFolder(root_.path()), {});
  ASSERT_EQ(result.rows.size(), 1U);
  EXPECT_EQ(result.rows[0].state, Conformance::State::kNotForecast);
  EXPECT_FALSE(summarize({result}).passed);
}

TEST_F(LibraryRecordings, BadCellsSayWhereTheyStand) {
  record("ddp", R"({"static_graph": "yes"})");
  EXPECT_THROW(job(), ConfigError);
  record("fsdp1", R"({"strategy": "SOME_SHARD"})");
  EXPECT_THROW(job(), ConfigError);
  record("ddp", "{}");
  configure(R"(, "units": "leaves")");
  try {
    job();
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("configs.json:"), std::string::npos) << error.what();
  }
}

}
}
