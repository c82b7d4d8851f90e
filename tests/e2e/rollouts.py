# SPDX-License-Identifier: Apache-2.0
"""What trainers ask /generate for beside text: log-probabilities of tokens that they list, hidden states, and prompts of
rows in place of tokens. Each is compared with what the checkpoint's own tensors say of it.

    rollouts.py MINISGL MODEL [OPTION ...]    such as --device cuda --deterministic
"""
import array
import json
import math
import pathlib
import random
import sys
import threading

from serving import Server, check
from weights import tensors_of

PROMPT = "Count: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, "
LISTED = 2048  # tokens at most


class Embedding:
    """The rows of the model's embedding, which is its head, too; bf16."""

    def __init__(self, model):
        dtype, (self.vocab, self.dim), value = tensors_of(model)["model.embed_tokens.weight"]
        assert dtype == "BF16"
        self.halves = array.array("H", value)

    def row(self, token):
        wide = array.array("I", (h << 16 for h in self.halves[token * self.dim:(token + 1) * self.dim]))
        return array.array("f", wide.tobytes()).tolist()


def generate(server, body, **params):
    status, text = server.call("/generate", {"sampling_params": {"temperature": 0, "ignore_eos": True, **params}, **body})
    check(status == 200, "an answer: %.200s" % text[:200])
    return json.loads(text)


def refused(server, body, what):
    status, text = server.call("/generate", {"sampling_params": {"max_new_tokens": 2}, **body})
    error = json.loads(text)["error"]
    check(status == 400 and what in error["message"], "refused: %.120s" % error["message"])


def test_listed(server, vocab):
    """At every position the probabilities of all tokens add up to 1, and those that are elsewhere in the answer are the
    same numbers."""
    total, parts = None, []
    for first in range(0, vocab, LISTED):
        ids = list(range(first, min(first + LISTED, vocab)))[::-1]
        answer = generate(server, {"text": PROMPT, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 3,
                                   "token_ids_logprob": ids}, max_new_tokens=4)
        meta = answer["meta_info"]
        rows = meta["input_token_ids_logprobs"][1:] + meta["output_token_ids_logprobs"]
        check(meta["input_token_ids_logprobs"][0] is None, "nothing predicts the first token")
        check(len(rows) == meta["prompt_tokens"] - 1 + 4, "a row for each other one")
        check(all([t[1:] for t in row] == [[i, None] for i in ids] for row in rows), "tokens in the order that was asked for")
        sums = [sum(math.exp(t[0]) for t in row) for row in rows]
        total = sums if total is None else [a + b for a, b in zip(total, sums)]
        parts.append((ids, rows, meta))
    check(all(abs(t - 1) < 1e-4 for t in total), "probabilities of all tokens add up to 1")
    for ids, rows, meta in parts:
        chosen = meta["input_token_logprobs"][1:] + meta["output_token_logprobs"]
        tops = meta["input_top_logprobs"][1:] + meta["output_top_logprobs"]
        at = {token: i for i, token in enumerate(ids)}
        known = [(row, t) for row, own, top in zip(rows, chosen, tops) for t in [own, *top] if t[1] in at]
        check(all(row[at[t[1]]][0] == t[0] for row, t in known), "%d of them are the chosen and the likeliest" % len(known))


