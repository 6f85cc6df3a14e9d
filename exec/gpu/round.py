#!/usr/bin/env python3
"""The round on a GPU: everything that one machine with an NVIDIA GPU can tell, in stages.

    ./x gpu [--minutes N] [--ranks N] [--out DIR] [--stages NAME,...]      in the repository
    ./run.sh ...                                                           in a carried build (./x gpu --pack FILE)

Each stage has a share of the time; what one leaves goes to the later ones. A stage that fails is recorded, and the
next one runs. Results are written as they come, `--bundle FILE` also packs them after every stage. README.md beside
this file says what each stage proves. Needs Python 3.9, and for the GPU a Python environment with torch 2.11.
"""
import argparse
import array
import datetime
import glob
import importlib.util
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SCHEMA = "foreshard.gpu_round/1"

# (name, share of the time). Most useful first: a short round cuts the tail.
STAGES = [("environment", 2), ("self_check", 8), ("measure", 25), ("plans", 35), ("fsdp2", 25), ("ranks", 5)]

# Catalogue keys (foreshard machines) by what the driver calls the GPU; the first match wins.
GPUS = [("H200", "h200"), ("GH200", "gh200-96gb"), ("GB200", "gb200"), ("B200", "b200"), ("H100 NVL", "h100-nvl"),
        ("H100 PCIe", "h100-pcie"), ("H100", "h100-sxm"), ("H800", "h800"), ("H20", "h20"),
        ("A100-SXM4-80GB", "a100-80gb"), ("A100-SXM4-40GB", "a100-40gb"), ("A100 80GB PCIe", "a100-pcie-80gb"),
        ("A100-PCIE-40GB", "a100-pcie-40gb"), ("L40S", "l40s"), ("L40", "l40"), ("L4", "l4"), ("A10", "a10"),
        ("RTX 4090", "rtx-4090"), ("RTX 5090", "rtx-5090"), ("RTX 3090", "rtx-3090")]

ONE = dict(model="tinyllama-1.1b", sequence=2048, micro_batch=4)
EIGHT = dict(model="llama-3-8b", sequence=8192, micro_batch=1)


def plan(name, base, gpus, pace=1, **keys):
    return dict(base, name=name, gpus=gpus, pace=pace, set=keys)


# The fixed set of plans, most useful first. One GPU runs rank 0 of each; more than one rank is paced.
PLANS = [
    plan("1b-world-1", ONE, 1),
    plan("8b-shard-64", EIGHT, 64),
    plan("8b-shard-64-free", EIGHT, 64, pace=0),
    plan("8b-shard-64-free-cudnn", EIGHT, 64, pace=0, attention="cudnn"),
    plan("1b-world-1-cudnn", ONE, 1, attention="cudnn"),
    plan("1b-shard-8", ONE, 8),
    plan("8b-shard-64-recompute", EIGHT, 64, recompute="full"),
    plan("8b-shard-512", EIGHT, 512),
    plan("8b-shard-64-prefetch-0", EIGHT, 64, **{"prefetch.forward": 0, "prefetch.backward": 0}),
    plan("8b-shard-64-prefetch-2", EIGHT, 64, **{"prefetch.forward": 2, "prefetch.backward": 2}),
    plan("1b-shard-64", ONE, 64),
    plan("8b-hsdp-8x8", EIGHT, 64, **{"mesh.shard": 8, "mesh.replicate": 8}),
    plan("1b-hsdp-8x8", ONE, 64, **{"mesh.shard": 8, "mesh.replicate": 8}),
    plan("8b-shard-256", EIGHT, 256),
    plan("8b-shard-64-cudnn", EIGHT, 64, attention="cudnn"),
    plan("1b-shard-64-prefetch-0", ONE, 64, **{"prefetch.forward": 0, "prefetch.backward": 0}),
    plan("1b-shard-64-prefetch-2", ONE, 64, **{"prefetch.forward": 2, "prefetch.backward": 2}),
    plan("8b-shard-64-never", EIGHT, 64, reshard_after_forward="never"),
    plan("1b-shard-64-accumulate-4", ONE, 64, **{"batch.accumulation": 4}),
    plan("1b-shard-64-accumulate-4-kept", ONE, 64, **{"batch.accumulation": 4, "accumulation.mode": "keep_unsharded"}),
    plan("1b-shard-64-reduce-bf16", ONE, 64, **{"dtype.reduce": "bf16"}),
    plan("1b-shard-512", ONE, 512),
    plan("1b-shard-8-recompute", ONE, 8, recompute="full"),
]

