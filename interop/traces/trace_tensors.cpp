// `Input Dims` has a list of sizes for every argument, empty for what is no tensor, and a list of
// lists for a list of tensors; `Input type` has a C++ type, "TensorList" or "Scalar" for each.
#include "interop/traces/trace_tensors.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace foreshard {
namespace {

using ShapeJson = nlohmann::json;

// caffe2::TypeMeta's names against c10::ScalarType's.
std::string scalar_type(const std::string& type) {
  static constexpr std::pair<std::string_view, const char*> kNames[] = {
      {"float", "Float"},    {"double", "Double"},      {"c10::BFloat16", "BFloat16"},
      {"c10::Half", "Half"}, {"unsigned char", "Byte"}, {"long int", "Long"}};
  for (const auto& [name, scalar] : kNames) {
    if (type == name) return scalar;
  }
  return type;
}

bool is_shape(const ShapeJson& dims) {
  for (const ShapeJson& dim : dims) {
    if (!dim.is_number_integer()) return false;
  }
  return true;
}

}  // namespace

std::int64_t TracedTensor::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

std::vector<TracedTensor> tensors_of(const KinetoTrace& trace, const TraceEvent& event) {
  std::vector<TracedTensor> tensors;
  const ShapeJson dims = ShapeJson::parse(trace.names[event.shapes], nullptr, false);
  const ShapeJson types = ShapeJson::parse(trace.names[event.types], nullptr, false);
  if (!dims.is_array()) return tensors;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const bool typed = types.is_array() && i < types.size() && types[i].is_string();
    const std::string type = typed ? types[i].get<std::string>() : "";
    if (!dims[i].is_array() || dims[i].empty()) continue;
    if (is_shape(dims[i])) {
      tensors.push_back({scalar_type(type), dims[i].get<TensorShape>()});
      continue;
    }
    for (const ShapeJson& one : dims[i]) {
      if (one.is_array() && is_shape(one)) tensors.push_back({"", one.get<TensorShape>()});
    }
  }
  return tensors;
}

}  // namespace foreshard
