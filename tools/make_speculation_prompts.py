#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the prompts that `minisgl bench speculation` measures drafts with (docs/speculation.md): 20 edits of
a text, 20 answers in JSON whose keys come again, 20 programs with a small change, and 10 stories, which
repeat nothing, as the control.

    python3 tools/make_speculation_prompts.py > bench/speculation/prompts.jsonl

They are for any chat model. The demo model, too, repeats a story of its own when it is asked for it again, and
writes JSON and programs because a schema and a regex leave it nothing else: of a program the names alone are
to be chosen.
"""
import json
import random
import re
import sys

from demo_corpus_stories import story

CHANGES = [
    "Please say that again, but call {name} {other}.",
    "Please say that again, but with {other} in place of {name}.",
    "Can you repeat that? Write {other} for {name}.",
    "Please say that again. The name is {other}, not {name}.",
]
OTHERS = ["Tom", "Anna", "Paul", "Maria", "Ben"]


def edit(rng, i):
    hero = ["fox", "bear", "dog", "cat", "bird", "rabbit", "mouse", "horse", "duck", "lion"][i % 10]
    text, slots, _ = story(rng, hero=hero)
    other = rng.choice([o for o in OTHERS if o != slots["name"]])
    return dict(
        messages=[
            dict(role="user", content=f"Tell me a story about a {hero}."),
            dict(role="assistant", content=text),
            dict(role="user", content=CHANGES[i % 4].format(name=slots["name"], other=other)),
        ],
        max_tokens=300,
    )


# What records are of, and their fields: a list of texts, "count" or "flag".
RECORDS = [
    ("animals", dict(name=["Sam", "Tom", "Anna"], animal=["fox", "dog", "cat"], happy="flag")),
    ("orders", dict(item=["book", "lamp", "chair"], quantity="count", paid="flag")),
    ("cities", dict(city=["Rome", "Paris", "Oslo"], country=["Italy", "France", "Norway"], large="flag")),
    ("students", dict(student=["Anna", "Ben", "Maria"], grade=["A", "B", "C"], present="flag")),
    ("planets", dict(planet=["Mars", "Venus", "Saturn"], rings="flag", moons="count")),
    ("books", dict(title=["The House", "The Sea"], language=["English", "French"], pages="count")),
    ("events", dict(day=["Monday", "Friday"], event=["lesson", "meeting"], hours="count")),
    ("colours", dict(object=["door", "table", "wall"], colour=["red", "blue", "green"], bright="flag")),
    ("servers", dict(host=["north", "south", "east"], state=["up", "down"], errors="count")),
    ("trains", dict(line=["red", "blue"], station=["garden", "market"], late="flag", minutes="count")),
]


def field(kind):
    if kind == "count":
        return dict(type="integer", minimum=0, maximum=99)
    return dict(type="boolean") if kind == "flag" else dict(enum=kind)


def records(rng, i):
    what, fields = RECORDS[i % 10]
    count = 6 + 2 * (i // 10) + i % 3
    item = dict(
        type="object",
        properties={k: field(v) for k, v in fields.items()},
        required=list(fields),
        additionalProperties=False,
    )
    schema = dict(type="array", minItems=count, maxItems=count, items=item)
    ask = f"Write {count} {what} as a JSON array of objects with {', '.join(fields)}. Give me the JSON alone."
    return dict(
        messages=[dict(role="user", content=ask)],
        max_tokens=900,
        response_format=dict(type="json_schema", json_schema=dict(name=what, schema=schema)),
    )


# Programs: a block for each of some names, which %s and what stands for it in capitals are put into.
BLOCKS = [
    "def %s_total(items):\n    total = 0\n    for item in items:\n        total += item.%s\n    return total\n\n",
    "int get_%s(const config *c)\n{\n    return c->%s;\n}\n\n",
    "static void test_%s(void)\n{\n    assert_true(check(%s) == 0);\n}\n\n",
    "    case %s:\n        print(\"%s\");\n        break;\n",
    "@property\ndef %s(self):\n    return self._%s\n\n",
    "if (strcmp(key, \"%s\") == 0) {\n    out->%s = value;\n    return 0;\n}\n",
    "ALTER TABLE stock ADD COLUMN %s INTEGER NOT NULL DEFAULT 0;\nCREATE INDEX stock_%s ON stock (%s);\n",
    "app.get(\"/%s\", (request, answer) => {\n  answer.json(store.%s);\n});\n\n",
    "func (s *Shop) %s() int {\n\treturn s.%s\n}\n\n",
    "  - name: %s\n    image: registry/%s:latest\n    restart: always\n",
]
NAMES = ["price", "weight", "size", "count", "colour", "age", "length", "width", "height", "speed"]


def program(rng, i):
    block = BLOCKS[i % 10]
    names = rng.sample(NAMES, 5 + i // 10)
    old, new = names[1], rng.choice([n for n in NAMES if n not in names])
    code = "".join(block.replace("%s", n) for n in names)
    choice = "(" + "|".join(names + [new]) + ")"
    regex = "".join(
        choice.join(re.escape(part).replace("\\\n", "\n") for part in block.split("%s")) for _ in names
    )
    ask = f"Here is a part of a program:\n\n{code}\nWrite all of it again, with {new} in place of {old}. Give me the code alone."
    return dict(messages=[dict(role="user", content=ask)], max_tokens=900, regex=regex)


PROSE = [
    "Tell me a story about a fox and an old house.",
    "Write a short story about a brave bear.",
    "Tell me a story about a girl who finds a lost key.",
    "Please tell me a tale about a king and a farmer.",
    "Make up a story about a bird in a big city.",
    "I would like to hear a story about a sailor and a storm.",
    "Write a little story about a mouse with a red lamp.",
    "Tell me a short story about a wise old horse.",
    "Give me a story about a boy and a river.",
    "Tell me a story about a rabbit in the garden.",
]


def prose(_, i):
    return dict(messages=[dict(role="user", content=PROSE[i])], max_tokens=300)


def main():
    for name, make, count in (("edit", edit, 20), ("json", records, 20), ("code", program, 20), ("prose", prose, 10)):
        rng = random.Random(name)
        for i in range(count):
            line = dict({"class": name}, **make(rng, i))
            sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
