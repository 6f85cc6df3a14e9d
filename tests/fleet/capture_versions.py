#!/usr/bin/env python3
"""Versions of PyTorch under the null GPU: FSDP2, FSDP1 and DDP (version_train.py) captured and held to what PyTorch's own allocator said.

  capture_versions.py BIN [FOLDER ...]     BIN is the folder with foreshard-null and foreshard; each FOLDER is put before
                                     PYTHONPATH and holds a torch (pip install --no-deps --target FOLDER torch==X);
                                     none: the torch that python3 imports. Prints a table in Markdown
"""
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "reports"))
from ask import KINDS, ask, captured, last_line, scheduled  # noqa: E402

TRAIN = pathlib.Path(__file__).resolve().parent / "version_train.py"
RUNTIMES = ("fsdp2", "fsdp1", "ddp")


def forecast(program, capture):
    words = ["--capture", capture, "--cluster", "8xh100"]
    memory = ask(program / "foreshard", "predict", *words)["memory"]
    peaks = [int(memory[key]["value"]) for key in ("peak_allocated_bytes", "peak_reserved_bytes")]
    return peaks, len(scheduled(program / "foreshard", *words, kinds=(*KINDS, "broadcast")))


def run(program, runtime, environment):
    """PyTorch's version, and what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        capture = pathlib.Path(folder) / "capture"
        ran = captured(program, capture, ["--world", "8", "--gpu", "h100"], [TRAIN, runtime], env=environment)
        said = [line.split()[1:] for line in ran.stdout.splitlines() if line.startswith("PEAK")]
        if ran.returncode != 0 or not said:
            return None, f"exit {ran.returncode}: {last_line(ran.stderr)[:160]}"
        peaks, collectives = forecast(program, capture)
        errors = [here - int(there) for here, there in zip(peaks, said[-1])]
        is_same = not any(errors)
        memory = "" if is_same else f", allocated {errors[0]:+d}, reserved {errors[1]:+d} bytes"
        return said[-1][2], f"{peaks[0] / 2**20:.1f}, {collectives}{memory}"


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    print("| PyTorch | " + " | ".join(RUNTIMES) + " |\n| --- | --- | --- | --- |", flush=True)
    for folder in sys.argv[2:] or [""]:
        path = [folder] * bool(folder) + [os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": ":".join(word for word in path if word)}
        results = [run(program, runtime, environment) for runtime in RUNTIMES]
        version = next((version for version, _ in results if version), folder)
        print(f"| {version} | " + " | ".join(result for _, result in results) + " |", flush=True)


if __name__ == "__main__":
    main()
