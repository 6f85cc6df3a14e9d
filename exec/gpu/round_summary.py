"""A round's results as tables: what a person reads first."""
import pathlib
import sys

from round_plans import BESIDE
from round_tools import read_json, read_rows


def percent(ratio):
    return "" if ratio is None else f"{100 * ratio:+.1f} %"


def gib(count):
    return "" if count is None else f"{count / 2**30:.2f}"


def ms(seconds):
    return "" if seconds is None else f"{1e3 * seconds:.2f}"


def plain(text):
    return str(text).replace("|", "/").replace("\n", " ")


def table(title, head, rows):
    if not rows:
        return []
    cells = [head, ["---"] * len(head)] + [[plain(cell) for cell in row] + [""] * (len(head) - len(row)) for row in rows]
    return ["", title, ""] * bool(title) + [""] * (not title) + ["| " + " | ".join(row) + " |" for row in cells]


def judged(row, key, profile="blind"):
    """`+3.1 %`, and `miss` where the forecast's interval does not hold what was measured."""
    q = row.get("forecast", {}).get(profile, {}).get(key, {})
    return "" if "error" not in q else percent(q["error"]) + ("" if q["hit"] else " miss")


def clocks(row):
    """Median clock, power and temperature while it ran; the least clock where it was throttled."""
    c = row.get("clocks")
    if not c:
        return ""
    least, median, _ = c["sm_mhz"]
    return (f"{median:.0f}" + (f" (from {least:.0f})" if least < 0.98 * median else "")
            + f" MHz, {c['power_w'][1]:.0f} W, {c['temperature_c'][1]:.0f} C")


def unfinished(row):
    return [row["name"], f"{row['status']}: {row.get('reason', '')}"]


def plan_rows(plans):
    for p in plans:
        if p["status"] != "ok":
            yield unfinished(p)
            continue
        expected = p.get("forecast", {}).get("calibrated") or p.get("forecast", {}).get("blind") or {}
        yield [p["name"], f"{p['step_s']:.4f}", judged(p, "step_s"), judged(p, "step_s", "calibrated"),
               ms(p["exposed_communication_s"]), ms(expected.get("exposed_communication_s", {}).get("value")),
               gib(p["peak_allocated_bytes"]), judged(p, "peak_allocated_bytes"), gib(p["peak_reserved_bytes"]),
               judged(p, "peak_reserved_bytes"), f"{p['tokens_per_s_per_gpu']:.0f}", f"{p['mfu']:.3f}", p.get("issue_us") or "",
               clocks(p) + (f"; {p['reason']}" if "reason" in p else "")]


def kind_rows(rows):
    """Per kind of event, of every case that was validated."""
    for row in rows:
        verdict = row.get("validation", row)
        for k in (verdict.get("by_kind") or []) if row["status"] == "ok" else []:
            yield [row["name"], k["kind"], k["count"], ms(k["predicted_s"]), ms(k["measured_s"]),
                   "" if not k["measured_s"] else percent(k["predicted_s"] / k["measured_s"] - 1)]


def fsdp2_rows(rows):
    for r in rows:
        if r["status"] != "ok":
            yield unfinished(r)
            continue
        yield [r["name"], f"{r['step_s']:.4f}", judged(r, "step_s"), judged(r, "step_s", "calibrated"),
               f"{r['tokens_per_s_per_gpu']:.0f}", gib(r.get("peak_allocated_bytes")), judged(r, "peak_allocated_bytes"),
               gib(r.get("peak_reserved_bytes")), judged(r, "peak_reserved_bytes"),
               clocks(r) + (f"; {r['validation']['reason']}" if "reason" in r.get("validation", {}) else "")]


def beside_rows(plans, fsdp2):
    """The best of each side's attention kernels and compilation."""
    ours, theirs = ({row["name"]: row for row in rows if row["status"] == "ok"} for rows in (plans, fsdp2))
    for name, a, b in BESIDE:
        a, b = [ours[p] for p in a if p in ours], [theirs[r] for r in b if r in theirs]
        if not (a and b):
            continue
        fast, other = (max(rows, key=lambda row: row["tokens_per_s_per_gpu"]) for rows in (a, b))
        x, y = fast["tokens_per_s_per_gpu"], other["tokens_per_s_per_gpu"]
        m, n = fast["peak_allocated_bytes"], other.get("peak_allocated_bytes")
        yield [name, f"{x:.0f}", f"{y:.0f}", f"{x / y:.2f}", gib(m), gib(n), f"{m / n:.2f}" if n else ""]


def held_rows(rows):
    """Of every quantity: how many intervals hold what was measured, and the median error."""
    for key in ("step_s", "exposed_communication_s", "peak_allocated_bytes", "peak_reserved_bytes"):
        for profile in ("blind", "calibrated"):
            found = [q for row in rows if "error" in (q := row.get("forecast", {}).get(profile, {}).get(key, {}))]
            if found:
                errors = sorted(abs(q["error"]) for q in found)
                yield [key, profile, f"{sum(q['hit'] for q in found)} of {len(found)}",
                       f"{100 * errors[len(errors) // 2]:.1f} %", f"{100 * errors[-1]:.1f} %"]


def summary(out, record):
    """What a person reads first."""
    lines = [f"# Round on {record['device']} ({record['created']})", ""]
    lines += [f"`{visit['command']}`" for visit in record["visits"]]
    lines += table("", ["stage", "status", "seconds", ""],
                   [[s["name"], s["status"], s.get("seconds", ""), s.get("detail", "")] for s in record["stages"]])
    checks = (read_json(out / "self_check.json") or {}).get("checks", [])
    lines += table("", ["check", "status", ""], [[c["check"], c["status"], c["detail"]] for c in checks])
    plans, fsdp2 = read_rows(out / "plans.jsonl"), read_rows(out / "fsdp2.jsonl")
    lines += table("The engine. Forecast against measurement (error = forecast / measured - 1; `miss`: outside the 90 % interval); "
                   "blind: with the profile that is shipped, calibrated: with this machine's measurements:",
                   ["plan", "step s", "blind", "calibrated", "exposed ms", "forecast", "allocated GiB", "blind", "reserved GiB",
                    "blind", "tokens/s per GPU", "MFU", "host issue us", "clocks"], list(plan_rows(plans)))
    lines += table("PyTorch's FSDP2 on the same GPU (its forecast holds the network of a real cluster, so steps are compared at "
                   "world 1 only):",
                   ["configuration", "step s", "blind", "calibrated", "tokens/s per GPU", "allocated GiB", "blind", "reserved GiB",
                    "blind", "clocks"], list(fsdp2_rows(fsdp2)))
    lines += table("The engine beside FSDP2, the best of each side's attention kernels and compilation:",
                   ["", "tokens/s", "FSDP2", "ratio", "peak allocated GiB", "FSDP2", "ratio"], list(beside_rows(plans, fsdp2)))
    lines += table("Intervals (90 %) that hold what was measured, median and largest error:",
                   ["quantity", "profile", "held", "median", "largest"], list(held_rows(plans + fsdp2)))
    lines += table("Events by kind:", ["case", "kind", "events", "forecast ms", "measured ms", "error"],
                   list(kind_rows(plans + fsdp2)))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":  # round_summary.py ROUND: of one that is kept
    folder = pathlib.Path(sys.argv[1])
    print(summary(folder, read_json(folder / "round.json")), end="")
