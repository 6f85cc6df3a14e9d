// Where the layers of a captured program begin: what comes before the first block, each block, what
// comes behind the last one, and the loss, from where no parameter is used any more. A layer hands
// one tensor on; a part that hands on none is one with the part before.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "interop/capture/capture_import.h"
#include "sim/base/json.h"

namespace foreshard {

// A run of operations of one block, or between lists of blocks.
struct ModulePart {
  std::size_t begin = 0;     // operation
  std::int64_t block = -1;   // by number; -1: none, or more than it
  std::int64_t handed = -1;  // tensor, by the part before
  bool again = false;        // the block was called before
};

// Of the first capture; tensors by number.
struct ModuleLayers {
  std::vector<std::string> blocks;
  std::vector<ModulePart> parts;                         // the last one is the loss
  std::map<std::int64_t, std::size_t> made_at, read_at;  // differentiated tensors; operations
  std::map<std::int64_t, std::size_t> batch_at;          // what the batch has a part in
  std::set<std::int64_t> of_samples;
  std::map<std::int64_t, std::int64_t> elements;

  // Tensors that want a gradient, from before an operation to it or behind; where none does (a
  // frozen table), those that the batch has a part in.
  std::vector<std::int64_t> crossing(std::size_t at) const;
  bool is_read_from(std::int64_t tensor, std::size_t at) const {
    const auto last = read_at.find(tensor);
    return last != read_at.end() && last->second >= at;
  }
};

// Throws Error(kMissingCapability) where no loss is made.
ModuleLayers find_module_layers(const CapturedModules& capture);

bool is_differentiated(const Json& operation);
// Elements of one of modules.json's parameters.
std::int64_t numel_of(const Json& parameter);
// "addmm in blocks.0.mlp", for messages.
std::string place_of(const Json& operation);
// "blocks" of "blocks.0"
std::string list_of(const std::string& block);
// Throws Error(kMissingCapability) that names the operation and a way around.
[[noreturn]] void refuse_operation(const CapturedModules& capture, const Json& operation, const std::string& why);

}
