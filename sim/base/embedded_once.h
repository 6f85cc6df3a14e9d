#pragma once

#include <map>
#include <mutex>
#include <string_view>

#include "sim/base/embedded.h"

namespace foreshard {

// make(file), made when it is first asked for, from any thread; it lives as long as the program.
template <auto make>
const auto& made_once(const EmbeddedFile& file) {
  static std::mutex mutex;
  static std::map<std::string_view, decltype(make(file))> made;
  const std::scoped_lock lock(mutex);
  auto found = made.find(file.path);
  if (found == made.end()) found = made.emplace(file.path, make(file)).first;
  return found->second;
}

}  // namespace foreshard
