"""What the null GPU needs to know from Python, and the ranks that it plays.

Python imports this at its start (foreshard-null puts the folder into PYTHONPATH). When the program
imports a module of HOOKS, it is changed where one process cannot be a world: rendezvous, stores,
gloo, and functions of libraries that read data which nobody computed. Nothing else is touched.
"""

import ctypes
import functools
import importlib.abc
import importlib.util
import json
import os
import pickle
import sys

OUT = os.environ.get("FORESHARD_NULL_OUT", "")
LIBRARY = ctypes.CDLL(None)
FOLDER = os.path.dirname(os.path.abspath(__file__))


def beside(name):
    """A module of this folder, whatever the program has made of sys.path."""
    sys.path.append(FOLDER)
    return importlib.import_module(name)


def mark(text):
    LIBRARY.foreshard_null_mark(text.encode())


# ---- stores and groups ----


def played_store(dist):
    class Played(dist.Store):
        """A store whose other ranks have always just said what is asked for."""

        def __init__(self):
            super().__init__()
            self.kept = {}
            self.world = int(os.environ.get("WORLD_SIZE", "1"))

        def named(self, key):
            # "default_pg//cuda//0", "3/..." and "default_pg/0//3//cuda//0" name the process group whose communicator is made next;
            # behind it stand, of a transfer's own communicator, its two ranks there ("1:2").
            *parts, last = [part for part in key.split("/") if part]
            group = next((part for part in reversed(parts) if part in MEMBERS), parts[0] if parts else last)
            pair = last.split(":")
            if group in MEMBERS and len(pair) == 2 and all(rank.isdigit() for rank in pair):
                two = [MEMBERS[group][int(rank)] for rank in pair]
                announce(f"{group}/{last}", two, two.index(int(os.environ["RANK"])))
            else:
                tell(group)

        def set(self, key, value):
            self.named(key)
            self.kept[key] = value if isinstance(value, bytes) else str(value).encode()

        def get(self, key):
            self.named(key)
            return self.kept.get(key, bytes(128))  # NCCL's unique id has 128 bytes

        def add(self, key, amount):
            total = int(self.kept.get(key, b"0")) + amount
            self.kept[key] = str(total).encode()
            return max(total, self.world)  # counters count ranks

        def wait(self, keys, timeout=None):
            pass

        def check(self, keys):
            return all(key in self.kept for key in keys)

        def compare_set(self, key, expected, desired):
            self.kept.setdefault(key, desired if isinstance(desired, bytes) else str(desired).encode())
            return self.kept[key]

        def delete_key(self, key):
            return self.kept.pop(key, None) is not None

        def num_keys(self):
            return len(self.kept)

        def set_timeout(self, timeout):
            pass

        def clone(self):
            return self

    return Played()


MEMBERS = {}  # ranks of process groups, by name


def tell(group, own=None):
    """Whose communicator is made next."""
    ranks = MEMBERS.get(group, [])
    own = own if own is not None else ranks.index(int(os.environ["RANK"])) if ranks else 0
    LIBRARY.foreshard_null_group(group.encode(), len(ranks), own)


def announce(group, ranks, own):
    if MEMBERS.get(group) != ranks:
        MEMBERS[group] = ranks
        mark("group " + " ".join([group] + [str(rank) for rank in ranks]))
    tell(group, own)


def hook_rendezvous(module):
    import torch.distributed as dist

    store = []

    def played(url, **unused):
        if not store:
            store.append(played_store(dist))
        yield store[0], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    for scheme in ("env", "tcp", "file"):
        module._rendezvous_handlers[scheme] = played


