// Calls are runs of the same operations in the same modules, one behind the other but for what the
// program itself does between them. Of two that stand in the same place one stays: what it makes
// has the elements of both, and whatever read either reads that.
#include "interop/capture/module_calls.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "interop/capture/module_layers.h"
#include "sim/base/integers.h"

namespace foreshard {
namespace {

class CallFolder {
 public:
  explicit CallFolder(Json& document)
      : document_(document), operations_(document.at("operations")) {
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      if (operations_[i].at("module").is_string()) inside_.push_back(i);
    }
  }

  std::int64_t fold() {
    find_calls();
    if (calls_ < 2 || !may_fold()) return 1;
    std::set<std::size_t> gone;
    for (std::int64_t call = 1; call < calls_; ++call) {
      for (std::size_t k = 0; k < length_; ++k) {
        join(operations_[inside_[first_ + k]], operations_[place(call, k)]);
        gone.insert(place(call, k));
      }
    }
    Json kept = Json::array();
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      if (gone.contains(i)) continue;
      rename(operations_[i].at("in"));
      if (operations_[i].contains("saved")) rename(operations_[i]["saved"]);
      kept.push_back(std::move(operations_[i]));
    }
    operations_ = std::move(kept);
    return calls_;
  }

 private:
  std::size_t place(std::int64_t call, std::size_t k) const {
    return inside_[first_ + at(call) * length_ + k];
  }
  std::string block_of(const Json& operation) const {
    const std::string module = operation.at("module");
    for (const Json& block : document_.at("blocks")) {
      const auto name = block.get<std::string>();
      if (module == name || module.starts_with(name + ".")) return name;
    }
    return "";
  }
  bool is_alike(std::size_t a, std::size_t b) const {
    const Json &left = operations_[inside_[a]], &right = operations_[inside_[b]];
    const auto same = [&](const char* key) {
      return left.value(key, Json()) == right.value(key, Json());
    };
    if (!same("op") || !same("module") || !same("n") || !same("k") || !same("in_place") ||
        is_differentiated(left) != is_differentiated(right) ||
        left.at("in").size() != right.at("in").size() ||
        left.at("out").size() != right.at("out").size())
      return false;
    for (std::size_t i = 0; i < left.at("in").size(); ++i) {
      const Json &x = left["in"][i], &y = right["in"][i];
      if ((x.is_string() || y.is_string()) && x != y) return false;
    }
    return true;
  }

  // The first block that is entered again, and how far the operations around it repeat.
  void find_calls() {
    std::map<std::string, std::size_t> entered;
    std::string last;
    for (std::size_t p = 0; p < inside_.size() && calls_ == 1; ++p) {
      const std::string block = block_of(operations_[inside_[p]]);
      if (block.empty() || block == last) continue;
      last = block;
      const auto [before, is_new] = entered.emplace(block, p);
      if (is_new) continue;
      first_ = before->second;
      length_ = p - first_;
      while (first_ > 0 && is_alike(first_ - 1, first_ - 1 + length_)) --first_;
      while (repeats(calls_)) ++calls_;
    }
  }
  bool repeats(std::int64_t call) const {
    const std::size_t begin = first_ + at(call) * length_;
    if (begin + length_ > inside_.size()) return false;
    for (std::size_t k = 0; k < length_; ++k) {
      if (!is_alike(first_ + k, begin + k)) return false;
    }
    return true;
  }

  // No call reads what a call made, or what is differentiated outside of them.
  bool may_fold() const {
    std::map<std::int64_t, std::int64_t> made_by;  // -1: outside of the calls, differentiated
    for (const Json& operation : operations_) {
      for (const Json& out : operation.at("out")) {
        if (is_differentiated(operation)) made_by[out.at("tensor")] = -1;
      }
    }
    for (std::int64_t call = 0; call < calls_; ++call) {
      for (std::size_t k = 0; k < length_; ++k) {
        for (const Json& out : operations_[place(call, k)].at("out"))
          made_by[out.at("tensor")] = call;
      }
    }
    for (std::int64_t call = 1; call < calls_; ++call) {
      for (std::size_t k = 0; k < length_; ++k) {
        for (const Json& in : operations_[place(call, k)].at("in")) {
          const auto made = in.is_number() ? made_by.find(in) : made_by.end();
          if (made != made_by.end() && made->second != call) return false;
        }
      }
    }
    return true;
  }

