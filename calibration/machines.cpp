// A cluster file is the machine's catalogue entry read first and the file's own
// figures read over it; without a machine all of them must be there.
#include "calibration/machines.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "calibration/clusters/cluster_names.h"
#include "calibration/clusters/cluster_nodes.h"
#include "calibration/gpu_names.h"
#include "calibration/machine_figures.h"
#include "sim/base/config.h"
#include "sim/base/embedded.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/base/spelling.h"
#include "sim/spec/network/routes.h"

namespace foreshard {
namespace {

constexpr std::string_view kFolder = "calibration/machines/";
constexpr std::string_view kSpecExample = "a count and a machine, such as 64xh100, or the path of a cluster file";

struct MachineFile {
  std::string_view key;  // its name
  const EmbeddedFile* file = nullptr;
};

// By file name, whatever folders they are in.
std::vector<MachineFile> machine_files() {
  constexpr std::string_view kEnding = ".yaml";
  std::vector<MachineFile> files;
  for (const EmbeddedFile& file : calibration_files()) {
    if (!file.path.starts_with(kFolder) || !file.path.ends_with(kEnding)) continue;
    std::string_view key = file.path.substr(file.path.rfind('/') + 1);
    key.remove_suffix(kEnding.size());
    files.push_back({key, &file});
  }
  std::ranges::sort(files, [](const MachineFile& a, const MachineFile& b) {
    // With the ending: rtx-3090-ti.yaml stands before rtx-3090.yaml.
    return std::string(a.key) + '.' < std::string(b.key) + '.';
  });
  return files;
}

Machine read_machine(const EmbeddedFile& file) {
  const ConfigNode root = parse_yaml(file.content, file.path);
  root.allow_only({"aliases", "server", "gpu", "node", "network", "memory_outside_allocator"});
  Machine machine;
  auto missing = MissingFigures::kError;
  if (const ConfigNode* server = root.find("server")) {
    const std::vector<MachineFile> files = machine_files();
    const auto other = std::ranges::find(files, server->text(), &MachineFile::key);
    if (other == files.end()) throw server->error("is no machine", "the key of another one");
    Cluster whole = read_machine(*other->file).node;
    std::erase_if(whole.sources,
        [](const auto& source) { return !source.first.starts_with("node.") && !source.first.starts_with("network."); });
    machine.node.node = std::move(whole.node);
    machine.node.network = std::move(whole.network);
    machine.node.sources = std::move(whole.sources);
    missing = MissingFigures::kKeepServer;
  }
  // The file is called as its machine, its folder as the architecture (by what names the card).
  const std::filesystem::path path{std::string(file.path)};
  machine.key = path.stem().string();
  if (const ConfigNode* aliases = root.find("aliases"))
    for (const ConfigNode& each : aliases->elements()) machine.aliases.push_back(each.as_string());
  machine.node.gpu.key = machine.key;
  read_figures(root, missing, machine.node);
  machine.node.gpu.architecture = path.parent_path().filename().string();
  const auto name =
      std::ranges::find(machine.node.sources, "gpu.name", [](const auto& source) { return source.first; });
  machine.node.sources.emplace_back("gpu.architecture", std::string(name->second));
  machine.node.gpus = machine.node.node.gpus;
  machine.node.spec = fmt::format("{}x{}", machine.node.gpus, machine.key);
  join_sources(machine.node);
  return machine;
}

std::string_view aliases_line(std::string_view content) {
  const std::size_t begin = content.find("\naliases:");
  if (begin == std::string_view::npos) return {};
  return content.substr(begin + 1, content.find('\n', begin + 1) - begin - 1);
}

// Whether the file's line of aliases has the word.
bool has_alias(std::string_view content, std::string_view key) {
  constexpr std::string_view kBorders = " ,[]\"'";
  const std::string_view line = aliases_line(content);
  for (std::size_t at = line.find(key); at != std::string_view::npos; at = line.find(key, at + 1)) {
    const std::size_t end = at + key.size();
    const bool begins = at > 0 && contains(kBorders, line[at - 1]);
    const bool ends = end == line.size() || contains(kBorders, line[end]);
    if (begins && ends) return true;
  }
  return false;
}

// The machine called `key` or with that alias. The file of that name is looked at first, then those
// whose line of aliases has the word: reading all takes forty times as long as reading one.
std::optional<Machine> find_machine(std::string_view key) {
  const std::vector<MachineFile> files = machine_files();
  for (const MachineFile& each : files)
    if (each.key == key) return made_once<read_machine>(*each.file);
  for (const MachineFile& each : files) {
    if (!has_alias(each.file->content, key)) continue;
    const Machine& machine = made_once<read_machine>(*each.file);
    if (contains(machine.aliases, key)) return machine;
  }
  return std::nullopt;
}

// Every key and alias with its key, without reading the figures.
std::vector<std::pair<std::string, std::string>> machine_words() {
  std::vector<std::pair<std::string, std::string>> words;
  for (const auto& [key, file] : machine_files()) {
    words.emplace_back(key, key);
    std::string_view rest = aliases_line(file->content);
    rest.remove_prefix(std::min(rest.find('[') + 1, rest.size()));
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find_first_of(",]"), rest.size());
      std::string_view word = rest.substr(0, end);
      word.remove_prefix(std::min(word.find_first_not_of(" \"'"), word.size()));
      word = word.substr(0, word.find_last_not_of(" \"'") + 1);
      if (!word.empty()) words.emplace_back(word, key);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  return words;
}

struct Known {
  std::string list;     // "h100-sxm, h100-nvl, ...": those that begin alike
  std::string nearest;  // "" when nothing is near
};

// Of machines that differ in as many letters the one that begins alike: h10 means h100, not a10.
Known known_machines(std::string_view wrong) {
  constexpr std::ptrdiff_t kMostShown = 6;
  std::vector<std::string> words = cluster_words();
  const auto alike = [&](const std::string& word) {
    const auto same = [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); };
    return std::mismatch(word.begin(), word.end(), wrong.begin(), wrong.end(), same).first - word.begin();
  };
  std::ranges::stable_sort(words, [&](const std::string& x, const std::string& y) { return alike(x) > alike(y); });
  std::string nearest = nearest_spelling(wrong, words);
  const std::ptrdiff_t most = words.empty() ? 0 : alike(words.front());
  const auto end = std::ranges::find_if(
      words, [&](const std::string& word) { return alike(word) < std::max<std::ptrdiff_t>(most, 1); });
  words.erase(std::min(end, words.begin() + kMostShown), words.end());
  if (words.empty()) words = {"h100", "h200", "b200", "a100", "mi300x", "p5.48xlarge"};
  return {fmt::format("{}; foreshard machines lists all", fmt::join(words, ", ")), std::move(nearest)};
}

// Why `gpus` of nodes of `per_node` is not a cluster, "" where it is.
std::string count_problem(std::int64_t gpus, std::int64_t per_node) {
  if (gpus <= per_node || gpus % per_node == 0) return "";
  const std::int64_t below = gpus / per_node * per_node;
  return fmt::format(
      "{} GPUs are not whole nodes of {}; the next multiples are {} and {}", gpus, per_node, below, below + per_node);
}

template <typename... Parts>
[[noreturn]] void fail_spec(std::string_view spec, fmt::format_string<Parts...> why, Parts&&... parts) {
  throw invalid_input("cluster '{}': {}", spec, fmt::format(why, std::forward<Parts>(parts)...));
}

// The cloud's own network in place of the catalogue's usual one.
void put_instance(const Instance& instance, Cluster& cluster) {
  NodeKind& node = cluster.node;
  node.key = instance.name;
  node.gpus = instance.gpus;
  node.nics = instance.nics;
  node.nic_rate = instance.nic_rate;
  node.nic_name = instance.nic_name;
  for (auto& [path, source] : cluster.sources) {
    for (const char* changed : {"node.key", "node.gpus", "node.nics", "node.nic_rate", "node.nic_name"})
      if (path == changed) source = instance.source;
  }
  join_sources(cluster);
}

std::optional<ClusterName> cluster_name(std::string_view text) {
  auto words = list_of<std::string>(machine_words(), [&](const auto& each) { return each.first; });
  return read_cluster_name(text, words, kMaxGpus);
}

Cluster from_catalogue(std::string_view spec, const ClusterName& name) {
  const bool is_instance = name.instance.has_value();
  std::optional<Machine> machine = find_machine(is_instance ? name.instance->machine : name.name);
  FORESHARD_CHECK(machine.has_value(), "a name of the catalogue without a machine");
  Cluster cluster = std::move(machine->node);
  if (is_instance) put_instance(*name.instance, cluster);
  if (!name.count && !is_instance) fail_spec(spec, "says no count; did you mean {}x{}?", cluster.node.gpus, name.name);
  const std::int64_t count = name.count.value_or(1);
  const std::int64_t each = name.counts_nodes ? cluster.node.gpus : 1;
  if (count < 1 || count > kMaxGpus / each) fail_spec(spec, "the count must be 1 to {}", kMaxGpus / each);
  cluster.gpus = count * each;
  if (const std::string why = count_problem(cluster.gpus, cluster.node.gpus); !why.empty()) fail_spec(spec, "{}", why);
  // As it would be written next time: instances are counted, GPUs of the catalogue are.
  cluster.spec = is_instance && cluster.gpus % cluster.node.gpus == 0
                     ? fmt::format("{}x{}", cluster.gpus / cluster.node.gpus, name.name)
                 : is_instance ? fmt::format("{} gpus of {}", cluster.gpus, name.name)
                               : fmt::format("{}x{}", cluster.gpus, name.name);
  return cluster;
}

// degraded: [{node: 3, nic: 2, fraction: 0}, {node: 0, gpu: 5, fraction: 0.5}]
void read_degraded(const ConfigNode& list, Cluster& cluster) {
  for (const ConfigNode& element : list.elements()) {
    const ConfigNode node = element.at("node", "which node, from 0");
    const std::int64_t number = node.as_int(0, cluster.nodes() - 1);
    DegradedLink link = read_degraded_link(element, cluster.node);
    link.node = number;
    for (const DegradedLink& other : cluster.degraded)
      if (other.node == link.node && other.part == link.part && other.index == link.index)
        throw element.error("is there twice", "each link once");
    cluster.degraded.push_back(link);
    const auto missing = std::ranges::count_if(cluster.degraded, [&](const DegradedLink& other) {
      return other.node == link.node && other.part == DegradedLink::Part::kNic && other.fraction <= 0;
    });
    if (missing > 0 && missing >= cluster.node.nics && cluster.nodes() > 1)
      throw element.error("leaves its node without a port", "at least one port of every node");
  }
}

// Of a GPU that is not in the catalogue and says no architecture: that of the one its key or its
// name means, where there is one.
void name_architecture(Cluster& cluster) {
  const std::vector<Machine> machines = list_machines();
  const Machine* like = match_gpu(cluster.gpu.key, machines);
  if (like == nullptr) like = match_gpu(cluster.gpu.name, machines);
  if (like == nullptr) return;
  cluster.gpu.architecture = like->node.gpu.architecture;
  cluster.sources.emplace_back("gpu.architecture", "not stated; as " + like->key);
}

// One full node of the machine that a file names.
Cluster machine_at(const ConfigNode& key) {
  std::optional<Machine> machine = find_machine(key.as_string());
  if (!machine) machine = machine_named(key.as_string());
  if (machine) return std::move(machine->node);
  const Known known = known_machines(key.as_string());
  throw key.error("unknown machine", "such as " + known.list, known.nearest);
}

// The nodes of a group: the file's usual ones, or of a machine of their own, with the figures that the group has.
Cluster read_kind(const ConfigNode& group, const Cluster& usual) {
  Cluster kind = usual;
  if (const ConfigNode* key = group.find("machine")) kind = machine_at(*key);
  const Cluster catalogue = kind;
  read_figures(group, MissingFigures::kKeep, kind);
  check_physics(group, kind, &catalogue);
  join_sources(kind);
  return kind;
}

Cluster from_file(const ConfigNode& root, std::string_view file_name) {
  if (!root.is_mapping()) throw root.error("is not a mapping", "gpus: and machine:");
  root.allow_only({"gpus", "machine", "gpu", "node", "network", "degraded", "memory_outside_allocator", "nodes",
      "switches", "links", "ranks", "rings", "background"});
  const bool is_listed = root.has("nodes");
  for (const char* key : {"switches", "links", "ranks", "rings", "background"})
    if (!is_listed && root.has(key))
      throw root.at(key).error("stands without nodes:", "nodes: [{count: 8, leaf: leaf1}, ...]");
  Cluster cluster;
  std::optional<Cluster> catalogue;
  auto missing = MissingFigures::kError;
  if (const ConfigNode* key = root.find("machine")) {
    catalogue = machine_at(*key);
    cluster = *catalogue;
    missing = MissingFigures::kKeep;
  }
  if (const ConfigNode* gpu = root.find("gpu"); gpu != nullptr && gpu->is_mapping()) {
    if (const ConfigNode* key = gpu->find("key")) {
      if (root.has("machine")) throw key->error("machine: already names the GPU", "either machine: or gpu.key:");
      cluster.gpu.key = key->as_string();
      if (cluster.gpu.key.empty()) throw key->error("is empty", "a name");
    }
  }
  if (cluster.gpu.key.empty())
    throw root.error("names no machine", "machine: with a key of the catalogue, such as h100-sxm");
  read_figures(root, missing, cluster);
  if (cluster.gpu.architecture.empty()) name_architecture(cluster);
  check_physics(root, cluster, catalogue ? &*catalogue : nullptr);
  if (is_listed) {
    if (const ConfigNode* degraded = root.find("degraded"))
      throw degraded->error("stands beside nodes:", "degraded: in the group of its node");
    const Cluster usual = cluster;
    const KindReader kind_of = [&](const ConfigNode& group) { return read_kind(group, usual); };
    read_layout(root, kind_of, cluster);
    cluster.spec = std::string(file_name);
    join_sources(cluster);
    return with_routes(std::move(cluster));
  }
  const ConfigNode gpus = root.at("gpus", "how many GPUs, such as 64");
  cluster.gpus = gpus.as_int(1, kMaxGpus);
  if (const std::string why = count_problem(cluster.gpus, cluster.node.gpus); !why.empty())
    throw gpus.error(why, "whole nodes, or less than one node");
  if (cluster.nodes() > 1 && cluster.node.nics == 0)
    throw root.error(fmt::format("{} nodes without a network port", cluster.nodes()), "node: {nics: 8, ...}");
  if (const ConfigNode* degraded = root.find("degraded")) read_degraded(*degraded, cluster);
  cluster.spec = std::string(file_name);
  join_sources(cluster);
  return with_routes(std::move(cluster));
}

}

