// Configurations in the cache of the Hugging Face hub on this machine
// (huggingface_hub: docs/source/en/guides/manage-cache.md): nothing is fetched.
//
//     FOLDER/models--ORG--NAME/refs/main                  the commit
//     FOLDER/models--ORG--NAME/snapshots/COMMIT/config.json
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace foreshard {

// The config.json of `id` ("org/name"; letter case is free) in `folder`: of the commit that
// refs/main names, else of the only snapshot there is. nullopt: it is not there, or `id` is no id.
std::optional<std::filesystem::path> cached_config(const std::filesystem::path& folder,
                                                   std::string_view id);

}  // namespace foreshard
