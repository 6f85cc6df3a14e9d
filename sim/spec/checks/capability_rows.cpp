// What runtimes lack, in the order of a plan's keys.
//
// Sources. fsdp2: what recordings of twelve versions of PyTorch refused and how (tests/recordings,
// README.md): module lists 2.5.1 _fsdp_state.py:105 and _fully_shard.py:287, ignored_params
// 2.8.0 :94, reduce-scatter inputs and communicator 2.13.0 :707 and :758; an empty list of modules
// to prefetch means the default prefetch. fsdp1: the arguments of FullyShardedDataParallel,
// _exec_order_utils.py (prefetch limits of 1), _flat_param.py (_validate_tensors_to_flatten),
// torch/_dynamo/variables/builder.py (2.11). ddp: torch/nn/parallel/distributed.py and reducer.cpp
// (2.11). zero1 to zero3: DeepSpeed 0.19.8, deepspeed/runtime/config.py, engine.py,
// zero/stage_1_and_2.py, zero/stage3.py; megatron: Megatron-Core 0.20,
// core/distributed/distributed_data_parallel_config.py, core/optimizer/distrib_optimizer.py; groups
// of replicas were MiCS', "MiCS ZeRO-3 sharding has been removed". float8:
// torchao/float8/fsdp_utils.py has the extension of tensorwise scaling only, and _fsdp_param.py's
// all_gather_inputs raises NotImplementedError for one that is sharded over a smaller group.
// native: exec/.
#include "sim/spec/checks/capabilities.h"

