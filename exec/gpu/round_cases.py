"""The round's cases: one row of results each, of a plan of the engine or a configuration of FSDP2.

Every case is forecast before it runs: `blind` with the profile that the program ships, `calibrated` with the one that
this machine's measurements made, where they have been made. Forecast, measurement, whether the interval held, and what
the GPU's clocks were stand in the row.
"""
import shutil
import sys
import time

from round_machine import clocks_between
from round_plans import fsdp2_plan, words_of
from round_tools import HERE, JUDGED, example, issue_us, judged, measured, now, read_json

MEMORY = ("peak_allocated_bytes", "peak_reserved_bytes")
VERDICT = ("step_error", "exposed_communication_error", "memory_error", "passed", "by_kind")


class Cases:
    """Of Round, which has args, out, bin, gpu, standin and the commands."""

    def profile(self):
        profile = self.out / "profile.json"
        return ["--profile", profile] if profile.exists() else []

    def job(self, p, runtime):
        return words_of(dict(p, model=p["model"] or example()), runtime, self.gpu)

    def device(self):
        return ["--device", "standin" if self.standin else "cuda"]

    def forecasts(self, log, p, runtime):
        """{blind, calibrated}: reports, or the reason why there is none; of the engine as one GPU runs it."""
        found, paced = {}, ["--paced"] if runtime == "native" else []
        for name, profile in (("blind", []), ("calibrated", self.profile())):
            if name == "calibrated" and not profile:
                continue
            status, report = self.answer(log, [self.bin / "foreshard", "predict", *self.job(p, runtime), *profile, *paced, "--json"], 60)
            found[name] = report or {"reason": f"predict: exit {status}: {self.log_tail(log, 1)}"}
        return {"created": now(), **found}

    @staticmethod
    def judge(forecasts, row, keys):
        return {name: judged(f, row, keys) if isinstance(f, dict) and "step" in f else f for name, f in forecasts.items()}

    def validate(self, log, words):
        """What `foreshard validate` says of a run, or the reason why it refuses."""
        status, verdict = self.answer(log, [self.bin / "foreshard", "validate", *words, *self.profile(), "--no-history", "--json"], 90)
        if verdict is None:
            return {"reason": f"validate: exit {status}: {self.log_tail(log, 2)}"}
        return {key: verdict.get(key) for key in VERDICT}

    def measured_case(self, row, limit, seconds, run):
        """The row with what run(limit) adds, when it ran and the clocks meanwhile. A case that fails at a limit that only
        the round's end has set is `late`: it is tried again by the round that goes on with this one."""
        begin = time.time()
        limit *= 20 if self.standin else 1  # cores that others use as well
        row = dict(row, **run(min(limit, seconds)))
        until = time.time()
        row.update(begin=round(begin, 1), seconds=round(until - begin, 1))
        clocks = clocks_between(self.out / "logs" / "clocks.csv", begin, until)
        if clocks:
            row["clocks"] = clocks
        if row["status"] == "failed" and seconds < limit and until - begin >= seconds - 1:
            row["status"] = "late"
        return row

    # --- the engine ---

    def one_plan(self, p, data, seconds):
        row = {"name": p["name"], "model": p["model"] or "llama-5m", "gpus": p["gpus"], "set": p["set"], "graph": p["graph"]}
        if p["pace"] != 1:  # of another network than the forecast's
            row["pace"] = p["pace"]
        forecasts = self.forecasts("plan-" + p["name"], p, "native")
        how = ["--paced", "--pace", p["pace"]] if p["gpus"] > 1 else []
        how += ["--graph"] if p["graph"] else []
        row = self.measured_case(row, 150, seconds, lambda limit: self.engine(p, data, how, limit))
        row["forecast"] = self.judge(forecasts, row, JUDGED if p["pace"] == 1 else MEMORY)
        return row

    def one_real_plan(self, p, data, seconds):
        """A shard group over NCCL, a rank on every GPU."""
        row = {"name": p["name"], "model": p["model"], "gpus": p["gpus"], "set": p["set"], "graph": p["graph"]}
        forecasts = self.forecasts("plan-" + p["name"], p, "native")
        row = self.measured_case(row, 240, seconds, lambda limit: self.engine(p, data, ["--spawn", p["gpus"]], limit))
        row["forecast"] = self.judge(forecasts, row, JUDGED)
        return row

    def engine(self, p, data, how, seconds):
        """One run of the engine and its verdict."""
        name, folder = "plan-" + p["name"], self.out / "runs" / p["name"]
        shutil.rmtree(folder, ignore_errors=True)  # of a round that was cut
        steps = 12 if p["gpus"] <= 64 else 10
        status, report = self.answer(name, [self.bin / "foreshard-exec", "run", *self.job(p, "native"), *self.profile(), "--data",
                                            data, "--tokens", "u16", "--steps", steps, "--record", 6, "--out", folder, "--json",
                                            *self.device(), *how], seconds)
        if status != 0 or report is None:
            return {"status": "failed", "reason": f"exit {status}: {self.log_tail(name)}"}
        row = dict(measured(report, folder), issue_us=issue_us(self.out / "logs" / f"{name}.log"), status="ok")
        if p["pace"] == 1:
            row.update(self.validate(name, ["--plan", folder / "plan.yaml", "--run", folder]))
        for file in folder.glob("timeline-rank-*.csv"):  # kept small: what was measured stands in the row
            if file.stat().st_size > 400_000:
                file.unlink()
        return row

    # --- FSDP2 ---

    def one_fsdp2(self, case, seconds):
        name, base, world, variant, recompute = case
        p = fsdp2_plan(base, world, variant, recompute)
        forecasts = {} if self.standin else self.forecasts("fsdp2-" + name, p, "fsdp2@2.11")
        row = self.measured_case({"name": name}, 180, seconds, lambda limit: self.fsdp2_steps(case, p, limit))
        if row["status"] == "ok":
            row["forecast"] = self.judge(forecasts, row, JUDGED if world == 1 else MEMORY)
        return row

    def fsdp2_steps(self, case, p, seconds):
        name, base, world, variant, recompute = case
        log, file, trace = "fsdp2-" + name, self.out / "logs" / f"{name}.row.json", self.out / "recordings" / name
        command = [sys.executable, HERE / "fsdp2_steps.py", "--model", base["model"], "--sequence", base["sequence"],
                   "--micro-batch", base["micro_batch"], "--world", world, "--variant", variant, "--recompute", recompute,
                   "--device", "cpu" if self.standin else "cuda", "--out", file]
        if world == 1 and variant == "default":
            command += ["--record", trace]
        file.parent.mkdir(exist_ok=True)
        file.unlink(missing_ok=True)
        shutil.rmtree(trace, ignore_errors=True)
        status, spent = self.run(log, command, seconds)
        row = read_json(file) or {"status": "failed", "reason": f"exit {status} after {spent:.0f} s: {self.log_tail(log)}"}
        file.unlink(missing_ok=True)
        if trace.exists():
            if not self.standin and row["status"] == "ok":
                row["validation"] = self.validate(log, [*self.job(p, "fsdp2@2.11"), "--run", trace])
            shutil.rmtree(trace, ignore_errors=True)
        return row
