// The shipped profiles: calibration/profiles/*.json, built into the program, what tools/profiles/
// fits to the published tables and nothing else; a test refits and compares.
//
// A file (`foreshard.profiles/1`) has `profiles`, each a whole foreshard.profile/1 of a GPU or what
// it has in place of another one's:
//
//     {"gpu": "h20", "like": "h100-sxm", "borrows": "h100", "gemm_bf16": {...}, ...}
//
// `like` names the profile it begins as; with `borrows` (the chip's name in sources) its curves are
// borrowed first, as borrow_curves() says. The other keys replace what is there as a JSON Merge
// Patch does (RFC 7386); of a list, {"3": ...} replaces the element at 3.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "sim/spec/calibration.h"

namespace foreshard {

// The shipped profile of a catalogue key ("h100-sxm"). Throws Error(kMissingCapability) with the
// list where there is none.
Calibration load_profile(std::string_view gpu_key);
std::vector<std::string> profile_keys();  // of all that are shipped, in order

// A card without rows of its own takes the shares of peaks and rates that a measured chip reaches.
struct Borrowing {
  std::string_view chip;  // "h100"
  double gemm_share = 1;  // of its peak in products over the chip's: so in attention too
  Evidence at_best = Evidence::kExtrapolated;
};
// Attention and memory-bound work of `calibration`, which are the chip's.
void borrow_curves(const Borrowing& borrowing, Calibration& calibration);

// `profiles` as the text of a file: the first whole, the others like the one of `whole` that leaves least to say.
struct WholeProfile {
  const Calibration* calibration = nullptr;
  std::string chip;  // as sources name it; empty: its curves are not borrowed
};
Json profile_store(const std::vector<WholeProfile>& whole, const std::vector<Calibration>& others);

}
