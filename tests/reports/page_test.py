"""Drives the HTML report in a headless Chromium as a reader would, and holds what it shows against the
JSON. page_test.py PROGRAM [--picture FILE]; exit 77 where there is no Chromium.
"""

import json
import math
import os
import re
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import browser  # noqa: E402
import page_support as support  # noqa: E402
from page_support import JOB, TEXT, document_of, path, run  # noqa: E402


# --- the timeline's columns, decoded a second time (encoding: reports/page/page_timeline.cpp) ---

class Timeline:
    def __init__(self, raw):
        c, end_of = raw["columns"], {}
        self.raw, self.start, self.end, self.stream = raw, [], [], []
        for i in range(raw["events"]):
            stream = raw["sorts"][c["sort"][i]]["stream"]
            start = end_of.get(stream, 0) + c["start"][i]
            end = start + c["arrive"][i] + c["length"][i]
            end_of[stream] = end
            self.start.append(start)
            self.end.append(end)
            self.stream.append(stream)

    def name(self, i):
        c = self.raw["columns"]
        place = self.raw["places"][c["place"][i]]
        return self.raw["sorts"][c["sort"][i]]["kind"] + (f" {place}" if place else "") + self.raw["tails"][c["tail"][i]]

    def chain(self, i):
        by = self.raw["columns"]["by"]
        chain = [i]
        while by[chain[-1]]:
            chain.append(chain[-1] - by[chain[-1]])
        return chain