def hook_transfers(module):
    """What the host knows of tensors that ranks send each other (shapes, other objects) is kept beside the capture, and read off those
    made before (--after)."""
    counts, own, inside = {}, int(os.environ.get("RANK", "0")), []

    def known(tensor):
        """Whole, or number by number: where, bytes."""
        whole, each, found = tensor.numel() * tensor.element_size(), tensor.element_size(), []
        for size in (whole, each)[:1 + (tensor.numel() <= 1024)]:
            held = ctypes.create_string_buffer(size)
            for at in [] if found else range(0, whole, size):
                if LIBRARY.foreshard_null_known(ctypes.c_void_p(tensor.data_ptr() + at), held, ctypes.c_size_t(size)):
                    follows = found and found[-1][0] + len(found[-1][1]) == at
                    found[-1:] = [(found[-1][0], found[-1][1] + held.raw)] if follows else found[-1:] + [(at, held.raw)]
        return found

    def hook(name, key):
        real = getattr(module, name)

        @functools.wraps(real)
        def run(tensor, *given, **named):
            if inside:
                return real(tensor, *given, **named)
            inside.append(name)
            try:
                done = real(tensor, *given, **named)
            finally:
                inside.pop()
            peer, group = (*given, None, None)[:2]
            peer, group, other = named.get(key, peer), named.get("group", group), named.get("group_" + key)
            peer = peer if other is None else module.get_global_rank(group or module._get_default_group(), other)
            ends = (own, peer) if key == "dst" else (peer, own)
            counts[ends] = counts.get(ends, 0) + 1
            path = "sent-" + "-".join(map(str, (*ends, counts[ends])))
            if key == "dst" and tensor.is_cuda and (found := known(tensor)):
                with open(os.path.join(OUT, path), "wb") as file:
                    pickle.dump(found, file)
            for folder in [] if key == "dst" else os.environ["FORESHARD_NULL_AFTER"].split(":"):
                if tensor.is_cuda and folder and os.path.exists(os.path.join(folder, path)):
                    with open(os.path.join(folder, path), "rb") as file:
                        for at, held in pickle.load(file):
                            LIBRARY.foreshard_null_know(ctypes.c_void_p(tensor.data_ptr() + at), held, ctypes.c_size_t(len(held)))
            return done

        setattr(module, name, run)

    for name in ("send", "isend", "recv", "irecv"):
        hook(name, "dst" if name.endswith("send") else "src")


def hook_groups(module):
    from torch._C import _distributed_c10d as groups

    made = module._new_process_group_helper

    def helper(group_size, group_rank, global_ranks, backend, store, group_name, *rest, **named):
        if group_rank is not None and group_rank >= 0:  # this rank is one of them
            announce(str(group_name), list(global_ranks) or list(range(group_size)), group_rank)
        return made(group_size, group_rank, global_ranks, backend, store, group_name, *rest, **named)

    module._new_process_group_helper = helper

    split = getattr(groups.ProcessGroup, "split_group", None)
    if split is not None:

        def split_group(self, ranks, *rest, **named):
            if self.rank() in ranks and named.get("group_name"):
                announce(named["group_name"], [module.get_global_rank(self, rank) for rank in ranks], list(ranks).index(self.rank()))
            return split(self, ranks, *rest, **named)

        groups.ProcessGroup.split_group = split_group

    hook_transfers(module)
    groups.ProcessGroup.monitored_barrier = lambda *a, **k: None  # gloo's alone, and called of the group by Lightning
    if hasattr(groups, "FakeProcessGroup"):
        groups.FakeProcessGroup._set_sequence_number_for_group = lambda self: None
        groups.FakeProcessGroup._set_default_timeout = lambda self, timeout: None  # torchtitan's meshes of one rank are fake themselves

    class Gloo:
        """Stands for a class that connects to its peers: the fake group answers for them."""

        def __init__(self, real):
            self.real = real

        def __call__(self, store, rank, size, *unused, **named):
            fake = groups.FakeProcessGroup
            return getattr(fake, "_create_internal", fake)(rank, size)

        def __instancecheck__(self, thing):
            return isinstance(thing, self.real) or type(thing).__name__ == "FakeProcessGroup"

        def __getattr__(self, name):
            return (lambda *a, **k: None) if name == "create_device" else getattr(self.real, name)

    if hasattr(module, "ProcessGroupGloo"):
        module.ProcessGroupGloo = Gloo(module.ProcessGroupGloo)

    def same_from_all(object_list, obj, group=None):
        object_list[:] = [obj] * len(object_list)

    def gathered(obj, object_gather_list=None, *unused, **named):
        if object_gather_list is not None:
            same_from_all(object_gather_list, obj)

    def scattered(scatter_object_output_list, scatter_object_input_list=None, *unused, **named):
        scatter_object_output_list[:1] = (scatter_object_input_list or [None])[module.get_rank() :][:1]

    module.scatter_object_list = scattered
    module.all_gather_object = same_from_all
    module.gather_object = gathered
    module.broadcast_object_list = lambda *a, **k: None
    module.monitored_barrier = lambda *a, **k: None
    for package in ("torch.distributed",):
        if package in sys.modules:
            for name in ("all_gather_object", "gather_object", "scatter_object_list", "broadcast_object_list", "monitored_barrier"):
                setattr(sys.modules[package], name, getattr(module, name))


