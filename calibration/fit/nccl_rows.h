// Rows of nccl-tests tables (calibration/README.md: `nccl_measured.csv`) as calls of a system that
// NCCL's model knows. The columns gpu and network are free text; what they do not say is the usual
// of that GPU. Nothing is refused for an unknown spelling.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "calibration/csv_table.h"
#include "sim/cost/collective.h"

namespace foreshard {

struct NcclRow {
  std::string id;  // of the table the row is of; "line N" where it has none
  int line = 0;
  std::string source;  // what was measured by the same people: owner/repository, or the text
  std::string fabric;  // the same machines, ranks, network and source; any collective
  std::string gpu;     // as the row spells it
  std::string network;
  FabricKind kind = FabricKind::kNvlink;
  NcclSystem system;
  std::int64_t hosts = 1;                         // n_nodes; the system counts NVLink domains
  std::optional<CollectiveOperation> collective;  // none: not one that is known
  double bytes = 0;                               // of the whole unsharded buffer
  double seconds = 0;
  std::string problem;  // why the row says nothing; empty: it does
};

// Every row of the table, in its order. Needs the columns bytes, collective and time_us_oop (or
// busbw_GBps); the others may be missing.
std::vector<NcclRow> nccl_rows(const CsvTable& table);

// What network and GPU texts say, for a communicator of `ranks` on `nodes`.
struct NcclPlace {
  std::string_view gpu;
  std::string_view network;
  std::string_view version;
  std::int64_t ranks = 1;
  std::int64_t nodes = 1;
};
struct PlacedSystem {
  NcclSystem system;
  FabricKind kind = FabricKind::kNvlink;
};
PlacedSystem place_system(const NcclPlace& place);

}
