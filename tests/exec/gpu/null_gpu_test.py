"""The engine's own CUDA half (exec/cuda/) on the null GPU, under its race detector.

    null_gpu_test.py build/bin build/release/tests/programs/null_engine [--whole]

Every plan of the GPU round (exec/gpu/round_plans.py), on the small model or with --whole as it stands there, and a rank of
each kind of group over NCCL, must end well and without a fault; whole, PyTorch's allocator must hold what the forecast says;
every fault that null_engine plants must be found, and
none where it plants nothing. Needs LibTorch
2.11 with its CUDA half: of this python3's torch, or on LD_LIBRARY_PATH; skipped (77) with the reason where there is none.
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "exec/gpu"))
from round_plans import PLANS, plan, words_of  # noqa: E402
from round_tools import example, tokens  # noqa: E402

SKIPPED = 77
# What it reads decides: lengths that the host gave, then what no mask may leave out.
AGAIN = """
import torch
lengths = torch.tensor([3, 2], device="cuda") + 1
torch.ones(2, 8, device="cuda")[:, : int(lengths.cpu().max())].reshape(2, 2, 2)
assert len(torch.where(torch.ones(8, 4, device="cuda", requires_grad=True).topk(2).indices == 1)[0]) == 4
x = torch.ones(4, device="cuda", requires_grad=True)
x[x > 0].max()
"""
# TorchScript reads an optimizer's functions; what a program says of all, or asserts, holds; programs divide by what they read; no step
# is left out for gradients that nobody computed; libraries that are not answered; the other ranks count as many.
PROGRAM = """
import torch, torch.distributed as dist, torch.distributed.optim, weakref
torch.__config__.show()
@torch.jit.script
def every(x):
    return torch.all(x)
import math
few = torch.ones(3, device="cuda")
assert (few > 5).all() and few.sum() > 0 and not torch.equal(few, few + 1)
if not torch.isfinite(few.sum()):
    raise ValueError
if few.sum() < 0:
    raise ValueError
went_on = False
if torch.isfinite(few.sum()) and few.sum() < math.inf:
    went_on = True
assert went_on
1 / math.log(few.sum().item()), 1 / (few > 5).sum().item()
weight = torch.nn.Parameter(few)
adam, scaler = torch.optim.Adam([weight]), torch.amp.GradScaler("cuda")
for _ in range(2):
    scaler.scale(weight.sum()).backward()
    scaler.step(adam)
    scaler.update()
assert adam.state[weight]["step"] == 2 and scaler.get_scale() == 2.0**16
assert torch.fft.rfft(torch.ones(2, 64, device="cuda")).shape == (2, 33) and torch.linalg.qr(torch.ones(4, 2, device="cuda"))[1].shape == (2, 2)
ran = []
torch.multiprocessing.spawn(lambda rank, size: ran.append((rank, size)), args=(8,), nprocs=8)
assert ran == [(0, 8)]
dist.init_process_group("nccl")
count = torch.tensor([3], device="cuda")
dist.all_reduce(count)
assert count.item() == 24, count
loss = torch.tensor([0.5], device="cuda")
dist.all_reduce(loss)
assert loss.item() == 4, loss
from torch.distributed.fsdp import fully_shard
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).cuda()
for unit in (*model, model):
    fully_shard(unit)
optimizer = torch.optim.SGD(model.parameters())
class Twice(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: (torch.empty(8, device="cuda"), y := x.clone(), y[:, 0].add_(x[:, 1] * 2))[1])
    backward = staticmethod(lambda ctx, gradient: gradient * 2)
twice, unstepped = Twice.apply, torch.nn.Linear(8, 8).cuda()
def step():
    given = torch.ones(4, 8, device="cuda")
    there = weakref.ref(given)
    twice(model(unstepped(given).detach())).sum().backward()
    del given
    assert there() is None
step()
optimizer.step()
"""


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def cuda_half():
    """The folder with libtorch_cuda.so."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin:
        folders.append(os.path.join(os.path.dirname(spec.origin), "lib"))
    for folder in folders:
        if folder and os.path.exists(os.path.join(folder, "libtorch_cuda.so")):
            return folder
    skip("LibTorch's CUDA half (libtorch_cuda.so) is neither in python3's torch nor on LD_LIBRARY_PATH")


