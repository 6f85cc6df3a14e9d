// What an hour of a GPU costs: the catalogue's dated prices with the range of the market, or the user's list.
//
// A list is a CSV with a header: machine,usd_per_gpu_hour and, where known, low,high,date,source;
// `machine` is a catalogue key or alias (h100), the price is in USD for one GPU and hour, low and
// high bound what it may turn out to be.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "sim/spec/calibration.h"
#include "sim/spec/cluster.h"

namespace foreshard {

struct Price {
  double usd_per_hour = 0;  // of one GPU
  double low = 0;
  double high = 0;
  Evidence evidence = Evidence::kAssumed;  // kDatasheet: a vendor's or the user's list
  std::string date;                        // "2026-06"; "": not stated
  std::string source;
};

using PriceList = std::map<std::string, Price, std::less<>>;  // by catalogue key

// Throws ConfigError with the line where a price is missing, no number or not above zero, where low
// and high are not around it, where a machine is unknown or there twice, where a column is missing
// or unknown; Error(kInvalidInput) where the file cannot be read.
PriceList read_prices(const std::string& path);
// The same for a text; `file_name` is what errors call it.
PriceList parse_prices(std::string_view csv, const std::string& file_name);

// What the cluster itself says (gpu.price_per_hour); where that is the catalogue's figure, with the range of the market
// at its date (calibration/published/price_ranges.csv). usd_per_hour 0: nobody says.
Price listed_price(const Cluster& cluster);

}
