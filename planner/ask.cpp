// What one run of one's own leaves is measured: half of the interval (reports/accuracy/
// accuracy_groups.cpp). Minutes are assumed: what somebody takes who has the machine at hand.
#include "planner/ask.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "calibration/machines.h"
#include "calibration/training_evidence.h"
#include "reports/page/page.h"
#include "reports/view/layout.h"
#include "sim/base/quantile.h"
#include "sim/base/unit_strings.h"
#include "sim/memory/memory_alternatives.h"

namespace foreshard {
namespace {

constexpr double kAnchorLeaves = 0.5;
// The lowest limit that is published with steps, over the maker's: torchtitan's H100 of 500 W
// (pytorch/torchtitan, docs/performance.md).
constexpr double kLowLimit = 500.0 / 700.0;

std::string source_of(const Cluster& cluster, std::string_view figure) {
  for (const auto& [name, source] : cluster.sources)
    if (name == figure) return source;
  return "";
}

// Whether somebody said it of these GPUs; else it is their maker's.
bool is_limit_told(const Cluster& cluster) {
  const std::optional<Machine> machine = machine_named(cluster.gpu.key);
  constexpr const char* kLimit = "gpu.power_limit";
  return !machine || source_of(cluster, kLimit) != source_of(machine->node, kLimit);
}

double square(double value) { return value * value; }

// Several nodes' links and one node's are measured by one program.
bool is_link(Factor factor) { return factor == Factor::kIntraNode || factor == Factor::kInterNode; }

class Asker {
 public:
  explicit Asker(const Job& job) : job_(job) {
    const CostModel costs = cost_model(job);
    const Forecast made = forecast(job.model, job.resolved.plan, costs);
    all_.step_s = made.timeline.period.seconds();
    moves_ = factor_moves(made, costs);
    for (const FactorMove& move : moves_) all_.levels.machine.emplace_back(factor_words(move.factor), share(move));
    const OpenStack open = summarize(made, costs, 0, stack_set(job, costs).of(job.resolved.plan)).open_stack;
    is_said_ = open.outcomes.empty();
    if (!is_said_) {
      const auto [least, most] = std::ranges::minmax(open.outcomes, {}, &StackOutcome::seconds);
      all_.levels.codes = (most.seconds - least.seconds) / 2 / all_.step_s;
      alternatives_ = memory_alternatives(job.model, job.resolved.plan);
    }
    below_ = below_half_peak(mfu_of(made, job.cluster));
    all_.levels.code = reach_of_code(told_stack(job));
    all_.levels.run = kNinetyPercent * training_evidence().plan_log_sd;
    all_.half_width = all_.levels.half_width();
    all_.memory = made.memory.peak;
    all_.memory_above = sum_of<Bytes>(alternatives_, &MemoryAlternative::bytes);
  }

  Questions ask() {
    if (!is_said_) {
      Levels said = all_.levels;
      said.codes = 0;
      said.code = reach_of_code(job_.open.codes.front().name);
      add({"training code", "which training code runs the job", "foreshard predict ... --set stack=NAME", 1,
          said.half_width(), Bytes()});
      for (const MemoryAlternative& each : alternatives_) {
        add({each.name, each.settles, std::string("foreshard predict ... ") + each.set, 2, all_.half_width,
            Bytes(all_.memory_above.count() - each.bytes.count())});
      }
    }
    add({"products", "six large matrix products, as a table gpu,m,n,k,dtype,latency_us", "foreshard calibrate TABLE",
        10, without([](Factor f) { return f == Factor::kGemm; }), all_.memory_above});
    if (job_.resolved.plan.mesh.world() > 1) {
      add({"links", "nccl-tests at two sizes: all_gather_perf and reduce_scatter_perf -b 8M -e 512M -f 64",
          "foreshard calibrate LOG", 20, without(is_link), all_.memory_above});
    }
    add({"all kernels", "every kernel of the machine", "foreshard-exec measure, then foreshard calibrate", 30,
        without([](Factor) { return true; }), all_.memory_above});
    if (all_.levels.code > 0) {
      Levels captured = all_.levels;
      captured.codes = captured.code = 0;
      add({"capture", "what a step of your script asks of the GPU; recorded without one",
          fmt::format("foreshard-null --rank 0 --world {} --gpu {} --out DIR -- COMMAND, then "
                      "foreshard predict --capture DIR --cluster {}",
              job_.resolved.plan.mesh.world(), job_.cluster.gpu.key, job_.cluster.spec),
          15, captured.half_width(), Bytes()});
      add({"one run", "one step of the job, or of a smaller one of the same code", "foreshard accuracy ROWS --anchor 1",
          20, kAnchorLeaves * all_.half_width, Bytes()});
    }
    if (const double longer = longer_by_limit(); longer > 0) {
      NextFact limit = {"power limit", "what nvidia-smi says of a node's GPUs",
          "nvidia-smi -q > smi.txt; foreshard import smi.txt --nodes N --out "
          "cluster.yaml, then foreshard predict ... --cluster cluster.yaml",
          1, all_.half_width, all_.memory_above};
      limit.moves = longer;
      add(std::move(limit));
    }
    std::ranges::stable_sort(all_.facts, std::greater(), &NextFact::per_minute);
    return all_;
  }

