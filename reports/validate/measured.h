// From the timelines of a run to what the views and reports of a forecast read.
//
// A run has several steps on several ranks; a forecast has one of each. Two ways to make them one:
// the median step, a real one, whose spans fit together (waterfall, exposure, trace), and medians
// of single events over all steps and ranks, which are stable (reports/validate/validate.h).
#pragma once

#include <vector>

#include "reports/report.h"
#include "reports/validate/run_record.h"

namespace foreshard {

// Throws Error(kInvalidInput) where no step was recorded, a rank is missing, or a timeline does not
// have the events of the graph.
void check_record(const EventGraph& graph, const RunRecord& record);

// Every collective's `arrive`: the latest of its group's ranks to reach it with their communicator
// free, no later than its own end. It is `start` where the clock of a rank of the group is not
// shared, a rank or the step is not in the record, and for all other rows.
RunRecord derive_arrivals(const EventGraph& graph, RunRecord record);
// Whether arrivals can be told.
bool clocks_shared(const RunRecord& record);

// Recorded steps of a rank without the first `warm_up` of the run; all where there are no others.
std::vector<const MeasuredStep*> steady_steps(const RunRecord& record, const RankRecord& rank);
// Of those, the one whose duration is nearest to their median, the earlier of equals.
const MeasuredStep& median_step(const RunRecord& record, const RankRecord& rank);
Timeline timeline_of(const RankRecord& rank, const MeasuredStep& step);

// The first rank's median step, arrivals derived, where the views expect a forecast: no costs, no
// memory profile. Throws as check_record.
Forecast measured_view(const ModelSpec& model, const Plan& plan, const EventGraph& graph, const RunRecord& record);

// The report of a run, origin "measured": values are medians, intervals the quartiles of the
// repeats. Step durations are the slowest rank's, communication is pooled over ranks and recorded
// steps, memory the largest rank's. `view` comes from measured_view of the same record.
Report summarize_run(const Forecast& view, const Cluster& cluster, const RunRecord& record);

}
