// The published measurements (calibration/published/*.csv, built into the program) as rows.
// Schema, sources and licences: calibration/README.md and NOTICE.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "calibration/csv_table.h"

namespace foreshard {

// The embedded file of that name: "gemm_measured.csv".
CsvTable published_table(std::string_view name);

// "a100", "h100", "h200" or "b200" out of free text such as "NVIDIA A100-SXM4-80GB"; "" for others.
std::string chip_of(std::string_view gpu);

struct GemmRow {
  std::string source;
  double m = 0;
  double n = 0;
  double k = 0;
  double seconds = 0;
};
// bf16 and fp16 rows; random data only where asked, for values change the clock (hardware is
// power-limited) and uninitialised weights read 8 to 15 % fast.
enum class GemmData { kRandom, kAny };
std::vector<GemmRow> gemm_rows(std::string_view chip, GemmData data);

enum class AttentionPass { kForward, kBackward, kBoth };
struct AttentionRow {
  std::string source;
  std::string kernel;  // fa2, fa3, cudnn, triton, trtllm; "" for others
  AttentionPass pass = AttentionPass::kForward;
  double batch = 0;
  double sequence = 0;
  double heads = 0;
  int head_dim = 0;
  double flops = 0;  // of the pass: 2*b*h*s^2*d forward when causal, 2.5 times that backward
  double seconds = 0;
};
// Causal rows only: the form describes causal attention (sim/spec/calibration.h).
std::vector<AttentionRow> attention_rows(std::string_view chip);

struct MemoryRow {
  std::string source;
  std::string operation;  // "RMSNorm forward (torch)"
  double bytes = 0;       // minimum traffic, as the row states it
  double seconds = 0;
};
std::vector<MemoryRow> memory_rows(std::string_view chip);

struct CollectiveRow {
  std::string table;  // "h100_hgx_10n_g8_all_gather"
  std::string source;
  std::string collective;  // all_gather, reduce_scatter, all_reduce
  double ranks = 1;
  double nodes = 1;
  double bytes = 0;  // of the whole unsharded buffer
  double seconds = 0;
};
std::vector<CollectiveRow> collective_rows(std::string_view chip);

// Bus bandwidth by number of nodes at one size (nccl_scaling.csv).
std::vector<CollectiveRow> scaling_rows();

}  // namespace foreshard
