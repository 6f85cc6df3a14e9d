#!/usr/bin/env python3
"""What search chooses, over models x clusters x batches: how sure each winner is to fit, whether
predict says the same of it, and what is said where nothing holds; and what predict says where a
model of the zoo does not fit. Writes reports/choices.md.
Usage, from the repository's root:

    reports/choices.py [build/bin/foreshard]
"""

import itertools
import json
import os
import statistics
import sys
import tempfile

from ask import ask

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "build/bin/foreshard"
OUT = "reports/choices.md"

MODELS = ["llama-3.1-8b", "llama-2-13b", "llama-3.1-70b", "llama-3.1-405b", "mixtral-8x7b", "qwen2.5-7b",
          "gpt3-175b", "mpt-30b"]
CLUSTERS = ["8xh100", "64xh100", "512xh100", "64xb200", "64xa100-40gb", "64xmi300x", "16xh200"]
SEQUENCES_PER_GPU = [1, 4, 8, 32]
CONFIDENCE = 0.95


def figures(report):
    memory = report["memory"]
    return (report["step"]["seconds"]["value"], memory["peak_reserved_bytes"]["value"], memory["fits"],
            memory["fit_probability"])


def ways():
    """How often the zoo's models fit as they come, and how often a way is named where not."""
    fits, helped, in_vain = 0, 0, []
    names = [model["name"] for model in ask(PROGRAM, "models")["models"]]
    for name, gpus, gpu in itertools.product(names, [8, 64, 512], ["h100", "b200", "mi300x"]):
        told = ask(PROGRAM, "predict", "--model", name, "--cluster", f"{gpus}x{gpu}")
        if not told.get("infeasible"):
            fits += 1
        elif told["infeasible"]["remedy"]:
            helped += 1
        else:
            in_vain.append(f"{name} on {gpus}x{gpu}")
    return fits, helped, in_vain


def main():
    winners, differing, without_a_way, none, riskier = [], [], [], 0, []
    searches, seconds = 0, []
    with tempfile.TemporaryDirectory() as folder:
        plan = os.path.join(folder, "best.yaml")
        for model, cluster, each in itertools.product(MODELS, CLUSTERS, SEQUENCES_PER_GPU):
            searches += 1
            gpus = int(cluster.split("x")[0])
            name = f"{model} on {cluster}, {each} sequences a GPU"
            found = ask(PROGRAM, "search", "--model", model, "--cluster", cluster, "--global-batch", gpus * each, "--out", plan)
            seconds.append(found["seconds"])
            if found["best"] is None:
                none += 1
                remedy = found["infeasible"]["remedy"]
                if remedy is None:
                    without_a_way.append(name)
                elif remedy["fit_probability"] < CONFIDENCE:
                    without_a_way.append(name + ": " + json.dumps(remedy["set"]))
                continue
            best = figures(found["best"]["report"])
            winners.append((best[3], name))
            predicted = ask(PROGRAM, "predict", "--plan", plan)
            if figures(predicted) != best:
                differing.append(f"{name}: {best} {figures(predicted)}")
            if found["riskier"]:
                bold = figures(found["riskier"]["report"])
                riskier.append((1 - bold[0] / best[0], bold[3], name))
    least, where = min(winners)
    lines = ["# What search chooses", "",
             "Searches over models x clusters x batches, and `predict --plan` of each winner. "
             "Written by `reports/choices.py`.", "",
             "| what | |", "|---|---|",
             f"| searches | {searches} |",
             f"| winners | {len(winners)} |",
             f"| winners that fit with 95 % or more | {sum(p >= CONFIDENCE for p, _ in winners)} |",
             f"| the least sure | {100 * least:.1f} % ({where}) |",
             f"| of which predict says another step, memory or probability | {len(differing)} |",
             f"| nothing holds | {none} |",
             f"| of which without a way | {len(without_a_way)} |",
             f"| a faster plan that is riskier is named | {len(riskier)} |"]
    if riskier:
        gains = [gain for gain, _, _ in riskier]
        lines += [f"| which gains, median and most | {100 * statistics.median(gains):.1f} %, "
                  f"{100 * max(gains):.1f} % |",
                  f"| and fits with, median | {100 * statistics.median(p for _, p, _ in riskier):.0f} % |"]
    lines += [f"| seconds of a search, median and most | {statistics.median(seconds):.2f}, {max(seconds):.2f} |"]
    fits, helped, in_vain = ways()
    lines += ["", "`predict` of every model of the zoo on 8, 64 and 512 GPUs of H100, B200 and MI300X, with the "
              "plan that comes by itself:", "", "| what | |", "|---|---|",
              f"| predictions | {fits + helped + len(in_vain)} |",
              f"| do not fit, and a way is named | {helped} |",
              f"| do not fit, and none is | {len(in_vain)} |"]
    for what, list_ in (("predict says another", differing), ("no way is named", without_a_way + in_vain)):
        if list_:
            lines += ["", f"{what}:", ""] + [f"- {one}" for one in list_]
    with open(OUT, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines))


main()
