// The command is a child process with the null GPU's library in LD_PRELOAD, the same library found
// as CUDA's driver (and a library under the names of CUDA's others, found where these are not
// installed), Python's part of it in PYTHONPATH, and the environment that torchrun gives a rank.
#include "cli/null/null_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "calibration/capability.h"
#include "calibration/machines.h"
#include "cli/output.h"
#include "sim/base/error.h"
#include "sim/base/json_document.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

constexpr int kNotAnswered = static_cast<int>(ExitCode::kMissingCapability);
constexpr Bytes kAnyModel(std::int64_t{1} << 46);
// Of one sample, what grows with samples looks as what does not; of three it hardly does.
constexpr std::int64_t kTellingBatch = 3;

fs::path library_folder() {
  const fs::path program = fs::read_symlink("/proc/self/exe");
  fs::path folder = program.parent_path() / "null";
  if (!fs::exists(folder / "libforeshard-null.so")) {
    throw Error(ExitCode::kMissingCapability,
        "{}: is not there; expected the null GPU's library beside the program (./x build makes both)",
        (folder / "libforeshard-null.so").string());
  }
  return folder;
}

Cluster one_node(const std::string& gpu) {
  if (const auto machine = machine_named(gpu)) return machine->node;
  try {
    return load_cluster("1x" + gpu);
  } catch (const Error& error) {
    throw Error(ExitCode::kUsage, "--gpu {}: no such GPU: {}", gpu, error.what());
  }
}

// `memory`: of a device.
std::string gpu_variable(const Cluster& node, std::int64_t devices, Bytes memory) {
  const ComputeCapability c = capability_of(node.gpu);
  return fmt::format(
      "name={};memory={};major={};minor={};devices={};multiprocessors={};l2={};shared_per_multiprocessor={};shared_per_"
      "block={};threads_per_multiprocessor={};blocks_per_multiprocessor={}",
      node.gpu.name, memory.count(), c.major, c.minor, devices, node.gpu.multiprocessors, c.l2_bytes,
      c.shared_per_multiprocessor, c.shared_per_block, c.threads_per_multiprocessor, c.blocks_per_multiprocessor);
}

void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

void put_before(const char* name, const std::string& value, char separator) {
  const char* const now = std::getenv(name);
  set(name, now == nullptr || *now == '\0' ? value : value + separator + now);
}

void set_environment(const NullOptions& options, const Cluster& node, const fs::path& library, const fs::path& out) {
  const std::int64_t per_node = std::min(options.world, node.node.gpus);
  set("FORESHARD_NULL_OUT", out.string());
  // A model alone is captured for what a plan makes of it, which is to say whether it fits.
  const Bytes memory = options.config.empty() ? node.gpu.memory : kAnyModel;
  set("FORESHARD_NULL_GPU", gpu_variable(node, per_node, memory));
  set("FORESHARD_NULL_EVENTS", options.events);
  set("FORESHARD_NULL_MODULES", options.modules ? "1" : "0");
  set("FORESHARD_NULL_VALUES", options.values ? "1" : "0");
  std::string after;
  for (const std::string& folder : options.after) after += fs::absolute(folder).string() + ":";
  set("FORESHARD_NULL_AFTER", after);
  set("FORESHARD_NULL_ONES", options.ones ? "1" : "0");
  set("FORESHARD_NULL_CHECK", options.check ? "1" : "0");
  set("FORESHARD_NULL_PADDED", options.padded ? "1" : "0");
  ::unsetenv("FORESHARD_NULL_PID");
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  put_before("LD_PRELOAD", (library / "libforeshard-null.so").string(), ':');
  put_before("LD_LIBRARY_PATH", (library / "lib").string(), ':');
  // Behind all others: a library that is there is taken.
  set("LD_LIBRARY_PATH", std::getenv("LD_LIBRARY_PATH") + (":" + (library / "absent").string()));
  put_before("PYTHONPATH", (library / "python").string(), ':');
  set("TRITON_LIBCUDA_PATH", (library / "lib").string());
  const auto number = [](std::int64_t value) { return std::to_string(value); };
  set("RANK", number(options.rank));
  set("WORLD_SIZE", number(options.world));
  set("LOCAL_RANK", number(options.rank % per_node));
  set("LOCAL_WORLD_SIZE", number(per_node));
  set("GROUP_RANK", number(options.rank / per_node));
  set("GROUP_WORLD_SIZE", number((options.world + per_node - 1) / per_node));
  set("ROLE_RANK", number(options.rank));
  set("ROLE_WORLD_SIZE", number(options.world));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", "29500");
  set("TORCHELASTIC_RUN_ID", "foreshard-null");
  // ProcessGroupNCCL's monitor asks the store, which is Python's here, until after Python has ended.
  set("TORCH_NCCL_ENABLE_MONITORING", "0");
  set("TORCH_NCCL_DUMP_ON_TIMEOUT", "0");
  ::setenv("OMP_NUM_THREADS", "1", 0);
  ::setenv("PYTHONFAULTHANDLER", "1", 0);  // a signal names its line, too
  ::setenv("HF_HUB_OFFLINE", "1", 0);
  // Checks of values that nobody computed.
  ::setenv("TRANSFORMERS_DISABLE_TORCH_CHECK", "1", 0);
}

