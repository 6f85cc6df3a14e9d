// What search says beside its best plan: how sure it is, what would be faster and is not, and what
// another code would buy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reports/view/layout.h"
#include "sim/base/json.h"
#include "sim/search/search.h"

namespace foreshard {

// A best plan with keys changed that a search leaves alone (they change code, speed or numbers).
struct Alternative {
  std::vector<std::string> changes;  // "compile=blocks"
  Candidate candidate;
};

// Of all variants of a search with so many ranks of a pipeline: the best step among those that were
// the fastest when they were looked at, and what no step is shorter than.
struct PipelineStep {
  std::int64_t pp = 1;
  std::optional<double> seconds;  // nothing: none holds that is as fast as another's
  double at_least = 0;            // s; 0: not known
};

// "fits with 97 %"; of a plan that does not fit by how much: "does not fit: 151 GiB more than there is".
std::string fit_words(const Fit& fit, double probability);

// Keys of `plan` other than those of the grid that differ from the base's, as flags:
// "--set loss=chunked-8"; "" where none do.
std::string settings_words(const Plan& base, const Plan& plan);

// "shard 8 x replicate 4, reshard always, ..." with settings_words() behind.
std::string plan_in_words(const Plan& base, const Plan& plan);

// The riskier plan and the alternatives, one paragraph each, beside the best plan's step; nothing
// where there are none. `base`: the plan around which was searched.
std::vector<std::string> advice_lines(
    const SearchResult& result, const std::vector<Alternative>& alternatives, const Plan& base, const Paint& paint);
Json to_json(const std::vector<Alternative>& alternatives);
// {"mesh.tp": "2"} of "mesh.tp=2".
Json set_json(const std::vector<std::string>& changes);

// What stages of a pipeline would do to the step, where a search looked at several numbers of them:
// one paragraph; nothing else.
std::vector<std::string> pipeline_lines(const std::vector<PipelineStep>& steps);
Json to_json(const std::vector<PipelineStep>& steps);

// Whether no prefetch depth changes the best step of any shard group by what two plans must differ by to be told apart.
bool prefetch_is_idle(const SearchResult& result);

}
