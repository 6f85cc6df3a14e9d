"""How pages are laid out, at the widths of a telephone, a tablet and a desk: the verdict first, no scrolling
sideways, no text over another. page_layout_test.py PROGRAM; exit 77 where there is no Chromium.
"""

import copy
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import page_support as support  # noqa: E402
from page_support import JOB, ROOT, TEXT, document_of, path, run, some_steps  # noqa: E402

RUN = ["--plan", ROOT + "/tests/interop/traces/plan.yaml", "--profile", ROOT + "/tests/fuzz/corpus/local_profile/two_ranks.json",
       "--run", ROOT + "/tests/interop/traces/fsdp2_cpu", "--no-history"]
SMALL = ["--model", "gpt2", "--cluster", "8xa100"]
WIDTHS = (390, 820, 1400)

# name: (arguments, the section that has to be the first, the element of its verdict)
PAGES = {
    "report": (["report", *JOB], "verdict", "fits"),
    "does_not_fit": (["predict", "--model", "llama-3.1-70b", "--cluster", "8xh100"], "verdict", "fits"),
    "one_gpu": (["report", "--model", "gpt2", "--cluster", "1xa100"], "verdict", "fits"),
    "search": (["search", *JOB], "verdict", "fits"),
    "search_none": (["search", "--model", "llama-3.1-405b", "--cluster", "8xh100"], "verdict", "fits"),
    "recommend": (["recommend", "--model", "gpt2", "--tokens", "1T", "--deadline", "30d", "--budget", "2M", "--gpus", "8,16"], "buy", "meets"),
    "recommend_none": (["recommend", "--model", "llama-3.1-405b", "--tokens", "1B", "--cluster", "8xa100"], "buy", "meets"),
    "recommend_one": (["recommend", "--model", "gpt2", "--tokens", "10B", "--cluster", "8xa100", "--deadline", "1h"], "buy", "meets"),
    "scale": (["scale", "--model", "llama-3.1-8b", "--cluster", "h100"], "scale", "knee"),
    "scale_one": (["scale", "--model", "gpt2", "--cluster", "a100", "--gpus", "8", "--global-batch", "64"], "scale", "knee"),
    "validate": (["validate", *RUN], "validation", "passed"),
    "accuracy": (["accuracy", some_steps()], "accuracy", "accuracy-verdict"),
}


