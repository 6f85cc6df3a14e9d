#include "sim/base/json.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/base/error.h"

namespace foreshard {
namespace {

// nlohmann would print NaN and infinity as null, which a reader cannot tell from "no value".
void refuse_non_finite(const Json& value, const std::string& path) {
  if (value.is_number_float()) {
    FORESHARD_CHECK(std::isfinite(value.get<double>()),
                    "the output value " + path + " is not a finite number");
  }
  if (!value.is_structured()) return;
  for (const auto& [key, child] : value.items()) {
    if (child.is_structured() || child.is_number_float()) {
      refuse_non_finite(child, path.empty() ? key : fmt::format("{}.{}", path, key));
    }
  }
}

}  // namespace

std::string to_text(const Json& value) {
  refuse_non_finite(value, "");
  return value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace foreshard
