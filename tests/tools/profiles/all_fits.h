// What published tables give, fitted once a process: that takes seconds.
// One process for the suites Fit FitAmd Profiles
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tools/profiles/published_fit.h"

namespace foreshard {

inline const std::vector<PublishedFit>& fits() {
  static const std::vector<PublishedFit> all = fit_all_published();
  return all;
}

inline const PublishedFit& fit_of(std::string_view gpu) {
  for (const PublishedFit& fit : fits()) {
    if (fit.calibration.gpu == gpu) return fit;
  }
  throw std::runtime_error(std::string(gpu));
}

}
