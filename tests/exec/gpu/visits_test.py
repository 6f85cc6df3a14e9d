#!/usr/bin/env python3
"""The round as exec/gpu/README.md says to run it: its visits on the stand-in, a round that is cut off at random points,
and what is refused before anything runs. visits_test.py BIN [TEST...]; CUTS=N cuts N times (8).

No check depends on how fast the machine is: a slow one has fewer rows at each point, and the same rows at the end.
"""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "exec" / "gpu"
BIN = pathlib.Path(sys.argv.pop(1)).absolute() if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else ROOT / "build/bin"
SHORT = 100  # times shorter than a visit: minutes, and the seconds that a command waits
COMMAND_LIMIT, FILES, FILE_BYTES = 600, 8, 16 << 20  # s, files and bytes of one command, as the README has them

sys.path.insert(0, str(SCRIPTS))
from round_machine import clocks_between  # noqa: E402
from round_plans import STANDIN_PLANS  # noqa: E402

PLANS = sorted(p["name"] for p in STANDIN_PLANS)


def rows_of(text):
    """{name: line}; a name that comes twice, or a line that is no row, fails. A last line that a kill tore is none."""
    rows = {}
    for line in text[:text.rfind("\n") + 1].splitlines():
        name = json.loads(line)["name"]
        assert name not in rows, f"{name} twice"
        rows[name] = line
    return rows


def finished(text):
    return {name: line for name, line in rows_of(text).items() if json.loads(line)["status"] != "late"}


def bundle_text(bundle, name):
    with tarfile.open(bundle) as archive:
        try:
            return archive.extractfile("results/" + name).read().decode()
        except KeyError:
            return ""


def processes(word):
    """Ids of running processes with `word` in their command."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (folder / "cmdline").read_bytes() and "\nState:\tZ" not in (folder / "status").read_text():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


class Scratch(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="foreshard-visits-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def end_all(self, word):
        """Waits until no process has `word` in its command: whoever is told to end does, some time (ctest's limit is the test's)."""
        while processes(word):
            time.sleep(0.1)


class Visits(Scratch):
    def calls(self):
        """The README's visits, each a list of commands in short form on the stand-in."""
        blocks = re.findall(r"^```visit\n(.*?)^```", (SCRIPTS / "README.md").read_text(encoding="utf-8"), re.M | re.S)
        self.assertEqual(len(blocks), 2)
        for block, total in zip(blocks, (28, 15)):
            polls = [float(seconds) for seconds in re.findall(r"--poll ([0-9.]+)", block)]
            for seconds in polls:
                self.assertLess(seconds, COMMAND_LIMIT)
            # Commands need some time beside the waiting, and the round ends before they do.
            self.assertLess(sum(polls), 60 * total)
            self.assertLess(60 * float(re.search(r"--minutes ([0-9.]+)", block).group(1)), sum(polls) + 60)
            short = re.sub(r"(--minutes|--poll) ([0-9.]+)", lambda m: f"{m[1]} {float(m[2]) / SHORT}", block)
            yield [line + " --device standin" if "run.sh" in line else line for line in short.splitlines()]

    def machine(self, name):
        """A folder with what was carried there: the build, as a folder where no GPU toolkit made a pack of it."""
        home = self.folder / name
        home.mkdir()
        carried = home / "carried" / "foreshard-gpu"
        carried.mkdir(parents=True)
        for part in ("exec/gpu", "interop/record", "models/examples"):
            shutil.copytree(ROOT / part, carried / part, ignore=shutil.ignore_patterns("__pycache__"))
        facts = subprocess.run([sys.executable, "-c", "import json, pathlib, sys; sys.path.insert(0, sys.argv[1]); import round_machine; "
                                "print(json.dumps(round_machine.build_facts(pathlib.Path(sys.argv[2]))))", SCRIPTS, BIN],
                               capture_output=True, text=True, check=True).stdout
        (carried / "build.json").write_text(facts, encoding="utf-8")
        pack = (SCRIPTS / "pack.sh").read_text(encoding="utf-8")
        run = re.search(r"<<'RUN'\n(.*?)^RUN$", pack, re.M | re.S).group(1)
        (carried / "run.sh").write_text(run.replace("$here/bin", str(BIN)), encoding="utf-8")
        (carried / "run.sh").chmod(0o755)
        subprocess.run(["tar", "-C", home / "carried", "-czf", home / "foreshard-gpu.tar.gz", "foreshard-gpu"], check=True)
        shutil.rmtree(home / "carried")
        return home

    def call(self, home, command):
        """One command of a visit; its results, which are all that comes back of it."""
        out = home / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        # start_new_session: what a command leaves in its own session ends with it, as it does there.
        process = subprocess.Popen(["bash", "-c", command], cwd=home, env=dict(os.environ, OUT=str(out)), stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, start_new_session=True)
        text, _ = process.communicate(timeout=COMMAND_LIMIT)
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        files = [file for file in out.rglob("*") if file.is_file() and not file.name.endswith(".part")]
        self.assertLessEqual(len(files), FILES)
        self.assertTrue(all(file.stat().st_size <= FILE_BYTES for file in files))
        return process.returncode, text, files

    def test_both_visits_in_short_form(self):
        seen, kept = {}, None
        for number, commands in enumerate(self.calls()):
            home = self.machine(f"machine-{number}")
            if kept:
                shutil.copy(kept, home / "round.tar.gz")
            for command in commands:
                status, text, files = self.call(home, command)
                self.assertIn(status, (0, 1), text)
                for file in files:
                    rows = finished(bundle_text(file, "plans.jsonl"))
                    self.assertLessEqual(seen.items(), rows.items())
                    seen = rows
                    kept = self.folder / "round.tar.gz"
                    shutil.copy(file, kept)
            if number == 1:  # with time for all that is left, once the round of the short form is over
                self.end_all(str(home))
                last = re.sub(r"--(minutes|poll) [0-9.]+", lambda m: f"--{m[1]} 500", commands[-1])
                status, text, files = self.call(home, last)
                self.assertEqual(status, 0, text)
                rows = finished(bundle_text(files[0], "plans.jsonl"))
                self.assertLessEqual(seen.items(), rows.items())
                self.assertEqual(sorted(rows), PLANS)
                record = json.loads(bundle_text(files[0], "round.json"))
                self.assertEqual(len(record["stages"]), len({stage["name"] for stage in record["stages"]}))
                self.assertIn("ended", record)
                self.assertGreaterEqual(len(record["visits"]), 2)
            # The machine is given back: nothing but the bundle is left.
            for process in processes(str(home)):
                os.kill(process, signal.SIGKILL)
            self.end_all(str(home))
            shutil.rmtree(home)


