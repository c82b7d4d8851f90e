#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dspy 3.4.1: JSONAdapter asks a server for no form of its answer unless the name of the model is one that litellm's table has.
# Expected: response_format of json_schema or, where that is not supported, of json_object, as JSONAdapter writes it.
# Seen: the body of "openai/gpt-4o" has a json_schema. That of "openai/my-model" and "hosted_vllm/my-model" at the same
# address, which is how dspy is used with one's own server, has no response_format at all, without a word; what comes
# is hoped to be JSON.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q dspy==3.4.1 litellm==1.110.2
cat >"$dir/show.py" <<'END'
import http.server
import importlib.metadata
import json
import os
import sys
import threading

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
bodies = []


class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        message = {"role": "assistant", "content": '{"result": "85"}'}
        answer = json.dumps({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [
            {"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = "http://127.0.0.1:%d/v1" % server.server_port
import dspy


class Add(dspy.Signature):
    question: str = dspy.InputField()
    result: str = dspy.OutputField()


print("dspy", importlib.metadata.version("dspy"), "litellm", importlib.metadata.version("litellm"))
forms = []
for name in ("openai/gpt-4o", "openai/my-model", "hosted_vllm/my-model"):
    model = dspy.LM(name, api_base=base, api_key="none", cache=False)
    with dspy.context(lm=model, adapter=dspy.JSONAdapter()):
        dspy.Predict(Add)(question="What is 27 + 58?")
    forms.append(bodies[-1].get("response_format", {}).get("type"))
    print("%s: response_format %s" % (name, forms[-1]))
sys.exit(0 if forms == ["json_schema", None, None] else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
