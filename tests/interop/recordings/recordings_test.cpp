// Folders written here with a few rows each: cells, packed files, versions that point at each
// other, what is refused and where the error says it is.
#include "interop/recordings/recordings.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <utility>

#include "tests/support/temporary_folder.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

class RecordingsTest : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) { root_.write(path, text); }
  void write_packed(const std::string& path, const std::string& text) {
    gzFile file = gzopen(root_.write(path, "").c_str(), "wb");
    gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
    gzclose(file);
  }
  Recording read(const std::string& folder, const std::string& id) {
    const RecordingFolder& opened = library_.open(root_ / folder);
    return library_.read(opened, opened.find(id).value());
  }
  std::string failure(auto call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
      std::string text = error.what();
      for (std::size_t at; (at = text.find(root_.path().string() + "/")) != std::string::npos;) {
        text.erase(at, root_.path().string().size() + 1);
      }
      return text;
    }
    return "no failure";
  }

  TemporaryFolder root_;
  RecordingLibrary library_;
};

const std::string kEvents =
    "config,step,seq,microbatch,kind,unit,stream,bytes_in,bytes_out,dtype,group,cause,state,on,mem_D,mem_CI,mem_RS,mem_"
    "AR,mem_host\n";
const std::string kMemory = "config,step,seq,microbatch,kind,unit,total,peak_since_previous_row,input,other\n";

TEST_F(RecordingsTest, CellsAsPythonWritesThem) {
  const CsvFile csv(
      "\xEF\xBB\xBF"
      "a,b,c\r\n1,\"x, \"\"y\"\"\",\r\n\"two\nlines\",,-3\n\n4,5,6",
      "f.csv");
  ASSERT_EQ(csv.rows(), 3U);
  EXPECT_EQ(csv.columns(), 3U);
  EXPECT_EQ(csv.text(0, 1), "x, \"y\"");
  EXPECT_EQ(csv.text(0, 2), "");
  EXPECT_EQ(csv.text(1, 0), "two\nlines");
  EXPECT_EQ(csv.integer(1, 2), -3);
  EXPECT_EQ(csv.integer(2, csv.at("c")), 6);
}

TEST_F(RecordingsTest, CellsOutliveAMove) {
  CsvFile first("a\n\"q\"\"q\"\n", "f.csv");  // short enough for a string's own buffer
  const CsvFile second = std::move(first);
  EXPECT_EQ(second.text(0, 0), "q\"q");
  EXPECT_EQ(second.header(0), "a");
}

TEST_F(RecordingsTest, ErrorsSayWhere) {
  EXPECT_EQ(failure([] { CsvFile("", "f.csv"); }), "f.csv:1:1: is empty; expected a header line");
  EXPECT_EQ(failure([] { CsvFile("a,b\n1,2\n3\n", "f.csv"); }),
      "f.csv:3:1: the row has 1 cells; expected 2 as in the header");
  EXPECT_EQ(failure([] { CsvFile("a,b\n1,x\"y\n", "f.csv"); }).substr(0, 36), "f.csv:2:4: a quote inside a cell; ex");
  EXPECT_EQ(failure([] { CsvFile("a,b\n1,\"y\n", "f.csv"); }),
      "f.csv:2:3: a quoted cell does not end; expected a closing quote");
  const CsvFile csv("step,seq\n1,2\n\"a\nb\",2\n12,4x\n", "f.csv");
  EXPECT_EQ(
      failure([&] { csv.integer(2, 1); }), "f.csv:5:4: seq: '4x' is not a whole number; expected for example 4096");
  EXPECT_EQ(failure([&] { csv.integer(1, 0); }).substr(0, 10), "f.csv:3:1:");
  EXPECT_EQ(failure([&] { csv.at("seqq"); }), "f.csv:1:1: seqq: there is no such column; did you mean seq?");
  const CsvFile big("a\n9223372036854775808\n", "f.csv");
  EXPECT_NE(failure([&] { big.integer(0, 0); }), "no failure");
}

TEST_F(RecordingsTest, FoldersByNumberWithoutGloo) {
  for (const char* path : {"v/2.10.0", "v/2.4.1", "a", "a/gloo"}) write(std::string(path) + "/index.csv", "id\nx\n");
  write_packed("v/2.5.1/index.csv.gz", "id\nx\n");
  write("empty/readme", "nothing");
  std::vector<std::string> names;
  for (const fs::path& path : find_recordings(root_.path())) {
    names.push_back(path.lexically_relative(root_.path()).string());
  }
  EXPECT_EQ(names, (std::vector<std::string>{"a", "v/2.4.1", "v/2.5.1", "v/2.10.0"}));
  EXPECT_EQ(find_recordings(root_ / "a").size(), 1U);
  EXPECT_EQ(failure([&] { find_recordings(root_ / "none"); }).substr(0, 20), "none: no such folder");
  EXPECT_NE(failure([&] { find_recordings(root_ / "empty"); }).find("holds no recording"), std::string::npos);
}

