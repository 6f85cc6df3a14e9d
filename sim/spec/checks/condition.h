// What a row of a table asks of a plan or a job, as text: terms such as "prefetch.backward > 1", joined by ", ", all of
// which hold. A term compares (=, !=, >, <) a key of a plan or a fact with a number, a word, words of which one is
// enough (fa1|fa2), or another key. Of a policy with ranges one range is enough.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"
#include "sim/spec/plan_config.h"

namespace foreshard {

using PlanValue = Json (*)(const Plan&);

// Of a key of a plan, or of a fact that follows from the plan alone: head_in_chunks, host (device, cpu), ranks,
// runtime.kind. nullptr: neither.
PlanValue plan_value_named(std::string_view name);

// Whether encoder and decoder look tokens up in one table.
bool stacks_share_table(const ModelSpec& model);

class Condition {
 public:
  Condition() = default;  // always holds
  // Fails a check where a term names nothing.
  explicit Condition(std::string_view text);

  // Of terms on keys and on facts of the plan.
  bool holds(const Plan& plan) const;
  // Of terms on facts of the job, too: model.tied, model.experts (parameters of three dimensions),
  // model.images and model.words (what embeddings read), model.family, model.norm_of_base (the
  // last norm is a child of the base model), model.stacks_share_table (as encoder and decoder do),
  // root_unit (the plan makes a unit of the model), ends_written (somebody wrote where embedding or
  // head go), trainer, trainer.minor (less than 0 of an earlier major version, a large
  // number where no version is said).
  bool holds(const PlanDocument& document, const ModelSpec& model) const;

 private:
  struct Term;
  std::shared_ptr<const std::vector<Term>> terms_;
};

}
