"""Makes the Python wheel: the backend of pyproject.toml (PEP 517) and `./x wheel`.

The wheel holds the program `foreshard`, the libraries it needs, and the package that calls it. Nothing of
Python's is linked, so one wheel serves every Python of a platform; its tag names the newest C library
that one of its files asks for. Only what Python and a C++ build bring is used: no package index is asked.

    python3 cli/python/build_wheel.py BUILD_FOLDER OUT     of a release build that is there
"""

import base64
import csv
import hashlib
import io
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = "foreshard"
METADATA = """\
Metadata-Version: 2.4
Name: {name}
Version: {version}
Summary: Forecasts step time and memory of sharded training, and finds the plan to run
License-Expression: Apache-2.0
License-File: LICENSE
License-File: NOTICE
Classifier: Operating System :: POSIX :: Linux
Requires-Python: >=3.9
Provides-Extra: arrays
Requires-Dist: numpy>=1.22; extra == "arrays"
Description-Content-Type: text/markdown

"""
ENTRY_POINTS = f"[console_scripts]\n{NAME} = {NAME}._program:main\n"


def run(*command, **options):
    """Output of a command; it says itself what went wrong."""
    return subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE, text=True,
                          **options).stdout


def version():
    found = re.search(r"project\(foreshard VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())
    return found.group(1)


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def platform_tag(binaries):
    """manylinux_2_N_MACHINE, N of the newest symbol of the C library among the binaries."""
    needed = (0, 0)
    for binary in binaries:
        for major, minor in re.findall(r"\(GLIBC_(\d+)\.(\d+)", run("objdump", "-T", binary)):
            needed = max(needed, (int(major), int(minor)))
    if needed == (0, 0):
        raise SystemExit("wheel: its binaries name no version of the C library")
    return f"manylinux_{needed[0]}_{needed[1]}_{platform.machine()}"


def owner_of(library):
    """The Debian package that has a library of this name; None where there is no dpkg."""
    if not shutil.which("dpkg-query"):
        return None
    found = subprocess.run(["dpkg-query", "--search", f"*/{library}"], capture_output=True, text=True,
                           check=False).stdout
    return found.split(":")[0] or None


def licences(libraries):
    """Names and texts of the licences of what the wheel holds; `libraries` are the carried ones."""
    for name in ("LICENSE", "NOTICE"):
        yield name, (ROOT / name).read_bytes()
    for package in sorted({owner_of(library.resolve().name) for library in libraries} - {None}):
        yield f"{package}.copyright", pathlib.Path(f"/usr/share/doc/{package}/copyright").read_bytes()


def write_wheel(files, folder, tag):
    """`files`: name in the wheel -> (bytes, is executable). Returns the wheel's file name."""
    info = f"{NAME}-{version()}.dist-info"
    files[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: false\n"
                              f"Tag: py3-none-{tag}\n".encode(), False)
    stamp = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())), 315532800))[:6]
    records = io.StringIO()
    table = csv.writer(records, lineterminator="\n")
    wheel = f"{NAME}-{version()}-py3-none-{tag}.whl"
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            def add(name, content, executable):
                entry = zipfile.ZipInfo(name, stamp)
                entry.external_attr = (0o100755 if executable else 0o100644) << 16
                archive.writestr(entry, content, zipfile.ZIP_DEFLATED)

            for name, (content, executable) in sorted(files.items()):
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
                table.writerow([name, "sha256=" + digest.decode(), len(content)])
                add(name, content, executable)
            table.writerow([f"{info}/RECORD", "", ""])
            add(f"{info}/RECORD", records.getvalue().encode(), False)
    os.chmod(file.name, 0o644)
    os.replace(file.name, pathlib.Path(folder) / wheel)
    return wheel


def wheel_of(build, folder):
    """The wheel of a build folder whose target `foreshard` is built."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{NAME}-{version()}.dist-info"
    with tempfile.TemporaryDirectory() as stage:
        run("cmake", "--install", build, "--component", "wheel", "--strip", "--prefix", stage)
        paths = [path for path in pathlib.Path(stage).rglob("*") if path.is_file()]
        # A wheel has no links: a library lies there once, under the name that is asked for.
        linked = {path.resolve() for path in paths if path.is_symlink()}
        paths = [path for path in paths if path.is_symlink() or path.resolve() not in linked]
        binaries = [path for path in paths if is_elf(path)]
        files = {str(path.relative_to(stage)): (path.read_bytes(), path in binaries) for path in paths}
        tag = platform_tag(binaries)
        texts = dict(licences(path for path in binaries if path.parent.name == "lib"))
    files.update({f"{info}/licenses/{name}": (text, False) for name, text in texts.items()})
    guide = (ROOT / "docs/python.md").read_text()
    files[f"{info}/METADATA"] = ((METADATA.format(name=NAME, version=version()) + guide).encode(), False)
    files[f"{info}/entry_points.txt"] = (ENTRY_POINTS.encode(), False)
    return write_wheel(files, folder, tag)


# --- what pip calls --------------------------------------------------------------------------------------


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    build = ROOT / "build/wheel"
    run("cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        "-DFORESHARD_TESTS=OFF", "-DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON",
        f"-DFORESHARD_BIN_DIR={build / 'bin'}")
    run("cmake", "--build", build, "--target", "foreshard")
    return wheel_of(build, wheel_directory)


if __name__ == "__main__":
    if len(sys.argv) != 3 or not shutil.which("objdump"):
        raise SystemExit("usage: build_wheel.py BUILD_FOLDER OUT; objdump is of the package binutils")
    print(pathlib.Path(sys.argv[2]) / wheel_of(pathlib.Path(sys.argv[1]), sys.argv[2]))