TEST_F(RecordingsTest, ReadsEveryTable) {
  write("r/index.csv",
      "id,layers,torch,events_per_step,step1_order_equals_step2,step1_peak,step2_peak,step2_peak_RS,step2_end\nx,3,2."
      "11.0,1,False,700,800,100,600\n");
  write_packed("r/events.csv.gz", kEvents +
                                      "x,1,1,0,step_begin,,D,,,,,,,,1,2,3,4,5\n"
                                      "y,2,1,,step_begin,,D,,,,,,,,9,9,9,9,9\n"
                                      "x,2,1,,reduce_scatter,norm+output,RS,8,1,fp32,shard:8,c,s,AVG,1,2,3,4,5\n");
  write("r/memory.csv", kMemory + "x,1,1,0,step_begin,,7,8,5,2\n");
  write("r/peaks.csv", "config,step,category,bytes_at_total_peak,own_peak\nx,2,input,3,4\n");
  write("r/units.csv", "config,unit,params,numel,shard_numel,shard_numel_padded\nx,layers.0,9,80,10,12\n");
  write("r/allocations.csv",
      "config,step,after_seq,sign,bytes,pool,category,unit,operator\n"
      "x,1,1,+,513,D,input,,randint\nx,1,2,-,513,D,input,u,free\n");
  const Recording r = read("r", "x");
  EXPECT_EQ(r.version, "2.11.0");
  EXPECT_FALSE(r.first_step_order_equal);
  ASSERT_EQ(r.events.size(), 2U);
  EXPECT_EQ(r.events[0].microbatch, 0);
  const RecordedEvent& e = r.events[1];
  EXPECT_EQ(e.step, 2);
  EXPECT_EQ(e.microbatch, -1);
  EXPECT_EQ(e.kind + e.unit + e.stream + e.dtype + e.group + e.cause + e.state + e.on,
      "reduce_scatternorm+outputRSfp32shard:8csAVG");
  EXPECT_EQ(e.bytes_in, 8);
  EXPECT_EQ(e.bytes_out, 1);
  EXPECT_EQ(r.events[0].bytes_in, RecordedEvent::kBlank);
  EXPECT_EQ(e.pools, (PoolBytes{1, 2, 3, 4, 5}));
  EXPECT_EQ(r.categories, (std::vector<std::string>{"input", "other"}));
  ASSERT_EQ(r.memory.size(), 1U);
  EXPECT_EQ(r.memory[0].total, 7);
  EXPECT_EQ(r.memory[0].peak_since_previous_row, 8);
  EXPECT_EQ(r.memory[0].categories, (std::vector<std::int64_t>{5, 2}));
  ASSERT_EQ(r.peaks.size(), 1U);
  EXPECT_EQ(r.peaks[0].own_peak, 4);
  ASSERT_EQ(r.units.size(), 1U);
  EXPECT_EQ(r.units[0].shard_numel_padded, 12);
  ASSERT_EQ(r.allocations.size(), 2U);
  EXPECT_EQ(r.allocations[0].bytes, 1024);  // rounded up to 512
  EXPECT_TRUE(r.allocations[1].freed);
  EXPECT_EQ(r.steps[0].total, 700);
  EXPECT_EQ(r.steps[1].pools[2], 100);
  EXPECT_FALSE(r.steps[1].pools[0].has_value());
  EXPECT_FALSE(r.steps[0].end.has_value());
}