  void join(Json& one, const Json& other) {
    for (std::size_t i = 0; i < one.at("in").size(); ++i) {
      const Json &x = one["in"][i], &y = other.at("in")[i];
      if (!x.is_number() || x == y || renamed_.contains(y)) continue;
      renamed_[y] = x;  // the other call's own input
      Json& given = document_.at("given");
      const std::string ours = std::to_string(x.get<std::int64_t>());
      const std::string theirs = std::to_string(y.get<std::int64_t>());
      if (given.contains(ours) && given.contains(theirs)) add(given[ours], given[theirs]);
    }
    for (std::size_t i = 0; i < one.at("out").size(); ++i) {
      Json& made = one["out"][i];
      const Json& theirs = other.at("out")[i];
      renamed_[theirs.at("tensor")] = made.at("tensor");
      add(made, theirs);
    }
    for (const Json& kept : other.value("saved", Json::array())) one["saved"].push_back(kept);
    join_backward(one, other);
    for (const char* key : {"workspace", "backward_workspace"}) {
      if (one.contains(key) || other.contains(key))
        one[key] = std::max(one.value(key, std::int64_t{0}), other.value(key, std::int64_t{0}));
    }
    if (one.contains("positions"))
      one["positions"] =
          one["positions"].get<std::int64_t>() + other.at("positions").get<std::int64_t>();
    for (const char* key : {"query", "key"}) {
      if (one.contains(key))
        one[key][0] = one[key][0].get<std::int64_t>() + other.at(key)[0].get<std::int64_t>();
    }
  }
  // Gradients of what both made; those of parameters are of one size.
  void join_backward(Json& one, const Json& other) const {
    if (!one.contains("backward") || one["backward"].size() != other.at("backward").size()) return;
    std::multiset<std::int64_t> weights;
    for (const Json& in : one.at("in")) {
      if (!in.is_string()) continue;
      weights.insert(numel_of(document_.at("parameters").at(in.get<std::string>())));
    }
    for (std::size_t i = 0; i < one["backward"].size(); ++i) {
      Json& made = one["backward"][i];
      const auto weight = weights.find(made.at("elements"));
      if (weight != weights.end() &&
          made.at("elements") == other.at("backward")[i].at("elements")) {
        weights.erase(weight);
      } else {
        add(made, other.at("backward")[i]);
      }
    }
  }
  static void add(Json& one, const Json& other) {
    one["elements"] =
        one.at("elements").get<std::int64_t>() + other.at("elements").get<std::int64_t>();
    if (!one.contains("shape")) return;
    Json &shape = one["shape"], theirs = other.at("shape");
    bool is_alike = !shape.empty() && shape.size() == theirs.size();
    for (std::size_t d = 1; d < shape.size() && is_alike; ++d) is_alike = shape[d] == theirs[d];
    if (is_alike) {
      shape[0] = shape[0].get<std::int64_t>() + theirs[0].get<std::int64_t>();
    } else {
      one.erase("shape");
    }
  }
  void rename(Json& tensors) const {
    for (Json& tensor : tensors) {
      const auto now = tensor.is_number() ? renamed_.find(tensor) : renamed_.end();
      if (now != renamed_.end()) tensor = now->second;
    }
  }

  Json& document_;
  Json& operations_;
  std::vector<std::size_t> inside_;     // operations of modules
  std::size_t first_ = 0, length_ = 0;  // of a call, in them
  std::int64_t calls_ = 1;
  std::map<std::int64_t, std::int64_t> renamed_;
};

}  // namespace

std::int64_t fold_calls(Json& document) { return CallFolder(document).fold(); }

}  // namespace foreshard
