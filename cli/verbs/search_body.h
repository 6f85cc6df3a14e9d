// What `search` answers as JSON, on the command line and over HTTP.
#pragma once

#include <vector>

#include "planner/job.h"
#include "reports/sizing/search_depth.h"
#include "reports/view/views.h"
#include "sim/search/search.h"

namespace foreshard {

struct BestPlan {
  Forecast forecast;
  Report report;
};
BestPlan best_of(const Job& job, const Plan& plan, const CostModel& costs);

// Why the neighbours of the search's own best are slower; empty where nothing fits.
std::vector<WhySlower> why_of(const Job& job, const SearchResult& result, const CostModel& costs);

// By the list price of the job's cluster.
double dollars_per_million_tokens(const Job& job, const Report& report);

// `best` is what is named in the end, which may be another than the search's own.
Json search_body(const Job& job, const SearchStory& story, const BestPlan* best, const CostModel& costs);

}
