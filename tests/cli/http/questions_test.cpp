#include "cli/http/questions.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

TEST(HttpQuestions, NoWordNamesAFile) {
  const Json words = words_json();
  for (const Command& command : command_tree().commands) {
    if (!words.contains(command.name)) continue;
    for (const CommandOption& option : command.options) {
      const std::string word = option.names.front().substr(2);
      if (!contains(option.type, "FILE") && !contains(option.type, "DIR")) continue;
      if (words[command.name].contains(word)) {
        EXPECT_TRUE(words[command.name][word]["file"]) << command.name << " " << word;
      }
    }
    for (const char* own : {"help", "json", "html", "out", "trace", "threads", "no_history", "resume"}) {
      EXPECT_FALSE(words[command.name].contains(own)) << command.name << " " << own;
    }
  }
}

TEST(HttpQuestions, WordsAreTheOptionsOfTheVerbs) {
  const Json words = words_json();
  for (const char* word : {"model", "cluster", "runtime", "sequence", "micro_batch", "accumulation", "set"}) {
    EXPECT_TRUE(words["predict"].contains(word)) << word;
  }
  for (const char* word : {"tokens", "deadline", "budget", "cluster", "gpus", "batch_tokens", "what_if"}) {
    EXPECT_TRUE(words["recommend"].contains(word)) << word;
  }
  EXPECT_TRUE(words["explain"]["run"]["file"]);
  EXPECT_FALSE(words["predict"]["model"]["words"].empty());
}

TEST(HttpQuestions, PathsAreThoseOfVerbs) {
  for (const char* path : {"/api/predict", "/text/explain", "/page/recommend", "/report"}) {
    EXPECT_TRUE(is_question(path)) << path;
  }
  for (const char* path : {"/", "/api/", "/api/serve", "/api/calibrate", "/api/predict/", "/page", "/report/x"}) {
    EXPECT_FALSE(is_question(path)) << path;
  }
}

}
}
