"""Drives the HTML report in a headless Chromium as a reader would, and holds what it shows against the
JSON. page_test.py PROGRAM [--picture FILE]; exit 77 where there is no Chromium.

Numbers are formatted here a second time, from the JSON, by rules written down once more: a figure on
the page must be that text.
"""

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import browser  # noqa: E402

PROGRAM = None
JOB = ["--model", "llama-3.1-8b", "--cluster", "64xh100"]
FOLDER = tempfile.TemporaryDirectory(prefix="foreshard-page-")


def path(name):
    return os.path.join(FOLDER.name, name)


def run(*arguments, codes=(0,)):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode in codes, f"{arguments}: {done.returncode} {done.stderr}"
    return done.stdout


def document_of(file):
    with open(file, encoding="utf-8") as page:
        return json.loads(re.search(
            r'<script type="application/json" id="document">(.*?)</script>', page.read(), re.S).group(1))


# --- numbers, written down a second time ---

def significant(value, digits=3):
    if value == 0:
        return "0"
    places = max(0, digits - math.floor(math.log10(abs(value))) - 1)
    return f"{value:.{places}f}".replace("-", "−")


def scaled(value, steps):
    size, suffix = next((s for s in steps if abs(value) >= s[0]), steps[-1])
    return f"{significant(value / size)} {suffix}"