 private:
  double reach_of_code(std::string_view stack) const {
    return code_half_width(job_.resolved.plan, job_.cluster, stack, below_);
  }
  // By how much a step is longer at the low limit; 0 where the limit is told.
  double longer_by_limit() const {
    if (is_limit_told(job_.cluster)) return 0;
    Job limited = job_;
    limited.cluster.gpu.power_limit *= kLowLimit;
    const Forecast made = forecast(job_.model, job_.resolved.plan, cost_model(limited));
    return made.timeline.period.seconds() / all_.step_s - 1;
  }

  double share(const FactorMove& move) const { return std::abs(move.high - move.low) / 2 / all_.step_s; }

  double without(auto settles) const {
    Levels levels = all_.levels;
    for (std::size_t i = 0; i < moves_.size(); ++i)
      if (settles(moves_[i].factor)) levels.machine[i].second = 0;
    return levels.half_width();
  }

  // What neither narrows nor moves anything is not asked.
  void add(NextFact fact) {
    const double step = all_.half_width - fact.half_width;
    const double memory = as_double(all_.memory_above.count() - fact.memory_above.count()) /
                          as_double(std::max<std::int64_t>(all_.memory.count(), 1));
    if (step < 1e-4 && memory < 1e-4 && fact.moves < 1e-4) return;
    fact.per_minute = (step + memory) / fact.minutes;
    all_.facts.push_back(std::move(fact));
  }

  const Job& job_;
  Questions all_;
  std::vector<FactorMove> moves_;
  std::vector<MemoryAlternative> alternatives_;
  double below_ = 0;  // half of the peak
  bool is_said_ = true;
};

}

double Levels::half_width() const {
  double sum = square(codes) + square(code) + square(run);
  for (const auto& [name, share] : machine) sum += square(share);
  return std::sqrt(sum);
}

Questions questions(const Job& job) { return Asker(job).ask(); }

std::string questions_text(const Questions& q) {
  std::string text = fmt::format("a step of {} +-{}; memory of {}, up to {} more where the code keeps it\n",
      seconds_text(q.step_s), percent_text(q.half_width), format_bytes(q.memory), format_bytes(q.memory_above));
  for (const NextFact& fact : q.facts) {
    text += fmt::format("  {}: {}\n", fact.name, fact.ask);
    if (fact.moves > 0) {
      text += fmt::format("    the step would be {} longer at {} of the maker's limit; {:g} min: {}\n",
          percent_text(fact.moves), percent_text(kLowLimit), fact.minutes, fact.command);
      continue;
    }
    text += fmt::format("    narrows the step from +-{} to +-{}, memory from {} above to {}; {:g} min: {}\n",
        percent_text(q.half_width), percent_text(fact.half_width), format_bytes(q.memory_above),
        format_bytes(fact.memory_above), fact.minutes, fact.command);
  }
  if (q.facts.empty()) text += "  nothing that is asked for would narrow it\n";
  return text;
}

Json to_json(const Questions& q) {
  Json machine = Json::object();
  for (const auto& [name, share] : q.levels.machine) machine[name] = share;
  Json facts = json_list(q.facts, [&](const NextFact& fact) -> Json {
    return {{"name", fact.name}, {"ask", fact.ask}, {"command", fact.command}, {"minutes", fact.minutes},
        {"half_width", fact.half_width}, {"memory_above_bytes", fact.memory_above.count()},
        {"per_minute", fact.per_minute}, {"moves", fact.moves}};
  });
  return {{"step_s", q.step_s}, {"half_width", q.half_width}, {"memory_bytes", q.memory.count()},
      {"memory_above_bytes", q.memory_above.count()},
      {"levels",
          {{"machine", std::move(machine)}, {"codes", q.levels.codes}, {"code", q.levels.code}, {"run", q.levels.run}}},
      {"facts", std::move(facts)}};
}

}
