// A search over variants of a job, each with a space, a model and costs of its own: every one is
// searched for its best plan alone, for what is not slower than the best so far. Of equally fast
// ones the first wins, which is the job as it was given.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "sim/search/search.h"

namespace foreshard {

class VariantSearch {
 public:
  // Variants by their numbers, which go on from one look_at() to the next.
  struct Variants {
    std::function<const SearchSpace&(std::size_t)> space;
    std::function<SpaceFloor(std::size_t)> floor;
    std::function<SearchResult(std::size_t, const SearchSpace&, const SearchOptions&)> search;
    // What a step has to be below (s) where that is not the best of all: of variants that are
    // compared among themselves, too. Optional.
    std::function<double(std::size_t)> own_limit = {};
  };
  // Options are of each search; `faster_than`: of the first looked at.
  VariantSearch(Variants variants, SearchOptions options)
      : variants_(std::move(variants)), options_(std::move(options)) {}

  // So many more. A first one that is alone has the options' detail, all others kBest. Where
  // something was looked at before, what does not even fit is no answer.
  void look_at(std::size_t count);

  // The one that answers best; its search's result has no best plan where nothing holds. Nothing:
  // its global batch fits no mesh, which failure() says.
  const std::optional<std::size_t>& best() const { return best_; }
  const SearchResult& found() const { return found_; }
  const std::optional<Candidate>& plan() const { return found_.best; }
  bool has_detail() const { return has_detail_; }
  const std::optional<Error>& failure() const { return failure_; }
  // Of all searches.
  const SearchResult& counts() const { return counts_; }
  const std::vector<SpaceFloor>& floors() const { return floors_; }
  // Those that were given up for their floor.
  const std::vector<std::size_t>& given_up() const { return given_up_; }
  // Of a search for its tables.
  void replace_found(SearchResult result);

 private:
  std::vector<SpaceFloor> floors_of(std::size_t count) const;
  void consider(std::size_t v, SearchDetail detail, bool is_first);

  const Variants variants_;
  const SearchOptions options_;
  std::vector<SpaceFloor> floors_;
  std::vector<std::size_t> given_up_;
  std::optional<std::size_t> best_;
  SearchResult found_;
  bool has_detail_ = false;
  SearchResult counts_;
  std::optional<Error> failure_;
};

}