def test_batch(server):
    """Lists of one value for each prompt."""
    prompts = [[20, 21, 22], [23, 24]]
    answers = generate(server, {"input_ids": prompts, "return_logprob": [True, True], "logprob_start_len": [1, 1],
                                "token_ids_logprob": [[5, 6], None], "return_hidden_states": [False, False],
                                "return_text_in_logprobs": True}, max_new_tokens=3)
    first, second = (a["meta_info"] for a in answers)
    check([[t[1] for t in row] for row in first["output_token_ids_logprobs"]] == [[5, 6]] * 3, "one lists two tokens")
    check(all(isinstance(t[2], str) for row in first["output_token_ids_logprobs"] for t in row), "with their texts")
    check(len(first["input_token_ids_logprobs"]) == 2 and first["input_token_ids_logprobs"][0] is None,
          "from logprob_start_len on")
    check(second["output_token_ids_logprobs"] == [] and len(second["output_token_logprobs"]) == 3, "the other none")
    alone = generate(server, {"input_ids": prompts[0], "return_logprob": True, "logprob_start_len": 1,
                              "token_ids_logprob": [5, 6], "return_text_in_logprobs": True}, max_new_tokens=3)
    check(alone["meta_info"]["output_token_ids_logprobs"] == first["output_token_ids_logprobs"], "as alone")
    several = generate(server, {"input_ids": prompts[0], "return_logprob": True, "logprob_start_len": 0,
                                "token_ids_logprob": [5, 6]}, max_new_tokens=3, n=2)
    lists = [a["meta_info"]["input_token_ids_logprobs"] for a in several]
    check(len(lists[0]) == 3 and lists[0] == lists[1], "choices share the prompt's")
    plain = generate(server, {"text": "x", "token_ids_logprob": [5]}, max_new_tokens=1)
    check("output_token_ids_logprobs" not in plain["meta_info"], "without return_logprob there are none")
    for body, what in (({"text": "x", "return_logprob": True, "token_ids_logprob": [10 ** 6]}, "token_ids_logprob[0]"),
                       ({"text": "x", "return_logprob": True, "token_ids_logprob": [1] * 2049}, "2049"),
                       ({"text": "x", "return_logprob": True, "token_ids_logprob": [True]}, "token id")):
        refused(server, body, what)


def check_hidden(meta, prompt, ids, embedding):
    """The state of each token, times the head, is what the next one was predicted by."""
    first, *others = meta["hidden_states"]
    check(len(first) == len(prompt) and len(others) == len(ids) - 1, "a state of each token of the prompt, then of each that "
          "was fed back")
    check(all(len(state) == embedding.dim for state in first + others), "of the model's width")
    position = len(prompt) // 2
    for state, token, logprob in ((first[position - 1], prompt[position], meta["input_token_logprobs"][position][0]),
                                  (first[-1], ids[0], meta["output_token_logprobs"][0][0]),
                                  (others[-1], ids[-1], meta["output_token_logprobs"][-1][0])):
        logits = [sum(a * b for a, b in zip(state, embedding.row(t))) for t in range(embedding.vocab)]
        most = max(logits)
        found = logits[token] - most - math.log(sum(math.exp(v - most) for v in logits))
        # On CPUs that multiply bf16, the head rounds the state to it; another token's state is off by more than 1.
        check(abs(found - logprob) < 1e-2, "%.5f is %.5f by the state before it" % (logprob, found))


def test_hidden(server, embedding):
    prompt = list(range(40, 52))
    body = {"input_ids": prompt, "return_hidden_states": True, "return_logprob": True, "logprob_start_len": 0}
    answer = generate(server, body, max_new_tokens=4)
    check_hidden(answer["meta_info"], prompt, answer["output_ids"], embedding)
    again = generate(server, body, max_new_tokens=4)
    check(again["meta_info"]["hidden_states"] == answer["meta_info"]["hidden_states"], "a cached prompt has its states")
    alone = generate(server, {"input_ids": prompt, "return_hidden_states": True}, max_new_tokens=4, n=2)
    check(all(a["meta_info"]["hidden_states"] == answer["meta_info"]["hidden_states"] for a in alone),
          "and so have choices without log-probabilities")
    check("input_token_logprobs" not in alone[0]["meta_info"], "which show none")
    random.seed(3)
    long = [random.randrange(3, 6000) for _ in range(700)]
    states = generate(server, {"input_ids": long, "return_hidden_states": True}, max_new_tokens=1)["meta_info"]["hidden_states"]
    check(len(states) == 1 and len(states[0]) == 700, "a prompt of several steps has all of them")
    part = generate(server, {"input_ids": long[:500], "return_hidden_states": True}, max_new_tokens=1)
    check(states[0][:500] == part["meta_info"]["hidden_states"][0], "which are those of its beginning alone")


