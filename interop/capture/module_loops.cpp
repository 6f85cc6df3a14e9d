#include "interop/capture/module_loops.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "sim/base/lookup.h"

namespace foreshard {
namespace {

using Signs = std::map<std::string, std::size_t>;  // numbers of what operations are alike by

bool is_tensor(const Json& in) { return in.is_number() && in != -1; }

class Turns {
 public:
  Turns(Json& document, Signs& signs)
      : document_(document), operations_(document.at("operations")), given_(document.at("given")) {
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      const Json& operation = operations_[i];
      origin_.push_back(i);
      into_.push_back(i);
      signs_.push_back(signs.emplace(sign_of(operation), signs.size()).first->second);
      for (const Json& out : operation.at("out")) {
        const bool is_same = in_place(operation) || is_view(operation);
        const Json& base = operation.at("in").empty() ? out.at("tensor") : operation["in"][0];
        root_[out.at("tensor")] = is_same && is_tensor(base) ? root(base) : number(out);
      }
      for (const Json& kept : operation.value("saved", Json::array())) kept_.insert(root(kept));
    }
  }

  const std::vector<std::size_t>& signs() const { return signs_; }
  const std::vector<Json>& operations() const { return operations_; }

  // The period's operations that begin here stand for all turns.
  void fold(std::size_t begin, std::size_t period, std::size_t turns) {
    std::set<std::int64_t> made, grown;
    for (std::size_t t = 0; t < period; ++t) {
      std::vector<std::size_t> places;
      for (std::size_t turn = 0; turn < turns; ++turn) places.push_back(begin + turn * period + t);
      fold_operation(places, begin + period * turns, period, made, grown);
    }
    const auto cut = [&](auto& of) {
      of.erase(of.begin() + static_cast<std::ptrdiff_t>(begin + period),
          of.begin() + static_cast<std::ptrdiff_t>(begin + period * turns));
    };
    cut(operations_);
    cut(origin_);
    cut(signs_);
    is_folded_ = true;
  }

  // Parts of one tensor, or tensors of the batch, of which there is one for each turn.
  void unite_results(std::size_t i) {
    Json& out = operations_[i].at("out");
    out = {united(out, true)};
    is_folded_ = true;
  }
  void unite_inputs(const Json& in) {
    const Json* first = nullptr;
    for (const Json& other : in) {
      if (!is_tensor(other)) continue;
      if (first == nullptr) first = &other;
      unite_given(*first, other);
    }
    is_folded_ = true;
  }

  // Tensors are numbered as they come.
  void write() {
    if (!is_folded_) return;
    std::map<std::size_t, std::size_t> place;
    for (std::size_t i = 0; i < origin_.size(); ++i) place[origin_[i]] = i;
    std::map<std::int64_t, std::int64_t> numbers;
    const auto renumbered = [&](std::int64_t tensor) {
      return numbers.emplace(same(tensor), std::ssize(numbers)).first->second;
    };
    const auto rename = [&](Json& list, bool is_set) {
      Json made = Json::array(), before;
      for (const Json& each : list) {
        const bool is_one = is_tensor(each);
        Json name = is_one ? Json(renumbered(each)) : each;
        const bool is_again = is_one && !made.empty() && made.back() == name && before != each;
        if (!is_again && !(is_set && contains(made, name))) made.push_back(std::move(name));
        before = each;
      }
      list = std::move(made);
    };
    const auto end = [&](Json& tensor) {
      for (const char* key : {"freed", "freed_backward"}) {
        if (!tensor.contains(key) || tensor.at(key) < 0) continue;
        std::size_t at = tensor.at(key);
        while (at < into_.size() && into_[at] != at) at = into_[at];
        tensor[key] = value_of(place, at, origin_.size() - 1);
      }
    };
    for (Json& operation : operations_) {
      rename(operation["in"], false);
      for (Json& out : operation["out"]) {
        out["tensor"] = renumbered(out["tensor"]);
        end(out);
      }
      if (operation.contains("saved")) rename(operation["saved"], true);
    }
    Json given = Json::object();
    for (auto& [name, tensor] : given_.items()) {
      const std::int64_t own = std::stoll(name);
      if (same(own) != own) continue;
      end(tensor);
      given[std::to_string(renumbered(own))] = tensor;
    }
    document_["given"] = std::move(given);
    document_["operations"] = std::move(operations_);
  }

 private:
  static bool in_place(const Json& operation) { return operation.value("in_place", false); }
  static bool is_view(const Json& operation) { return operation.value("view", false); }
  static std::int64_t number(const Json& out) { return out.at("tensor"); }

