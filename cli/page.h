// HTML reports of what the verbs know: their documents, and the file.
#pragma once

#include <string>

#include "cli/answer.h"
#include "planner/job.h"
#include "planner/job_search.h"
#include "reports/page/page.h"
#include "reports/validate/run_record.h"
#include "reports/validate/validate.h"
#include "sim/base/json.h"

namespace foreshard {

// Whole or not at all (write_file). The document is completed as document() does it.
void write_page(const std::string& path, const PageDocument& page);

// The document that write_page puts into the page.
Json page_json(const PageDocument& page);

// "Llama-3.1-8B on 64xh100"
std::string page_title(const Job& job);

// The forecast of `plan`, as another view; with operations and sensitivity where it is the first.
std::size_t add_forecast(
    PageDocument& page, const Job& job, const Forecast& forecast, const Report& report, const std::string& label);

// Heatmaps, Pareto plans and what else a search around `job` found, with the plans behind them as
// views, as far as the page has room.
void add_search(PageDocument& page, const Job& job, const JobSearch& found);

// The same plan on fewer and more GPUs, each with the batch per GPU that it has. Nothing where the
// cluster is not named by a count of GPUs.
void add_scaling(PageDocument& page, const JobOptions& options, const Job& job);

// A run of the first view's forecast beside it.
void add_validation(
    PageDocument& page, const Forecast& forecast, const Validation& validation, const RunRecord& record);

// The page of a document that a verb wrote with --json.

// `file` is what errors name, and the title of what has none. Throws ConfigError where the document
// is no answer that can be shown, or lacks a key.
Json page_of_answer(const Json& answer, const std::string& file);

// The file of --html of a verb whose page says what its document does.
void write_answer_page(const std::string& path, const Json& answer, const std::string& command);

}
