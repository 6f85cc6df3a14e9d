"""What each module of a program computes: its ATen operations in the first forward (foreshard-null --modules).

A tensor is its storage, by number; views are the tensor that they look at. modules.json has the sizes as they are:
`foreshard import` finds out, from captures of several sizes, what grows with tokens, sequences or positions.
"""

import ctypes
import gc
import inspect
import json
import math
import os
import sys


MOST_OPERATIONS = 30_000  # whose file import reads


def start(torch, out, seen):
    handles, path, state, checkpoints, backwards = [], [], {}, [], []
    undone = [with_functions(torch, state)]
    names, strangers, unstepped = {}, set(), set()  # of modules, by id; what was asked for once

    from torch.utils._pytree import tree_leaves

    outer, others = [], []  # calls before the trace: that are entered; outermost ones, with what they took

    def enter(module, arguments):
        if torch.compiler.is_compiling():
            return
        if "trace" not in state:
            outer.append(id(module))
            if len(outer) == 1 and torch.cuda.is_initialized():
                torch.cuda.reset_peak_memory_stats()
                state["there"] = requested(torch)["current"]
            if not (module.training and torch.is_grad_enabled() and any(p.is_cuda and p.requires_grad for p in module.parameters())):
                return
            if not unstepped:
                undone.append(when_made(torch.optim.Optimizer, unstepped.clear))
            if id(module) in unstepped or is_no_optimizers(torch, module):
                unstepped.update(map(id, module.modules()))
                return
            begin(module, arguments)
        elif id(module) not in names and id(module) not in strangers:
            if is_stepped_with(torch, state["trace"].roots[0][1], module):
                names.update({id(m): n for n, m in state["trace"].add_root(module) if id(m) not in names})
            strangers.update(map(id, module.modules()))
        if not path:
            state["trace"].calls.append((module, len(state["trace"].operations)))
        path.append(names.get(id(module), path[-1] if path else None))
        state["trace"].find_parameters(module, names.get(id(module)))
        if checkpoints and checkpoints[-1] is None:
            checkpoints[-1] = path[-1]

    def leave(module, arguments, output):
        if not torch.compiler.is_compiling() and outer:
            outer.pop()
            if not outer and "there" in state:
                asked, there = requested(torch), state.pop("there")
                given = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tree_leaves(output) if isinstance(t, torch.Tensor) and t.is_cuda}
                stays = max(0, asked["current"] - there - sum(given.values()))  # (the libraries' workspaces)
                others.append((id(module), asked["peak"] - there - stays))
        if path:
            path.pop()

    def begin(root, arguments):
        root, arguments = whose_forward(torch, root, arguments)
        seen["called"], seen["inputs"] = root, inputs_of(arguments)
        state["inputs"] = seen["inputs"]
        root = getattr(root, "_orig_mod", root)  # (torch.compile's)
        outer.clear()
        state["trace"] = trace_of(torch, path, blocks_given_back())
        names.update({id(m): n for n, m in state["trace"].add_root(root)})
        state["before"] = max([taken for of, taken in others if of not in names], default=0)
        others.clear()
        state["trace"].__enter__()
        undone.extend([without_checkpoints(checkpoints), with_lengths_of_host(torch), unoptimized(torch)])
        gathers_unseen(torch, state["trace"], names)

    def forward_ended(loss, again=False):
        backwards.append(None)  # (one may run others: reversible blocks)
        if "trace" not in state or not handles:
            return
        for handle in handles:
            handle.remove()
        handles.clear()
        while undone:
            undone.pop()()
        state["again"] = again
        state["trace"].read_saved(loss)

    def backward_ended():
        backwards.pop()
        if backwards or "trace" not in state:
            return
        trace = state.pop("trace")
        trace.__exit__(None, None, None)
        document = dict(trace.document(), differentiates_twice=state["again"], before=state["before"], inputs=state["inputs"], checkpoints=[unwrapped(c) for c in checkpoints if c])
        write(document)
        follow(document, trace.calls, trace.left_alone(document))
        del trace, document
        gc.collect()  # what it held

    def write(document):
        with open(os.path.join(out, "modules.json"), "w") as file:
            json.dump(document, file)

    def compiled(module, *given, **named):
        """What compiles in its own place calls no hooks of its forward: it does so behind the trace."""
        compile(module, *given, **named)
        graph, state["compiles"] = module._compiled_call_impl, True
        module._compiled_call_impl = lambda *positional, **by_name: (graph if "again" in state else module._call_impl)(*positional, **by_name)

    def follow(document, calls, left):
        """What names hold of the step before, when the outermost calls of the next one begin: operations, bytes."""
        inside, held, there = [], [], []
        compiler = sys.modules.get("torch._dynamo.utils")
        if "compiles" in state or compiler is not None and compiler.counters["frames"]:  # (it would compile for these hooks)
            return

        def enter_again(module, arguments):
            inside.append(not inside and not held and id(module) not in names and any(p.is_cuda for p in module.parameters()))
            if inside[-1]:
                mark("before")
                torch.cuda.reset_peak_memory_stats()
                there.append(requested(torch)["current"])
            if len(inside) > 1 or len(held) == len(calls) or module is not calls[len(held)][0]:
                return
            held.append((calls[len(held)][1], left()))
            if len(held) == len(calls):
                write(dict(document, held=held))

        def leave_again(*unused):
            if inside and inside.pop():
                mark("end")
                document["before"] = max(document["before"], requested(torch)["peak"] - there.pop())
            while len(held) == len(calls) and handles:
                handles.pop().remove()

        handles.extend([module.register_module_forward_pre_hook(enter_again), module.register_module_forward_hook(leave_again)])

    module = sys.modules["torch.nn.modules.module"]
    compile, module.Module.compile = module.Module.compile, compiled
    handles += [module.register_module_forward_pre_hook(enter), module.register_module_forward_hook(leave)]
    return forward_ended, backward_ended


