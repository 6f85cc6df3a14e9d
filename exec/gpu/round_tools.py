"""Files of the round: rows, records, the bundle; what is read of a report."""
import array
import datetime
import json
import os
import pathlib
import random
import re
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
LARGEST = 16 << 20  # bytes of a bundle: what a machine that is lent for minutes gives back as one file


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def say(text):
    print(f"gpu: {text}", file=sys.stderr, flush=True)


def write_json(path, value):
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


# --- rows: one line of JSON each ---


def read_rows(path):
    """Its rows; a line that was cut off while it was written is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def write_rows(path, rows):
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    part.replace(path)


def add_row(path, row):
    """In one write, so that whoever ends this process ends it before or after the row."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, (json.dumps(row) + "\n").encode())
    finally:
        os.close(file)


# --- what the programs are given and say ---


def example():
    """The small model of the repository, or of the carried build."""
    for folder in (HERE.parents[1], HERE):
        file = folder / "models" / "examples" / "llama-5m.json"
        if file.exists():
            return str(file)
    raise FileNotFoundError("models/examples/llama-5m.json")


def tokens(path, count):
    """Random token ids as 16 bit integers, the same every time, in every vocabulary of the plans (32,000 or more;
    256 for the small model)."""
    if path.exists() and path.stat().st_size == 2 * count:
        return path
    most = 250 if count < 100_000 else 32_000
    with open(path, "wb") as file:
        array.array("H", random.Random(1).choices(range(most), k=count)).tofile(file)
    return path


def rename_device(path, name):
    """The stand-in measures as a GPU of the catalogue, so that every step of the round runs."""
    raw = read_json(path)
    raw["device"]["name"] = name
    write_json(path, raw)


def quantities(report):
    """Of a report: what is forecast or measured, each {value, low, high, ...}."""
    step, memory = report["step"], report["memory"]
    return {"step_s": step["seconds"], "tokens_per_s_per_gpu": step["tokens_per_s_per_gpu"],
            "exposed_communication_s": step["exposed_communication_s"], "mfu": step["mfu"],
            "peak_allocated_bytes": memory["peak_allocated_bytes"], "peak_reserved_bytes": memory["peak_reserved_bytes"]}


def measured(report, folder):
    """Of a run's report and its folder: the row's figures."""
    row = {key: q["value"] if isinstance(q, dict) else q for key, q in quantities(report).items()}
    row["losses"] = (report.get("run") or {}).get("losses", [])[:3]
    ranks = (read_json(folder / "run.json") or {}).get("ranks") or [{}]
    for key in ("device_reserved_bytes", "device_used_bytes"):
        if ranks[0].get(key):
            row[key] = ranks[0][key]
    return row


JUDGED = ("step_s", "exposed_communication_s", "peak_allocated_bytes", "peak_reserved_bytes")


def judged(report, row, keys):
    """A forecast beside what was measured: each of `keys` with {value, low, high}, and where the row has it its error and
    whether the interval holds it."""
    found = {"fingerprint": report["fingerprint"]}
    for key, q in quantities(report).items():
        if key not in JUDGED:
            continue
        found[key] = {k: q[k] for k in ("value", "low", "high")}
        if key in keys and row.get(key):
            found[key].update(error=q["value"] / row[key] - 1, hit=q["low"] <= row[key] <= q["high"])
    return found


def issue_us(log):
    """What the host took to give a step to the device, as the run noted it last."""
    try:
        found = re.findall(r"the host issued a step in ([0-9.]+) us", log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return float(found[-1]) if found else None


# --- the bundle ---


def pack(folder, file):
    """The results as one archive of at most LARGEST bytes, without what is large; replaced at once. Packed fast: it is
    made after every row, while the GPU waits."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    limit = 4_000_000
    while True:
        with tarfile.open(part, "w:gz", compresslevel=1) as archive:
            for path in sorted(folder.rglob("*")):
                if path.suffix in (".part", ".bin") or not path.is_file() or path.stat().st_size > limit:
                    continue
                archive.add(path, pathlib.Path("results") / path.relative_to(folder))
        if part.stat().st_size <= LARGEST or limit < 1000:
            break
        limit //= 2
    part.replace(file)


def unpack(file, folder):
    """Results out of a bundle; ValueError where it is none."""
    part = folder.with_name(folder.name + ".part")
    with tarfile.open(file) as archive:
        for member in archive.getmembers():
            words = pathlib.PurePosixPath(member.name).parts
            if member.name.startswith("/") or ".." in words or words[:1] != ("results",) or not member.isfile():
                raise ValueError(f"{file}: no archive of a round: {member.name}")
        archive.extractall(part)
    folder.mkdir(parents=True, exist_ok=True)
    for path in (part / "results").iterdir():
        path.replace(folder / path.name)
    (part / "results").rmdir()
    part.rmdir()
