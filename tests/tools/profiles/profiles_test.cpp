// The shipped profiles are what the fits give, to the last bit, and nothing else.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "calibration/machines.h"
#include "calibration/profile.h"
#include "calibration/profile_store.h"
#include "tests/tools/profiles/all_fits.h"

namespace foreshard {
namespace {

void expect_same(const Json& shipped, const Json& refitted, const std::string& path) {
  ASSERT_EQ(shipped.type(), refitted.type()) << path;
  if (shipped.is_object()) {
    ASSERT_EQ(shipped.size(), refitted.size()) << path;
    for (const auto& [key, value] : shipped.items()) {
      ASSERT_TRUE(refitted.contains(key)) << path << '.' << key;
      expect_same(value, refitted.at(key), fmt::format("{}.{}", path, key));
    }
  } else if (shipped.is_array()) {
    ASSERT_EQ(shipped.size(), refitted.size()) << path;
    for (std::size_t i = 0; i < shipped.size(); ++i) {
      expect_same(shipped[i], refitted[i], fmt::format("{}[{}]", path, i));
    }
  } else {
    EXPECT_EQ(shipped, refitted) << path;
  }
}

TEST(Profiles, AreWhatTheFitsGive) {
  EXPECT_EQ(fits().size(), list_machines().size());
  for (const PublishedFit& fit : fits()) {
    expect_same(to_json(load_profile(fit.calibration.gpu)), to_json(fit.calibration), fit.calibration.gpu);
  }
}

// What the one command writes is what is there.
TEST(Profiles, FilesAreWhatTheToolWrites) {
  for (const auto& [name, text] : profile_files(fits())) {
    std::ifstream file(std::string(FORESHARD_SOURCE_DIR) + "/calibration/profiles/" + name);
    const std::string there{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(there == text, true) << name << " is stale: ./x profiles";
  }
}

TEST(Profiles, ReportNamesEveryGpu) {
  const std::string report = calibration_report(fits());
  for (const Machine& machine : list_machines()) {
    EXPECT_NE(report.find("## " + machine.key), std::string::npos) << machine.key;
  }
}

}
}