def mark(text):
    """What follows is this one's kernels; "end": nobody's."""
    ctypes.CDLL(None).foreshard_null_mark(("kernels " + text).encode())


def inputs_of(things, name=""):
    """Tensors (NumPy's, too) that a forward is given, by where they stand in tuples, lists and dictionaries."""
    if type(things).__name__ == "ndarray" or hasattr(things, "untyped_storage"):
        return {name: {"shape": list(things.shape), "dtype": "torch." + str(things.dtype).removeprefix("torch.")}}
    parts = things.items() if isinstance(things, dict) else enumerate(things) if isinstance(things, (list, tuple)) else ()
    return {at: said for key, part in parts for at, said in inputs_of(part, ("%s.%s" % (name, key)).lstrip(".")).items()}


def gathers_unseen(torch, trace, names):
    """What fully_shard does around a unit is its plan's matter; it may be its own leaf."""
    from torch.utils._python_dispatch import _disable_current_modes

    def unseen(real):
        def run(*given, **named):
            with _disable_current_modes():
                result = real(*given, **named)
            trace.node = torch._C._autograd._get_sequence_nr()
            for module in (m for unit in getattr(given[0], "modules", ()) for m in unit.modules()):
                trace.find_parameters(module, names.get(id(module)))
            return result

        return run

    for of in [m.FSDPParamGroup for n, m in sys.modules.items() if n.endswith("._fsdp_param_group")]:
        for name in ("pre_forward", "post_forward", "pre_backward", "post_backward", "finalize_backward"):
            setattr(of, name, unseen(getattr(of, name)))


