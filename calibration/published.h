// The published measurements (calibration/published/*.csv, built into the program) as rows.
// Schema, sources and licences: calibration/README.md and NOTICE.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "calibration/csv_table.h"
#include "calibration/machines.h"

namespace foreshard {

// The embedded file of calibration/: "measured/clocks.csv"; of published/: "gemm_measured.csv".
CsvTable calibration_table(std::string_view path);
CsvTable published_table(std::string_view name);

// The cell, "" where the table has no such column.
std::string_view cell_of(const CsvTable& table, std::size_t row, std::string_view column);
// A positive number, 0 where the cell is empty or holds none.
double positive_of(const CsvTable& table, std::size_t row, std::string_view column);

// "a100", "h100", "h200" or "b200" out of free text such as "NVIDIA A100-SXM4-80GB"; "" for others.
std::string chip_of(std::string_view gpu);

// tf32 and fp4 as multiples of bf16's and fp8's rates; int8 as fp8.
enum class GemmType { k16Bit, kFp8, kFp32, kTf32, kFp4 };
struct GemmRow {
  std::string source;
  double m = 0;
  double n = 0;
  double k = 0;
  double seconds = 0;
  std::string gpu;       // key of the catalogue
  std::string protocol;  // of the source (calibration/gpu_names.h)
  GemmType type = GemmType::k16Bit;
  bool half = false;              // fp16, not bf16
  bool quantises = false;         // fp8: the activations' quantisation is in the time
  bool quantises_weight = false;  // and the weight's
  // The time holds both gradients of a linear layer of m tokens, k inputs and n outputs, and their
  // adding up to what was there.
  bool gradients = false;
};
// Rows of a CSV in the published form. Those that cannot be read say why.
struct ReadGemm {
  GemmRow row;
  std::string problem;  // "": none
};
std::vector<ReadGemm> read_gemm_rows(const CsvTable& table, const std::vector<Machine>& machines);
// The good ones of the published rows.
std::vector<GemmRow> gemm_rows(const std::vector<Machine>& machines);

enum class AttentionPass { kForward, kBackward, kBoth };
struct AttentionRow {
  std::string source;
  std::string kernel;  // fa2, fa3, cudnn, triton, trtllm, aotriton, aiter; "" for others
  AttentionPass pass = AttentionPass::kForward;
  double batch = 0;
  double sequence = 0;
  double heads = 0;
  int head_dim = 0;
  double flops = 0;  // of the pass: 2*b*h*s^2*d forward when causal, 2.5 times that backward
  double seconds = 0;
  bool causal = true;
  double kv_heads = 0;
  std::string gpu;       // key of the catalogue
  std::string protocol;  // of the source
};
// Rows of a CSV in the published form, causal or not; kernel "" where the name means none.
struct ReadAttention {
  AttentionRow row;
  std::string problem;  // "": none
};
std::vector<ReadAttention> read_attention_rows(const CsvTable& table, const std::vector<Machine>& machines);
// Causal rows only: the form describes causal attention (sim/spec/calibration.h).
std::vector<AttentionRow> attention_rows(std::string_view chip);

struct MemoryRow {
  std::string source;
  std::string operation;  // "RMSNorm forward (torch)"
  double bytes = 0;       // minimum traffic, as the row states it
  double seconds = 0;
};
std::vector<MemoryRow> memory_rows(std::string_view chip);

}
