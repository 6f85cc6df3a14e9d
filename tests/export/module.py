"""The installed wheel, whose file is the argument: its package and its command, with the Python that has it.
Run by `./x check module` in a clean virtual environment, and by tests/export/wheel_test.py."""

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import foreshard

HAS_NUMPY = importlib.util.find_spec("numpy") is not None
JOB = dict(model="llama-3.1-8b", cluster="16xh100", runtime="fsdp2@2.11")
FIXED = {"recompute": "none", "prefetch.forward": "implicit"}


def refused(kind, call, *args, **keys):
    try:
        call(*args, **keys)
    except kind as error:
        return error
    raise SystemExit(f"not refused: {args} {keys}")


def check_answers():
    report = foreshard.predict("llama-3.1-8b", cluster="16xh100", sequence=4096, micro_batch=2, mesh={"shard": 8})
    assert report["schema"] == "foreshard.report/1" and report.exit_code == 0, report["schema"]
    assert report.plan.mesh == {"shard": 8, "replicate": 2}, report.plan.mesh
    assert report.plan.batch.sequence == 4096 and report.plan.batch.micro_batch == 2, report.plan.batch
    seconds = report.step.seconds
    assert seconds.low <= seconds.value <= seconds.high, seconds
    assert report.verdict.startswith("fits") and report._repr_html_().startswith("<p><strong>fits")
    # A plan as a dict, keys with dots, and keys that are no words of Python.
    same = foreshard.predict({**JOB, "mesh": {"shard": 8}}, set={"recompute": "full"})
    assert same.plan.mesh.shard == 8 and same.plan.recompute == "full", same.plan
    assert foreshard.explain(**JOB).waterfall
    changed = foreshard.compare("gpt2", cluster="8xh100", with_={"recompute": "full"})
    assert changed.plan[0].key == "recompute" and "recompute none -> full" in changed.verdict

    assert foreshard.compare("gpt2", "8xh100", with_={"recompute": "full"}).verdict == changed.verdict
    with tempfile.TemporaryDirectory() as folder:
        plans = []
        for size in (1, 2):
            plans.append(pathlib.Path(folder) / f"{size}.yaml")
            plans[-1].write_text(f"model: gpt2\ncluster: 8xh100\nbatch: {{micro_batch: {size}}}\n")
        assert foreshard.compare(files=plans).plan[0].key == "batch.micro_batch"
        assert foreshard.predict(plan=plans[1]).plan.batch.micro_batch == 2

    found = foreshard.search(**JOB, threads=1, fix=FIXED)
    assert found.best.report.memory.fits and found.best.plan.recompute == "none", found.best.plan
    bought = foreshard.recommend(
        "gpt2", tokens="10B", deadline="30d", cluster=["8xh100", "a100"], gpus=[8, 16], what_if=True)
    assert bought.meets_terms and len(bought.choices) == 3, bought.choices
    assert bought._repr_html_().count("<tr>") == 4, bought._repr_html_()
    scaled = foreshard.scale("gpt2", "a100", gpus=[8, 16, 32], global_batch=64)
    assert [point.gpus for point in scaled.points] == [8, 16, 32]
    assert "[parallelism]" in foreshard.export(**JOB, to="torchtitan").text
    assert foreshard.launch(**JOB, launcher="torchrun").ranks == 16
    assert any(model.name == "gpt2" for model in foreshard.models().models)
    assert foreshard.models("gpt2")._repr_html_()
    if HAS_NUMPY:
        check_arrays(found, scaled)


def check_arrays(found, scaled):
    import numpy as np

    events = foreshard.schedule({**JOB, "mesh": {"shard": 8}})
    assert events.dtype["bytes"] == np.int64 and events.dtype["end_s"] == np.float64
    assert (np.diff(events["id"]) == 1).all()
    # Every unit is gathered in forward and in backward, but for the root, which keeps what it has.
    gathers = events[events["kind"] == "all_gather"]
    assert len(gathers) == 2 * len(np.unique(gathers["unit_name"])) - 1, len(gathers)
    points = foreshard.pareto(found)
    assert len(points) == len(found["pareto"])
    points = foreshard.curve(scaled)
    assert (points["tokens_per_s_low"] <= points["tokens_per_s"]).all()


