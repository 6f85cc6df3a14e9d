#!/usr/bin/env python3
"""Kernels of codes that ran on a GPU here, as their captures forecast them, against what they took: a table.

    reports/capture/gpu_kernels.py ROUND CAPTURES [build/bin/foreshard] [--names N]

ROUND holds codes.jsonl (exec/gpu/code_steps.py); CAPTURES a folder of each case's name, made with the versions that
the GPU's machine had:

    foreshard-null --world 8 --gpu h100 --out CAPTURES/NAME -- python3 exec/gpu/code_steps.py --capture NAME

Each kernel by itself, without hosts, streams and networks. Libraries' products and attention have other names on a GPU
than as calls; the rest is also compared by name (at::native, so far as the round keeps names): --names N prints the
names that are furthest off.
"""
import collections
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from ask import answer  # noqa: E402

PROGRAM = "build/bin/foreshard"


def main():
    args = sys.argv[1:]
    names = 0
    if "--names" in args:
        at = args.index("--names")
        names = int(args[at + 1])
        del args[at:at + 2]
    if len(args) < 2:
        raise SystemExit(__doc__)
    folder, captures, program = pathlib.Path(args[0]), pathlib.Path(args[1]), args[2] if len(args) > 2 else PROGRAM
    gpu = json.loads((folder.parent / "round.json").read_text(encoding="utf-8"))["gpu"]
    errors, by_name = [], collections.defaultdict(lambda: [0, 0.0, 0.0])
    print(f"{'code':31} {'kernels ms':>10} {'forecast':>9} {'off':>7}   launches, of the same names {'ms':>8} {'forecast':>9} {'off':>7}")
    for line in (folder / "codes.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        capture = captures / row["name"]
        if row["status"] != "ok" or not (capture / "capture.json").exists():
            continue
        explained, error = answer(program, "explain", "--capture", capture, "--cluster", f"{row['case']['world']}x{gpu}")
        if not explained:
            print(f"{row['name']:31} {error}")
            continue
        kernels = explained["capture"]["kernels"]
        cut = max(len(name) for name, *_ in row["kernels"])
        forecast = collections.defaultdict(lambda: [0, 0.0])
        for kernel in kernels:
            for i, what in enumerate(("launches", "seconds")):
                forecast[kernel["name"][:cut]][i] += kernel[what]
        launches = same = of_same = 0
        for name, count, us in row["kernels"]:
            if name in forecast and forecast[name][0] == count:
                launches += count
                same += us * 1e-6
                of_same += forecast[name][1]
                for i, value in enumerate((count, us * 1e-6, forecast[name][1])):
                    by_name[name][i] += value
        total = sum(kernel["seconds"] for kernel in kernels)
        errors.append(total / row["kernels_s"] - 1)
        print(f"{row['name']:31} {row['kernels_s'] * 1e3:10.1f} {total * 1e3:9.1f} {100 * errors[-1]:+6.1f}%   {launches:>8} of {row['launches']:>8} "
              f"{same * 1e3:15.1f} {of_same * 1e3:9.1f} {100 * (of_same / same - 1 if same else 0):+6.1f}%")
    sizes = sorted(abs(e) for e in errors)
    print(f"kernels: median {100 * statistics.median(sizes):.1f} %, p90 {100 * sizes[int(0.9 * (len(sizes) - 1))]:.1f} %, "
          f"mean {100 * statistics.mean(errors):+.1f} %, {len(sizes)} codes")
    for name, (count, seconds, said) in sorted(by_name.items(), key=lambda x: -abs(x[1][1] - x[1][2]))[:names]:
        print(f"{count:6} {seconds * 1e3:9.2f} {said * 1e3:9.2f} ms {100 * (said / seconds - 1):+6.1f}%  {name[:140]}")


if __name__ == "__main__":
    main()
