"""Pieces of the round: files, programs and their libraries, what the machine is."""
import array
import datetime
import glob
import importlib.util
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent

# Catalogue keys (foreshard machines) by what the driver calls the GPU; the first match wins.
GPUS = [("GH200", "gh200-96gb"), ("H200", "h200"), ("GB200", "gb200"), ("B200", "b200"), ("H100 NVL", "h100-nvl"),
        ("H100 PCIe", "h100-pcie"), ("H100", "h100-sxm"), ("H800", "h800"), ("H20", "h20"),
        ("A100-SXM4-80GB", "a100-80gb"), ("A100-SXM4-40GB", "a100-40gb"), ("A100 80GB PCIe", "a100-pcie-80gb"),
        ("A100-PCIE-40GB", "a100-pcie-40gb"), ("L40S", "l40s"), ("L40", "l40"), ("L4", "l4"), ("A10", "a10"),
        ("RTX 4090", "rtx-4090"), ("RTX 5090", "rtx-5090"), ("RTX 3090", "rtx-3090"), ("standin", "h100-sxm")]


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


def issue_us(log):
    """What the host took to give a step to the device, as the run noted it last."""
    try:
        found = re.findall(r"the host issued a step in ([0-9.]+) us", log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return float(found[-1]) if found else None


def pack(folder, file):
    """The results as one archive, without what is large; replaced at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".part")
    with tarfile.open(part, "w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix not in (".part", ".bin") and path != part and path.stat().st_size < 4_000_000:
                archive.add(path, pathlib.Path("results") / path.relative_to(folder))
    part.replace(file)