  // Of lists of tensors their number is no matter.
  static std::string sign_of(const Json& operation) {
    std::string in, last;
    for (const Json& each : operation.at("in")) {
      const std::string word = each.is_string() ? each.get<std::string>() : is_tensor(each) ? "t" : "h";
      if (word != "t" || last != "t") in += word + " ";
      last = word;
    }
    return fmt::format("{} {} {}{}{} {}", operation.at("op").get<std::string>(), operation.at("module").dump(),
        in_place(operation) ? 'i' : ' ', is_view(operation) ? 'v' : ' ', operation.contains("node") ? 'n' : ' ', in);
  }

  std::int64_t root(std::int64_t tensor) const { return value_of(root_, tensor, tensor); }
  std::int64_t same(std::int64_t tensor) const {
    for (auto at = same_.find(tensor); at != same_.end(); at = same_.find(tensor)) tensor = at->second;
    return tensor;
  }
  void unite(std::int64_t first, std::int64_t other) {
    if (same(first) != same(other)) same_[same(other)] = same(first);
  }
  void unite_given(std::int64_t first, std::int64_t other) {
    const std::string a = std::to_string(same(first)), b = std::to_string(same(other));
    if (a == b || !given_.contains(a) || !given_.contains(b)) return;
    given_[a]["elements"] = given_[a]["elements"].get<std::int64_t>() + given_[b]["elements"].get<std::int64_t>();
    unite(first, other);
  }

  // One tensor for those of all turns: as large as all of them, or as the largest.
  Json united(const std::vector<Json>& each, bool grows) {
    Json made = each[0];
    std::int64_t sum = 0, most = 0;
    bool is_alike = true;
    for (const Json& one : each) {
      const std::int64_t elements = one.at("elements");
      sum += elements;
      most = std::max(most, elements);
      is_alike &= one.value("shape", Json()) == made.value("shape", Json());
      unite(number(made), number(one));
      for (const char* key : {"freed", "freed_backward"}) {
        if (grows && !made.contains(key)) continue;
        if (!one.contains(key)) made.erase(key);
        else made[key] = grows ? std::max(made[key], one[key]) : one[key];
      }
    }
    made["elements"] = grows ? sum : most;
    if (made.contains("shape")) {
      if (!is_alike) made["shape"] = {made["elements"]};
      else if (grows) made["shape"].insert(made["shape"].begin(), each.size());
    }
    return made;
  }

  void fold_operation(const std::vector<std::size_t>& places, std::size_t end, std::size_t period,
      std::set<std::int64_t>& made, std::set<std::int64_t>& grown) {
    Json& first = operations_[places[0]];
    bool any = false;
    for (const std::size_t other : places) {
      const Json& in = operations_[other].at("in");
      for (std::size_t s = 0; s < std::min(in.size(), first["in"].size()); ++s)
        if (is_tensor(in[s]) && is_tensor(first["in"][s])) unite_given(first["in"][s], in[s]);
      into_[origin_[other]] = origin_[places[0]];
    }
    for (std::size_t o = 0; o < first["out"].size(); ++o) {
      std::vector<Json> each;
      bool is_gone = true;  // within a turn
      for (const std::size_t place : places) {
        const Json& out = operations_[place].at("out");
        if (o >= out.size()) continue;
        each.push_back(out[o]);
        const std::size_t next = std::min(place + 2 * period, end);
        const std::size_t behind = next < origin_.size() ? origin_[next] : into_.size();
        const bool is_last = places.size() > 1 && place + period >= end;  // its names outlive it
        is_gone &= (is_last || (out[o].contains("freed") && out[o]["freed"] < behind)) &&
                   !kept_.contains(root(number(out[o])));
      }
      const std::int64_t own = number(each[0]), base = same(root(own));
      const bool is_own = base == own || made.contains(base);
      const bool grows = base == own ? !is_gone : is_own ? grown.contains(base) : is_view(first);
      first["out"][o] = united(each, grows);
      any |= grows;
      made.insert(own);
      if (grows) grown.insert(own);
    }
    for (const std::size_t place : places) {
      const Json& other = operations_[place];
      if (place == places[0]) continue;
      for (const Json& kept : other.value("saved", Json::array())) first["saved"].push_back(kept);
      for (const char* key : {"workspace", "backward_workspace"})
        if (other.contains(key)) first[key] = std::max(first.value(key, other[key]), other[key]);
    }
    if (!any) return;
    const auto grow = [&](Json& extent) { extent = extent.get<std::size_t>() * places.size(); };
    if (first.contains("positions")) grow(first["positions"]);
    for (const char* key : {"query", "key"})
      if (first.contains(key)) grow(first[key][0]);
  }

