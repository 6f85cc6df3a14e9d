#include "exec/checks/self_check.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "exec/checks/checks.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"

namespace foreshard {

Checks::Checks(Accelerator& device) : device_(device), on_(device.device()) {
  main_ = device.open_lane(false);
  other_ = device.open_lane(true);
  device.enter(main_);
}

std::vector<Checks::Named> Checks::all() {
  return {{"identity", &Checks::identity}, {"memory", &Checks::memory},
      {"out_of_memory_message", &Checks::out_of_memory}, {"events", &Checks::events}, {"lanes_overlap", &Checks::lanes},
      {"lane_waits", &Checks::waits}, {"gemm_fp32", &Checks::gemm_fp32}, {"gemm_bf16", &Checks::gemm_bf16},
      {"gemm_rate", &Checks::gemm_rate}, {"attention_flash", &Checks::flash}, {"attention_cudnn", &Checks::cudnn},
      {"attention_efficient", &Checks::efficient}, {"rms_norm", &Checks::rms_norm},
      {"wide_rms_norm", &Checks::wide_rms_norm}, {"layer_norm", &Checks::layer_norm}, {"gelu", &Checks::gelu},
      {"bias", &Checks::bias}, {"rotate", &Checks::rotate}, {"silu_multiply", &Checks::silu},
      {"add_rows", &Checks::add_rows}, {"cross_entropy", &Checks::cross_entropy}, {"adamw", &Checks::adamw},
      {"swapped_storage", &Checks::swapped_storage}, {"paced_bytes", &Checks::paced_bytes},
      {"paced_duration", &Checks::paced_duration}, {"paced_beside_gemm", &Checks::paced_beside_gemm},
      {"nccl_one_rank", &Checks::nccl}, {"host_cost", &Checks::host_cost}, {"allocator", &Checks::allocator},
      {"clocks", &Checks::clocks}, {"graph_capture", &Checks::graph_capture}};
}

void Checks::expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

std::string Checks::near(const char* what, const at::Tensor& got, const at::Tensor& wanted, double tolerance) {
  const double error = largest_error(got, wanted);
  std::string text = fmt::format("{} {:.1e}", what, error);
  expect(error <= tolerance, fmt::format("{}: more than {:.0e}", text, tolerance));
  return text;
}

void Checks::needs_gpu() const {
  if (!device_.is_gpu()) throw CheckSkipped("the stand-in has none");
}

const char* to_string(CheckStatus status) { return word_at(status, {"ok", "failed", "skipped", "running"}); }

double largest_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.detach().cpu().to(at::kDouble).contiguous();
  const at::Tensor y = b.detach().cpu().to(at::kDouble).contiguous();
  const double scale = std::max(1e-30, y.abs().max().item<double>());
  const double error = (x - y).abs().max().item<double>() / scale;
  return std::isfinite(error) ? error : INFINITY;
}

CheckStatus run_check(const std::string& name, const std::vector<std::string>& skipped,
    const std::function<std::string()>& work, const CheckListener& told) {
  if (contains(skipped, name)) {
    told({name, CheckStatus::kSkipped, "left out by --skip", 0});
    return CheckStatus::kSkipped;
  }
  told({name, CheckStatus::kRunning, "", 0});
  CheckResult result{name, CheckStatus::kOk, "", 0};
  const auto begin = std::chrono::steady_clock::now();
  at::manual_seed(0);  // the same draws whatever was skipped: a tolerance is met always or never
  try {
    result.detail = work();
  } catch (const CheckSkipped& reason) {
    result.status = CheckStatus::kSkipped;
    result.detail = reason.what();
  } catch (const c10::Error& error) {
    result.status = CheckStatus::kFailed;
    result.detail = error.what_without_backtrace();
  } catch (const std::exception& error) {
    result.status = CheckStatus::kFailed;
    result.detail = error.what();
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  told(result);
  return result.status;
}

void self_check(Accelerator& accelerator, const std::vector<std::string>& skipped, const CheckListener& told) {
  Checks checks(accelerator);
  for (const Checks::Named& named : Checks::all()) {
    const auto work = [&] {
      std::string seen = (checks.*named.check)();
      accelerator.synchronize();
      return seen;
    };
    if (run_check(named.name, skipped, work, told) != CheckStatus::kFailed) continue;
    try {
      accelerator.enter(checks.lane());
      accelerator.synchronize();
    } catch (const std::exception&) {
      throw DeviceLost(named.name);
    }
  }
}

}
