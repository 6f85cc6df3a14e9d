#include "planner/job_variants.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "models/layers/variants.h"
#include "planner/axes_variants.h"
#include "planner/changes.h"
#include "planner/search_space.h"
#include "sim/base/lookup.h"
#include "sim/base/spelling.h"
#include "sim/search/axes.h"
#include "sim/search/knobs.h"

namespace foreshard {
namespace {

// Beside a plan of one of many jobs: positions that mesh.cp leaves a rank at the least (assumed: from there on
// activations decide what is recomputed), and domains of NVLink over which experts are spread at the most.
constexpr std::int64_t kLongPart = 8192;
constexpr std::int64_t kDomains = 4;

std::vector<KnobAxis> asked_knobs(const std::vector<std::string>& keys, const Plan& base) {
  std::vector<KnobAxis> axes;
  for (const std::string& key : keys) {
    auto axis = knob_axis(key, base);
    if (!axis) {
      std::vector<std::string> known = knob_keys();
      for (const std::string& more : requested_knob_keys()) known.push_back(more);
      for (const std::string& more : axis_keys()) known.push_back(more);
      known.emplace_back(kAllAxes);
      const std::string near = nearest_spelling(key, known);
      throw Error(ExitCode::kUsage, "--vary: {} does not vary; expected {}{}", quote(key), fmt::join(known, ", "),
          near.empty() ? "" : fmt::format("; did you mean {}?", near));
    }
    const bool is_there = std::ranges::any_of(axes, [&](const KnobAxis& known) { return known.key == key; });
    if (!is_there) axes.push_back(std::move(*axis));
  }
  return axes;
}

SearchSpace space_of_variant(const Job& job, const SpaceRequest& request) {
  SearchSpace space = space_of(job);
  if (request.global_batch) space.global_batch = read_global_batch(*request.global_batch);
  std::vector<std::string> fixed = fixed_keys(job);
  append(fixed, request.vary);
  space = with_free_knobs(std::move(space), job.model, fixed);
  for (KnobAxis& axis : asked_knobs(request.vary, space.base)) space.knobs.push_back(std::move(axis));
  return space;
}

// Values of a key by the model that plans with them run.
template <typename T, typename ModelOf>
std::vector<std::vector<T>> alike(const std::vector<T>& values, const ModelOf& model_of) {
  std::vector<std::pair<ModelSpec, std::vector<T>>> groups;
  for (const T& value : values) {
    ModelSpec model = model_of(value);
    const auto same = std::ranges::find_if(groups, [&](const auto& group) { return group.first == model; });
    if (same != groups.end()) same->second.push_back(value);
    else groups.push_back({std::move(model), {value}});
  }
  return list_of<std::vector<T>>(groups, [&](auto& group) { return std::move(group.second); });
}

template <typename T>
void move_into(const std::vector<T>& values, T& value) {
  if (!contains(values, value)) value = values.front();
}

// A variant for each model, that of the variant's own plan first: transformers' attention by operations copies the
// heads of several sequences, T5's attends by another kernel where blocks are checkpointed.
void add_by_model(std::vector<JobVariant>& list, JobVariant variant) {
  SearchSpace space;
  try {
    space = complete(variant.space, variant.job.cluster);
  } catch (const Error& error) {  // a global batch that fits no mesh: the search says so
    if (error.exit_code() != ExitCode::kInvalidInput) throw;
    list.push_back(std::move(variant));
    return;
  }
  const auto model_of = [&](const RangedPolicy<Recompute>& recompute, std::int64_t micro_batch) {
    Plan plan = space.base;
    plan.recompute = recompute;
    plan.batch.micro_batch = micro_batch;
    return with_variants(variant.job.plain_model, plan);
  };
  const auto recomputes = alike(
      space.recomputes,
      [&](const RangedPolicy<Recompute>& recompute) { return model_of(recompute, space.micro_batches.front()); });
  const auto micro_batches = alike(
      space.micro_batches, [&](std::int64_t micro_batch) { return model_of(space.recomputes.front(), micro_batch); });
  const bool is_one = recomputes.size() * micro_batches.size() == 1;
  const std::size_t begin = list.size();
  for (const auto& some : recomputes) {
    for (const auto& several : micro_batches) {
      JobVariant one = variant;
      one.job.model = model_of(some.front(), several.front());
      const auto move_to_it = [&](Plan& plan) {
        move_into(some, plan.recompute);
        move_into(several, plan.batch.micro_batch);
      };
      if (!is_one) {
        one.space.recomputes = some;
        one.space.micro_batches = several;
        move_to_it(one.space.base);
        move_to_it(one.job.resolved.plan);
        for (StackAlternative& code : one.job.open.codes) move_to_it(code.plan);
        for (Plan& plan : one.job.open.refused) move_to_it(plan);
      }
      const bool is_own = one.job.model == variant.job.model;
      list.insert(is_own ? list.begin() + begin : list.end(), std::move(one));
    }
  }
}

}

std::vector<Plan> plans_of(const JobVariant& variant) {
  try {
    return enumerate(variant.space, variant.job.model, variant.job.cluster);
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::kInvalidInput) throw;
    return {};
  }
}

