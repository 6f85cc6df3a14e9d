// Symbols of the plugin are resolved against what is loaded already: the program's libtorch_cpu and
// libc10, and the CUDA half, which is loaded globally before it. So the plugin is built without it.
// The CUDA half lies beside libtorch_cpu, or, where that is of the build's own unpacked wheel
// (cmake/torch_wheel.py, CPU half only), on LD_LIBRARY_PATH: that of a Python environment's torch,
// whose needs for libtorch_cpu and libc10 are met by those that are loaded.
#include "exec/device/load_accelerator.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "sim/base/error.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlugin = "libforeshard_cuda.so";

template <typename... Parts>
[[noreturn]] void refuse_gpu(fmt::format_string<Parts...> text, Parts&&... parts) {
  throw Error(
      ExitCode::kMissingCapability, "no GPU for the engine: {}", fmt::format(text, std::forward<Parts>(parts)...));
}

// What the dynamic linker says last.
std::string linker_error() {
  const char* text = dlerror();
  return text == nullptr ? "unknown reason" : text;
}

// The folder of the libtorch_cpu that this process runs.
fs::path torch_folder() {
  fs::path found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t /*size*/, void* data) {
        const fs::path library = info->dlpi_name == nullptr ? "" : info->dlpi_name;
        if (library.filename() != "libtorch_cpu.so") return 0;
        std::error_code ignored;
        const fs::path real = fs::canonical(library, ignored);
        *static_cast<fs::path*>(data) = (real.empty() ? library : real).parent_path();
        return 1;
      },
      &found);
  return found;
}

fs::path plugin_path() {
  if (const char* named = std::getenv("FORESHARD_CUDA_PLUGIN")) return named;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& folder : {program, program / "../lib", program / "../../lib"})
    if (fs::exists(folder / kPlugin, ignored)) return folder / kPlugin;
  return {};
}

void load_cuda_half() {
  const fs::path torch = torch_folder();
  std::error_code ignored;
  for (const char* name : {"libc10_cuda.so", "libtorch_cuda.so"}) {
    const fs::path beside = torch / name;
    const bool is_beside = !torch.empty() && fs::exists(beside, ignored);
    if (dlopen(is_beside ? beside.c_str() : name, RTLD_NOW | RTLD_GLOBAL) != nullptr) continue;
    const std::string why = linker_error();
    if (is_beside) refuse_gpu("{} could not be loaded: {}", beside.string(), why);
    refuse_gpu(
        "there is no {} in {} and none on the linker's path ({}); run with the torch 2.11 of a Python "
        "environment (LD_LIBRARY_PATH=.../site-packages/torch/lib)",
        name, torch.string(), why);
  }
}

}

DeviceChoice parse_device_choice(const std::string& text) {
  if (text == "auto") return DeviceChoice::kAutomatic;
  if (text == "cpu") return DeviceChoice::kCpu;
  if (text == "cuda") return DeviceChoice::kCuda;
  throw Error(ExitCode::kUsage, "--device {}: expected auto, cpu or cuda", text);
}

std::string why_no_gpu() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY);
  if (driver == nullptr) return "no NVIDIA driver (libcuda.so.1) on this machine";
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  int devices = 0;
  if (init == nullptr || count == nullptr) return "libcuda.so.1 is not NVIDIA's driver";
  if (const int code = init(0); code != 0) return fmt::format("cuInit failed with code {}", code);
  if (count(&devices) != 0 || devices == 0) return "the NVIDIA driver shows no GPU";
  return "";
}

std::unique_ptr<Accelerator> load_accelerator(int device) {
  if (const std::string reason = why_no_gpu(); !reason.empty()) refuse_gpu("{}", reason);
  const fs::path plugin = plugin_path();
  if (plugin.empty()) refuse_gpu("{} is not beside the program; it is built where a CUDA toolkit is", kPlugin);
  load_cuda_half();
  void* library = dlopen(plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) refuse_gpu("{} could not be loaded: {}", plugin.string(), linker_error());
  const auto make = reinterpret_cast<AcceleratorFactory>(dlsym(library, "foreshard_accelerator"));
  if (make == nullptr) refuse_gpu("{} is no plugin of the engine", plugin.string());
  char reason[1024] = {};
  Accelerator* accelerator = make(kAcceleratorVersion, device, reason, sizeof reason);
  if (accelerator == nullptr) refuse_gpu("{}", reason);
  return std::unique_ptr<Accelerator>(accelerator);
}

}