# ---- steps ----

SEEN = {}  # of the model's own forward


class Computes:
    """What a compiled forward says, too: SEEN's keys would be a guard of its graph, which each new one compiles again."""


COMPUTES = Computes()


def largest_model(stepped=()):
    """The module that nothing holds and that has most of the parameters that are stepped, else of those that train any."""
    import gc

    torch = sys.modules["torch"]
    # By type: compiled programs hold weak references that say that they are what they were.
    modules = [m for m in gc.get_objects() if issubclass(type(m), torch.nn.Module)]
    children = {id(child) for m in modules for child in m.children()}
    roots = [m for m in modules if id(m) not in children]
    own = {id(p) for p in stepped}
    roots.sort(key=lambda m: (-sum(p.numel() for p in m.parameters() if id(p) in own), not any(p.requires_grad for p in m.parameters()), -sum(p.numel() for p in m.parameters())))
    return roots[0] if roots and any(True for _ in roots[0].parameters()) else None


def watch(model):
    """What a forward is given and returns, and whether its logits still live when the optimizer steps."""
    import weakref

    torch = sys.modules["torch"]
    is_tensor = torch.is_tensor

    inside = []  # of the model's own forward
    adapted = next((m for m in model.modules() if hasattr(m, "_disable_adapters")), None)  # (PEFT)

    def computes(module, positional):
        if torch.is_grad_enabled():
            COMPUTES.autocast = str(torch.get_autocast_gpu_dtype()) if torch.is_autocast_enabled() else None
        if torch.compiler.is_compiling():
            return
        if module is not model and positional and not inside and torch.is_grad_enabled():  # (called by its name)
            SEEN["inputs"] = beside("foreshard_modules").inputs_of({"input_ids": positional[0]})

    def begun(*unused):
        if torch.compiler.is_compiling():
            return
        while firsts:
            firsts.pop().remove()
        if any(p.grad is not None for p in model.parameters()):
            SEEN["left"] = model  # by the step before

    def given(module, positional, named):
        if torch.compiler.is_compiling():
            return
        inside.append(module)
        if not torch.is_grad_enabled() and adapted is not None and adapted._disable_adapters and SEEN.get("open"):
            SEEN["reference"] = {"held": "base"}
        if not torch.is_grad_enabled() and "inputs" in SEEN:  # (what a step reads of itself: rollouts)
            return
        if torch.is_grad_enabled() and "labelled" not in SEEN:
            SEEN["labelled"] = labels_in(named.get("labels"))
        SEEN["inputs"] = beside("foreshard_modules").inputs_of({**dict(enumerate(positional)), **named})

    def returned(module, positional, output):
        if torch.compiler.is_compiling():
            return
        inside.clear()
        if not torch.is_grad_enabled() and "loss_in_forward" in SEEN:
            return
        SEEN["open"] = torch.is_grad_enabled()  # until the optimizer steps
        SEEN["loss_in_forward"] = getattr(output, "loss", None) is not None
        logits = getattr(output, "logits", None)
        SEEN["logits"] = weakref.ref(logits) if is_tensor(logits) else None
        SEEN["logits_dtype"] = str(logits.dtype) if is_tensor(logits) else None

    # (Accelerate's autocast is around the forward of the outermost module, behind its hooks.)
    leaf = next((m for m in model.modules() if isinstance(m, torch.nn.Embedding)), model)
    leaf.register_forward_pre_hook(computes)
    model.register_forward_pre_hook(given, with_kwargs=True)
    firsts = [m.register_forward_pre_hook(begun) for m in model.modules()]  # (some call the model's forward by its name)
    model.register_forward_hook(returned)