// Version 3 says: events are 2's without idle visits; 2 says they are 1's. Step 1 of memory has the order of step 2.
TEST_F(RecordingsTest, OtherVersionsRows) {
  const std::string header = "id,torch,events_per_step,events_equal,memory_equal,peaks_equal,units_equal\n";
  write("fsdp2/index.csv", "id,torch\nx,1.0\n");
  const auto event = [](int seq, const char* rest) {
    return "x,2," + std::to_string(seq) + ",," + rest + ",0,0,0,0,0\n";
  };
  write("fsdp2/events.csv",
      kEvents + event(1, "step_begin,,D,,,,,,,") + event(2, "backward_end,a,D,,,,,root_post_backward,idle,") +
          event(3, "backward_end,a,D,,,,,autograd,idle,") + event(4, "backward_end,b,D,,,,,root_post_backward,idle,") +
          event(5, "step_end,,D,,,,,,,"));
  write("fsdp2/memory.csv", kMemory + "x,1,1,0,step_begin,,1,1,0,0\n" + "x,1,2,0,backward_end,a,2,2,0,0\n" +
                                "x,1,5,,step_end,,3,3,0,0\n" + "x,2,3,0,backward_end,a,4,4,0,0\n" +
                                "x,2,4,0,backward_end,b,5,5,0,0\n" + "x,2,5,,step_end,,6,6,0,0\n");
  write("fsdp2/peaks.csv", "config,step,category,bytes_at_total_peak,own_peak\nx,2,input,3,4\n");
  write("v/2.0/index.csv", header + "x,2.0,5,1.0,1.0,1.0,1.0\n");
  write("v/3.0/index.csv", header +
                               "x,3.0,3,2.0 without idle,2.0 without idle,2.0,not stored\n"
                               "y,3.0,,not stored,not stored,not stored,not stored\n"
                               "z,3.0,,2.0,,,\n"
                               "w,3.0,4,2.0,,,\n");
  write("v/3.0/memory.csv", kMemory);
  write("v/4.0/index.csv", header + "x,4.0,4,2.0 without idle,2.0 without idle,,\n" + "c,4.0,,5.0,,,\n");
  write("v/5.0/index.csv", header + "c,5.0,,4.0,,,\n");

  const Recording r = read("v/3.0", "x");
  std::string order;
  for (const RecordedEvent& e : r.events) order += std::to_string(e.seq) + e.kind + e.unit + " ";
  EXPECT_EQ(order, "1step_begin 2backward_enda 3step_end ");
  EXPECT_TRUE(r.events_file.ends_with("fsdp2/events.csv"));
  std::string rows;
  for (const RecordedMemoryRow& row : r.memory) {
    rows += std::to_string(row.step) + ":" + std::to_string(row.seq) + "=" + std::to_string(row.total) + " ";
  }
  EXPECT_EQ(rows, "1:1=1 1:3=3 2:2=4 2:3=6 ");
  EXPECT_TRUE(r.memory_has_own_seq);
  EXPECT_EQ(r.peaks.size(), 1U);
  EXPECT_TRUE(r.units_file.empty());

  const Recording y = read("v/3.0", "y");
  EXPECT_TRUE(y.events_file.empty() && y.memory_file.empty() && y.peaks_file.empty());
  EXPECT_NE(failure([&] {
    read("v/3.0", "z");
  }).find("v/3.0/index.csv:4:8: events_equal: the recording of 'z' by version 2.0 is nowhere"),
      std::string::npos);
  EXPECT_NE(failure([&] { read("v/4.0", "x"); }).find("has 3 rows of step 2; expected 4"), std::string::npos);
  EXPECT_NE(failure([&] { read("v/4.0", "c"); }).find("in a circle"), std::string::npos);
}

TEST_F(RecordingsTest, SettingsOfIndexThenConfigs) {
  write("r/index.csv", "id,layers,reshard\nx,3,\n");
  write("configs.json", R"([{"id": "x", "layers": 5, "clip": true, "reduce_dtype": null, "frozen": "none"}])");
  const RecordingFolder& folder = library_.open(root_ / "r");
  EXPECT_EQ(folder.setting(0, "layers"), "3");
  EXPECT_EQ(folder.setting(0, "reshard"), "");
  EXPECT_EQ(folder.setting(0, "clip"), "True");
  EXPECT_EQ(folder.setting(0, "reduce_dtype"), "");
  EXPECT_EQ(folder.setting(0, "offload"), std::nullopt);
  EXPECT_EQ(folder.configured(0).size(), 4U);
}

TEST_F(RecordingsTest, WhatTheLibraryRefused) {
  write("r/index.csv", "id,status,error\nx,ok,\ny,failed,ValueError: no\nz,timeout,\n");
  write("r/skipped.csv", "config,reason\nw,\"one module, not a list\"\n");
  const RecordingFolder& folder = library_.open(root_ / "r");
  EXPECT_EQ(folder.refusal(0), std::nullopt);
  EXPECT_EQ(folder.refusal(1), "ValueError: no");
  EXPECT_EQ(folder.refusal(2), "status timeout");
  ASSERT_EQ(folder.skipped().size(), 1U);
  EXPECT_EQ(folder.skipped()[0].reason, "one module, not a list");
  write("d/index.csv", "config,lib,status,error\nddp-1,ddp,ok,\n");
  EXPECT_NE(library_.open(root_ / "d").refusal(0)->find("ddp"), std::string::npos);
}

TEST_F(RecordingsTest, WhatCannotBeRead) {
  write("twice/index.csv", "id\nx\nx\n");
  EXPECT_EQ(
      failure([&] { library_.open(root_ / "twice"); }), "twice/index.csv:3:1: id: the configuration stands twice");
  write("column/index.csv", "id\nx\n");
  write("column/events.csv", "config,step\nx,2\n");
  EXPECT_NE(failure([&] { read("column", "x"); }).find("seq: there is no such column"), std::string::npos);
  write("number/index.csv", "id\nx\n");
  write("number/events.csv", kEvents + "x,2,1,,k,,D,,,,,,,,1,2,3,4,five\n");
  EXPECT_NE(failure([&] { read("number", "x"); }).find("number/events.csv:2:28: mem_host: 'five'"), std::string::npos)
      << failure([&] { read("number", "x"); });
  write_packed("cut/index.csv.gz", "id\n" + std::string(100000, 'x') + "\n");
  fs::resize_file(root_ / "cut/index.csv.gz", 60);
  EXPECT_NE(failure([&] { library_.open(root_ / "cut"); }).find("cannot be unpacked"), std::string::npos);
  write("short/index.csv", "id,events_per_step\nx,2\n");
  write("short/events.csv", kEvents + "x,2,1,,k,,D,,,,,,,,1,2,3,4,5\n");
  EXPECT_NE(failure([&] { read("short", "x"); }).find("has 1 rows of step 2; expected 2"), std::string::npos);
}

}
}
