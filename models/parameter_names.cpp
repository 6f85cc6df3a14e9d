// Reads parameter_names.txt, a row for each implementation.
#include "models/parameter_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "sim/base/embedded.h"
#include "sim/base/error.h"
#include "sim/base/letters.h"

namespace foreshard {
namespace {

constexpr std::pair<std::string_view, std::string_view ParameterNames::*> kMembers[] = {
    {"blocks", &ParameterNames::blocks}, {"embedding", &ParameterNames::embedding},
    {"positions", &ParameterNames::positions}, {"embedding_norm", &ParameterNames::embedding_norm},
    {"norm1", &ParameterNames::norm1}, {"q", &ParameterNames::q}, {"k", &ParameterNames::k}, {"v", &ParameterNames::v},
    {"qkv", &ParameterNames::qkv}, {"o", &ParameterNames::o}, {"q_norm", &ParameterNames::q_norm},
    {"k_norm", &ParameterNames::k_norm}, {"norm2", &ParameterNames::norm2}, {"gate", &ParameterNames::gate},
    {"up", &ParameterNames::up}, {"down", &ParameterNames::down}, {"final_norm", &ParameterNames::final_norm},
    {"head", &ParameterNames::head}, {"q_a", &ParameterNames::q_a}, {"q_a_norm", &ParameterNames::q_a_norm},
    {"q_b", &ParameterNames::q_b}, {"kv_a", &ParameterNames::kv_a}, {"kv_a_norm", &ParameterNames::kv_a_norm},
    {"kv_b", &ParameterNames::kv_b}, {"gate_up", &ParameterNames::gate_up},
    {"post_attention_norm", &ParameterNames::post_attention_norm}, {"post_mlp_norm", &ParameterNames::post_mlp_norm},
    {"router", &ParameterNames::router}, {"experts", &ParameterNames::experts},
    {"expert_gate", &ParameterNames::expert_gate}, {"expert_up", &ParameterNames::expert_up},
    {"expert_down", &ParameterNames::expert_down}, {"shared_gate", &ParameterNames::shared_gate},
    {"shared_expert_gate", &ParameterNames::shared_expert_gate},
    {"shared_expert_up", &ParameterNames::shared_expert_up},
    {"shared_expert_down", &ParameterNames::shared_expert_down}, {"sinks", &ParameterNames::sinks},
    {"attention_gate", &ParameterNames::attention_gate}, {"correction", &ParameterNames::correction},
    {"router_scale", &ParameterNames::router_scale}, {"expert_scale", &ParameterNames::expert_scale},
    {"token_types", &ParameterNames::token_types}, {"head_transform", &ParameterNames::head_transform},
    {"head_norm", &ParameterNames::head_norm}, {"head_bias", &ParameterNames::head_bias},
    {"mamba", &ParameterNames::mamba}, {"latent_in", &ParameterNames::latent_in},
    {"latent_out", &ParameterNames::latent_out}, {"project_in", &ParameterNames::project_in},
    {"project_out", &ParameterNames::project_out}};

std::string_view ParameterNames::*member_named(std::string_view word) {
  for (const auto& [member, place] : kMembers)
    if (member == word) return place;
  throw Error(ExitCode::kInternal, "no implementation has a module {}", word);
}

struct NamingRow {
  std::string_view naming;
  ParameterNames names;
};

std::size_t row_of(const std::vector<NamingRow>& rows, std::string_view naming) {
  const auto row = std::ranges::find(rows, naming, &NamingRow::naming);
  FORESHARD_CHECK(row != rows.end(), fmt::format("no implementation is {}", naming));
  return at(row - rows.begin());
}

std::vector<NamingRow> read_rows() {
  std::vector<NamingRow> rows;
  for (const auto& cells : rows_of_table(parameter_name_files().front().content)) {
    std::string_view base = cells.at(0), words = cells.at(1);
    const std::string_view naming = cut(base, " = ");
    NamingRow row = {naming, base.empty() ? ParameterNames() : rows[row_of(rows, base)].names};
    while (!words.empty()) {
      std::string_view module = cut(words, " ");
      const std::string_view member = cut(module, "=");
      row.names.*member_named(member) = module;
    }
    rows.push_back(row);
  }
  return rows;
}

const std::vector<NamingRow>& naming_rows() {
  static const std::vector<NamingRow> rows = read_rows();
  return rows;
}

}

Naming naming_of(std::string_view name) { return static_cast<Naming>(row_of(naming_rows(), name)); }

const ParameterNames& parameter_names(const ModelDims& dims) {
  const bool is_falcon_of_one_norm = dims.naming == Naming::kFalcon && dims.residual != Residual::kParallel;
  const Naming naming = is_falcon_of_one_norm ? Naming::kBloom : dims.naming;
  return naming_rows().at(at(naming)).names;
}

std::string_view name_in(const ParameterNames& names, std::string_view member) { return names.*member_named(member); }

}