  Json& document_;
  std::vector<Json> operations_;
  Json& given_;
  std::vector<std::size_t> signs_, origin_, into_;  // of operations that are left; of all, by place
  std::map<std::int64_t, std::int64_t> root_, same_;
  std::set<std::int64_t> kept_;
  bool is_folded_ = false;
};

bool equal(const std::vector<std::size_t>& a, std::size_t i, const std::vector<std::size_t>& b, std::size_t j,
    std::size_t count) {
  return i + count <= a.size() && j + count <= b.size() &&
         std::equal(a.begin() + static_cast<std::ptrdiff_t>(i), a.begin() + static_cast<std::ptrdiff_t>(i + count),
             b.begin() + static_cast<std::ptrdiff_t>(j));
}

// How often operations run one behind another that begin at `from`.
std::size_t turns_of(const std::vector<std::size_t>& signs, std::size_t from, std::size_t period) {
  std::size_t turns = 1;
  while (equal(signs, from, signs, from + turns * period, period)) ++turns;
  return turns;
}

// Of many turns, whatever the captures.
void fold_long(Turns& of) {
  constexpr std::size_t kLongest = 96, kTurns = 32;
  for (std::size_t i = 0; i < of.signs().size(); ++i) {
    for (std::size_t period = 1; period <= kLongest; ++period) {
      const auto& signs = of.signs();
      if (i + kTurns * period > signs.size()) break;
      if (signs[i] != signs[i + period]) continue;
      const std::size_t turns = turns_of(signs, i, period);
      if (turns < kTurns) continue;
      of.fold(i, period, turns);
      break;
    }
  }
}

// Where one capture has more turns than the other has, of that loop wherever it runs. Behind them
// both go on alike, so many operations `next`. False: they differ otherwise, or nowhere.
bool fold_difference(Turns& one, Turns& two, std::size_t next) {
  const std::size_t at =
      static_cast<std::size_t>(std::ranges::mismatch(one.signs(), two.signs()).in1 - one.signs().begin());
  for (std::size_t period = 1; period <= at; ++period) {
    for (const auto& [less, more] : {std::pair(&one, &two), std::pair(&two, &one)}) {
      const auto &few = less->signs(), &many = more->signs();
      const std::size_t end = at + (turns_of(many, at - period, period) - 1) * period;
      const std::size_t rest = std::min(next, few.size() - at);
      if (end == at || !equal(few, at, many, end, rest)) continue;
      if (rest < next && end + rest != many.size()) continue;
      const std::vector<std::size_t> turn(
          few.begin() + static_cast<std::ptrdiff_t>(at - period), few.begin() + static_cast<std::ptrdiff_t>(at));
      for (Turns* of : {less, more}) {
        for (std::size_t i = 0; i < of->signs().size(); ++i)
          if (equal(turn, 0, of->signs(), i, period)) of->fold(i, period, turns_of(of->signs(), i, period));
      }
      return true;
    }
  }
  return false;
}

}

void fold_loops(const std::vector<Json*>& documents) {
  Signs signs;
  std::vector<Turns> all;
  for (Json* document : documents) all.emplace_back(*document, signs);
  for (Turns& each : all) fold_long(each);
  const auto is_alike = [&](const Turns& of) { return of.signs() == all[0].signs(); };
  const auto fold_some = [&](std::size_t next) {  // (what follows an inner loop may be an outer one)
    return std::ranges::any_of(all, [&](Turns& of) { return !is_alike(of) && fold_difference(all[0], of, next); });
  };
  while (fold_some(4) || fold_some(1)) {
  }
  if (!std::ranges::all_of(all, is_alike)) return;
  const auto differ = [&](std::size_t i, const char* key) {
    return std::ranges::any_of(all,
        [&](const Turns& of) { return of.operations()[i].at(key).size() != all[0].operations()[i].at(key).size(); });
  };
  for (std::size_t i = 0; i < all[0].signs().size(); ++i) {
    const bool outs = differ(i, "out"), ins = differ(i, "in");
    for (Turns& of : all) {
      if (outs) of.unite_results(i);
      if (ins) of.unite_inputs(of.operations()[i].at("in"));
    }
  }
  for (Turns& each : all) each.write();
}

}
