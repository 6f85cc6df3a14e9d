// Batch and sequence are those of the attention calls; a stretch of launches from autograd's threads behind some of the
// main thread's is a micro-batch's backward; attention run forward on autograd's threads is recomputation.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "interop/capture/capture_import.h"
#include "interop/capture/module_layers.h"
#include "interop/capture/module_loops.h"
#include "interop/capture/module_sizes.h"
#include "interop/frameworks/frameworks.h"
#include "interop/hf/hf_config.h"
#include "models/yaml/model_yaml.h"
#include "sim/base/config.h"
#include "sim/base/error.h"
#include "sim/base/json_document.h"
#include "sim/base/lookup.h"
#include "sim/graph/capture/captured_kernel.h"

namespace foreshard {
namespace {

struct Steps {
  std::int64_t batch = 1, sequence = 0, micro_batches = 0;
  std::int64_t forward = 0, recomputed = 0;                                 // attention calls
  std::string clip = "none";                                                // largest norm
  std::int64_t first_reduction = std::numeric_limits<std::int64_t>::max();  // in which backward
  std::int64_t half_products = 0, products = 0;
  std::string attention;  // the kernel that most calls take
  // Ranks that share each sequence, by whose collectives, and how keys and values come round.
  InnerAxes axes;
  std::string rotate;
  std::int64_t widest = 0;  // bytes of what forward gathers over the ranks of tp
  // While the optimizer steps: bytes that it holds beside what is there, that its kernels move.
  std::int64_t held = 0, moved = 0, launches = 0;
  bool scans = false;  // a recurrent mixer's kernel ran
};

// A collective of activations: DeepSpeed-Ulysses' all-to-alls; the ring's sends, of keys and values
// in forward (alltoall) or of their gradients alone (allgather).
void read_exchange(
    const CapturedCall& call, const std::string& name, std::int64_t ranks, bool in_backward, Steps& steps) {
  constexpr std::int64_t kNumbers = 1 << 12;  // bytes
  if (call.values[1] < kNumbers) return;
  if (name == "all_to_all") steps.rotate = "ulysses";
  else if (name != "send") return;
  else if (!in_backward) steps.rotate = "alltoall";
  else if (steps.rotate.empty()) steps.rotate = "allgather";
  steps.axes.cp = ranks;
}

Steps read_steps(const Capture& capture) {
  Steps steps;
  std::map<std::int64_t, std::int64_t> ranks;  // of communicators
  for (const CapturedCall& call : capture.calls)
    if (call.kind == CapturedCall::Kind::kCommunicator) ranks[call.values[0]] = call.values[1];
  const StepRange range = steady_step(capture);
  std::int32_t main = -1;
  for (const CapturedCall& call : capture.calls) {
    if (call.kind != CapturedCall::Kind::kLaunch && call.kind != CapturedCall::Kind::kProduct) continue;
    main = call.thread;
    break;
  }
  bool in_backward = false;
  std::int64_t there = 0, before = -1;  // bytes; in front of the optimizer
  std::int64_t summed_over = -1;        // communicator
  for (std::size_t i = range.begin; i < range.end; ++i) {
    const CapturedCall& call = capture.calls[i];
    const std::string& name = capture.name_of(call);
    constexpr std::string_view kClip = "clip ";
    if (call.kind == CapturedCall::Kind::kMark && name.starts_with(kClip)) steps.clip = name.substr(kClip.size());
    if (call.kind == CapturedCall::Kind::kMark && name == "optimizer") before = there;
    if (call.kind == CapturedCall::Kind::kMark && name.starts_with("step ")) before = -1;
    if (call.kind == CapturedCall::Kind::kMemory) {
      there = call.values[2];
      if (before >= 0) steps.held = std::max(steps.held, there - before);
    }
    constexpr std::int64_t kNumbers = 1 << 16;  // bytes: norms and losses have fewer
    // (Muon's exchanges and products are of no axis.)
    const bool is_collective = call.kind == CapturedCall::Kind::kCollective && before < 0;
    if (is_collective) read_exchange(call, name, ranks[call.values[0]], in_backward || call.thread != main, steps);
    const bool in_forward = !in_backward && call.thread == main && before < 0;
    if (is_collective && in_forward && call.values[1] > kNumbers) {
      if (name == "all_reduce") {
        summed_over = call.values[0];
        steps.axes.tp = ranks[summed_over];
      }
      if (name == "all_gather" && call.values[0] == summed_over) steps.widest = std::max(steps.widest, call.values[1]);
    } else if (is_collective && call.values[1] > kNumbers && call.values[0] != summed_over &&
               (name == "reduce_scatter" || name == "all_reduce")) {
      steps.first_reduction = std::min(steps.first_reduction, steps.micro_batches);
    }
    const auto kernel = captured_kernel(capture, call, Pass::kForward);
    if (!kernel) continue;
    steps.scans |=
        contains(name, "chunk_scan") || contains(name, "chunk_gated_delta_rule") || contains(name, "chunk_kda");
    if (before >= 0) {
      ++steps.launches;
      steps.moved += kernel->kernel.bytes.count();
    }
    if (call.kind == CapturedCall::Kind::kProduct && before < 0) {
      constexpr std::int64_t kF16 = 2, kBf16 = 14;  // cudaDataType_t
      ++steps.products;
      steps.half_products += call.values[4] == kF16 || call.values[4] == kBf16 ? 1 : 0;
    }
    const bool attends = kernel->kernel.kind == KernelKind::kAttention;
    const bool is_forward = attends && kernel->kernel.pass == Pass::kForward;
    if (is_forward) {
      steps.attention = attention_kernel_of(name);
      steps.batch = kernel->kernel.m;
      steps.sequence = std::max(steps.sequence, kernel->kernel.n);
      ++(call.thread == main ? steps.forward : steps.recomputed);
    }
    // The optimizer's launches on the main thread are neither products nor cuDNN's.
    if (call.thread != main && !in_backward) {
      ++steps.micro_batches;
      in_backward = true;
    } else if (call.thread == main &&
               (call.kind == CapturedCall::Kind::kProduct || call.kind == CapturedCall::Kind::kLibrary)) {
      in_backward = false;
    }
  }
  return steps;
}

// Of the inputs of a program's own model; a batch of 0: unknown.
struct Extents {
  std::int64_t batch = 0, sequence = 1;
  bool has_length = false;
};

// A model of a program's own.
struct OwnModel {
  std::string text;
  Extents extents;
  std::vector<bool> checkpointed;  // of its blocks
  bool makes_loss = false;         // itself
  bool is_held = false;            // what it returns, while backward runs
  bool is_cross_entropy = false;   // alone
  std::int64_t unread = 0;         // elements of parameters that no operation was seen to read
  std::int64_t others = 0;         // bytes of other models and of averages of weights
  std::vector<std::string> grown;  // parameters that the captures have in several shapes
};

class KeyWriter {
 public:
  void line(const std::string& key, const std::string& value, const std::string& what) {
    made_.plan += fmt::format("{}: {}\n", key, value);
    made_.ledger.push_back({Mapping::kMapped, what, key + ": " + value, "", "", 0});
  }
  CapturedPlan made_;
  bool widens = false;  // sums stay in fp32
};

// A decoder's cache of keys and values is made wherever its config asks for one, but for
// checkpointed blocks (transformers 5, modeling_layers.py).
bool keeps_cache(const Json& document) {
  const Json config = document.value("config", Json::object());
  if (!config.is_object() || document.contains("checkpointing")) return false;
  const Json& named = config.value("architectures", Json::array());
  const std::string name = named.empty() ? "" : named.front().get<std::string>();
  const bool decodes = name.ends_with("ForCausalLM") || name.ends_with("LMHeadModel");
  return decodes && config.value("use_cache", false);
}

// Mamba-2's mixers and the delta rule, of which no kernel ran.
bool mixes_by_torch(const Json& document, const Steps& steps) {
  const Json config = document.value("config", Json::object());
  const auto is_of_mixers = [&](const char* key) { return config.contains(key); };
  constexpr const char* kKeys[] = {"mamba_d_state", "ssm_state_size", "state_size", "linear_num_value_heads"};
  return config.is_object() && !steps.scans && std::ranges::any_of(kKeys, is_of_mixers);
}

void add_kernels(const Json& document, const Steps& steps, KeyWriter& out) {
  std::vector<std::string> words, sources;
  if (out.widens) {
    words.emplace_back("residual: fp32");
    sources.emplace_back("fp32 parameters under autocast: sums stay in fp32");
  }
  if (keeps_cache(document)) {
    words.emplace_back("keeps_cache: true");
    sources.emplace_back("config.use_cache");
  }
  if (mixes_by_torch(document, steps)) {
    words.emplace_back("torch_mixers: true");
    sources.emplace_back("no kernel of mamba_ssm or flash-linear-attention ran");
  }
  if (words.empty()) return;
  out.line("kernels", fmt::format("{{{}}}", fmt::join(words, ", ")), fmt::format("{}", fmt::join(sources, "; ")));
}

// Sequences and their length where the model's forward was watched: of its tensors of words, else (images, sound) of
// all its tensors the first extent. Of a program of its own, as its model has them.
void add_batch(const Json& document, const Steps& steps, const Extents& own, KeyWriter& out) {
  std::int64_t batch = steps.batch, sequence = steps.sequence;
  std::string source = fmt::format("{} calls of attention", steps.forward);
  const Json inputs = document.value("inputs", Json::object());
  bool has_words = inputs.empty();
  for (const auto& [name, tensor] : inputs.items()) {
    const Json shape = tensor.value("shape", Json::array());
    if (shape.empty() || has_words) continue;
    batch = shape[0].get<std::int64_t>();
    has_words = shape.size() == 2 && tensor.value("dtype", "") == "torch.int64";
    if (has_words) sequence = shape[1].get<std::int64_t>();
    source = fmt::format("{} of the model's forward", name);
  }
  if (own.batch > 0) {
    batch = own.batch;
    has_words = own.has_length || own.sequence > 1;
    sequence = own.sequence;
  }
  if (batch < 1) return;
  sequence *= steps.axes.cp;
  const std::string length = has_words && sequence > 0 ? fmt::format("sequence: {}, ", sequence) : std::string();
  const char* const padded = document.value("padded", false) ? ", padded: true" : "";
  const Json seen = document.value("labelled", Json());
  const std::int64_t labels = seen.is_number() ? (seen.get<std::int64_t>() + batch - 1) / batch : 0;
  const bool some = own.batch == 0 && labels > 0 && labels < sequence - 1;
  out.line("batch",
      fmt::format("{{{}micro_batch: {}, accumulation: {}{}{}}}", length, batch,
          std::max<std::int64_t>(1, steps.micro_batches), padded, some ? fmt::format(", labelled: {}", labels) : ""),
      fmt::format("{} in {} backward passes", source, steps.micro_batches));
}

// Ranges of blocks that are alike in this.
std::string recompute_words(const std::vector<bool>& checkpointed) {
  std::vector<std::string> ranges;
  for (std::size_t first = 0, end = 0; first < checkpointed.size(); first = end) {
    while (end < checkpointed.size() && checkpointed[end] == checkpointed[first]) ++end;
    const std::string numbers = end - first == 1 ? fmt::format("{}", first) : fmt::format("{}-{}", first, end - 1);
    if (checkpointed[first]) ranges.push_back(fmt::format("{{layers: {}, value: full}}", numbers));
  }
  return fmt::format("[{}]", fmt::join(ranges, ", "));
}

void add_recompute(const Json& document, const Steps& steps, const OwnModel& own, KeyWriter& out) {
  const std::ptrdiff_t some = std::ranges::count(own.checkpointed, true);
  if (some > 0) {
    const bool all = some == std::ssize(own.checkpointed);
    return out.line(
        "recompute", all ? "full" : recompute_words(own.checkpointed), "blocks that torch.utils.checkpoint calls");
  }
  const Json said = document.value("checkpointing", Json());
  const bool is_said = said.is_object();
  if (!is_said && steps.forward == 0) return;
  const bool again = is_said || 2 * steps.recomputed >= std::max<std::int64_t>(1, steps.forward);
  out.line("recompute", again ? "full" : "none",
      is_said ? std::string("gradient_checkpointing_enable")
              : fmt::format("{} calls of attention run again", steps.recomputed));
  if (is_said && said.value("reentrant", false)) out.line("recompute_reentrant", "true", "use_reentrant");
}

// (Of modules an eager kernel's operations are the layers' own.)
void add_attention(const Json& document, const Steps& steps, bool is_known, KeyWriter& out) {
  const bool is_eager = is_known && text_in(document, "attention") == "eager";
  const std::string word = is_eager ? "eager" : steps.attention;
  if (!word.empty()) out.line("attention", word, is_eager ? word : "kernels of attention");
}

// Of a base in four bits, which adapters alone are trained over.
Json packed_config(const Json& document) {
  const Json config = document.value("config", Json());
  if (!config.is_object() || !document.contains("lora")) return Json::object();
  const Json said = config.value("quantization_config", Json::object());
  return said.is_object() && said.value("load_in_4bit", false) ? said : Json::object();
}

void add_adapters(const Json& document, KeyWriter& out) {
  const Json lora = document.value("lora", Json());
  if (!lora.is_object()) return;
  const Json parameters = document.value("parameters", Json::array());
  const bool is_dora = std::ranges::any_of(
      parameters, [](const Json& parameter) { return contains(parameter.value("name", ""), "lora_magnitude_vector"); });
  if (is_dora || lora.value("rank", 0) < 1)
    refuse_layers("the capture", "adapters are {}, which no plan has", is_dora ? "DoRA's" : "not LoRA's");
  const Json targets = lora.value("targets", Json("all-linear"));
  const std::string names = targets.is_string()
                                ? targets.get<std::string>()
                                : fmt::format("[{}]", fmt::join(targets.get<std::vector<std::string>>(), ", "));
  bool is_packed = false, has_master = false;
  std::string base = "master";
  for (const Json& parameter : parameters) {
    if (parameter.value("trainable", true)) continue;
    const std::string dtype = parameter.value("dtype", "");
    is_packed |= dtype == "torch.uint8";
    has_master |= dtype == "torch.float32";
    base = dtype == "torch.float32" ? "master" : "param";
  }
  if (is_packed) base = has_master ? "nf4-master" : "nf4";
  const bool is_doubled = packed_config(document).value("bnb_4bit_use_double_quant", !is_packed);
  out.line("lora",
      fmt::format("{{rank: {}, targets: {}, dropout: {}, base: {}{}}}", lora.value("rank", 0), names,
          lora.value("dropout", 0.0), base, is_doubled ? "" : ", double_quant: false"),
      "peft_config");
}

// How many each parameter has, over all optimizers: those of one's own and Lion's are known by them alone.
std::int64_t states_of(const Json& optimizers) {
  std::int64_t elements = 0, held = 0;
  for (const Json& optimizer : optimizers) {
    const std::string name = optimizer.value("class", "");
    const bool is_adam = contains(name, "Adam") || !optimizer.contains("elements");
    const std::int64_t states = is_adam && name != "SGD" ? 2 : optimizer.value("states", std::int64_t{0});
    const std::int64_t numel = optimizer.value("elements", std::int64_t{1});
    elements += numel;
    held += numel * states;
  }
  return elements > 0 ? (held + elements / 2) / elements : 2;
}

// Where a step is another one than PyTorch's AdamW or SGD of this kind: what it was seen to take.
std::string steps_own(
    const Json& optimizers, const Steps& steps, std::int64_t states, const std::string& implementation) {
  std::int64_t bytes = 0, tensors = 0;
  for (const Json& optimizer : optimizers) {
    bytes += optimizer.value("bytes", std::int64_t{0});
    tensors += optimizer.value("tensors", std::int64_t{0});
  }
  if (bytes == 0 || steps.launches == 0) return "";
  const bool by_lists = implementation == "foreach";
  const auto count = [&](std::int64_t all) { return (all + bytes / 2) / bytes; };
  const std::int64_t held = count(steps.held), moved = count(steps.moved);
  const std::int64_t usual = states == 0 ? 3 : states == 1 ? 6 : implementation == "fused" ? 7 : 20;
  std::string made;
  if (by_lists && held > 0 && held != states / 2) made += fmt::format(", temporaries: {}", held);
  if (10 * std::abs(moved - usual) > 2 * usual) made += fmt::format(", passes: {}", moved);
  const std::int64_t each = steps.launches / std::max<std::int64_t>(1, tensors);
  if (by_lists && each > 1 && tensors >= 32) made += fmt::format(", operations: {}", each);
  return made;
}

void add_optimizer(const Json& document, const Steps& steps, KeyWriter& out) {
  const Json optimizers = document.value("optimizers", Json::array());
  if (optimizers.empty()) return;
  const Json& optimizer = optimizers.front();
  const std::string name = optimizer.value("class", "");
  const Json foreach = optimizer.value("foreach", Json());
  const std::int64_t states = states_of(optimizers);
  const bool is_loop = foreach.is_boolean() && !foreach.get<bool>();
  const bool late = document.value("zeroes_late", false) && !document.contains("deepspeed");
  const std::string implementation = optimizer.value("fused", false) ? "fused" : is_loop ? "loop" : "foreach";
  out.line("optimizer",
      fmt::format("{{kind: {}, implementation: {}, clip_norm: {}{}{}}}",
          name == "Adafactor" ? "adafactor"
          : name == "Muon"    ? "muon"
          : states == 0       ? "sgd"
          : states == 1       ? "sgd-momentum"
                              : "adamw",
          implementation, steps.clip, late ? ", zero_grad: after_forward" : "",
          name == "Adafactor" || name == "Muon" || document.contains("deepspeed")
              ? ""
              : steps_own(optimizers, steps, states, implementation)),
      name);
}

// Of what the model hands on: several rows of an input may be one sample's, as a crystal's atoms.
std::int64_t handed_rows(const CapturedModules& capture) {
  const Json handed = find_module_layers(capture).parts.back().handed;
  for (const Json& operation : capture.document.at("operations")) {
    for (const Json& out : operation.at("out")) {
      const Json shape = out.value("shape", Json::array());
      if (out.at("tensor") == handed && !shape.empty()) return shape[0];
    }
  }
  return 0;
}

// Of the rows that a model's first forward is given (frames of each sample): products that have fewer are of samples,
// where something else that is given has as many.
std::int64_t samples_of(const Json& document, std::int64_t rows) {
  for (const Json& operation : document.at("operations")) {
    if (!operation.contains("n")) continue;
    const std::int64_t own =
        operation.at("out")[0].at("elements").get<std::int64_t>() / operation["n"].get<std::int64_t>();
    if (own < 2 || own >= rows || rows % own != 0) continue;
    for (const auto& [number, given] : document.at("given").items()) {
      const Json shape = given.value("shape", Json::array());
      if (shape.size() > 1 && shape[0] == own) return own;
    }
  }
  return rows;
}

// Of each capture: what differs between them tells batch and length of the model's inputs.
std::vector<Extents> extents_of(const std::vector<Json>& inputs, const std::vector<CapturedModules>& modules) {
  const std::size_t count = inputs.size();
  std::vector<Extents> made(count, {.batch = 1, .sequence = 1});
  const auto extent = [&](std::size_t c, const std::string& name, std::size_t d) {
    const Json shape = inputs[c].value(name, Json::object()).value("shape", Json::array());
    return d < shape.size() ? shape[d].get<std::int64_t>() : 0;
  };
  const auto differs = [&](const std::string& name, std::size_t d) {
    for (std::size_t c = 1; c < count; ++c) {
      if (extent(c, name, d) != extent(0, name, d)) return true;
    }
    return false;
  };
  std::string leader;  // the first input of which something differs, else the first
  for (const auto& [name, tensor] : inputs[0].items()) {
    const std::size_t dims = tensor.value("shape", Json::array()).size();
    bool any = false;
    for (std::size_t d = 0; d < dims; ++d) any |= differs(name, d);
    if (dims > 0 && (leader.empty() || any)) leader = name;
    if (any) break;
  }
  if (leader.empty()) return made;
  std::vector<std::int64_t> rows;  // of each sample, where all have as many
  for (std::size_t c = 0; c < count; ++c) {
    made[c].batch = extent(c, leader, 0);
    made[c].batch = samples_of(modules[c].document, made[c].batch);
    const std::int64_t handed = handed_rows(modules[c]);
    rows.push_back(handed > 0 && made[c].batch % handed == 0 ? made[c].batch / handed : 0);
  }
  const bool is_even = count > 1 && rows[0] > 1 && std::ranges::count(rows, rows[0]) == std::ssize(rows);
  for (std::size_t c = 0; c < count && is_even; ++c) made[c].batch /= rows[0];
  // The shortest that differs; else words, as long as they are.
  std::vector<std::int64_t> shortest(count, 0);
  for (const auto& [name, tensor] : inputs[0].items()) {
    const std::size_t dims = tensor.value("shape", Json::array()).size();
    if (dims == 0 || extent(0, name, 0) != made[0].batch) continue;
    std::vector<std::int64_t> length(count, 1);
    for (std::size_t c = 0; c < count; ++c)
      for (std::size_t d = 1; d < dims; ++d) length[c] *= differs(name, d) ? extent(c, name, d) : 1;
    if (length[0] > 1 && (shortest[0] == 0 || length[0] < shortest[0])) shortest = length;
  }
  const Json& first = inputs[0].at(leader);
  const bool has_words = first.at("shape").size() > 1 && text_in(first, "dtype") == "torch.int64";
  for (std::size_t c = 0; c < count; ++c) {
    made[c].has_length = shortest[0] > 0 || has_words;
    if (made[c].has_length) made[c].sequence = shortest[0] > 0 ? shortest[c] : extent(c, leader, 1);
  }
  // Of images: what attention sees of each, where it sees all of it at once.
  for (std::size_t c = 0; c < count && !made[0].has_length; ++c) {
    for (const Json& operation : modules[c].document.at("operations")) {
      if (made[c].sequence > 1 || !operation.contains("query")) continue;
      const Json& query = operation.at("query");
      if (query[0] == made[c].batch) made[c].sequence = query[2].get<std::int64_t>();
    }
  }
  return made;
}

// What is differentiated outside of the model's forward is of one number alone.
bool makes_loss(const Json& operations) {
  std::map<std::int64_t, std::int64_t> elements;
  for (const Json& operation : operations) {
    bool is_wide = false;
    for (const Json& out : operation.at("out")) {
      elements[out.at("tensor")] = out.at("elements");
      is_wide |= out.at("elements") > 1;
    }
    for (const Json& in : operation.at("in")) is_wide |= in.is_number() && elements[in] > 1;
    if (is_wide && operation.contains("node") && operation.at("module").is_null()) return false;
  }
  return true;
}

// What the loss is made of still has a name when backward is over.
bool holds_output(const CapturedModules& modules) {
  const Json output = find_module_layers(modules).parts.back().handed;
  bool is_held = false, saw_ends = false;
  for (const Json& operation : modules.document.at("operations")) {
    for (const Json& out : operation.at("out")) {
      const bool is_freed = out.contains("freed") || out.contains("freed_backward");
      is_held |= out.at("tensor") == output && !is_freed;
      saw_ends |= is_freed;
    }
  }
  return is_held && saw_ends;
}

// Of what compiles by itself the plan's layers are: DistributedDataParallel has it as its module.
bool is_whole(const Json& document) {
  const Json compiled = document.value("compiled", Json::array());
  return !compiled.empty() && (compiled[0] == "" || compiled[0] == "module");
}

// Of the logits, by words: what torch.compile makes one kernel of.
bool is_cross_entropy(const ModelSpec& model) {
  const std::vector<Operation>& operations = model.kinds[at(model.order.back().kind)].operations;
  const bool is_alone = std::ranges::all_of(
      operations,
      [](const Operation& of) {  // (what names hold meanwhile has no input)
        const bool is_elementwise = of.kind == OperationKind::kElementwise && of.inputs.size() < 2;
        return of.kind == OperationKind::kSoftmaxLoss || is_elementwise;
      });
  return is_alone &&
         std::ranges::any_of(operations, [](const Operation& of) { return of.function == Function::kLogSoftmax; });
}

// Layers are one model's: what optimizers step is no more than that has.
void check_alone(const CapturedModules& modules, const Json& optimizers) {
  std::int64_t trained = 0, stepped = 0;
  for (const Json& parameter : modules.document.at("parameters"))
    if (parameter.value("trainable", true)) trained += numel_of(parameter);
  for (const Json& optimizer : optimizers) stepped += optimizer.value("elements", std::int64_t{0});
  if (stepped <= trained) return;
  refuse_layers(modules.path,
      "{} has {} parameters to train, and the program's optimizers step {}: it trains another model beside it; "
      "make them members of one module that is called once, or capture a step of each alone",
      modules.document.at("class").get<std::string>(), trained, stepped);
}

// Of the model itself: others that the program runs beside it may have another dtype.
void count_products(const Json& operations, Steps& steps) {
  steps.products = steps.half_products = 0;
  for (const Json& operation : operations) {
    if (word_of(operation.at("op").get<std::string>()) != "linear") continue;
    const std::string dtype = operation.at("out")[0].at("dtype");
    ++steps.products;
    steps.half_products += dtype == "torch.bfloat16" || dtype == "torch.float16" ? 1 : 0;
  }
}

OwnModel own_model(const Capture& capture, const std::vector<Capture>& others, Steps& steps) {
  std::vector<CapturedModules> all = {read_modules(capture)};
  for (const Capture& other : others) all.push_back(read_modules(other));
  std::vector<Json*> documents;
  for (CapturedModules& each : all) documents.push_back(&each.document);
  fold_loops(documents);
  std::vector<Json> inputs, last;  // of the forward that was traced, of the steady step's
  for (CapturedModules& each : all) {
    const Json document = read_json_document(std::filesystem::path(each.path).replace_filename("model.json"));
    last.push_back(document.value("inputs", Json::object()));
    inputs.push_back(each.document.value("inputs", last.back()));
    if (inputs.back().empty()) inputs.back() = each.document.at("given");
    each.document["is_compiled"] = is_whole(document) && makes_loss(each.document.at("operations"));
    check_alone(each, document.value("optimizers", Json::array()));
  }
  const std::vector<Extents> extents = extents_of(inputs, all);
  for (std::size_t c = 0; c < all.size(); ++c) {
    all[c].batch = extents[c].batch;
    all[c].sequence = extents[c].sequence;
  }
  OwnModel own;
  count_products(all[0].document.at("operations"), steps);
  own.extents = extents[0];
  if (!last[0].empty() && last[0] != inputs[0]) {
    const Extents steady = extents_of({last[0]}, {all[0]})[0];
    own.extents.batch = steady.batch;
    if (steady.has_length) own.extents.sequence = steady.sequence;
  }
  own.others = all[0].document.value("others", std::int64_t{0});
  for (const auto& [name, said] : all[0].document.at("parameters").items()) {
    const auto is_other = [&](const CapturedModules& of) {
      return of.document.at("parameters").value(name, said).at("shape") != said.at("shape");
    };
    if (std::ranges::any_of(all, is_other)) own.grown.push_back(name);
  }
  own.makes_loss = makes_loss(all[0].document.at("operations"));
  own.is_held = holds_output(all[0]);
  own.text = model_of_modules(all, capture.model);
  try {
    const ModelSpec model = parse_model_yaml(parse_yaml(own.text, "the model made"));
    for (const Json& parameter : all[0].document.at("parameters")) own.unread += numel_of(parameter);
    own.unread -= model.parameters();
    own.is_cross_entropy = is_cross_entropy(model);
    const Json again = all[0].document.value("checkpoints", Json::array());
    for (const LayerInstance& layer : model.order) {
      if (model.kinds[at(layer.kind)].role != LayerRole::kBlock || layer.same_as >= 0) continue;
      own.checkpointed.push_back(contains(again, Json(layer.name)));
    }
  } catch (const Error& error) {
    refuse_layers(all[0].path, "what its modules compute makes no chain of layers: {}", error.what());
  }
  return own;
}

// Of a model that no fully_shard cut: DistributedDataParallel's, or one on its own.
void add_whole(const Capture& capture, const Json& document, const Steps& steps, bool is_known, KeyWriter& out) {
  const Json parameters = document.value("parameters", Json::array());
  // (Of modules what is in 16 bits beside others in fp32 says so itself; of transformers adapters do.)
  const auto is_fp32 = [](const Json& parameter) { return text_in(parameter, "dtype") == "torch.float32"; };
  const bool has_fp32 = parameters.empty() || (!is_known && std::ranges::any_of(parameters, is_fp32));
  const std::string stored = has_fp32 ? "fp32" : dtype_of_torch(text_in(parameters.front(), "dtype"));
  // (A step's rollouts may run without autocast.)
  const bool casts =
      stored == "fp32" && (2 * steps.half_products > steps.products || !text_in(document, "autocast").empty());
  const bool is_replica = document.contains("ddp");
  // Of one rank nothing is said: a search may take any mesh.
  if (capture.world > 1) {
    out.line("mesh", fmt::format("{{shard: 1, replicate: {}{}}}", capture.world / steps.axes.tp, steps.axes.words()),
        is_replica ? "DistributedDataParallel" : "no parameter is sharded");
  }
  // DDP's dtype is autocast's; fsdp2 on one rank stands for a model that nothing wraps.
  const std::string param = casts && is_replica ? "bf16" : stored;
  std::string dtypes = fmt::format("param: {}, master: {}", param, stored);
  if (casts && !is_replica) dtypes += ", autocast: bf16";
  out.line("dtype", fmt::format("{{{}}}", dtypes),
      fmt::format("{} of {} products in 16 bits, parameters in {}", steps.half_products, steps.products, stored));
  out.widens = casts;
  if (!is_replica) return;
  const Json& ddp = document.at("ddp");
  out.widens &= !ddp.value("parameters_cast", false);
  std::vector<std::string> words = {
      fmt::format("mixed_precision: {}", ddp.value("parameters_cast", false) ? "parameters" : "autocast")};
  const Json cap = ddp.value("bucket_cap_mb", Json());
  if (cap.is_number()) words.push_back(fmt::format("bucket_cap_mb: {}", cap.get<double>()));
  for (const char* key : {"static_graph", "find_unused_parameters", "gradient_as_bucket_view", "broadcast_buffers"})
    if (ddp.contains(key)) words.push_back(fmt::format("{}: {}", key, ddp.at(key).get<bool>()));
  out.line("ddp", fmt::format("{{{}}}", fmt::join(words, ", ")), "DistributedDataParallel");
}

// What FullyShardedDataParallel has and fully_shard has not.
void add_flat(const Json& flat, KeyWriter& out) {
  const std::string prefetch = text_in(flat, "backward_prefetch");
  const bool is_post = prefetch == "BACKWARD_POST";
  out.line("prefetch",
      fmt::format("{{forward: {}, backward: {}}}", flat.value("forward_prefetch", false) ? "1" : "implicit",
          prefetch.empty() ? 0 : 1),
      "forward_prefetch, backward_prefetch");
  out.line("fsdp1",
      fmt::format("{{backward_prefetch: {}, limit_all_gathers: {}, use_orig_params: {}}}", is_post ? "post" : "pre",
          flat.value("limit_all_gathers", true), flat.value("use_orig_params", false)),
      "FullyShardedDataParallel");
}

// What DeepSpeed's own configuration says, but for what the run shows.
void add_deepspeed(const Capture& capture, const Json& config, std::int64_t sequence_ranks, KeyWriter& out) {
  const ForeignPlan said = read_deepspeed(parse_json(config.dump(1), "DeepSpeed's configuration"));
  std::map<std::string, std::vector<std::string>> groups;
  // Its optimizer has the parameters in fp32 wherever the model's are in 16 bits.
  groups["dtype"] = {"master: fp32"};
  const bool is_sharded = said.value("runtime") != "ddp";
  if (!said.has("mesh.shard")) {
    const std::int64_t ranks = capture.world / sequence_ranks;
    groups["mesh"] = {
        fmt::format("shard: {}", is_sharded ? ranks : 1), fmt::format("replicate: {}", is_sharded ? 1 : ranks)};
    if (sequence_ranks > 1) groups["mesh"].push_back(fmt::format("cp: {}", sequence_ranks));
  }
  for (const auto& [key, value] : said.keys) {
    const std::size_t dot = key.find('.');
    const std::string group = key.substr(0, dot);
    if (dot == std::string::npos || group == "batch" || group == "optimizer") continue;
    const bool follows = sequence_ranks > 1 && !config.contains("communication_data_type");
    if (follows && key == "dtype.reduce") continue;
    groups[group].push_back(fmt::format("{}: {}", key.substr(dot + 1), value));
  }
  for (const auto& [group, words] : groups)
    out.line(group, fmt::format("{{{}}}", fmt::join(words, ", ")), "DeepSpeed's configuration");
}

// Of a library, "2.15".
std::string version_of(const Capture& capture, std::string_view library, const std::string& otherwise) {
  for (const auto& [name, text] : capture.versions)
    if (name == library) return text.substr(0, text.find('.', text.find('.') + 1));
  return otherwise;
}

// The runtime that the program trains with, and its version.
std::string runtime_words(const Capture& capture, const Json& document) {
  if (document.contains("deepspeed")) {
    const Json zero = document.at("deepspeed").value("zero_optimization", Json::object());
    const std::int64_t stage = zero.value("stage", 0);
    if (stage > 0) return fmt::format("zero{}@{}", stage, version_of(capture, "deepspeed", "0.19"));
  }
  const bool is_replica = document.contains("ddp") || document.contains("deepspeed");
  return fmt::format("{}@{}",
      is_replica                   ? "ddp"
      : document.contains("fsdp1") ? "fsdp1"
                                   : "fsdp2",
      version_of(capture, "torch", Plan().runtime.version));
}

// Why the model's config is none of those that import reads; "" where it is.
std::string why_unread(const Json& config) {
  if (!config.is_object() || !config.contains("model_type")) return "has no config of transformers";
  try {
    parse_hf_config(parse_json(config.dump(), "its config"), "model");
    return "";
  } catch (const ConfigError& error) {
    const std::string_view said = error.what();
    return fmt::format("is not read by its config ({})", said.substr(0, said.find("; expected")));
  }
}

}

CapturedPlan plan_of_capture(
    const Capture& capture, const std::string& model_name, const std::vector<Capture>& others) {
  const std::filesystem::path file = std::filesystem::path(capture.path) / "model.json";
  if (!std::filesystem::exists(file)) refuse_layers(file, "is not there: no Python described the model");
  const Json document = read_json_document(file);
  Json config = document.value("config", Json());
  if (!packed_config(document).empty()) config.erase("quantization_config");
  const std::string unread = why_unread(config);
  const bool is_known = unread.empty();
  const bool has_modules = std::filesystem::exists(modules_file(capture));
  if (!is_known && !has_modules) {
    throw Error(ExitCode::kMissingCapability,
        "{}: {} {}, so its layers have no names here; capture it with foreshard-null --modules, or foreshard predict "
        "--capture forecasts the step as it is",
        file.string(), capture.model, unread);
  }
  KeyWriter out;
  Steps steps = read_steps(capture);
  // (What replicas of all ranks sum is of their samples.)
  if (steps.axes.tp == capture.world && document.contains("ddp")) steps.axes.tp = 1;
  if (steps.axes.tp > 1 && !is_known) {
    refuse_layers(capture.path,
        "the forward sums activations over {} ranks (tensor parallel), of which layers are made of models of "
        "transformers alone",
        steps.axes.tp);
  }
  if (!is_known) steps.axes.cp = 1;  // a program's own exchanges may be of anything
  OwnModel own;
  if (is_known) own.text = config.dump(1) + "\n";
  else own = own_model(capture, others, steps);
  out.made_.model = own.text;
  out.line("model", model_name, is_known ? capture.model + ".config" : fmt::format("modules of {}", capture.model));
  if (own.unread > 0) {
    out.made_.ledger.push_back({Mapping::kUnsupported, fmt::format("{} parameters", own.unread), "",
        "no operation was seen to read them", "", 0});
  }
  if (own.others > 0) {
    out.made_.ledger.push_back({Mapping::kUnsupported,
        fmt::format("{} bytes of other tensors (models that are not trained, averages)", own.others), "",
        "each rank has them whole; what a forward of theirs keeps and gathers is in no plan", "", 0});
  }
  if (!own.grown.empty()) {
    out.made_.ledger.push_back({Mapping::kUnsupported, fmt::format("{}", fmt::join(own.grown, ", ")), "",
        "as large as the first capture's sizes make them: capture two batches of the sequence that you train at", "",
        0});
  }
  out.line("cluster", fmt::format("{}x{}", capture.world, capture.gpu), "--world, --gpu");
  const std::string runtime = runtime_words(capture, document);
  out.line("runtime", runtime, "versions of torch and DeepSpeed");
  if (const std::string torch = version_of(capture, "torch", Runtime().torch);
      runtime.starts_with("zero") && torch != Runtime().torch)
    out.line("torch", torch, "its version");
  out.line("stack", is_known ? "hf_trainer" : "none", is_known ? "a model of transformers" : "a program of its own");
  add_batch(document, steps, own.extents, out);
  const Json units = document.value("units", Json::array());
  if (document.contains("deepspeed")) {
    add_deepspeed(capture, document.at("deepspeed"), steps.axes.cp, out);
  } else if (units.empty()) {
    add_whole(capture, document, steps, is_known, out);
  } else {
    const auto held =
        sum_of<std::int64_t>(units, [](const Json& unit) { return unit.value("numel", std::int64_t{0}); });
    const auto own_numel = sum_of<std::int64_t>(document.value("parameters", Json::array()), numel_of);
    if (held > own_numel && !has_second_table(document)) {
      out.made_.ledger.push_back({Mapping::kUnsupported, fmt::format("{} parameters", held - own_numel), "",
          "units have them beside the model's (a tied head, apart)", "", 0});
    }
    for (const UnitWords& words : words_of_units(document, steps.axes)) {
      out.line(words.key, words.value, words.source);
      out.widens |= words.widens;
    }
  }
  if (steps.axes.cp > 1) {
    out.line("context_parallel", fmt::format("{{rotate: {}}}", steps.rotate),
        fmt::format("exchanges of {} ranks", steps.axes.cp));
  }
  if (steps.axes.tp > 1) {
    const std::int64_t size = 2 * steps.half_products > steps.products ? 2 : 4;
    const std::int64_t logits = size * steps.batch * steps.sequence * config.value("vocab_size", std::int64_t{0});
    out.line("tensor_parallel",
        fmt::format("{{sequence: false, loss: false, tables: {}}}", steps.widest >= logits ? "head" : "whole"),
        fmt::format("sums of activations over {} ranks", steps.axes.tp));
  }
  if (document.contains("fsdp1")) add_flat(document.at("fsdp1"), out);
  if (steps.micro_batches > 1 && capture.world > 1) {
    const bool each = steps.first_reduction < steps.micro_batches;
    out.line("accumulation", fmt::format("{{mode: {}}}", each ? "reduce_each" : "keep_unsharded"),
        each ? "every backward reduces" : "the last backward alone reduces");
  }
  add_recompute(document, steps, own, out);
  out.widens &= is_known;  // (modules.json has the types)
  add_kernels(document, steps, out);
  add_attention(document, steps, is_known, out);
  if (document.contains("loss_in_forward") && runtime.starts_with("fsdp")) {
    const bool makes = own.makes_loss || document.value("loss_in_forward", false);
    out.line("loss_in_forward", makes ? "true" : "false", "the output of the model's forward");
  }
  const bool has_logits = !document.value("logits_dtype", Json("")).is_null();
  const bool is_trl = document.value("versions", Json::object()).contains("trl");
  if (is_known && is_trl && !has_logits && document.value("loss_in_forward", false))
    out.line("loss", "tiled-linear", "TRL's loss, whose forward returns no logits");
  if (const Json reference = document.value("reference", Json()); is_known && reference.is_object())
    out.line("reference", text_in(reference, "held"), "a second model of this config, of which nothing is stepped");
  if (has_modules && !document.value("compiled", Json::array()).empty()) {
    out.line("compile", is_whole(document) ? "model" : "blocks", "torch.compile");
    if (is_whole(document) && own.makes_loss && own.is_cross_entropy)
      out.line("loss", "compiled", "a cross entropy inside of what is compiled");
  }
  if (own.is_held || document.value("logits_held", false))
    out.line("logits", "held", "the program keeps the model's output");
  if (is_known) add_adapters(document, out);  // (modules have theirs)
  add_optimizer(document, steps, out);
  return std::move(out.made_);
}

}
