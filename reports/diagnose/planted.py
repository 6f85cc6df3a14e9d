#!/usr/bin/env python3
"""What diagnose says of jobs whose cause is known, because it was planted (exec/gpu/fault_steps.py), on a GPU.

    planted.py [build/bin/foreshard]                           of planted.jsonl; exit 4 where fewer than three of four come first
    planted.py --read FOLDER WORDS...                          of recordings and the job's words; prints the rows to keep

Each row has what its trace measured, which `foreshard diagnose --measured` is given with the plan.
"""
import json
import pathlib
import sys

REPORTS = pathlib.Path(__file__).resolve().parents[1]
ROWS = pathlib.Path(__file__).with_name("planted.jsonl")  # an H200, 2026-11-29, PyTorch 2.11
sys.path[:0] = [str(REPORTS), str(REPORTS.parent / "exec" / "gpu")]
from ask import ask  # noqa: E402


def main():
    words = sys.argv[1:]
    if words[:1] == ["--read"]:
        from fault_steps import FAULTS
        for name, (cause, _) in FAULTS.items():
            run = pathlib.Path(words[1]) / name
            if run.is_dir():
                said = ask("build/bin/foreshard", "diagnose", *words[2:], "--run", run)
                print(json.dumps({"fault": name, "cause": cause, "job": " ".join(words[2:]), "measured": said["measured"]}))
        return 0
    program = words[0] if words else "build/bin/foreshard"
    first = among = 0
    rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        sizes = {"memory": "B", "reserved": "B", "in_use": "B", "retries": ""}
        measured = [word for key, value in row["measured"].items() for word in ("--measured", f"{key}={value}{sizes.get(key, 's')}")]
        said = ask(program, "diagnose", *row["job"].split(), *measured)
        order = sorted([(said["as_forecast"], "as_forecast")] + [(c["probability"], c["name"]) for c in said["causes"]], reverse=True)
        place = [name for _, name in order].index(row["cause"]) + 1
        first, among = first + (place == 1), among + (place <= 3)
        print(f"{place:3}  {row['cause']:18} {row['fault']:20} " + ", ".join(f"{name} {100 * p:.0f} %" for p, name in order[:3]))
    print(f"{len(rows)} jobs: the cause is first in {first}, among three in {among}")
    return 0 if 4 * first >= 3 * len(rows) else 4


if __name__ == "__main__":
    sys.exit(main())