def whose_forward(torch, module, arguments):
    """The outermost module whose forward runs: some call that by its name, without hooks. With what it was given."""
    frame = sys._getframe()
    while frame is not None:
        # (Only of what ends soon: a frame keeps its `f_locals`, and so a loop's batch, as it was asked.)
        of = frame.f_locals.get("self") if frame.f_code.co_name == "forward" else None
        if isinstance(of, torch.nn.Module) and any(m is module for m in of.modules()):
            names, rest, _, values = inspect.getargvalues(frame)
            module, arguments = of, [values.get(n) for n in names[1:]] + list(values.get(rest, ()))
        frame = frame.f_back
    return module, arguments


def stepped_by(torch):
    """What each optimizer steps."""
    return [{id(p) for group in o.param_groups for p in group["params"]} for o in gc.get_objects() if issubclass(type(o), torch.optim.Optimizer)]


def when_made(kind, then):
    init = kind.__init__

    def made(self, *given, **named):
        then()
        init(self, *given, **named)

    kind.__init__ = made
    return lambda: setattr(kind, "__init__", init)


def is_no_optimizers(torch, module):
    """Optimizers step other modules' parameters, and none of this one."""
    stepped = set().union(*stepped_by(torch))
    return stepped.isdisjoint(map(id, module.parameters())) and any(
        id(p) in stepped for m in gc.get_objects() if issubclass(type(m), torch.nn.Module) for p in m._parameters.values()
    )


def is_stepped_with(torch, root, other):
    """One optimizer has both modules' parameters."""
    own = {id(p) for p in root.parameters()}
    steps = set().union(*(stepped for stepped in stepped_by(torch) if stepped & own))
    trained = {id(p) for p in other.parameters() if p.requires_grad}
    return bool(trained) and trained <= steps


def requested(torch):
    return torch.cuda.memory_stats_as_nested_dict()["requested_bytes"]["all"]


def without_checkpoints(entered):
    """What is computed again is the plan's matter: the trace sees what autograd saves of all. `entered`: a None for each, whose
    place the module that it calls first takes."""
    import torch.utils.checkpoint as of

    function, hook = of.CheckpointFunction, of._checkpoint_hook
    here = {name: hook.__dict__.get(name) for name in ("__enter__", "__exit__")}
    function.apply = staticmethod(lambda run, preserve, *given: (entered.append(None), run(*given))[1])
    hook.__enter__, hook.__exit__ = lambda self: entered.append(None) or self, lambda self, *unused: None

    def undo():
        del function.apply
        for name, own in here.items():
            delattr(hook, name) if own is None else setattr(hook, name, own)

    return undo


def unoptimized(torch):
    """TorchScript runs what it was written as: of its own graphs no operation is seen."""
    before = torch._C._get_graph_executor_optimize()
    torch._C._set_graph_executor_optimize(False)
    return lambda: torch._C._set_graph_executor_optimize(before)


def with_lengths_of_host(torch):
    """Beneath a mode ctc_loss hands its lengths on as they are; without one it reads them, as here."""
    function = torch.ctc_loss

    def read(logits, targets, *lengths, **others):
        return function(logits, targets, *[n.tolist() if isinstance(n, torch.Tensor) else n for n in lengths[:2]], *lengths[2:], **others)

    torch.ctc_loss = read
    return lambda: setattr(torch, "ctc_loss", function)


def with_functions(torch, state):
    """Of autograd.Function subclasses: their operations, and what parameters they are given. (Modules bind `apply` as they are imported.)"""
    of = sys.modules["torch.autograd.function"].Function
    own = of.__dict__["apply"]

    def run(cls, *given, **named):
        trace = state.get("trace")
        if trace is None or trace.nodes is not None:
            return own.__get__(None, cls)(*given, **named)
        begin, node = len(trace.operations), torch._C._autograd._get_sequence_nr()
        result = own.__get__(None, cls)(*given, **named)
        for tensor in (result if isinstance(result, tuple) else [result]) if len(trace.operations) > begin else ():
            trace.write(tensor)
        trace.functions.append((cls.__name__, begin, len(trace.operations), node, {trace.number(t) for t in given if isinstance(t, torch.nn.Parameter)}))
        return result

    of.apply = classmethod(run)
    return lambda: setattr(of, "apply", own)


