// Pipelines as torch.distributed.pipelining ran them: a folder with schedules.csv (a configuration per row),
// actions.csv (what each rank computes, exchanges, and what its host did: the form `host`, by the library's own loops
// over stand-in stages) and refused.csv; and folders with ranks.csv (recordings of whole steps, a rank per row).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reports/conform/conform.h"

namespace foreshard {

// The folder, or those below it, with such tables; empty where there are none.
std::vector<std::filesystem::path> find_pipeline_tables(const std::filesystem::path& path);

// Compared is the form `host` of every rank. `only`: ids; empty: all. Throws ConfigError for what cannot be read.
ConformanceFolder conform_pipeline_tables(const std::filesystem::path& folder, const std::vector<std::string>& only);

// Of a folder with ranks.csv, configs.json, events, memory, peaks and units: step 2 of every rank.
std::vector<Conformance> conform_pipeline_ranks(const std::filesystem::path& folder);

}