class ReportTest(support.PageCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        run("report", *JOB, "--html", path("report.html"))
        cls.document = document_of(path("report.html"))

    def test_numbers_shown_are_those_of_the_json(self):
        self.open()
        shown = self.check_numbers(self.document)
        for pointer in ("/views/0/report/step/seconds/value", "/views/0/report/memory/margin_bytes",
                        "/search/heatmap/12/seconds", "/scaling/points/0/tokens_per_s",
                        "/operations/operations/0/total_s", "/sensitivity/halved/0/seconds"):
            self.assertIn(pointer, shown)
        self.assertGreater(len(shown), 300)

    def test_the_json_of_the_page_is_what_the_verbs_say(self):
        predicted = json.loads(run("predict", *JOB, "--json"))
        report = self.document["views"][0]["report"]
        for key in report:
            self.assertEqual(report[key], predicted[key], key)
        explained = json.loads(run("explain", *JOB, "--json"))
        self.assertEqual(self.document["views"][0]["waterfall"], explained["waterfall"])
        searched = json.loads(run("search", *JOB, "--json", "--html", path("search.html")))  # which asks every mesh, too
        search = self.document["search"]
        for key in ("enumerated", "rejected_memory", "simulated"):
            self.assertEqual(search[key], searched[key])
        self.assertEqual([c["seconds"] for c in search["heatmap"]], [c["seconds"] for c in searched["heatmap"]])
        self.assertEqual([p["seconds"] for p in search["pareto"]],
                         [p["report"]["step"]["seconds"]["value"] for p in searched["pareto"]])

    def test_the_document_keeps_to_its_schema(self):
        try:
            import jsonschema
        except ImportError:
            self.skipTest("no python3-jsonschema")
        jsonschema.Draft7Validator(json.loads(run("schema", "page"))).validate(self.document)

    def test_bars_of_the_waterfall_are_the_step(self):
        for view in self.document["views"]:
            total = sum(bar["nanoseconds"] for bar in view["waterfall"])
            self.assertEqual(total, round(view["report"]["step"]["seconds"]["value"] * 1e9))

    def test_a_cell_of_the_heatmap_selects_what_the_blocks_show(self):
        self.open()
        cells = self.document["search"]["heatmap"]
        now = self.document["selected"]
        other = next(i for i, c in enumerate(cells)
                     if c["view"] not in (None, now) and c["shard"] == 8
                     and self.document["views"][c["view"]]["timeline"] is not None)  # not left out for its size
        view = cells[other]["view"]
        before = self.page.value("timelineOf(state.view).period")
        self.page.click(f"#heatmap [data-cell='{other}']")
        self.assertEqual(self.page.value("state.view"), view)
        report = self.document["views"][view]["report"]
        period = round(report["step"]["seconds"]["value"] * 1e9)
        self.assertNotEqual(before, period)
        self.assertEqual(self.page.value("chart.t.period"), period)
        self.assertEqual(report["plan"]["mesh"]["shard"], 8)
        self.assertEqual(report["step"]["seconds"]["value"], cells[other]["seconds"])
        shown = self.check_numbers(self.document)
        self.assertIn(f"/views/{view}/report/step/seconds/value", shown)
        self.assertNotIn("/views/0/report/step/seconds/value", shown)
        self.assertIn("shard: 8", self.page.value("document.getElementById('plan-yaml').textContent"))
        pressed = self.page.value("[...document.querySelectorAll('#heatmap [aria-pressed=true]')]"
                                  ".map(b => Number(b.dataset.view))")
        self.assertEqual(set(pressed), {view})
        # And a mark of the Pareto chart, by keyboard.
        point = self.document["search"]["pareto"][-1]
        self.page.value("document.querySelectorAll('circle.pareto')[%d].focus()"
                        % (len(self.document["search"]["pareto"]) - 1))
        self.page.key("Enter")
        self.assertEqual(self.page.value("state.view"), point["view"])

    def test_any_two_axes_of_a_search_over_them(self):
        run("search", "--model", "llama-3.2-1b", "--cluster", "4xh100", "--sequence", "8192", "--vary", "axes",
            "--html", path("axes.html"))
        meshes = document_of(path("axes.html"))["search"]["meshes"]
        self.open("axes.html")
        for rows, columns in (("tp", "cp"), ("cp", "ep")):
            self.page.value(f"for (const [i, key] of ['{rows}', '{columns}'].entries()) {{ const pick = document.getElementById("
                            "`axes-${i}`); pick.value = key; pick.dispatchEvent(new Event('change')); }")
            shown = self.page.value("[...document.querySelectorAll('#axes-map .tile')].length")
            self.assertEqual(shown, len({(m[rows], m[columns]) for m in meshes if m["seconds"] is not None}))

    def test_a_click_on_an_event_shows_why_it_began_when_it_did(self):
        self.open()
        timeline = Timeline(self.document["timelines"][self.document["views"][0]["timeline"]])
        event = next(i for i in range(timeline.raw["events"] - 1, 0, -1)
                     if timeline.name(i).startswith("backward layers.3"))
        self.page.value("document.getElementById('timeline').scrollIntoView({block: 'center', behavior: 'instant'})")
        x, y = self.page.value(f"""(() => {{
            const box = chart.canvas.getBoundingClientRect();
            const lane = chart.t.lanes.findIndex(l => l.name === 'compute');
            const share = ({(timeline.start[event] + timeline.end[event]) / 2} - chart.from) / (chart.to - chart.from);
            return [box.x + labelWidth + share * (box.width - labelWidth - 8), box.y + (lane + 0.5) * laneHeight]; }})()""")
        self.page.click_at(x, y)
        self.assertEqual(self.page.value("document.getElementById('event-name').textContent"), timeline.name(event))
        chain = timeline.chain(event)
        links = "[...document.querySelectorAll('#chain li')].map(l => Number(l.dataset.event))"
        self.assertEqual(self.page.value(links), chain[:12])
        if len(chain) > 12:
            self.page.click("#event-details > button")
            self.assertEqual(self.page.value(links), chain)
        # A link of the chain leads to its event.
        self.page.click("#chain li:nth-child(2) button")
        self.assertEqual(self.page.value("state.event"), chain[1])
        self.assertEqual(self.page.value("document.getElementById('event-name').textContent"), timeline.name(chain[1]))

    def test_every_cause_holds_in_time(self):
        for raw in self.document["timelines"]:
            timeline = Timeline(raw)
            by = raw["columns"]["by"]
            self.assertEqual(max(timeline.end[i] for i in raw["critical_path"]), raw["period_ns"])
            for i, back in enumerate(by):
                arrive = timeline.start[i] + raw["columns"]["arrive"][i]
                self.assertLessEqual(timeline.end[i - back] if back else 0, max(arrive, 0))

    def test_a_bubble_says_who_is_exposed(self):
        self.open()
        self.page.click("#longest-bubble")
        raw = self.document["timelines"][self.document["views"][0]["timeline"]]
        longest = max(raw["gaps"], key=lambda g: g[1])
        text = self.page.value("document.getElementById('event-details').textContent")
        self.assertIn(TEXT["s"](longest[1] / 1e9), text)
        if longest[2] >= 0:
            self.assertIn(Timeline(raw).name(longest[2]) + " is exposed", text)

    def test_a_bar_of_the_waterfall_highlights_its_events(self):
        self.open()
        self.page.value("document.querySelector('#waterfall g.row').focus()")
        self.page.key("Enter")
        bright = self.page.value("d3.range(chart.t.n).filter(i => state.highlight.test(chart.t, i))"
                                 ".map(i => kindOf(chart.t, i))")
        self.assertEqual(set(bright), {self.document["views"][0]["waterfall"][0]["what"]})

    def test_the_memory_chart_leads_to_its_event(self):
        self.open()
        peak = self.document["timelines"][self.document["views"][0]["timeline"]]["memory"]
        self.assertEqual(peak["peak_bytes"],
                         self.document["views"][0]["report"]["memory"]["peak_allocated_bytes"]["value"])
        self.page.value("document.getElementById('memory-chart').focus()")
        for key in ("ArrowLeft", "ArrowRight", "Enter"):
            self.page.key(key)
        self.assertEqual(self.page.value("state.event"), peak["peak_event"])
        alive = self.document["views"][0]["alive_at_peak"]
        total = sum(g["bytes"] for g in alive["groups"]) + alive["other_bytes"]
        self.assertEqual(total, peak["peak_bytes"])

    def test_keys_walk_the_timeline(self):
        self.open()
        self.page.value("document.getElementById('timeline').focus()")
        raw = self.document["timelines"][self.document["views"][0]["timeline"]]
        timeline = Timeline(raw)
        self.page.key("ArrowDown")
        first = self.page.value("state.event")
        self.page.key("ArrowRight")
        second = self.page.value("state.event")
        self.assertEqual(timeline.stream[first], timeline.stream[second])
        self.assertGreaterEqual(timeline.start[second], timeline.end[first])
        self.assertIn(timeline.name(second), self.page.value("document.getElementById('live').textContent"))
        self.page.key("Escape")
        self.assertIsNone(self.page.value("state.event"))

    def test_everything_that_takes_focus_has_a_name(self):
        self.open()
        self.page.call("Accessibility.enable")
        nameless = []
        for node in self.page.call("Accessibility.getFullAXTree")["nodes"]:
            properties = {p["name"]: p["value"].get("value") for p in node.get("properties", [])}
            if properties.get("focusable") and node.get("role", {}).get("value") not in ("RootWebArea", "main", "generic", "LayoutTable"):
                if not node.get("name", {}).get("value"):
                    nameless.append(node.get("role", {}).get("value"))
        self.assertEqual(nameless, [])
        self.page.call("Accessibility.disable")

    def test_tab_goes_into_the_page_and_on(self):
        self.open()
        names = []
        for _ in range(5):
            self.page.key("Tab")
            names.append(self.page.value("document.activeElement.outerHTML.slice(0, 60)"))
        self.assertEqual(len(set(names)), 5)
        self.assertIn("skip", names[0])

    def test_colours_contrast_in_light_and_dark(self):
        def luminance(colour):
            parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
            parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055)**2.4 for p in parts]
            return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

        def contrast(a, b):
            high, low = sorted((luminance(a), luminance(b)), reverse=True)
            return (high + 0.05) / (low + 0.05)

        for scheme in ("light", "dark"):
            self.page.scheme(scheme)
            self.open()
            self.assertEqual(self.page.value("document.documentElement.dataset.theme"), scheme)
            for colour in ("ink", "soft", "accent", "good", "bad"):
                for ground in ("paper", "back"):
                    ratio = contrast(self.page.value(f"colour('{colour}')"), self.page.value(f"colour('{ground}')"))
                    self.assertGreaterEqual(ratio, 4.5, f"{colour} on {ground}, {scheme}")  # WCAG 2.1, AA
            self.page.click("#theme")
            self.assertNotEqual(self.page.value("document.documentElement.dataset.theme"), scheme)
        self.page.scheme("light")

    def test_it_prints(self):
        self.open()
        self.assertTrue(self.page.pdf().startswith(b"%PDF"))

    def test_one_file_that_loads_nothing(self):
        with open(path("report.html"), encoding="utf-8") as file:
            html = file.read()
        self.assertLess(os.path.getsize(path("report.html")), 2_000_000)
        self.assertIsNone(re.search(r"<(script|link|img|iframe)[^>]*(src|href)=", html.split("<script", 1)[0]))
        self.assertNotIn("<link", html)
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html).group(1)
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)

    def test_the_policy_stops_what_was_not_built_in(self):
        self.open()
        self.page.value("(() => { const s = document.createElement('script'); s.textContent = 'window.taken = 1';"
                        "document.body.append(s); })()")
        self.assertIsNone(self.page.value("window.taken"))
        self.assertTrue(self.page.problems)
        self.page.problems.clear()

    def test_names_from_files_stay_text(self):
        nasty = "</script><img src=x onerror=alert(1)>"
        os.makedirs(path("nasty"), exist_ok=True)
        with open(path("nasty.json"), "w", encoding="utf-8") as file:
            document = json.loads(run("predict", *JOB, "--json"))
            document["plan"]["model"] = document["warnings"] = [nasty]
            document["assumed"][0]["value"] = nasty
            json.dump(document, file)
        run("report", path("nasty.json"), "--html", path("nasty.html"))
        self.open("nasty.html")
        self.assertEqual(self.page.value("document.querySelectorAll('img').length"), 0)
        self.assertIn(nasty, self.page.value("document.body.textContent"))
        self.check_numbers(document_of(path("nasty.html")))

    def test_twenty_thousand_events_are_drawn(self):
        # 64 micro-batches of an 8 B model are 20 thousand events.
        run("predict", *JOB, "--accumulation", "64", "--html", path("long.html"))
        document = document_of(path("long.html"))
        events = document["timelines"][0]["events"]
        self.assertGreaterEqual(events, 20_000)
        self.assertLess(os.path.getsize(path("long.html")), 2_000_000)
        def middle(list_):
            return sorted(list_)[1]

        paints, drawn = [], []
        for _ in range(3):
            self.open("long.html")
            for mark in ("drawn", "first-contentful-paint"):
                while not self.page.value(f"performance.getEntriesByName('{mark}').length"):
                    time.sleep(0.02)
            paints.append(self.page.value("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            drawn.append(self.page.value("performance.getEntriesByName('drawn')[0].startTime"))
        print(f"\n{events} events, {os.path.getsize(path('long.html')) / 1e6:.2f} MB: first paint {middle(paints):.0f} ms, "
              f"everything drawn {middle(drawn):.0f} ms", file=sys.stderr)
        self.check_numbers(document)


def take_picture(file):
    """From the verdict to the end of the memory's chart."""
    run("report", *JOB, "--html", path("picture.html"))
    with browser.Browser(browser.find()) as page:
        page.size(1180, 900)
        page.open("file://" + path("picture.html"))
        bottom = page.value("document.getElementById('memory-info').getBoundingClientRect().bottom")
        page.picture(file, 1180, math.ceil(bottom) + 18, scale=0.75)


if __name__ == "__main__":
    support.main(__doc__, {"--picture": take_picture})
