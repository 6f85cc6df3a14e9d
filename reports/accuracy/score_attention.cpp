// A row is forecast from the first of these that has rows enough, in the form of
// MicroAttention:
//   1  the same GPU, kernel, head size, pass and mask, of another source of the same program
//   2  its own source without the row's family: heads, or the sequence where all rows have the same
//      heads (the GPU has no other source of this kind)
//   3  the same on the same GPU by another program
//   4  the same kernel on the nearest GPU that has it, by the same program first, moved by the two
//      GPUs' peaks and bandwidths
// else the curves of the shipped profile for the kernel PyTorch runs there. (Serving programs time
// kernels with paged caches, charts dense ones: they agree only to 20 %.)
//
// Intervals: the 90 % quantile of the fit's own residuals times 1.3, and the distance between
// programs or GPUs on top where the row is of another.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <span>

#include "calibration/fit/least_squares.h"
#include "calibration/gpu_names.h"
#include "calibration/profile_store.h"
#include "calibration/published.h"
#include "reports/accuracy/score_kernels.h"
#include "sim/base/lookup.h"
#include "sim/base/quantile.h"
#include "sim/cost/cost_model.h"
#include "sim/spec/cluster.h"

namespace foreshard {
namespace {

// Attention as micro-benchmarks time it, serving kernels with their caches included.
//
//   t = F/(e*P) * (1 + s0/S) * (1 + c0/C) * (1 + w*(ceil(C)/C - 1)) + r*Q/BW + t0
// C = B*h*ceil(S/128)/SM as in sim/spec/calibration.h, ceil(C)/C at most 4, Q the bytes of queries, keys, values and
// outputs, r how often they are moved. All relative to a GPU's figures, so that a fit moves to another GPU.
// The prior weighs like one row that fits to 5 %, with the spreads below between GPUs and kernels.
struct MicroAttention {
  double efficiency = 0.5;
  double s_half = 300;
  double c_half = 0.5;
  double wave = 0.2;
  double moves = 1.8;
  double overhead = 8e-6;  // s
};

double attention_seconds(const MicroAttention& model, const AttentionRow& row, const Gpu& gpu) {
  constexpr double kQueries = 128, kMostWaste = 4, kBytes = 2;
  const double blocks = row.batch * row.heads * std::ceil(row.sequence / kQueries) / as_double(gpu.multiprocessors);
  const double waste = std::min(kMostWaste, std::ceil(blocks - 1e-9) / blocks);
  const double moved =
      kBytes * row.batch * row.sequence * row.head_dim * (2 * row.heads + 2 * std::max(row.kv_heads, 1.0));
  return row.flops / (model.efficiency * gpu.peak_bf16.value()) * (1 + model.s_half / row.sequence) *
             (1 + model.c_half / blocks) * (1 + model.wave * (waste - 1)) +
         model.moves * moved / gpu.memory_bandwidth.value() + model.overhead;
}

// Rows of one kernel, head size, pass and mask. Few rows are drawn towards the defaults above, what
// serving sweeps of eight GPUs have in common.
MicroAttention fit_micro_attention(const std::vector<AttentionRow>& rows, const Gpu& gpu) {
  constexpr std::size_t kConstants = 6;
  constexpr double kRowError = 0.05;
  const MicroAttention usual;
  const auto of = [](std::span<const double> x) { return MicroAttention{x[0], x[1], x[2], x[3], x[4], x[5]}; };
  LeastSquares problem;
  problem.rows = rows.size() + kConstants;
  problem.ranges = {{0.02, 1.5}, {1, 5000}, {0, 10}, {0, 1}, {0, 6}, {1e-7, 5e-5}};
  problem.starts = {{usual.efficiency, usual.s_half, usual.c_half, usual.wave, usual.moves, usual.overhead}};
  problem.residuals = [&](std::span<const double> x, std::span<double> out) {
    const MicroAttention model = of(x);
    log_errors(
        rows, [&](auto& row) { return attention_seconds(model, row, gpu); }, out);
    const double off[kConstants] = {std::log(model.efficiency / usual.efficiency) / 1.0,
        std::log(model.s_half / usual.s_half) / 1.5, (model.c_half - usual.c_half) / 1.0,
        (model.wave - usual.wave) / 0.3, (model.moves - usual.moves) / 1.5,
        std::log(model.overhead / usual.overhead) / 0.7};
    for (std::size_t i = 0; i < kConstants; ++i) out[rows.size() + i] = kRowError * off[i];
  };
  return of(solve(problem));
}

constexpr double kResidualsToForecast = 1.3;
// Standard deviations of the logarithm: the same kernel timed by another program, and moved to
// another GPU (H100 to H200 2.6 to 7.4 % median, B200 to GB200 and B300 7.6 to 9.3 %).
constexpr double kOtherProgram = 0.12;
constexpr double kMovedSpread = 0.10;
constexpr double kProfile = 0.20;

const char* pass_word(AttentionPass pass) {
  return pass == AttentionPass::kForward ? "fwd" : pass == AttentionPass::kBackward ? "bwd" : "fwd+bwd";
}

std::string program_of(const AttentionRow& row) { return row.protocol.substr(0, row.protocol.find(' ')); }

struct Fitted {
  MicroAttention model;
  double residual = 0;  // 90 % quantile of the logarithms
};

class AttentionJudge {
 public:
  AttentionJudge() {
    const CsvTable table = published_table("attention_measured.csv");
    for (ReadAttention& read : read_attention_rows(table, machines_))
      if (read.problem.empty()) published_.push_back(std::move(read.row));
  }
  const std::vector<Machine>& machines() const { return machines_; }

