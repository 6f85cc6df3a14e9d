// Words of the user in messages: what a misspelt one was meant to be, and how to show one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace foreshard {

// The candidate with the fewest insertions, deletions, substitutions and swaps of neighbours
// (Damerau-Levenshtein, optimal string alignment; letter case is free), the first of equals; ""
// when even that needs more than a third of the longer word's letters.
std::string nearest_spelling(std::string_view word, std::span<const std::string> candidates);

// The text in single quotes, fit for a one-line message: control characters become
// escapes, and what exceeds 60 bytes is cut at a character and replaced by "...".
std::string quote(std::string_view text);

}
