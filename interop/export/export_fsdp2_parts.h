// Parts of the exported FSDP2 script (export_fsdp2.h), each a piece of its text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "interop/export/export_ledger.h"
#include "models/model_dims.h"
#include "models/parameter_names.h"
#include "sim/graph/event_graph.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

struct ScriptJob {
  const Plan& plan;
  const ModelSpec& model;
  const ModelDims& dims;
  const ParameterNames& names;
  EventGraph graph;                  // whose units and their order are the script's
  std::vector<Recompute> recompute;  // of each layer
};
bool recomputes(const ScriptJob& job);
bool recomputes(const ScriptJob& job, Recompute how);
bool splits_experts(const ScriptJob& job);  // whether they are units of their own

const char* python(bool value);  // "True"
std::string python_header(const ScriptJob& job);
std::string python_constants(const ScriptJob& job);
std::string python_rehearsal(const ScriptJob& job);
std::string python_units(const ScriptJob& job);
std::string python_sharding(const ScriptJob& job);

// Norms, positions, attention and experts, which blocks call.
std::string python_functions(const ModelDims& dims, const Plan& plan);

// mesh.ep: how rows go between ranks; the forward of Experts around its method _run; what cuts and
// clips experts ("" without ep).
std::string python_exchange();
std::string python_dispatch();
std::string python_spread(const ScriptJob& job);

// "torch.bfloat16"
const char* torch_dtype(DType dtype);

// The optimizer, the loss and the function train_step.
std::string python_step(const Plan& plan);

// Throws Error(kMissingCapability), with the nearest plan, for what the script cannot do.
void check_script_can(const Plan& plan, const ModelDims& dims);
[[noreturn]] void refuse_script(std::string_view key, const std::string& what,
                                const std::string& nearest);

// mesh.tp and mesh.cp: refuse what is not written.
void check_script_axes(const Plan& plan, const ModelDims& dims);
// The functions that make their meshes and cut the layers ("" without axes).
std::string python_axes(const ScriptJob& job);

// What the script does of the plan, and what it does in another way.
ImportLedger script_ledger(const Plan& plan, const ModelDims& dims);

}  // namespace foreshard
