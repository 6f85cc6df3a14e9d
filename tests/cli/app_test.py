"""The application of foreshard serve, driven in a headless Chromium as its users would. app_test.py PROGRAM;
exit 77 where there is no Chromium.

No limit here is of wall time: what is awaited is a state of the page.
"""

import base64
import gzip
import json
import os
import shlex
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "reports"))
import browser  # noqa: E402

PROGRAM = None
EXAMPLE = os.path.join(HERE, "..", "..", "models", "examples", "llama-110m.json")
PLAN = "#plan?model=llama-3.1-8b&cluster=16xh100"


def said(command):
    """What the command line that a page shows answers."""
    words = shlex.split(command)
    assert words[0] == "foreshard"
    return json.loads(subprocess.run([PROGRAM, *words[1:], "--json"], check=False, capture_output=True).stdout)


class AppTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = subprocess.Popen([PROGRAM, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
        cls.url = cls.server.stdout.readline().strip()
        cls.root = cls.url.partition("?")[0]
        cls.page = browser.Browser(browser.find())

    @classmethod
    def tearDownClass(cls):
        cls.page.close()
        cls.server.terminate()
        assert cls.server.wait(timeout=60) == 0
        cls.server.stdout.close()

    def tearDown(self):
        outside = [u for u in self.page.requests if not u.startswith((self.root, "data:", "blob:", "about:"))]
        self.assertEqual(outside, [])

    def open(self, link="", width=1280):
        self.page.call("Page.navigate", url="about:blank")
        self.page.size(width, 900)
        self.page.open(self.url + link)
        self.until("document.documentElement?.dataset.app === 'ready'")

    def until(self, condition):
        end = time.monotonic() + 240
        while not self.page.value(condition):
            if time.monotonic() > end:  # (a page that still loads has no texts to ask for)
                self.fail((condition, self.text("problem"), self.page.problems))
            time.sleep(0.05)

    def answered(self):
        self.until("document.documentElement.dataset.answer === 'ready'")

    def text(self, element):
        return self.page.value(f"document.getElementById('{element}').textContent")

    def type(self, field, text):
        self.page.value(f"(() => {{ const e = document.getElementById('ask-{field}'); e.value = {json.dumps(text)};"
                        "e.dispatchEvent(new Event('input', {bubbles: true})); })()")

    def no_problems(self):
        self.assertEqual(self.page.problems, [])
        self.assertTrue(self.page.value("document.getElementById('problem').hidden"), self.text("problem"))

    def test_the_link_lets_in_and_its_token_does_not_stay(self):
        self.open()
        self.assertNotIn("token", self.page.value("location.href"))
        self.assertEqual(self.page.value("document.cookie"), "")  # a script cannot read it
        self.page.open(self.root)  # by the cookie
        self.until("document.documentElement?.dataset.app === 'ready'")
        self.no_problems()

    def test_a_plan_is_what_its_command_line_says(self):
        self.open()
        self.type("model", "llama-3.1-8b")
        self.type("cluster", "16xh100")
        self.answered()
        self.no_problems()
        command = self.text("command-text")
        self.assertEqual(command, "foreshard predict --model llama-3.1-8b --cluster 16xh100")
        report = said(command)
        self.assertEqual(self.page.value("doc.views[0].report.step"), report["step"])
        self.assertEqual(self.page.value("doc.views[0].report.memory.fits"), report["memory"]["fits"])
        self.assertRegex(self.text("headline"), r"^Fits with \S+ %: .* per step")
        for block in ("verdict", "memory", "timeline-block", "search", "pareto", "scaling"):
            self.assertTrue(self.page.value(f"document.getElementById('{block}') !== null"), block)
        # What was taken where nothing was said.
        self.assertEqual(self.page.value("document.getElementById('ask-sequence').placeholder"), "8192")

    def test_a_plan_that_does_not_fit_says_so_first(self):
        self.open("#plan?model=llama-3.1-70b&cluster=8xh100")
        self.answered()
        self.assertRegex(self.text("headline"), r"^Does not fit: .*iB more than there is")

    def test_sliders_ask_again(self):
        self.open(PLAN)
        self.answered()
        before = self.page.value("doc.views[0].report.step.seconds.value")
        self.page.value("(() => { const r = document.querySelector('#ask-micro_batch').closest('.field').querySelector('[type=range]');"
                        "for (const i of [1, 2, 1]) { r.value = i; r.dispatchEvent(new Event('input', {bubbles: true})); } })()")
        self.assertEqual(self.page.value("document.documentElement.dataset.answer"), "working")
        self.answered()
        self.no_problems()
        self.assertEqual(self.page.value("document.getElementById('ask-micro_batch').value"), "2")
        self.assertIn("--micro-batch 2", self.text("command-text"))
        self.assertGreater(self.page.value("doc.views[0].report.step.seconds.value"), before)

    def test_a_link_holds_the_whole_state(self):
        self.open(PLAN + "&micro_batch=2&set=recompute%3Dfull&set=mesh.shard%3D8")
        self.answered()
        first = self.text("headline"), self.text("command-text"), self.page.value("location.hash")
        self.open(first[2])
        self.answered()
        self.assertEqual((self.text("headline"), self.text("command-text"), self.page.value("location.hash")), first)
        for word in ("--micro-batch 2", "--set recompute=full", "--set mesh.shard=8"):
            self.assertIn(word, first[1])

    def test_a_refusal_is_the_command_lines_and_its_suggestion_a_button(self):
        self.open("#plan?model=lama-3.1-8b&cluster=16xh100")
        self.answered()
        refused = subprocess.run([PROGRAM, "predict", "--model", "lama-3.1-8b", "--cluster", "16xh100"], capture_output=True, text=True, check=False)
        self.assertIn(refused.stderr.strip().removeprefix("foreshard: "), self.text("problem"))
        self.page.click("#take")
        self.until("!document.getElementById('said').hidden && document.getElementById('headline').textContent.startsWith('Fits')")
        self.assertEqual(self.page.value("document.getElementById('ask-model').value"), "llama-3.1-8b")
        self.answered()
        self.assertTrue(self.page.value("document.getElementById('problem').hidden"))

    def drop(self, name, text):
        self.page.value(f"(() => {{ const d = new DataTransfer(); d.items.add(new File([{json.dumps(text)}], {json.dumps(name)}));"
                        "window.dispatchEvent(new DragEvent('drop', {dataTransfer: d, cancelable: true})); })()")

    def test_files_are_dropped_in(self):
        self.open("#plan?cluster=8xh100")
        with open(EXAMPLE, encoding="utf-8") as file:
            config = file.read()
        self.drop("config.json", config)
        self.until("document.getElementById('headline').textContent.startsWith('Fits')")
        self.answered()
        self.no_problems()
        self.assertIn("--model config.json", self.text("command-text"))
        link = self.page.value("location.hash")
        self.assertIn("file.model=", link)
        headline = self.text("headline")
        self.open(link)
        self.answered()
        self.assertEqual(self.text("headline"), headline)
        # A plan file's faults are named with their place.
        self.drop("plan.yaml", "model: llama-3.1-8b\ncluster: 16xh100\nbatch: {sequense: 4096}\n")
        self.until("!document.getElementById('problem').hidden")
        self.assertRegex(self.text("problem"), r"plan\.yaml:3:\d+: .*did you mean sequence\?")

    def test_buying(self):
        self.open("#buy?model=llama-3.1-8b&tokens=100B&deadline=30d&cluster=h100&gpus=64,128")
        self.answered()
        self.no_problems()
        answer = said(self.text("command-text"))
        first = answer["choices"][0]["cluster"]
        self.assertIn(first, self.text("headline"))
        self.assertEqual(self.page.value("doc.recommend.choices.map(c => c.cluster)"), [c["cluster"] for c in answer["choices"]])
        self.page.click("#plan-it")
        self.until("document.getElementById('headline').textContent.startsWith('Fits')")
        self.assertEqual(self.page.value("document.getElementById('ask-cluster').value"), first)
        self.assertEqual(self.page.value("document.getElementById('ask-model').value"), "llama-3.1-8b")
        self.answered()

    def test_a_trace_alone_is_explained(self):
        trace = os.path.join(HERE, "..", "interop", "traces", "fsdp2_cuda_host", "group.trace.json")
        done = subprocess.run([PROGRAM, "explain", "--run", trace], capture_output=True, text=True, check=False)
        expected = done.stdout + ("\n" + done.stderr if done.stderr else "")  # what it asks for
        with open(trace, "rb") as file:
            data = base64.b64encode(gzip.compress(file.read())).decode()
        self.open("#plan")
        self.page.value("(() => { const d = new DataTransfer();"
                        f"const bytes = Uint8Array.from(atob({json.dumps(data)}), c => c.charCodeAt(0));"
                        "d.items.add(new File([bytes], 'group.trace.json.gz'));"
                        "window.dispatchEvent(new DragEvent('drop', {dataTransfer: d, cancelable: true})); })()")
        self.until("!document.getElementById('text').hidden")
        self.answered()
        self.no_problems()
        self.assertEqual(self.text("text").replace("group.trace.json.gz", trace), expected)
        self.assertEqual(self.text("command-text"), "foreshard explain --run group.trace.json.gz")
        self.assertEqual(self.page.value("document.querySelector('[role=tab][aria-selected=true]').id"), "tab-debug")
        # With a job that is not the run's, the refusals are the command line's.
        self.type("model", "gpt2")
        self.type("cluster", "8xa100")
        self.answered()
        refused = subprocess.run([PROGRAM, "explain", "--model", "gpt2", "--cluster", "8xa100", "--run", trace],
                                 capture_output=True, text=True, check=False)
        if refused.returncode:
            said_so = refused.stderr.strip().removeprefix("foreshard: ").replace(trace, "group.trace.json.gz")
            self.assertIn(said_so.splitlines()[0], self.text("problem"))

    def test_tabs_by_keyboard(self):
        self.open("#buy")
        self.page.value("document.getElementById('tab-buy').focus()")
        for expected in ("plan", "debug", "buy"):
            self.page.key("ArrowRight")
            self.assertEqual(self.page.value("document.activeElement.id"), f"tab-{expected}")
            self.assertEqual(self.page.value("document.activeElement.getAttribute('aria-selected')"), "true")
            self.assertTrue(self.page.value("[...document.querySelectorAll('#ask input')].every(i => i.labels.length || i.ariaLabel)"))

    def test_narrow_screens_do_not_scroll_sideways(self):
        for link in (PLAN, "#buy?model=llama-3.1-8b&tokens=100B&cluster=h100&gpus=64", "#debug"):
            self.open(link, width=390)
            self.answered()
            self.assertLessEqual(self.page.value("document.documentElement.scrollWidth"), 390, link)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    if browser.find() is None:
        print("there is no Chromium; FORESHARD_CHROMIUM names one")
        sys.exit(77)
    unittest.main(verbosity=2)
