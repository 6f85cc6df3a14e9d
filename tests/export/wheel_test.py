"""`wheel_test.py BUILD_FOLDER`: makes the wheel of a build, installs it into a folder of its own without an
index, and tests what lies there (module.py)."""

import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77


def main():
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode != 0:
        print("skipped: this Python has no pip")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        backend = HERE.parents[1] / "cli/python/build_wheel.py"
        made = subprocess.run([sys.executable, backend, sys.argv[1], folder], check=True, stdout=subprocess.PIPE,
                              text=True).stdout
        place = pathlib.Path(folder) / "installed"
        subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--target", place,
                        made.strip()], check=True)
        environment = {**os.environ, "PYTHONPATH": str(place), "PATH": f"{place / 'bin'}:{os.environ['PATH']}"}
        module = subprocess.run([sys.executable, HERE / "module.py", made.strip()], env=environment, cwd=folder,
                                check=False)
        return module.returncode


sys.exit(main())