# The engine beside FSDP2, best of each side: collectives move their bytes in the GPU on both, and take no further time.
BESIDE = [("1b, world 1", ["1b-world-1", "1b-world-1-cudnn"], ["1b-world-1-default", "1b-world-1-tuned"]),
          ("8b, shard 64, free network", ["8b-shard-64-free", "8b-shard-64-free-cudnn"],
           ["8b-world-64-default", "8b-world-64-tuned"])]

# FSDP2 beside it: (name, base, world, variant, recompute).
FSDP2 = [
    ("1b-world-1-default", ONE, 1, "default", "none"),
    ("8b-world-64-default", EIGHT, 64, "default", "none"),
    ("1b-world-1-tuned", ONE, 1, "tuned", "none"),
    ("8b-world-64-tuned", EIGHT, 64, "tuned", "none"),
    ("1b-world-8-default", ONE, 8, "default", "none"),
    ("8b-world-64-recompute", EIGHT, 64, "default", "full"),
    ("8b-world-512-default", EIGHT, 512, "default", "none"),
]

TINY = dict(model=None, sequence=32, micro_batch=1)  # the stand-in's: models/examples/llama-5m.json
STANDIN_PLANS = [plan("tiny-world-1", TINY, 1), plan("tiny-shard-8", TINY, 8),
                 plan("tiny-hsdp-2x2", TINY, 4, **{"mesh.shard": 2, "mesh.replicate": 2})]
STANDIN_FSDP2 = [("tiny-world-1", dict(model="tiny", sequence=32, micro_batch=1), 1, "default", "none")]