def labels_in(labels):
    """How many are none of those that a loss ignores, of a tensor that the host gave the GPU or that --values follows."""
    torch = sys.modules["torch"]
    if not torch.is_tensor(labels) or labels.dtype != torch.int64 or not labels.is_contiguous():
        return None
    held = ctypes.create_string_buffer(max(8, 8 * labels.numel()))
    if not LIBRARY.foreshard_null_known(ctypes.c_void_p(labels.data_ptr()), held, ctypes.c_size_t(8 * labels.numel())):
        return None
    return sum(label != -100 for label in memoryview(held).cast("B")[:8 * labels.numel()].cast("q"))


def described_reference(model, stepped):
    """A second model of the trained one's config, of which nothing is stepped, and how this rank holds it."""
    import gc

    torch = sys.modules["torch"]
    size = lambda m: sum(getattr(p, "ds_numel", p.numel()) for p in m.parameters())  # (a partition has no elements)
    kind = lambda m: next((c.config.model_type for c in (m, getattr(m, "module", m)) if hasattr(getattr(c, "config", None), "model_type")), None)
    modules = [m for m in gc.get_objects() if issubclass(type(m), torch.nn.Module)]
    children = {id(child) for m in modules for child in m.children()}
    own, inner = {id(p) for p in stepped} | {id(p) for p in model.parameters()}, engine_of(model)
    for root in modules:
        alike = id(root) not in children and root is not model and kind(root) is not None and kind(root) == kind(inner)
        if not alike or any(id(p) in own for p in root.parameters()) or abs(size(root) - size(model)) > 0.01 * size(model):
            continue
        engine = engine_of(root)
        units = sum(bool(groups_of(m)) for m in root.modules())
        flat = any(type(m).__name__ == "FullyShardedDataParallel" for m in root.modules())
        partitioned = type(engine).__name__ == "DeepSpeedEngine" and engine.zero_optimization_stage() == 3
        held = "units" if flat or partitioned or units > 1 else "unit" if units else "whole"
        return {"held": held, "dtype": str(next(root.parameters()).dtype)}
    return None


def read_peaks():
    stats = sys.modules["torch"].cuda.memory_stats()
    SEEN["peaks"] = {key: stats.get(key + "_bytes.all.peak", 0) for key in ("allocated", "requested")}


def observe(optimizer):
    stepped = [p for g in optimizer.param_groups for p in g["params"]]
    called = SEEN.pop("called", None)  # (an average of its weights may hold it)
    is_it = called is not None and {id(p) for p in stepped} <= {id(p) for p in called.parameters()}
    model = called if is_it else largest_model(stepped)
    if model is not None:
        watch(model)
        SEEN["buffers"] = {id(b) for b in model.buffers()}  # (some optimizers step these, too)
        SEEN["document"] = described_model(model)
        if (reference := described_reference(model, stepped)) is not None:
            SEEN["reference"] = reference


def states_of(optimizer):
    """How many it keeps of each parameter, of that one's size."""
    sizes = [(p.numel(), [t.numel() for t in state.values() if getattr(t, "ndim", 0) > 0]) for p, state in optimizer.state.items()]
    total = sum(size for size, _ in sizes)
    return round(sum(n for size, held in sizes for n in held if n == size) / total) if total else 0


