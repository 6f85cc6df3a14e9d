// foreshard-exec run as a user starts it, on a small model and a text, in a folder of its own.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "reports/validate/run_record.h"
#include "tests/exec/launch/child.h"
#include "tests/support/temporary_folder.h"

namespace foreshard {

using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

class ExecRunTest : public testing::Test {
 protected:
  ExecRunTest();

  // A file in this test's folder; returns its path.
  std::string write(const std::string& name, const std::string& content) const;
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // "foreshard-exec run" with the small model, sequence 16, and `words`; the text unless they name data.
  Words command(const Words& words) const;
  ChildProcess start(const Words& words, const Variables& variables = {}) const;
  ChildOutcome run(const Words& words, const Variables& variables = {}) const;
  // A run that must succeed, into the run folder `name`.
  RunRecord record(const std::string& name, const Words& words, const Variables& variables = {}) const;
  // `commands` by /bin/sh in this test's folder; "$E" is "foreshard-exec run" and the model.
  ChildOutcome shell(const std::string& commands) const;

  TemporaryFolder folder_;
};

// Words that give `ranks` ranks a mesh; 2x2 as mesh(2, 2).
Words mesh(int shard, int replicate = 1);
Words operator+(Words words, const Words& more);
// The processes that `launcher` started with --spawn, by rank.
std::map<int, int> ranks_of(int launcher);

}
