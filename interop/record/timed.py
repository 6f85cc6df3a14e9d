"""Records a few steps of an FSDP2 job for `foreshard validate` and `foreshard explain --run`.

Needs PyTorch 2.4 or later and nothing else; copy the file beside your training script:

    import timed

    with timed.record("recording", warmup=3, steps=5) as recorder:
        for batch in data:
            train_step(batch)          # forward, backward, clipping, optimizer.step()
            recorder.step()            # once per optimizer step
            if recorder.done:          # optional: the loop may also go on
                break

Every rank writes two files into the folder: rank-N.trace.json.gz, the profiler's own trace, and
rank-N.timed.json with what it lacks (host, versions, units, the allocator's peaks). Then

    foreshard validate --plan plan.yaml --run recording
    foreshard explain  --plan plan.yaml --run recording

Gather the folders of several machines into one. A trace of one rank is enough: then waiting for
peers counts as communication. The profiler costs host time, so the step's time is that of as many
steps before it starts; stacks, shapes and memory events are left off for the same reason.
"""
import datetime
import json
import os
import platform
import time

import torch
import torch.distributed as dist

# ---- recording ----  (export --to fsdp2 carries what follows)

SCHEMA = "foreshard.timed/1"


def mark():
    """Now, as the GPU gets there."""
    if not torch.cuda.is_available():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds(a, b):
    return b - a if isinstance(a, float) else a.elapsed_time(b) / 1e3


class record:
    """Skips `warmup` steps, times `steps`, records as many and writes them; then step() does nothing."""

    def __init__(self, folder, warmup=3, steps=5, model=None):
        if warmup < 1 or steps < 1:
            raise ValueError("warmup and steps must be at least 1")
        self.folder, self.warmup, self.steps, self.model = folder, warmup, steps, model
        self.done = False
        self._count = 0
        self._marks = []
        self.total_steps = warmup + 2 * steps + 1

    def __enter__(self):
        os.makedirs(self.folder, exist_ok=True)
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        # One step more than asked for: the first has no begin in the trace.
        schedule = torch.profiler.schedule(wait=self.warmup - 1 + self.steps, warmup=1, active=self.steps + 1, repeat=1)
        self._profile = torch.profiler.profile(activities=activities, schedule=schedule, on_trace_ready=self._write)
        self._profile.__enter__()
        return self

    def step(self):
        if self.done:
            return
        self._count += 1
        if self._count == self.warmup and torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            self._retries = torch.cuda.memory_stats()["num_alloc_retries"]
            self._held = torch.cuda.memory_allocated()
        if self.warmup - 1 <= self._count < self.warmup + self.steps:
            self._marks.append(mark())
        self._profile.step()

    def __exit__(self, *exception):
        self._profile.__exit__(*exception)
        if not self.done and exception[0] is None:
            print(f"timed: only {self._count} of {self.total_steps} steps were run; "
                  "nothing whole was recorded", flush=True)

    def _rank(self):
        return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)

    def _write(self, profiler):
        if self._count < self.total_steps:
            return                                  # the loop ended early
        name = os.path.join(self.folder, f"rank-{self._rank()[0]}")
        profiler.export_chrome_trace(name + ".trace.json.gz")
        with open(name + ".timed.json", "w") as file:
            json.dump(self._about(), file, indent=1)
        self.done = True

    def _about(self):
        rank, world = self._rank()
        return {
            "schema": SCHEMA,
            "created": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "host": platform.node(), "rank": rank, "world": world,
            "versions": self._versions(), "units": self._units(), "memory": self._memory(),
            "steps_s": [seconds(a, b) for a, b in zip(self._marks, self._marks[1:])],
        }

    def _versions(self):
        versions = {"torch": str(torch.__version__)}
        if torch.cuda.is_available():
            versions["cuda"] = str(torch.version.cuda or torch.version.hip)
            versions["gpu"] = torch.cuda.get_device_name()
            try:
                versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
            except (AttributeError, RuntimeError):
                pass
        return versions

    def _units(self):
        """Modules that fully_shard was applied to, in order of the module tree."""
        if self.model is None:
            return None
        return [name for name, module in self.model.named_modules()
                if type(module).__name__.startswith("FSDP")]

    def _memory(self):
        if not torch.cuda.is_available():
            return None
        return {"grown_bytes": torch.cuda.memory_allocated() - self._held,
                "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
                "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
                "retries": (torch.cuda.memory_stats()["num_alloc_retries"] - self._retries) / (self.total_steps - self.warmup)}