def hook_optimizers(module):
    numbers = {}
    reference = []

    def read_processor():
        if not reference:
            reference.append(beside("foreshard_reference").Reference())
        ratio = reference[0].ratio()
        if "values" in SEEN:
            SEEN["values"](reference[0])
        SEEN.setdefault("processor", []).append(ratio)

    def stepped(optimizer, *unused):
        SEEN["open"] = False
        mark("observed")  # what follows is not the program's time
        if not numbers:
            # Now, for a program's function may have ended before the process does.
            guarded(lambda: observe(optimizer))
        elif SEEN.get("logits") is not None:
            SEEN["logits_held"] = SEEN["logits"]() is not None
        guarded(read_peaks)
        if traces() and "optimizers" not in SEEN:  # (a traced step checkpoints nothing)
            sys.modules["torch"].cuda.reset_peak_memory_stats()
        if id(optimizer) not in numbers:
            said, held = optimizer.defaults, [getattr(p, "_local_tensor", p) for g in optimizer.param_groups for p in g["params"] if p.requires_grad and id(p) not in SEEN.get("buffers", ())]
            SEEN.setdefault("optimizers", []).append({"class": type(optimizer).__name__, "fused": bool(said.get("fused")), "foreach": said.get("foreach"), "states": states_of(optimizer), "elements": sum(p.numel() for p in held), "bytes": sum(p.nbytes for p in held), "tensors": len(held)})
        number = numbers.setdefault(id(optimizer), len(numbers))
        if number == 0:
            guarded(read_processor)
            compiler = sys.modules.get("torch._dynamo.utils")
            SEEN.setdefault("graphs", []).append(compiler.counters["stats"]["unique_graphs"] if compiler else 0)
        LIBRARY.foreshard_null_forget_time()
        mark("step %d %s" % (number, type(optimizer).__name__))

    def begins(optimizer, given, named):
        """Forward and backward may be a closure that the step calls (Lightning's)."""
        closure = named.get("closure", given[1] if len(given) > 1 else None)
        if not callable(closure):
            mark("optimizer")
            return None

        def computed(*unused):
            result = closure()
            mark("optimizer")
            return result

        return ((given[0], computed, *given[2:]), named) if len(given) > 1 else (given, {**named, "closure": computed})

    module.register_optimizer_step_pre_hook(begins)
    module.register_optimizer_step_post_hook(stepped)


def hook_clipping(module):
    clip = module.clip_grad_norm_

    def clipped(parameters, max_norm, *rest, **named):
        mark("clip %g" % float(max_norm))
        return clip(parameters, max_norm, *rest, **named)

    module.clip_grad_norm_ = clipped


def hook_flat_clipping(module):
    """FullyShardedDataParallel's own."""
    clip = module.FullyShardedDataParallel.clip_grad_norm_

    def clipped(self, max_norm, *rest, **named):
        mark("clip %g" % float(max_norm))
        return clip(self, max_norm, *rest, **named)

    module.FullyShardedDataParallel.clip_grad_norm_ = clipped


# ---- functions that read data: their answer for batches without padding and without packing ----


def answers(table):
    def hook(module):
        for name, answer in table.items():
            if hasattr(module, name):
                setattr(module, name, answer)

    return hook


def padded():
    return os.environ.get("FORESHARD_NULL_PADDED", "") == "1"


def hook_masks(module):
    if hasattr(module, "fast_all"):
        module.fast_all = lambda tensor: not padded()
    if hasattr(module, "_ignore_bidirectional_mask_sdpa"):  # (5.17's reads a mask of its model's own ones)
        skips = module._ignore_bidirectional_mask_sdpa
        module._ignore_bidirectional_mask_sdpa = lambda mask, *rest, **named: not (padded() and mask is not None) and skips(None, *rest, **named)
    if hasattr(module, "find_packed_sequence_indices"):
        module.find_packed_sequence_indices = lambda position_ids: None


# ---- what each module computes (--modules) ----


def traces():
    return os.environ.get("FORESHARD_NULL_MODULES", "") == "1"


