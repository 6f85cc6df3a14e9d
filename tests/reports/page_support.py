"""What tests of the HTML report share: documents, numbers written down a second time, a browser.

Numbers are formatted here from the JSON by rules written down once more: a figure on the page must be
that text.
"""

import csv
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import browser  # noqa: E402

PROGRAM = None  # main() sets it
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
JOB = ["--model", "llama-3.1-8b", "--cluster", "64xh100"]
FOLDER = tempfile.TemporaryDirectory(prefix="foreshard-page-")


def path(name):
    return os.path.join(FOLDER.name, name)


def run(*arguments, codes=(0,)):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode in codes, f"{arguments}: {done.returncode} {done.stderr}"
    return done.stdout


def some_steps():
    """Every eighth of the published steps: all of them take a minute to score."""
    with open(os.path.join(ROOT, "calibration", "published", "training_steps.csv"), encoding="utf-8", newline="") as table:
        rows = list(csv.reader(table))
    with open(path("steps.csv"), "w", encoding="utf-8", newline="") as table:
        csv.writer(table).writerows(rows[:1] + rows[1::8])
    return path("steps.csv")


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
    "odds": lambda v: ">99 %" if v > 0.995 else "<1 %" if v < 0.005 else f"{math.floor(v * 100 + 0.5)} %",
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


class PageCase(unittest.TestCase):
    """Opens pages at a width; whatever a page logs, throws or asks of the network fails its test."""

    @classmethod
    def setUpClass(cls):
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

    # Texts of charts that cover one another, or leave their chart.
    COLLISIONS = """[...document.querySelectorAll('svg')].flatMap(svg => {
        const frame = svg.getBoundingClientRect(), name = svg.getAttribute('aria-label');
        const texts = [...svg.querySelectorAll('text')].map(t => ({text: t.textContent, box: t.getBoundingClientRect()})).filter(t => t.text && t.box.width);
        const out = texts.filter(t => t.box.left < frame.left - 1 || t.box.right > frame.right + 1).map(t => `${name}: ${t.text} leaves it`);
        const overlaps = texts.flatMap((a, i) => texts.slice(i + 1).filter(b =>
            Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left) > 1 &&
            Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top) > 3).map(b => `${name}: ${a.text} | ${b.text}`));
        return out.concat(overlaps); })"""


def main(doc, other=None):
    """Runs the tests of a file: FILE PROGRAM [unittest options]; exit 77 where there is no Chromium.
    other: options of the file's own, {name: function of what follows it}."""
    global PROGRAM
    if len(sys.argv) < 2:
        sys.exit(doc)
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    if not browser.find():
        print("skipped: no Chromium here; apt-get install chromium-headless-shell, or name one with FORESHARD_CHROMIUM")
        sys.exit(77)
    for name, action in (other or {}).items():
        if name in sys.argv:
            action(sys.argv[sys.argv.index(name) + 1])
            return
    unittest.main(module="__main__", verbosity=2)