class Cuts(Scratch):
    def start(self, out, bundle, resume):
        return subprocess.Popen([sys.executable, SCRIPTS / "round.py", "--bin", BIN, "--device", "standin", "--minutes", "20", "--out",
                                 out, "--bundle", bundle, "--resume", *resume], stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, start_new_session=True)

    def test_a_round_that_is_cut_loses_no_row_and_has_none_twice(self):
        draw, bundle, seen = random.Random(28), self.folder / "round.tar.gz", {}
        out, resume = self.folder / "out-0", []
        for cut in range(int(os.environ.get("CUTS", "8"))):
            process = self.start(out, bundle, resume)
            wait = draw.uniform(0.1, 4)
            how = draw.choice(["group killed", "round killed", "round told to end"])
            try:
                process.wait(wait)
            except subprocess.TimeoutExpired:
                if how == "group killed":
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.send_signal(signal.SIGKILL if how == "round killed" else signal.SIGTERM)
                process.wait()
            self.end_all(str(out))
            rows = finished((out / "plans.jsonl").read_text(encoding="utf-8")) if (out / "plans.jsonl").exists() else {}
            self.assertLessEqual(seen.items(), rows.items(), f"cut {cut}, {how}")
            if bundle.exists():
                packed = finished(bundle_text(bundle, "plans.jsonl"))
                self.assertLessEqual(packed.items(), rows.items())
                self.assertLessEqual(len(rows) - len(packed), 1)  # the one after which it was being packed
                if draw.random() < 0.3:  # the machine is lost with its folder
                    rows, resume = packed, [str(bundle)]
                    shutil.rmtree(out, ignore_errors=True)  # it may have been cut before it made one
                    out = self.folder / f"out-{cut + 1}"
            seen = rows
        self.assertEqual(self.start(out, bundle, resume).wait(), 0)
        rows = finished((out / "plans.jsonl").read_text(encoding="utf-8"))
        self.assertLessEqual(seen.items(), rows.items())
        self.assertEqual(sorted(rows), PLANS)
        record = json.loads((out / "round.json").read_text(encoding="utf-8"))
        self.assertEqual([s["name"] for s in record["stages"] if s["status"] not in ("ok", "skipped")], [])


