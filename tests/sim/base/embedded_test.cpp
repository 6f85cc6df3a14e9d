// What the program holds packed is the files as they lie in the repository.
#include "sim/base/embedded.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace foreshard {
namespace {

std::string on_disk(const EmbeddedFile& file) {
  std::ifstream in(std::string(FORESHARD_SOURCE_DIR "/") + std::string(file.path), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Embedded, IsTheFilesOfTheRepositoryFromEveryThread) {
  ASSERT_GE(stack_files().size(), 10U);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (const EmbeddedFile& file : stack_files()) {
        EXPECT_EQ(std::string_view(file.content), on_disk(file)) << file.path;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Embedded, TextStaysWhereItIs) {
  const std::string_view once = stack_files().front().content;
  const std::string_view again = stack_files().front().content;
  EXPECT_EQ(once.data(), again.data());
}

}
}
