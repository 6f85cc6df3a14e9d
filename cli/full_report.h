// Everything that is known of one job, as the document of a page.
#pragma once

#include <string>

#include "cli/answer.h"
#include "cli/page.h"
#include "sim/search/search.h"

namespace foreshard {

// The forecast of `a`, a run of it ("": none), the search around it, and the same plan on fewer and
// more GPUs. Throws Error(kInvalidInput) where the run is of another step, as read_recording, and
// as search() when it is stopped.
void add_full_report(PageDocument& page, const Answer& a, const JobOptions& options,
                     const std::string& run, const SearchOptions& search_options);

}  // namespace foreshard
