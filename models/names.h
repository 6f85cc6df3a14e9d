// Names of models as people write them: meta-llama/Llama-3.1-8B-Instruct, llama_3.1_8b.
//
// Two names are the same if their runs of letters and of digits are, in any letter case, whatever stands between them.
// The organisation before the last slash does not count, and of the other words those of models/zoo/names.yaml need not
// be there: they name another training of the same sizes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace foreshard {

struct PublishedName {
  std::string zoo;          // "llama-3.1-8b"
  bool is_variant = false;  // words were left out, or an alias was taken
};

// nullopt: no model of the zoo is meant.
std::optional<PublishedName> published_name(std::string_view text);

// Names of the zoo that hold the runs of `filter` one after the other: "qwen", "3.1", "llama-3".
std::vector<std::string> zoo_names_with(std::string_view filter);

// At most six names of the zoo that begin as the name does: "llama-3-9b" begins as llama-3-8b.
// `family` is what they share with it, as the first of them writes it; empty where none does.
struct SimilarNames {
  std::string family;
  std::vector<std::string> names;
};
SimilarNames similar_names(std::string_view text);

// "unknown model 'llama-3-9b'; llama-3 comes as llama-3-8b, llama-3-70b; ...": one line.
std::string unknown_model(std::string_view text);

}
