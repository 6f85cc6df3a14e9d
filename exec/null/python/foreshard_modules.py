"""What each module of a program computes: its ATen operations in the first forward (foreshard-null --modules).

A tensor is its storage, by number; views are the tensor that they look at. modules.json has the sizes as they are:
`foreshard import` finds out, from captures of several sizes, what grows with tokens, sequences or positions.
"""

import json
import os
import sys


def start(torch, out):
    handles, path, state = [], [], {}
    names = {}  # of modules, by id

    def enter(module, arguments):
        if "trace" not in state:
            if not (module.training and torch.is_grad_enabled() and any(p.is_cuda for p in module.parameters())):
                return
            begin(module, arguments)
        path.append(names.get(id(module), path[-1] if path else ""))

    def leave(module, arguments, output):
        if path:
            path.pop()
            if not path:
                state["trace"].place = None

    def begin(root, arguments):
        names.update({id(m): n for n, m in root.named_modules()})
        state["trace"] = trace_of(torch, root, path)
        state["trace"].__enter__()

    def end():
        trace = state.pop("trace", None)
        if trace is None or not handles:
            return
        trace.__exit__(None, None, None)
        for handle in handles:
            handle.remove()
        handles.clear()
        with open(os.path.join(out, "modules.json"), "w") as file:
            json.dump(trace.document(), file)

    module = sys.modules["torch.nn.modules.module"]
    handles += [module.register_module_forward_pre_hook(enter), module.register_module_forward_hook(leave)]
    return end


def trace_of(torch, root, path):
    from torch.utils._python_dispatch import TorchDispatchMode

    def address(tensor):
        return tensor.untyped_storage().data_ptr()

    def flat(things):
        for thing in things:
            if isinstance(thing, torch.Tensor):
                yield thing
            elif isinstance(thing, (list, tuple)):
                yield from flat(thing)

    class Trace(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.place = ""
            self.operations, self.tensors, self.count = [], {}, 0
            self.parameters = {address(p): n for n, p in root.named_parameters()}

        def number(self, tensor, is_new=False):
            at = address(tensor)
            if at in self.parameters:
                return self.parameters[at]
            if is_new or at not in self.tensors:
                self.tensors[at] = self.count
                self.count += 1
            return self.tensors[at]

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            given = list(flat([*args, *kwargs.values()]))
            before = {address(t) for t in given}
            numbers = [self.number(t) for t in given]
            result = func(*args, **kwargs)
            made = [t for t in flat([result]) if t.is_cuda and address(t) not in before and t.numel() > 0]
            if not made:
                return result
            name = func._schema.name.split("::")[-1]
            told = dict(zip((a.name for a in func._schema.arguments), args), **kwargs)
            operation = {
                "op": name, "module": path[-1] if path else None, "in": numbers,
                "out": [{"tensor": self.number(t, True), "elements": t.numel(), "dtype": str(t.dtype)} for t in made],
            }
            if name in ("mm", "addmm"):
                operation["transposed"] = given[-1].is_contiguous()
            if "scaled_dot_product" in name:
                operation["query"], operation["key"] = list(given[0].shape), list(given[1].shape)
                operation["causal"] = bool(told.get("is_causal", False))
            cast = name == "_to_copy" and isinstance(numbers[0], str)
            if cast:  # a parameter in another type is the parameter
                self.parameters[address(made[0])] = numbers[0]
                return result
            self.operations.append(operation)
            return result

        def document(self):
            lists = [
                (n, m) for n, m in root.named_modules()
                if isinstance(m, (torch.nn.ModuleList, torch.nn.Sequential)) and len(m) > 1 and len({type(c) for c in m.children()}) == 1
            ]
            lists.sort(key=lambda of: -sum(p.numel() for p in of[1].parameters()))
            blocks = lists[0] if lists else ("", ())
            prefix = blocks[0] + "." if blocks[0] else ""
            return {
                "schema": "foreshard.capture.modules/1",
                "class": type(root).__name__,
                "block_list": blocks[0],
                "blocks": [prefix + n for n, _ in blocks[1].named_children()] if lists else [],
                "parameters": {n: {"shape": list(p.shape), "dtype": str(p.dtype), "trainable": p.requires_grad} for n, p in root.named_parameters()},
                "operations": self.operations,
            }

    return Trace()
