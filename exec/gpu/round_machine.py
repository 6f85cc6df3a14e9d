"""What the round is built of and what it runs on: said, and refused where they do not go together, before anything runs."""
import contextlib
import datetime
import functools
import glob
import hashlib
import importlib.util
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
TORCH = "2.11.0"  # whose CUDA half the programs load
DRIVER = 580  # CUDA 13.0 needs it or a newer one (CUDA Toolkit 13.0 Release Notes, table 3)
LEFT_MIB = 1024  # of the GPU's memory that the driver itself may hold

# Catalogue keys (foreshard machines) by what the driver calls the GPU; the first match wins.
GPUS = [("GH200", "gh200-96gb"), ("H200", "h200"), ("GB200", "gb200"), ("B200", "b200"), ("H100 NVL", "h100-nvl"),
        ("H100 PCIe", "h100-pcie"), ("H100", "h100-sxm"), ("H800", "h800"), ("H20", "h20"),
        ("A100-SXM4-80GB", "a100-80gb"), ("A100-SXM4-40GB", "a100-40gb"), ("A100 80GB PCIe", "a100-pcie-80gb"),
        ("A100-PCIE-40GB", "a100-pcie-40gb"), ("L40S", "l40s"), ("L40", "l40"), ("L4", "l4"), ("A10", "a10"),
        ("RTX 4090", "rtx-4090"), ("RTX 5090", "rtx-5090"), ("RTX 3090", "rtx-3090"), ("standin", "h100-sxm")]


def text_of(command, **more):
    """What it prints, empty where it fails."""
    try:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False, **more)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def smi(what, kind="gpu"):
    """Rows of nvidia-smi, each a list of words."""
    text = text_of(["nvidia-smi", f"--query-{kind}={what}", "--format=csv,noheader,nounits"])
    return [[word.strip() for word in line.split(",")] for line in text.splitlines() if line.strip()]


def gpu_names():
    return [row[0] for row in smi("name")]


# --- libraries -------------------------------------------------------------------------------------------------------


def torch_folder():
    """torch/lib of this Python, without importing it: that fails where a CUDA library is missing."""
    spec = importlib.util.find_spec("torch")
    return pathlib.Path(spec.origin).parent / "lib" if spec and spec.origin else None


def torch_version():
    folder = torch_folder()
    if not folder:
        return None
    try:
        found = re.search(r"__version__ = '([^']+)'", (folder.parent / "version.py").read_text(encoding="utf-8"))
    except OSError:
        return "?"
    return found.group(1) if found else "?"


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


@functools.lru_cache(maxsize=None)
def links_of(file, library_path):
    return text_of(["ldd", file], env=dict(os.environ, LD_LIBRARY_PATH=library_path)).splitlines()


def lost_libraries(file, env):
    lines = links_of(file, env.get("LD_LIBRARY_PATH", ""))
    return sorted({line.split()[0] for line in lines if "not found" in line})


def warm(programs, env, seconds=60):
    """Reads what the programs load into the page cache: in order, where a first start would read it page by page, within
    the limit of its first check. Returns (bytes, seconds)."""
    begin = time.monotonic()
    files = {str(file) for file in programs.iterdir()} if programs.is_dir() else set()
    torch = torch_folder()
    for file in [programs / "foreshard-exec"] + ([torch / "libtorch_cuda.so"] if torch else []):
        files |= {words[2] for words in map(str.split, links_of(file, env["LD_LIBRARY_PATH"])) if len(words) > 3}
    if torch:  # loaded by name, while it runs
        files |= set(glob.glob(str(torch.parents[1] / "nvidia" / "*" / "lib" / "libcu*.so*")))
    count, piece = 0, bytearray(1 << 24)
    for file in sorted({os.path.realpath(file) for file in files}):
        with contextlib.suppress(OSError), open(file, "rb", buffering=0) as data:
            while (got := data.readinto(piece)) and time.monotonic() - begin < seconds:
                count += got
    return count, time.monotonic() - begin


# --- the build -------------------------------------------------------------------------------------------------------


def build_facts(programs):
    """What the programs were built of and for; a carried build brings it as build.json."""
    root = HERE.parents[1]
    carried = root / "build.json"
    if carried.exists():
        return json.loads(carried.read_text(encoding="utf-8"))
    cache = programs.parent / "release" / "CMakeCache.txt"
    archs = re.search(r"^FORESHARD_CUDA_ARCHITECTURES:\w+=(.*)$", cache.read_text(encoding="utf-8"), re.M) if cache.exists() else None
    return {"commit": text_of(["git", "-C", root, "describe", "--always", "--dirty", "--abbrev=12"]).strip() or "unknown",
            "programs": hash_of(programs), "machine": platform.machine(), "torch": TORCH,
            "sm": [int(arch) for arch in archs.group(1).split(";")] if archs else []}


