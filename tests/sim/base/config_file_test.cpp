#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "sim/base/config.h"
#include "tests/support/temporary_folder.h"

namespace foreshard {
namespace {

class ConfigFile : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    return folder_.write(name, text);
  }

  // What the error says after "FILE: ", "" where there is none.
  static std::string refusal(const std::filesystem::path& path) {
    try {
      read_config_file(path);
    } catch (const ConfigError& error) {
      std::string text = error.what();
      const std::string prefix = path.string() + ":";
      if (path.empty()) return text;
      EXPECT_TRUE(text.starts_with(prefix)) << text;
      return text.substr(std::min(text.size(), prefix.size() + 1));
    }
    return "";
  }

  TemporaryFolder folder_;
};

TEST_F(ConfigFile, IsReadByItsExtensionElseByItsFirstByte) {
  EXPECT_EQ(read_config_file(write("a.yaml", "{a: 1}")).at("a").as_int(), 1);
  EXPECT_EQ(read_config_file(write("a.yml", "a: 1")).at("a").as_int(), 1);
  EXPECT_EQ(read_config_file(write("a.json", "{\"a\": 1}")).at("a").as_int(), 1);
  EXPECT_EQ(read_config_file(write("plain", " \n{\"a\": 1}")).at("a").as_int(), 1);
  EXPECT_EQ(read_config_file(write("plan.txt", "a: 1")).at("a").as_int(), 1);
  EXPECT_NE(refusal(write("b.json", "a: 1")), "");
  EXPECT_NE(refusal(write("b", "{a: 1}")), "");
}

TEST_F(ConfigFile, NamesWhatIsWrongWithTheFileItself) {
  EXPECT_EQ(refusal(folder_ / "none.yaml"), "no such file");
  EXPECT_EQ(refusal(folder_.path()), "is a directory, not a file");
  EXPECT_EQ(refusal(write("empty.json", "")), "the file is empty");
  EXPECT_EQ(refusal(write("a.yaml", "a: 1") / "b.yaml"), "no such file");
  EXPECT_NE(refusal(""), "");
}

TEST_F(ConfigFile, SaysWhenItMayNotBeRead) {
  const std::filesystem::path path = write("secret.yaml", "a: 1");
  std::filesystem::permissions(path, std::filesystem::perms::none);
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  EXPECT_EQ(refusal(path), "cannot be read: Permission denied");
}

TEST_F(ConfigFile, DoesNotReadHugeFilesToTheirEnd) {
  const std::filesystem::path path = write("huge.json", "{}");
  std::filesystem::resize_file(path, std::uintmax_t{1} << 40);  // sparse
  EXPECT_EQ(refusal(path), "the file is too large; expected at most 16 MiB");
  std::filesystem::resize_file(write("huge.yaml", "a"), std::uintmax_t{3} << 20);
  EXPECT_EQ(refusal(folder_ / "huge.yaml"), "the file is too large; expected at most 2 MiB");
}

TEST_F(ConfigFile, KeepsItsPathInErrors) {
  const std::filesystem::path path = write("plan.yaml", "mesh:\n  shard: eight\n");
  try {
    read_config_file(path).at("mesh").at("shard").as_int(1, 64);
    ADD_FAILURE();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.what(), path.string() +
                                ":2:10: mesh.shard: 'eight' is not an integer; expected an integer "
                                "from 1 to 64, for example 8");
  }
}

}
}
