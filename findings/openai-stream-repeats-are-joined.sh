#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# openai 3.57.0 (Python): chat.completions.stream() appends a repeated id, name or role to the one before.
# Expected: a delta that repeats "role", or a call's "id" and "name", as several servers send them with each chunk, means the
# same as one that has them once: the raw chunks show the same call.
# Seen: the helper adds strings up, whatever their member: the call's id is "call_1call_1" and its function "ff" ("index" and
# "type" alone are exempt), so the tool is not found and the answer to it names an id that the server never gave. The role
# becomes "assistantassistant". Only create(stream=True), where the caller joins the deltas, hides it.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q openai==3.57.0
cat >"$dir/show.py" <<'END'
import http.server
import json
import sys
import threading

import openai


def chunk(delta, finish=None):
    choice = dict(index=0, delta=delta, finish_reason=finish)
    return dict(id="c", object="chat.completion.chunk", created=1, model="m", choices=[choice])


def call(arguments):
    function = dict(name="f", arguments=arguments)
    return dict(role="assistant", tool_calls=[dict(index=0, id="call_1", type="function", function=function)])


chunks = [chunk(call('{"a"')), chunk(call(': 1}')), chunk({}, "tool_calls")]
body = "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n"


class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none", max_retries=0)
with client.chat.completions.stream(model="m", messages=[dict(role="user", content="x")]) as stream:
    for _ in stream:
        pass
    message = stream.get_final_completion().choices[0].message
made = message.tool_calls[0]
print("openai", openai.__version__, "- sent twice: role assistant, id call_1, name f, and the arguments in two parts")
print("role", message.role, "id", made.id, "type", made.type, "name", made.function.name, "arguments", made.function.arguments)
seen = [message.role, made.id, made.type, made.function.name, made.function.arguments]
sys.exit(0 if seen == ["assistantassistant", "call_1call_1", "function", "ff", '{"a": 1}'] else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