TEXT = {
    "s": lambda v: "0 s" if v == 0 else scaled(v, [(1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")]),
    "B": lambda v: scaled(v, [(2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")]),
    "lacking": lambda v: TEXT["B"](-v),
    "ratio": lambda v: f"{v * 100:.1f} %",
    "change": lambda v: f"{'+' if v > 0 else '−' if v < 0 else '±'}{abs(v) * 100:.1f} %",
    "count": lambda v: f"{math.floor(v + 0.5):,}",
    "usd": lambda v: "$" + significant(v),
    "signed_usd": lambda v: f"{'+' if v > 0 else '−' if v < 0 else '±'}${significant(abs(v))}",
    "dollars": lambda v: "$" + TEXT["amount"](v),
    "amount": lambda v: scaled(v, [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"), (1, "")]).strip(),
    "plain": lambda v: significant(v, 2),
    "d": lambda v: significant(v) + " d",
    "wall": lambda v: "0 s" if v == 0 else scaled(v, [(86400, "d"), (3600, "h"), (60, "min"), (1, "s")]),
    "energy": lambda v: scaled(v, [(1e6, "GWh"), (1e3, "MWh"), (1, "kWh")]),
    "rate": lambda v: scaled(v, [(1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1, "B/s")]),
    "flop": lambda v: scaled(v, [(1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1, "FLOP")]),
    "factor": lambda v: "× " + significant(v),
    "text": str,
}


def shown_numbers(page):
    return page.value("[...document.querySelectorAll('[data-path]')].map(e => [e.getAttribute('data-path'),"
                      " e.getAttribute('data-unit'), e.textContent])")


def at(document, pointer):
    for key in pointer.split("/")[1:]:
        document = document[int(key) if isinstance(document, list) else key]
    return document


def numbers_of(text):
    return [float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\.?\d*", text)]


# Two correct roundings of one double may differ in their last digit; more may not.
def same_number(shown, expected):
    if shown == expected:
        return True
    a, b = numbers_of(shown), numbers_of(expected)
    strip = re.compile(r"[\d.,]+")
    return strip.sub("", shown) == strip.sub("", expected) and len(a) == len(b) and all(
        abs(x - y) <= 1.01 * 10.0 ** -len(n.split(".")[1]) if "." in n else abs(x - y) <= 1
        for x, y, n in zip(a, b, re.findall(r"\d[\d,]*\.?\d*", expected)))


# --- the timeline's columns, decoded a second time (encoding: reports/page_timeline.cpp) ---

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


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        run("report", *JOB, "--html", path("report.html"))
        cls.document = document_of(path("report.html"))
        cls.page = browser.Browser(browser.find())
        cls.addClassCleanup(cls.page.close)

    def open(self, name="report.html", width=1280, height=900):
        self.page.size(width, height)
        self.page.open("file://" + path(name))
        self.assertEqual(self.page.value("document.documentElement.dataset.ready"), "yes",
                         self.page.problems)

    def tearDown(self):
        self.assertEqual(self.page.problems, [])
        outside = [u for u in self.page.requests if not u.startswith(("file://", "data:", "blob:"))]
        self.assertEqual(outside, [])

    def check_numbers(self, document):
        shown = shown_numbers(self.page)
        self.assertTrue(shown)
        for pointer, unit, text in shown:
            value = at(document, pointer)
            expected = "–" if value is None else TEXT[unit](value)
            self.assertTrue(same_number(text, expected), f"{pointer}: shows {text}, JSON says {expected}")
        return {pointer for pointer, _, _ in shown}

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
        searched = json.loads(run("search", *JOB, "--json"))
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
                     if c["view"] not in (None, now) and c["shard"] == 8)
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

    # Texts of charts that cover one another.
    OVERLAPS = """[...document.querySelectorAll('svg')].flatMap(svg => {
        const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent).map(t => ({text: t.textContent, box: t.getBoundingClientRect()}));
        const found = [];
        texts.forEach((a, i) => texts.slice(i + 1).forEach(b => {
          const w = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
          const h = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
          if (w > 2 && h > 4) found.push(`${svg.getAttribute('aria-label')}: ${a.text} | ${b.text}`);
        }));
        return found; })"""

    def test_labels_do_not_overlap(self):
        for width in (1280, 900):
            self.open(width=width)
            overlaps = self.page.value(self.OVERLAPS)
            self.assertEqual(overlaps, [], width)

    def test_a_narrow_window_needs_no_scrolling_sideways(self):
        self.open(width=380, height=800)
        self.assertLessEqual(self.page.value("document.documentElement.scrollWidth"), 380)

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
        self.open(name + ".html", width=380, height=800)
        self.assertLessEqual(self.page.value("document.documentElement.scrollWidth"), 380)
        for width in (900, 1280):
            self.open(name + ".html", width=width)
            self.assertEqual(self.page.value(self.OVERLAPS), [], width)
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
        self.assertEqual("Beyond" in self.page.value("document.getElementById('knee').textContent"), bool(bends))
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
        self.assertEqual(self.page.value("document.getElementById('passed').textContent"), "Outside tolerance")
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

    def test_the_form_of_serve_asks_for_a_report(self):
        server = subprocess.Popen([PROGRAM, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.kill)
        url = server.stdout.readline().strip()
        self.page.size(1280, 900)
        self.page.open(url)
        self.page.value("document.querySelector('[name=model]').value = 'llama-3.1-8b';"
                        "document.querySelector('[name=cluster]').value = '16xh100'")
        self.page.events = []
        self.page.click("form.ask button")
        self.page.loaded()
        self.assertIn("16xh100", self.page.value("doc.title"))
        self.assertGreater(self.page.value("doc.views.length"), 1)
        self.assertEqual(self.page.value("document.querySelector('[name=cluster]').value"), "16xh100")
        self.assertTrue(all(u.startswith(url) for u in self.page.requests), self.page.requests)
        self.page.requests.clear()
        self.page.open("about:blank")
        self.page.requests.clear()
        server.terminate()
        self.assertEqual(server.wait(timeout=20), 0)

    def test_accuracy_of_a_table(self):
        table = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "calibration", "published", "training_steps.csv")
        run("accuracy", table, "--html", path("accuracy.html"), codes=(0, 3, 5))
        document = document_of(path("accuracy.html"))
        self.open("accuracy.html")
        self.check_numbers(document)
        columns = document["accuracy"]["columns"]
        scored = [i for i, reason in enumerate(columns["reason"]["column"])
                  if columns["reason"]["words"][reason] == "" and columns["measured"][i] > 0 and columns["predicted"][i] > 0]
        self.assertEqual(len(scored), document["accuracy"]["summary"]["scored"])
        self.assertEqual(self.page.value("document.querySelectorAll('[data-row]').length"), len(scored))
        self.assertLess(os.path.getsize(path("accuracy.html")), 2_000_000)
        group = self.page.value("[...document.querySelectorAll('#accuracy table button')][0].textContent")
        self.page.click("#accuracy table button")
        by = self.page.value("accuracyState.by")
        grouped = columns["groups"][by]
        alone = [i for i in scored if grouped["words"][grouped["column"][i]] == group]
        self.assertEqual(self.page.value("document.querySelectorAll('[data-row]').length"), len(alone))


def take_picture(file):
    """From the verdict to the end of the timeline, with an event chosen."""
    run("report", *JOB, "--html", path("picture.html"))
    with browser.Browser(browser.find()) as page:
        page.size(1180, 900)
        page.open("file://" + path("picture.html"))
        page.value("select(chart.t.lanes.find(l => l.name === 'reduce_scatter').ids[20]); document.activeElement.blur();"
                   "scrollTo(0, 0)")
        bottom = page.value("document.getElementById('timeline-block').getBoundingClientRect().bottom")
        page.picture(file, 1180, math.ceil(bottom) + 18, scale=0.75)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: page_test.py PROGRAM [--picture FILE | unittest options]")
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    if not browser.find():
        print("skipped: no Chromium here; apt-get install chromium-headless-shell, or name one with FORESHARD_CHROMIUM")
        sys.exit(77)
    if "--picture" in sys.argv:
        take_picture(sys.argv[sys.argv.index("--picture") + 1])
    else:
        unittest.main(verbosity=2)
