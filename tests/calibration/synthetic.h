// Raw measurements of a machine that can be worked out by hand: every row follows the forms of
// sim/spec/calibration.h with known constants.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

namespace foreshard {

// 1 rank: 100 GFLOP/s at large shapes, 10 GB/s; 2 ranks at once: each 0.8 of that.
// Products take 2mnk / P * (1 + 20/k) + 2 us, functions 3 us + bytes / 10 GB/s, attention F / (P/4)
// + 5 us, collectives 50 us + bytes / 2 GB/s, host 2 us per row, 1 us per hook, 10 us per
// collective. Overlap slows compute by 1.25, collectives by 1.5. 64 MiB of a rank are outside.
class SyntheticRaw {
 public:
  SyntheticRaw() {
    for (const int ranks : {1, 2}) add_ranks(ranks);
  }

  static double share(int ranks) { return ranks == 1 ? 1.0 : 0.8; }
  static double gemm(double m, double n, double k, int ranks) {
    return 2 * m * n * k / (100e9 * share(ranks)) * (1 + 20 / k) + 2e-6;
  }
  static double function(double bytes, int ranks) { return 3e-6 + bytes / (10e9 * share(ranks)); }
  static double collective(double bytes) { return 50e-6 + bytes / 2e9; }

  // One more row, as JSON.
  SyntheticRaw& row(std::string json) {
    rows_.push_back(std::move(json));
    return *this;
  }
  SyntheticRaw& created(std::string time) {
    created_ = std::move(time);
    return *this;
  }
  SyntheticRaw& cpu(std::string name) {
    cpu_ = std::move(name);
    return *this;
  }

  std::string text() const {
    std::string text = fmt::format(
        R"({{"schema": "foreshard.measurements/1", "created": "{}",
"host": {{"name": "box", "cpu": "{}", "cores": 2, "memory_bytes": 8589934592, "kernel": "6.1"}},
"versions": {{"foreshard": "0.4", "torch": "2.11.0"}}, "command": "foreshard-exec measure", "threads": 1,
"rows": [)",
        created_, cpu_);
    for (std::size_t i = 0; i < rows_.size(); ++i) text += (i == 0 ? "\n" : ",\n") + rows_[i];
    return text + "]}\n";
  }

  static std::string seconds(double median) {
    return fmt::format(
        R"("seconds": {{"median": {}, "low": {}, "high": {}}}, "repeats": 9)", median, median * 0.99, median * 1.01);
  }

 private:
  void add_ranks(int ranks) {
    const auto add = [&](const std::string& rest, double time) {
      row(fmt::format(R"({{"ranks": {}, {}, {}}})", ranks, rest, seconds(time)));
    };
    const auto product = [&](const char* pass, int m, int n, int k) {
      add(fmt::format(R"("kind": "gemm", "pass": "{}", "dtype": "fp32", "m": {}, "n": {}, "k": {})", pass, m, n, k),
          gemm(m, n, k, ranks));
    };
    for (const int tokens : {128, 512, 2048}) {
      for (const int width : {256, 1024}) {
        for (const int inner : {256, 1024}) {
          product("forward", tokens, width, inner);
          product("backward", inner, width, tokens);
          product("backward", tokens, inner, width);
        }
      }
    }
    for (const int sequence : {128, 256, 512}) {
      for (const double factor : {1.0, 2.5}) {  // 4 heads of 64, causal
        add(fmt::format(R"("kind": "attention", "pass": "{}", "dtype": "fp32", "batch": 1,
"sequence": {}, "heads": 4, "kv_heads": 4, "head_dim": 64, "causal": true)",
                factor == 1.0 ? "forward" : "backward", sequence),
            factor * 2 * 4 * 64 * sequence * sequence / (25e9 * share(ranks)) + 5e-6);
      }
    }
    for (const char* name : {"copy", "cast", "adamw", "add", "rms_norm"}) {
      for (const double bytes : {1e4, 1e5, 1e6, 1e7}) {
        add(fmt::format(R"("kind": "memory", "function": "{}", "pass": "forward", "dtype": "fp32",
"bytes": {:.0f})",
                name, bytes),
            function(bytes, ranks));
      }
    }
    add(R"("kind": "host", "what": "row")", 2e-6);
    add(R"("kind": "host", "what": "hook")", 1e-6);
    add(R"("kind": "host", "what": "collective")", 10e-6);
    row(fmt::format(R"({{"kind": "memory_outside", "ranks": {}, "bytes": 67108864}})", ranks));
    if (ranks == 1) return;
    for (const char* name : {"all_gather", "reduce_scatter", "all_reduce"}) {
      for (const double bytes : {1e4, 1e5, 1e6, 1e7}) {
        add(fmt::format(
                R"("kind": "collective", "operation": "{}", "order": "microbatch", "group": 2,
"bytes": {:.0f})",
                name, bytes),
            collective(bytes));
      }
    }
    row(R"({"kind": "contention", "ranks": 2, "compute_alone_s": 0.1, "compute_beside_s": 0.125,
"collective_alone_s": 0.1, "collective_beside_s": 0.15})");
  }

  std::vector<std::string> rows_;
  std::string created_ = "2026-01-31T12:00:00Z";
  std::string cpu_ = "Example CPU @ 3.0GHz";
};

}