def blocks_given_back():
    """A function: addresses that the allocator took back since it was called last."""
    ask, most = ctypes.CDLL(None).foreshard_null_freed, 4096
    ask.argtypes, ask.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_size_t
    buffer = (ctypes.c_uint64 * most)()

    def asked():
        while True:
            count = ask(buffer, most)
            yield from buffer[:count]
            if count < most:
                return

    list(asked())
    return asked


def nodes_behind(loss):
    """Autograd's, each once."""
    seen, left = {}, [t.grad_fn for t in (loss if isinstance(loss, (list, tuple)) else [loss])]
    while left:
        node = left.pop()
        if node is None or node.name() == "torch::autograd::AccumulateGrad" or node._sequence_nr() in seen:
            continue
        seen[node._sequence_nr()] = node
        left += [n for n, _ in node.next_functions]
    return seen


def unwrapped(name):
    while name.endswith(("._checkpoint_wrapped_module", "._fsdp_wrapped_module", "._orig_mod")):
        name = name.rpartition(".")[0]
    return name


def parts_of(name, parameter):
    """Names, shapes and places of what FullyShardedDataParallel laid flat (without use_orig_params); of any other itself."""
    if not hasattr(parameter, "_is_padding_mask"):
        return [(name, parameter.shape, 0)]
    parts, left, offset = [], list(zip(parameter._fqns, parameter._shapes)), 0
    for size, is_padding in zip(parameter._numels_with_padding, parameter._is_padding_mask):
        if not is_padding:
            parts.append((name.removesuffix("_flat_param") + left[0][0], left.pop(0)[1], offset))
        offset += size
    return parts


