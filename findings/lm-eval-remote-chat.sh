#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# lm_eval 0.4.13: tokenizer_backend=remote has no chat template for tasks that score given answers.
# Expected: with apply_chat_template the server's template (chat_template of /tokenizer_info, for which the package's
# RemoteTokenizer has a method) is rendered, as with tokenizer_backend=huggingface.
# Seen: the list of messages itself becomes the context, and log-likelihoods end in an AttributeError.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q --no-compile 'lm_eval[api]==0.4.13'
cat >"$dir/show.py" <<'END'
import http.server
import importlib.metadata
import json
import sys
import threading

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


class Server(http.server.BaseHTTPRequestHandler):
    def answer(self, body):
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        self.answer({"eos_token": "<eos>", "bos_token": None, "pad_token": None, "chat_template": TEMPLATE})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer({"tokens": list(body["prompt"].encode())})

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

print("lm_eval", importlib.metadata.version("lm_eval"))
model = LocalCompletionsAPI(base_url="http://127.0.0.1:%d/v1/completions" % server.server_port, model="m",
                            tokenizer_backend="remote")
chat = [{"role": "user", "content": "What is 27 + 58?"}]
print("the package's own RemoteTokenizer renders:", repr(model.tokenizer.apply_chat_template(chat)))
context = model.apply_chat_template(chat)
print("the model's context:", repr(context))
try:
    model.loglikelihood([Instance("loglikelihood", {}, (context, " 85"), 0)])
    seen = None
except AttributeError as e:
    seen = str(e)
    print("AttributeError:", e)
sys.exit(0 if context == chat and seen else 1)
END
"$dir/venv/bin/python" "$dir/show.py"