// How many times as long this processor takes as that of calibration/evidence/host_calls.json, as
// Python measured (exec/null/python) behind each step: their geometric mean, for a whole step is
// held up as often as the machine is, and one short piece says little (33 captures of codes that
// ran on GPUs: their hosts' times 14 and 9 % off in the median, by the least of the last two 26 and
// 18). 1 where no optimizer of PyTorch stepped.
double processor_of_steps(const fs::path& out) {
  const fs::path model = out / "model.json";
  if (!fs::exists(model)) return 1;
  const std::vector<double> seen = read_json_document(model).value("processor", std::vector<double>{});
  if (seen.empty()) return 1;
  const double logs =
      std::accumulate(seen.begin(), seen.end(), 0.0, [](double sum, double x) { return sum + std::log(x); });
  return std::exp(logs / static_cast<double>(seen.size()));
}

// What an earlier capture left in the folder, and nothing else.
void clear(const fs::path& out) {
  fs::create_directories(out);
  for (const char* name : {"calls.txt", "calls.txt.gz", "capture.json", "model.json", "modules.json", "refused.txt"})
    fs::remove(out / name);
}

// The child's wait status.
int run(const NullOptions& options, const Cluster& node, const fs::path& library, const fs::path& out) {
  const pid_t child = ::fork();
  if (child < 0) throw Error(ExitCode::kInternal, "no process can be started");
  if (child == 0) {
    set_environment(options, node, library, out);
    std::vector<char*> words;
    for (const std::string& word : options.command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    ::execvp(words.front(), words.data());
    constexpr int kNotFound = 127;
    ::_exit(kNotFound);
  }
  // Ctrl-C is the child's; this process ends when it has.
  std::signal(SIGINT, SIG_IGN);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

// Whether calls.txt has a line of one of these letters; V is a fault's.
bool has_calls(const fs::path& out, std::string_view letters) {
  std::ifstream calls(out / "calls.txt");
  for (std::string line; std::getline(calls, line);)
    if (line.size() > 1 && line[1] == ' ' && contains(letters, std::string_view(line).substr(0, 1))) return true;
  return false;
}

// Where a command that failed read what nobody computed, for lines R and N of calls.txt; "": nowhere.
std::string blind_reads(const fs::path& out) {
  std::map<std::string, std::string> names;
  std::string first, last;
  std::int64_t reads = 0;
  std::ifstream calls(out / "calls.txt");
  for (std::string line; std::getline(calls, line);) {
    const std::size_t space = line.find(' ', 2);
    if (line.starts_with("N ") && space != line.npos) names[line.substr(2, space - 2)] = line.substr(space + 1);
    if (!line.starts_with("R ")) continue;
    ++reads;
    last = line.substr(line.rfind(' ') + 1);
    if (first.empty()) first = last;
  }
  if (reads == 0) return "";
  const auto place = [&](const std::string& id) {  // the innermost frame
    const std::string& all = names[id];
    return all.empty() ? std::string("a place that is not Python's") : all.substr(0, all.find(" < "));
  };
  return fmt::format(
      "before it failed, the command read {} numbers from the GPU that nobody computed: first at {}, last at {}; ",
      reads, place(first), place(last));
}

int exit_status(const NullOptions& options, int status) {
  constexpr int kNotFound = 127;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotFound)
    note(fmt::format("{} cannot be run, or a command that it runs", options.command.front()));
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  note(
      fmt::format("{} ended by signal {} ({}): a library may read the GPU's memory from the host, "
                  "or call what the null GPU does not answer",
          options.command.front(), WTERMSIG(status), strsignal(WTERMSIG(status))));
  return 128 + WTERMSIG(status);
}

}

