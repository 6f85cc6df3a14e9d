// A plan for another runtime: the nearest one that it can run, and a ledger of what differs.
//
// Nothing is translated by a table of keys. The plan is asked of the other runtime as it is; what
// that cannot do it says itself (find_problem: the key, why, and the nearest value), and each
// answer is one entry of the ledger. Beside that, where parameters, gradients and optimizer states
// live and how they travel is the runtime's nature: the ledger says where the two differ.
#pragma once

#include <string>
#include <vector>

#include "sim/spec/plan_config.h"

namespace foreshard {

struct LedgerEntry {
  std::string what;  // a key of the plan ("prefetch.backward"), or "gradients", "gathers"
  std::string from;
  std::string to;
  std::string why;  // "" for what lies in the runtimes' nature
  bool operator==(const LedgerEntry&) const = default;
};

struct Translation {
  PlanDocument document;  // of the nearest plan
  std::vector<LedgerEntry> ledger;
};

// Which version of `to` runs beside what runs `from`: that of the same PyTorch where both are PyTorch's, else the
// newest.
std::string version_beside(const Runtime& from, RuntimeKind to);

// `base` is what was written for the plan `from`; to.version "": version_beside. Throws
// Error(kMissingCapability) with the runtime's reason where no nearest plan is named.
Translation translate(
    const PlanDocument& base, const Plan& from, const Runtime& to, const ModelSpec& model, const Cluster& cluster);

}
