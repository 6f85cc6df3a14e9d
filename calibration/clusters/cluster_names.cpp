// The text is taken apart at spaces; words that say what is counted are noted, fillers dropped. The count is looked for
// at the beginning, then at the end, and what is left must be a name: compared by its letters and digits alone.
#include "calibration/clusters/cluster_names.h"

#include <algorithm>
#include <array>

#include "calibration/published.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"
#include "sim/base/unit_strings.h"

namespace foreshard {

namespace {

constexpr std::size_t kLongestText = 200;

constexpr std::array<std::string_view, 9> kNodes = {
    "node", "nodes", "instance", "instances", "host", "hosts", "server", "servers", "vms"};
constexpr std::array<std::string_view, 3> kGpus = {"gpu", "gpus", "cards"};
constexpr std::array<std::string_view, 8> kFillers = {"of", "the", "x", "on", "amd", "instinct", "tesla", "nvidia"};

template <std::size_t N>
bool is_one_of(const std::array<std::string_view, N>& words, std::string_view word) {
  return contains(words, word);
}

// In lower case, with "x" for the signs of multiplication.
std::string unified(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (text.substr(i).starts_with("\xC3\x97")) {  // the sign itself
      result += 'x';
      ++i;
    } else if (c == '*') {
      result += 'x';
    } else if (c == '\t') {
      result += ' ';
    } else {
      result += lower(c);
    }
  }
  return result;
}

std::int64_t bounded(std::string_view digits, std::int64_t most) {
  std::int64_t value = 0;
  for (const char c : digits) {
    if (value > most) break;
    value = value * 10 + (c - '0');
  }
  return std::min(value, most + 1);
}

class Reader {
 public:
  Reader(std::span<const std::string> machines, std::int64_t most)
      : machines_(machines), instances_(list_instances()), most_(most) {}

  std::optional<ClusterName> read(std::string_view text) {
    std::string rest = take_words(unified(text));
    std::size_t digits = 0;
    while (digits < rest.size() && is_digit(rest[digits])) ++digits;
    if (digits > 0) {
      const std::string_view count = std::string_view(rest).substr(0, digits);
      std::string_view name = std::string_view(rest).substr(digits);
      while (name.starts_with(' ')) name.remove_prefix(1);
      // 8xh100, 8 h100; x100 would be a name that begins so.
      if (auto found = named(name, count)) return found;
      if (name.starts_with('x')) return named(name.substr(1), count);
      return std::nullopt;
    }
    if (auto found = named(rest, {})) return found;
    std::size_t begin = rest.size();
    while (begin > 0 && is_digit(rest[begin - 1])) --begin;
    const std::string_view count = std::string_view(rest).substr(begin);
    std::string_view name = std::string_view(rest).substr(0, begin);
    while (name.ends_with(' ')) name.remove_suffix(1);
    if (count.empty()) return std::nullopt;
    if (name.ends_with('x')) {
      if (auto found = named(name.substr(0, name.size() - 1), count)) return found;
    }
    return named(name, count);
  }

 private:
  // Notes and drops the words that are no part of the name.
  std::string take_words(const std::string& text) {
    std::string rest;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find(' ', begin), text.size());
      const std::string_view word = std::string_view(text).substr(begin, end - begin);
      begin = end + 1;
      nodes_ = nodes_ || is_one_of(kNodes, word);
      gpus_ = gpus_ || is_one_of(kGpus, word);
      if (word.empty() || is_one_of(kNodes, word) || is_one_of(kGpus, word) || is_one_of(kFillers, word)) continue;
      rest += (rest.empty() ? "" : " ") + std::string(word);
    }
    return rest;
  }

  std::optional<ClusterName> named(std::string_view name, std::string_view count) const {
    const std::string wanted = squeezed(name);
    if (wanted.empty()) return std::nullopt;
    ClusterName found;
    if (!count.empty()) found.count = bounded(count, most_);
    for (const std::string& word : machines_) {
      if (squeezed(word) != wanted) continue;
      found.name = word;
      found.counts_nodes = nodes_;
      return found;
    }
    for (const Instance& instance : instances_) {
      const bool matches =
          squeezed(instance.name) == wanted ||
          std::ranges::any_of(instance.also, [&](const std::string& word) { return squeezed(word) == wanted; });
      if (!matches) continue;
      found.name = instance.name;
      found.instance = instance;
      found.counts_nodes = !gpus_;
      return found;
    }
    return std::nullopt;
  }

  std::span<const std::string> machines_;
  std::vector<Instance> instances_;
  std::int64_t most_;
  bool nodes_ = false, gpus_ = false;
};

}

std::vector<Instance> list_instances() {
  const CsvTable table = calibration_table("machines/instances.csv");
  std::vector<Instance> instances;
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const auto count = [&](std::string_view column) { return static_cast<std::int64_t>(table.number(row, column)); };
    instances.push_back({.name = table.text(row, "name"),
        .also = parts_of(table.text(row, "also"), ";"),
        .machine = table.text(row, "machine"),
        .gpus = count("gpus"),
        .nics = count("nics"),
        .nic_rate = parse_bandwidth(table.text(row, "nic_rate")),
        .nic_name = table.text(row, "nic_name"),
        .source = table.text(row, "source")});
  }
  return instances;
}

std::optional<ClusterName> read_cluster_name(
    std::string_view text, std::span<const std::string> machines, std::int64_t most) {
  if (text.empty() || text.size() > kLongestText) return std::nullopt;
  return Reader(machines, most).read(text);
}

}
