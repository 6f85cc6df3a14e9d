#include "sim/graph/fsdp2/fsdp2_repeat.h"

#include <algorithm>
#include <utility>

namespace foreshard {
namespace {

// Units that are not worth the trouble.
constexpr std::int32_t kFew = 4;
constexpr std::int32_t kMostTries = 4;

// Calls id() for every number of a row, buffer or unit, fact() for everything else that decides what is done next.
template <typename Event, typename Id, typename Fact>
void visit_event(Event& event, const Id& id, const Fact& fact) {
  id(event.row);
  id(event.unit);
  fact(event.recorded);
}

template <typename Gather, typename Id, typename Fact>
void visit_gather(Gather& gather, const Id& id, const Fact& fact) {
  fact(gather.pending);
  fact(gather.async);
  fact(gather.bytes);
  visit_event(gather.event, id, fact);
  id(gather.buffer);
}

template <typename Group, typename Id, typename Fact>
void visit_group(Group& g, const Id& id, const Fact& fact) {
  fact(g.state);
  fact(g.module_state);
  fact(g.unsharded);
  fact(g.reduces);
  visit_gather(g.gather, id, fact);
  id(g.parameters);
  visit_event(g.reshard, id, fact);
  visit_event(g.post_reduce, id, fact);
  visit_event(g.all_reduce, id, fact);
  id(g.all_reduce_input);
  fact(g.all_reduce_input_bytes);
  fact(g.all_reduce_pending);
  id(g.partial);
  id(g.post_forward);
  fact(g.gradient_pass);
  id(g.gradient);
  fact(g.has_gradient);
  fact(g.open_modules);
  fact(g.fresh_gradients);
  for (auto* list : {&g.single_parameters, &g.slices, &g.accumulated, &g.whole, &g.host_gradients}) {
    fact(list->size());
    for (auto& buffer : *list) id(buffer);
  }
  fact(g.host_copies.size());
  for (auto& event : g.host_copies) visit_event(event, id, fact);
}

}

// What the builder of the whole step holds between two units.
template <typename Builder, typename Id, typename Fact>
void Fsdp2::visit_step(Builder& b, const Id& id, const Fact& fact) {
  fact(b.forward_root_);
  fact(b.unpadded_.size());
  fact(b.padded_again_.size());
  fact(b.late_inputs_.size());
  visit_gather(b.held_gather_.gather, id, fact);
  id(b.held_gather_.unit);
  visit_event(b.held_gather_.copy_out, id, fact);
  fact(b.held_inputs_.size());
  for (auto& held : b.held_inputs_) {
    visit_event(held.event, id, fact);
    id(held.buffer);
    fact(held.bytes);
  }
  fact(b.last_reductions_.size());
  for (auto& [stream, event] : b.last_reductions_) {
    fact(stream);
    visit_event(event, id, fact);
  }
}

void Fsdp2::find_runs() {
  run_end_.assign(groups_.size(), -1);
  run_begin_.assign(groups_.size(), -1);
  const auto needs_alike = [&](const std::vector<bool>& needs, std::int32_t unit) {
    const std::span<const Module> modules = modules_of(unit);
    return std::ranges::all_of(modules, [&](const Module& module) {
      const auto i = at(module.layer);
      return needs[i] == needs[i + modules.size()];
    });
  };
  const auto is_like_next = [&](std::int32_t u) {
    const auto at = static_cast<std::size_t>(u);
    return StepBuilder::is_like_next(u) && is_listed(u) && prefetch_place_[at + 1] == prefetch_place_[at] + 1 &&
           plan_.unshard_in_backward.at(u) == plan_.unshard_in_backward.at(u + 1) &&
           needs_alike(input_needs_gradient_, u) && needs_alike(output_needs_gradient_, u);
  };
  for (std::int32_t begin = 0; begin < count();) {
    std::int32_t end = begin;
    while (is_like_next(end)) ++end;
    for (std::int32_t u = begin; u <= end; ++u) {
      run_begin_[at(u)] = begin;
      run_end_[at(u)] = end;
    }
    begin = end + 1;
  }
}

// A unit reaches those that it gathers ahead; one more each way shows that no more are.
Fsdp2::Repeat::Repeat(Fsdp2& builder, Groups groups)
    : builder_(builder),
      reach_(2 + static_cast<std::int32_t>(
                     std::max<std::int64_t>({1, builder.plan_.prefetch.forward, builder.plan_.prefetch.backward}))) {
  if (groups == Groups::kUntouched) series_ = {Source::kUntouched, 0, builder.count() - 1};
}

void Fsdp2::Repeat::begin(Order order) {
  // What lies between a backward and the next forward touches all groups.
  const bool holds =
      order == Order::kBackward ? series_.source == Source::kMovedOn : series_.source == Source::kUntouched && !begun_;
  if (!holds) series_ = {};
  begun_ = true;
  step_ = static_cast<std::int32_t>(order);
  read_ = 0;
}

template <typename Id, typename Fact>
void Fsdp2::Repeat::read_group(std::int32_t unit, const Id& id, const Fact& fact) const {
  const Group& g = builder_.group(unit);
  visit_group(g, id, fact);
  if (step_ > 0 || g.post_forward < 0) return;
  // Backward looks up who ran before it.
  const auto position = at(g.post_forward);
  id(builder_.post_forward_order_[position].before);
  id(position > 0 ? builder_.post_forward_order_[position - 1].unit : -1);
}

void Fsdp2::Repeat::read(std::int32_t unit, State& state) const {
  state.place = builder_.place();
  state.post_forwards = builder_.post_forward_order_.size();
  state.first_id.clear();
  std::size_t ids = 0, facts = 0;
  const auto id = [&](std::int32_t number) {
    if (ids == state.ids.size()) state.ids.resize(2 * ids + 256);
    state.ids[ids++] = number;
  };
  const auto fact = [&](auto value) {
    if (facts == state.facts.size()) state.facts.resize(2 * facts + 256);
    state.facts[facts++] = static_cast<std::int64_t>(value);
  };
  visit_step(std::as_const(builder_), id, fact);
  for (std::int32_t offset = -reach_; offset <= reach_; ++offset) {
    state.first_id.push_back(ids);
    state.last_fact = facts;
    read_group(group_at(unit, offset), id, fact);
  }
  state.ids.resize(ids);
  state.facts.resize(facts);
}

bool Fsdp2::Repeat::is_steady() const {
  const auto& [a, b, c] = states_;
  return a.facts == b.facts && b.facts == c.facts && advances(a.ids, b.ids, c.ids) &&
         c.post_forwards - b.post_forwards == b.post_forwards - a.post_forwards &&
         builder_.is_pattern(a.place, b.place, c.place);
}

// After how many more units, at most `most`, the groups ahead still continue the series of those nearby.
std::int32_t Fsdp2::Repeat::reached(std::int32_t unit, std::int32_t most) const {
  if (series_.has(group_at(unit, reach_ - 1)) && series_.has(group_at(unit, reach_ + 1))) {
    const std::int32_t end = step_ > 0 ? series_.last : series_.first;
    return std::min(most, (end - group_at(unit, reach_)) * step_);
  }
  const State& now = states_[2];
  const std::size_t first = now.first_id.back();
  const std::size_t count = now.ids.size() - first;
  const std::int32_t* const last = now.ids.data() + first;
  const std::int32_t* const before = states_[1].ids.data() + first;
  const std::int64_t* const facts = now.facts.data() + now.last_fact;
  const std::size_t fact_count = now.facts.size() - now.last_fact;
  for (std::int32_t k = 1; k <= most; ++k) {
    bool continues = true;
    std::size_t i = 0, f = 0;
    read_group(
        group_at(unit, reach_ + k),
        [&](std::int32_t id) {
          continues &= i < count && id == last[i] + k * (last[i] - before[i]);
          ++i;
        },
        [&](auto fact) {
          continues &= f < fact_count && static_cast<std::int64_t>(fact) == facts[f];
          ++f;
        });
    if (!continues || i != count || f != fact_count) return k - 1;
  }
  return most;
}

void Fsdp2::Repeat::move_on(std::int32_t unit, std::int32_t times) {
  const State& before = states_[1];
  const State& now = states_[2];
  builder_.write_again(before.place, now.place, times);
  const std::size_t written = now.post_forwards - before.post_forwards;
  std::vector<PostForward>& order = builder_.post_forward_order_;
  for (std::size_t i = 0; i < written * at(times); ++i) {
    const PostForward last = order[order.size() - written];
    const PostForward earlier = order[order.size() - 2 * written];
    order.push_back({2 * last.unit - earlier.unit, 2 * last.before - earlier.before});
  }
  // The groups nearby are now those around the last unit; what they leave behind stays.
  const auto ignore = [](const auto&) {};
  const auto move = [&](std::int32_t offset, std::size_t like, std::int32_t by) {
    Group& g = builder_.group(group_at(unit, offset));
    g = nearby_[like];
    const std::int32_t* last = now.ids.data() + now.first_id[like];
    const std::int32_t* earlier = before.ids.data() + before.first_id[like];
    visit_group(
        g, [&](std::int32_t& id) { id += by * (*last++ - *earlier++); }, ignore);
  };
  nearby_.clear();
  for (std::int32_t offset = -reach_; offset <= reach_; ++offset)
    nearby_.push_back(builder_.group(group_at(unit, offset)));
  for (std::int32_t k = 1; k < times; ++k) move(k - reach_, 0, k);
  for (std::size_t i = 0; i < nearby_.size(); ++i) move(static_cast<std::int32_t>(i) - reach_ + times, i, times);
  const auto [low, high] = std::minmax({group_at(unit, -reach_), group_at(unit, times - reach_)});
  series_ = {Source::kMovedOn, low, high};
  std::size_t n = 0;
  visit_step(
      builder_,
      [&](std::int32_t& id) {
        id += times * (now.ids[n] - before.ids[n]);
        ++n;
      },
      ignore);
}

std::int32_t Fsdp2::Repeat::after(std::int32_t layer) {
  const std::int32_t u = builder_.unit_of_layer(layer);
  if (builder_.run_end_.empty() || u < 0) return 0;
  std::int32_t behind = u - builder_.run_begin_[at(u)];
  std::int32_t ahead = builder_.run_end_[at(u)] - u;
  if (behind + ahead == 0) return 0;
  const std::span<const Module> modules = builder_.modules_of(u);
  if (layer != (step_ > 0 ? modules.back() : modules.front()).layer) return 0;
  if (step_ < 0) std::swap(behind, ahead);
  if (behind < reach_) read_ = 0;
  // The last unit that is written must not reach out of the run.
  const std::int32_t most = ahead - reach_ - 1;
  if (behind < reach_ || most < kFew || read_ >= 3 + kMostTries) return 0;
  std::rotate(states_.begin(), states_.begin() + 1, states_.end());
  read(u, states_[2]);
  if (++read_ < 3 || !is_steady()) return 0;
  const std::int32_t times = reached(u, most);
  if (times < kFew) return 0;
  move_on(u, times);
  read_ = 0;
  return times * static_cast<std::int32_t>(modules.size());
}

}
