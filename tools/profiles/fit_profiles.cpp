// fit_profiles FOLDER [PAGE]: writes the shipped profiles into FOLDER, and what they are made of to PAGE.
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "tools/profiles/published_fit.h"

int main(int count, char** words) {
  if (count < 2 || count > 3) {
    std::cerr << "usage: fit_profiles FOLDER [PAGE]\n";
    return 2;
  }
  try {
    const std::vector<foreshard::PublishedFit> fits = foreshard::fit_all_published();
    for (const auto& [name, text] : foreshard::profile_files(fits)) {
      std::ofstream file(std::filesystem::path(words[1]) / name);
      file << text;
      if (!file.flush()) throw std::runtime_error(std::string(words[1]) + ": cannot be written");
    }
    if (count == 3) std::ofstream(words[2]) << foreshard::calibration_report(fits);
  } catch (const std::exception& error) {
    std::cerr << "fit_profiles: " << error.what() << '\n';
    return 1;
  }
}
