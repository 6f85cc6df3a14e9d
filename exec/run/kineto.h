// LibTorch's own profiler over a few steps: every operator, and on a GPU every kernel and copy, in
// ranges that carry the names of the plan's events. What torch.profiler writes, for Perfetto.
#pragma once

#include <filesystem>

namespace foreshard {

class KinetoRecorder {
 public:
  // Begins at once. `gpu`: the device's activities too. One at a time in a process.
  explicit KinetoRecorder(bool gpu);
  ~KinetoRecorder();  // drops what was not saved
  KinetoRecorder(const KinetoRecorder&) = delete;
  KinetoRecorder& operator=(const KinetoRecorder&) = delete;
  // Ends it. Throws Error(kInvalidInput) where the file cannot be written.
  void save(const std::filesystem::path& file);

 private:
  bool running_ = true;
};

}  // namespace foreshard
