#include "exec/run/kineto.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <fstream>
#include <set>

#include "sim/base/error.h"

namespace foreshard {

namespace profiler = torch::autograd::profiler;
namespace parts = torch::profiler::impl;

KinetoRecorder::KinetoRecorder(bool gpu) {
  const parts::ProfilerConfig config(parts::ProfilerState::KINETO);
  std::set<parts::ActivityType> activities = {parts::ActivityType::CPU};
  if (gpu) activities.insert(parts::ActivityType::CUDA);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities,
                           {at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE});
}

KinetoRecorder::~KinetoRecorder() {
  if (running_) profiler::disableProfiler();
}

void KinetoRecorder::save(const std::filesystem::path& file) {
  running_ = false;
  const auto result = profiler::disableProfiler();
  if (!std::ofstream(file)) {
    throw Error(ExitCode::kInvalidInput, fmt::format("{} cannot be written", file.string()));
  }
  result->save(file.string());
}

}  // namespace foreshard