namespace foreshard {
namespace {

using enum RuntimeKind;
using Of = Capability::Of;

constexpr RuntimeSet kOfFsdp2 = runtimes_of(kFsdp2);
constexpr RuntimeSet kOfFsdp1 = runtimes_of(kFsdp1);
constexpr RuntimeSet kOfNative = runtimes_of(kNative);
constexpr RuntimeSet kOfDdp = runtimes_of(kDdp);
constexpr RuntimeSet kOfZero1 = runtimes_of(kZero1);
constexpr RuntimeSet kOfZero2 = runtimes_of(kZero2);
constexpr RuntimeSet kOfZero3 = runtimes_of(kZero3);
constexpr RuntimeSet kOfZero12 = kOfZero1 | kOfZero2;
constexpr RuntimeSet kOfMegatron = runtimes_of(kMegatron);
constexpr RuntimeSet kWithoutUnits = kOfDdp | kOfZero12 | kOfMegatron;
constexpr RuntimeSet kOfLibraries = kOfFsdp1 | kOfDdp | kOfZero12 | kOfZero3 | kOfMegatron;
constexpr RuntimeSet kWithAxes = kOfFsdp2 | kOfZero3 | kOfMegatron;

constexpr std::string_view kOneModule = "makes a unit of one module, not of a list";
constexpr std::string_view kLists = "lists of modules";
constexpr std::string_view kNoLists = "has no lists of modules to prefetch";
constexpr const char* kOutputs = "leaves the outputs as they are, or Accelerate makes them fp32";
constexpr std::string_view kOneFlat =
    "makes a flat parameter of one module, not of a list of modules";
constexpr std::string_view kNativeUnits =
    "makes units of the embedding, of blocks and of the head, with the norm or without";
constexpr std::string_view kOneKernel = "compiles nothing and has one kernel for each operation";
constexpr std::string_view kOneRing = "passes keys round to kernels that leave their logsumexp";
constexpr std::string_view kNoUnits = "knows no units";
constexpr std::string_view kWhole = "holds every parameter whole";
constexpr std::string_view kNoSync = "has no switches for single micro-batches but no_sync()";
constexpr std::string_view kStage3 = "has no ZeRO++, which is stage 3's";
constexpr std::string_view kSumsAsLibrary =
    "sums as its communication library does; micro-batch order is the engine's";
constexpr std::string_view kBothEnds = "units.embedding: root and units.head: root";

constexpr Capability kRows[] = {
    {kOfNative | kOfLibraries, "mesh.inner = replicate",
     "shards among consecutive ranks; fully_shard takes any mesh of ranks", "mesh.inner: shard"},
    {kOfNative | kOfLibraries, "step_frame != plain", "has a step of its own, not torchtitan's",
     "step_frame: plain"},

    // fully_shard.
    {kOfFsdp2, "units.layers_per_unit > 1, units.blocks = own", kOneModule,
     "units.layers_per_unit: 1", 5, kLists},
    {kOfFsdp2, "units.embedding = with_head", kOneModule, kBothEnds, 5, kLists},
    {kOfFsdp2, "units.head = with_norm", kOneModule, "units.head: own", 5, kLists},
    {kOfFsdp2, "units.shard_dim != 0", "shards dimension 0", "units.shard_dim: 0", 6,
     "shard_placement_fn"},
    {kOfFsdp2, "unshard_in_backward = false", "gathers every unit in backward",
     "unshard_in_backward: true", 6, "set_unshard_in_backward"},
    {kOfFsdp2, "prefetch.forward = 0",
     "cannot switch forward prefetch off: the host runs ahead, and an empty list of modules means "
     "the default",
     "prefetch.forward: implicit"},
    {kOfFsdp2, "prefetch.forward > 0", kNoLists, "prefetch.forward: implicit", 5,
     "set_modules_to_forward_prefetch"},
    {kOfFsdp2, "prefetch.backward = 0",
     "cannot switch backward prefetch off: an empty list of modules means the default",
     "prefetch.backward: 1"},
    {kOfFsdp2, "prefetch.backward > 1", kNoLists, "prefetch.backward: 1", 5,
     "set_modules_to_backward_prefetch"},
    {kOfFsdp2, "prefetch.backward_lists = true", kNoLists, "prefetch.backward_lists: false", 5,
     "set_modules_to_backward_prefetch"},
    {kOfFsdp2, "prefetch.async_unshard = true", "copies in on a stream of its own",
     "prefetch.async_unshard: false", 6, "_set_unshard_async_op"},
    {kOfFsdp2, "ignored != none", "shards every parameter", "ignored: none", 7, "ignored_params"},
    {kOfFsdp2, "buffers.reduce_scatter > 1", "keeps one reduce-scatter input",
     "buffers.reduce_scatter: 1", 13, "set_reduce_scatter_max_input_buffers"},
    {kOfFsdp2, "communicators = separate", "reduces on the communicator that gathers",
     "communicators: shared", 13, "set_separate_reduce_scatter_group"},
    {kOfFsdp2, "reduction.divide_factor != none", "divides by the number of ranks",
     "reduction.divide_factor: none", 8, "set_gradient_divide_factor"},
    {kOfFsdp2, "reduction.force_sum = true", "averages where it can", "reduction.force_sum: false",
     8, "set_force_sum_reduction_for_comms"},
    {kOfFsdp2, "reduction_order != library", kSumsAsLibrary, "reduction_order: library"},
    // Not PyTorch's limit, here and below: nested units are those of a block that is one.
    {kOfFsdp2, "units.experts = own, units.blocks = root",
     "is modelled with units inside of blocks that are units", "units.experts: block"},
    // Both mix what they make themselves with DTensors: "got mixed torch.Tensor and DTensor".
    {kOfFsdp2, "optimizer.kind != adamw, optimizer.kind != sgd, optimizer.kind != sgd-momentum",
     "steps DTensors, on which transformers' Adafactor and bitsandbytes fail (mixed torch.Tensor "
     "and DTensor)",
     "optimizer.kind: adamw, or runtime: ddp", kNotYet, "", true},
    // clip_grad_norm_ scales all gradients in one call: "aten.mul_.Tensor got mixed torch.Tensor
    // and DTensor".
    {kOfFsdp2, "optimizer.clip_norm != none, ignored != none",
     "clip_grad_norm_ fails on ignored parameters beside sharded ones (mixed torch.Tensor and "
     "DTensor)",
     "none, or ignored: none", kNotYet, "", true},
    {kOfFsdp2, "float8_all_gather = true, float8 != tensorwise",
     "only tensorwise scaling gathers in fp8", "float8: tensorwise, or float8_all_gather: false",
     kNotYet, "", true},
    {kOfFsdp2, "reshard_after_forward > 0, float8_all_gather = true",
     "does not gather in fp8 from smaller groups", "reshard_after_forward: always"},

    // torch/distributed/tensor/experimental/_context_parallel (2.11) and TransformerEngine's rings
    // merge what ranks attend to by its logsumexp.
    {kEveryRuntime, "attention = math, mesh.cp > 1", kOneRing, "attention: flash"},
    {kEveryRuntime, "attention = eager, mesh.cp > 1", kOneRing, "attention: flash"},

    // The engine.
    {kOfNative, "units.embedding = with_head", kNativeUnits, kBothEnds},
    {kOfNative, "units.blocks != own", kNativeUnits, "units.blocks: own"},
    {kOfNative, "units.experts = own", kNativeUnits, "units.experts: block"},
    {kOfNative, "units.shard_dim != 0", "shards one flat buffer per unit", "units.shard_dim: 0"},
    {kOfNative, "unshard_in_backward = false", "gathers what backward reads",
     "unshard_in_backward: true"},
    {kOfNative, "prefetch.backward_lists = true", "prefetches by number of units",
     "prefetch.backward_lists: false"},
    {kOfNative, "prefetch.async_unshard = true", "gathers in place, without a copy",
     "prefetch.async_unshard: false"},
    {kOfNative, "recompute_wraps != module", "recomputes inside of units",
     "recompute_wraps: module"},
    {kOfNative, "dtype.output != none", "leaves the outputs as they are", "dtype.output: none"},
    {kOfNative, "accumulation.all_reduce != each", "reduces over shards and replicas together",
     "accumulation.all_reduce: each"},
    {kOfNative, "accumulation.reshard_after_backward != each",
     "reshards as reshard_after_forward says", "accumulation.reshard_after_backward: each"},
    {kOfNative, "accumulation.is_last_backward != each", "ends every backward alike",
     "accumulation.is_last_backward: each"},
    {kOfNative | kOfMegatron, "optimizer.kind != adamw, optimizer.kind != sgd",
     "has AdamW and SGD without momentum", "optimizer.kind: adamw"},
    {kOfNative, "lora.rank > 0", "trains every parameter", "lora.rank: 0"},
    {kOfNative, "batch.documents > 1", "attends within whole sequences", "batch.documents: 1"},
    {kOfNative, "frozen != none", "trains every parameter", "frozen: none"},
    {kOfNative, "ignored != none", "shards every parameter", "ignored: none"},
    {kOfNative, "offload != none, host = cpu",
     "keeps shards where it computes: CPU ranks have one memory", "offload: none"},
    {kOfNative, "offload = cpu_unpinned", "pins what it keeps on the host", "offload: cpu"},
    {kOfNative, "reduction.divide_factor != none", "divides by the number of ranks",
     "reduction.divide_factor: none"},
    {kOfNative, "reduction.force_sum = true", "sums in an order of its own",
     "reduction.force_sum: false"},
    {kOfNative, "evaluation.in_step = true", "evaluates between steps",
     "evaluation.in_step: false"},
    {kOfNative, "allocator != default", "lays its buffers out once", "allocator: default"},
    {kOfNative, "rank != 0", "shards evenly: every rank is as rank 0", "rank: 0"},
    {kOfNative, "compile != none", kOneKernel, "compile: none"},
    // On GPUs ATen's three (exec/compute/device_operations.h); CPU ranks have one.
    {kOfNative, "attention != flash, host = cpu", kOneKernel, "attention: flash"},
    {kOfNative, "attention != flash, attention != cudnn, attention != efficient", kOneKernel,
     "attention: flash, cudnn or efficient"},
    {kOfNative, "loss != eager", kOneKernel, "loss: eager"},
    {kOfFsdp2 | kOfLibraries, "recompute_keeps = dots", "keeps every second product",
     "recompute_keeps: every_second_mm, or runtime: native"},
    {kOfNative, "recompute_keeps = dots_except_mlp", "keeps every product, or every second one",
     "recompute_keeps: dots"},
    {kOfNative, "logits != released", kOneKernel, "logits: released"},
    {kOfNative, "float8 != none", kOneKernel, "float8: none"},
    {kOfNative, "dtype.autocast != none", kOneKernel, "dtype.autocast: none"},
    {kOfNative, "kernels.norm != compute", kOneKernel, "kernels.norm: compute"},
    {kOfNative, "kernels.rope = real", kOneKernel, "kernels.rope: fused"},
    {kOfNative, "kernels.residual != compute", kOneKernel, "kernels.residual: compute"},
    {kOfNative, "kernels.unpads = true", kOneKernel, "kernels.unpads: false"},
    {kOfNative, "kernels.scan = true", kOneKernel, "kernels.scan: false"},
    {kOfNative, "kernels.train_metrics > 0", kOneKernel, "kernels.train_metrics: 0"},
    {kOfNative | kOfLibraries, "float8_all_gather = true", "gathers no tensor subclasses",
     "float8_all_gather: false"},

    // FSDP1, DDP and DeepSpeed: switches of fully_shard and of the engine that none of them has.
    {kOfLibraries, "units.shard_dim != 0", "shards flat buffers", "units.shard_dim: 0"},
    {kOfLibraries, "prefetch.backward_lists = true", "has no lists of modules",
     "prefetch.backward_lists: false"},
    {kOfLibraries, "prefetch.async_unshard = true", "has no such switch",
     "prefetch.async_unshard: false"},
    {kOfLibraries, "reduction_order != library", kSumsAsLibrary, "reduction_order: library"},
    {kOfLibraries, "evaluation.in_step = true", "is modelled with evaluations between steps",
     "evaluation.in_step: false"},
    {kWithoutUnits | kOfZero3, "dtype.autocast != none",
     "is modelled without autocast over parameters in another dtype (ddp: ddp.mixed_precision: "
     "autocast)",
     "dtype.autocast: none"},

    {kOfZero12 | kOfZero3,
     "optimizer.kind != adamw, optimizer.kind != sgd, optimizer.kind != sgd-momentum",
     "steps flat partitions, on which only states of optimizer.state are modelled",
     "optimizer.kind: adamw, or runtime: ddp"},

    // FullyShardedDataParallel.
    {kOfFsdp1,
     "optimizer.kind != adamw, optimizer.kind != sgd, optimizer.kind != sgd-momentum, "
     "optimizer.kind != adafactor",
     "steps flat shards, on which bitsandbytes' states are not modelled",
     "optimizer.kind: adamw, or runtime: ddp"},
    {kOfFsdp1, "fsdp1.use_orig_params = false, lora.rank > 0",
     "must flatten tensors with uniform `requires_grad` when `use_orig_params=False`, and adapters "
     "lie beside a frozen base",
     "fsdp1.use_orig_params: true"},
    {kOfFsdp1, "lora.base = nf4, lora.rank > 0",
     "must flatten tensors with uniform dtype, and adapters are in dtype.master",
     "lora.base: master"},
    {kOfFsdp1, "lora.base = param, lora.rank > 0, dtype.param != dtype.master",
     "must flatten tensors with uniform dtype, and adapters are in dtype.master",
     "lora.base: master"},
    {kOfFsdp1, "units.layers_per_unit > 1, units.blocks = own", kOneFlat,
     "units.layers_per_unit: 1"},
    {kOfFsdp1, "units.embedding = with_head", kOneFlat, kBothEnds},
    {kOfFsdp1, "units.head = with_norm", kOneFlat, "units.head: own"},
    {kOfFsdp1, "units.experts = own, units.blocks = root",
     "is modelled with units inside of blocks that are units", "units.experts: block"},
    {kOfFsdp1, "reshard_after_forward > 0",
     "frees whole flat parameters; groups of ranks are fully_shard's",
     "reshard_after_forward: always"},
    {kOfFsdp1, "unshard_in_backward = false", "gathers every unit in backward",
     "unshard_in_backward: true"},
    {kOfFsdp1, "prefetch.forward = 0", "cannot keep the host from running ahead in forward",
     "prefetch.forward: implicit"},
    {kOfFsdp1, "prefetch.forward > 1", "gathers one unit ahead (forward_prefetch)",
     "prefetch.forward: 1"},
    {kOfFsdp1, "prefetch.backward > 1", "gathers one unit ahead (backward_prefetch)",
     "prefetch.backward: 1"},
    {kOfFsdp1, "dtype.output = bf16", kOutputs, "dtype.output: none"},
    {kOfFsdp1, "dtype.output = fp16", kOutputs, "dtype.output: none"},
    {kOfFsdp1, "accumulation.all_reduce != each", "all-reduces whenever it reduces",
     "accumulation.all_reduce: each"},
    {kOfFsdp1, "accumulation.reshard_after_backward != each",
     "reshards under no_sync() as reshard_after_forward says",
     "accumulation.reshard_after_backward: each"},
    {kOfFsdp1, "accumulation.is_last_backward != each", "ends every backward alike",
     "accumulation.is_last_backward: each"},
    {kOfFsdp1, "ignored != none", "is modelled without ignored_states", "ignored: none"},
    {kOfFsdp1, "offload = cpu_unpinned", "pins what it keeps on the host", "offload: cpu"},
    {kOfFsdp1, "reduction.divide_factor != none", "divides by the number of ranks",
     "reduction.divide_factor: none"},
    {kOfFsdp1, "reduction.force_sum = true", "always sums, and divides before and after",
     "reduction.force_sum: false"},
    {kOfFsdp1, "buffers.reduce_scatter > 1", "reduces from gradients, not from buffers of its own",
     "buffers.reduce_scatter: 1"},
    {kOfFsdp1, "communicators = separate", "gathers and reduces in one process group",
     "communicators: shared"},
    {kOfFsdp1, "fsdp1.use_orig_params = false, compile != none",
     "Dynamo only supports FSDP with use_orig_params=True", "true, or compile: none", kNotYet, "",
     true},

    // DDP and ZeRO: what they shard, then what follows from having no units.
    {kOfDdp, "mesh.shard != 1", "replicates the model and shards nothing",
     "mesh.shard: 1 and mesh.replicate: {ranks}"},
    {kOfZero12, "mesh.replicate != 1, zero.partition_in_groups = false",
     "partitions over all ranks; groups are ZeRO-3's", "mesh.shard: {ranks} and mesh.replicate: 1"},
    {kOfZero12, "zero.use_multi_rank_bucket_allreduce = false, zero.partition_in_groups = true",
     "a gradient has an owner in each group, so none can be reduced to alone",
     "true, or zero.partition_in_groups: false", kNotYet, "", true},
    {kOfZero12, "zero.gradient_buffer = true, zero.fp32_gradient_accumulation = true",
     "is Megatron-Core's, which has no BF16_Optimizer of DeepSpeed's",
     "false, or zero.fp32_gradient_accumulation: false", kNotYet, "", true},
    {kOfZero12, "zero.gradient_buffer = true, zero.offload_optimizer != none",
     "is Megatron-Core's, which has no offload of DeepSpeed's",
     "false, or zero.offload_optimizer: none", kNotYet, "", true},
    {kWithoutUnits, "units.layers_per_unit > 1", kNoUnits, "units.layers_per_unit: 1"},
    {kWithoutUnits, "units.experts = own", kNoUnits, "units.experts: block"},
    {kWithoutUnits, "prefetch.forward > 0", "gathers nothing in forward",
     "prefetch.forward: implicit"},
    {kWithoutUnits, "prefetch.backward > 1", "gathers nothing in backward", "prefetch.backward: 1"},
    {kWithoutUnits, "reshard_after_forward > 0", kWhole, "reshard_after_forward: always"},
    {kWithoutUnits, "unshard_in_backward = false", kWhole, "unshard_in_backward: true"},
    {kWithoutUnits, "ignored != none", "replicates every parameter", "ignored: none"},
    {kWithoutUnits, "dtype.output != none", "leaves the outputs as they are", "dtype.output: none"},
    {kWithoutUnits, "reduction.divide_factor != none", "divides by the number of ranks",
     "reduction.divide_factor: none"},
    {kWithoutUnits, "reduction.force_sum = true", "sums and divides always",
     "reduction.force_sum: false"},
    {kWithoutUnits, "buffers.reduce_scatter > 1", "scatters nothing", "buffers.reduce_scatter: 1"},
    {kWithoutUnits, "communicators = separate", "has one communicator for all",
     "communicators: shared"},
    {kWithoutUnits, "recompute_wraps != module", kNoUnits, "recompute_wraps: module"},
    {kWithoutUnits, "accumulation.all_reduce != each", kNoSync, "accumulation.all_reduce: each"},
    {kWithoutUnits, "accumulation.reshard_after_backward != each", kNoSync,
     "accumulation.reshard_after_backward: each"},
    {kWithoutUnits, "accumulation.is_last_backward != each", kNoSync,
     "accumulation.is_last_backward: each"},

    {kOfDdp | kOfMegatron, "offload != none", "keeps everything on the device", "offload: none"},
    {kOfMegatron, "dtype.master != fp32", "keeps its shard of the parameters in fp32",
     "dtype.master: fp32"},
    {kOfMegatron, "lora.rank > 0", "is modelled with every parameter trained", "lora.rank: 0"},
    {kOfMegatron, "tensor_parallel.loss = false", "computes the loss over logits cut by vocabulary",
     "tensor_parallel.loss: true"},
    {kOfMegatron, "accumulation.mode != reduce_each", "reduces in the last micro-batch always",
     "accumulation.mode: reduce_each"},
    // Not PyTorch's limit.
    {kOfDdp,
     "ddp.gradient_as_bucket_view = true, ddp.mixed_precision = parameters, dtype.param != "
     "dtype.master",
     "is modelled without views where _MixedPrecision swaps gradients",
     "ddp.gradient_as_bucket_view: false"},
    {kOfDdp, "dtype.param = fp32, dtype.master != fp32",
     "computes in the stored dtype or, with mixed precision, in a narrower one",
     "dtype.param: {dtype.master}"},
    {kOfDdp, "ddp.static_graph = true, accumulation.mode = keep_unsharded, batch.accumulation > 1",
     "DDP fails on a static graph whose first micro-batch is under no_sync() "
     "(\"expect_autograd_hooks_ INTERNAL ASSERT FAILED\", reducer.cpp:1705)",
     "false, or accumulation.mode: reduce_each", kNotYet, "", true},

    // ZeRO.
    {kOfZero3, "mesh.replicate != 1",
     "partitions over all ranks; MiCS, which had groups of replicas, has been removed from "
     "DeepSpeed",
     "mesh.replicate: 1, or zero.zero_hpz_partition_size for gathers inside small groups"},
    {kOfZero2, "accumulation.mode = keep_unsharded",
     "refuses no_sync(): \"incompatible with gradient partitioning logic of ZeRO stage 2\"",
     "accumulation.mode: reduce_each"},
    {kOfZero3, "accumulation.mode = keep_unsharded",
     "refuses no_sync(): \"incompatible with gradient partitioning logic of ZeRO stage 3\"",
     "accumulation.mode: reduce_each"},
    {kOfZero12, "offload != none", "is told by zero.offload_optimizer", "offload: none"},
    {kOfZero3, "offload != none", "is told by zero.offload_optimizer and zero.offload_param",
     "offload: none"},
    {kOfZero3, "ignored != none", "partitions every parameter", "ignored: none"},
    {kOfZero12, "dtype.master != fp32", "keeps its partition of the parameters in fp32",
     "dtype.master: fp32"},
    {kOfZero3, "dtype.master != fp32",
     "keeps its partitions of the parameters in fp32 for the optimizer", "dtype.master: fp32"},
    {kOfZero12, "zero.offload_param != none",
     "keeps the parameters on the device; stage 3 offloads them", "zero.offload_param: none"},
    {kOfZero12, "zero.offload_optimizer = nvme", "offloads to the CPU; NVMe is stage 3's",
     "zero.offload_optimizer: cpu"},
    {kOfZero2, "zero.partition_in_groups = true",
     "partitions gradients, too; InternEvo's groups are of the optimizer's states alone",
     "zero.partition_in_groups: false"},
    {kOfZero2, "zero.gradient_buffer = true",
     "partitions gradients, too; a buffer of all is stage 1's", "zero.gradient_buffer: false"},
    {kOfZero12, "zero.zero_hpz_partition_size != 1", kStage3, "zero.zero_hpz_partition_size: 1"},
    {kOfZero12, "zero.zero_quantized_weights = true", kStage3,
     "zero.zero_quantized_weights: false"},
    {kOfZero12, "zero.zero_quantized_gradients = true", kStage3,
     "zero.zero_quantized_gradients: false"},
    {kOfZero3, "zero.zero_quantized_weights = true, dtype.param = fp32",
     "quantises 16-bit parameters (its kernels read fp16)", "zero.zero_quantized_weights: false"},
    {kOfZero3, "zero.zero_quantized_gradients = true, dtype.param = fp32",
     "quantises 16-bit gradients (its kernels read fp16)", "zero.zero_quantized_gradients: false"},
    {kOfZero3, "zero.offload_param != none, zero.zero_quantized_weights = true",
     "is modelled with quantised payloads of partitions on the device", "zero.offload_param: none"},
    {kOfZero3, "zero.offload_param != none, zero.zero_quantized_gradients = true",
     "is modelled with quantised payloads of partitions on the device", "zero.offload_param: none"},
    // deepspeed/runtime/zero/config.py: Field(gt=0).
    {kOfZero12 | kOfZero3, "zero.reduce_bucket_size = 0", "a bucket holds at least one element",
     "a number above 0", kNotYet, "", true},
    // deepspeed/runtime/zero/stage3.py, __init__.
    {kOfZero3, "zero.reduce_scatter = false, zero.zero_quantized_gradients = true",
     "DeepSpeed refuses it: \"when enable all_to_all_reduce, reduce_scatter should also be enabled "
     "for data type checks\"",
     "true", kNotYet, "", true},
    // AsyncPartitionedParameterSwapper and PartitionedOptimizerSwapper need a path for each.
    {kOfZero3, "zero.offload_optimizer = none, zero.offload_param = nvme",
     "partitions on NVMe are updated from the host, so the optimizer's states are there too",
     "cpu or nvme", kNotYet, "", true},

// Axes beside replicate and shard.
#define FORESHARD_AXES(asked, says, nearest) \
  { kWithAxes, asked, says, nearest, kNotYet, "", false, Of::kAxes }
    FORESHARD_AXES("mesh.inner != shard", "has axes inside of shard", "mesh.inner: shard"),
    FORESHARD_AXES("units.layers_per_unit > 1", "makes a unit of each block",
                   "units.layers_per_unit: 1"),
    FORESHARD_AXES("units.blocks != own", "makes a unit of each block", "units.blocks: own"),
    FORESHARD_AXES("units.shard_dim > 0", "cuts parameters along dimension 0",
                   "units.shard_dim: 0"),
    FORESHARD_AXES("units.table_alone = true", "makes a unit of the whole embedding",
                   "units.table_alone: false"),
    FORESHARD_AXES("reshard_after_forward > 0", "reshards to the whole group or not",
                   "reshard_after_forward: always"),
    FORESHARD_AXES("compile = model", "compiles blocks", "compile: blocks"),
    FORESHARD_AXES("lora.rank > 0", "trains every parameter", "lora.rank: 0"),
    FORESHARD_AXES("frozen != none", "trains every parameter", "frozen: none"),
    FORESHARD_AXES("ignored != none", "shards every parameter", "ignored: none"),
    FORESHARD_AXES("batch.documents > 1", "attends within whole sequences", "batch.documents: 1"),
    FORESHARD_AXES("batch.images > 0", "runs on words", "batch.images: 0"),
    FORESHARD_AXES("loss != eager, loss != compiled, mesh.tp > 1", "has the eager loss",
                   "loss: eager"),
    FORESHARD_AXES("logits != released", "lets go of the logits with the loss", "logits: released"),
    FORESHARD_AXES("loss_in_forward = true", "computes the loss behind the model",
                   "loss_in_forward: false"),
    FORESHARD_AXES("dtype.output != none", "leaves outputs as they are", "dtype.output: none"),
    FORESHARD_AXES("dtype.autocast != none", "computes in dtype.param", "dtype.autocast: none"),
    FORESHARD_AXES("recompute_wraps != module", "recomputes inside of units",
                   "recompute_wraps: module"),
    FORESHARD_AXES("accumulation.mode != reduce_each", "reduces in each micro-batch",
                   "accumulation.mode: reduce_each"),
    FORESHARD_AXES("evaluation.in_step = true", "evaluates between steps",
                   "evaluation.in_step: false"),
    FORESHARD_AXES("tensor_parallel.async = true, tensor_parallel.sequence = false",
                   "overlaps gathers and reduce-scatters, which are sequence parallel's",
                   "tensor_parallel.sequence: true"),
    {kOfFsdp2, "tensor_parallel.async = true, compile = none",
     "overlaps products in compiled blocks", "compile: blocks", kNotYet, "", false, Of::kAxes},
    FORESHARD_AXES("experts != grouped, mesh.ep > 1", "has grouped products", "experts: grouped"),
#undef FORESHARD_AXES
#define FORESHARD_AXES(asked, says, nearest) \
  { kOfNative, asked, says, nearest, kNotYet, "", false, Of::kAxes }
    FORESHARD_AXES("tensor_parallel.sequence = false", "cuts norms and residuals by tokens",
                   "tensor_parallel.sequence: true"),
    FORESHARD_AXES("tensor_parallel.loss = false", "leaves logits cut by vocabulary",
                   "tensor_parallel.loss: true"),
    FORESHARD_AXES("tensor_parallel.async = true", "waits for each collective",
                   "tensor_parallel.async: false"),
    FORESHARD_AXES("offload != none", "keeps shards where it computes", "offload: none"),
    FORESHARD_AXES("reshard_after_forward > 0", "reshards to the whole group or not",
                   "reshard_after_forward: always"),
    FORESHARD_AXES("accumulation.mode != reduce_each", "reduces in each micro-batch",
                   "accumulation.mode: reduce_each"),
#undef FORESHARD_AXES
    // Without fully_shard nothing casts parameters, and gradients of micro-batches add up where
    // they are.
    {kOfFsdp2, "dtype.param != dtype.master", "computes in dtype.master",
     "dtype.param: that of dtype.master, or mesh.shard: 2 or more", kNotYet, "", false,
     Of::kPlainTensors},
    {kOfFsdp2, "batch.accumulation > 1", "is modelled with one micro-batch",
     "batch.accumulation: 1, or mesh.shard: 2 or more", kNotYet, "", false, Of::kPlainTensors},
    {kOfFsdp2, "offload != none", "has no shards to keep on the host",
     "offload: none, or mesh.shard: 2 or more", kNotYet, "", false, Of::kPlainTensors},
};

}  // namespace

std::span<const Capability> capability_table() { return kRows; }

}  // namespace foreshard
