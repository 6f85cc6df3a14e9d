#include "calibration/published.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "calibration/gpu_names.h"
#include "sim/base/embedded.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"

namespace foreshard {

CsvTable calibration_table(std::string_view path) {
  const EmbeddedFile& file = file_named(fmt::format("calibration/{}", path), calibration_files());
  return CsvTable(file.content, std::string(file.path));
}

CsvTable published_table(std::string_view name) { return calibration_table(fmt::format("published/{}", name)); }

std::string_view cell_of(const CsvTable& table, std::size_t row, std::string_view column) {
  return table.has(column) ? std::string_view(table.text(row, column)) : std::string_view();
}

double positive_of(const CsvTable& table, std::size_t row, std::string_view column) {
  const double value = parse_number<double>(cell_of(table, row, column)).value_or(0);
  return std::isfinite(value) && value > 0 ? value : 0;
}

std::string chip_of(std::string_view gpu) {
  const std::string low = squeezed(gpu);
  // Other cards of the same chips run at other clocks and bandwidths.
  for (const char* other : {"pcie", "nvl", "gh200", "gb200", "notstated"})
    if (contains(low, other)) return "";
  for (const char* chip : {"a100", "h100", "h200", "b200"})
    if (contains(low, chip)) return chip;
  return "";
}

namespace {

GemmType type_of(std::string_view dtype) {
  const std::string low = lower(dtype);
  const auto has = [&](std::string_view word) { return contains(low, word); };
  if (has("fp4") || has("f4") || has("int4")) return GemmType::kFp4;
  if (has("8")) return GemmType::kFp8;
  if (has("tf32") || has("19")) return GemmType::kTf32;
  if (has("32") || low == "float") return GemmType::kFp32;
  return GemmType::k16Bit;
}

bool is_half(std::string_view dtype) {
  const std::string low = lower(dtype);
  return low == "fp16" || low == "float16" || low == "half";
}

constexpr double kLargest = 1e8;  // of a shape's numbers

// Of its time and its GPU.
std::string problem_of(const auto& row, std::string_view gpu) {
  if (row.seconds == 0) return "neither tflops nor latency_us is a number above zero";
  return row.gpu.empty() ? fmt::format("the catalogue has no GPU '{}'", gpu) : "";
}

// Matches each spelling once.
class GpuNames {
 public:
  explicit GpuNames(const std::vector<Machine>& machines) : machines_(machines) {}
  std::string key(std::string_view text) {
    return remembered(
        keys_, std::string(text),
        [&] {
          const Machine* machine = match_gpu(text, machines_);
          return machine == nullptr ? std::string() : machine->key;
        });
  }
  std::string protocol(std::string_view source) {
    return remembered(
        protocols_, std::string(source), [&] { return protocol_of(source, machines_); });
  }

