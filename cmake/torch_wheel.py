"""Fetches LibTorch from the PyPI wheels and unpacks what the engine links: `torch_wheel.py FOLDER`.

Only `torch/lib` (the CPU half), `torch/include`, and the two small CUDA libraries that libtorch_cpu
names are kept. No Python environment is needed afterwards; any CPython's wheel serves, because nothing
of Python is linked. The folder appears under its name only when it is complete.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

# libtorch_cpu 2.11.0 of the CUDA 13.0 build NEEDs libcupti.so.13 and libcudart.so.13.
PACKAGES = ["torch==2.11.0", "nvidia-cuda-cupti==13.0.85", "nvidia-cuda-runtime==13.0.96"]
LIBRARIES = {"libc10.so", "libtorch_cpu.so", "libgomp.so.1", "libcupti.so.13", "libcudart.so.13"}


def wanted(name):
    path = pathlib.PurePosixPath(name)
    # The wheel's copy of fmt would hide the system's, which the rest of the project is built with.
    if path.parts[:2] == ("torch", "include") and path.parts[2] != "fmt":
        return path
    if path.parent.name == "lib" and path.name in LIBRARIES:
        return pathlib.PurePosixPath("torch/lib") / path.name
    return None


def main():
    target = pathlib.Path(sys.argv[1]).absolute()
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetching-") as scratch:
        wheels = pathlib.Path(scratch) / "wheels"
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir",
             "--only-binary=:all:", "--dest", str(wheels), *PACKAGES], check=True)
        unpacked = pathlib.Path(scratch) / "unpacked"
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                for entry in archive.infolist():
                    path = None if entry.is_dir() else wanted(entry.filename)
                    if path is None:
                        continue
                    (unpacked / path).parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(entry) as source, open(unpacked / path, "wb") as copy:
                        shutil.copyfileobj(source, copy, 1 << 20)
        missing = LIBRARIES - {p.name for p in (unpacked / "torch/lib").iterdir()}
        if missing:
            sys.exit(f"the wheels hold no {', '.join(sorted(missing))}")
        unpacked.rename(target)


if __name__ == "__main__":
    main()
