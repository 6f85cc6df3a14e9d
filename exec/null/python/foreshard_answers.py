"""What a program gets that asks the GPU for what nobody computed, so that it runs on (docs/capture.md)."""

import ctypes
import dis
import functools
import operator
import os
import struct
import sys
import warnings

HERE = os.path.dirname(__file__)
BETWEEN = tuple(os.path.join("torch", *of) for of in (["_ops.py"], ["_compile.py"], ["_dynamo", "eval_frame.py"]))  # around modes
LEAST = 2.0**-20  # below what programs compare with
ENDLESS = 1_000  # questions in one place: few steps ask fewer
# Of libraries that are not answered: filled, of the sizes that PyTorch's meta functions say.
MADE = (
    "_fft_r2c _fft_c2r _fft_c2c linalg_inv_ex linalg_cholesky_ex cholesky_inverse linalg_qr geqrf linalg_householder_product _linalg_svd _linalg_eigh "
    "_linalg_det _linalg_slogdet linalg_lu_factor_ex linalg_lu_solve _linalg_solve_ex linalg_eig linalg_ldl_factor_ex"
).split()


@functools.lru_cache(None)
def told_by_raise(code, at):
    """The truth value with which a function goes on from an instruction where the other one raises at once; None: neither does."""
    steps = list(dis.get_instructions(code))
    index = {step.offset: i for i, step in enumerate(steps)}

    def raises(i):
        for step in steps[i:]:
            if step.opname in ("RAISE_VARARGS", "LOAD_ASSERTION_ERROR"):
                return True
            if "JUMP" in step.opname or step.opname.startswith(("RETURN", "STORE", "FOR_ITER")):
                return False
        return False

    for i in range(index[at], len(steps)):
        step = steps[i]
        if step.opname.startswith("POP_JUMP") and step.opname.endswith(("TRUE", "FALSE")):
            jumps, stays = raises(index[step.argval]), raises(i + 1)
            return None if jumps == stays else step.opname.endswith("TRUE") != jumps
        if step.offset != at and step.opname not in ("CACHE", "TO_BOOL", "COPY", "NOP", "NOT_TAKEN", "EXTENDED_ARG"):
            return None
    return None


def start(torch, library):
    from torch.utils._pytree import tree_leaves, tree_map

    known, know = library.foreshard_null_known, library.foreshard_null_know
    known.argtypes = know.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    asked, guessed = {}, set()  # by place; addresses of truth values whose bytes are a guess

    def bytes_of(tensor):
        held = ctypes.create_string_buffer(tensor.numel() * tensor.element_size())
        return held if known(tensor.data_ptr(), held, len(held)) else None

    def number(tensor):
        if not isinstance(tensor, torch.Tensor) or tensor.numel() != 1:
            return tensor
        held = bytes_of(tensor) if tensor.is_cuda else None
        if held is None and tensor.is_cuda:
            return LEAST if tensor.is_floating_point() else int(tensor.dtype not in (torch.bool, torch.uint8))  # (a count; bytes are flags)
        return (tensor if held is None else torch.frombuffer(held, dtype=tensor.dtype)).item()

    def guess(result, value):
        if bytes_of(result) is None:
            know(result.data_ptr(), bytes([value]), 1)
            guessed.add(result.data_ptr())

    def truth(value):
        frame = sys._getframe(1)
        while frame is not None and (os.path.dirname(frame.f_code.co_filename) == HERE or frame.f_code.co_filename.endswith(BETWEEN)):
            frame = frame.f_back
        if frame is None:  # (a thread of autograd's)
            return value
        place = (frame.f_code, frame.f_lasti)
        told = told_by_raise(*place)
        asked[place] = asked.get(place, 0) + 1
        return value ^ (asked[place] > ENDLESS) if told is None else told

    def scalar(tensor):
        at, is_known = tensor.data_ptr(), bytes_of(tensor) is not None
        value = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor).item()  # (one copy that the host waits for)
        if tensor.dtype == torch.bool and (at in guessed or not is_known):
            return truth(value)
        return value if value or is_known else number(tensor)

    def every(tensor):
        result = torch.empty((), dtype=tensor.dtype if tensor.dtype == torch.uint8 else torch.bool, device=tensor.device)
        torch.all(tensor, out=result)
        if tensor.numel() > 1:
            guess(result, True)
        return result

    def answered(holder, name, answer):
        real = getattr(holder, name)

        @functools.wraps(real)
        def run(*given, **named):
            result = real(*given, **named)
            if type(result) is torch.Tensor and result.is_cuda and result.numel() == 1 and not torch.compiler.is_compiling() and not torch._C._functorch.is_functorch_wrapped_tensor(result):
                guess(result, answer(*map(number, given)))
            return result

        setattr(holder, name, run)

    def made(name, operation):
        def make(*args, **named):
            given = next(t for t in tree_leaves((args, named)) if isinstance(t, torch.Tensor))
            args, named = tree_map(lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") if isinstance(t, torch.Tensor) else t, (args, named))
            results = tree_map(lambda m: torch.empty_strided(m.shape, m.stride(), dtype=m.dtype, device=given.device), operation(*args, **named))
            if name.startswith("_fft"):  # cuFFT's manual: at least the transform's own complex numbers
                torch.empty(max(given.numel(), results.numel()), dtype=torch.complex64, device=given.device)
            return tree_map(lambda t: t.fill_(0), results)

        return make

    for name in ("__lt__", "__le__", "__gt__", "__ge__"):
        answered(torch.Tensor, name, getattr(operator, name))
    for holder in (torch, torch.Tensor):
        answered(holder, "isfinite", lambda *unused: True)
        torch.jit._builtins._register_builtin(holder.isfinite, "aten::isfinite")  # (TorchScript's name of it)
    own = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they take another's place
        own.impl("_local_scalar_dense", scalar, "CUDA")
        own.impl("all", every, "CUDA")
        for name in MADE:
            if hasattr(torch.ops.aten, name):
                own.impl(name, made(name, getattr(torch.ops.aten, name).default), "CUDA")
    return own


def hook_scaler(module, library):
    """Gradients that nobody computed are finite: no step is left out, and the scale stays what it was."""
    step, scale, update = (getattr(module.GradScaler, name) for name in ("_maybe_opt_step", "_get_scale_async", "update"))
    know = library.foreshard_null_know

    def taken(self, optimizer, state, *rest, **named):
        for found in state["found_inf_per_device"].values():
            know(found.data_ptr(), bytes(found.element_size()), found.element_size())
        return step(self, optimizer, state, *rest, **named)

    def kept(self):
        tensor = scale(self)
        if tensor is not None and tensor.is_cuda:
            know(tensor.data_ptr(), struct.pack("f", self._init_scale), 4)
        return tensor

    def updated(self, new_scale=None):
        update(self, new_scale)
        if isinstance(new_scale, float):
            self._init_scale = new_scale

    module.GradScaler._maybe_opt_step, module.GradScaler._get_scale_async, module.GradScaler.update = taken, kept, updated
