"""Drives the pages of other verbs (predict, search, recommend, scale, validate, accuracy) in a
headless Chromium. page_answers_test.py PROGRAM; exit 77 where there is no Chromium.
"""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import page_support as support  # noqa: E402
from page_support import JOB, document_of, path, run, some_steps  # noqa: E402


class AnswersTest(support.PageCase):
    def test_predict_and_search_write_pages(self):
        for verb, blocks in (("predict", {"verdict", "timeline-block", "waterfall"}), ("search", {"search", "pareto", "why"})):
            run(verb, *JOB, "--html", path(verb + ".html"))
            self.open(verb + ".html")
            self.assertLessEqual(blocks, set(self.page.value("blocks.map(b => b.id)")))
            self.check_numbers(document_of(path(verb + ".html")))

    def test_a_plan_that_does_not_fit_says_so(self):
        run("predict", "--model", "llama-3.1-70b", "--cluster", "8xh100", "--html", path("large.html"), codes=(4,))
        self.open("large.html")
        self.assertEqual(self.page.value("document.getElementById('fits').textContent"), "Does not fit")
        self.check_numbers(document_of(path("large.html")))

    def test_answers_of_other_verbs_become_pages(self):
        for verb in ("predict", "explain", "search"):
            with open(path(verb + ".json"), "w", encoding="utf-8") as file:
                file.write(run(verb, *JOB, "--json"))
            run("report", path(verb + ".json"), "--html", path(verb + "_answer.html"))
            self.open(verb + "_answer.html")
            self.check_numbers(document_of(path(verb + "_answer.html")))

    RECOMMEND = ["recommend", "--model", "gpt2", "--tokens", "10B", "--cluster", "a100", "--gpus", "8,16,32", "--cluster",
                 "8xh100", "--batch-tokens", "512k", "--deadline", "3d"]
    SCALE = ["scale", "--model", "gpt2", "--cluster", "a100", "--gpus", "8,16,32,64", "--global-batch", "64"]

    def check_answer_page(self, asked, name, blocks):
        """Its numbers, names, width and schema; the page of its JSON is the same. Returns the document."""
        answer = json.loads(run(*asked, "--json", "--html", path(name + ".html")))
        document = document_of(path(name + ".html"))
        self.assertEqual(document["command"].split(" --")[0], "foreshard " + name)
        for key, value in answer.items():
            if key not in ("schema", "tool", "created", "host", "sensitivity"):
                self.assertEqual(document[name][key], value, key)
        self.assertEqual(document["sensitivity"], answer["sensitivity"])
        with open(path(name + ".json"), "w", encoding="utf-8") as file:
            json.dump(answer, file)
        run("report", path(name + ".json"), "--html", path(name + "_answer.html"))
        again = document_of(path(name + "_answer.html"))
        self.assertEqual({k: v for k, v in again.items() if k != "command"},
                         {k: v for k, v in document.items() if k != "command"})
        try:
            import jsonschema
            jsonschema.Draft7Validator(json.loads(run("schema", "page"))).validate(document)
        except ImportError:
            pass
        self.open(name + ".html")
        self.assertEqual(self.page.value("blocks.map(b => b.id)"), blocks)
        self.check_numbers(document)
        self.page.call("Accessibility.enable")
        for node in self.page.call("Accessibility.getFullAXTree")["nodes"]:
            properties = {p["name"]: p["value"].get("value") for p in node.get("properties", [])}
            role = node.get("role", {}).get("value")
            if properties.get("focusable") and role not in ("RootWebArea", "main", "generic", "LayoutTable"):
                self.assertTrue(node.get("name", {}).get("value"), role)
        self.page.call("Accessibility.disable")
        return document

    def test_what_to_buy(self):
        document = self.check_answer_page(
            self.RECOMMEND, "recommend", ["buy", "cost-time", "choices", "sizes", "worth", "sensitivity", "terms", "reproduce"])
        choices = document["recommend"]["choices"]
        self.assertEqual(len(choices), 4)
        shown = self.check_numbers(document)
        for pointer in ("/recommend/choices/0/days/value", "/recommend/choices/3/dollars/low", "/recommend/choices/1/probability",
                        "/recommend/what_if/0/worth_usd_per_gpu_hour", "/recommend/machines/0/smallest_gpus",
                        "/sensitivity/changed/0/seconds", "/recommend/choices/0/price/usd_per_gpu_hour/value"):
            self.assertIn(pointer, shown)
        meets = "Meets the terms" if choices[0]["meets_deadline"] and choices[0]["within_budget"] else "Too late"
        self.assertEqual(self.page.value("document.getElementById('meets').textContent"), meets)
        # The line of the chart: no other choice is both sooner and cheaper.
        points = [(c["days"]["value"], c["dollars"]["value"]) for c in choices]
        front = {i for i, (d, c) in enumerate(points) if not any((a, b) != (d, c) and a <= d and b <= c for a, b in points)}
        self.assertEqual(set(self.page.value("undominated(doc.recommend.choices.map((c, i) => ({i, days: c.days.value, "
                                             "dollars: c.dollars.value}))).map(d => d.i)")), front)
        # A row of the table, and a mark by keyboard, show their choice.
        self.page.click("#choices [data-choice='2']")
        self.assertEqual(self.page.value("document.getElementById('choice-shown').textContent"), choices[2]["cluster"])
        self.assertIn("/recommend/choices/2/step_s/value", self.check_numbers(document))
        self.assertEqual(json.loads(self.page.value("document.querySelector('#buy pre.plan').textContent")), choices[2]["plan"])
        self.page.value("document.querySelector('circle.choice[data-choice=\"1\"]').focus()")
        self.page.key("Enter")
        self.assertEqual(self.page.value("document.getElementById('choice-shown').textContent"), choices[1]["cluster"])

    def test_what_would_meet_the_terms(self):
        run(*self.RECOMMEND[:-1], "1min", "--html", path("late.html"), codes=(4,))
        document = document_of(path("late.html"))
        self.open("late.html")
        self.assertEqual(self.page.value("document.getElementById('meets').textContent"), "Too late")
        self.assertEqual(self.page.value("document.querySelectorAll('#would-meet li').length"), len(document["recommend"]["would_meet"]))
        self.check_numbers(document)
        run("recommend", "--model", "llama-3.1-405b", "--tokens", "1B", "--cluster", "8xa100", "--html", path("none.html"), codes=(4,))
        self.open("none.html")
        self.assertEqual(self.page.value("document.getElementById('meets').textContent"), "No candidate can run it")
        self.assertEqual(self.page.value("blocks.map(b => b.id)"), ["buy", "choices", "terms", "reproduce"])

    def test_how_it_scales(self):
        document = self.check_answer_page(self.SCALE, "scale", ["scale", "curve", "shares", "points", "sensitivity", "reproduce"])
        points, knee = document["scale"]["points"], document["scale"]["knee_gpus"]
        rates = [p["tokens_per_s"]["value"] for p in points]
        bends = [p["gpus"] for p, more in zip(points, [b / a for a, b in zip(rates, rates[1:])]) if more < 1.6]
        self.assertEqual(knee, bends[0] if bends else points[-1]["gpus"])
        self.assertEqual("Scales to" in self.page.value("document.getElementById('knee').textContent"), bool(bends))
        self.assertEqual(self.page.value("document.querySelectorAll('circle[data-point]').length"), len(points))
        self.assertEqual(document["sensitivity"]["gpus"], knee)

    def test_a_run_stands_beside_its_forecast(self):
        # A real FSDP2 job on CPU ranks against a made-up profile of another machine.
        tests = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
        job = ["--plan", tests + "/interop/traces/plan.yaml", "--profile", tests + "/fuzz/corpus/local_profile/two_ranks.json",
               "--run", tests + "/interop/traces/fsdp2_cpu"]
        run("validate", *job, "--no-history", "--html", path("validated.html"), codes=(5,))
        document = document_of(path("validated.html"))
        self.open("validated.html")
        shown = self.check_numbers(document)
        self.assertIn("/validation/step/measured_s", shown)
        self.assertEqual(self.page.value("document.getElementById('passed').textContent"), "Failed")
        scatter = document["validation"]["scatter"]
        both = [i for i, p in enumerate(scatter["predicted_s"]) if p > 0 and scatter["measured_s"][i] > 0]
        dots = "[...document.querySelectorAll('#validation circle[data-event]')]"
        self.assertEqual(sorted(self.page.value(dots + ".map(d => Number(d.dataset.event))")), both)
        event = self.page.value(f"Number({dots}[7].dataset.event)")
        self.page.value(f"{dots}[7].focus()")
        self.page.key("Enter")
        self.assertEqual(self.page.value("state.event"), event)
        self.assertEqual(self.page.value("document.getElementById('event-name').textContent"), scatter["name"][event])
        worst = document["validation"]["worst"][0]
        self.page.click("#validation table button")
        self.assertEqual(self.page.value("state.event"), worst["id"])
        self.assertEqual(self.page.value("document.getElementById('event-name').textContent"), worst["name"])
        # The measured step can be looked at as the forecast can.
        measured = document["validation"]["view"]
        self.page.value(f"show({measured})")
        self.assertEqual(self.page.value("chart.t.period"),
                         document["timelines"][document["views"][measured]["timeline"]]["period_ns"])
        self.check_numbers(document)

    def test_accuracy_of_a_table(self):
        run("accuracy", some_steps(), "--html", path("accuracy.html"), codes=(0, 3, 5))
        document = document_of(path("accuracy.html"))
        self.open("accuracy.html")
        self.check_numbers(document)
        columns = document["accuracy"]["columns"]
        scored = [i for i, reason in enumerate(columns["reason"]["column"])
                  if columns["reason"]["words"][reason] == "" and columns["measured"][i] > 0 and columns["predicted"][i] > 0]
        self.assertEqual(len(scored), document["accuracy"]["summary"]["scored"])
        self.assertEqual(self.page.value("document.querySelectorAll('[data-row]').length"), len(scored))
        self.assertLess(os.path.getsize(path("accuracy.html")), 600_000)
        group = self.page.value("[...document.querySelectorAll('#accuracy table button')][0].textContent")
        self.page.click("#accuracy table button")
        by = self.page.value("accuracyState.by")
        grouped = columns["groups"][by]
        alone = [i for i in scored if grouped["words"][grouped["column"][i]] == group]
        self.assertEqual(self.page.value("document.querySelectorAll('[data-row]').length"), len(alone))


if __name__ == "__main__":
    support.main(__doc__)
