// TOML as the tree that YAML and JSON become (sim/base/config.h), with places and the same limits.
#pragma once

#include <filesystem>
#include <string_view>

#include "sim/base/config.h"

namespace foreshard {

// Throws ConfigError.
ConfigNode parse_toml(std::string_view text, std::string_view file_name);
ConfigNode read_toml_file(const std::filesystem::path& path);

}
