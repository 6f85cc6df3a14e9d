// Asks every node of a config tree for every type, for the fuzz targets of the readers.
#pragma once

#include "sim/base/config.h"

namespace foreshard {

void swallow(auto read) {
  try {
    read();
  } catch (const ConfigError&) {
  }
}

inline void walk(const ConfigNode& node) {
  swallow([&] { node.as_string(); });
  swallow([&] { node.as_int(); });
  swallow([&] { node.as_double(); });
  swallow([&] { node.as_bool(); });
  swallow([&] { node.as_bytes(); });
  swallow([&] { node.as_bandwidth(); });
  swallow([&] { node.as_flop_rate(); });
  swallow([&] { node.as_time(); });
  swallow([&] { node.as_choice({"always", "never"}); });
  swallow([&] { node.allow_only({"mesh", "shard"}); });
  swallow([&] { node.at("mesh"); });
  if (node.is_mapping()) {
    for (const ConfigItem& item : node.items()) walk(item.value);
  }
  if (node.is_sequence()) {
    for (const ConfigNode& element : node.elements()) walk(element);
  }
}

}
