"""foreshard serve over HTTP, as a script would ask it. serve_test.py PROGRAM"""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

PROGRAM = None
JOB = "model=llama-3.1-8b&cluster=64xh100"


class Served:
    """The program on a free port; `port` is where, `token` what lets in."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen([PROGRAM, "serve", "--port", "0", *arguments],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        self.port = int(re.search(r":(\d+)/", self.url).group(1))
        self.token = self.url.partition("token=")[2]

    def ask(self, path, method="GET", body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if self.token:
            headers = {"Authorization": "Bearer " + self.token, **(headers or {})}
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(timeout=20)
        self.process.stdout.close()
        error = self.process.stderr.read()
        self.process.stderr.close()
        return code, error


def said(*arguments):
    return json.loads(subprocess.run([PROGRAM, *arguments, "--json"], check=True, capture_output=True).stdout)


def comparable(document):
    return {k: v for k, v in document.items() if k not in ("created", "host", "seconds")}


class ServeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served()

    @classmethod
    def tearDownClass(cls):
        code, error = cls.served.end()
        assert code == 0 and error == "", (code, error)

    def json(self, path, **more):
        status, text = self.served.ask(path, **more)
        self.assertEqual(status, 200, text)
        return json.loads(text)

    def refused(self, path, status, words, **more):
        got, text = self.served.ask(path, **more)
        self.assertEqual(got, status, text)
        self.assertIn(words, json.loads(text)["error"])

    def test_answers_are_those_of_the_verbs(self):
        job = ("--model", "llama-3.1-8b", "--cluster", "64xh100", "--set", "mesh.shard=8")
        query = JOB + "&set=mesh.shard%3D8"
        self.assertEqual(comparable(self.json("/api/predict?" + query)), comparable(said("predict", *job)))
        self.assertEqual(comparable(self.json("/api/search?" + query)), comparable(said("search", *job)))
        body = json.dumps({"model": "llama-3.1-8b", "cluster": "64xh100", "set": ["mesh.shard=8"]})
        self.assertEqual(comparable(self.json("/api/predict", method="POST", body=body)), comparable(said("predict", *job)))

    def test_a_plan_that_does_not_fit_is_an_answer(self):
        answer = self.json("/api/predict?model=llama-3.1-70b&cluster=8xh100")
        self.assertFalse(answer["memory"]["fits"])
        self.assertIn("remedy", answer["infeasible"])

    def test_the_application_and_the_report(self):
        status, text = self.served.ask("/")
        self.assertEqual(status, 200)
        for name in re.findall(r'(?:src|href)="(/[^"]+)"', text):
            self.assertEqual(self.served.ask(name)[0], 200, name)
        status, text = self.served.ask("/report?" + JOB)
        self.assertEqual(status, 200)
        self.assertIn('"heatmap"', text)
        page = self.json("/page/explain?" + JOB)
        self.assertEqual(page["schema"], "foreshard.page/1")
        self.assertEqual(page["command"], "foreshard explain --model llama-3.1-8b --cluster 64xh100")
        self.assertIn("fits", self.served.ask("/text/predict?" + JOB)[1])

    def test_wrong_questions_are_refused_in_words(self):
        self.refused("/api/predict?model=lama-3.1-8b&cluster=64xh100", 400, "foreshard models")
        self.refused("/api/predict?model=llama-3.1-8b&cluster=64xh1000", 400, "h100")
        self.refused("/api/predict?model=llama-3.1-8b", 400, "cluster")
        self.refused("/api/predict?" + JOB + "&set=recompute%3Dfool", 400, "recompute")
        self.refused("/api/predict?" + JOB + "&colour=red", 400, "unknown key 'colour'")
        self.refused("/api/predict", 400, "no JSON object", method="POST", body="[1")
        self.refused("/elsewhere", 404, "/api/predict")
        self.refused("/page/predict?model=nothing&cluster=64xh100", 400, "foreshard models")

    def test_requests_reach_no_files(self):
        for name in ("/etc/passwd", "models/examples/x.json", "../x.yaml", "config.json"):
            for query in (f"model={name}&cluster=64xh100", f"model=llama-3.1-8b&cluster={name}",
                          JOB + f"&set=model%3D{name}", JOB + f"&set=cluster%3D{name}"):
                status, text = self.served.ask("/api/predict?" + query)
                self.assertEqual(status, 400, query)
                self.assertNotIn("No such file", text)
        self.refused("/api/predict?" + JOB + "&plan=x.yaml", 400, "unknown key 'plan'")

    def test_other_names_for_this_machine_are_refused(self):
        for host in ("evil.example", "evil.example:80", "", "127.0.0.1.evil.example"):
            self.refused("/api/predict?" + JOB, 403, "localhost", headers={"Host": host})
        for host in ("localhost", f"127.0.0.1:{self.served.port}", "[::1]:1"):
            self.json("/api/predict?" + JOB, headers={"Host": host})

    def test_too_much_is_refused(self):
        status, _ = self.served.ask("/api/predict", method="POST", body="x" * 200_000)
        self.assertEqual(status, 413)
        self.json("/api/predict?" + JOB)

    def test_several_ask_at_once(self):
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(self.json("/api/search?" + JOB))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len({json.dumps(comparable(a)) for a in answers}), 1)
        self.assertEqual(len(answers), 6)


class EndTest(unittest.TestCase):
    def test_ends_with_zero_on_either_signal(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            self.assertEqual(Served().end(number), (0, ""))

    def test_ends_while_it_searches(self):
        served = Served("--threads", "1")
        query = "/api/search?model=gpt3-175b&cluster=1024xh100&sequence=2048&accumulation=1024"
        answers = []

        def ask():
            try:
                answers.append(served.ask(query))
            except (OSError, http.client.HTTPException):
                answers.append((503, ""))

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(1)
        start = time.monotonic()
        self.assertEqual(served.end()[0], 0)
        self.assertLess(time.monotonic() - start, 10)
        thread.join()
        self.assertEqual([status for status, _ in answers], [503])

    def test_a_port_that_is_taken_is_named(self):
        served = Served()
        again = subprocess.run([PROGRAM, "serve", "--port", str(served.port)], capture_output=True, text=True, timeout=20, check=False)
        self.assertEqual(again.returncode, 3)
        self.assertIn(f"127.0.0.1:{served.port}: cannot be listened on", again.stderr)
        self.assertEqual(again.stdout, "")
        served.end()


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
