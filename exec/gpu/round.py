#!/usr/bin/env python3
"""The round on a GPU: everything that one machine with an NVIDIA GPU can tell, in stages.

    ./x gpu [--minutes N] [--out DIR] [--resume] [--stages NAME,...] [--only NAME,...]      in the repository
    ./run.sh ...                                                           in a carried build (./x gpu --pack FILE)

Each stage has a share of the time; what one leaves goes to the later ones. A stage that fails is recorded, and the
next one runs. Results are written as they come, `--bundle FILE` also packs them after every row. However the round
ends, `--resume` goes on with it: what is finished is kept. README.md beside this file says what each stage proves, and
has the calls of a visit to a machine that is lent for minutes. Needs Python 3.9, and for the GPU a Python environment
with torch 2.11.
"""
import argparse
import contextlib
import os
import pathlib
import signal
import sys
import time

from round_cases import Cases
from round_machine import (CLOCKS, GPUS, build_facts, environment, gpu_in_use, gpu_names, lost_libraries, machine_problem,
                           torch_folder, versions, warm)
from round_plans import EIGHT, FSDP2, ONE, PLANS, STANDIN_FSDP2, STANDIN_PLANS, plan
from round_process import Commands, end
from round_start import alone, choose, in_background, poll, refuse, resume, stop
from round_summary import summary
from round_tools import (HERE, add_row, example, now, pack, read_json, read_rows, rename_device, say, tokens, write_json,
                         write_rows)

SCHEMA = "foreshard.gpu_round/1"

# (name, share of the time). Most useful first: a short round cuts the tail.
STAGES = [("environment", 2), ("self_check", 8), ("measure", 23), ("collectives", 4), ("plans", 35), ("fsdp2", 23),
          ("ranks", 5)]
ROWS = {"plans": "plans.jsonl", "fsdp2": "fsdp2.jsonl", "ranks": "plans.jsonl"}  # stages of cases
SHORTEST = 15  # s, under which no case is begun; the stand-in's are small


