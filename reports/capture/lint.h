// What a captured step shows of the program that an engineer would change, with file and line.
//
// Places are known of captures made with foreshard-null --check; without it findings that do not need one remain.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "sim/graph/capture/capture.h"

namespace foreshard {

struct LintFinding {
  std::string rule;        // compiles, host_wait, fp32_product, unfused_attention, large_mask, kept_tensor,
                           // collective_outside_units, unequal_shards
  std::string place;       // "train.py:12 train"; empty: not known
  std::int64_t count = 0;  // in the steady step
  std::int64_t bytes = 0;  // 0: not of memory
  std::string what, fix;
};

// By rule in the order above, then by bytes and count.
std::vector<LintFinding> lint_capture(const Capture& capture);

// The innermost frame of `frames` ("file:line function < ...") that is not a library's, else the
// innermost; empty without frames.
std::string own_place(std::string_view frames);

Json lint_json(const std::vector<LintFinding>& findings);
std::string lint_text(const std::vector<LintFinding>& findings);

}