def hash_of(programs):
    found = hashlib.sha256()
    for name in ("foreshard", "foreshard-exec", "libforeshard_cuda.so"):
        if (programs / name).exists():
            found.update((programs / name).read_bytes())
    return found.hexdigest()[:16]


def versions(programs, env):
    found = {"python": sys.version.split()[0]}
    for program in ("foreshard", "foreshard-exec"):
        lines = text_of([programs / program, "--version"], env=env).splitlines()
        found[program] = lines[0] if lines else "does not start"
    if torch_version():
        found["torch"] = torch_version()
    for row in smi("driver_version,power.limit,clocks.max.sm,uuid")[:1]:
        found.update(zip(("driver", "power limit W", "highest clock MHz", "uuid"), row))
    return found


# --- refusals --------------------------------------------------------------------------------------------------------


def machine_problem(build):
    """Why this build cannot run on this machine's GPU; None where it can."""
    if build["machine"] != platform.machine():
        return f"the build is for {build['machine']}, this machine is {platform.machine()}; build it for that"
    for driver, capability in smi("driver_version,compute_cap"):
        if driver.split(".")[0].isdigit() and int(driver.split(".")[0]) < DRIVER:
            return f"the driver is {driver}; CUDA 13 needs {DRIVER} or newer"
        if capability.replace(".", "").isdigit() and build["sm"]:
            major, minor = map(int, capability.split("."))
            own, newest = 10 * major + minor, max(build["sm"])
            if own < newest and not any(sm // 10 == major and sm <= own for sm in build["sm"]):
                return (f"the GPU is of compute capability {capability}; the build has kernels for "
                        f"{', '.join(f'{sm // 10}.{sm % 10}' for sm in build['sm'])}: build with -DFORESHARD_CUDA_ARCHITECTURES={own}")
    torch = torch_version()
    if torch is None:
        return f"python3 has no torch; the engine loads the CUDA half of torch {build['torch']}"
    if torch.split("+")[0] != build["torch"] or not re.search(r"\+cu13\d$", torch):
        return f"python3's torch is {torch}; the engine loads the CUDA half of torch {build['torch']} for CUDA 13 (+cu130)"
    return None


def gpu_in_use():
    """What holds the GPU, None where nothing does: figures beside another's work would mislead."""
    apps = smi("pid,process_name,used_memory", "compute-apps")
    if apps:
        return "; ".join(f"process {row[0]} ({row[1]})" + (f" with {row[2]} MiB" if row[2].isdigit() else "") for row in apps)
    for index, used in smi("index,memory.used"):
        if used.isdigit() and int(used) > LEFT_MIB:
            return f"processes that the driver does not show here ({used} MiB of GPU {index})"
    return None


def other_build(record, build):
    """Why results with this record are not gone on with by this build; None where they are."""
    theirs = record.get("build") or {}
    if theirs.get("commit") != build["commit"]:
        return f"they are of commit {theirs.get('commit', 'unknown')}, this build is of {build['commit']}"
    if theirs.get("programs") != build["programs"]:
        return f"they are of other programs of commit {build['commit']} (uncommitted changes)"
    return None


# --- clocks ----------------------------------------------------------------------------------------------------------

CLOCKS = "timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,memory.used,utilization.gpu,clocks_event_reasons.active"
BUSY = 50  # %, from which on a sample is of kernels that run, not of the case's start


def clocks_between(file, begin, until):
    """Clocks (MHz), power (W) and temperature (C) from `begin` to `until` (Unix seconds), each [least, median, most]; of
    samples in which the GPU was busy, where there are any. None without samples."""
    rows = []
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        words = [word.strip() for word in line.split(",")]
        try:
            at = datetime.datetime.strptime(words[0], "%Y/%m/%d %H:%M:%S.%f").timestamp()
            if begin <= at <= until:
                rows.append([float(word.split()[0]) for word in (words[1], words[3], words[4], words[6])])
        except (ValueError, IndexError):
            continue  # the header, or a line that is being written
    rows = [row for row in rows if row[3] >= BUSY] or rows
    if not rows:
        return None
    columns = [sorted(column) for column in zip(*rows)]
    names = ("sm_mhz", "power_w", "temperature_c")
    return dict({name: [c[0], c[len(c) // 2], c[-1]] for name, c in zip(names, columns)}, samples=len(rows))