class Round(Cases, Commands):
    def __init__(self, args, names, build):
        """names: of the GPUs; the stand-in's is "standin"."""
        out = pathlib.Path(args.out).absolute()
        self.args, self.bin = args, pathlib.Path(args.bin).absolute()
        Commands.__init__(self, out, environment(self.bin))
        self.standin = args.device == "standin"
        self.deadline = time.monotonic() + 60 * args.minutes
        self.gpu = args.gpu or next((key for text, key in GPUS if text in names[0]), None)
        earlier = read_json(out / "round.json") if args.resume else None
        self.record = earlier or {"schema": SCHEMA, "created": now(), "device": names[0], "gpus": len(names), "gpu": self.gpu,
                                  "build": build, "versions": {}, "visits": [], "stages": []}
        command = " ".join(sys.argv)
        self.record.update(minutes=args.minutes, command=command, process=os.getpid())
        self.record["visits"].append({"created": now(), "minutes": args.minutes, "command": command})

    # --- files ---

    def save(self):
        write_json(self.out / "round.json", self.record)
        (self.out / "summary.md").write_text(summary(self.out, self.record), encoding="utf-8")
        if self.args.bundle:
            pack(self.out, pathlib.Path(self.args.bundle))

    # --- stages ---

    def play(self):
        self.record.pop("ended", None)
        with self.clocks():
            self.stages([(name, share) for name, share in STAGES if name in self.args.stages])
        self.record["ended"] = now()
        self.save()
        failed = [s["name"] for s in self.record["stages"] if s["status"] == "failed"]
        print(f"results in {self.out}" + (f"; failed: {', '.join(failed)}" if failed else ""), flush=True)
        return 1 if failed else 0

    @contextlib.contextmanager
    def clocks(self):
        """Clocks, power and temperature twice a second, to logs/clocks.csv. It also keeps the driver's state from one
        process to the next: where nothing does, each of them begins with a second or two of it."""
        (self.out / "logs").mkdir(exist_ok=True)
        if self.standin:
            yield
            return
        with open(self.out / "logs" / "clocks.csv", "ab") as log:
            process = self.start(["nvidia-smi", "--query-gpu=" + CLOCKS, "--format=csv", "--loop-ms=500"], log)
            try:
                yield
            finally:
                end(process)

    def stage(self, name):
        """Its entry in the record, made where there is none."""
        found = next((s for s in self.record["stages"] if s["name"] == name), None)
        if found is None:
            found = {"name": name}
            self.record["stages"].append(found)
        return found

    def finished(self, name):
        """Whether an earlier visit has done it: a stage of cases goes on with those that are left."""
        status = next((s["status"] for s in self.record["stages"] if s["name"] == name), None)
        if name in ROWS:
            return status in ("ok", "failed") and not self.left(name)
        return name != "environment" and status in (("ok", "failed") if name == "self_check" else ("ok",))

    def stages(self, chosen):
        chosen = [(name, share) for name, share in chosen if not self.finished(name)]
        for i, (name, share) in enumerate(chosen):
            left = self.deadline - time.monotonic()
            budget = left * share / sum(s for _, s in chosen[i:])
            begin, stage = time.monotonic(), self.stage(name)
            spent = stage.get("seconds", 0)
            stage.update(status="running", budget_s=round(budget, 1))
            say(f"stage {name}: {budget:.0f} s")
            self.save()
            try:
                stage["status"], stage["detail"] = getattr(self, name)(budget)
            except Exception as error:  # a stage must not end the round
                stage["status"], stage["detail"] = "failed", f"{type(error).__name__}: {error}"
            finally:
                stage["seconds"] = round(spent + time.monotonic() - begin, 1)
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
        if missing:
            return "failed", f"libraries not found: {missing}"
        if self.gpu is None:
            return "failed", f"no catalogue entry for {self.record['device']}; name one with --gpu"
        count, seconds = warm(self.bin, self.env)
        return "ok", f"{self.record['device']} as {self.gpu}; {count / 2**30:.1f} GiB of libraries read in {seconds:.1f} s"

    def self_check(self, budget):
        file = self.out / "self_check.json"
        until = time.monotonic() + min(240, max(budget, 120))  # libraries load slowly the first time
        before, lost = None, {}  # rows of checks that ended the process or the device, or hung: tried no more
        while True:
            file.unlink(missing_ok=True)
            skip = [word for name in lost for word in ("--skip", name)]
            device = self.device() if self.standin else []
            status, seconds = self.run("self_check", [self.bin / "foreshard-exec", "self-check", *device, *skip, "--out", file],
                                       until - time.monotonic(), progress=file)
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
            if not running or again or len(lost) == 4 or until - time.monotonic() < 20:
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
            what = ["--dtype", "fp32", "--model", example(), "--tokens", "32x1"]
        else:
            what = ["--model", "tinyllama-1.1b", "--model", "llama-3-8b", "--tokens", "8192x1", "--tokens", "2048x4"]
        status, _ = self.run("measure", [self.bin / "foreshard-exec", "measure", *self.device(), *what, "--budget",
                                         max(5, 0.8 * budget), "--out", raw], max(20, budget))
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
        status, _ = self.run("collectives", [self.bin / "foreshard-exec", "measure", *self.device(), "--spawn", count, "--out",
                                             raw], max(20, budget))
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

    # --- stages of cases ---

    def cases(self, stage):
        """{name: case} of those that are wanted."""
        if stage == "plans":
            found = {p["name"]: p for p in (STANDIN_PLANS if self.standin else PLANS)}
        elif stage == "fsdp2":
            found = {case[0]: case for case in (STANDIN_FSDP2 if self.standin else FSDP2)}
        else:
            count = self.gpus()
            found = {} if self.standin or count < 2 else {
                p["name"]: p for p in (plan(f"1b-real-{count}", ONE, count), plan(f"8b-real-{count}", EIGHT, count))}
        return {name: case for name, case in found.items() if not self.args.only or name in self.args.only}

    def left(self, stage):
        """Names of its cases that have no row yet."""
        rows = {row["name"] for row in read_rows(self.out / ROWS[stage]) if row["status"] != "late"}
        return [name for name in self.cases(stage) if name not in rows]

    def play_cases(self, stage, budget, one):
        """A row for each case that has none, one(case, seconds)."""
        file, cases = self.out / ROWS[stage], self.cases(stage)
        wanted = self.left(stage) if self.args.resume or stage == "ranks" else list(cases)
        write_rows(file, [row for row in read_rows(file) if row["name"] not in wanted] if self.args.resume or stage == "ranks" else [])
        until = time.monotonic() + budget
        for name in wanted:
            left = until - time.monotonic()
            if left >= (1 if self.standin else SHORTEST):
                add_row(file, one(cases[name], left))
                self.save()
        rows = {row["name"]: row for row in read_rows(file) if row["name"] in cases}
        groups = [("failed: {}", [n for n, r in rows.items() if r["status"] not in ("ok", "late")]),
                  ("validate refused: {}", [n for n, r in rows.items() if "reason" in r.get("validation", r) and r["status"] == "ok"]),
                  ("no time for: {}", [n for n in cases if n not in rows or rows[n]["status"] == "late"])]
        done = sum(row["status"] == "ok" for row in rows.values())
        return ("failed" if groups[0][1] or groups[1][1] else "ok" if done else "skipped",
                ", ".join([f"{done} of {len(cases)}"] + [text.format(", ".join(names)) for text, names in groups if names]))

    def plans(self, budget):
        data = tokens(self.out / "tokens.bin", 4_400_000 if not self.standin else 20_000)
        return self.play_cases("plans", budget, lambda p, seconds: self.one_plan(p, data, seconds))

    def fsdp2(self, budget):
        if torch_folder() is None:
            return "skipped", "python3 has no torch"
        return self.play_cases("fsdp2", budget, self.one_fsdp2)

    def ranks(self, budget):
        if not self.cases("ranks"):
            return "skipped", "one GPU: NCCL between GPUs and real shard groups need two or more"
        data = tokens(self.out / "tokens.bin", 4_400_000)
        return self.play_cases("ranks", budget, lambda p, seconds: self.one_real_plan(p, data, seconds))


