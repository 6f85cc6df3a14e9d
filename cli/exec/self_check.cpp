// foreshard-exec self-check: what of the engine works on this machine's GPU.
#include "exec/checks/self_check.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/exec/exec_options.h"
#include "cli/exec/ranks.h"
#include "cli/output.h"
#include "exec/device/host_accelerator.h"
#include "exec/device/load_accelerator.h"
#include "exec/engine/engine_check.h"

namespace foreshard {

ExitCode run_self_check(const SelfCheckOptions& options) {
  set_threads(std::nullopt);
  Json rows = Json::array();
  int failed = 0;
  Json device = nullptr;
  Json versions;
  for (const auto& [name, version] : engine_versions()) versions[name] = version;
  const std::string created = utc_now();
  std::string running;  // the check that is
  const auto answer = [&] {
    return Json{{"schema", "foreshard.self_check/1"}, {"created", created}, {"device", device}, {"versions", versions},
        {"command", options.command}, {"failed", failed}, {"running", running}, {"checks", rows}};
  };
  // Written before and after every check: one may end the process.
  const auto add = [&](const CheckResult& r) {
    running = r.status == CheckStatus::kRunning ? r.name : "";
    if (r.status == CheckStatus::kRunning) {
      if (!options.out.empty()) write_file(options.out, to_text(answer()));
      return;
    }
    failed += r.status == CheckStatus::kFailed ? 1 : 0;
    rows.push_back({{"check", r.name}, {"status", to_string(r.status)}, {"seconds", r.seconds}, {"detail", r.detail}});
    write_error(fmt::format("{:<8}{:<28}{}\n", to_string(r.status), r.name, r.detail));
    if (!options.out.empty()) write_file(options.out, to_text(answer()));
  };
  try {
    const auto accelerator = options.device == "standin" ? host_accelerator() : load_accelerator(options.index);
    device = accelerator->info().name;
    add({"load", CheckStatus::kOk,
        options.device == "standin" ? "the stand-in" : "driver, LibTorch's CUDA half, plugin", 0});
    self_check(*accelerator, options.skip, add);
    engine_check([&] { return options.device == "standin" ? host_accelerator() : load_accelerator(options.index); },
        options.skip, add);
  } catch (const DeviceLost& lost) {  // told as one that ended the process
    running = lost.what();
    if (!options.out.empty()) write_file(options.out, to_text(answer()));
    note(fmt::format("the device works no more after {}; --skip it to see the others", running));
  } catch (const std::exception& error) {
    add({"load", CheckStatus::kFailed, error.what(), 0});
  }
  if (options.output.form == Form::kJson) write_answer(to_text(answer()));
  if (device.is_null()) return ExitCode::kMissingCapability;
  return failed == 0 ? ExitCode::kOk : ExitCode::kOutsideTolerance;
}

}
