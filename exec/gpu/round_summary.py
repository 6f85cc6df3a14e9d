"""A round's results as tables: what a person reads first."""
from round_plans import BESIDE
from round_tools import read_json, read_rows


def percent(ratio):
    return "" if ratio is None else f"{100 * ratio:+.1f} %"


def gib(count):
    return "" if count is None else f"{count / 2**30:.2f}"


def unfinished(row, columns):
    """Of a case that has no figures: why."""
    return f"| {row['name']} | {row['status']}: {row.get('reason', '').replace('|', '/')} |" + " |" * (columns - 2)


def summary(out, record):
    """What a person reads first."""
    lines = [f"# Round on {record['device']} ({record['created']})", "", f"`{record['command']}`", "",
             "| stage | status | seconds | |", "| --- | --- | --- | --- |"]
    for s in record["stages"]:
        lines.append(f"| {s['name']} | {s['status']} | {s.get('seconds', '')} | {s.get('detail', '')} |")
    checks = read_json(out / "self_check.json")
    if checks:
        lines += ["", "| check | status | |", "| --- | --- | --- |"]
        lines += [f"| {c['check']} | {c['status']} | {c['detail'].replace('|', '/')} |" for c in checks["checks"]]
    plans = read_rows(out / "plans.jsonl")
    if plans:
        lines += ["", "Forecast against measurement (error = forecast / measured - 1):", "",
                  "| plan | step s | error | exposed | memory | peak GiB | tokens/s per GPU | MFU | host issue us |",
                  "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
        for p in plans:
            if p["status"] != "ok":
                lines.append(unfinished(p, 9))
                continue
            lines.append(f"| {p['name']} | {p['step_s']:.4f} | {percent(p.get('step_error'))} | "
                         f"{percent(p.get('exposed_communication_error'))} | {percent(p.get('memory_error'))} | "
                         f"{gib(p['peak_allocated_bytes'])} | {p['tokens_per_s_per_gpu']:.0f} | {p['mfu']:.3f} | {p.get('issue_us') or ''} |")
    fsdp2 = read_rows(out / "fsdp2.jsonl")
    if fsdp2:
        lines += ["", "PyTorch's FSDP2 on the same GPU (its forecast holds the network of a real cluster, so steps are compared "
                  "at world 1 only):", "",
                  "| configuration | step s | error | tokens/s per GPU | allocated GiB | error | reserved GiB | error |",
                  "| --- | --- | --- | --- | --- | --- | --- | --- |"]
        for r in fsdp2:
            if r["status"] != "ok":
                lines.append(unfinished(r, 8))
                continue

            def off(key):
                forecast_value, seen = r.get("predicted", {}).get(key), r.get(key)
                return percent(forecast_value / seen - 1) if forecast_value and seen else ""

            lines.append(f"| {r['name']} | {r['step_s']:.4f} | {off('step_s') if r['world'] == 1 else ''} | "
                         f"{r['tokens_per_s_per_gpu']:.0f} | {gib(r.get('peak_allocated_bytes'))} | {off('peak_allocated_bytes')} | "
                         f"{gib(r.get('peak_reserved_bytes'))} | {off('peak_reserved_bytes')} |")
    ours = {p["name"]: p for p in plans if p["status"] == "ok"}
    theirs = {r["name"]: r for r in fsdp2 if r["status"] == "ok"}
    pairs = [(name, [ours[p] for p in a if p in ours], [theirs[r] for r in b if r in theirs]) for name, a, b in BESIDE]
    if any(a and b for _, a, b in pairs):
        lines += ["", "The engine beside FSDP2, the best of each side's attention kernels and compilation:", "",
                  "| | tokens/s | FSDP2 | ratio | peak allocated GiB | FSDP2 | ratio |", "| --- | --- | --- | --- | --- | --- | --- |"]
        for name, a, b in pairs:
            if not (a and b):
                continue
            fast, other = (max(rows, key=lambda row: row["tokens_per_s_per_gpu"]) for rows in (a, b))
            x, y = fast["tokens_per_s_per_gpu"], other["tokens_per_s_per_gpu"]
            m, n = fast["peak_allocated_bytes"], other.get("peak_allocated_bytes")
            lines.append(f"| {name} | {x:.0f} | {y:.0f} | {x / y:.2f} | {gib(m)} | {gib(n)} | {f'{m / n:.2f}' if n else ''} |")
    return "\n".join(lines) + "\n"
