"""foreshard serve over HTTP, as a script would ask it. serve_test.py PROGRAM"""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PROGRAM = None
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
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


HEAVY = "/api/search?model=gpt3-175b&cluster=1024xh100&sequence=2048&accumulation=1024"


def children(process):
    with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
        return file.read().split()


def resident_bytes(process):
    """Of the server and of what it runs."""
    total = 0
    for pid in [str(process.pid), *children(process)]:
        try:
            with open(f"/proc/{pid}/status", encoding="ascii") as file:
                total += 1024 * int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1))
        except (OSError, AttributeError):  # it has ended
            pass
    return total


def until(condition, seconds=120):
    """Waits for it; how long that took."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds:
            raise AssertionError("it does not come about")
        time.sleep(0.02)
    return time.monotonic() - start


def measured(what):
    print(f"    {what}", file=sys.stderr)


class GateTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served()
        cls.addClassCleanup(cls.served.end)

    def status(self, path, token=True, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if not token:
            headers["Authorization"] = ""
        return self.served.ask(path, headers=headers)[0]

    def test_without_the_token_nothing_is_answered(self):
        for path in ("/", "/api/predict?" + JOB, "/report?" + JOB, "/assets/app.js", "/api/words", "/nowhere",
                     "/?token=" + "0" * 48, "/api/predict?token=&" + JOB):
            self.assertEqual(self.status(path, token=False), 403, path)
        self.assertEqual(self.served.ask("/api/predict", method="POST", body="x" * 1000, headers={"Authorization": ""})[0], 403)
        self.assertEqual(self.status("/?token=" + self.served.token, token=False), 200)
        self.assertEqual(self.status("/api/predict?" + JOB + "&token=" + self.served.token, token=False), 200)

    def test_the_cookie_lets_in(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.served.port, timeout=60)
        connection.request("GET", "/?token=" + self.served.token)
        cookie = connection.getresponse().headers["Set-Cookie"]
        self.assertIn("HttpOnly", cookie)
        self.assertIn("SameSite=Strict", cookie)
        connection.close()
        self.assertEqual(self.status("/", token=False, Cookie=cookie.split(";")[0]), 200)
        self.assertEqual(self.status("/", token=False, Cookie=cookie.split(";")[0] + "0"), 403)

    def test_foreign_pages_get_no_answer_whatever_they_hold(self):
        own = f"http://127.0.0.1:{self.served.port}"
        foreign = [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": f"http://localhost:{self.served.port}"},
                   {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"}, {"Host": "evil.example"},
                   {"Host": f"evil.example:{self.served.port}", "Origin": f"http://evil.example:{self.served.port}"},
                   {"Origin": own, "Sec_Fetch_Site": "cross-site"}]
        for headers in foreign:
            for path in ("/", "/api/predict?" + JOB, "/assets/app.js"):
                self.assertEqual(self.status(path, **headers), 403, headers)
        for headers in ({"Origin": own, "Sec_Fetch_Site": "same-origin"}, {"Sec_Fetch_Site": "none"}):
            self.assertEqual(self.status("/", **headers), 200, headers)

    def test_other_addresses_have_their_names_and_need_the_token(self):
        served = Served("--address", "0.0.0.0", "--host", "planner.example")
        self.assertIn("http://planner.example:", served.url)
        for host, status in (("planner.example", 200), ("127.0.0.1", 200), ("localhost:1", 200), ("other.example", 403)):
            self.assertEqual(served.ask("/", headers={"Host": host})[0], status, host)
        self.assertEqual(served.end(), (0, ""))
        refused = subprocess.run([PROGRAM, "serve", "--address", "0.0.0.0", "--no-token"], capture_output=True, text=True, check=False)
        self.assertEqual((refused.returncode, refused.stdout), (2, ""))
        self.assertIn("--no-token", refused.stderr)
        served = Served("--no-token")
        self.assertNotIn("token", served.url)
        self.assertEqual(served.ask("/")[0], 200)
        self.assertEqual(served.ask("/", headers={"Origin": "http://evil.example"})[0], 403)
        served.end()


class FilesTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        os.environ["TMPDIR"] = self.folder.name
        self.served = Served()
        del os.environ["TMPDIR"]

    def tearDown(self):
        self.assertEqual([len(os.listdir(os.path.join(self.folder.name, own))) for own in os.listdir(self.folder.name)], [0])
        self.served.end()
        self.assertEqual(os.listdir(self.folder.name), [])

    def post(self, path, *parts):
        body = b""
        for field, name, text in parts:
            file = f'; filename="{name}"' if name else ""
            body += f'--B\r\nContent-Disposition: form-data; name="{field}"{file}\r\n\r\n{text}\r\n'.encode()
        status, text = self.served.ask(path, method="POST", body=body + b"--B--\r\n",
                                       headers={"Content-Type": "multipart/form-data; boundary=B"})
        return status, text

    def test_files_that_are_sent_are_read_and_forgotten(self):
        with open(os.path.join(ROOT, "models", "examples", "llama-110m.json"), encoding="utf-8") as file:
            config = file.read()
        status, text = self.post("/api/predict", ("model", "../../config.json", config), ("cluster", "", "8xh100"))
        self.assertEqual(status, 200, text)
        path = os.path.join(ROOT, "models", "examples", "llama-110m.json")
        self.assertEqual(json.loads(text)["step"], said("predict", "--model", path, "--cluster", "8xh100")["step"])
        status, text = self.post("/api/predict", ("plan", "plan.yaml", "model: ./config.json\ncluster: 8xh100\n"),
                                 ("model", "config.json", config))
        self.assertEqual(status, 200, text)

    def test_what_is_sent_names_nothing_of_the_machine(self):
        for model in ("/etc/passwd", "../../etc/passwd", "~/config.json"):
            status, text = self.post("/api/predict", ("plan", "p.yaml", f"model: {model}\ncluster: 8xh100\n"))
            self.assertEqual(status, 400)
            self.assertIn("send the file itself", text)
        status, text = self.post("/api/predict", ("plan", "p.yaml", "model: llama-3.1-8b\ncluster: 8xh100\nbatsch: 1\n"))
        self.assertIn("p.yaml:3:1: batsch", json.loads(text)["error"])
        self.assertEqual(self.post("/api/predict", ("runtime", "x", "fsdp2"))[0], 400)
        self.assertEqual(self.post("/api/predict")[0], 400)


class BoundsTest(unittest.TestCase):
    def setUp(self):
        self.served = Served()
        self.addCleanup(self.served.end)

    def slow(self, count, text):
        for _ in range(count):
            client = socket.create_connection(("127.0.0.1", self.served.port))
            self.addCleanup(client.close)
            client.sendall(text.encode())
            yield client

    def nine_honest(self):
        seconds = []

        def ask():
            start = time.monotonic()
            status, text = self.served.ask("/api/predict?" + JOB)
            if status == 200 and "step" in json.loads(text):
                seconds.append(time.monotonic() - start)

        threads = [threading.Thread(target=ask) for _ in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(seconds), 9)
        return max(seconds)

    def test_slow_clients_hold_nobody_up(self):
        let_in = f"Host: localhost\r\nAuthorization: Bearer {self.served.token}\r\n"
        slow = [*self.slow(2, "GET / HT")]
        few = self.nine_honest()
        slow += [*self.slow(100, "GET / HTTP/1.1\r\nHost: local"),
                 *self.slow(50, f"POST /api/predict HTTP/1.1\r\n{let_in}Content-Length: 1000\r\n\r\n{{"),
                 *self.slow(48, f"GET /assets/d3.min.js HTTP/1.1\r\n{let_in}\r\n")]
        many = self.nine_honest()
        measured(f"the slowest of 9 requests: {few:.2f} s beside 2 slow clients, {many:.2f} s beside {len(slow)}")
        for client in slow[:3]:  # and they are sent away
            client.settimeout(120)
            self.assertEqual(client.recv(1), b"")

    def test_what_clients_leave_ends(self):
        heavy = [socket.create_connection(("127.0.0.1", self.served.port)) for _ in range(3)]
        for client in heavy:
            client.sendall(f"GET {HEAVY} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.served.token}\r\n\r\n".encode())
        until(lambda: len(children(self.served.process)) == 2)  # the third waits
        most = 0
        for _ in range(20):
            time.sleep(0.1)
            most = max(most, resident_bytes(self.served.process))
        for client in heavy:
            client.close()
        freed = until(lambda: not children(self.served.process))
        left = resident_bytes(self.served.process)
        measured(f"three searches: {most / 2**20:.0f} MiB, {left / 2**20:.0f} MiB {freed:.2f} s after they are abandoned")
        self.assertLess(most, 2**30)
        self.assertLess(left, 128 * 2**20)
        self.assertEqual(self.served.ask("/api/predict?" + JOB)[0], 200)

    def test_what_takes_too_much_is_refused(self):
        status, text = self.served.ask(HEAVY)
        self.assertEqual(status, 503)
        self.assertIn("the most that a request may", json.loads(text)["error"])

    def test_what_waits_is_bounded(self):
        clients = [*self.slow(40, f"GET {HEAVY} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.served.token}\r\n\r\n")]
        until(lambda: len(children(self.served.process)) == 2)
        status, text = self.served.ask(HEAVY)
        self.assertEqual(status, 503)
        self.assertIn("too many", text)
        self.assertEqual(self.served.ask("/api/predict?" + JOB)[0], 200)  # quick ones have their own
        for client in clients:
            client.close()

    def test_headers_are_bounded(self):
        self.assertEqual(self.served.ask("/?" + "x" * 20000)[0], 413)
        self.assertEqual(self.served.ask("/", method="DELETE")[0], 405)
        client = next(self.slow(1, "nonsense\r\n\r\n"))
        self.assertIn(b" 400 ", client.recv(1000))


class EndTest(unittest.TestCase):
    def test_ends_with_zero_on_either_signal(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            self.assertEqual(Served().end(number), (0, ""))

    def test_ends_while_it_searches(self):
        served = Served("--threads", "1")
        answers = []

        def ask():
            try:
                answers.append(served.ask(HEAVY))
            except (OSError, http.client.HTTPException):
                answers.append((503, ""))

        thread = threading.Thread(target=ask)
        thread.start()
        until(lambda: children(served.process))
        start = time.monotonic()
        self.assertEqual(served.end()[0], 0)
        measured(f"it ends in {time.monotonic() - start:.2f} s")
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
