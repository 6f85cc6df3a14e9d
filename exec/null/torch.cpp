// What PyTorch's caching allocator says, at the border between its libraries: libc10_cuda calls
// c10::reportMemoryUsageToProfiler (libc10) for every block it hands out or takes back, with the block's size and what
// is allocated and reserved now; streams become current by c10::cuda::setCurrentCUDAStream. Both are passed on.
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "exec/null/abi.h"
#include "exec/null/device.h"
#include "exec/null/log.h"
#include "exec/null/races.h"
#include "exec/null/record.h"

namespace foreshard::null {
namespace {

// c10::cuda::CUDAStream is a c10::Stream: device (index and type, two bytes) and id. Ids are
// PyTorch's own; the null stream's is 0.
struct TorchStream {
  std::int64_t device, id;
};
struct TorchDevice {
  std::int8_t type, index;
};

// By device.
thread_local StreamHandle current_streams[16] = {};

// Given back since foreshard_null_freed() was asked; nothing before its first call.
std::mutex freed_mutex;
std::vector<std::uint64_t> freed;
bool is_freed_asked = false;

// Python loads PyTorch's libraries apart from the process' global names, so the library is asked.
template <typename Function>
Function function_of(const char* library, const char* name) {
  std::pair<const char*, std::string> found{library, ""};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto* const sought = static_cast<std::pair<const char*, std::string>*>(data);
        if (std::strstr(info->dlpi_name, sought->first) == nullptr) return 0;
        sought->second = info->dlpi_name;
        return 1;
      },
      &found);
  if (found.second.empty()) return nullptr;
  void* const handle = dlopen(found.second.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  return handle == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(handle, name));
}

}
}

using namespace foreshard::null;

API void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(
    void* pointer, std::int64_t size, std::size_t allocated, std::size_t reserved, TorchDevice device) {
  constexpr std::int8_t kCuda = 1;
  if (device.type == kCuda) {
    const Recording recording;
    if (checks_races() && size > 0) note_place();
    const int index = device.index >= 0 && device.index < 16 ? device.index : 0;
    if (size > 0) {
      add_block(pointer, static_cast<std::uint64_t>(size));
      hand_out(pointer, static_cast<std::uint64_t>(size), Holder::kAllocator);
    } else {
      remove_block(pointer);
      take_back(pointer);
      const std::lock_guard lock(freed_mutex);
      if (is_freed_asked) freed.push_back(reinterpret_cast<std::uint64_t>(pointer));
    }
    Line('M') << handle_id(current_streams[index]) << reinterpret_cast<std::uint64_t>(pointer) << size
              << static_cast<std::uint64_t>(allocated) << static_cast<std::uint64_t>(reserved);
  }
  static const auto next =
      function_of<void (*)(void*, std::int64_t, std::size_t, std::size_t, TorchDevice)>("/libc10.so", __func__);
  if (next != nullptr) next(pointer, size, allocated, reserved, device);
}

API void _ZN3c104cuda20setCurrentCUDAStreamENS0_10CUDAStreamE(TorchStream stream) {
  static const auto next = function_of<void (*)(TorchStream)>("/libc10_cuda.so", __func__);
  static const auto handle_of =
      function_of<StreamHandle (*)(const TorchStream*)>("/libc10_cuda.so", "_ZNK3c104cuda10CUDAStream6streamEv");
  if (next == nullptr || handle_of == nullptr)
    refuse("unanswered call c10::cuda::setCurrentCUDAStream: libc10_cuda.so is not where it was");
  next(stream);
  current_streams[current_device() % 16] = handle_of(&stream);
}

// Addresses of blocks, of which at most `most` are written; the others are said next time.
API std::size_t foreshard_null_freed(std::uint64_t* to, std::size_t most) {
  const std::lock_guard lock(freed_mutex);
  is_freed_asked = true;
  const std::size_t count = std::min(most, freed.size());
  std::copy_n(freed.begin(), count, to);
  freed.erase(freed.begin(), freed.begin() + static_cast<std::ptrdiff_t>(count));
  return count;
}
