// doctor: what this installation can do, and what is missing for the rest.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "calibration/machines.h"
#include "calibration/profile_store.h"
#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "interop/hf/hf_config.h"
#include "models/zoo.h"
#include "planner/local_profiles.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {

namespace {

struct Finding {
  std::string name;
  bool is_there = false;
  std::string what;
};

std::vector<std::string> machine_keys() { return list_of<std::string>(list_machines(), &Machine::key); }

// The engine is a program beside this one.
bool is_engine_built() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return !error && std::filesystem::exists(self.parent_path() / "foreshard-exec", error);
}

Finding own_profile() {
  try {
    if (const auto file = newest_profile()) return {"profile of this machine", true, file->string()};
  } catch (const Error&) {  // no folder of the user's
  }
  return {"profile of this machine", false,
      "none: --cluster local needs one; foreshard-exec measure --out raw.json, then foreshard calibrate raw.json"};
}

std::vector<Finding> findings() {
  std::vector<Finding> list;
  list.push_back({"planner", true,
      fmt::format("foreshard {}, built with {}; {} cores", FORESHARD_VERSION, __VERSION__,
          std::thread::hardware_concurrency())});
  list.push_back({"models", true,
      fmt::format(
          "{} by name; Hugging Face config.json of {}", zoo_names().size(), fmt::join(hf_model_types(), ", "))});
  list.push_back({"runtimes", true, fmt::format("fsdp2@{}, native", newest_version(RuntimeKind::kFsdp2))});
  list.push_back({"machines", true, fmt::format("{}", fmt::join(machine_keys(), ", "))});
  list.push_back(
      {"profiles", true, fmt::format("{} (fitted to published measurements)", fmt::join(profile_keys(), ", "))});
  const bool engine = is_engine_built();
  list.push_back(own_profile());
  list.push_back({"engine", engine,
      engine ? "foreshard-exec"
             : "foreshard-exec is not built (./x build says why): no runs and no "
               "measurements; forecasts need none of it"});
  return list;
}

}

ExitCode run_doctor(const DoctorOptions& options) {
  const std::vector<Finding> list = findings();
  if (options.output.form == Form::kText) {
    std::string text;
    for (const Finding& finding : list)
      text += fmt::format("{:<4} {:<24} {}\n", finding.is_there ? "ok" : "--", finding.name, finding.what);
    write_text(text);
    return ExitCode::kOk;
  }
  Json capabilities = json_list(list, [&](const Finding& finding) -> Json {
    return {{"name", finding.name}, {"available", finding.is_there}, {"detail", finding.what}};
  });
  write_answer(document("foreshard.doctor/1", {{"capabilities", capabilities}}));
  return ExitCode::kOk;
}

}
