#!/usr/bin/env python3
"""Puts the results of a round on a GPU where the repository keeps them: keep.py RESULTS [REPOSITORY].

RESULTS is the round's folder, or the archive that --bundle made. The raw measurements go to
calibration/measured/GPU/, what plans and FSDP2 steps took to reports/validation/GPU-DATE/. A round on the stand-in
is refused: it measured no GPU.
"""
import json
import pathlib
import re
import sys
import tarfile
import tempfile

from round_tools import unpack

KEPT = ["round.json", "self_check.json", "plans.jsonl", "fsdp2.jsonl"]


def copy(file, to):
    """Without the folders of the machine that it was written on: commands name programs and files alone."""
    text = re.sub(r"""(?<![\w./])/(?:[\w.+-]+/)+(?=[\w])""", "", file.read_text(encoding="utf-8"))
    to.write_text(text, encoding="utf-8")


def keep(results, repository):
    record = json.loads((results / "round.json").read_text(encoding="utf-8"))
    if record.get("device") in (None, "standin"):
        raise SystemExit(f"{results}: no GPU was measured ({record.get('device')})")
    stamp = record["created"].replace(":", "").replace("-", "")
    written = []
    for raw, name in ((results / "raw.json", f"{stamp}.json"), (results / "collectives.json", f"{stamp}-collectives.json")):
        if not raw.exists():
            continue
        to = repository / "calibration" / "measured" / record["gpu"] / name
        to.parent.mkdir(parents=True, exist_ok=True)
        copy(raw, to)
        written.append(to)
    folder = repository / "reports" / "validation" / f"{record['gpu']}-{stamp}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        if (results / name).exists():
            copy(results / name, folder / name)
            written.append(folder / name)
    return written


def main():
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    results = pathlib.Path(sys.argv[1])
    repository = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else pathlib.Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as scratch:
        if results.is_file():
            folder = pathlib.Path(scratch) / "results"
            try:
                unpack(results, folder)
            except (ValueError, OSError, tarfile.TarError) as error:
                raise SystemExit(str(error)) from None
            results = folder
        for path in keep(results, repository):
            print(path)


if __name__ == "__main__":
    main()
