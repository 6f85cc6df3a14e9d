"""Commands of the round: each with a limit and a log, none of which outlives the round.

Children stay in the round's process group, so that what ends the group (timeout, a terminal, kill -- -PGID) ends them;
where only the round itself is killed, the kernel ends them with it.
"""
import ctypes
import glob
import json
import os
import signal
import subprocess
import time

STALL = 45  # s that one check of self-check may take: libraries load and kernels are built in some
PR_SET_PDEATHSIG = 1  # sys/prctl.h


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def family(pid):
    """pid and everything that it started, as far as it still runs."""
    parents = {}
    for file in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(file, encoding="utf-8", errors="replace") as text:
                fields = text.read().rsplit(")", 1)[1].split()
            parents[int(file.split("/")[2])] = int(fields[1])
        except (OSError, IndexError, ValueError):
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def end(process):
    """Ends it and all that it started: asked first, then killed."""
    known = family(process.pid)
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        pass
    for pid in reversed(known):
        if pid == process.pid and process.poll() is not None:
            continue  # its number may be another's by now
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


class Commands:
    def __init__(self, out, env):
        self.out, self.env = out, env

    def start(self, command, log, **more):
        return subprocess.Popen([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                preexec_fn=die_with_parent, **more)

    def run(self, name, command, seconds, progress=None):
        """Output goes to logs/NAME.log. Returns (exit status, seconds); 124: stopped at its limit, or STALL seconds after
        the file `progress` was written last."""
        logs = self.out / "logs"
        logs.mkdir(exist_ok=True)
        begin = time.monotonic()
        with open(logs / f"{name}.log", "ab") as log:
            log.write(("\n$ " + " ".join(map(str, command)) + "\n").encode())
            log.flush()
            process = self.start(command, log, env=self.env, cwd=self.out)
            try:
                status = self.wait(process, begin + max(1.0, seconds), progress)
            except BaseException:  # the round is told to stop
                end(process)
                raise
            if status is None:
                status = 124
                end(process)
        return status, time.monotonic() - begin

    @staticmethod
    def wait(process, until, progress):
        """Its exit status; None: it is to be stopped."""
        while time.monotonic() < until:
            try:
                left = until - time.monotonic()
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