def trace_of(torch, path, given_back):
    from torch.utils._python_dispatch import TorchDispatchMode

    def address(tensor):
        storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
        return storage.data_ptr() or storage._cdata  # (of nothing)

    def extent(tensor):
        """A complex number is two."""
        return (*tensor.shape, 2) if tensor.is_complex() else tensor.shape

    def real(tensor):
        """Its elements and their type."""
        return {"elements": math.prod(extent(tensor)), "dtype": str(tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype)}

    def flat(things):
        for thing in things:
            if isinstance(thing, torch.Tensor):
                yield thing
            elif isinstance(thing, (list, tuple)):
                yield from flat(thing)

    def measured(func, args, kwargs):
        """Its result, and bytes that stood beside that while it was made. (Peaks of this step are nobody's: sitecustomize.py.)"""
        torch.cuda.reset_peak_memory_stats()
        result = func(*args, **kwargs)
        asked = requested(torch)
        return result, asked["peak"] - asked["current"]

    class Trace(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.operations, self.tensors, self.views, self.given, self.count, self.node, self.nodes, self.last = [], {}, {}, {}, 0, 0, None, None
            self.running, self.beside, self.most = None, {}, 0  # what the node that runs has made, by storage; elements at most
            self.largest, self.whole = 0, 0  # bytes of those, and with the workspaces of its operations
            self.sizes, self.calls = {}, []  # bytes, by number; outermost calls, with their place
            self.functions, self.hidden = [], []  # of autograd.Function; those that run modules without autograd
            self.living, self.ended = {}, {}  # numbers by storage; by number, where the storage was given back
            self.parameters, self.named, self.first = {}, {}, {}  # by storage and place in it; a parameter's first name, by each, by its id
            self.roots, self.unread, self.looks = [], {}, 0  # with what stands before their names; views by number
            self.buffers, self.marks, self.resolved = set(), 0, False  # storages that are there for good; operations whose kernels are counted

        def add_root(self, root):
            """One model; others that its optimizer steps, too, stand beside it. Its modules by name."""
            prefix = "%s%d." % (type(root).__name__, len(self.roots)) if self.roots else ""
            self.roots.append((prefix, root))
            self.buffers |= {address(b) for b in root.buffers()}
            for name, p in root.named_parameters(remove_duplicate=False):
                self.named[prefix + name] = self.first.setdefault(id(p), prefix + name)
            for name, module in root.named_modules():
                self.find_parameters(module, (prefix + name).rstrip("."))
            return [((prefix + n).rstrip("."), m) for n, m in root.named_modules()]

        def find_parameters(self, module, name):
            """A module's own, which fully_shard may only just have gathered."""
            self.bury()
            for of, p in module._parameters.items():
                whole = self.named.get("%s.%s" % (name, of) if name else of) if name is not None else None
                if whole is not None and p is not None and not hasattr(p, "_local_tensor"):
                    for part, _, offset in parts_of(whole, p):
                        self.parameters.setdefault(address(p), {}).setdefault(p.storage_offset() + offset, part)

        def number(self, tensor, is_new=False, is_view=False, is_same=False):
            """Of a storage, or of the part of it that a view shows. `is_same`: new, in a storage that was there."""
            at = address(tensor)
            if is_new:  # (what a parameter was cast to is gone)
                self.parameters.pop(at, None)
            if at in self.parameters:
                names = self.parameters[at]
                return names[max((o for o in names if o <= tensor.storage_offset()), default=min(names))]
            part = (tensor.storage_offset(), tensor.numel())
            if is_new:
                self.views[at] = {}
            known = self.views.setdefault(at, {})
            if is_view:  # (their number may follow from the samples')
                self.looks += 1
                known[part] = 10**9 + self.looks
                self.living.setdefault(at, []).append(known[part])
                return known[part]
            if is_new or at not in self.tensors:
                self.tensors[at] = self.count
            elif part not in known:
                return self.tensors[at]
            else:
                return known[part]
            if is_new and not is_same:
                self.living.pop(at, None)
                self.sizes[self.count] = tensor.untyped_storage().nbytes()
            self.living.setdefault(at, []).append(self.count)
            self.count += 1
            return self.count - 1

        def bury(self):
            """What was given back since the last operation; in backward `self.last` is the operation whose node ran."""
            where = {"freed": len(self.operations) - 1} if self.nodes is None else {"freed_backward": self.last}
            for at in given_back():
                for number in self.living.pop(at, ()):
                    self.ended[number] = where
                for of in (self.tensors, self.views, self.parameters, self.beside):
                    of.pop(at, None)

        @staticmethod
        def described(tensor, number):
            shape = [max(1, n) for n in extent(tensor)]  # (of what a mask that nobody computed selects)
            return dict(real(tensor), tensor=number, elements=math.prod(shape), shape=shape)

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if any(hasattr(of, "__tensor_flatten__") for of in types):  # (what a DTensor is made of is seen)
                return func(*args, **kwargs)
            self.bury()
            if self.nodes is not None:
                return self.run_backward(func, args, kwargs)
            given = list(flat([*args, *kwargs.values()]))
            before = {address(t) for t in given}
            numbers = []
            for tensor in given:
                is_given = tensor.is_cuda and address(tensor) not in self.tensors
                numbers.append(self.number(tensor) if tensor.is_cuda else -1)  # (of the host's nothing is a layer's)
                if is_given and isinstance(numbers[-1], int) and address(tensor) not in self.buffers:
                    self.given[numbers[-1]] = dict(real(tensor), shape=list(tensor.shape))
            name = func._schema.name.split("::")[-1]
            is_marked = name.endswith("_rnn")  # products of its own
            if is_marked:
                self.marks += 1
                mark(str(self.marks))
            result, workspace = measured(func, args, kwargs)
            if is_marked:
                mark("end")
            self.bury()  # (what the operation had for itself may be the result's now)
            results = [t for t in flat([result]) if t.is_cuda]
            results = [t for t in results if t.numel() > 0] or results
            made = [t for t in results if address(t) not in before]
            operation = {"op": name, "module": path[-1] if path else None, "in": numbers}
            if is_marked:
                operation["mark"] = self.marks
            if workspace > 0:
                operation["workspace"] = workspace
            last, self.node = self.node, torch._C._autograd._get_sequence_nr()
            if self.node > last:
                operation["node"] = self.node - 1
            copied = self.operations[-1] if self.operations else {}
            if self.resolved and self.node == last:  # a conjugate, inside of the operation: whose node there is since
                operation["node"], source, made_of = self.operations.pop()["node"], copied["in"][0], copied["out"][0]
                operation["in"] = numbers = [source if n == made_of["tensor"] else n for n in numbers]
                operation["workspace"] = workspace + 4 * made_of["elements"]
            self.resolved = name == "clone" and given[0].is_conj() and "node" in operation
            if name.endswith("_") and copied.get("op") == "clone" and copied["in"] == numbers[:1] and "node" in copied and self.node == last:
                operation["node"], operation["kept"] = copied.pop("node") - 1, [copied["out"][0]["tensor"]]  # made behind it
                if results[0]._base is None:  # the copy is what it keeps of its input
                    self.operations.pop()
                    at = next(at for at, n in self.tensors.items() if n == operation["kept"][0])
                    operation["kept"] = numbers[:1]
                    self.tensors[at], self.views[at], self.living[at], made = numbers[0], {}, numbers[:1], results[:1]
            if not made and results and isinstance(numbers[0], int):
                if name.endswith("_") and "node" in operation:
                    base, operation["in_place"] = results[0]._base, True  # (of a part, the whole)
                    at, made = address(results[0]), results[:1] if base is None else [base]
                    numbers[0] = numbers[0] if base is None else self.tensors[at]
                    views = self.views[at]  # (what they show is as it was)
                elif math.prod(extent(results[0])) != math.prod(extent(given[0])):
                    operation["view"] = True
                    operation["out"] = [self.described(t, self.number(t, is_view=True)) for t in results]
                    self.unread.update({out["tensor"]: operation for out in operation["out"]})
                    return result
            if not made or name == "set_":  # (which looks at what is there: flattened weights)
                return result
            told = dict(zip((a.name for a in func._schema.arguments), args), **kwargs)
            operation["out"] = [self.described(t, self.number(t, True, is_same="in_place" in operation)) for t in made]
            if "in_place" in operation:
                self.views[at] = views
                for view in self.unread.values():  # (what nobody has looked at yet)
                    view["in"] = [operation["out"][0]["tensor"] if n == numbers[0] else n for n in view["in"]]
            if name in ("mm", "addmm"):
                operation["transposed"] = given[-1].is_contiguous()
                operation["k"], operation["n"] = given[-1].shape
            if name == "convolution":
                operation["transposed"] = bool(args[6])
                operation["positions"] = (given[0] if args[6] else result)[:, 0].numel()
            if "scaled_dot_product" in name:
                operation["query"], operation["key"] = list(given[0].shape), list(given[1].shape)
                operation["causal"] = bool(told.get("is_causal", False))
            cast = name == "_to_copy" and isinstance(numbers[0], str)
            if cast:  # a parameter in another type is the parameter
                self.parameters[address(made[0])] = {0: numbers[0]}
                return result
            if name == "empty":  # filled later, if at all
                self.unread.update({out["tensor"]: operation for out in operation["out"]})
                return result
            self.append(operation)
            return result

        def write(self, tensor):
            """A function's result that it wrote in place, part by part, is of all that it made."""
            last = [out["tensor"] for out in self.operations[-1]["out"]]
            if isinstance(tensor, torch.Tensor) and tensor.is_cuda and tensor._version > 0 and address(tensor) in self.tensors and self.number(tensor) not in last:
                number = self.number(tensor)
                out = self.described(tensor, self.number(tensor, True, is_same=True))
                self.operations.append({"op": "mul", "module": path[-1] if path else None, "in": [number, *last], "out": [out], "in_place": True})

        def append(self, operation):
            """Views, too, that something reads: a mask is written sample by sample."""
            for view in [self.unread[n] for n in operation["in"] if n in self.unread]:
                if any([self.unread.pop(out["tensor"], None) for out in view["out"]]):  # (all of them)
                    self.append(view)
            self.operations.append(operation)

        def run_backward(self, func, args, kwargs):
            """What a node makes: gradients, and what it needs for them."""
            node = torch._C._current_autograd_node()
            operation = self.nodes.get(node._sequence_nr()) if node is not None else None
            is_marked = operation is not None and "mark" in operation
            if is_marked:
                mark("%d backward" % operation["mark"])
            result, workspace = measured(func, args, kwargs)
            if is_marked:
                mark("end")
            if operation is not None:
                if self.running is not operation:
                    self.running, self.beside, self.most, self.largest, self.whole = operation, {}, 0, 0, 0
                self.last = operation["at"]
                before = {address(t) for t in flat([*args, *kwargs.values()])}
                self.beside.update({address(t): real(t) for t in flat([result]) if t.is_cuda and t.numel() > 0 and address(t) not in before})
                there = sum(t["elements"] for t in self.beside.values())
                held = sum(t["elements"] * getattr(torch, t["dtype"].removeprefix("torch.")).itemsize for t in self.beside.values())
                if there >= self.most:
                    self.most, self.largest, operation["backward"] = there, held, list(self.beside.values())
                self.whole = max(self.whole, held + workspace)
                operation["backward_workspace"] = max(0, self.whole - self.largest)  # (some is gone when the largest is made)
            return result

        def read_saved(self, loss):
            """What each node of autograd keeps for backward."""
            self.others_there = self.others()  # (in backward DDP's buckets are seen, too)
            self.bury()
            behind, self.nodes = nodes_behind(loss), {}
            for name, begin, end, node, parameters in self.functions:
                inside = [o for o in self.operations[begin:end] if "float" in o["out"][0]["dtype"]]
                if node not in behind or len(inside) < 2:
                    continue
                if any(isinstance(n, str) and n not in parameters for o in inside for n in o["in"]):
                    self.hidden.append(name)
                for operation in inside:
                    operation["node"] = node
            for at, operation in enumerate(self.operations):
                node = behind.get(operation.get("node"))
                copied = operation.pop("kept", []) if node is None else []
                if copied or (node is None and "in_place" in operation):  # of a view: the next one (behind a copy's), which has it inside
                    operation["node"] += 1 + len(copied)
                    node = behind.get(operation["node"])
                if node is None:
                    operation.pop("node", None)
                    continue
                earlier = self.nodes.get(operation["node"])  # (the last one's node keeps what a function's does)
                if earlier is not None:
                    earlier["saved"] = []
                self.nodes[operation["node"]], operation["at"] = operation, at
                operation.setdefault("backward", [])
                kept = []
                for name in dir(node):
                    if not name.startswith("_saved_") and name != "saved_tensors":
                        continue
                    try:
                        kept += [t for t in flat([getattr(node, name)]) if t.is_cuda]
                    except RuntimeError:
                        continue
                operation["saved"] = [n for n in copied + [self.number(t) for t in kept if address(t) in self.tensors] if isinstance(n, int)]

        def others(self):
            """Bytes of what is there and no part of the step's forward: other models (a teacher, a reference), averages of weights."""
            states = [s for o in gc.get_objects() if issubclass(type(o), torch.optim.Optimizer) for s in o.state.values()]
            own = {address(t) for _, root in self.roots for p in root.parameters() for t in (p, p.grad) if t is not None}
            own |= {address(t) for s in states for t in flat(list(s.values()))}
            # (What a module had of the host and nobody gave back, a table of positions, is there for good.)
            stays = {out["tensor"] for o in self.operations if o["module"] is not None and set(o["in"]) == {-1} for out in o["out"]} - set(self.ended)
            seen = {torch.nn.Parameter: own, torch.Tensor: own | {at for at, n in self.tensors.items() if n not in stays and at not in self.buffers}}
            there = [t for t in gc.get_objects() if type(t) in seen and t.is_cuda and address(t) not in seen[type(t)]]
            alike = {}
            for t in there:
                alike.setdefault(address(t), []).append(t)
            own = {id(there), *map(id, alike.values())}
            held = {id(r) for o in gc.get_objects() if id(o) not in own for r in gc.get_referents(o)} if len(alike) < len(there) else set()
            return sum(ts[0].untyped_storage().nbytes() for ts in alike.values() if len(ts) == 1 or any(id(t) in held for t in ts))  # (DDP's buckets no object holds)

        def left_alone(self, document):
            """A function: bytes of what the forward made that nobody has given back."""
            made = {out["tensor"] for o in document["operations"] if set(o["in"]) != {-1} for out in o["out"]}
            left = {at: self.sizes[n[0]] for at, n in self.living.items() if n and n[0] in self.sizes and not made.isdisjoint(n)}

            def ask():
                for at in given_back():
                    left.pop(at, None)
                return sum(left.values())

            return ask

        def document(self):
            def repeats(of):
                kinds = [type(c) for c in of.children()]  # (a flow's steps take turns)
                return len(set(kinds)) == 1 or isinstance(of, torch.nn.ModuleList) and all(kinds.count(k) > 1 for k in kinds)

            self.bury()
            for operation in self.operations:
                for key in ("at", "kept"):
                    operation.pop(key, None)
                for out in operation["out"]:
                    out.update(self.ended.get(out["tensor"], {}))
            for number, given in self.given.items():
                given.update(self.ended.get(number, {}))
            def is_list(of):
                return isinstance(of, (torch.nn.ModuleList, torch.nn.Sequential)) and len(of) > 1 and all(n.isdigit() for n in of._modules) and repeats(of)

            def is_one_block(of):  # (called several times, or of a small model)
                return isinstance(of, torch.nn.ModuleList) and len(of) == 1 and any(of[0].children()) and not any(is_list(m) for m in of[0].modules())

            def has_parts(of):  # a list of heads is none of blocks where there are others
                return any(any(c.children()) or isinstance(c, torch.nn.RNNBase) for c in of.children())

            root = self.roots[0][1]
            lists = [(prefix + n, m) for prefix, of in self.roots for n, m in of.named_modules() if is_list(m) or is_one_block(m)]
            lists = [of for of in lists if has_parts(of[1])] or lists
            lists.sort(key=lambda of: -sum(p.numel() for p in of[1].parameters()))
            chosen = []
            for of in lists:  # side by side, the largest first
                if not any((of[0] + ".").startswith(n) or n.startswith(of[0] + ".") for n, _ in chosen):
                    chosen.append((of[0] + "." if of[0] else "", of[1]))
            return {
                "schema": "foreshard.capture.modules/2",
                "class": type(root).__name__,
                "block_list": lists[0][0] if lists else "",
                "blocks": [prefix + n for prefix, blocks in chosen for n, _ in blocks.named_children()],
                "parameters": {
                    part: {"shape": list(shape), "dtype": str(p.dtype), "trainable": p.requires_grad, "gradient": p.grad is not None}
                    for prefix, of in self.roots for n, p in of.named_parameters(prefix.rstrip(".")) if self.named.get(n, n) == n for part, shape, _ in parts_of(n, p)
                },
                "given": self.given,
                "hidden": sorted(set(self.hidden)),
                "others": self.others_there,
                "count": len(self.operations),
                "operations": self.operations if len(self.operations) <= MOST_OPERATIONS else [],
            }

    return Trace()