def main():
    parser = argparse.ArgumentParser(prog="./x gpu", description="The round on a GPU, in stages.")
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything (default 9)")
    parser.add_argument("--ranks", type=int, help="GPUs for real shard groups; default: all")
    parser.add_argument("--out", default="gpu-round", help="folder for results (default gpu-round)")
    parser.add_argument("--resume", nargs="?", const=True, metavar="BUNDLE",
                        help="go on with the results in --out (or in BUNDLE, where --out has none): what is finished is kept")
    parser.add_argument("--stages", help="only these: " + ",".join(name for name, _ in STAGES))
    parser.add_argument("--only", help="only these plans and configurations (round_plans.py)")
    parser.add_argument("--bundle", help="pack the results into this .tar.gz after every row")
    parser.add_argument("--poll", type=float, metavar="SECONDS",
                        help="in the background, and wait for its end at most so long; called again, wait on (or go on, with --resume)")
    parser.add_argument("--gpu", help="key of the machine catalogue; default: by the GPU's name")
    parser.add_argument("--device", choices=["cuda", "standin"], default="cuda", help="standin: try the round on the CPU")
    parser.add_argument("--bin", default=str(HERE.parents[1] / "build" / "bin"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    choose(args, [name for name, _ in STAGES])
    out = pathlib.Path(args.out).absolute()
    lock = alone(out)
    if lock is None:
        if args.poll is not None:
            sys.exit(poll(args, out))
        refuse(2, f"another round writes to {args.out}; --poll waits for it, another --out is a round of its own")
    names = ["standin"] if args.device == "standin" else gpu_names()
    if not names:
        refuse(6, "there is no NVIDIA GPU here (nvidia-smi shows none); --device standin tries the round on the CPU")
    build = build_facts(pathlib.Path(args.bin).absolute())
    problem = None if args.device == "standin" else machine_problem(build)
    if problem:
        refuse(6, problem)
    holder = None if args.device == "standin" else gpu_in_use()
    if holder:
        refuse(6, f"the GPU is in use by {holder}; figures beside another's work would mislead: end it, or wait for it")
    if args.resume:
        resume(args, build, names[0])
    if args.poll is not None and not in_background(out):
        os.close(lock)  # the other process has it
        sys.exit(poll(args, out))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    sys.exit(Round(args, names, build).play())


if __name__ == "__main__":
    main()
