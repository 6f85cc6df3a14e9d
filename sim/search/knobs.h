// Keys of a plan beyond the grid's own axes, and the values that a search tries of each.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/search/search.h"

namespace foreshard {

// Keys whose values cost nothing to change and keep the numbers: buffers, buckets, the dimension
// that experts are sharded along. Every search tries them.
std::vector<std::string> free_knob_keys();
// Further keys that --deep varies, and those that change what is computed and are varied on request.
std::vector<std::string> knob_keys();
std::vector<std::string> requested_knob_keys();

// The axis of one of these keys, its first value that of `base`.
std::optional<KnobAxis> knob_axis(std::string_view key, const Plan& base);

// `space` with every free knob of its runtime and model that is not in `fixed`, and, unless that is
// fixed, with the caching allocator's expandable segments after the base's setting.
SearchSpace with_free_knobs(SearchSpace space, const ModelSpec& model, const std::vector<std::string>& fixed);

}