class LayoutTest(support.PageCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for name, (arguments, _, _) in PAGES.items():
            run(*arguments, "--html", path(name + ".html"), codes=(0, 3, 4, 5))

    def resize(self, width):
        """To another width, at which the page draws its charts anew, all at once."""
        self.page.value(f"void (window.before = innerWidth === {width} ? null : document.querySelector('section :is(svg, canvas)'))")
        self.page.size(width, 900)
        self.page.value("new Promise(done => { const wait = () => before?.isConnected ? setTimeout(wait, 20) : done(); wait(); })")

    def check_layout(self, name, width):
        self.resize(width)
        self.assertLessEqual(self.page.value("document.documentElement.scrollWidth"), width, f"{name} at {width}")
        self.assertEqual(self.page.value(self.COLLISIONS), [], f"{name} at {width}")
        wide = self.page.value("[...document.querySelectorAll('svg, canvas, .headline, nav')]"
                               ".filter(e => e.getBoundingClientRect().right > innerWidth).length")
        self.assertEqual(wide, 0, f"{name} at {width}: what does not fit the width")
        self.assertEqual(self.page.problems, [])

    def test_verdict_first_all_within_the_width_and_no_label_over_another(self):
        for name, (_, section, verdict) in PAGES.items():
            with self.subTest(page=name):
                self.open(name + ".html", width=390)
                self.assertEqual(self.page.value("document.querySelector('section').id"), section)
                first = "document.querySelector('section > div').firstElementChild"
                self.assertTrue(self.page.value(f"{first}.matches('.headline') && {first}.contains(document.getElementById('{verdict}'))"))
                # On a telephone's screen at once.
                self.assertLess(self.page.value(f"document.getElementById('{verdict}').getBoundingClientRect().bottom"), 300)
                self.check_numbers(document_of(path(name + ".html")))
                for width in WIDTHS:
                    self.check_layout(name, width)

    def test_the_verdict_says_the_figures(self):
        def headline(name):
            self.open(name + ".html")
            return self.page.value("document.querySelector('.headline').textContent")

        memory = document_of(path("report.html"))["views"][0]["report"]["memory"]
        self.assertEqual(headline("report"), f"Fits with {TEXT['odds'](memory['fit_probability'])}: {TEXT['B'](memory['margin_bytes'])} to spare"
                         f" of {TEXT['B'](memory['capacity_bytes'])} per GPU")
        memory = document_of(path("does_not_fit.html"))["views"][0]["report"]["memory"]
        self.assertEqual(headline("does_not_fit"), f"Does not fit: {TEXT['B'](-memory['margin_bytes'])} more than the"
                         f" {TEXT['B'](memory['capacity_bytes'])} per GPU that there are")
        choice = document_of(path("recommend.html"))["recommend"]["choices"][0]
        said = headline("recommend")
        for part in (choice["cluster"], TEXT["odds"](choice["probability"]), TEXT["dollars"](choice["dollars"]["value"])):
            self.assertIn(part, said)
        validation = document_of(path("validate.html"))["validation"]
        self.assertIn("Passed" if validation["passed"] else f"Failed: step time {TEXT['change'](validation['step_error'])}", headline("validate"))
        self.assertIn("not measured", self.page.value("document.getElementById('validation').textContent"))

    def test_where_nothing_fits_the_way_on_is_said_as_the_command_says_it(self):
        for name, verb in (("does_not_fit", "predict"), ("search_none", "search")):
            self.open(name + ".html")
            arguments = PAGES[name][0]
            infeasible = json.loads(run(*arguments, "--json", codes=(4,)))["infeasible"]
            said = self.page.value("document.getElementById('advice').textContent")
            text = " ".join(run(*arguments, codes=(4,)).split())
            self.assertIn(said[1:], text, verb)
            for key, value in ((infeasible["remedy"] or {}).get("set") or {}).items():
                self.assertIn(f"{key}={value}", said)
        self.open("recommend_none.html")
        said = self.page.value("document.getElementById('advice').textContent")
        for rejected in document_of(path("recommend_none.html"))["recommend"]["rejected"]:
            self.assertIn(f"{rejected['cluster']}: {rejected['reason']}", said)

    def test_a_faster_but_riskier_plan_is_named_second(self):
        answer = json.loads(run("search", *JOB, "--json"))
        answer["riskier"] = copy.deepcopy(answer["best"])
        answer["riskier"]["report"]["memory"]["fit_probability"] = 0.61
        answer["riskier"]["report"]["step"]["seconds"]["value"] *= 0.9
        with open(path("riskier.json"), "w", encoding="utf-8") as file:
            json.dump(answer, file)
        run("report", path("riskier.json"), "--html", path("riskier.html"))
        self.open("riskier.html", width=390)
        said = self.page.value("document.getElementById('searched').textContent")
        self.assertIn(f"{TEXT['s'](answer['riskier']['report']['step']['seconds']['value'])} per step, fits with 61 %", said)
        self.assertIn(f"shard {answer['best']['plan']['mesh']['shard']} × replicate", said)
        self.check_numbers(document_of(path("riskier.html")))
        self.check_layout("riskier", 390)

    def test_many_machines_are_told_apart_by_grey_and_by_names(self):
        recommend = document_of(path("recommend.html"))["recommend"]
        self.open("recommend.html")
        machines = {c["machine"] for c in recommend["choices"]}
        self.assertGreater(len(machines), 30)
        drawn = self.page.value("[...document.querySelectorAll('.machine')].map(g => [g.dataset.machine, g.matches('.lit'), getComputedStyle(g).color])")
        self.assertEqual({m for m, _, _ in drawn}, machines)
        lit = {m: colour for m, on, colour in drawn if on}
        self.assertIn(recommend["choices"][0]["machine"], lit)
        self.assertLessEqual(len(lit), 6)
        self.assertEqual(len(set(lit.values())), len(lit))  # no colour twice
        grey = {colour for _, on, colour in drawn if not on}
        self.assertEqual(len(grey), 1)
        self.assertFalse(grey & set(lit.values()))
        labels = self.page.value("[...document.querySelectorAll('#sizes svg text')].map(t => t.textContent)")
        for machine in lit:
            self.assertIn(f"● {machine}", labels)
        # Another is chosen: it is in colour, and has its name.
        other = next(m for m in sorted(machines) if m not in lit)
        self.page.value(f"[...document.querySelectorAll('#sizes button')].find(b => b.textContent === '{other}').click()")
        self.assertTrue(self.page.value(f"document.querySelector('[data-machine=\"{other}\"]').matches('.lit')"))
        self.assertIn(f"● {other}", self.page.value("[...document.querySelectorAll('#sizes svg text')].map(t => t.textContent)"))

    def test_memory_of_plans_is_all_that_has_to_fit(self):
        document = document_of(path("search.html"))
        memory = document["views"][0]["report"]["memory"]
        self.assertEqual(memory["total_bytes"], memory["capacity_bytes"] - memory["margin_bytes"])
        self.open("search.html")
        for i, point in enumerate(document["search"]["pareto"]):
            self.assertGreater(point["total_bytes"], point["peak_allocated_bytes"])
            memory = document["views"][point["view"]]["report"]["memory"]
            self.assertEqual(point["total_bytes"], memory["total_bytes"])
            self.assertEqual(self.page.value(f"totalOf(doc.search.pareto[{i}])"), point["total_bytes"])

    def test_charts_are_drawn_anew_where_the_window_changes(self):
        self.open("report.html", width=1400)
        self.resize(390)
        self.assertLess(self.page.value("document.querySelector('svg').viewBox.baseVal.width"), 400)
        self.assertEqual(self.page.value(self.COLLISIONS), [])
        self.assertLessEqual(self.page.value("document.documentElement.scrollWidth"), 390)

    def test_long_names_and_empty_cases(self):
        """Names of any length, intervals of no width, values that are all the same."""
        long = "a-machine-whose-name-is-far-too-long-for-any-margin-of-a-chart" * 2
        document = document_of(path("recommend.html"))
        document["title"] = "What to buy for " + long
        choices = document["recommend"]["choices"] = copy.deepcopy(document["recommend"]["choices"][:40])
        for i, choice in enumerate(choices):
            choice["machine"] = f"{long}-{i % 20}"
            choice["cluster"] = f"{choice['gpus']}x{choice['machine']}"
            for key in ("days", "dollars", "tokens_per_s"):
                choice[key] = dict(choices[0][key], low=choices[0][key]["value"], high=choices[0][key]["value"])
        for change in document["recommend"]["what_if"]:
            change["worth_usd_per_gpu_hour"] = 0
            change["property"] = long
        for factor in document["sensitivity"]["factors"]:
            factor.update(factor=long, low_s=document["sensitivity"]["step_s"], high_s=document["sensitivity"]["step_s"])
        document["recommend"]["machines"] = [{"machine": c["machine"], "smallest_gpus": None, "knee_gpus": None} for c in choices]
        with open(path("long.json"), "w", encoding="utf-8") as file:
            json.dump(document, file)
        run("report", path("long.json"), "--html", path("long.html"))
        self.open("long.html", width=390)
        for width in WIDTHS:
            self.check_layout("long", width)


if __name__ == "__main__":
    support.main(__doc__)