def hook_backward(module):
    """The trace of the forward is over where backward begins, and gradients of the step before are, or are not."""
    backward, grad = module.backward, module.grad

    def counted(tensors, *rest, **named):
        left = SEEN.pop("left", None)
        if left is not None:
            SEEN["zeroes_late"] = all(p.grad is None for p in left.parameters())
        backward(tensors, *rest, **named)

    module.backward = counted
    if not traces():
        return
    import torch

    forward_ended, backward_ended = beside("foreshard_modules").start(torch, OUT, SEEN)

    def begun(tensors, *rest, **named):
        guarded(lambda: forward_ended(tensors))
        counted(tensors, *rest, **named)
        guarded(backward_ended)

    def differentiated(outputs, *rest, **named):
        guarded(lambda: forward_ended(outputs, bool(named.get("create_graph"))))
        result = grad(outputs, *rest, **named)
        guarded(backward_ended)
        return result

    module.backward, module.grad = begun, differentiated


def hook_torch(module):
    SEEN["answers"] = beside("foreshard_answers").start(module, LIBRARY)
    hook_values(module)


def hook_spawn(module):
    """Of the processes that a program starts for its node's ranks, this one is its own rank's."""
    start = module.start_processes

    class Ended:
        def join(self, *unused):
            return True

    def started(fn, args=(), nprocs=1, join=True, *rest, **named):
        if nprocs != int(os.environ["LOCAL_WORLD_SIZE"]):
            return start(fn, args, nprocs, join, *rest, **named)
        fn(int(os.environ["LOCAL_RANK"]), *args)
        return None if join else Ended()

    module.spawn = module.start_processes = started


def hook_values(module):
    """Integers are computed on the host, too (--values)."""
    if os.environ.get("FORESHARD_NULL_VALUES", "") != "1":
        return
    SEEN["values"] = beside("foreshard_values").start(module, LIBRARY)


HOOKS = {
    "torch": hook_torch,
    "torch.amp.grad_scaler": lambda module: beside("foreshard_answers").hook_scaler(module, LIBRARY),
    "torch.autograd": hook_backward,
    "torch.distributed.rendezvous": hook_rendezvous,
    "torch.distributed.checkpoint.default_planner": answers({"_validate_global_plan": lambda *unused: True}),  # all ranks say this one's
    "torch.distributed.distributed_c10d": hook_groups,
    "torch.multiprocessing": hook_spawn,
    "torch.optim.optimizer": hook_optimizers,
    "torch.nn.utils.clip_grad": hook_clipping,
    "torch.distributed.fsdp.fully_sharded_data_parallel": hook_flat_clipping,
    "transformers.masking_utils": hook_masks,
}


class Finder(importlib.abc.MetaPathFinder):
    """Runs a hook once its module has been executed."""

    def find_spec(self, name, path, target=None):
        hook = HOOKS.pop(name, None)
        if hook is None:
            return None
        spec = importlib.util.find_spec(name)
        HOOKS[name] = hook  # who asks (transformers, whether torch is there) may not import it
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def run(module):
            is_first = HOOKS.pop(name, None) is not None
            execute(module)
            if is_first:
                hook(module)

        spec.loader.exec_module = run
        return spec


# ---- the program's model, for `foreshard import` ----


def groups_of(module):
    """Of fully_shard; since 2.12 a module may have several, each of a mesh of its own."""
    state = getattr(module, "_get_fsdp_state", lambda: None)()
    groups = getattr(state, "_fsdp_param_groups", None)
    return [group for group in (groups if groups is not None else [getattr(state, "_fsdp_param_group", None)]) if group is not None]


def described_unit(name, module, group, seen):
    """One that fully_shard made; nothing where modules share one that was described."""
    if id(group) in seen:
        return None
    state = module._get_fsdp_state
    seen.add(id(group))
    policy = getattr(group, "mp_policy", None) or state()._mp_policy  # 2.15: the state's
    after, first = group.post_forward_mesh_info, group.fsdp_params[0]
    kept = getattr(after, "shard_mesh_size", None)
    shards = getattr(group.mesh_info, "shard_mesh_size", None)
    return {
        "name": name or "root",
        "modules": getattr(group, "_module_fqn", None) or name,
        "parameters": len(group.fsdp_params),
        "numel": sum(p._orig_size.numel() for p in group.fsdp_params),
        "param_dtype": str(policy.param_dtype or first.sharded_param.dtype),
        "reduce_dtype": str(policy.reduce_dtype or policy.param_dtype or first.sharded_param.dtype),
        "output_dtype": str(policy.output_dtype),
        "reshard_after_forward": kept if after is not None and kept not in (None, shards) else after is not None,
        "divide_factor": getattr(group, "gradient_divide_factor", None),
        "offload": hasattr(group.offload_policy, "pin_memory"),
        "pinned": bool(getattr(group.offload_policy, "pin_memory", False)),
        "mesh": list(group.mesh_info.mesh.shape),
    }


