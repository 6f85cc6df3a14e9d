// A word of a pattern is found in a word of the text where they are equal, or where the text's word
// goes on with (or begins with) the other kind of character: "sxm" in "sxm4", "4090" in "rtx4090",
// but not "a10" in "a100" nor "l4" in "l40". Among patterns that match, more letters win, then the
// earlier machine of the catalogue, whose plain alias ("h100") is the usual card.
#include "calibration/gpu_names.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/base/letters.h"
#include "sim/spec/gpu_generation.h"

namespace foreshard {
namespace {

std::string without_brackets(std::string_view text) {
  std::string out;
  int depth = 0;
  for (const char c : text) {
    if (c == '(' || c == '[') ++depth;
    if (depth == 0) out.push_back(c);
    if ((c == ')' || c == ']') && depth > 0) --depth;
  }
  return out;
}

bool is_found(const std::string& part, const std::string& word) {
  const std::size_t at = word.find(part);
  if (at == std::string::npos) return false;
  const std::size_t end = at + part.size();
  const bool begins = at == 0 || is_letter(word[at - 1]) != is_letter(part.front());
  const bool ends = end == word.size() || is_letter(word[end]) != is_letter(part.back());
  return begins && ends;
}

// Letters and digits of the pattern if all its words are in the text, else 0.
std::size_t score(const std::vector<std::string>& pattern, const std::vector<std::string>& text) {
  std::size_t sum = 0;
  for (const std::string& part : pattern) {
    const bool found = std::ranges::any_of(text, [&](const std::string& word) { return is_found(part, word); });
    if (!found) return 0;
    sum += part.size();
  }
  return sum;
}

const Machine* best_match(std::string_view text, const std::vector<Machine>& machines) {
  const std::vector<std::string> words = words_of(text);
  const Machine* best = nullptr;
  std::size_t best_score = 0;
  const auto consider = [&](const Machine& machine, std::string_view pattern) {
    const std::size_t found = score(words_of(pattern), words);
    if (found > best_score) {
      best = &machine;
      best_score = found;
    }
  };
  for (const Machine& machine : machines) {
    consider(machine, machine.key);
    for (const std::string& alias : machine.aliases) consider(machine, alias);
  }
  return best;
}

}

std::vector<std::string> words_of(std::string_view text) {
  static constexpr std::array<std::string_view, 9> kVendors = {
      "nvidia", "amd", "intel", "tesla", "geforce", "instinct", "quadro", "radeon", "generation"};
  std::vector<std::string> words(1);
  for (const char c : lower(text))
    if (is_digit(c) || is_letter(c)) words.back().push_back(c);
    else if (!words.back().empty()) words.emplace_back();
  if (words.back().empty()) words.pop_back();
  std::vector<std::string> out;
  for (std::string& word : words) {
    const bool is_unit = word == "g" || word == "gb" || word == "gib";
    if (is_unit && !out.empty() && std::ranges::all_of(out.back(), is_digit)) {
      out.back() += "gb";
      continue;
    }
    for (const std::string_view vendor : kVendors)
      if (word.starts_with(vendor)) word.erase(0, vendor.size());
    const std::size_t digits = word.find_first_not_of("0123456789");
    if (digits != std::string::npos && digits > 0) {
      const std::string unit = word.substr(digits);
      if (unit == "g" || unit == "gib") word = word.substr(0, digits) + "gb";
    }
    if (!word.empty()) out.push_back(std::move(word));
  }
  return out;
}

const Machine* match_gpu(std::string_view text, const std::vector<Machine>& machines) {
  const Machine* found = best_match(without_brackets(text), machines);
  return found != nullptr ? found : best_match(text, machines);
}

bool is_amd(const Gpu& gpu) { return generation_of(gpu).is_amd(); }

double distance(const Gpu& a, const Gpu& b) {
  if (a.key == b.key) return 0;
  const auto balance = [](const Gpu& gpu) { return std::log2(gpu.peak_bf16.value() / gpu.memory_bandwidth.value()); };
  const double size = std::log2(a.peak_bf16.value() / b.peak_bf16.value());
  const bool both_known = a.power_limit > 0 && b.power_limit > 0;
  const double power = both_known ? std::log2(a.power_limit / b.power_limit) - size : 0;
  return 0.1 + std::abs(generation_of(a).place - generation_of(b).place) +
         0.25 * (std::abs(balance(a) - balance(b)) + std::abs(size) + std::abs(power));
}

std::string protocol_of(std::string_view source, const std::vector<Machine>& machines) {
  std::string protocol;
  std::string part;
  const auto finish = [&] {
    const bool is_version = !part.empty() && is_digit(part.front());
    if (!part.empty() && !is_version && best_match(part, machines) == nullptr)
      protocol += (protocol.empty() ? "" : " ") + part;
    part.clear();
  };
  for (const char c : source)
    if (c == ':' || c == '/' || c == ' ') finish();
    else part.push_back(c);
  finish();
  return protocol;
}

}
