"""A program that fails on the null GPU is told its own line that began it, and a way around."""

import os
import sys

WAYS = [  # words of an exception's type, of its module or of its text
    (("LocalEntryNotFound", "OfflineModeIsEnabled", "huggingface.co", "hf.co"),
     "nothing is downloaded here, and weights do not matter: make the model from its configuration (AutoModelForCausalLM.from_config), the data of torch.randint, "
     "or set HF_HUB_OFFLINE=0 where there is a network"),
    (("URLError", "ConnectionError", "gaierror", "MaxRetryError", "ConnectError"),
     "there is no network: what values are does not matter, so read from a file, or make tensors of the same shapes"),
    (("FlashAttention", "flash_attn", "flash-attn"),
     "its package is not installed for this Python; with it, its calls of CUDA are answered; without it, attn_implementation=\"sdpa\" takes PyTorch's own flash attention"),
    (("ModuleNotFoundError",), "install it for this Python: libraries with kernels of their own are answered where they go through CUDA"),
]


def way_around(error):
    chain, seen = [], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        chain.append(" ".join(c.__module__ + "." + c.__qualname__ for c in type(error).__mro__[:-3]) + " " + str(error))
        error = error.__cause__ or error.__context__
    text = " ".join(chain)
    return next((way for words, way in WAYS if any(word in text for word in words)), None)


def own_line(trace):
    """The innermost frame that no library has, else the outermost one."""
    import sysconfig
    import traceback

    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    frames = traceback.extract_tb(trace)
    own = [f for f in frames if "site-packages" not in f.filename and os.path.dirname(f.filename) and not any(f.filename.startswith(l) for l in libraries)]
    frame = (own or frames or [None])[-1 if own else 0]
    return "" if frame is None else "%s:%d %s: " % (frame.filename, frame.lineno, frame.name)


def start():
    show = sys.excepthook

    def shown(kind, error, trace):
        show(kind, error, trace)
        way = way_around(error)
        if way is not None:
            sys.stderr.write("foreshard-null: %s%s; %s\n" % (own_line(trace), kind.__name__, way))

    sys.excepthook = shown