class Round:
    def __init__(self, args):
        self.args = args
        self.out = pathlib.Path(args.out).absolute()
        self.out.mkdir(parents=True, exist_ok=True)
        self.bin = pathlib.Path(args.bin).absolute()
        self.standin = args.device == "standin"
        self.deadline = time.monotonic() + 60 * args.minutes
        self.env = environment(self.bin)
        self.gpu = args.gpu
        self.record = {"schema": SCHEMA, "created": now(), "device": None, "gpu": self.gpu, "minutes": args.minutes,
                       "command": " ".join(sys.argv), "versions": {}, "stages": []}

    # --- files ---

    def save(self):
        write_json(self.out / "round.json", self.record)
        (self.out / "summary.md").write_text(summary(self.out, self.record), encoding="utf-8")
        if self.args.bundle:
            pack(self.out, pathlib.Path(self.args.bundle))

    def row(self, file, row):
        with open(self.out / file, "a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")

    # --- commands ---

    def run(self, name, command, seconds):
        """Output goes to logs/NAME.log. Returns (exit status, seconds); 124: stopped at its limit."""
        logs = self.out / "logs"
        logs.mkdir(exist_ok=True)
        begin = time.monotonic()
        with open(logs / f"{name}.log", "ab") as log:
            log.write(("\n$ " + " ".join(map(str, command)) + "\n").encode())
            log.flush()
            process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT,
                                       env=self.env, cwd=self.out, start_new_session=True)
            try:
                status = process.wait(max(1.0, seconds))
            except subprocess.TimeoutExpired:
                status = 124
                for wanted in (signal.SIGTERM, signal.SIGKILL):
                    try:
                        os.killpg(process.pid, wanted)
                        process.wait(5)
                        break
                    except (ProcessLookupError, subprocess.TimeoutExpired):
                        continue
        return status, time.monotonic() - begin

    def answer(self, name, command, seconds):
        """Exit status and the JSON on stdout, None where it is none."""
        file = self.out / "logs" / f"{name}.json"
        script = 'out=$1; shift; exec "$@" >"$out"'
        status, _ = self.run(name, ["bash", "-c", script, "-", file, *command], seconds)
        try:
            return status, json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return status, None
        finally:
            file.unlink(missing_ok=True)

    def log_tail(self, name, lines=4):
        try:
            text = (self.out / "logs" / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return " | ".join(line.strip() for line in text.strip().splitlines()[-lines:])[-600:]

    # --- stages ---

    def play(self):
        wanted = self.args.stages.split(",") if self.args.stages else [name for name, _ in STAGES]
        unknown = set(wanted) - {name for name, _ in STAGES}
        if unknown:
            sys.exit(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(name for name, _ in STAGES)}")
        chosen = [(name, share) for name, share in STAGES if name in wanted]
        self.save()
        for i, (name, share) in enumerate(chosen):
            left = self.deadline - time.monotonic()
            budget = left * share / sum(s for _, s in chosen[i:])
            begin = time.monotonic()
            stage = {"name": name, "status": "running", "budget_s": round(budget, 1)}
            self.record["stages"].append(stage)
            say(f"stage {name}: {budget:.0f} s")
            self.save()
            try:
                stage["status"], stage["detail"] = getattr(self, name)(budget)
            except Exception as error:  # a stage must not end the round
                stage["status"], stage["detail"] = "failed", f"{type(error).__name__}: {error}"
            stage["seconds"] = round(time.monotonic() - begin, 1)
            say(f"stage {name}: {stage['status']} ({stage['seconds']:.0f} s) {stage['detail']}")
            self.save()
        failed = [s["name"] for s in self.record["stages"] if s["status"] == "failed"]
        print(f"results in {self.out}" + (f"; failed: {', '.join(failed)}" if failed else ""))
        return 1 if failed else 0

    def environment(self, _):
        self.run("environment", ["bash", "-c", "uname -a; nvidia-smi; nvidia-smi -q | head -200; nvcc --version; "
                                 "df -h .; free -g; nproc"], 30)
        missing = {}
        torch = torch_folder()
        for file in [self.bin / "foreshard-exec", self.bin / "foreshard"] + ([torch / "libtorch_cuda.so"] if torch else []):
            if file.exists():
                lost = lost_libraries(file, self.env)
                if lost:
                    missing[file.name] = lost
        self.record["versions"] = versions(self.bin, self.env)
        if not self.standin:
            names = gpu_names()
            self.record["device"] = names[0] if names else None
            self.record["gpus"] = len(names)
            if self.gpu is None:
                self.gpu = next((key for text, key in GPUS if names and text in names[0]), None)
        else:
            self.record["device"], self.gpu = "standin", self.gpu or "h100-sxm"
        self.record["gpu"] = self.gpu
        if missing:
            return "failed", f"libraries not found: {missing}"
        if self.record["device"] is None:
            return "failed", "nvidia-smi shows no GPU"
        if self.gpu is None:
            return "failed", f"no catalogue entry for {self.record['device']}; name one with --gpu"
        return "ok", f"{self.record['device']} as {self.gpu}"

    def self_check(self, budget):
        device = ["--device", "standin"] if self.standin else []
        end = time.monotonic() + min(240, max(budget, 120))  # libraries load slowly the first time
        lost = []  # checks that ended the process, or hung: tried no more
        while True:
            skip = [word for name in lost for word in ("--skip", name)]
            status, seconds = self.run("self_check", [self.bin / "foreshard-exec", "self-check", *device, *skip, "--out",
                                                      self.out / "self_check.json"], min(90, end - time.monotonic()))
            checks = read_json(self.out / "self_check.json")
            if checks is None:
                return "failed", f"exit {status} after {seconds:.0f} s: {self.log_tail('self_check')}"
            if not checks.get("running") or len(lost) == 3 or end - time.monotonic() < 20:
                break
            lost.append(checks["running"])
        failed = lost + [c["check"] for c in checks["checks"] if c["status"] == "failed"]
        return ("failed" if failed else "ok",
                f"{len(checks['checks'])} checks" + (f", failed: {', '.join(failed)}" if failed else ""))

    def measure(self, budget):
        raw = self.out / "raw.json"
        begin = time.monotonic()
        if self.standin:
            what = ["--device", "standin", "--dtype", "fp32", "--model", example(), "--tokens", "32x1"]
        else:
            what = ["--device", "cuda", "--model", "tinyllama-1.1b", "--model", "llama-3-8b", "--tokens", "8192x1",
                    "--tokens", "2048x4"]
        status, _ = self.run("measure", [self.bin / "foreshard-exec", "measure", *what, "--budget", max(5, budget - 60),
                                         "--out", raw], max(20, budget))
        if not raw.exists():
            return "failed", f"exit {status}: {self.log_tail('measure')}"
        left = max(20, budget - (time.monotonic() - begin))
        if self.standin:
            rename_device(raw, "NVIDIA H100 80GB HBM3")
        fitted, _ = self.run("calibrate", [self.bin / "foreshard", "calibrate", raw, "--out", self.out / "profile.json"], left)
        rows = len((read_json(raw) or {}).get("rows", []))
        if fitted != 0:
            return "failed", f"{rows} rows; calibrate: {self.log_tail('calibrate')}"
        return ("ok" if status == 0 else "failed"), f"{rows} rows" + ("" if status == 0 else f", measure ended with {status}")

    def profile(self):
        profile = self.out / "profile.json"
        return ["--profile", profile] if profile.exists() else []

    def job(self, p, runtime):
        words = ["--model", p["model"] or example(), "--cluster", f"{p['gpus']}x{self.gpu}", "--runtime", runtime,
                 "--sequence", p["sequence"], "--micro-batch", p["micro_batch"]]
        for key, value in p["set"].items():
            words += ["--set", f"{key}={value}"]
        return words

    def plans(self, budget):
        end = time.monotonic() + budget
        data = tokens(self.out / "tokens.bin", 4_400_000 if not self.standin else 20_000)
        done, failed, late = 0, [], []
        for p in STANDIN_PLANS if self.standin else PLANS:
            left = end - time.monotonic()
            if left < 15:
                late.append(p["name"])
                continue
            row = self.one_plan(p, data, min(left, 150))
            self.row("plans.jsonl", row)
            done += row["status"] == "ok"
            failed += [p["name"]] if row["status"] != "ok" else []
            self.save()
        data.unlink(missing_ok=True)
        return ("ok" if done and not failed else "failed",
                f"{done} plans" + (f", failed: {', '.join(failed)}" if failed else "")
                + (f", no time for: {', '.join(late)}" if late else ""))

    def one_plan(self, p, data, seconds):
        name, folder = "plan-" + p["name"], self.out / "runs" / p["name"]
        row = {"name": p["name"], "model": p["model"] or "llama-5m", "gpus": p["gpus"], "set": p["set"]}
        steps = 12 if p["gpus"] <= 64 else 10
        command = [self.bin / "foreshard-exec", "run", *self.job(p, "native"), *self.profile(), "--data", data,
                   "--tokens", "u16", "--steps", steps, "--record", 6, "--out", folder, "--json",
                   "--device", "standin" if self.standin else "cuda"]
        if p["gpus"] > 1:
            command += ["--paced", "--pace", p["pace"]]
        status, report = self.answer(name, command, seconds)
        if status != 0 or report is None:
            return dict(row, status="failed", reason=f"exit {status}: {self.log_tail(name)}")
        row.update(measured(report))
        if p["pace"] != 1:  # of another network than the forecast's
            return dict(row, status="ok", pace=p["pace"])
        status, verdict = self.answer(name, [self.bin / "foreshard", "validate", "--plan", folder / "plan.yaml", "--run",
                                             folder, *self.profile(), "--no-history", "--json"], 60)
        if verdict is None:
            return dict(row, status="failed", reason=f"validate: exit {status}: {self.log_tail(name)}")
        for key in ("step_error", "exposed_communication_error", "memory_error", "passed", "by_kind"):
            row[key] = verdict.get(key)
        for file in folder.glob("timeline-rank-*.csv"):  # kept small: what was measured stands in the row
            if file.stat().st_size > 400_000:
                file.unlink()
        return dict(row, status="ok")

    def fsdp2(self, budget):
        if torch_folder() is None:
            return "skipped", "python3 has no torch"
        end = time.monotonic() + budget
        done, failed = 0, []
        for name, base, world, variant, recompute in STANDIN_FSDP2 if self.standin else FSDP2:
            left = end - time.monotonic()
            if left < 20:
                failed.append(f"{name} (no time)")
                continue
            row = self.one_fsdp2(name, base, world, variant, recompute, min(left, 180))
            self.row("fsdp2.jsonl", row)
            done += row["status"] == "ok"
            failed += [name] if row["status"] != "ok" else []
            self.save()
        return "ok" if done and not failed else "failed", f"{done} configurations" + (f", not: {', '.join(failed)}" if failed else "")

    def one_fsdp2(self, name, base, world, variant, recompute, seconds):
        log, file, trace = "fsdp2-" + name, self.out / "logs" / f"{name}.row.json", self.out / "recordings" / name
        command = [sys.executable, HERE / "fsdp2_steps.py", "--model", base["model"], "--sequence", base["sequence"],
                   "--micro-batch", base["micro_batch"], "--world", world, "--variant", variant, "--recompute", recompute,
                   "--device", "cpu" if self.standin else "cuda", "--out", file]
        if world == 1 and variant == "default":
            command += ["--record", trace]
        file.parent.mkdir(exist_ok=True)
        status, spent = self.run(log, command, seconds)
        row = read_json(file) or {"status": "failed", "reason": f"exit {status} after {spent:.0f} s: {self.log_tail(log)}"}
        file.unlink(missing_ok=True)
        row["name"] = name
        if self.standin or row["status"] != "ok":
            return row
        p = dict(base, gpus=world, set={"recompute": recompute, "units.head": "with_norm", "optimizer.implementation": "fused",
                                        "attention": "cudnn" if variant == "tuned" else "flash"})
        status, report = self.answer(log, [self.bin / "foreshard", "predict", *self.job(p, "fsdp2@2.11"), *self.profile(), "--json"], 60)
        if report:
            row["predicted"] = forecast(report)
        if trace.exists():
            status, verdict = self.answer(log, [self.bin / "foreshard", "validate", *self.job(p, "fsdp2@2.11"), "--run", trace,
                                                *self.profile(), "--no-history", "--json"], 90)
            if verdict:
                row["validation"] = {k: verdict.get(k) for k in ("step_error", "exposed_communication_error", "memory_error",
                                                                 "passed", "by_kind")}
            shutil.rmtree(trace, ignore_errors=True)
        return row

    def ranks(self, budget):
        count = self.args.ranks or self.record.get("gpus", 0)
        if self.standin or count < 2:
            return "skipped", "one GPU: NCCL between GPUs, its curves and real shard groups need two or more"
        end = time.monotonic() + budget
        data = tokens(self.out / "tokens.bin", 2_000_000)
        done, failed = 0, []
        for base, label in ((ONE, "1b"), (EIGHT, "8b")):
            p = plan(f"{label}-real-{count}", base, count)
            name, folder = "ranks-" + p["name"], self.out / "runs" / p["name"]
            left = end - time.monotonic()
            if left < 20:
                break
            command = [self.bin / "foreshard-exec", "run", *self.job(p, "native"), *self.profile(), "--data", data, "--tokens",
                       "u16", "--steps", 12, "--record", 6, "--out", folder, "--json", "--device", "cuda", "--spawn", count]
            status, report = self.answer(name, command, left)
            if status != 0 or report is None:
                failed.append(f"{p['name']}: exit {status}: {self.log_tail(name)}")
                continue
            row = dict(name=p["name"], model=p["model"], gpus=count, set={}, status="ok", **measured(report))
            _, verdict = self.answer(name, [self.bin / "foreshard", "validate", "--plan", folder / "plan.yaml", "--run", folder,
                                            *self.profile(), "--no-history", "--json"], 60)
            for key in ("step_error", "exposed_communication_error", "memory_error", "passed", "by_kind"):
                row[key] = (verdict or {}).get(key)
            self.row("plans.jsonl", row)
            done += 1
        data.unlink(missing_ok=True)
        return "ok" if done and not failed else "failed", f"{done} plans on {count} GPUs" + ("; " + "; ".join(failed) if failed else "")


# --- pieces ---


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def say(text):
    print(f"gpu: {text}", file=sys.stderr, flush=True)


def write_json(path, value):
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_rows(path):
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    except OSError:
        return []


def torch_folder():
    """torch/lib of this Python, without importing it: that fails where a CUDA library is missing."""
    spec = importlib.util.find_spec("torch")
    return pathlib.Path(spec.origin).parent / "lib" if spec and spec.origin else None


def environment(programs):
    """Where the programs find LibTorch: this Python's, and the libraries its wheels brought."""
    env = dict(os.environ)
    folders = [str(programs.parent / "lib")] if (programs.parent / "lib").is_dir() else []
    torch = torch_folder()
    if torch:
        folders.append(str(torch))
        folders += sorted(glob.glob(str(torch.parents[1] / "nvidia" / "*" / "lib")))
    old = env.get("LD_LIBRARY_PATH", "")
    env["LD_LIBRARY_PATH"] = ":".join(folders + ([old] if old else []))
    # A toolkit's libraries come last: they must never replace those LibTorch was built with.
    if torch and lost_libraries(torch / "libtorch_cuda.so", env):
        for folder in ("/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu"):
            if os.path.isdir(folder):
                env["LD_LIBRARY_PATH"] += ":" + folder
    env.setdefault("PYTHONUNBUFFERED", "1")
    return env


def lost_libraries(file, env):
    try:
        text = subprocess.run(["ldd", str(file)], env=env, capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return sorted({line.split()[0] for line in text.splitlines() if "not found" in line})


def gpu_names():
    try:
        text = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True,
                              timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in text.stdout.splitlines() if line.strip()] if text.returncode == 0 else []


def versions(programs, env):
    found = {"python": sys.version.split()[0]}
    for program in ("foreshard", "foreshard-exec"):
        try:
            text = subprocess.run([str(programs / program), "--version"], env=env, capture_output=True, text=True, timeout=120,
                                  check=False)
            found[program] = (text.stdout or text.stderr).strip().splitlines()[0] if text.stdout or text.stderr else "?"
        except (OSError, subprocess.TimeoutExpired) as error:
            found[program] = str(error)
    torch = torch_folder()
    if torch:
        file = torch.parent / "version.py"
        try:
            found["torch"] = next((line.split("'")[1] for line in file.read_text(encoding="utf-8").splitlines()
                                   if line.startswith("__version__")), "?")
        except (OSError, IndexError):
            found["torch"] = "?"
    try:
        text = subprocess.run(["nvidia-smi", "--query-gpu=driver_version,power.limit,clocks.max.sm", "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=60, check=False)
        if text.returncode == 0:
            found["driver, power limit, highest clock"] = text.stdout.strip().splitlines()[0]
    except (OSError, subprocess.TimeoutExpired, IndexError):
        pass
    return found


def example():
    """The small model of the repository, or of the carried build."""
    for folder in (HERE.parents[1], HERE):
        file = folder / "models" / "examples" / "llama-5m.json"
        if file.exists():
            return str(file)
    raise FileNotFoundError("models/examples/llama-5m.json")


def tokens(path, count):
    """Random token ids as 16 bit integers, the same every time, in every vocabulary of the plans (32,000 or more;
    256 for the small model)."""
    most = 250 if count < 100_000 else 32_000
    array.array("H", random.Random(1).choices(range(most), k=count)).tofile(open(path, "wb"))
    return path


def rename_device(path, name):
    """The stand-in measures as a GPU of the catalogue, so that every step of the round runs."""
    raw = read_json(path)
    raw["device"]["name"] = name
    write_json(path, raw)


def value(quantity):
    return quantity["value"] if isinstance(quantity, dict) else quantity


def forecast(report):
    return {"step_s": value(report["step"]["seconds"]), "tokens_per_s_per_gpu": value(report["step"]["tokens_per_s_per_gpu"]),
            "exposed_communication_s": value(report["step"]["exposed_communication_s"]),
            "peak_allocated_bytes": value(report["memory"]["peak_allocated_bytes"]),
            "peak_reserved_bytes": value(report["memory"]["peak_reserved_bytes"])}


def measured(report):
    row = forecast(report)
    row["mfu"] = value(report["step"]["mfu"])
    row["losses"] = (report.get("run") or {}).get("losses", [])[:3]
    return row


def pack(folder, file):
    """The results as one archive, without what is large; replaced at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".part")
    with tarfile.open(part, "w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix not in (".part", ".bin") and path != part and path.stat().st_size < 4_000_000:
                archive.add(path, pathlib.Path("results") / path.relative_to(folder))
    part.replace(file)


def percent(ratio):
    return "" if ratio is None else f"{100 * ratio:+.1f} %"


def gib(count):
    return "" if count is None else f"{count / 2**30:.2f}"


def summary(out, record):
    """What a person reads first."""
    lines = [f"# Round on {record['device']} ({record['created']})", "", f"`{record['command']}`", "",
             "| stage | status | seconds | |", "| --- | --- | --- | --- |"]
    for s in record["stages"]:
        lines.append(f"| {s['name']} | {s['status']} | {s.get('seconds', '')} | {s.get('detail', '')} |")
    checks = read_json(out / "self_check.json")
    if checks:
        lines += ["", "| check | status | |", "| --- | --- | --- |"]
        lines += [f"| {c['check']} | {c['status']} | {c['detail'].replace('|', '/')} |" for c in checks["checks"]]
    plans = read_rows(out / "plans.jsonl")
    if plans:
        lines += ["", "Forecast against measurement (error = forecast / measured - 1):", "",
                  "| plan | step s | error | exposed | memory | peak GiB | tokens/s per GPU | MFU |",
                  "| --- | --- | --- | --- | --- | --- | --- | --- |"]
        for p in plans:
            if p["status"] != "ok":
                lines.append(f"| {p['name']} | {p['status']}: {p.get('reason', '').replace('|', '/')} | | | | | | |")
                continue
            lines.append(f"| {p['name']} | {p['step_s']:.4f} | {percent(p.get('step_error'))} | "
                         f"{percent(p.get('exposed_communication_error'))} | {percent(p.get('memory_error'))} | "
                         f"{gib(p['peak_allocated_bytes'])} | {p['tokens_per_s_per_gpu']:.0f} | {p['mfu']:.3f} |")
    fsdp2 = read_rows(out / "fsdp2.jsonl")
    if fsdp2:
        lines += ["", "PyTorch's FSDP2 on the same GPU (its forecast holds the network of a real cluster, so steps are compared "
                  "at world 1 only):", "",
                  "| configuration | step s | error | tokens/s per GPU | allocated GiB | error | reserved GiB | error |",
                  "| --- | --- | --- | --- | --- | --- | --- | --- |"]
        for r in fsdp2:
            if r["status"] != "ok":
                lines.append(f"| {r['name']} | {r['status']}: {r.get('reason', '').replace('|', '/')} | | | | | | |")
                continue

            def off(key):
                forecast_value, seen = r.get("predicted", {}).get(key), r.get(key)
                return percent(forecast_value / seen - 1) if forecast_value and seen else ""

            lines.append(f"| {r['name']} | {r['step_s']:.4f} | {off('step_s') if r['world'] == 1 else ''} | "
                         f"{r['tokens_per_s_per_gpu']:.0f} | {gib(r.get('peak_allocated_bytes'))} | {off('peak_allocated_bytes')} | "
                         f"{gib(r.get('peak_reserved_bytes'))} | {off('peak_reserved_bytes')} |")
    ours = {p["name"]: p for p in plans if p["status"] == "ok"}
    theirs = {r["name"]: r for r in fsdp2 if r["status"] == "ok"}
    pairs = [(name, [ours[p] for p in a if p in ours], [theirs[r] for r in b if r in theirs]) for name, a, b in BESIDE]
    if any(a and b for _, a, b in pairs):
        lines += ["", "The engine beside FSDP2, the best of each side's attention kernels and compilation:", "",
                  "| | tokens/s | FSDP2 | ratio | peak allocated GiB | FSDP2 | ratio |", "| --- | --- | --- | --- | --- | --- | --- |"]
        for name, a, b in pairs:
            if not (a and b):
                continue
            fast, other = (max(rows, key=lambda row: row["tokens_per_s_per_gpu"]) for rows in (a, b))
            x, y = fast["tokens_per_s_per_gpu"], other["tokens_per_s_per_gpu"]
            m, n = fast["peak_allocated_bytes"], other.get("peak_allocated_bytes")
            lines.append(f"| {name} | {x:.0f} | {y:.0f} | {x / y:.2f} | {gib(m)} | {gib(n)} | {f'{m / n:.2f}' if n else ''} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(prog="./x gpu", description="The round on a GPU, in stages.")
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything (default 9)")
    parser.add_argument("--ranks", type=int, help="GPUs for real shard groups; default: all")
    parser.add_argument("--out", default="gpu-round", help="folder for results (default gpu-round)")
    parser.add_argument("--stages", help="only these: " + ",".join(name for name, _ in STAGES))
    parser.add_argument("--bundle", help="pack the results into this .tar.gz after every stage")
    parser.add_argument("--gpu", help="key of the machine catalogue; default: by the GPU's name")
    parser.add_argument("--device", choices=["cuda", "standin"], default="cuda", help="standin: try the round on the CPU")
    parser.add_argument("--bin", default=str(HERE.parents[1] / "build" / "bin"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.device == "cuda" and not gpu_names():
        print("gpu: there is no NVIDIA GPU here (nvidia-smi shows none); --device standin tries the round on the CPU",
              file=sys.stderr)
        sys.exit(6)
    sys.exit(Round(args).play())


if __name__ == "__main__":
    main()
