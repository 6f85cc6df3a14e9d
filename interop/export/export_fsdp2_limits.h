// What of a plan the exported FSDP2 script refuses, and what it does in another way.
#pragma once

#include <string>
#include <string_view>

#include "interop/export/export_ledger.h"
#include "models/model_dims.h"
#include "sim/spec/plan.h"

namespace foreshard {

// These throw Error(kMissingCapability): for what the script cannot do, with the nearest plan, and
// for models that it does not write.
void check_script_can(const Plan& plan, const ModelDims& dims);
void check_own(const Plan& plan);
void check_script_model(const ModelDims& dims);
[[noreturn]] void refuse_script(std::string_view key, const std::string& what, const std::string& nearest);

ImportLedger script_ledger(const Plan& plan, const ModelDims& dims);

}