def check_refusals():
    error = refused(foreshard.InvalidInput, foreshard.predict, "llama-3.1-9b", cluster="16xh100")
    assert error.exit_code == 3 and "llama-3.1-8b" in str(error), error
    error = refused(foreshard.InvalidInput, foreshard.predict, **JOB, meshh={"shard": 8})
    assert "did you mean mesh" in str(error), error
    error = refused(foreshard.Infeasible, foreshard.predict, "llama-3.1-405b", "8xh100")
    assert "does not fit" in str(error) and not error.answer.memory.fits, error
    assert error.answer.verdict.startswith("does not fit"), error.answer.verdict
    answer = foreshard.predict("llama-3.1-405b", "8xh100", check=False)
    assert answer.exit_code == 4 and not answer.memory.fits
    refused(foreshard.UsageError, foreshard.search, **JOB, vary="nothing")
    assert "no keyword 'tokens'" in str(refused(TypeError, foreshard.models, tokens=1))
    refused(AttributeError, getattr, foreshard, "forecast")


def children():
    """Processes that this one started, by their ids."""
    with open(f"/proc/self/task/{threading.main_thread().native_id}/children", encoding="ascii") as file:
        return file.read().split()


def check_interrupt():
    """Ctrl-C ends a call that would never end, and its process; returns the seconds that it took."""
    sent = []

    def interrupt():
        while not children():
            time.sleep(0.01)
        time.sleep(0.2)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    try:
        foreshard.command("serve", "--port", "0")
    except KeyboardInterrupt:
        assert not children(), children()
        return time.monotonic() - sent[0]
    raise SystemExit("a server ended before it was interrupted")


def check_command():
    start = time.monotonic()
    line = ["foreshard", "predict", "--model", "llama-3.1-8b", "--cluster", "64xh100", "--json"]
    assert json.loads(subprocess.run(line, check=True, capture_output=True).stdout)["memory"]["fits"]
    took = time.monotonic() - start
    # Whatever it loads is the wheel's or the C library's.
    module = pathlib.Path(foreshard.__file__).parent
    for name in os.listdir(module / "bin"):
        loaded = subprocess.run(["ldd", module / "bin" / name], check=True, capture_output=True, text=True).stdout
        for library in loaded.splitlines():
            path = library.partition("=>")[2].split()
            of_the_c_library = library.split()[0].split(".")[0] in ("libc", "libm", "linux-vdso", "libresolv")
            assert not path or of_the_c_library or pathlib.Path(path[0]).resolve().is_relative_to(module), library
    return took


def check_serve():
    server = subprocess.Popen(["foreshard", "serve", "--port", "0"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    ask = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    try:
        for line in server.stdout:
            words = [word.rstrip(".,;/") for word in line.split() if word.startswith("http://")]
            if words:
                break
        with ask.open(words[0], timeout=60) as answer:
            assert b"<html" in answer.read(100_000).lower()
    finally:
        server.terminate()
        server.wait()


def check_file(wheel):
    assert wheel.stat().st_size < 20e6, wheel.stat().st_size
    tag = wheel.stem.split("-")[-1]
    if importlib.util.find_spec("auditwheel") is None:
        return
    told = subprocess.run([sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    # It names the oldest C library that will do; the tag may ask for that one and no older.
    assert f'"{tag}"' in told.stdout, (tag, told.stdout)


check_answers()
check_refusals()
interrupted = check_interrupt()
started = check_command()
check_serve()
wheel = pathlib.Path(sys.argv[1])
check_file(wheel)
print(f"ok module {foreshard.__version__}: {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB; answered in "
      f"{started:.2f} s, interrupted in {interrupted:.3f} s{'' if HAS_NUMPY else '; arrays not checked'}")
