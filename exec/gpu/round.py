#!/usr/bin/env python3
"""The round on a GPU: everything that one machine with an NVIDIA GPU can tell, in stages.

    ./x gpu [--minutes N] [--ranks N] [--out DIR] [--stages NAME,...]      in the repository
    ./run.sh ...                                                           in a carried build (./x gpu --pack FILE)

Each stage has a share of the time; what one leaves goes to the later ones. A stage that fails is recorded, and the
next one runs. Results are written as they come, `--bundle FILE` also packs them after every stage. README.md beside
this file says what each stage proves. Needs Python 3.9, and for the GPU a Python environment with torch 2.11.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from round_plans import EIGHT, FSDP2, ONE, PLANS, STANDIN_FSDP2, STANDIN_PLANS, fsdp2_plan, plan, words_of
from round_summary import summary
from round_tools import (GPUS, HERE, environment, example, forecast, gpu_names, issue_us, lost_libraries, measured, now, pack,
                         read_json, rename_device, say, tokens, torch_folder, versions, write_json)

SCHEMA = "foreshard.gpu_round/1"
TORCH = "2.11.0"  # whose CUDA half the programs load
STALL = 45  # s that one check of self-check may take: libraries load and kernels are built in some

# (name, share of the time). Most useful first: a short round cuts the tail.
STAGES = [("environment", 2), ("self_check", 8), ("measure", 23), ("collectives", 4), ("plans", 35), ("fsdp2", 23),
          ("ranks", 5)]

class Round:
    def __init__(self, args, names):
        """names: of the GPUs; the stand-in's is "standin"."""
        self.args = args
        self.out = pathlib.Path(args.out).absolute()
        self.out.mkdir(parents=True, exist_ok=True)
        self.bin = pathlib.Path(args.bin).absolute()
        self.standin = args.device == "standin"
        self.deadline = time.monotonic() + 60 * args.minutes
        self.env = environment(self.bin)
        self.gpu = args.gpu or next((key for text, key in GPUS if text in names[0]), None)
        self.record = {"schema": SCHEMA, "created": now(), "device": names[0], "gpus": len(names),
                       "gpu": self.gpu, "minutes": args.minutes, "command": " ".join(sys.argv), "versions": {}, "stages": []}

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

    def run(self, name, command, seconds, progress=None):
        """Output goes to logs/NAME.log. Returns (exit status, seconds); 124: stopped at its limit, or STALL seconds after
        the file `progress` was written last."""
        logs = self.out / "logs"
        logs.mkdir(exist_ok=True)
        begin = time.monotonic()
        with open(logs / f"{name}.log", "ab") as log:
            log.write(("\n$ " + " ".join(map(str, command)) + "\n").encode())
            log.flush()
            process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT,
                                       env=self.env, cwd=self.out, start_new_session=True)
            status = self.wait(process, begin + max(1.0, seconds), progress)
            if status is None:
                status = 124
                for wanted in (signal.SIGTERM, signal.SIGKILL):
                    try:
                        os.killpg(process.pid, wanted)
                        process.wait(5)
                        break
                    except (ProcessLookupError, subprocess.TimeoutExpired):
                        continue
        return status, time.monotonic() - begin

    @staticmethod
    def wait(process, end, progress):
        """Its exit status; None: it is to be stopped."""
        while time.monotonic() < end:
            try:
                left = end - time.monotonic()
                return process.wait(min(1.0, left) if progress else left)
            except subprocess.TimeoutExpired:
                if progress and progress.exists() and time.time() - progress.stat().st_mtime > STALL:
                    return None
        return process.poll()

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
        with self.clocks():
            self.stages(chosen)
        failed = [s["name"] for s in self.record["stages"] if s["status"] == "failed"]
        print(f"results in {self.out}" + (f"; failed: {', '.join(failed)}" if failed else ""))
        return 1 if failed else 0

    @contextlib.contextmanager
    def clocks(self):
        """Clocks, power and memory every two seconds, to logs/clocks.csv. It also keeps the driver's state from one
        process to the next: where nothing does, each of them begins with a second or two of it."""
        if self.standin:
            yield
            return
        (self.out / "logs").mkdir(exist_ok=True)
        with open(self.out / "logs" / "clocks.csv", "ab") as log:
            what = "timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,memory.used,clocks_event_reasons.active"
            limit = 60 * self.args.minutes + 300  # should this script be killed
            process = subprocess.Popen(["timeout", str(limit), "nvidia-smi", "--query-gpu=" + what, "--format=csv", "--loop=2"], stdout=log,
                                       stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            try:
                yield
            finally:
                process.terminate()
                process.wait()

    def stages(self, chosen):
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
        torch = self.record["versions"].get("torch", "none")
        if not self.standin and torch.split("+")[0] != TORCH:
            return "failed", f"python3's torch is {torch}; the engine is built with {TORCH}"
        if missing:
            return "failed", f"libraries not found: {missing}"
        if self.gpu is None:
            return "failed", f"no catalogue entry for {self.record['device']}; name one with --gpu"
        return "ok", f"{self.record['device']} as {self.gpu}"

    def self_check(self, budget):
        device, file = ["--device", "standin"] if self.standin else [], self.out / "self_check.json"
        end = time.monotonic() + min(240, max(budget, 120))  # libraries load slowly the first time
        before, lost = None, {}  # rows of checks that ended the process or the device, or hung: tried no more
        while True:
            file.unlink(missing_ok=True)
            skip = [word for name in lost for word in ("--skip", name)]
            status, seconds = self.run("self_check", [self.bin / "foreshard-exec", "self-check", *device, *skip, "--out", file],
                                       end - time.monotonic(), progress=file)
            checks = read_json(file)
            if checks is None:
                if lost:
                    write_json(file, before)
                return "failed", f"exit {status} after {seconds:.0f} s: {self.log_tail('self_check')}"
            rows, running = {c["check"]: c for c in checks["checks"]}, checks.get("running")
            rows.update(lost)
            again = running in lost
            if running:
                reason = "stopped at its limit" if status == 124 else f"the process ended with {status}"
                lost[running] = rows.setdefault(running, {"check": running, "status": "failed", "seconds": round(seconds, 1),
                                                          "detail": reason})
            checks["checks"] = list(rows.values())
            checks["failed"] = sum(c["status"] == "failed" for c in checks["checks"])
            write_json(file, checks)
            before = checks
            if not running or again or len(lost) == 4 or end - time.monotonic() < 20:
                break
        failed = [c["check"] for c in checks["checks"] if c["status"] == "failed"]
        return ("failed" if failed else "ok",
                f"{len(checks['checks'])} checks" + (f", failed: {', '.join(failed)}" if failed else ""))

    def measure(self, budget):
        raw = self.out / "raw.json"
        for old in (raw, self.out / "profile.json"):
            old.unlink(missing_ok=True)
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

    def gpus(self):
        return self.args.ranks or self.record.get("gpus", 0)

    def collectives(self, budget):
        count = self.gpus()
        if count < 2:
            return "skipped", "one GPU: curves of NCCL need two or more"
        raw, begin = self.out / "collectives.json", time.monotonic()
        raw.unlink(missing_ok=True)
        status, _ = self.run("collectives", [self.bin / "foreshard-exec", "measure", "--device",
                                             "standin" if self.standin else "cuda", "--spawn", count, "--out", raw], max(20, budget))
        if status != 0 or not raw.exists():
            return "failed", f"exit {status}: {self.log_tail('collectives')}"
        if self.standin:
            rename_device(raw, "NVIDIA H100 80GB HBM3")
        rows = len(read_json(raw)["rows"])
        # With what one GPU measured, where that is there: one profile of the machine.
        files = [file for file in (self.out / "raw.json", raw) if file.exists()]
        left = max(20, budget - (time.monotonic() - begin))
        fitted, _ = self.run("calibrate-collectives", [self.bin / "foreshard", "calibrate", *files, "--out",
                                                       self.out / "profile.json"], left)
        if fitted != 0:
            return "failed", f"{rows} rows; calibrate: {self.log_tail('calibrate-collectives')}"
        return "ok", f"{rows} rows on {count} GPUs"

    def profile(self):
        profile = self.out / "profile.json"
        return ["--profile", profile] if profile.exists() else []

    def job(self, p, runtime):
        return words_of(dict(p, model=p["model"] or example()), runtime, self.gpu)

    def plans(self, budget):
        (self.out / "plans.jsonl").unlink(missing_ok=True)
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
        if p["graph"]:
            command += ["--graph"]
        status, report = self.answer(name, command, seconds)
        if status != 0 or report is None:
            return dict(row, status="failed", reason=f"exit {status}: {self.log_tail(name)}")
        row.update(measured(report), graph=p["graph"], issue_us=issue_us(self.out / "logs" / f"{name}.log"))
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
        (self.out / "fsdp2.jsonl").unlink(missing_ok=True)
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
        p = fsdp2_plan(base, world, variant, recompute)
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
        count = self.gpus()
        if self.standin or count < 2:
            return "skipped", "one GPU: NCCL between GPUs and real shard groups need two or more"
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
    names = ["standin"] if args.device == "standin" else gpu_names()
    if not names:
        print("gpu: there is no NVIDIA GPU here (nvidia-smi shows none); --device standin tries the round on the CPU",
              file=sys.stderr)
        sys.exit(6)
    sys.exit(Round(args, names).play())


if __name__ == "__main__":
    main()