class OnNullGpu:
    def __init__(self, bin_folder, engine, folder):
        self.bin, self.engine, self.folder = (pathlib.Path(p).resolve() for p in (bin_folder, engine, folder))
        torch = cuda_half()
        # CUDA's libraries of the same wheels, which Python loads before LibTorch.
        beside = [str(path) for path in pathlib.Path(torch).parents[1].glob("nvidia/*/lib")]
        self.environment = dict(os.environ, LD_LIBRARY_PATH=":".join([torch, *beside, os.environ.get("LD_LIBRARY_PATH", "")]),
                                FORESHARD_CUDA_PLUGIN=str(self.bin / "libforeshard_cuda.so"))
        self.failed = []

    def run(self, command, *flags):
        """(exit status, output, lines of faults)."""
        words = [self.bin / "foreshard-null", "--check", "--gpu", "h100", "--out", self.folder / "capture", *flags, "--", *command]
        done = subprocess.run([str(w) for w in words], env=self.environment, cwd=self.folder, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, errors="replace", check=False)
        return done.returncode, done.stdout, [line for line in done.stdout.splitlines() if line.startswith("foreshard-null: ") and "has read" not in line]

    def expect(self, holds, what):
        if not holds:
            self.failed.append(what)
            print("FAILED", what, flush=True)

    def python(self):
        if importlib.util.find_spec("torch") is not None:
            (self.folder / "program.py").write_text(PROGRAM, encoding="utf-8")
            status, output, _ = self.run([sys.executable, "program.py"], "--world", 8, "--modules")
            self.expect(status == 0, f"python: exit {status} {output[-500:]}")
            traced = json.loads((self.folder / "capture/modules.json").read_text(encoding="utf-8"))["operations"]
            read = {name for o in traced for name in o["in"] if isinstance(name, str)}
            self.expect(read == {"0.weight", "0.bias", "1.weight", "1.bias"} and len(traced) == 7, f"python: fully_shard's modules read {read}")
            self.expect(traced[-2]["in"] == [traced[2]["out"][0]["tensor"], traced[4]["out"][0]["tensor"]], "python: what a function wrote in place")
            self.expect(all("node" in o for o in traced), "python: a function's operations are its node's")
            (self.folder / "again.py").write_text(AGAIN, encoding="utf-8")
            status, output, _ = self.run([sys.executable, "again.py"])
            self.expect(status == 0 and output.count("again, ") == 2, f"python: again, exit {status} {output[-500:]}")

    def planted(self, how):
        """By fault, the lines that tell of it."""
        status, output, _ = self.run([self.engine, how])
        if status == 6:
            skip("the engine's CUDA half does not load: " + output.strip().splitlines()[-1])
        found, name = {}, None
        for line in output.splitlines():
            if line.startswith("planted: "):
                name = line.removeprefix("planted: ")
                found[name] = []
            elif name and not line.startswith("warning"):
                found[name].append(line)
        return found

    def faults(self):
        wrong, right = self.planted("wrong"), self.planted("right")
        counts = {}
        for name, lines in wrong.items():
            # Of what PyTorch itself refuses, CUDA is not asked.
            told = [line for line in lines if line.startswith("foreshard-null: ") or line.startswith("thrown: ") and "capture" in line]
            kind = name.split(":")[0]
            n, of = counts.get(kind, (0, 0))
            counts[kind] = (n + bool(told), of + 1)
            self.expect(told, f"{name}: not found {lines}")
            self.expect(not right.get(name, ["no run"]), f"{name}: without the fault {right.get(name)}")
        print("planted faults found:", ", ".join(f"{kind} {n} of {of}" for kind, (n, of) in counts.items()), flush=True)
        self.expect(len(wrong) >= 20, f"only {len(wrong)} faults")

    def memory(self, p):
        """Allocated (with cuBLAS's workspace) and reserved, of the run just ended and as forecast."""
        rank = json.loads((self.folder / "run" / "run.json").read_text(encoding="utf-8"))["ranks"][0]
        done = subprocess.run([str(w) for w in (self.bin / "foreshard", "predict", "--json", *words_of(p, "native", "h100"))],
                              text=True, stdout=subprocess.PIPE, check=True)
        forecast = json.loads(done.stdout)["memory"]
        workspace = 32 << 20
        pairs = {"allocated": (rank["arena_bytes"] + rank["activations_peak_bytes"], forecast["peak_allocated_bytes"]["value"] + workspace),
                 "reserved": (rank["device_reserved_bytes"], forecast["peak_reserved_bytes"]["value"])}
        for name, (held, said) in pairs.items():
            off = said / held - 1
            print(f"{p['name']}: {name} {held / 2**30:.2f} GiB, forecast {100 * off:+.2f} %", flush=True)
            self.expect(abs(off) <= 0.02, f"{p['name']}: {name} is {100 * off:+.2f} % off")

    def round(self, is_whole):
        few, data = (tokens(self.folder / f"tokens-{n}.bin", n) for n in (60_000, 20_000_000 if is_whole else 60_000))
        small = {} if is_whole else dict(model=example(), sequence=32, micro_batch=1)
        plans = PLANS if is_whole else [p for p in PLANS if "layers" not in p["set"].get("recompute", "")]  # of the whole model
        cases = [(dict(p, **small), ["--paced", "--pace", p["pace"]] if p["gpus"] > 1 else []) for p in plans]
        tiny = dict(model=example(), sequence=32, micro_batch=1)
        # Ranks that start each other are none of torchrun's, which the null GPU plays.
        alone = ["env", *(word for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE") for word in ("-u", name))]
        cases += [(plan("2 ranks over NCCL", tiny, 2), ["--spawn", 2]),
                  (plan("2x2 ranks over NCCL", tiny, 4, **{"mesh.shard": 2, "mesh.replicate": 2}), ["--spawn", 4])]
        for p, how in cases:
            steps = 6 if p["graph"] else 3
            status, output, faults = self.run(
                [*(alone if "--spawn" in how else []), self.bin / "foreshard-exec", "run", *words_of(p, "native", "h100"), "--data", few if "--spawn" in how else data, "--tokens", "u16", "--steps", steps,
                 "--device", "cuda", "--out", self.folder / "run", *how, *(["--graph"] if p["graph"] else [])],
                *(["--world", 4] if "--spawn" in how else []))
            self.expect(status == 0 and not faults, f"{p['name']}: exit {status} {faults or output[-500:]}")
            if is_whole and status == 0 and "--spawn" not in how:
                self.memory(p)
        print(f"plans of the round: {len(cases)}, failed: {len(self.failed)}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        null = OnNullGpu(sys.argv[1], sys.argv[2], folder)
        null.python()
        null.faults()
        null.round("--whole" in sys.argv)
    print(f"{len(null.failed)} failed")
    return 1 if null.failed else 0


if __name__ == "__main__":
    sys.exit(main())
