// How many elements a captured tensor has, as what they grow with (keys of a model.yaml's tensors).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "interop/capture/capture_import.h"
#include "sim/base/json.h"

namespace foreshard {

// ATen's operation as a model.yaml calls it: "linear" of "addmm".
std::string word_of(std::string_view aten);

class ModuleSizes {
 public:
  explicit ModuleSizes(const std::vector<CapturedModules>& captures);

  // Element counts of one tensor in all captures: a model.yaml's tensor.

  // Of a tensor by its extents, where these tell what grows: batch and sequence may do so alike.
  // Null where they do not.
  Json shaped(const std::vector<std::vector<std::int64_t>>& shapes, const std::vector<std::int64_t>& elements,
      const std::string& dtype) const;
  // Null where nothing fits. `width`: of the rows that they are, where that is known.
  Json tensor(const std::vector<std::int64_t>& elements, const std::string& dtype, std::int64_t width = 1) const;
  // All captures have it: what grows with its square cannot be told from what grows with it. 0: they differ.
  std::int64_t fixed_sequence() const;

 private:
  const std::vector<CapturedModules>& captures_;
  std::int64_t largest_ = 0;  // elements of the first one's
};

}