def essence(answer):
    meta = answer["meta_info"]
    return answer["text"], answer["output_ids"], meta["output_token_logprobs"], meta["output_top_logprobs"]


def test_embeds(server, embedding):
    """Rows of the embedding are as good as their tokens."""
    random.seed(5)
    ask = {"return_logprob": True, "top_logprobs_num": 3}
    for length in (1, 7, 600):
        prompt = [random.randrange(3, 6000) for _ in range(length)]
        rows = [embedding.row(t) for t in prompt]
        by_ids = generate(server, {"input_ids": prompt, **ask}, max_new_tokens=6)
        for _ in range(2):
            by_rows = generate(server, {"input_embeds": rows, **ask}, max_new_tokens=6)
            check(essence(by_rows) == essence(by_ids), "%d rows answer as their tokens do" % length)
            check(by_rows["meta_info"]["cached_tokens"] == 0 and by_rows["meta_info"]["prompt_tokens"] == length,
                  "and nothing is shared")
    other = [[v + 0.01 for v in row] for row in rows]
    check(essence(generate(server, {"input_embeds": other, **ask}, max_new_tokens=6)) != essence(by_ids),
          "other rows answer something else")
    short = [embedding.row(t) for t in (50, 51, 52)]
    both = generate(server, {"input_embeds": [short, short[:2]], **ask}, max_new_tokens=4)
    singles = [generate(server, {"input_ids": ids, **ask}, max_new_tokens=4) for ids in ([50, 51, 52], [50, 51])]
    check([essence(a) for a in both] == [essence(a) for a in singles], "several prompts at once")
    for body, what in (({"input_embeds": short, "input_ids": [1]}, "both given"),
                       ({"input_embeds": [[0.5] * (embedding.dim - 1)]}, str(embedding.dim)),
                       ({"input_embeds": [[0.5] * (embedding.dim - 1) + [None]]}, "finite numbers")):
        refused(server, body, what)


def test_beside_drafts(server):
    """In the steps of answers that are speculated for, which bring rows of their own."""
    ask = {"input_ids": list(range(60, 70)), "return_hidden_states": True, "return_logprob": True,
           "token_ids_logprob": [7, 8]}
    alone = generate(server, ask, max_new_tokens=24)
    answers = []
    busy = threading.Thread(target=lambda: answers.append(generate(
        server, {"text": PROMPT * 4, "return_logprob": True}, max_new_tokens=300)))
    busy.start()
    beside = [generate(server, ask, max_new_tokens=24) for _ in range(8)]
    busy.join(60)
    check(len(answers) == 1, "an answer with drafts")
    for b in beside:
        same = [b["meta_info"][n] == alone["meta_info"][n] for n in ("hidden_states", "output_token_ids_logprobs")]
        check(all(same), "rows have their own values")


def main(program, model, *options):
    embedding = Embedding(pathlib.Path(model))
    hidden = ("--enable-return-hidden-states", "--max-prefill-length", 512, *options)
    with Server(program, model, *hidden) as server:
        test_listed(server, embedding.vocab)
        test_batch(server)
        test_hidden(server, embedding)
        test_embeds(server, embedding)
        status, _ = server.call("/health")
        check(status == 200, "the server lives")
    with Server(program, model, *hidden, "--tp-size", 2) as server:
        test_batch(server)
        test_hidden(server, embedding)
        test_embeds(server, embedding)
    with Server(program, model, *hidden, "--speculative-algorithm", "SUFFIX") as server:
        test_beside_drafts(server)
    with Server(program, model, *options) as server:
        refused(server, {"text": "x", "return_hidden_states": True}, "--enable-return-hidden-states")


if __name__ == "__main__":
    main(*sys.argv[1:])