def described_flat_unit(name, module):
    """One of FullyShardedDataParallel, as one of fully_shard."""
    strategy, precision = module.sharding_strategy.name, module.mixed_precision
    handle = module._handle
    stored = str(handle.flat_param.dtype)
    replicas = module._inter_node_pg.size() if hasattr(module, "_inter_node_pg") else 1
    shards = 1 if strategy == "NO_SHARD" else module.process_group.size()
    compute = str(precision.param_dtype or stored)
    return {
        "name": name or "root",
        "modules": name,
        "parameters": len(handle.flat_param._fqns),
        "numel": sum(handle.flat_param._numels),
        "param_dtype": compute,
        "reduce_dtype": str(precision.reduce_dtype or compute),
        "output_dtype": "None",
        # The root keeps its parameters for the backward.
        "reshard_after_forward": bool(name) and strategy in ("FULL_SHARD", "HYBRID_SHARD"),
        "offload": bool(module.cpu_offload.offload_params),
        "mesh": [module.process_group.size(), 1] if strategy == "NO_SHARD" else [replicas, shards] if replicas > 1 else [shards],
    }


def described_fsdp1(root, document):
    flat = [(n, m) for n, m in root.named_modules() if type(m).__name__ == "FullyShardedDataParallel" and m._handle is not None]
    if not flat:
        return
    document["units"] = [described_flat_unit(".".join(w for w in n.split(".") if w != "_fsdp_wrapped_module"), m) for n, m in flat]
    first = flat[0][1]
    document["fsdp1"] = {
        "backward_prefetch": getattr(first.backward_prefetch, "name", None),
        "forward_prefetch": bool(first.forward_prefetch),
        "limit_all_gathers": bool(first.limit_all_gathers),
        "use_orig_params": bool(first._use_orig_params),
    }


def described_ddp(model):
    return {
        "bucket_cap_mb": None if getattr(model, "bucket_bytes_cap_default", False) else model.bucket_bytes_cap / 2**20,
        **{key: bool(getattr(model, key, False)) for key in ("static_graph", "find_unused_parameters", "gradient_as_bucket_view", "broadcast_buffers")},
        "parameters_cast": getattr(model, "mixed_precision", None) is not None,
    }


def name_of(model, getter):
    try:
        module = getattr(model, getter)()
    except Exception:
        return None
    return next((n for n, m in model.named_modules() if m is module), None) if module is not None else None


def uses_reentrant(model):
    made = (getattr(m, "_gradient_checkpointing_func", None) for m in model.modules())
    return any((getattr(f, "keywords", None) or {}).get("use_reentrant", False) for f in made)


def described_adapters(model):
    of = next(iter(model.peft_config.values()))
    targets = of.target_modules
    return {"rank": getattr(of, "r", 0), "targets": sorted(targets) if isinstance(targets, (set, list)) else targets, "dropout": getattr(of, "lora_dropout", 0.0)}


def plain(document):
    """JSON has no infinity; Accelerate has DeepSpeed print every infinite number of steps."""
    return json.loads(json.dumps(document, default=str), parse_constant=str)


def engine_of(root):
    """The engine or replicas of most of a model's parameters, which Fabric holds in a module of its own, others in their loss."""
    count = sum(p.numel() for p in root.parameters())
    kinds = ("DeepSpeedEngine", "DistributedDataParallel")
    return next((m for m in root.modules() if type(m).__name__ in kinds and 2 * sum(p.numel() for p in m.parameters()) > count), root)