class Refusals(Scratch):
    """A driver and a torch of another machine, as far as the round asks them."""

    def setUp(self):
        super().setUp()
        (self.folder / "bin").mkdir()
        (self.folder / "bin/nvidia-smi").write_text('''#!/bin/bash
case "$*" in
  *query-compute-apps*) printf '%s' "$APPS" ;;
  *query-gpu=name*) echo "NVIDIA H100 80GB HBM3" ;;
  *driver_version,compute_cap*) echo "${DRIVER:-580.159.04}, ${CAPABILITY:-9.0}" ;;
  *index,memory.used*) echo "0, ${USED:-4}" ;;
esac
''', encoding="utf-8")
        (self.folder / "bin/nvidia-smi").chmod(0o755)
        (self.folder / "torch/lib").mkdir(parents=True)
        (self.folder / "torch/__init__.py").touch()
        self.torch("2.11.0+cu130")

    def torch(self, version):
        (self.folder / "torch/version.py").write_text(f"__version__ = '{version}'\n", encoding="utf-8")

    def round(self, *words, **env):
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return subprocess.run([sys.executable, SCRIPTS / "round.py", "--bin", BIN, "--minutes", "0.1", "--out", self.folder / "out",
                               "--stages", "environment", *words], capture_output=True, text=True, check=False,
                              env=dict(os.environ, PATH=path, PYTHONPATH=str(self.folder), **env))

    def refused(self, code, *texts, words=(), **env):
        done = self.round(*words, **env)
        self.assertEqual(done.returncode, code, done.stderr)
        for text in texts:
            self.assertIn(text, done.stderr)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        self.assertFalse((self.folder / "out/round.json").exists())

    def test_what_does_not_go_together_is_said_before_anything_runs(self):
        self.refused(6, "in use by process 4711 (python3)", APPS="4711, python3, 4000\n")
        self.refused(6, "20000 MiB of GPU 0", USED="20000")
        self.refused(6, "compute capability 7.5", "-DFORESHARD_CUDA_ARCHITECTURES=75", CAPABILITY="7.5")
        self.refused(6, "the driver is 535.86", "580 or newer", DRIVER="535.86")
        self.refused(2, "no stage mesure; did you mean measure?", words=["--stages", "mesure"])
        self.refused(2, "no plan or configuration 1b-word-1; did you mean 1b-world-1", words=["--only", "1b-word-1"])
        for version in ("2.10.0+cu130", "2.11.0+cu128", "2.11.0+cpu"):
            self.torch(version)
            self.refused(6, f"torch is {version}", "2.11.0 for CUDA 13")
        shutil.rmtree(self.folder / "torch")
        if not subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
            self.refused(6, "python3 has no torch")

    def test_results_of_another_build_or_gpu_are_not_gone_on_with(self):
        done = self.round("--bundle", str(self.folder / "r.tar.gz"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.round("--resume").returncode, 0)
        file = self.folder / "out/round.json"
        for key, value, text in (("commit", "0123456789ab", "of commit 0123456789ab"), ("programs", "00", "other programs")):
            record = json.loads(file.read_text(encoding="utf-8"))
            kept, record["build"][key] = record["build"][key], value
            file.write_text(json.dumps(record), encoding="utf-8")
            before = file.read_bytes()
            done = self.round("--resume")
            self.assertEqual(done.returncode, 3)
            self.assertIn(text, done.stderr)
            self.assertEqual(file.read_bytes(), before)
            record["build"][key] = kept
            file.write_text(json.dumps(record), encoding="utf-8")
        done = self.round("--resume", "--device", "standin")
        self.assertEqual(done.returncode, 3)
        self.assertIn("of NVIDIA H100 80GB HBM3, this is standin", done.stderr)
        shutil.rmtree(self.folder / "out")
        (self.folder / "bad.tar.gz").write_bytes(b"none")
        self.refused(3, "no bundle of a round", words=["--resume", str(self.folder / "bad.tar.gz")])
        self.assertEqual(self.round("--resume", str(self.folder / "r.tar.gz")).returncode, 0)

    def test_two_rounds_do_not_write_to_one_folder(self):
        first = subprocess.Popen([sys.executable, SCRIPTS / "round.py", "--bin", BIN, "--device", "standin", "--out",
                                  self.folder / "out", "--stages", "self_check"], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            while not (self.folder / "out/round.json").exists():
                time.sleep(0.05)
            os.kill(first.pid, signal.SIGSTOP)  # however fast it is
            done = self.round("--device", "standin")
            self.assertEqual((done.returncode, "another round writes to" in done.stderr), (2, True), done.stderr)
        finally:
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()


class Clocks(Scratch):
    def test_of_samples_while_the_gpu_was_busy(self):
        file = self.folder / "clocks.csv"
        lines = ["timestamp, clocks.current.sm [MHz], ..."]
        for second, clock, watts, busy in ((10, 345, 71, 0), (11, 1980, 600, 98), (12, 1755, 690, 99), (13, 1800, 695, 97), (30, 345, 70, 0)):
            lines.append(f"2026/11/23 08:50:{second}.500, {clock} MHz, 2619 MHz, {watts}.50 W, 5{second % 10}, 9 MiB, {busy} %, 0x0")
        file.write_text("\n".join(lines) + "\n2026/11/23 08:5", encoding="utf-8")
        at = time.mktime((2026, 11, 23, 8, 50, 0, 0, 0, -1))
        found = clocks_between(file, at + 9, at + 20)
        self.assertEqual(found, {"sm_mhz": [1755, 1800, 1980], "power_w": [600.5, 690.5, 695.5], "temperature_c": [51, 52, 53],
                                 "samples": 3})
        self.assertEqual(clocks_between(file, at + 29, at + 31)["samples"], 1)  # of an idle GPU, where it was idle throughout
        self.assertIsNone(clocks_between(file, at + 40, at + 50))


if __name__ == "__main__":
    unittest.main()
