"""Asks the programs: forecasts as JSON, schedules as rows, captures of programs under foreshard-null."""
import gzip
import json
import subprocess
import sys

CUBLAS = (32 << 20, 8320 << 10)  # its workspace, which the planner counts as the library's own (product_workspaces)
LT = 1 << 20  # cuBLASLt's, which products with a bias take
NORM = 1 << 16  # bytes: an all-reduce of norms and losses has fewer
KINDS = ("all_gather", "reduce_scatter", "all_reduce")


def answer(program, *words):
    """Its JSON and ""; or None and what it says instead."""
    done = subprocess.run([str(word) for word in (program, *words, "--json")], capture_output=True, text=True)
    return (json.loads(done.stdout), "") if done.stdout else (None, done.stderr.strip() or f"exit {done.returncode}")


def ask(program, *words):
    """Its JSON; where there is none, the end."""
    found, error = answer(program, *words)
    if found is None:
        sys.exit(f"{' '.join(map(str, words))}: {error}")
    return found


def scheduled(program, *said, kinds=KINDS):
    """(kind, bytes) of a forecast's collectives, in the host's order."""
    lines = subprocess.run([str(word) for word in (program, "schedule", *said, "--csv")], capture_output=True, text=True).stdout.splitlines()
    if not lines:
        return []
    head = lines[0].split(",")
    kind, size = head.index("kind"), head.index("bytes")
    return [(f[kind], int(f[size])) for f in (line.split(",") for line in lines[1:]) if f[kind] in kinds]


def same(seen, told):
    """Where two lists of collectives differ first; bytes may be unknown to the one that was seen."""
    if len(seen) != len(told):
        return f"{len(told)} instead of {len(seen)}"
    for i, ((kind, size), (kind2, size2)) in enumerate(zip(seen, told)):
        if kind != kind2 or (size is not None and size != size2):
            return f"{i}: {kind2} {size2} instead of {kind} {size}"
    return ""


def last_line(text):
    """The last that is no warning."""
    lines = [line for line in text.strip().split("\n") if line.strip() and "warn" not in line.lower()]
    return lines[-1][:200] if lines else ""


def captured(folder, out, flags, command, **more):
    """Runs a Python program under foreshard-null of the folder."""
    words = [folder / "foreshard-null", *flags, "--out", out, "--", "python3", *command]
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)


def workspaces(capture):
    """cuBLAS' and cuBLASLt's that are kept (PyTorch before 2.15): blocks that a product takes in front of itself and the last step leaves."""
    packed, taken, fresh, sizes = capture / "calls.txt.gz", {}, {}, []
    for line in gzip.open(packed, "rt") if packed.exists() else open(capture / "calls.txt"):
        letter, *rest = line.split(" ")
        if letter == "M":
            address, size = rest[3], int(rest[4])
            taken.pop(address, None)
            fresh.pop(address, None)
            for of in CUBLAS:
                if of <= size < of + LT:  # (the allocator leaves less than 1 MiB in one piece)
                    fresh[address] = of
            if size == LT:
                fresh[address] = LT
        elif letter not in "NDd":
            if letter == "G":
                taken.update(fresh)
            if letter == "H":
                sizes = list(taken.values())
            fresh = {}
    return sum(size for size in sizes if size > LT) + LT * (LT in sizes)
