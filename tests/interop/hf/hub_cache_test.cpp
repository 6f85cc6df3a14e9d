#include <gtest/gtest.h>

#include "interop/hf/hf_config.h"
#include "tests/support/temporary_folder.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

class HubCacheTest : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) { folder_.write(name, text); }
  std::string found(std::string_view id) const {
    const auto config = cached_config(folder_.path(), id);
    return config ? fs::relative(*config, folder_.path()).string() : "none";
  }
  TemporaryFolder folder_;
};

TEST_F(HubCacheTest, TheCommitOfMainIsTaken) {
  write("models--Org--Name-7B/refs/main", "bbb");
  write("models--Org--Name-7B/snapshots/aaa/config.json", "{}");
  write("models--Org--Name-7B/snapshots/bbb/config.json", "{}");
  const std::string expected = "models--Org--Name-7B/snapshots/bbb/config.json";
  EXPECT_EQ(found("Org/Name-7B"), expected);
  EXPECT_EQ(found("org/name-7b"), expected);
  EXPECT_EQ(found("Org/Name-8B"), "none");
}

TEST_F(HubCacheTest, WithoutMainTheOnlySnapshotIs) {
  write("models--a--b/snapshots/one/config.json", "{}");
  EXPECT_EQ(found("a/b"), "models--a--b/snapshots/one/config.json");
  write("models--a--b/snapshots/two/config.json", "{}");
  EXPECT_EQ(found("a/b"), "none");
}

// A reference is a commit and an id is two words: neither leads out of the folder.
TEST_F(HubCacheTest, NothingOutsideIsRead) {
  write("secret/config.json", "{}");
  write("models--a--b/refs/main", "../../../secret");
  EXPECT_EQ(found("a/b"), "none");
  for (const char* id : {"../secret", "a/../../secret", "", "/", "a/", "/b", "secret", "a/b/c", "a\\b/c", "a b/c"}) {
    EXPECT_EQ(found(id), "none") << id;
  }
  EXPECT_FALSE(cached_config(folder_ / "absent", "a/b").has_value());
}

}
}
