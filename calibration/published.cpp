#include "calibration/published.h"

#include <fmt/format.h>

#include <span>

#include "sim/base/embedded.h"
#include "sim/base/error.h"

namespace foreshard {

std::span<const EmbeddedFile> calibration_files();

CsvTable published_table(std::string_view name) {
  const std::string path = fmt::format("calibration/published/{}", name);
  for (const EmbeddedFile& file : calibration_files()) {
    if (file.path == path) return CsvTable(file.content, path);
  }
  throw Error(ExitCode::kInternal, fmt::format("{} is not built in", path));
}

std::string chip_of(std::string_view gpu) {
  std::string low;
  for (const char c : gpu) {
    if (c >= 'A' && c <= 'Z') low.push_back(static_cast<char>(c - 'A' + 'a'));
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) low.push_back(c);
  }
  // Other cards of the same chips run at other clocks and bandwidths.
  for (const char* other : {"pcie", "nvl", "gh200", "gb200", "notstated"}) {
    if (low.find(other) != std::string::npos) return "";
  }
  for (const char* chip : {"a100", "h100", "h200", "b200"}) {
    if (low.find(chip) != std::string::npos) return chip;
  }
  return "";
}

std::vector<GemmRow> gemm_rows(std::string_view chip, GemmData data) {
  const CsvTable table = published_table("gemm_measured.csv");
  std::vector<GemmRow> rows;
  for (std::size_t i = 0; i < table.rows(); ++i) {
    const std::string& dtype = table.text(i, "dtype");
    if (chip_of(table.text(i, "gpu")) != chip || dtype.find("f") == std::string::npos ||
        dtype.find("16") == std::string::npos || table.empty(i, "m")) {
      continue;
    }
    const bool random = table.text(i, "notes").starts_with("random data");
    if (data == GemmData::kRandom && !random) continue;
    GemmRow row{table.text(i, "source"), table.number(i, "m"), table.number(i, "n"),
                table.number(i, "k"), 0};
    // Rows carry rate, time or both; the rate has more digits than short times.
    row.seconds = table.empty(i, "tflops")
                      ? table.number(i, "latency_us") * 1e-6
                      : 2 * row.m * row.n * row.k / (table.number(i, "tflops") * 1e12);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<AttentionRow> attention_rows(std::string_view chip) {
  struct Name {
    const char* text;
    const char* kernel;
  };
  static constexpr Name kNames[] = {{"FlashAttention-2", "fa2"}, {"FA2", "fa2"},
                                    {"FlashAttention-3", "fa3"}, {"FA3", "fa3"},
                                    {"cuDNN", "cudnn"},          {"Triton", "triton"},
                                    {"trtllm-gen MHA", "trtllm"}};
  const CsvTable table = published_table("attention_measured.csv");
  std::vector<AttentionRow> rows;
  for (std::size_t i = 0; i < table.rows(); ++i) {
    if (chip_of(table.text(i, "gpu")) != chip || table.text(i, "causal") != "1") continue;
    AttentionRow row;
    row.source = table.text(i, "source");
    for (const Name& name : kNames) {
      if (table.text(i, "kernel") == name.text) row.kernel = name.kernel;
    }
    const std::string& pass = table.text(i, "pass");
    row.pass = pass == "fwd"   ? AttentionPass::kForward
               : pass == "bwd" ? AttentionPass::kBackward
                               : AttentionPass::kBoth;
    row.batch = table.number(i, "batch");
    row.sequence = table.number(i, "seqlen");
    row.heads = table.number(i, "heads");
    row.head_dim = static_cast<int>(table.number(i, "head_dim"));
    const double forward = 2 * row.batch * row.heads * row.sequence * row.sequence * row.head_dim;
    row.flops = forward * (row.pass == AttentionPass::kForward    ? 1.0
                           : row.pass == AttentionPass::kBackward ? 2.5
                                                                  : 3.5);
    row.seconds = table.empty(i, "tflops") ? table.number(i, "latency_us") * 1e-6
                                           : row.flops / (table.number(i, "tflops") * 1e12);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<MemoryRow> memory_rows(std::string_view chip) {
  const CsvTable table = published_table("membound_measured.csv");
  std::vector<MemoryRow> rows;
  for (std::size_t i = 0; i < table.rows(); ++i) {
    if (chip_of(table.text(i, "gpu")) != chip || table.empty(i, "latency_us") ||
        table.empty(i, "bytes_counted")) {
      continue;
    }
    rows.push_back({table.text(i, "source"), table.text(i, "op"), table.number(i, "bytes_counted"),
                    table.number(i, "latency_us") * 1e-6});
  }
  return rows;
}

std::vector<CollectiveRow> collective_rows(std::string_view chip) {
  const CsvTable table = published_table("nccl_measured.csv");
  std::vector<CollectiveRow> rows;
  for (std::size_t i = 0; i < table.rows(); ++i) {
    if (chip_of(table.text(i, "gpu")) != chip) continue;
    rows.push_back({table.text(i, "id"), table.text(i, "source"), table.text(i, "collective"),
                    table.number(i, "n_gpus"), table.number(i, "n_nodes"), table.number(i, "bytes"),
                    table.number(i, "time_us_oop") * 1e-6});
  }
  return rows;
}

std::vector<CollectiveRow> scaling_rows() {
  const CsvTable table = published_table("nccl_scaling.csv");
  std::vector<CollectiveRow> rows;
  for (std::size_t i = 0; i < table.rows(); ++i) {
    CollectiveRow row{table.text(i, "id"),
                      table.text(i, "source"),
                      table.text(i, "collective"),
                      table.number(i, "n_gpus"),
                      table.number(i, "n_nodes"),
                      table.number(i, "bytes"),
                      0};
    row.seconds = (row.ranks - 1) / row.ranks * row.bytes / (table.number(i, "busbw_GBps") * 1e9);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace foreshard
