#!/usr/bin/env python3
"""Real clients against `espalier serve`: the standard library's and curl. Run by ctest, with
ESPALIER_BIN naming the folder of the programs."""
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "../../data/models/quickstart")
BIN = os.environ.get("ESPALIER_BIN", os.path.join(HERE, "../../../build/bin"))
TEMPLATE = ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}")


class Server:
    def __init__(self, *options):
        self.folder = tempfile.mkdtemp()
        model = os.path.join(self.folder, "model")
        shutil.copytree(MODEL, model)
        with open(os.path.join(model, "tokenizer_config.json"), "w") as file:
            json.dump({"eos_token": "<|endoftext|>", "chat_template": TEMPLATE}, file)
        self.process = subprocess.Popen(
            [os.path.join(BIN, "espalier-worker"), "serve", "--model", model, "--name", "tiny",
             "--port", "0", "--threads", "1", "--device", "cpu", *options],
            stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("serving 'tiny' at http://127.0.0.1:"), line
        self.port = int(line.split(":")[2].split("/")[0])

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self):
        code = self.process.wait(60)
        self.process.stdout.close()
        shutil.rmtree(self.folder)
        return code

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, None if body is None else json.dumps(body),
                           {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, json.loads(text)

    def stream(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", path, json.dumps({**body, "stream": True}),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.getheader("Content-Type") == "text/event-stream"
        for line in response:
            line = line.decode().strip()
            if line:
                assert line.startswith("data: "), line
                yield line[len("data: "):]
        connection.close()


def text_of(events):
    events = list(events)
    assert events[-1] == "[DONE]", events[-1]
    return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--context", "256", "--batch", "8", "--queue", "24")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def test_completions_and_their_streams_say_the_same(self):
        body = {"model": "tiny", "prompt": "// Returns", "max_tokens": 30, "seed": 5}
        status, answer = self.server.ask("POST", "/v1/completions", body)
        self.assertEqual(status, 200)
        self.assertEqual(answer["usage"],
                         {"prompt_tokens": 10, "completion_tokens": 30, "total_tokens": 40})
        self.assertEqual(text_of(self.server.stream("/v1/completions", body)),
                         answer["choices"][0]["text"])

    def test_chats(self):
        body = {"messages": [{"role": "user", "content": "what is this"}], "max_tokens": 12,
                "temperature": 0}
        status, answer = self.server.ask("POST", "/v1/chat/completions", body)
        self.assertEqual(status, 200)
        message = answer["choices"][0]["message"]
        self.assertEqual(message["role"], "assistant")
        chunks = [json.loads(event) for event in
                  list(self.server.stream("/v1/chat/completions", body))[:-1]]
        said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        self.assertEqual(said, message["content"])
        self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")

    def test_choices_and_stops(self):
        body = {"prompt": "// Returns the", "max_tokens": 60, "n": 3, "seed": 1, "stop": [" "]}
        _, answer = self.server.ask("POST", "/v1/completions", body)
        self.assertEqual([choice["index"] for choice in answer["choices"]], [0, 1, 2])
        for choice in answer["choices"]:
            self.assertNotIn(" ", choice["text"])

    def test_refusals(self):
        def refused(status, path="/v1/completions", body=None, method="POST"):
            seen, answer = self.server.ask(method, path, body or {})
            self.assertEqual(seen, status, answer)
            self.assertEqual(set(answer["error"]), {"message", "type", "param", "code"})
            return answer["error"]

        refused(400, body={"prompt": "x", "temperature": -1})
        refused(400, "/v1/chat/completions", {"messages": []})
        refused(404, body={"prompt": "x", "model": "other"})
        refused(404, "/v2", {})
        refused(404, "/v1/models/other", method="GET")
        # More than it could ever hold: to try again would not help.
        self.assertIn("--queue", refused(400, body={"prompt": "x", "n": 33})["message"])

    def test_sixteen_clients_at_once_get_what_each_gets_alone(self):
        bodies = [{"prompt": "// Returns " * (1 + i % 5), "max_tokens": 20 + i, "seed": i}
                  for i in range(16)]
        alone = [text_of(self.server.stream("/v1/completions", body)) for body in bodies]
        together = [None] * 16

        def client(i):
            together[i] = text_of(self.server.stream("/v1/completions", bodies[i]))

        threads = [threading.Thread(target=client, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(together, alone)

    def test_a_client_that_leaves_gives_its_row_back(self):
        for _ in range(20):
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
            connection.request("POST", "/v1/completions", json.dumps(
                {"prompt": "x", "max_tokens": 250, "n": 8, "stream": True}),
                {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status == 200:
                response.read(20)
            connection.close()
        for _ in range(100):
            status, _ = self.server.ask("POST", "/v1/completions",
                                        {"prompt": "y", "max_tokens": 1, "n": 32})
            if status == 200:
                return
        self.fail("rows of clients that left were never free again")

    def test_curl(self):
        ran = subprocess.run(
            ["curl", "-sS", f"http://127.0.0.1:{self.server.port}/v1/chat/completions",
             "-H", "Content-Type: application/json",
             "-d", '{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}'],
            capture_output=True, text=True, check=True, timeout=120)
        self.assertEqual(json.loads(ran.stdout)["usage"]["completion_tokens"], 5)


class Keys(unittest.TestCase):
    def test_a_key_is_asked_for(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("secret\n")
            file.flush()
            server = Server("--api-key-file", file.name)
            self.assertEqual(server.ask("GET", "/v1/models")[0], 401)
            status, _ = server.ask("GET", "/v1/models", headers={"Authorization": "Bearer secret"})
            self.assertEqual(status, 200)
            self.assertEqual(server.stop(), 0)

    def test_other_machines_are_not_let_in(self):
        ran = subprocess.run([os.path.join(BIN, "espalier-worker"), "serve", "--model", MODEL,
                              "--host", "0.0.0.0", "--port", "0"],
                             capture_output=True, text=True, timeout=60)
        self.assertEqual(ran.returncode, 2)
        self.assertIn("ssh -L", ran.stderr)

    def test_sigterm_lets_what_runs_end(self):
        server = Server()
        events = server.stream("/v1/completions", {"prompt": "x", "max_tokens": 100, "seed": 2})
        first = next(events)
        server.process.send_signal(signal.SIGTERM)
        self.assertTrue(first)
        self.assertEqual(list(events)[-1], "[DONE]")
        self.assertEqual(server.wait(), 0)


if __name__ == "__main__":
    sys.exit(unittest.main())
