"""Integers that follow from what the host gave the GPU (foreshard-null --values).

No kernel runs on the null GPU, so lengths, masks and indices that a program computes there read as zeros. Under this
mode an operation whose tensors on the GPU are known and small, and of which none wants a gradient, is done on the host as
well, and the null GPU is told what its result holds; an operation whose shape depends on values is told how many there
are. What a weight has a part in stays unknown, but that choices fall on each as often. Memory, kernels and collectives are the program's own as ever.
"""

import ctypes
import time

MOST_BYTES = 1 << 20  # exec/null/device.h's kKnownBytes
MOST_ELEMENTS = 1 << 24


def start(torch, library):
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten, tree_map

    followed = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.bfloat16, torch.float16}
    plain = {torch.Tensor, torch.nn.Parameter}
    answer = library.foreshard_null_answer
    answer.argtypes = [ctypes.c_int64]
    library.foreshard_null_known.argtypes = library.foreshard_null_know.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    begin_operation, end_operation = library.foreshard_null_begin_operation, library.foreshard_null_end_operation
    begin_operation.argtypes = end_operation.argtypes = [ctypes.c_int64]
    library.foreshard_null_forget.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    class Unknown(Exception):
        pass

    class Hosts:
        """Copies on the host of tensors on the GPU, by storage: tensors that share one share its copy."""

        def __init__(self, tensors):
            self.storages = {}
            for tensor in tensors:
                storage = tensor.untyped_storage()
                at, size = storage.data_ptr(), storage.nbytes()
                if at in self.storages or not 0 < size <= MOST_BYTES:
                    continue
                held = torch.empty(size, dtype=torch.uint8, device="cpu")  # said, as `zero.Init` and `with torch.device` have another
                if library.foreshard_null_known(at, held.data_ptr(), size) != 0:
                    self.storages[at] = held

        def of(self, thing):
            if isinstance(thing, torch.Tensor) and thing.is_cuda:
                held = self.storages.get(thing.untyped_storage().data_ptr())
                if held is None or thing.dtype not in followed or thing.numel() > MOST_ELEMENTS:
                    raise Unknown
                return view(thing, held)
            if isinstance(thing, torch.device) and thing.type == "cuda":
                return torch.device("cpu")
            return thing

    def view(tensor, held):
        return held.view(tensor.dtype).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def blank(thing):
        return torch.empty_strided(thing.shape, thing.stride(), dtype=thing.dtype, device="cpu") if isinstance(thing, torch.Tensor) else thing

    def tell(at, held):
        library.foreshard_null_know(at, held.data_ptr(), held.numel())

    def tensors_of(things):
        return [t for t in tree_flatten(things)[0] if isinstance(t, torch.Tensor)]

    # What an operation reads back of its own kernels, in order.
    READS = {
        "aten::nonzero": lambda args, made: [made.shape[0]],
        "aten::repeat_interleave": lambda args, made: [made.shape[0], 1],  # whether none is negative
        "aten::_unique2": lambda args, made: [made[0].numel()],
        "aten::unique_consecutive": lambda args, made: [made[0].numel()],
        "aten::bincount": lambda args, made: [int(args[0].min()), int(args[0].max())] if args[0].numel() else [],
    }
    MASKED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::masked_select"}

    def count_masks(args):
        """How many elements masks pick, which the operation reads; what they pick of may be unknown."""
        masks = [t for t in tensors_of(args[1:]) if t.is_cuda and t.dtype in (torch.bool, torch.uint8)]
        for mask in masks:
            answer(int(Hosts(masks).of(mask).count_nonzero()))

    SHAPED = {f"aten::{name}" for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")}  # of no values

    CHOICES = {"aten::topk": -1, "aten::argmax": None, "aten::multinomial": -1}  # along which dimension, where that is not said

    def spread(given, places):
        """What floats choose nobody knows: each as often (experts' rows are those of balanced routing)."""
        dim, of = given["dim"], given["self"]
        return torch.arange(places.numel(), device="cpu").remainder(of.numel() if dim is None else of.shape[dim]).reshape(places.shape)

    class Values(TorchDispatchMode):
        supports_higher_order_operators = True  # FlexAttention
        times = 1.0  # as long as its body here takes the host with what calls it
        body_ns = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            begin = time.thread_time_ns()
            kwargs = kwargs or {}
            # The null GPU itself answers for other ranks, and sees what the host copies (DDP's order of buckets).
            if not hasattr(func, "_schema") or func.namespace == "c10d" or (func._schema.name == "aten::copy_" and not args[1].is_cuda):
                return func(*args, **kwargs)
            told, on_gpu, known, is_factory = self.given(func, args, kwargs)
            is_shaped = told and func._schema.name in SHAPED
            if known and not is_shaped:
                return self.followed(begin, func, args, kwargs, known)
            if told and func._schema.name in MASKED:
                try:
                    count_masks(args)
                except Unknown:
                    pass
            took = time.thread_time_ns() - begin
            Values.body_ns += took
            result = self.done(took, func, args, kwargs) if told else func(*args, **kwargs)
            if on_gpu and func._schema.name in CHOICES:
                self.choose(func, args, kwargs, result)
            if is_shaped or is_factory:
                self.keep(Hosts([]), result, lambda: func(*tree_map(blank, args), **dict(kwargs, device=torch.device("cpu"))))
            return result

        def done(self, took, func, args, kwargs):
            """What the operation's kernels write, its schema says; addresses among their arguments say less."""
            begin_operation(int(took * Values.times))
            try:
                return func(*args, **kwargs)
            finally:
                end_operation(0)

        def given(self, func, args, kwargs):
            """Whether the tensors are PyTorch's own; those on the GPU; integers of these; whether it makes tensors of nothing."""
            if func.is_view:
                return True, [], [], False
            given = tensors_of((args, kwargs))
            if any(type(t) not in plain for t in given):
                return False, [], [], False
            on_gpu = [t for t in given if t.is_cuda]
            is_factory = not given and kwargs.get("device") is not None and torch.Tag.nondeterministic_seeded not in func.tags and not func._schema.name.startswith("aten::empty")
            return True, on_gpu, [t for t in on_gpu if t.dtype in followed] if not any(t.requires_grad for t in on_gpu) else [], is_factory

        def followed(self, begin, func, args, kwargs, known):
            hosts, made, name = Hosts(known), None, func._schema.name
            try:
                if name in MASKED:
                    count_masks(args)
                if torch.Tag.nondeterministic_seeded not in func.tags:
                    told, named = tree_map(hosts.of, (args, kwargs))
                    made = func(*told, **named)
                    for value in READS.get(name, lambda *unused: [])(told, made):
                        answer(value)
            except Exception:  # something is not known, or the host has no such operation
                made = None
            result = self.done(time.thread_time_ns() - begin, func, args, kwargs)
            begin = time.thread_time_ns()
            written = [t for a, said in zip(args, func._schema.arguments)
                       if said.alias_info is not None and said.alias_info.is_write for t in tensors_of([a]) if t.is_cuda]
            for storage in (t.untyped_storage() for t in written):
                at = storage.data_ptr()
                if made is not None and at in hosts.storages:
                    tell(at, hosts.storages[at])
                else:
                    library.foreshard_null_forget(at, storage.nbytes())
            if made is not None and not written:
                self.keep(hosts, result, lambda: made)
            elif made is None and name in CHOICES:
                self.choose(func, args, kwargs, result)
            end_operation(time.thread_time_ns() - begin)
            return result

        def choose(self, func, args, kwargs, result):
            given = dict({"dim": CHOICES[func._schema.name]}, **dict(zip((a.name for a in func._schema.arguments), args)), **kwargs)
            places = result[-1] if isinstance(result, tuple) else result
            self.keep(Hosts([]), places, lambda: spread(given, places))

        def keep(self, hosts, result, made):
            results = tree_flatten(result)[0]
            if not all(type(t) in plain and t.is_cuda and t.dtype in followed and t.untyped_storage().nbytes() <= MOST_BYTES for t in results):
                return
            for tensor, values in zip(results, tree_flatten(made())[0]):
                if tensor.shape == values.shape and tensor.numel() > 0:
                    held = torch.zeros(tensor.untyped_storage().nbytes(), dtype=torch.uint8, device="cpu")
                    view(tensor, held).copy_(values)
                    tell(tensor.untyped_storage().data_ptr(), held)

    def follow(reference):
        """What calling the mode takes over its body, of a step's own mix of operations, views and backward."""
        times = []
        for _ in range(12):
            Values.body_ns = 0
            whole = (reference.seconds() - reference.least) * 1e9
            times.append(max(1.0, whole / max(1, Values.body_ns)))
        Values.times = sorted(times)[len(times) // 2]

    follow.mode = Values()  # PyTorch before 2.9 gives its own reference away where it is disabled for a while
    follow.mode.__enter__()
    return follow