  AccuracyRow score(AccuracyRow out, const ReadAttention& read) {
    AttentionRow row = read.row;
    const Gpu& gpu = machine_of(row.gpu, machines_)->node.gpu;
    if (row.kernel.empty()) row.kernel = usual_kernel(row);
    out.groups.emplace_back("kernel", fmt::format("{} {}", row.kernel, pass_word(row.pass)));
    const Choice choice = choose(row, gpu);
    std::string absurd = absurdity(row.seconds, choice.seconds, row.flops, gpu.peak_bf16);
    if (!absurd.empty()) return set_aside(std::move(out), std::move(absurd));
    out.groups.emplace_back("rule", choice.rule);
    return with_forecast(std::move(out), row.seconds, choice.seconds, choice.half);
  }

 private:
  struct Choice {
    double seconds = 0;
    double half = 0;
    const char* rule = "";
  };
  using Filter = std::function<bool(const AttentionRow&)>;

  static bool same_kind(const AttentionRow& a, const AttentionRow& b) {
    return a.kernel == b.kernel && a.head_dim == b.head_dim && a.pass == b.pass && a.causal == b.causal;
  }

  Choice choose(const AttentionRow& row, const Gpu& gpu) {
    constexpr std::size_t kEnough = 12, kFew = 5;
    const std::string program = program_of(row);
    const auto here = [&](const AttentionRow& each) { return each.gpu == row.gpu && same_kind(each, row); };
    const auto key = [&](int rule, std::string_view where) {
      return fmt::format("{} {} {} {} {} {} {} {}", rule, where, row.gpu, row.kernel, row.head_dim, pass_word(row.pass),
          row.causal, row.source);
    };
    const auto priced = [&](const Fitted& fit, double spread, const char* rule) {
      return Choice{attention_seconds(fit.model, row, gpu),
          std::hypot(kResidualsToForecast * fit.residual, kNinetyPercent * spread), rule};
    };
    if (const auto fit = fitted(key(1, ""), gpu, kEnough, [&](const AttentionRow& each) {
          return here(each) && each.source != row.source && program_of(each) == program;
        }))
      return priced(*fit, 0, "source left out");
    if (const std::optional<std::size_t> fold = own_fold(row)) {
      if (const auto fit = fitted(key(2, std::to_string(*fold)), gpu, kFew - 1, [&](const AttentionRow& each) {
            return here(each) && each.source == row.source && fold_in(each) != *fold;
          }))
        return priced(*fit, 0, "shapes left out");
    }
    if (const auto fit = fitted(
            key(3, ""), gpu, kFew, [&](const AttentionRow& each) { return here(each) && each.source != row.source; }))
      return priced(*fit, kOtherProgram, "another program");
    if (const auto moved = moved_fit(row, gpu, kFew, key(4, program)))
      return priced(*moved, kMovedSpread, "another GPU");
    return {profile_seconds(row, gpu), kNinetyPercent * kProfile, "profile"};
  }

  // Rows of the row's own source and kind; heads tell families apart, else the sequence.
  std::optional<std::size_t> own_fold(const AttentionRow& row) {
    const bool known = std::ranges::any_of(published_, [&](const AttentionRow& each) {
      return each.source == row.source && each.gpu == row.gpu && same_kind(each, row);
    });
    return known ? std::optional(fold_in(row)) : std::nullopt;
  }
  std::size_t fold_in(const AttentionRow& row) {
    const std::string kind = fmt::format(
        "{} {} {} {} {} {}", row.source, row.gpu, row.kernel, row.head_dim, pass_word(row.pass), row.causal);
    const bool by_heads = remembered(by_heads_, kind, [&] {
      bool differ = false;
      const AttentionRow* first = nullptr;
      for (const AttentionRow& each : published_) {
        if (each.source != row.source || each.gpu != row.gpu || !same_kind(each, row)) continue;
        if (first == nullptr) first = &each;
        differ = differ || each.heads != first->heads || each.kv_heads != first->kv_heads;
      }
      return differ;
    });
    return by_heads ? fold_of(row.heads, row.kv_heads) : fold_of(row.sequence, row.batch);
  }

