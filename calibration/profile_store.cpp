// Reading goes along `like` to a whole profile and comes back with what each one replaces. Writing
// tries every whole profile, as it is and with its curves borrowed, and keeps the shortest.
#include "calibration/profile_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "calibration/fit/least_squares.h"
#include "calibration/profile.h"
#include "sim/base/embedded.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

constexpr std::string_view kProfileFolder = "calibration/profiles/";
constexpr std::string_view kStoreSchema = "foreshard.profiles/1";

struct Entry {
  Json json;
  std::string file;
};

std::vector<Entry> read_entries(const EmbeddedFile& file) {
  Json document = Json::parse(std::string_view(file.content));
  FORESHARD_CHECK(document.at("schema") == kStoreSchema, std::string(file.path));
  return list_of<Entry>(document.at("profiles"), [&](Json& each) {
    return Entry{std::move(each), std::string(file.path)};
  });
}

std::vector<const EmbeddedFile*> profile_files() {
  std::vector<const EmbeddedFile*> files;
  for (const EmbeddedFile& file : calibration_files())
    if (file.path.starts_with(kProfileFolder)) files.push_back(&file);
  return files;
}

const Entry* find_entry(std::string_view gpu) {
  const std::string quoted = fmt::format("\"{}\"", gpu);
  for (const EmbeddedFile* file : profile_files()) {
    if (!contains(std::string_view(file->content), quoted)) continue;
    for (const Entry& entry : made_once<read_entries>(*file))
      if (entry.json.at("gpu").get_ref<const std::string&>() == gpu) return &entry;
  }
  return nullptr;
}

Json patched(Json base, const Json& patch) {
  if (!patch.is_object()) return patch;
  if (base.is_array()) {
    for (const auto& [position, value] : patch.items()) {
      Json& element = base.at(std::stoul(position));
      element = patched(std::move(element), value);
    }
    return base;
  }
  if (!base.is_object()) base = Json::object();
  for (const auto& [key, value] : patch.items())
    if (value.is_null()) base.erase(key);
    else base[key] = patched(base.contains(key) ? std::move(base[key]) : Json(), value);
  return base;
}

// What patched() makes `target` of `base` with; nothing where they are equal.
std::optional<Json> difference(const Json& base, const Json& target) {
  Json out = Json::object();
  if (base.is_object() && target.is_object()) {
    for (const auto& [key, value] : target.items())
      if (!base.contains(key)) out[key] = value;
      else if (std::optional<Json> part = difference(base.at(key), value)) out[key] = std::move(*part);
    for (const auto& [key, value] : base.items())
      if (!target.contains(key)) out[key] = nullptr;
  } else if (base.is_array() && target.is_array() && base.size() == target.size()) {
    for (std::size_t i = 0; i < base.size(); ++i)
      if (std::optional<Json> part = difference(base[i], target[i])) out[std::to_string(i)] = std::move(*part);
  } else if (base != target) {
    return target;
  }
  if (out.empty()) return std::nullopt;
  return out;
}

double gemm_efficiency(const Json& profile) { return profile.at("gemm_bf16").at("efficiency").get<double>(); }

Json borrowed(const Json& profile, const std::string& chip, double efficiency) {
  Calibration calibration = parse_calibration(profile.dump(), chip);
  borrow_curves({chip, efficiency / gemm_efficiency(profile)}, calibration);
  return to_json(calibration);
}

Json whole_profile(const Entry& entry) {
  Json own = entry.json;
  if (!own.contains("like")) return own;
  const Entry* like = find_entry(own.at("like").get<std::string>());
  FORESHARD_CHECK(like != nullptr, entry.file + ": like names no profile");
  Json base = whole_profile(*like);
  std::optional<std::string> chip;
  if (own.contains("borrows")) chip = own.at("borrows").get<std::string>();
  own.erase("like");
  own.erase("borrows");
  if (chip) base = borrowed(base, *chip, gemm_efficiency(patched(base, own)));
  return patched(std::move(base), own);
}

}

void borrow_curves(const Borrowing& borrowing, Calibration& calibration) {
  constexpr double kMost = 0.95;
  const auto borrow = [&](auto& curve) {
    curve.evidence = weaker(curve.evidence, borrowing.at_best);
    curve.source = fmt::format("no rows of its own; as {}: {}", borrowing.chip, curve.source);
  };
  for (AttentionCurve& curve : calibration.attention) {
    curve.efficiency = rounded(std::min(kMost, curve.efficiency * borrowing.gemm_share));
    if (curve.full_efficiency > 0)
      curve.full_efficiency = rounded(std::min(kMost, curve.full_efficiency * borrowing.gemm_share));
    borrow(curve);
  }
  for (MemoryCurve& curve : calibration.memory) borrow(curve);
}

std::vector<std::string> profile_keys() {
  std::vector<std::string> keys;
  for (const EmbeddedFile* file : profile_files())
    for (const Entry& entry : made_once<read_entries>(*file)) keys.push_back(entry.json.at("gpu").get<std::string>());
  std::ranges::sort(keys);
  return keys;
}

Calibration load_profile(std::string_view gpu_key) {
  // Made once: a recommendation asks for each some dozens of times.
  static std::mutex mutex;
  static std::map<std::string, Calibration, std::less<>> made;
  const std::lock_guard lock(mutex);
  const auto known = made.find(gpu_key);
  if (known != made.end()) return known->second;
  const Entry* entry = find_entry(gpu_key);
  if (entry == nullptr) {
    throw Error(ExitCode::kMissingCapability,
        "no calibration profile for GPU '{}'; there are profiles for {}; give one with --profile FILE", gpu_key,
        fmt::join(profile_keys(), ", "));
  }
  return made.emplace(gpu_key, parse_calibration(whole_profile(*entry).dump(), entry->file)).first->second;
}

Json profile_store(const std::vector<WholeProfile>& whole, const std::vector<Calibration>& others) {
  Json profiles = json_list(whole, [&](const WholeProfile& each) { return to_json(*each.calibration); });
  for (const Calibration& calibration : others) {
    const Json target = to_json(calibration);
    Json shortest;
    for (const WholeProfile& each : whole) {
      const Json plain = to_json(*each.calibration);
      for (const bool borrows : {true, false}) {
        if (borrows && each.chip.empty()) continue;
        Json entry = {{"gpu", calibration.gpu}, {"like", each.calibration->gpu}};
        if (borrows) entry["borrows"] = each.chip;
        const Json base = borrows ? borrowed(plain, each.chip, gemm_efficiency(target)) : plain;
        if (std::optional<Json> part = difference(base, target)) entry.update(*part);
        if (shortest.is_null() || entry.dump().size() < shortest.dump().size()) shortest = entry;
      }
    }
    profiles.push_back(std::move(shortest));
  }
  return {{"schema", kStoreSchema}, {"profiles", std::move(profiles)}};
}

}
