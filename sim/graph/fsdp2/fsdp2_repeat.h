// Writes units that repeat from the pattern of those before them, for the builder of runtime fsdp2.
//
// What is written for a unit follows from the state it begins with. Once the state moves on by
// constants from unit to unit, so does all that is written, until something comes into reach that
// is not a unit of the run: so such units are written from the pattern, and the state is moved on
// as far. Steps that keep a log are written unit by unit; a test holds that both are the same.
#pragma once

#include <array>
#include <vector>

#include "sim/graph/fsdp2/fsdp2_builder.h"

namespace foreshard {

class Fsdp2::Repeat {
 public:
  enum class Order : std::int8_t { kForward = 1, kBackward = -1 };
  enum class Groups : std::uint8_t { kUntouched, kUsed };
  Repeat(Fsdp2& builder, Groups groups);
  // Layers come in this order from now on.
  void begin(Order order);
  // Layer `layer` was written. Returns how many next in order have now been written too.
  std::int32_t after(std::int32_t layer);

 private:
  // What the builder holds once a unit is written: numbers of rows, buffers and units, and facts
  // that must not change. First those of the step, then those of the groups nearby, from the one
  // that lies `reach_` behind to the one that lies `reach_` ahead.
  struct State {
    Place place;
    std::size_t post_forwards = 0;
    std::vector<std::int32_t> ids;
    std::vector<std::int64_t> facts;
    std::vector<std::size_t> first_id;  // of each group
    std::size_t last_fact = 0;          // the first of the last group
  };

  std::int32_t group_at(std::int32_t unit, std::int32_t offset) const { return unit + offset * step_; }
  // Calls id() and fact() for what a group that is not reached yet will be asked for.
  template <typename Id, typename Fact>
  void read_group(std::int32_t unit, const Id& id, const Fact& fact) const;
  void read(std::int32_t unit, State& state) const;
  bool is_steady() const;
  std::int32_t reached(std::int32_t unit, std::int32_t most) const;
  void move_on(std::int32_t unit, std::int32_t times);

  Fsdp2& builder_;
  std::int32_t step_ = 1;
  std::int32_t reach_;
  // Units whose groups are known to be one series: all of them while nothing has touched them, and
  // in backward those that the forward before it moved on.
  enum class Source : std::uint8_t { kNone, kUntouched, kMovedOn };
  struct Series {
    Source source = Source::kNone;
    std::int32_t first = 0, last = -1;
    bool has(std::int32_t unit) const { return first <= unit && unit <= last; }
  };
  Series series_;
  bool begun_ = false;           // some pass
  std::int32_t read_ = 0;        // states of this run
  std::array<State, 3> states_;  // the last ones, oldest first
  std::vector<Group> nearby_;
};

}
