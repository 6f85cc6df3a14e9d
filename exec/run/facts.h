// What a run is, as keys and values in words: so that ranks can be held against each other, and a
// run against the checkpoint that it goes on from.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "exec/comm/world.h"
#include "exec/data/token_store.h"
#include "sim/base/error.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

struct Fact {
  // What another value means for a run that goes on: other numbers, sums in another order (which
  // changes their last bits), or nothing.
  enum class Changes : std::uint8_t { kNothing, kLastBits, kNumbers };
  std::string key;  // a plan's dotted path, "data", "model.rope_theta", "--steps"
  std::string value;
  Changes changes = Changes::kNothing;
};
using Facts = std::vector<Fact>;

// Every key of the plan that is written, and batch.global.
Facts facts_of(const Plan& plan);
// Numerics, sizes, and a hash of all operations.
Facts facts_of(const ModelSpec& model);
Fact fact_of(const TokenStore& data);

// Compares the facts of all ranks, by hash first. Throws Error(`code`) on all ranks, naming the ranks that differ from
// the most others, the keys, and both values. All ranks call it with the same topic.
void agree(World& world, const std::string& topic, const Facts& facts, ExitCode code);

// Those that change numbers, and a hash of them: what is the same for all runs of one job.
struct JobIdentity {
  std::string id;                             // 16 hexadecimal digits
  std::map<std::string, std::string> values;  // by key
  std::map<std::string, std::string> last_bits;
};
JobIdentity identity_of(const Facts& facts);
// As it is kept in a checkpoint's metadata, and back; an empty text gives an empty identity.
std::string to_text(const JobIdentity& identity);
JobIdentity job_identity_of(const std::string& text, const std::string& file);

struct FactChange {
  std::string key, before, now;
};
// What `now` says otherwise than `before`; keys that only one of them has are left out, they are of another version.
std::vector<FactChange> changes_of(
    const std::map<std::string, std::string>& before, const std::map<std::string, std::string>& now);
std::string in_words(std::span<const FactChange> changes);  // "seed is 7, was 1; data is ..., was ..."

}
