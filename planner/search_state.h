// What a search has judged so far, in a file that grows with every plan: a search that was stopped
// goes on where it was. A plan has one line, however many passes judge it.
//
// The first line names the search by a hash of all its plans and of what prices them, and every other has a hash of
// itself. A file of another search, or one that was edited, is refused; a last line that was cut off is left out.
#pragma once

#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

#include "planner/job_search.h"
#include "sim/search/search.h"

namespace foreshard {

// Of everything that the outcomes of a search depend on.
std::string search_key(const std::vector<JobVariant>& variants, const MemoryTerms& terms);

struct SearchRecord {
  std::map<std::size_t, JudgedPlan> known;
  std::size_t whole_bytes = 0;  // without a last line that was cut off
};

// What such a file says. Throws ConfigError, with the line, for what the search of `key` did not write.
SearchRecord parse_search_state(std::string_view text, const std::string& file, std::string_view key);

class SearchState {
 public:
  // Reads `path` where it is there, and goes on writing to it. Throws Error(kInvalidInput) where
  // that cannot be done, or it is of another search.
  SearchState(const std::string& path, const std::string& key);
  ~SearchState();
  SearchState& operator=(SearchState&&) = delete;  // nor is it copied

  SearchMemory memory();

 private:
  bool read(const std::string& path);  // false: has nothing yet

  std::string key_;
  std::map<std::size_t, JudgedPlan> known_;
  std::mutex mutex_;
  std::unordered_set<std::size_t> written_;  // since it was opened
  std::FILE* file_ = nullptr;
};

}
