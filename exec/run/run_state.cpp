// Checkpoints read and write host memory: what lives on a device goes through mirrors there.
#include "exec/run/run_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "exec/engine/update.h"
#include "exec/state/together.h"
#include "sim/base/error.h"

namespace foreshard {

RunState::RunState(const ModelSpec& model, const Plan& plan, Engine& engine, World& world, const TrainOptions& options)
    : model_(model), plan_(plan), engine_(engine), world_(world), options_(options) {}

void RunState::note(const std::string& sentence) const {
  if (world_.rank() == 0 && options_.note) options_.note(sentence);
}

std::byte* RunState::on_host(std::byte* data, std::size_t bytes) {
  if (options_.device == nullptr || engine_.units().offloads()) return data;
  Mirror& mirror = mirrors_.emplace_back(Mirror{data, std::vector<std::byte>(bytes)});
  engine_.units().memory().to_host(mirror.copy.data(), data, bytes);
  return mirror.copy.data();
}

void RunState::put_on_device() {
  for (const Mirror& mirror : mirrors_)
    engine_.units().memory().to_device(mirror.device, mirror.copy.data(), mirror.copy.size());
  mirrors_.clear();
}

TrainingState RunState::state() {
  mirrors_.clear();
  TrainingState state;
  state.shards = plan_.mesh.shard;
  state.shard_index = engine_.shard_index();
  state.replicas = plan_.mesh.replicate;
  state.replica_index = engine_.replica();
  state.parts = plan_.mesh.tp;
  state.part_index = engine_.part_index();
  for (UnitMemory& unit : engine_.units().all()) {
    StateUnit& described = state.units.emplace_back();
    described.name = unit.name;
    described.shard_numel = unit.shard;
    for (std::size_t i = 0; i < unit.layout.parameters.size(); ++i) {
      const FlatParameter& p = unit.layout.parameters[i];
      const LayerInstance& layer = model_.order[at(p.layer)];
      described.parameters.push_back({parameter_name(model_, p),
          model_.kinds[at(layer.kind)].parameters[at(p.parameter)].shape, p.offset, p.numel});
      if (unit.cuts[i].row == 0) continue;
      described.parameters.back().parts = plan_.mesh.tp;
      described.parameters.back().cut = unit.cuts[i].row == p.numel ? 0 : 1;
    }
    const auto add = [&](const char* name, DType dtype, std::byte* data) {
      const auto bytes = at(unit.shard * size_of(dtype));
      described.arrays.push_back({name, dtype, {on_host(data, bytes), bytes}});
    };
    add("master", plan_.master_dtype, unit.master);
    static constexpr const char* kMoments[] = {"exp_avg", "exp_avg_sq"};
    for (std::size_t i = 0; i < unit.moments.size(); ++i) add(kMoments[i], plan_.optimizer.state, unit.moments[i]);
  }
  return state;
}

void RunState::start(const JobIdentity& job) {
  job_ = job;
  progress_.seed = plan_.seed;
  if (options_.resume.empty()) engine_.initialise();
  else resume();
  for (const auto& [key, value] : options_.metadata) progress_.metadata[key] = value;
  progress_.metadata[kJobKey] = to_text(job_);
  if (!options_.checkpoint.empty()) claim_folder();
}

void RunState::resume() {
  const LoadedCheckpoint loaded = load_checkpoint(options_.resume, state(), world_);
  for (const std::string& sentence : loaded.passed_over) note(sentence);
  put_on_device();
  for (UnitMemory& unit : engine_.units().all()) refresh_shadow(unit, plan_, engine_.units().states().device());
  progress_ = loaded.progress;
  progress_.seed = plan_.seed;
  compare_with(loaded);
  note(fmt::format("resumed {} after step {}", loaded.path.string(), progress_.step));
  if (progress_.step >= options_.steps)
    note(fmt::format("nothing to do: step {} of {} is done", progress_.step, options_.steps));
}

// Everything that a run of the checkpoint's numbers has to have in common with it.
void RunState::compare_with(const LoadedCheckpoint& loaded) const {
  const auto text = loaded.progress.metadata.find(kJobKey);
  JobIdentity before;  // an older program's checkpoint tells its seed only
  if (text != loaded.progress.metadata.end()) before = job_identity_of(text->second, loaded.path.string());
  before.values["seed"] = std::to_string(loaded.progress.seed);
  const std::vector<FactChange> changes = changes_of(before.values, job_.values);
  const std::vector<FactChange> refused = unaccepted(changes, options_.accept_changes);
  if (!refused.empty()) {
    auto keys = list_of<std::string>(refused, &FactChange::key);
    throw invalid_input(
        "checkpoint {} is of a run with other numbers: {}; go on with what it had, or say that this may change: "
        "--accept-changes {}",
        loaded.path.string(), in_words(refused), fmt::join(keys, ","));
  }
  if (!changes.empty()) note("changed since the checkpoint: " + in_words(changes));
  const std::vector<FactChange> last_bits = changes_of(before.last_bits, job_.last_bits);
  if (last_bits.empty()) return;
  note(fmt::format(
      "changed since the checkpoint: {}; sums are made in another order, so numbers may differ in their last bits",
      in_words(last_bits)));
}

void RunState::claim_folder() {
  std::int64_t bytes = 0;
  for (const UnitMemory& unit : engine_.units().all()) {
    const auto moments = std::ssize(unit.moments);
    bytes += unit.padded() * plan_.mesh.tp * (size_of(plan_.master_dtype) + moments * size_of(plan_.optimizer.state));
  }
  succeed_together(world_, "checkpoint.claim", [&] {
    if (world_.rank() == 0)
      claim_.emplace(ClaimOptions{options_.checkpoint, job_, options_.accept_changes, progress_.step + 1, bytes});
    return std::string();
  });
  if (claim_ && !claim_->note().empty()) note(claim_->note());
}

void RunState::save() {
  const SavedCheckpoint saved =
      save_checkpoint({options_.checkpoint, options_.checkpoint_keep, progress_.step + 1}, state(), progress_, world_);
  for (const std::string& warning : saved.warnings) note(warning);
  mirrors_.clear();
}

}
