// modules.json of a capture, with what its marks say of kernels.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "interop/capture/capture_import.h"
#include "interop/capture/module_layers.h"
#include "sim/base/error.h"
#include "sim/base/json_document.h"
#include "sim/base/lookup.h"
#include "sim/graph/capture/captured_kernel.h"

namespace foreshard {

std::filesystem::path modules_file(const Capture& capture) {
  return std::filesystem::path(capture.path) / "modules.json";
}

namespace {

// Kernels between a mark and its end, by what it says: [m, n, k, how many] of products that are
// alike, in the order of the first ones, and of the others together [bytes, 0, 0, how many].
std::map<std::string, Json> marked_kernels(const Capture& capture) {
  std::map<std::string, Json> made;
  std::string within;
  for (const CapturedCall& call : capture.calls) {
    const std::string& name = capture.name_of(call);
    if (call.kind == CapturedCall::Kind::kMark && name.starts_with("kernels "))
      within = name.substr(name.find(' ') + 1);
    if (within.empty() || within == "end") continue;
    const auto kernel = captured_kernel(capture, call, Pass::kForward);
    if (!kernel) continue;
    const Kernel& of = kernel->kernel;
    Json& all = made[within];
    if (all.is_null()) all.push_back({0, 0, 0, 0});
    Json* same = &all[0];
    if (of.kind == KernelKind::kGemm) {
      const Json shape = {of.m * of.groups, of.n, of.k};
      const auto it = std::ranges::find_if(
          all, [&](const Json& e) { return e[0] == shape[0] && e[1] == shape[1] && e[2] == shape[2]; });
      const auto at = it - all.begin();
      if (it == all.end()) all.push_back({shape[0], shape[1], shape[2], 0});
      same = &all[static_cast<std::size_t>(at)];
    } else {
      (*same)[0] = (*same)[0].get<std::int64_t>() + of.bytes.count();
    }
    (*same)[3] = (*same)[3].get<std::int64_t>() + 1;
  }
  return made;
}

}

CapturedModules read_modules(const Capture& capture) {
  CapturedModules made;
  made.path = modules_file(capture).string();
  made.document = read_json_document(modules_file(capture));
  if (made.document.value("schema", "") != "foreshard.capture.modules/2") {
    throw Error(
        ExitCode::kInvalidInput, made.path + ": is of an earlier foreshard-null; expected a capture of this one");
  }
  Json& parameters = made.document.at("parameters");
  for (auto it = parameters.begin(); it != parameters.end();)  // (of no elements: a module's place for its device)
    it = numel_of(*it) > 0 ? std::next(it) : parameters.erase(it);
  const std::map<std::string, Json> kernels = marked_kernels(capture);
  made.document["products"] = value_of(kernels, "before", Json::array());
  for (Json& operation : made.document.at("operations")) {
    if (!operation.contains("mark")) continue;
    const std::string mark = std::to_string(operation["mark"].get<std::int64_t>());
    operation["products"] = value_of(kernels, mark, Json::array());
    operation["backward_products"] = value_of(kernels, mark + " backward", Json::array());
  }
  const std::size_t count = made.document.value("count", std::size_t{0});
  if (count > made.document.at("operations").size()) {
    refuse_layers(made.path,
        "its first forward has {} operations (a loop over positions?), more than layers are made of: capture two "
        "batches of a shorter sequence",
        count);
  }
  if (made.document.value("differentiates_twice", false))
    refuse_layers(made.path, "the program differentiates a gradient (create_graph), which layers have no words for");
  const Json hidden = made.document.value("hidden", Json::array());
  if (!hidden.empty()) {
    refuse_layers(made.path,
        "{} runs modules inside of a torch.autograd.Function (reversible blocks), whose backward is its own: capture "
        "the model without it, and say recompute: full where it runs them again",
        hidden[0].get<std::string>());
  }
  return made;
}

}
