// Parts of the exported FSDP2 script (export_fsdp2.h) that do not ask for its units.
#pragma once

#include <string>
#include <string_view>

#include "interop/export/export_ledger.h"
#include "models/model_dims.h"
#include "models/parameter_names.h"
#include "sim/spec/plan.h"

namespace foreshard {

// "torch.bfloat16"
const char* torch_dtype(DType dtype);

// The optimizer, the loss and the function train_step.
std::string python_step(const Plan& plan);

// Throws Error(kMissingCapability), with the nearest plan, for what the script cannot do.
void check_script_can(const Plan& plan, const ModelDims& dims);
[[noreturn]] void refuse_script(std::string_view key, const std::string& what,
                                const std::string& nearest);

// mesh.tp: refuses what it does not cut; the function that cuts the layers ("" where tp is 1).
void check_can_be_cut(const Plan& plan, const ModelDims& dims);
std::string python_cut(const Plan& plan, const ParameterNames& names);

// What the script does of the plan, and what it does in another way.
ImportLedger script_ledger(const Plan& plan, const ModelDims& dims);

}  // namespace foreshard