std::vector<Machine> list_machines() {
  return list_of<Machine>(
      machine_files(), [&](const MachineFile& each) { return made_once<read_machine>(*each.file); });
}

std::vector<std::string> cluster_words() {
  auto words = list_of<std::string>(machine_words(), [&](const auto& each) { return each.first; });
  for (const Instance& instance : list_instances()) words.push_back(instance.name);
  return words;
}

std::optional<Machine> machine_named(std::string_view text) {
  const std::optional<ClusterName> name = cluster_name(text);
  if (!name || name->count) return std::nullopt;
  std::optional<Machine> machine = find_machine(name->instance ? name->instance->machine : name->name);
  if (!machine) return std::nullopt;
  Cluster& node = machine->node;
  if (name->instance) {
    put_instance(*name->instance, node);
    node.gpus = name->instance->gpus;
  }
  node.spec = fmt::format("{}x{}", name->instance ? 1 : node.gpus, name->name);
  return machine;
}

bool is_cluster_file(std::string_view spec, const std::filesystem::path& seen) {
  if (contains(spec, '/') || spec.ends_with(".yaml") || spec.ends_with(".yml")) return true;
  std::error_code ignored;
  return !cluster_name(spec) && std::filesystem::exists(seen, ignored);
}

Cluster load_cluster(std::string_view spec) {
  if (spec.empty()) fail_spec(spec, "is empty; expected {}", kSpecExample);
  const std::filesystem::path path{std::string(spec)};
  if (is_cluster_file(spec, path)) return from_file(read_yaml_file(path), spec);
  if (const std::optional<ClusterName> name = cluster_name(spec)) return from_catalogue(spec, *name);
  // The part behind a count is what was misspelt.
  std::size_t begin = std::min(spec.find_first_not_of("0123456789+- "), spec.size());
  const std::string_view count = spec.substr(0, begin);
  if (begin > 0 && begin < spec.size() && (spec[begin] == 'x' || spec[begin] == 'X')) ++begin;
  const std::string_view word = spec.substr(begin);
  const Known known = known_machines(word);
  const std::string number(count.substr(0, count.find(' ')));
  if (count.starts_with('-') || count.starts_with('+')) fail_spec(spec, "the count must be 1 to {}", kMaxGpus);
  if (number.empty() || word.empty()) {
    fail_spec(spec, "expected {}{}; such as {}", kSpecExample,
        known.nearest.empty() ? "" : fmt::format("; did you mean 8x{}?", known.nearest), known.list);
  }
  fail_spec(spec, "unknown machine '{}'{}; such as {}", word,
      known.nearest.empty() ? "" : fmt::format("; did you mean {}x{}?", number, known.nearest), known.list);
}

Cluster parse_cluster(std::string_view yaml, std::string_view file_name) {
  return from_file(parse_yaml(yaml, file_name), file_name);
}

}
