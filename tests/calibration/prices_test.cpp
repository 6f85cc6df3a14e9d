// Price lists: what the catalogue says, what a user's list may say, and what is refused.
#include "calibration/prices.h"

#include <gtest/gtest.h>

#include <string>

#include "calibration/csv_table.h"
#include "calibration/machines.h"
#include "sim/base/error.h"
#include "sim/base/text_file.h"

namespace foreshard {
namespace {

TEST(Prices, EveryMachineHasOneWithARangeAndADate) {
  for (const Machine& machine : list_machines()) {
    SCOPED_TRACE(machine.key);
    const Price price = listed_price(machine.node);
    EXPECT_GT(price.usd_per_hour, 0);
    EXPECT_LT(price.low, price.usd_per_hour);
    EXPECT_GT(price.high, price.usd_per_hour);
    EXPECT_EQ(price.date.size(), 7U);
    EXPECT_FALSE(price.source.empty());
    EXPECT_EQ(price.evidence == Evidence::kAssumed, price.source.starts_with("assumed"));
  }
}

// A catalogue price that changes must change in both places.
TEST(Prices, RangesAreOfTheCataloguesPrices) {
  const std::string path = std::string(FORESHARD_SOURCE_DIR) + "/calibration/published/price_ranges.csv";
  const CsvTable table(read_text_file(path, kMaxTableBytes), path);
  const std::vector<Machine> machines = list_machines();
  ASSERT_EQ(table.rows(), machines.size());
  for (std::size_t row = 0; row < table.rows(); ++row) {
    EXPECT_EQ(table.text(row, "machine"), machines[row].key);
    EXPECT_EQ(table.number(row, "usd_per_gpu_hour"), machines[row].node.gpu.price_per_hour);
  }
}

TEST(Prices, OfAClusterFileHaveNoRange) {
  const Cluster cluster = parse_cluster("gpus: 64\nmachine: h100-sxm\ngpu: {price_per_hour: 1.85USD/h}\n", "mine.yaml");
  const Price price = listed_price(cluster);
  EXPECT_EQ(price.usd_per_hour, 1.85);
  EXPECT_EQ(price.low, 1.85);
  EXPECT_EQ(price.high, 1.85);
  EXPECT_EQ(price.source, "mine.yaml:3");
}

TEST(Prices, OfAList) {
  const PriceList list = parse_prices(
      "machine,usd_per_gpu_hour,low,high,date,source\n"
      "h100,2.5,2,3,2026-10,\"our offer, signed\"\n"
      "h200,3.25,,,,\n",
      "prices.csv");
  ASSERT_EQ(list.size(), 2U);
  const Price& h100 = list.at("h100-sxm");
  EXPECT_EQ(h100.usd_per_hour, 2.5);
  EXPECT_EQ(h100.low, 2);
  EXPECT_EQ(h100.high, 3);
  EXPECT_EQ(h100.date, "2026-10");
  EXPECT_EQ(h100.source, "our offer, signed");
  EXPECT_EQ(list.at("h200").low, 3.25);
  EXPECT_EQ(list.at("h200").source, "prices.csv:3");
}

struct Bad {
  const char* csv;
  const char* says;
};

TEST(Prices, BadListsSayWhereAndWhy) {
  const Bad cases[] = {
      {"", "prices.csv:1:1: is empty"},
      {"machine,usd_per_gpu_hour\n", "prices.csv:1:1: has no prices"},
      {"machine,price\nh100,2\n", "prices.csv:1:1: has no column usd_per_gpu_hour"},
      {"machine,usd_per_gpu_hour,hihg\nh100,2,3\n", "did you mean high?"},
      {"machine,usd_per_gpu_hour\nh100,\n", "prices.csv:2:1: usd_per_gpu_hour: is empty"},
      {"machine,usd_per_gpu_hour\nh100,0\n", "prices.csv:2:1: usd_per_gpu_hour: '0' is no price"},
      {"machine,usd_per_gpu_hour\nh100,-3\n", "'-3' is no price"},
      {"machine,usd_per_gpu_hour\nh100,nan\n", "prices.csv:2"},
      {"machine,usd_per_gpu_hour\nh100,2USD\n", "prices.csv:2"},
      {"machine,usd_per_gpu_hour\nh101,2\n", "prices.csv:2:1: machine: unknown machine 'h101'"},
      {"machine,usd_per_gpu_hour\nh100,2\nh100-sxm,3\n", "prices.csv:3:1: machine: a second price"},
      {"machine,usd_per_gpu_hour,low\nh100,2,3\n", "2 is not between low 3 and high 2"},
      {"machine,usd_per_gpu_hour\nh100\n", "prices.csv:2:1: the row has 1 cells"},
      {"machine,usd_per_gpu_hour\n\"h100,2\n", "a quoted cell does not end"},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.csv);
    try {
      parse_prices(bad.csv, "prices.csv");
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
      EXPECT_NE(std::string(error.what()).find(bad.says), std::string::npos) << error.what();
    }
  }
}

}
}
