"""What cases and captures are compared by: a recorded step's collectives and peaks, and those that a forecast has."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "reports"))
from ask import KINDS, NORM, answer, ask, captured, same, scheduled, workspaces  # noqa: E402, F401

NCCL = {2: "int32", 4: "int64", 6: "fp16", 7: "fp32", 9: "bf16"}  # ncclDataType_t


def step_collectives(capture, norm=NORM, coalesced=False):
    """All-reduces that NCCL was given at once are one if `coalesced`. Of the steady step: kind, unit, bytes in, bytes out, dtype, ranks, where; the last is not known here. An all-reduce of fewer bytes than `norm` is functional, of ranks unknown."""
    names, ranks, rows, steps, threads, before, marked = {}, {}, [], [], set(), None, []
    for line in (capture / "calls.txt").read_text().splitlines():
        letter, *rest = line.split(" ")
        last, before = before, (letter, *rest[3:5])
        if letter == "N":
            names[int(rest[0])] = rest[1]
        elif letter == "K":
            ranks[rest[2]] = int(rest[3])
        elif letter in "LG":
            threads.add(rest[1])
        elif letter == "H" and names[int(rest[2])] == "step":
            marked.append(rows)
            if steps and not threads - {rest[1]}:  # no backward since: the step's next optimizer, or group of parameters
                rows = steps.pop() + rows
            steps.append(rows)
            rows, threads = [], set()
        elif letter == "X" and names[int(rest[4])] in (*KINDS, "all_to_all"):
            kind, whole, group = names[int(rest[4])], int(rest[5]), ranks[rest[3]]
            sent = whole // group if kind == "all_gather" else whole
            received = whole // group if kind == "reduce_scatter" else whole
            if coalesced and kind == "all_reduce" and last == before:
                sent, received = (whole := rows[-1][2] + whole), whole
                rows.pop()
            is_norm = kind == "all_reduce" and whole < norm
            rows.append(["functional_all_reduce" if is_norm else kind, "", sent, received, NCCL.get(int(rest[6]), "?"), 0 if is_norm else group, ""])
    return [rows for rows in (steps if len(steps) > 1 else marked) if rows][-1]  # (autograd may have no thread of its own)


def recorded(result):
    """(kind, bytes) in the host's order; clipping's all-reduce has no bytes."""
    return [("all_reduce", None) if kind.startswith("functional") else (kind, max(sent, received)) for kind, _, sent, received, *_ in result["collectives"]]


def last_lines(ran):
    return f"exit {ran.returncode}: " + " | ".join(ran.stderr.strip().splitlines()[-3:])[-400:]


def compared(program, said, result, capture):
    """Memory and collectives of a forecast against what was recorded of the last step; or why it `failed`."""
    report, error = answer(program, "predict", *said)
    if not report:
        return {"failed": error[-300:]}
    memory, step = report["memory"], result["steps"][-1]
    measured = step["requested"] - workspaces(capture)
    return {
        "measured": measured,
        "peak": memory["peak_allocated_bytes"]["value"] / measured - 1,
        "reserved": memory["peak_reserved_bytes"]["value"] / step["reserved"] - 1,
        "collectives": len(result["collectives"]),
        "difference": same(recorded(result), scheduled(program, *said)),
    }