  std::optional<Fitted> fitted(const std::string& key, const Gpu& gpu, std::size_t fewest, const Filter& filter) {
    return remembered(
        fits_, key,
        [&]() -> std::optional<Fitted> {
          const auto rows = list_where<AttentionRow>(published_, filter);
          if (rows.size() < fewest) return std::nullopt;
          Fitted fit{fit_micro_attention(rows, gpu), 0};
          auto logs = list_of<double>(
              rows,
              [&](const AttentionRow& each) {
                return std::log(attention_seconds(fit.model, each, gpu) / each.seconds);
              });
          // A handful of rows fits better than it forecasts.
          constexpr double kLeast = 0.04;
          fit.residual = std::max(kLeast, log_quantile(logs, 0.9));
          return fit;
        });
  }

  std::optional<Fitted> moved_fit(const AttentionRow& row, const Gpu& gpu, std::size_t fewest, const std::string& key) {
    for (const bool same_program : {true, false}) {
      std::vector<std::pair<double, const Machine*>> others;
      for (const Machine& other : machines_)
        if (other.key != row.gpu) others.emplace_back(distance(gpu, other.node.gpu), &other);
      std::ranges::stable_sort(others, [](const auto& a, const auto& b) { return a.first < b.first; });
      for (const auto& [far, other] : others) {
        const std::string name = fmt::format("{} {} {}", key, same_program, other->key);
        const auto fit = fitted(name, other->node.gpu, fewest, [&, machine = other](const AttentionRow& each) {
          return each.gpu == machine->key && same_kind(each, row) && each.source != row.source &&
                 (!same_program || program_of(each) == program_of(row));
        });
        if (fit) return fit;
      }
    }
    return std::nullopt;
  }

  // What most published rows of the GPU run, else what PyTorch runs there.
  std::string usual_kernel(const AttentionRow& row) {
    std::map<std::string, int> counts;
    for (const AttentionRow& each : published_)
      if (each.gpu == row.gpu && !each.kernel.empty()) ++counts[each.kernel];
    const auto most =
        std::ranges::max_element(counts, [](const auto& a, const auto& b) { return a.second < b.second; });
    return most == counts.end() ? load_profile(row.gpu).sdpa_preferred : most->first;
  }

  double profile_seconds(const AttentionRow& row, const Gpu& gpu) {
    const CostModel& model = remembered(models_, std::pair(row.gpu, row.kernel), [&] {
      const CostChoices choices = {.attention_kernel = row.kernel};
      return CostModel(Cluster{.gpu = gpu}, load_profile(row.gpu), choices);
    });
    Kernel kernel = {.kind = KernelKind::kAttention,
        .function = Function::kAttention,
        .causal = row.causal,
        .m = static_cast<std::int64_t>(row.batch),
        .n = static_cast<std::int64_t>(row.sequence),
        .k = row.head_dim,
        .heads = static_cast<std::int64_t>(row.heads)};
    const bool both = row.pass == AttentionPass::kBoth;
    double seconds = 0;
    constexpr double kBackwardShare = 2.5 / 3.5;
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const bool is_backward = pass == Pass::kBackward;
      if (!both && is_backward != (row.pass == AttentionPass::kBackward)) continue;
      kernel.pass = pass;
      kernel.flops = Flops(row.flops * (both ? (is_backward ? kBackwardShare : 1 - kBackwardShare) : 1));
      seconds += model.price(kernel).seconds;
    }
    return seconds;
  }

  std::vector<Machine> machines_ = list_machines();
  std::vector<AttentionRow> published_;
  std::map<std::string, std::optional<Fitted>> fits_;
  std::map<std::string, bool> by_heads_;
  std::map<std::pair<std::string, std::string>, CostModel> models_;
};

}

std::vector<AccuracyRow> score_attention(const CsvTable& table) {
  AttentionJudge judge;
  const std::vector<ReadAttention> read = read_attention_rows(table, judge.machines());
  return judged(table, std::move(judge), read, [](const ReadAttention& each) {
    return AccuracyGroups{{"gpu", each.row.gpu}, {"source", each.row.source}};
  });
}

}