def described_model(root):
    engine = engine_of(root)
    inner = getattr(engine, "module", engine)
    own = getattr(inner, "_orig_mod", inner)
    own = own.get_base_model() if hasattr(own, "peft_config") else own
    # (What only holds such a model may have its config, too.)
    config = getattr(own, "config", None) if any(c.__name__ == "PreTrainedModel" for c in type(own).__mro__) else None
    seen = set()
    document = {"schema": "foreshard.capture.model/1", "class": type(root).__name__}
    if hasattr(config, "to_dict"):
        document["config"] = plain(config.to_dict())
        task = type(own).__name__.removeprefix("FSDP")
        if hasattr(sys.modules.get("transformers"), task):  # (a checkpoint's config says what it was saved of)
            document["config"]["architectures"] = [task]
        document["attention"] = getattr(config, "_attn_implementation", None)
    document["parameters"] = [
        {"name": n, "shape": list(p.shape), "dtype": str(p.dtype), "trainable": p.requires_grad} for n, p in root.named_parameters()
    ]
    document["units"] = [u for u in (described_unit(n, m, group, seen) for n, m in root.named_modules() for group in groups_of(m)) if u is not None]
    described_fsdp1(root, document)
    if type(engine).__name__ == "DeepSpeedEngine":
        document["deepspeed"] = plain(engine._config._param_dict)
    if type(engine).__name__ == "DistributedDataParallel" and hasattr(engine, "reducer"):  # not Megatron's
        document["ddp"] = described_ddp(engine)
    if hasattr(inner, "peft_config"):
        document["lora"] = described_adapters(inner)
    document["input_embeddings"] = name_of(inner, "get_input_embeddings")
    document["output_embeddings"] = name_of(inner, "get_output_embeddings")
    if getattr(inner, "is_gradient_checkpointing", False):
        document["checkpointing"] = {"reentrant": uses_reentrant(inner)}
    document["padded"] = padded()
    compiled = [n for n, m in root.named_modules() if type(m).__name__ == "OptimizedModule" or getattr(m, "_compiled_call_impl", None) is not None]
    if compiled:
        document["compiled"] = compiled
    document["versions"] = {
        name: getattr(sys.modules[name], "__version__", "") for name in ("torch", "transformers", "accelerate", "peft", "deepspeed", "trl") if name in sys.modules
    }
    return document


def write_model():
    if "torch" not in sys.modules or not OUT:
        return
    document = SEEN.get("document")
    if document is None:
        root = largest_model()
        if root is None:
            return
        document = described_model(root)
    document.update({key: SEEN[key] for key in ("inputs", "labelled", "reference", "loss_in_forward", "logits_held", "logits_dtype", "zeroes_late", "peaks", "optimizers", "processor", "graphs") if key in SEEN})
    document.update(vars(COMPUTES))
    with open(os.path.join(OUT, "model.json"), "w") as file:
        json.dump(document, file, indent=1)


def guarded(describe):
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            describe()
    except Exception as error:  # a capture without its model is one all the same
        sys.stderr.write("foreshard-null: the model is not described: %s\n" % error)


def at_exit():
    if os.environ.get("FORESHARD_NULL_PID") != str(os.getpid()):
        return
    guarded(write_model)


if OUT and hasattr(LIBRARY, "foreshard_null_mark"):
    # The program's own process; what it starts inherits this.
    os.environ.setdefault("FORESHARD_NULL_PID", str(os.getpid()))
    if os.environ["FORESHARD_NULL_PID"] == str(os.getpid()):
        import atexit

        sys.meta_path.insert(0, Finder())
        beside("foreshard_failures").start()
        # PyTorch's libraries name many functions that are not here and that nobody calls.
        sys.setdlopenflags(os.RTLD_LAZY)
        atexit.register(at_exit)

# A sitecustomize of the environment itself, which this one hides.
for _folder in sys.path:
    if os.path.abspath(_folder or ".") == FOLDER:
        continue
    _file = os.path.join(_folder, "sitecustomize.py")
    if os.path.isfile(_file):
        exec(compile(open(_file).read(), _file, "exec"))
        break