SearchVariants search_variants(const Job& job, const SpaceRequest& request) {
  auto [axes, others] = split_axes(request.vary);
  if (!axes.empty() && !contains(axes, kExpertAxis)) axes.emplace_back(kExpertAxis);
  const SpaceRequest of_knobs{request.global_batch, others};
  SearchVariants variants;
  variants.list = variants_by_model(job, of_knobs);
  const std::int64_t batch = variants.list[0].space.global_batch;
  const bool is_fixed_mesh = is_fixed(job, "mesh.shard") || is_fixed(job, "mesh.replicate");
  const auto spanned = [of_knobs, is_fixed_mesh, batch](std::vector<Job> jobs) {
    std::vector<JobVariant> list;
    for (Job& other : jobs) {
      SearchSpace space = space_of_variant(other, of_knobs);
      space.global_batch = batch;
      // A side of the mesh that a plan file wrote was made to fit; it varies as it did.
      if (!is_fixed_mesh) space.shard_groups.clear();
      add_by_model(list, {std::move(other), std::move(space)});
    }
    return list;
  };
  const auto over_axes = [job, spanned, batch](const std::vector<std::string>& keys) {
    return spanned(jobs_over_axes(job, keys, batch));
  };
  variants.around = [spanned](const std::vector<const JobVariant*>& over_axes) {
    std::vector<Job> jobs;
    for (const JobVariant* variant : over_axes) append(jobs, free_variants(variant->job));
    return spanned(std::move(jobs));
  };
  for (Job& other : free_variants(job)) append(variants.list, variants_by_model(std::move(other), of_knobs));
  // A batch that the ranks do not divide is a mistake to be named, not to be mended by axes.
  const Mesh& mesh = job.resolved.plan.mesh;
  const std::int64_t ranks = job.cluster.gpus / mesh.sharing();
  const bool is_mistake = batch >= ranks && batch % ranks != 0;
  if (!is_mistake && axes.empty()) {
    const std::int64_t domain = job.cluster.gpus_per_node() * job.cluster.node.link_domain;
    const auto is_near = [domain](const JobVariant& variant) { return variant.job.resolved.plan.mesh.ep <= domain; };
    std::vector<JobVariant> mixtures = over_axes({kExpertAxis});
    std::erase_if(mixtures, [&](const JobVariant& variant) { return !is_near(variant); });
    append(variants.list, std::move(mixtures));
    variants.otherwise = [over_axes, spanned, batch, is_near, mesh, domain, is_one_of_many = request.is_one_of_many](
                             const JobVariant* best) {
      if (best == nullptr || !is_one_of_many) {
        std::vector<JobVariant> list = over_axes(inner_axis_keys());
        std::erase_if(list, [&](const JobVariant& variant) {
          const Plan& plan = variant.job.resolved.plan;
          const Mesh& other = plan.mesh;
          const bool is_known = other.tp == mesh.tp && other.cp == mesh.cp && is_near(variant);
          const bool is_fine = plan.batch.sequence / other.cp < kLongPart && other.cp > 1;
          const bool is_wide = other.etp > 1 || other.ep > kDomains * domain;
          return is_known || (best != nullptr && (is_fine || is_wide));
        });
        return list;
      }
      std::vector<JobVariant> list = spanned(jobs_over_axes(best->job, {kContextAxis}, batch));
      std::erase_if(list, [](const JobVariant& variant) {
        const Plan& plan = variant.job.resolved.plan;
        return plan.batch.sequence / plan.mesh.cp < kLongPart;
      });
      // Where experts fill a domain, groups over several may do.
      if (best->space.base.mesh.ep * 2 <= domain) return list;
      std::vector<JobVariant> wide = over_axes({kExpertAxis});
      std::erase_if(wide, [&](const JobVariant& variant) {
        return is_near(variant) || variant.job.resolved.plan.mesh.ep > kDomains * domain;
      });
      append(list, std::move(wide));
      return list;
    };
  }
  if (!axes.empty()) append(variants.list, over_axes(axes));
  return variants;
}

std::vector<JobVariant> variants_by_model(Job job, const SpaceRequest& request) {
  std::vector<JobVariant> list;
  SearchSpace space = space_of_variant(job, request);
  add_by_model(list, {std::move(job), std::move(space)});
  return list;
}

}
