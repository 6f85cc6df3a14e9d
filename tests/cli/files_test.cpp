// Every word that names a file: a pipe, a device, a folder and a file without an end are refused at
// once, by name; a reader that would wait or read on does not come back.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/base/lookup.h"
#include "tests/cli/program.h"

namespace foreshard {
namespace {

struct Reader {
  const char* arguments;  // @ stands for the file
  const char* ending;     // of its name
};

constexpr Reader kReaders[] = {
    {"predict --plan @", ".yaml"},
    {"predict --plan @", ".json"},
    {"predict --model ./@ --cluster 8xh100", ".json"},
    {"predict --model ./@ --cluster 8xh100", ".yaml"},
    {"models ./@", ".json"},
    {"predict --model gpt2 --cluster ./@", ".yaml"},
    {"predict --model gpt2 --cluster 8xh100 --profile @", ".json"},
    {"predict --model gpt2 --cluster local --profile @", ".json"},
    {"import @", ".txt"},
    {"import @", ".xml"},
    {"import @ --model gpt2 --cluster 8xh100", ".toml"},
    {"import @ --model gpt2 --cluster 8xh100", ".yaml"},
    {"import @ --model gpt2 --cluster 8xh100", ".json"},
    {"import @ --model gpt2 --cluster 8xh100", ".safetensors"},
    {"import @ --model gpt2 --cluster 8xh100", ".safetensors.index.json"},
    {"calibrate @", ".csv"},
    {"calibrate @", ".json"},
    {"calibrate @", ".log"},
    {"accuracy @", ".csv"},
    {"accuracy table.csv --frozen @", ".json"},
    {"report @", ".json"},
    {"conform @", ".csv"},
    {"recommend --model gpt2 --tokens 1B --prices @", ".csv"},
    {"search --model gpt2 --cluster 8xa100 --global-batch 8 --resume @", ".txt"},
    {"explain --run @", ".json"},
    {"explain --run @", ".json.gz"},
    {"validate --model gpt2 --cluster 8xh100 --run @", ".json"},
};

// `make` in a shell makes the file $P; the refusal names it and says one of `says`.
void expect_refused(const std::string& make, const std::vector<const char*>& says) {
  write_temporary("table.csv", "gpu,m,n,k,tflops\nH100,64,64,64,1\n");
  for (const Reader& reader : kReaders) {
    const std::string name = std::string("odd") + reader.ending;
    std::string arguments = reader.arguments;
    arguments.replace(arguments.find('@'), 1, name);
    SCOPED_TRACE(make + ": " + arguments);
    const Outcome outcome =
        shell("P=" + name + "; rm -rf $P; " + make + "; timeout 60 \"$F\" " + arguments + " </dev/null");
    EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    expect_says(outcome.err, name);
    expect_no_crash(outcome);
    bool is_said = false;
    for (const char* each : says) is_said = is_said || contains(outcome.err, each);
    EXPECT_TRUE(is_said) << outcome.err;
  }
}

TEST(Files, PipesAreNotWaitedFor) { expect_refused("mkfifo $P", {"is a pipe or a device", "is not a folder"}); }

TEST(Files, DevicesWithoutAnEndAreNotRead) {
  expect_refused("ln -s /dev/zero $P", {"is a pipe or a device", "is not a folder"});
}

TEST(Files, FoldersAreNoFiles) {
  expect_refused(
      "mkdir $P", {"is a directory", "is neither a run folder", "holds no recording", "plan.yaml: no such file"});
}

// A sparse file takes no room and has no end to speak of. A trace may have gigabytes.
TEST(Files, FilesThatAreTooLargeSaySo) {
  write_temporary("table.csv", "gpu,m,n,k,tflops\nH100,64,64,64,1\n");
  for (const Reader& reader : kReaders) {
    if (contains(std::string(reader.arguments), "--run")) continue;
    const std::string name = std::string("odd") + reader.ending;
    std::string arguments = reader.arguments;
    arguments.replace(arguments.find('@'), 1, name);
    SCOPED_TRACE(arguments);
    const Outcome outcome = shell("truncate -s 8G " + name + "; timeout 60 \"$F\" " + arguments);
    EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
    EXPECT_LT(outcome.err.size(), 1000U);
    expect_says(outcome.err, name);
    EXPECT_EQ(outcome.err.find("memory"), std::string::npos) << outcome.err;
    expect_no_crash(outcome);
  }
}

}
}
