"""Before the round and around it: what is refused before anything runs, whose folder it is, and rounds in the background."""
import difflib
import fcntl
import os
import pathlib
import signal
import sys
import tarfile
import time

from round_machine import other_build
from round_plans import FSDP2, PLANS, STANDIN_FSDP2, STANDIN_PLANS
from round_tools import pack, read_json, unpack


def refuse(code, text):
    print(f"gpu: {text}", file=sys.stderr)
    sys.exit(code)


def known(what, text, names):
    """The names of a list that the user wrote."""
    wanted = [word for word in (text or "").split(",") if word]
    for word in wanted:
        if word not in names:
            near = difflib.get_close_matches(word, names, 1, 0.5)
            refuse(2, f"there is no {what} {word}" + (f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}"))
    return wanted


def choose(args, stages):
    """args.stages and args.only as lists; of --only follow the stages that have them."""
    plans, fsdp2 = (STANDIN_PLANS, STANDIN_FSDP2) if args.device == "standin" else (PLANS, FSDP2)
    of = {"plans": [p["name"] for p in plans], "fsdp2": [case[0] for case in fsdp2]}
    args.only = known("plan or configuration", args.only, of["plans"] + of["fsdp2"])
    args.stages = known("stage", args.stages, stages)
    if not args.stages:
        args.stages = [name for name in stages if not args.only or name == "environment" or set(of.get(name, [])) & set(args.only)]


def resume(args, build, device):
    """Brings the results to go on with to args.out, and refuses those of another build or GPU."""
    out = pathlib.Path(args.out).absolute()
    if isinstance(args.resume, str) and not (out / "round.json").exists():
        try:
            unpack(pathlib.Path(args.resume), out)
        except (OSError, ValueError, tarfile.TarError) as error:
            refuse(3, f"{args.resume}: no bundle of a round ({str(error).splitlines()[0]}); expected what --bundle wrote")
    record = read_json(out / "round.json")
    if record is None:
        return
    problem = other_build(record, build)
    if problem is None and record.get("device") != device:
        problem = f"they are of {record.get('device')}, this is {device}"
    if problem:
        refuse(3, f"results in {args.out} are not gone on with: {problem}; take another --out for new ones")


def alone(out):
    """Takes the folder, which two rounds that write there would each spoil for the other; None where a round has it."""
    out.mkdir(parents=True, exist_ok=True)
    lock = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


# --- in the background -----------------------------------------------------------------------------------------------


def in_background(out):
    """True in a process of its own, which outlives the command; False in the one that goes on waiting."""
    if os.fork():
        return False
    os.setsid()
    (out / "logs").mkdir(exist_ok=True)
    log = os.open(out / "logs" / "round.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    return True


def poll(args, out):
    """Waits for the end of the round that has the folder, args.poll seconds at most; says where it is, and packs."""
    until = time.monotonic() + args.poll
    while (lock := alone(out)) is None and time.monotonic() < until:
        time.sleep(min(0.2, max(0.0, until - time.monotonic())))
    record = read_json(out / "round.json") or {"stages": []}  # none yet: it has only begun
    for stage in record["stages"]:
        print(f"{stage['name']}: {stage['status']} ({stage.get('seconds', 0):.0f} s) {stage.get('detail', '')}")
    if args.bundle:
        pack(out, pathlib.Path(args.bundle))
    if lock is None:
        print(f"the round goes on in the background (kill -- -{record.get('process')} ends it)")
        return 0
    if "ended" not in record:
        print("the round was cut; the same command goes on with it")
        return 1
    return 1 if any(stage["status"] == "failed" for stage in record["stages"]) else 0


def stop(number, _):
    sys.exit(130 if number == signal.SIGINT else 128 + number)
