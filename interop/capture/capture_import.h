// From a folder that foreshard-null wrote to a model and a plan, part by part.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "interop/frameworks/import_ledger.h"
#include "sim/base/error.h"
#include "sim/base/json.h"
#include "sim/graph/capture/capture.h"

namespace foreshard {

// The folder that foreshard-null writes: capture.json, calls.txt (or calls.txt.gz), and model.json
// where Python described the model. docs/capture.md has their form.

// Throws Error(kInvalidInput) or ConfigError for what is no capture: file, line and what is wrong.
Capture read_capture(const std::filesystem::path& folder);

// The model and the plan behind a capture: what `foreshard import` makes of it.

struct CapturedPlan {
  std::string model;  // config.json's text
  std::string plan;   // a plan file that names the model as `model_name`
  ImportLedger ledger;
};

// Units, mesh, dtypes and policies as fully_shard made them, micro-batches, recomputation and batch as the calls of the
// steady step show them. Throws Error(kMissingCapability) where the model is none that a config.json describes.
// `others`: the same program at other sizes, for a model that modules.json describes.
CapturedPlan plan_of_capture(
    const Capture& capture, const std::string& model_name, const std::vector<Capture>& others = {});

// The units of a captured program, as fully_shard made them, in a plan's words.

// model.json of a capture: its units are in forward order, the root first where it has parameters.
// Ranks inside of those that shard: what activations are exchanged over.
struct InnerAxes {
  std::int64_t cp = 1, tp = 1;
  std::string words() const;  // ", cp: 2": behind others of a mesh
};
// Keys and values of a plan: mesh, units, reshard_after_forward, dtype and what else units say;
// behind each, what it was read off, and whether it leaves fp32 parameters under autocast.
struct UnitWords {
  std::string key, value, source;
  bool widens = false;
};
// Whether the root has the table of tokens a second time.
bool has_second_table(const Json& document);
std::vector<UnitWords> words_of_units(const Json& document, const InnerAxes& axes);

// Throws Error(kMissingCapability) for `file` of a capture that has no plan: its step is forecast from its calls.
template <typename... Parts>
[[noreturn]] void refuse_layers(const std::string& file, fmt::format_string<Parts...> why, Parts&&... parts) {
  throw Error(ExitCode::kMissingCapability, "{}: {}; foreshard predict --capture forecasts the step as it is", file,
      fmt::format(why, std::forward<Parts>(parts)...));
}

// The text under a key; empty where there is none.
std::string text_in(const Json& of, const char* key);
// "torch.bfloat16" -> "bf16"
std::string dtype_of_torch(std::string_view torch);

// A model that no config.json describes, from what its modules computed (modules.json, which
// foreshard-null --modules writes): a model.yaml.
//
// Blocks are the members of the largest list of equal modules; alike blocks are one kind of layer,
// repeated. What a tensor's size grows with (tokens, sequences, positions) follows from captures of
// several sizes; of one capture the first that fits is taken.

struct CapturedModules {
  std::string path;  // of modules.json, for messages
  Json document;
  std::int64_t batch = 1, sequence = 1;
};

std::filesystem::path modules_file(const Capture& capture);
// Throws Error(kInvalidInput) for one of another version, Error(kMissingCapability) for what layers have no words for.
CapturedModules read_modules(const Capture& capture);

// `captures`: the same program at different sizes, at least one. Throws Error(kMissingCapability) for an operation that
// no layer has, naming its module, and Error(kInvalidInput) where the captures are not of one program.
std::string model_of_modules(const std::vector<CapturedModules>& captures, const std::string& name);

}