 private:
  const std::vector<Machine>& machines_;
  std::map<std::string, std::string> keys_, protocols_;
};

}

std::vector<ReadGemm> read_gemm_rows(const CsvTable& table, const std::vector<Machine>& machines) {
  GpuNames names(machines);
  std::vector<ReadGemm> rows;
  for (std::size_t i = 0; i < table.rows(); ++i) {
    ReadGemm read;
    GemmRow& row = read.row;
    row.source = cell_of(table, i, "source");
    row.gpu = names.key(cell_of(table, i, "gpu"));
    row.protocol = names.protocol(row.source);
    row.type = type_of(cell_of(table, i, "dtype"));
    const std::string notes = lower(cell_of(table, i, "notes"));
    row.half = is_half(cell_of(table, i, "dtype"));
    row.quantises = contains(notes, "quanti");
    row.quantises_weight = row.quantises && contains(notes, "weight");
    row.gradients = contains(lower(cell_of(table, i, "layout")), "bwd");
    row.m = positive_of(table, i, "m");
    row.n = positive_of(table, i, "n");
    row.k = positive_of(table, i, "k");
    const double rate = positive_of(table, i, "tflops") * 1e12;
    const double flops = (row.gradients ? 4 : 2) * row.m * row.n * row.k;
    // Rows carry rate, time or both; the rate has more digits than short times.
    row.seconds = rate > 0 ? flops / rate : positive_of(table, i, "latency_us") * 1e-6;
    if (flops == 0) read.problem = "m, n and k must be numbers above zero";
    else if (std::max({row.m, row.n, row.k}) > kLargest) read.problem = "m, n or k is absurdly large";
    else read.problem = problem_of(row, cell_of(table, i, "gpu"));
    rows.push_back(std::move(read));
  }
  return rows;
}

std::vector<GemmRow> gemm_rows(const std::vector<Machine>& machines) {
  std::vector<GemmRow> rows;
  for (ReadGemm& read : read_gemm_rows(published_table("gemm_measured.csv"), machines))
    if (read.problem.empty()) rows.push_back(std::move(read.row));
  return rows;
}

namespace {

// The kernels that a name may mean, the first that fits: "flashinfer FA2" is fa2, "FA3 in step" fa3.
const char* kernel_named(std::string_view text) {
  const std::string low = squeezed(text);
  const auto has = [&](auto... parts) { return has_any(low, {parts...}); };
  if (has("flashattention4", "fa4")) return "fa4";
  if (has("flashattention3", "flashattn3", "fa3")) return "fa3";
  if (has("flashattention2", "flashattn2", "fa2")) return "fa2";
  if (has("flashattention1", "flashattn1", "fa1")) return "fa1";
  if (has("cudnn")) return "cudnn";
  if (has("thunderkittens")) return "tk";
  for (const char* kernel : {"aotriton", "triton", "aiter", "trtllm"})
    if (has(kernel)) return kernel;
  if (has("efficient", "xformers", "cutlass")) return "sdpa_efficient";
  if (has("math", "eager")) return "math";
  return has("flash") ? "fa2" : "";
}

bool is_false(std::string_view text) {
  const std::string low = lower(text);
  return low == "0" || low == "0.0" || low == "false" || low == "no";
}

}

std::vector<ReadAttention> read_attention_rows(const CsvTable& table, const std::vector<Machine>& machines) {
  constexpr double kBackward = 2.5;  // of forward's operations
  GpuNames names(machines);
  std::vector<ReadAttention> rows;
  for (std::size_t i = 0; i < table.rows(); ++i) {
    ReadAttention read;
    AttentionRow& row = read.row;
    row.source = cell_of(table, i, "source");
    row.gpu = names.key(cell_of(table, i, "gpu"));
    row.protocol = names.protocol(row.source);
    row.kernel = kernel_named(cell_of(table, i, "kernel"));
    row.causal = !is_false(cell_of(table, i, "causal"));
    const std::string pass = lower(cell_of(table, i, "pass"));
    const bool forward = contains(pass, 'f') || pass.empty();
    const bool backward = contains(pass, 'b');
    row.pass = forward && backward ? AttentionPass::kBoth
               : backward          ? AttentionPass::kBackward
                                   : AttentionPass::kForward;
    row.batch = positive_of(table, i, "batch");
    row.sequence = positive_of(table, i, "seqlen");
    row.heads = positive_of(table, i, "heads");
    row.kv_heads = positive_of(table, i, "kv_heads");
    if (row.kv_heads == 0) row.kv_heads = row.heads;
    const double head_dim = positive_of(table, i, "head_dim");
    row.head_dim = static_cast<int>(std::min(head_dim, 1e6));
    row.flops = (row.causal ? 2 : 4) * row.batch * row.heads * row.sequence * row.sequence * head_dim *
                (row.pass == AttentionPass::kForward       ? 1.0
                    : row.pass == AttentionPass::kBackward ? kBackward
                                                           : 1 + kBackward);
    const double rate = positive_of(table, i, "tflops") * 1e12;
    row.seconds = rate > 0 ? row.flops / rate : positive_of(table, i, "latency_us") * 1e-6;
    if (row.flops == 0) read.problem = "batch, seqlen, heads and head_dim must be numbers above zero";
    else if (std::max({row.batch, row.sequence, row.heads, head_dim}) > kLargest)
      read.problem = "the shape is absurdly large";
    else read.problem = problem_of(row, cell_of(table, i, "gpu"));
    rows.push_back(std::move(read));
  }
  return rows;
}

std::vector<AttentionRow> attention_rows(std::string_view chip) {
  std::vector<AttentionRow> rows;
  for (ReadAttention& read : read_attention_rows(published_table("attention_measured.csv"), list_machines())) {
    const bool is_meant = read.problem.empty() && read.row.causal && chip_of(read.row.gpu) == chip;
    if (is_meant) rows.push_back(std::move(read.row));
  }
  return rows;
}

std::vector<MemoryRow> memory_rows(std::string_view chip) {
  const CsvTable table = published_table("membound_measured.csv");
  std::vector<MemoryRow> rows;
  for (std::size_t i = 0; i < table.rows(); ++i) {
    if (chip_of(table.text(i, "gpu")) != chip || table.empty(i, "latency_us") || table.empty(i, "bytes_counted"))
      continue;
    rows.push_back({table.text(i, "source"), table.text(i, "op"), table.number(i, "bytes_counted"),
        table.number(i, "latency_us") * 1e-6});
  }
  return rows;
}

}
