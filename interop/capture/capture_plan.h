// The model and the plan behind a capture: what `foreshard import` makes of it.
#pragma once

#include <filesystem>
#include <string>

#include "interop/frameworks/import_ledger.h"
#include "sim/graph/capture/capture.h"

namespace foreshard {

struct CapturedPlan {
  std::string model;  // config.json's text
  std::string plan;   // a plan file that names the model as `model_name`
  ImportLedger ledger;
};

// Units, mesh, dtypes and policies as fully_shard made them, micro-batches, recomputation and batch
// as the calls of the steady step show them. Throws Error(kMissingCapability) where the model is
// none that a config.json describes.
// `others`: the same program at other sizes, for a model that modules.json describes.
CapturedPlan plan_of_capture(const Capture& capture, const std::string& model_name,
                             const std::vector<Capture>& others = {});

}  // namespace foreshard
