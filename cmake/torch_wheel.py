"""Fetches LibTorch from the PyPI wheels and unpacks what the engine links: `torch_wheel.py FOLDER`.

Only `torch/lib` (the CPU half), `torch/include`, and the two small CUDA libraries that libtorch_cpu
names are kept. No Python environment is needed afterwards. Nothing of Python is linked, so one wheel,
whose checksum is below, serves every machine, whatever its python3. The folder appears under its name
only when it is complete. Where it cannot be had, stdout says why in one line and the exit status is 1.
"""
import fcntl
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile

# libtorch_cpu 2.11.0 of the CUDA 13.0 build NEEDs libcupti.so.13 and libcudart.so.13.
# The small ones first: they tell soon whether the index can be reached.
PACKAGES = [
    ("nvidia-cuda-runtime==13.0.96",
     "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548", 1),
    ("nvidia-cuda-cupti==13.0.85",
     "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8", 2),
    ("torch==2.11.0",
     "0f68f4ac6d95d12e896c3b7a912b5871619542ec54d3649cf48cc1edd4dd2756", 3),
]  # requirement, sha256 of the wheel, attempts
WHEEL_OF = ["--python-version", "3.12", "--implementation", "cp", "--abi", "cp312"]
for tag in ("2_28", "2_25", "2_17"):
    WHEEL_OF += ["--platform", f"manylinux_{tag}_x86_64"]
LIBRARIES = {"libc10.so", "libtorch_cpu.so", "libgomp.so.1", "libcupti.so.13", "libcudart.so.13"}
# While pip copies the wheel out of its own folder; unpacked beside the wheel it is 1.05 GB.
NEEDED_BYTES = 1_200_000_000


class Unavailable(Exception):
    pass


def is_complete(folder):
    return (all((folder / "torch/lib" / name).is_file() for name in LIBRARIES)
            and (folder / "torch/include/ATen/core/Tensor.h").is_file())


def wanted(name):
    path = pathlib.PurePosixPath(name)
    # The wheel's copy of fmt would hide the system's, which the rest of the project is built with.
    if path.parts[:2] == ("torch", "include") and path.parts[2] != "fmt":
        return path
    if path.parent.name == "lib" and path.name in LIBRARIES:
        return pathlib.PurePosixPath("torch/lib") / path.name
    return None


def python_with_pip():
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-m", "pip", "--version"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return python
    raise Unavailable("python3 has no pip (package python3-pip)")


def download(python, package, scratch):
    requirement, checksum, attempts = package
    line = scratch / "requirement.txt"
    line.write_text(f"{requirement} --hash=sha256:{checksum}\n")
    command = [python, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--no-input",
               "--only-binary=:all:", "--require-hashes", "--progress-bar=off", "--retries=2",
               "--timeout=20", "--disable-pip-version-check", *WHEEL_OF,
               "--dest", str(scratch / "wheels"), "--requirement", str(line)]
    for attempt in range(attempts):
        if attempt:
            time.sleep(2 * attempt)
        # pip unpacks nothing, but keeps the wheel in its temporary folder first: not in a small /tmp.
        if subprocess.run(command, stdout=sys.stderr, env={**os.environ, "TMPDIR": str(scratch)},
                          check=False).returncode == 0:
            return
    raise Unavailable(f"pip could not download {requirement} (build/setup.log)")


def unpack(wheels, folder):
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                path = None if entry.is_dir() else wanted(entry.filename)
                if path is None:
                    continue
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as source, open(folder / path, "wb") as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)
    if not is_complete(folder):
        raise Unavailable("the wheels do not hold what they held before")


def fetch(target):
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Unavailable("its wheel is for Linux on x86-64")
    python = python_with_pip()
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one fetch at a time; the second finds it done
        if is_complete(target):
            return
        for rest in target.parent.glob(".fetching-*"):  # of a fetch that was killed
            shutil.rmtree(rest, ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)
        free = shutil.disk_usage(target.parent).free
        if free < NEEDED_BYTES:
            raise Unavailable(f"it needs {NEEDED_BYTES / 1e9:.1f} GB of disk space for a moment and "
                              f"0.5 GB then; {free / 1e9:.1f} GB are free in {target.parent}")
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetching-") as name:
            scratch = pathlib.Path(name)
            for package in PACKAGES:
                download(python, package, scratch)
            unpack(scratch / "wheels", scratch / "unpacked")
            (scratch / "unpacked").rename(target)


def main():
    target = pathlib.Path(sys.argv[1]).absolute()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds: nothing half-done stays
    try:
        if not is_complete(target):
            fetch(target)
    except (Unavailable, OSError, zipfile.BadZipFile) as error:
        print(error)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
