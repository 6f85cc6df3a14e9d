// null_engine right|wrong: every planted fault (tests/exec/device/planted_faults.h) on the engine's
// CUDA half, each in a process of its own that begins with its name on standard error; `right` does
// the same without the fault. On the null GPU (foreshard-null --check), whose race detector and
// whose CUDA say what is wrong; this program looks at nothing.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <string_view>

#include "exec/device/load_accelerator.h"
#include "tests/exec/device/planted_faults.h"
#include "tests/exec/engine/engine_runs.h"

namespace {

using namespace foreshard;

// What the work throws is written, and is no end of the program.
void apart(const std::string& name, const std::function<void()>& work) {
  std::fprintf(stderr, "planted: %s\n", name.c_str());
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      work();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "thrown: %s\n", error.what());
    }
    std::fflush(stderr);
    ::_exit(0);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) < 0 || !WIFEXITED(status)) std::fprintf(stderr, "died\n");
}

}

int main(int count, char** words) {
  const bool is_right = count > 1 && std::string_view(words[1]) == "right";
  try {
    load_accelerator(0);  // the libraries; what is loaded stays
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 6;
  }
  const ModelSpec model = small_model("llama");
  for (const MissingWait& c : missing_waits(model)) {
    apart("wait: " + c.name,
        [&] { train_alone(*load_accelerator(0), c.plan, is_right ? c.whole : c.faulty, model, {2}); });
  }
  for (const EarlyFree& f : early_frees()) {
    apart(std::string("free: ") + f.name, [&] { f.run(Lanes(load_accelerator(0)), is_right); });
  }
  for (const ForbiddenCall& c : forbidden_calls()) {
    apart(std::string("capture: ") + c.name, [&] {
      const Lanes lanes(load_accelerator(0));
      const at::Tensor x = lanes.tensor();
      capture_with(lanes, x, is_right ? ForbiddenCall{"", [](const Lanes&, const at::Tensor&) {}} : c);
    });
  }
  return 0;
}