NullCommandLine parse_null_command_line(std::vector<std::string> arguments) {
  NullCommandLine line;
  NullOptions& o = line.options;
  // The command's words are its own, whatever they look like.
  const auto dashes = std::ranges::find(arguments, "--");
  if (dashes != arguments.end()) {
    o.command.assign(dashes + 1, arguments.end());
    arguments.erase(dashes, arguments.end());
  }
  CLI::App app(
      "Runs a command on a GPU that is not there, as one rank of a world, and writes what "
      "it asks of the GPU into a folder: foreshard predict --capture takes it.",
      "foreshard-null");
  app.footer(
      "Example:\n  foreshard-null --rank 0 --world 64 --gpu h100 -- python3 train.py\n"
      "Exit status: the command's; 6 where it made a call that is not answered (it is named), or no call at all.");
  app.set_version_flag("--version", std::string("foreshard-null ") + FORESHARD_VERSION);
  app.add_option("--rank", o.rank, "Which rank the command is")->check(CLI::NonNegativeNumber);
  app.add_option("--world", o.world, "How many ranks there are")->check(CLI::Range(1, 1 << 20));
  app.add_option("--gpu", o.gpu, "The GPU, such as h100 (foreshard machines)")->required();
  app.add_option("--out", o.out, "Folder of the capture")->capture_default_str();
  app.add_option(
      "--after", o.after, "Captures of other ranks, which hold objects that they sent to this one (shapes of stages)");
  app.add_option("--events", o.events, "How far the GPU is when it is asked")
      ->check(CLI::IsMember({"done", "pending", "paced"}))
      ->capture_default_str();
  app.add_flag("--check", o.check,
      "Look for work of two streams that needs an order and has none, and for memory that is handed out while a stream "
      "still needs it; each fault is a line on standard error, and makes the exit status 5");
  app.add_flag("--modules", o.modules,
      "Write what each module of the model computes, for foreshard import of a model that is not transformers'");
  app.add_flag("--values", o.values,
      "Compute on the host what follows from integers and masks that the host copied to "
      "the GPU: lengths, positions, indices");
  app.add_flag("--padded", o.padded, "Batches are padded: attention masks are not all ones");
  std::int64_t batch = kTellingBatch, sequence = 0;
  std::string dtype = "autocast";
  CLI::Option* const config = app.add_option("--config", o.config,
                                     "A config.json of transformers: three training steps of its model on one GPU of "
                                     "any size are the command; words behind -- are the Python, as in -- python3.12")
                                  ->check(CLI::ExistingFile);
  app.add_option("--batch", batch, "With --config: samples of a step")
      ->needs(config)
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--dtype", dtype, "With --config: fp32 under bf16 autocast, all bf16, all fp32")
      ->needs(config)
      ->check(CLI::IsMember({"autocast", "bf16", "fp32"}))
      ->capture_default_str();
  app.add_option("--sequence", sequence, "With --config: tokens of a sample (the model's longest, up to 2,048)")
      ->needs(config)
      ->check(CLI::Range(1, 1 << 30));
  try {
    std::ranges::reverse(arguments);
    app.parse(std::move(arguments));
  } catch (const CLI::Success& done) {
    line.text = done.get_name() == "CallForVersion" ? app.version() + "\n" : app.help();
    return line;
  } catch (const CLI::ParseError& error) {
    line.usage_error = fmt::format("foreshard-null: {}; see foreshard-null --help\n", error.what());
    return line;
  }
  if (!o.config.empty()) {
    o.modules = true;
    if (o.command.empty()) o.command = {"python3"};
    const std::string file = fs::absolute(o.config).string();
    for (const char* word : {"-m", "foreshard_train", file.c_str()}) o.command.emplace_back(word);
    o.command.insert(o.command.end(), {"--batch", std::to_string(batch), "--dtype", dtype});
    if (sequence > 0) o.command.insert(o.command.end(), {"--sequence", std::to_string(sequence)});
  }
  if (o.command.empty()) {
    line.usage_error =
        "foreshard-null: no command; expected one behind --, as in foreshard-null "
        "--gpu h100 -- python3 train.py, or --config config.json\n";
  } else if (!o.config.empty() && o.world > 1) {
    line.usage_error =
        "foreshard-null: --config with --world: its step is one GPU's; the plan that import writes "
        "says how many share it\n";
  } else if (o.rank >= o.world) {
    line.usage_error = fmt::format("foreshard-null: --rank {}: expected a rank below --world {}\n", o.rank, o.world);
  }
  return line;
}

int run_on_null_gpu(const NullOptions& told) {
  NullOptions options = told;
  const Cluster node = one_node(options.gpu);
  const fs::path library = library_folder();
  const fs::path out = fs::absolute(options.out);
  capability_of(node.gpu);
  int status = 0;
  for (bool is_last = false; !is_last;) {
    clear(out);
    const auto begin = std::chrono::steady_clock::now();
    status = exit_status(options, run(options, node, library, out));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const Json head = {{"schema", "foreshard.capture/1"}, {"gpu", node.gpu.key}, {"rank", options.rank},
        {"world", options.world}, {"command", fmt::format("{}", fmt::join(options.command, " "))},
        {"events", options.events}, {"processor", status == 0 ? processor_of_steps(out) : 1},
        {"values", options.values}, {"ones", options.ones}, {"exit_status", status}, {"seconds", seconds.count()}};
    write_file((out / "capture.json").string(), head.dump(1) + "\n");
    // What it did with numbers that nobody computed may be why.
    const std::string reads = status == 0 || status == kNotAnswered ? std::string() : blind_reads(out);
    is_last = reads.empty() || options.ones;
    if (reads.empty()) continue;
    note(reads + (options.ones        ? "give what lengths and branches follow from as tensors on the host"
                     : options.values ? "again, where they are ones instead of zeros"
                                      : "again, with --values"));
    (options.values ? options.ones : options.values) = true;
  }
  // (Of a program that leaves by _exit nothing is written.)
  const bool is_empty = fs::exists(out / "calls.txt") && fs::file_size(out / "calls.txt") == 0;
  if (status == 0 && !is_empty && !has_calls(out, "LGACXKEWYMDRPV")) {
    note("the command made no call to a GPU: is its PyTorch built with CUDA, and does it train on `cuda`?");
    return kNotAnswered;
  }
  if (status == 0 && options.check && has_calls(out, "V")) return static_cast<int>(ExitCode::kOutsideTolerance);
  return status;
}

}
