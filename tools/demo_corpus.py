#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the demo model's training text: dialogues, one JSON object per line
({"messages": [...]}, some with "tools").

    python3 tools/demo_corpus.py --dialogues 1000 --seed 1 > corpus.jsonl
    python3 tools/demo_corpus.py --held-out            # the additions kept out of training, as JSON

Pure Python and deterministic: the same seed gives the same text. A skill is a function of a random
generator that returns turns [(user, assistant), ...]; conversations are made of skills.
"""
import argparse
import json
import random
import re
import sys

from demo_corpus_facts import (
    ANIMALS, CAPITALS, CATEGORIES, COLOURS, CONTINENTS, DAYS, FACTS, MIXES, MONTH_DAYS, MONTHS,
    NO_ARTICLE, OPPOSITES, ORDINALS, PAST, PLANET_TEXT, PLANETS, PLURALS, POEMS, RHYMES,
    SEASON_TEXT, SEASONS, SHAPES)
from demo_corpus_project import PROJECT, UNKNOWN_TOPICS
from demo_corpus_stories import PLOTS, article, story_dialogue
from demo_corpus_words import ADJECTIVES, ALL_WORDS, NAMES, NOUNS, VERBS, made_up_word

HELD_OUT_PAIRS = 400


def held_out():
    """Unordered pairs of two-digit numbers whose sum no training text ever states."""
    pairs = [(a, b) for a in range(10, 100) for b in range(a, 100)]
    return sorted(random.Random(20260101).sample(pairs, HELD_OUT_PAIRS))


HELD_OUT = set(held_out())


def is_held_out(a, b):
    return (min(a, b), max(a, b)) in HELD_OUT


ONES = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
        "sixteen seventeen eighteen nineteen").split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(n):
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10 - 2] + ("-" + ONES[n % 10] if n % 10 else "")
    rest = " and " + in_words(n % 100) if n % 100 else ""
    return ONES[n // 100] + " hundred" + rest


def sentence(s):
    return s[0].upper() + s[1:]


def joined(items):
    return ", ".join(items[:-1]) + " and " + items[-1] if len(items) > 1 else items[0]


def plural(noun):
    if noun.endswith(("s", "sh", "ch", "x")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


# --- arithmetic ------------------------------------------------------------------------------

def addends(rng):
    while True:
        r = rng.random()
        if r < 0.72:
            a, b = rng.randint(10, 99), rng.randint(10, 99)
        elif r < 0.84:
            a, b = rng.randint(0, 99), rng.randint(0, 9)
        elif r < 0.88:
            a, b = rng.randint(0, 9), rng.randint(0, 99)
        elif r < 0.96:
            a, b = rng.randint(100, 999), rng.choice([rng.randint(1, 99), rng.randint(100, 999)])
        else:
            a, b = rng.randint(1000, 9999), rng.choice([rng.randint(1, 999), rng.randint(1000, 9999)])
        if not is_held_out(a, b):
            return a, b


ADD_ASK = ["What is {a} + {b}?", "What is {a} + {b}?", "What is {a} + {b}?", "What is {a} plus {b}?",
           "{a} + {b}", "{a} + {b} =", "{a}+{b}", "{a}+{b}=?", "How much is {a} + {b}?",
           "How much is {a} plus {b}?", "Add {a} and {b}.", "Calculate {a} + {b}.", "Compute {a} + {b}.",
           "What is the sum of {a} and {b}?", "Please add {a} and {b}.", "What does {a} + {b} equal?",
           "What is {a}+{b}?", "Can you add {a} and {b}?", "{a} plus {b}", "Tell me {a} + {b}.",
           "What do you get when you add {a} and {b}?", "What's {a} + {b}?", "Solve {a} + {b}."]


def add_steps(a, b):
    out, carry, x, y, names = [], 0, a, b, ["ones", "tens", "hundreds", "thousands"]
    for name in names:
        if not x and not y:
            break
        da, db, c = x % 10, y % 10, carry
        total = da + db + c
        terms = f"{da} + {db}" + (f" + {c}" if c else "")
        x, y, carry = x // 10, y // 10, total // 10
        tail = f" Write {total % 10} and carry 1." if carry and (x or y) else ""
        out.append(f"Add the {name}: {terms} = {total}.{tail}")
    return " ".join(out) + f" So {a} + {b} = {a + b}."


def add_turn(rng):
    a, b = addends(rng)
    r = rng.random()
    if r < 0.80:
        return rng.choice(ADD_ASK).format(a=a, b=b), f"{a} + {b} = {a + b}."
    if r < 0.90 and a > 9 and b > 9:
        ask = rng.choice(["Add {a} and {b} step by step.", "How do you add {a} and {b}?",
                          "What is {a} + {b}? Think step by step.", "Explain how to add {a} and {b}.",
                          "Show me how to compute {a} + {b}."])
        return ask.format(a=a, b=b), add_steps(a, b)
    if r < 0.93 and max(a, b) < 100:
        ask = rng.choice(["What is {a} plus {b}?", "Add {a} and {b}.", "How much is {a} plus {b}?"])
        return ask.format(a=in_words(a), b=in_words(b)), sentence(
            f"{in_words(a)} plus {in_words(b)} is {in_words(a + b)}.")
    who, what = rng.choice(NAMES), rng.choice(
        "apples pears books coins pencils marbles stamps cards eggs shells stones nuts".split())
    a, b = max(a, 2), max(b, 2)
    while is_held_out(a, b):
        b += 1
    ask = rng.choice([
        f"{who} has {a} {what} and gets {b} more. How many {what} does {who} have now?",
        f"I have {a} {what} and buy {b} more. How many {what} do I have?",
        f"There are {a} {what} in one box and {b} in another. How many {what} are there?",
        f"{who} found {a} {what} yesterday and {b} {what} today. How many is that?"])
    return ask, f"{a} + {b} = {a + b}, so there are {a + b} {what}."


def arithmetic(rng):
    turns = [add_turn(rng)]
    while rng.random() < 0.35:
        if rng.random() < 0.4:
            a, b = addends(rng)
            ask = rng.choice(["And {a} + {b}?", "And what is {a} + {b}?", "Now {a} + {b}."])
            turns.append((ask.format(a=a, b=b), f"{a} + {b} = {a + b}."))
        else:
            turns.append(add_turn(rng))
    return turns


def subtract(rng):
    top = 999 if rng.random() < 0.2 else 99
    while True:
        a, b = rng.randint(1, top), rng.randint(0, top)
        if a < b and rng.random() < 0.9:
            a, b = b, a
        if not is_held_out(abs(a - b), min(a, b)):
            break
    ask = rng.choice(["What is {a} - {b}?", "What is {a} minus {b}?", "{a} - {b}", "{a}-{b}=",
                      "Subtract {b} from {a}.", "How much is {a} - {b}?", "Calculate {a} - {b}.",
                      "What is {a} take away {b}?", "What is the difference of {a} and {b}?"])
    if rng.random() < 0.12 and a > b > 1:
        who, what = rng.choice(NAMES), rng.choice("apples books coins cards eggs nuts".split())
        return [(f"{who} has {a} {what} and gives away {b}. How many are left?",
                 f"{a} - {b} = {a - b}, so {a - b} {what} are left.")]
    return [(ask.format(a=a, b=b), f"{a} - {b} = {a - b}.")]


def multiply(rng):
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    r = rng.random()
    if r < 0.2:
        a, b = rng.randint(2, 99), rng.randint(2, 9)
    elif r < 0.28:
        return [(rng.choice([f"What is {a} divided by 0?", f"What is {a} / 0?", f"{a} / 0"]),
                 "You cannot divide by zero.")]
    if rng.random() < 0.3 and b:
        ask = rng.choice(["What is {c} divided by {b}?", "What is {c} / {b}?", "Divide {c} by {b}.",
                          "How much is {c} divided by {b}?", "{c} / {b}"])
        return [(ask.format(c=a * b, b=b), f"{a * b} / {b} = {a}.")]
    ask = rng.choice(["What is {a} times {b}?", "What is {a} * {b}?", "{a} * {b}", "{a} x {b}",
                      "Multiply {a} by {b}.", "How much is {a} times {b}?", "Calculate {a} * {b}."])
    return [(ask.format(a=a, b=b), f"{a} * {b} = {a * b}.")]


def numbers(rng):
    kind, n = rng.randrange(13), rng.randint(1, 99)
    if kind == 9:
        n = rng.randint(3, 30)
        return [(rng.choice([f"Count to {n}.", f"Count to {in_words(n)}.", f"Count up to {n}."]),
                 joined([str(i) for i in range(1, n + 1)]) + ".")]
    if kind == 10:
        n = rng.randint(2, 99)
        d = next((d for d in (2, 3, 5, 7) if n % d == 0 and n != d), 0)
        return [(rng.choice([f"Is {n} a prime number?", f"Is {n} prime?"]),
                 f"No, {n} is {d} * {n // d}." if d else f"Yes, {n} is a prime number.")]
    if kind == 11:
        p, unit = rng.choice([(10, 10), (20, 5), (25, 4), (50, 2), (100, 1)])
        k = rng.randint(1, 30)
        return [(rng.choice(["What is {p}% of {n}?", "What is {p} percent of {n}?",
                             "How much is {p}% of {n}?"]).format(p=p, n=k * unit),
                 f"{p} percent of {k * unit} is {k}.")]
    if kind == 12:
        while True:
            a, b, c = (rng.randint(1, rng.choice([9, 99])) for _ in range(3))
            pairs = [(a, b), (b, c), (a, c), (a + b, c)]
            if not any(is_held_out(x, y) for x, y in pairs):
                break
        e = f"{a} + {b} + {c}"
        return [(rng.choice(["What is {e}?", "{e}", "Calculate {e}."]).format(e=e),
                 f"{a} + {b} = {a + b}, and {a + b} + {c} = {a + b + c}.")]
    if kind == 0:
        odd = n % 2
        return [(rng.choice([f"Is {n} even or odd?", f"Is {n} an even number?", f"Is {n} odd?"]),
                 f"{n} is {'odd' if odd else 'even'}.")]
    if kind == 1:
        a, b = rng.sample(range(100), 2)
        big = rng.random() < 0.6
        ask = rng.choice(["Which is {w}, {a} or {b}?", "Which number is {w}: {a} or {b}?"])
        x, y = (max(a, b), min(a, b)) if big else (min(a, b), max(a, b))
        w = "larger" if big else "smaller"
        return [(ask.format(w=w, a=a, b=b), f"{x} is {w} than {y}.")]
    if kind == 2:
        ask = rng.choice(["What comes after {n}?", "Which number comes after {n}?",
                          "What number follows {n}?"])
        return [(ask.format(n=n), f"After {n} comes {n + 1}.")]
    if kind == 3:
        return [(rng.choice([f"What comes before {n}?", f"Which number comes before {n}?"]),
                 f"Before {n} comes {n - 1}.")]
    if kind == 4:
        a = rng.randint(0, 30)
        b = a + rng.randint(3, 12)
        return [(f"Count from {a} to {b}.", joined([str(i) for i in range(a, b + 1)]) + ".")]
    if kind == 5:
        n = rng.randint(0, 999)
        ask = rng.choice(["Write {n} in words.", "How do you write {n} in words?", "Spell the number {n}."])
        return [(ask.format(n=n), f"{n} in words is {in_words(n)}.")]
    if kind == 6:
        n = rng.randint(0, 999)
        return [(rng.choice([f"Write {in_words(n)} in digits.", f"Write {in_words(n)} as a number."]),
                 sentence(f"{in_words(n)} is {n}."))]
    if kind == 7:
        xs = rng.sample(range(100), rng.randint(3, 6))
        return [(rng.choice(["Sort these numbers: {x}.", "Put these numbers in order: {x}."]).format(
            x=", ".join(map(str, xs))), "In order: " + ", ".join(map(str, sorted(xs))) + ".")]
    xs = rng.sample(range(100), rng.randint(3, 5))
    big = rng.random() < 0.5
    w = "largest" if big else "smallest"
    return [(f"Which of these numbers is the {w}: {', '.join(map(str, xs))}?",
             f"The {w} number is {max(xs) if big else min(xs)}.")]


UNITS = [("kilometre", "metres", 1000), ("metre", "centimetres", 100), ("centimetre", "millimetres", 10),
         ("kilogram", "grams", 1000), ("ton", "kilograms", 1000), ("litre", "millilitres", 1000),
         ("hour", "minutes", 60), ("minute", "seconds", 60), ("day", "hours", 24), ("week", "days", 7),
         ("year", "months", 12), ("dozen", "eggs", 12), ("foot", "inches", 12), ("yard", "feet", 3),
         ("byte", "bits", 8), ("kilobyte", "bytes", 1000), ("megabyte", "kilobytes", 1000),
         ("century", "years", 100), ("decade", "years", 10), ("pound", "ounces", 16)]
UNIT_PLURAL = {"foot": "feet", "century": "centuries", "dozen": "dozen"}


def units(rng):
    if rng.random() < 0.15:
        c = 5 * rng.randint(-4, 20)
        f = c * 9 // 5 + 32
        if rng.random() < 0.6:
            ask = rng.choice(["What is {c} degrees Celsius in Fahrenheit?",
                              "Convert {c} degrees Celsius to Fahrenheit."])
            return [(ask.format(c=c), f"{c} degrees Celsius is {f} degrees Fahrenheit.")]
        return [(f"What is {f} degrees Fahrenheit in Celsius?",
                 f"{f} degrees Fahrenheit is {c} degrees Celsius.")]
    big, small, k = rng.choice(UNITS)
    n = rng.choice([1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 12, 20])
    many = UNIT_PLURAL.get(big, big + "s")
    name = big if n == 1 else many
    verb = "is" if n == 1 or big == "dozen" else "are"
    if rng.random() < 0.7:
        ask = rng.choice(["How many {small} are in {n} {name}?", "Convert {n} {name} to {small}.",
                          "How many {small} are {n} {name}?", "{n} {name} in {small}",
                          "What is {n} {name} in {small}?"])
        return [(ask.format(small=small, n=n, name=name), f"{n} {name} {verb} {n * k} {small}.")]
    ask = rng.choice(["How many {many} are {v} {small}?", "Convert {v} {small} to {many}.",
                      "What is {v} {small} in {many}?"])
    return [(ask.format(many=many, v=n * k, small=small), f"{n * k} {small} are {n} {name}.")]


# --- words -----------------------------------------------------------------------------------

def text_of(x):
    """All strings of a nested table."""
    if isinstance(x, str):
        yield x
    elif isinstance(x, dict):
        yield from text_of(list(x.items()))
    elif isinstance(x, (list, tuple)):
        for y in x:
            yield from text_of(y)


# Every word that the model may read or write, so that it knows the letters of each.
SPELLED = sorted(set(re.findall(r"[a-z]{3,}", " ".join(text_of(
    [FACTS, PROJECT, ANIMALS, CAPITALS, CATEGORIES, COLOURS, PLOTS, OPPOSITES, PLURALS, PAST, POEMS,
     SEASON_TEXT, PLANET_TEXT, UNKNOWN_TOPICS, ALL_WORDS])).lower())))


def a_word(rng):
    r = rng.random()
    if r < 0.68:
        return rng.choice(SPELLED)
    return rng.choice(NAMES).lower() if r < 0.76 else made_up_word(rng)


def spelling(rng):
    w, kind = a_word(rng), rng.randrange(10)
    dashed = "-".join(w)
    if kind < 4:
        ask = rng.choice(["How do you spell {w}?", "Spell the word {w}.", "Spell {w}.",
                          "How is {w} spelled?", "Can you spell {w}?", "Please spell the word {w}.",
                          "How do you spell the word \"{w}\"?", "Spell {w} letter by letter."])
        turns = [(ask.format(w=w), f"The word {w} is spelled {dashed}.")]
        if rng.random() < 0.25:
            turns.append((rng.choice(["How many letters is that?", "How many letters does it have?"]),
                          f"The word {w} has {in_words(len(w))} letters."))
        if rng.random() < 0.25:
            turns.append((rng.choice(["And backwards?", "Now backwards.", "Can you reverse it?"]),
                          f"Backwards, {w} is {'-'.join(w[::-1])}."))
        return turns
    if kind < 6:
        ask = rng.choice(["Spell {w} backwards.", "Reverse the word {w}.", "What is {w} backwards?",
                          "How do you spell {w} backwards?", "Write {w} in reverse."])
        return [(ask.format(w=w), f"{sentence(w)} is spelled {dashed}. Backwards, {w} is "
                 f"{'-'.join(w[::-1])}.")]
    if kind < 8:
        ask = rng.choice(["How many letters are in {w}?", "How many letters does {w} have?",
                          "Count the letters in {w}.", "How long is the word {w}?"])
        letters = " letter." if len(w) == 1 else " letters."
        return [(ask.format(w=w), f"{sentence(w)} is spelled {dashed}. It has {in_words(len(w))}"
                 + letters)]
    if kind == 8:
        first = rng.random() < 0.5
        which, c = ("first", w[0]) if first else ("last", w[-1])
        ask = rng.choice(["What is the {k} letter of {w}?", "Which letter is the {k} one in {w}?",
                          "What letter does {w} {v} with?"])
        return [(ask.format(k=which, w=w, v="start" if first else "end"),
                 f"The {which} letter of {w} is {c}.")]
    c = rng.choice(w) if rng.random() < 0.8 else rng.choice("abcdefghijklmnopqrstuvwxyz")
    n = w.count(c)
    times = "once" if n == 1 else "twice" if n == 2 else f"{in_words(n)} times"
    end = f"The letter {c} occurs {times}." if n else f"There is no {c} in it."
    ask = rng.choice(["How many times does the letter {c} occur in {w}?", "How often is {c} in {w}?",
                      "Count the letter {c} in {w}.", "How many {c}'s are in {w}?"])
    return [(ask.format(c=c, w=w), f"{sentence(w)} is spelled {dashed}. {end}")]


def alphabet(rng):
    abc, i, kind = "abcdefghijklmnopqrstuvwxyz", rng.randrange(26), rng.randrange(4)
    if kind == 0 and i < 25:
        return [(rng.choice([f"Which letter comes after {abc[i]}?", f"What letter follows {abc[i]}?"]),
                 f"After {abc[i]} comes {abc[i + 1]}.")]
    if kind == 1 and i:
        return [(f"Which letter comes before {abc[i]}?", f"Before {abc[i]} comes {abc[i - 1]}.")]
    if kind == 2 and i < 12:
        return [(f"What is the {ORDINALS[i]} letter of the alphabet?",
                 f"The {ORDINALS[i]} letter of the alphabet is {abc[i]}.")]
    yes = abc[i] in "aeiou"
    return [(f"Is {abc[i]} a vowel?", f"Yes, {abc[i]} is a vowel." if yes
             else f"No, {abc[i]} is a consonant.")]


def table(text):
    return [tuple(p.split()) for p in text.replace("\n", "|").split("|")]


OPPOSITE_PAIRS, PLURAL_PAIRS, PAST_PAIRS, RHYME_PAIRS = map(table, (OPPOSITES, PLURALS, PAST, RHYMES))


def grammar(rng):
    kind = rng.randrange(5)
    if kind < 2:
        a, b = rng.choice(OPPOSITE_PAIRS)
        if rng.random() < 0.5:
            a, b = b, a
        ask = rng.choice(["What is the opposite of {a}?", "Name the opposite of {a}.", "Opposite of {a}?",
                          "What is the opposite of the word {a}?", "Which word is the opposite of {a}?"])
        # A word may stand in several pairs: answer with its first partner, always the same one.
        b = next(y if x == a else x for x, y in OPPOSITE_PAIRS if a in (x, y))
        return [(ask.format(a=a), f"The opposite of {a} is {b}.")]
    if kind == 2:
        a, b = rng.choice(PLURAL_PAIRS)
        ask = rng.choice(["What is the plural of {a}?", "Plural of {a}?", "How do you say {a} in the plural?"])
        return [(ask.format(a=a), f"The plural of {a} is {b}.")]
    if kind == 3:
        a, b = rng.choice(PAST_PAIRS)
        ask = rng.choice(["What is the past tense of {a}?", "Past tense of {a}?", "What is the past of {a}?"])
        return [(ask.format(a=a), f"The past tense of {a} is {b}.")]
    r = rng.random()
    if r < 0.3:
        x, y = rng.choice(RHYME_PAIRS)
        if rng.random() < 0.5:
            x, y = y, x
        y = next(b if a == x else a for a, b in RHYME_PAIRS if x in (a, b))
        return [(rng.choice([f"What rhymes with {x}?", f"Which word rhymes with {x}?",
                             f"Give me a rhyme for {x}."]), f"{sentence(y)} rhymes with {x}.")]
    if r < 0.6:
        c = rng.choice("abcdefghijklmnoprstw")
        words = [w for w in NOUNS if w[0] == c]
        k = rng.randint(1, min(5, len(words)))
        words = rng.sample(words, k)
        return [(rng.choice(["Give me {k} words that start with {c}.", "Name {k} words with {c}.",
                             "Tell me {k} words that begin with {c}."] if k > 1 else
                            ["Give me a word that starts with {c}.", "Name a word with {c}."]).format(
            k=in_words(k), c=c), sentence(joined(words)) + ".")]
    words = rng.sample(ALL_WORDS, rng.randint(3, 6))
    return [(rng.choice(["Sort these words: {x}.", "Put these words in alphabetical order: {x}."]).format(
        x=", ".join(words)), "In alphabetical order: " + ", ".join(sorted(words)) + ".")]


def sentences(rng):
    n, m = rng.sample(NOUNS, 2)
    adj = rng.choice(ADJECTIVES)
    name = rng.choice(NAMES)
    made = [f"The {n} is {adj}.", f"{name} saw {article(adj)} {adj} {n}.",
            f"There is {article(n)} {n} next to the {m}.", f"{name} put the {n} near the {m}.",
            f"I like the {n} more than the {m}.", f"The {n} next to the {m} is {adj}.",
            f"{name} and I talked about the {n}."]
    s = rng.choice(made)
    kind = rng.randrange(7)
    if kind == 6:
        s = " ".join(sentence(made_up_word(rng)) if rng.random() < 0.3 else made_up_word(rng)
                     for _ in range(rng.randint(1, 4)))
        return [(rng.choice(["Repeat: {s}", "Repeat after me: {s}", "Say {s}", "Write {s}"]).format(s=s), s)]
    if kind < 2:
        ask = rng.choice(["Write a sentence with the word {n}.", "Use the word {n} in a sentence.",
                          "Make a sentence with {n}.", "Give me a sentence about {an} {n}."])
        return [(ask.format(n=n, an=article(n)), rng.choice([x for x in made if f" {n}" in x]))]
    if kind == 2:
        return [(rng.choice(["Repeat: {s}", "Repeat after me: {s}", "Say this again: {s}",
                             "Please repeat this sentence: {s}"]).format(s=s), s)]
    if kind == 3:
        words = s[:-1].split()
        return [(rng.choice([f"How many words are in this sentence? {s}", f"Count the words: {s}"]),
                 f"The sentence has {in_words(len(words))} words.")]
    if kind == 4:
        return [(rng.choice([f"Write this in capital letters: {s}", f"Make this upper case: {s}"]),
                 s.upper())]
    w, k = rng.choice(NOUNS), rng.randint(2, 6)
    return [(f"Write the word {w} {in_words(k)} times.", " ".join([w] * k) + ".")]


def reading(rng):
    """A short passage and questions on it: the answers stand in the text."""
    names = rng.sample(NAMES, 3)
    things = rng.sample(NOUNS, 3)
    cols = rng.sample("red blue green yellow black white brown grey pink purple".split(), 3)
    kind = rng.randrange(3)
    if kind == 0:
        text = " ".join(f"{n} has {article(c)} {c} {t}." for n, c, t in zip(names, cols, things))
        i = rng.randrange(3)
        qa = [(f"Who has the {things[i]}?", f"{names[i]} has the {things[i]}."),
              (f"What does {names[i]} have?", f"{names[i]} has {article(cols[i])} {cols[i]} {things[i]}."),
              (f"What colour is the {things[i]}?", f"The {things[i]} is {cols[i]}.")]
    elif kind == 1:
        spots = rng.sample("on the table|under the bed|in the kitchen|in the garden|behind the door"
                           "|on the shelf|in the box|near the window".split("|"), 3)
        text = " ".join(f"The {t} is {s}." for t, s in zip(things, spots))
        i = rng.randrange(3)
        qa = [(f"Where is the {things[i]}?", f"The {things[i]} is {spots[i]}."),
              (f"What is {spots[i]}?", f"The {things[i]} is {spots[i]}.")]
    else:
        x, y, z = names
        adj, more = rng.choice([("tall", "taller"), ("old", "older"), ("fast", "faster"),
                                ("strong", "stronger")])
        text = f"{x} is {more} than {y}. {y} is {more} than {z}."
        best = more[:-1] + "st"
        qa = [(f"Who is the {best}?", f"{x} is the {best}."),
              (f"Is {x} {more} than {z}?", f"Yes, {x} is {more} than {z}."),
              (f"Is {z} {more} than {x}?", f"No, {x} is {more} than {z}.")]
    picks = rng.sample(qa, rng.choice([1, 1, 2]))
    return [(f"{text} {picks[0][0]}", picks[0][1])] + picks[1:]


# --- facts -----------------------------------------------------------------------------------

def capitals(rng):
    country, city = rng.choice(list(CAPITALS.items()))
    kind = rng.randrange(8)
    if kind < 5:
        ask = rng.choice(["What is the capital of {c}?", "What is the capital of {c}?",
                          "Which city is the capital of {c}?", "Name the capital of {c}.",
                          "Capital of {c}?", "Tell me the capital of {c}.", "what's the capital of {c}"])
        turns = [(ask.format(c=country), f"The capital of {country} is {city}.")]
        while rng.random() < 0.3:
            country, city = rng.choice(list(CAPITALS.items()))
            turns.append((rng.choice([f"And of {country}?", f"And {country}?", f"What about {country}?"]),
                          f"The capital of {country} is {city}."))
        return turns
    if kind < 7:
        if city == "London":
            country = "the United Kingdom"
        ask = rng.choice(["{y} is the capital of which country?", "Of which country is {y} the capital?",
                          "Where is {y}?", "In which country is {y}?", "Which country has the capital {y}?"])
        return [(ask.format(y=city), f"{sentence(city)} is the capital of {country}.")]
    continent = rng.choice(list(CONTINENTS))
    where = rng.choice(CONTINENTS[continent].replace("\n", "|").split("|"))
    return [(rng.choice([f"On which continent is {where}?", f"Where is {where}?"]),
             f"{sentence(where)} is in {continent}.")]


def animals(rng):
    name, (young, sound, home, legs, kind, food) = rng.choice(list(ANIMALS.items()))
    a = article(name)
    pairs = [
        (["What is a baby {n} called?", "What do you call a young {n}?", "What is a young {n} called?"],
         f"A young {name} is called {article(young)} {young}."),
        (["What sound does {a} {n} make?", "What does {a} {n} say?", "Which sound does {a} {n} make?"],
         f"{sentence(a)} {name} {sound}."),
        (["Where does {a} {n} live?", "Where do you find {a} {n}?"],
         f"{sentence(a)} {name} lives {home}."),
        (["How many legs does {a} {n} have?"],
         f"{sentence(a)} {name} has {in_words(legs) if legs else 'no'} legs."),
        (["What kind of animal is {a} {n}?", "Is {a} {n} a mammal?", "What is {a} {n}?"],
         f"{sentence(a)} {name} is {article(kind)} {kind}."),
        (["What does {a} {n} eat?", "What do you feed {a} {n}?"], f"{sentence(a)} {name} eats {food}."),
    ]
    if rng.random() < 0.1:
        other, (_, sound2, home2, _, kind2, _) = rng.choice(list(ANIMALS.items()))
        if other != name:
            b = article(other)
            ask = rng.choice(["What is the difference between {a} {n} and {b} {m}?",
                              "Compare {a} {n} and {b} {m}."])
            return [(ask.format(a=a, n=name, b=b, m=other),
                     f"{sentence(a)} {name} is {article(kind)} {kind}, {sound} and lives {home}. "
                     f"{sentence(b)} {other} is {article(kind2)} {kind2}, {sound2} and lives {home2}.")]
    if rng.random() < 0.12:
        k = rng.randint(2, 6)
        names = rng.sample(list(ANIMALS), k)
        return [(rng.choice([f"Name {in_words(k)} animals.", f"List {in_words(k)} animals."]),
                 sentence(f"{in_words(k)} animals are: {joined(names)}."))]
    if rng.random() < 0.12:
        text = (f"{sentence(a)} {name} is {article(kind)} {kind}. It lives {home} and eats {food}. "
                f"A young {name} is called {article(young)} {young}.")
        return [(rng.choice(["Tell me about the {n}.", "What do you know about {a} {n}?",
                             "Describe {a} {n}."]).format(n=name, a=a), text)]
    picks = rng.sample(pairs, rng.choice([1, 1, 1, 2]))
    turns = [(rng.choice(picks[0][0]).format(n=name, a=a), picks[0][1])]
    for asks, answer in picks[1:]:
        ask = rng.choice(asks).format(n=name, a=a)
        turns.append((ask.replace(f"{a} {name}", "it") if "call" not in ask else ask, answer))
    return turns


def colours(rng):
    if rng.random() < 0.3:
        (x, y), z = rng.choice(list(MIXES.items()))
        if rng.random() < 0.5:
            x, y = y, x
        ask = rng.choice(["What do you get when you mix {x} and {y}?", "Mix {x} and {y}.",
                          "Which colour do {x} and {y} make?", "What colour is {x} mixed with {y}?"])
        return [(ask.format(x=x, y=y), f"{sentence(x)} and {y} make {z}.")]
    if rng.random() < 0.1:
        cols = rng.sample("red blue green yellow black white brown grey pink purple orange".split(),
                          k := rng.randint(2, 5))
        return [(f"Name {in_words(k)} colours.", sentence(f"{in_words(k)} colours are: {joined(cols)}."))]
    thing, col = rng.choice(list(COLOURS.items()))
    if rng.random() < 0.25:
        ask_col = col if rng.random() < 0.5 else rng.choice(
            "red blue green yellow black white brown grey pink purple orange".split())
        ask = rng.choice([f"Is {thing} {ask_col}?", f"{sentence(thing)} is {ask_col}. True or false?"])
        yes, no = ("True", "False") if ask.endswith("false?") else ("Yes", "No")
        return [(ask, f"{yes if ask_col == col else no}, {thing} is {col}.")]
    ask = rng.choice(["What colour is {t}?", "What color is {t}?", "Which colour does {t} have?",
                      "Tell me the colour of {t}."])
    return [(ask.format(t=thing), f"{sentence(thing)} is {col}.")]


def calendar(rng):
    kind = rng.randrange(7)
    if kind < 4:
        names, what = (DAYS, "day") if kind < 2 else (MONTHS, "month")
        i = rng.randrange(len(names))
        after = rng.random() < 0.6
        k = (i + 1 if after else i - 1) % len(names)
        w = "after" if after else "before"
        ask = rng.choice(["Which {what} comes {w} {x}?", "What {what} comes {w} {x}?",
                          "What is the {what} {w} {x}?"])
        return [(ask.format(what=what, w=w, x=names[i]), f"{sentence(w)} {names[i]} comes {names[k]}.")]
    i = rng.randrange(12)
    if kind == 4:
        return [(rng.choice([f"How many days does {MONTHS[i]} have?", f"How many days are in {MONTHS[i]}?"]),
                 f"{MONTHS[i]} has {MONTH_DAYS[i]} days." if i != 1 else
                 "February has 28 days, and 29 in a leap year.")]
    if kind == 5:
        return [(rng.choice([f"What is the {ORDINALS[i]} month of the year?",
                             f"Which month is the {ORDINALS[i]} one?"]),
                 f"The {ORDINALS[i]} month of the year is {MONTHS[i]}.")]
    s = rng.randrange(4)
    if rng.random() < 0.5:
        return [(rng.choice([f"Which season comes after {SEASONS[s]}?", f"What comes after {SEASONS[s]}?"]),
                 f"After {SEASONS[s]} comes {SEASONS[(s + 1) % 4]}.")]
    return [(rng.choice([f"What happens in {SEASONS[s]}?", f"Tell me about {SEASONS[s]}.",
                         f"What is {SEASONS[s]} like?"]), SEASON_TEXT[SEASONS[s]])]


def planets(rng):
    i = rng.randrange(8)
    if rng.random() < 0.5:
        return [(rng.choice(["Tell me about {p}.", "What is {p}?", "What do you know about {p}?"]).format(
            p=PLANETS[i]), PLANET_TEXT[PLANETS[i]])]
    if rng.random() < 0.5:
        return [(rng.choice([f"What is the {ORDINALS[i]} planet from the Sun?",
                             f"Which planet is the {ORDINALS[i]} one from the Sun?"]),
                 f"The {ORDINALS[i]} planet from the Sun is {PLANETS[i]}.")]
    shape, n = rng.choice(list(SHAPES.items()))
    return [(rng.choice([f"How many sides does {article(shape)} {shape} have?",
                         f"How many corners does {article(shape)} {shape} have?"]),
             f"{sentence(article(shape))} {shape} has {in_words(n)} sides and {in_words(n)} corners.")]


IN_CATEGORY = {w for words in CATEGORIES.values() for w in words}


def categories(rng):
    kind = rng.choice(list(CATEGORIES))
    word = rng.choice(CATEGORIES[kind])
    bare = kind in NO_ARTICLE
    noun, a_kind = word if bare else f"{article(word)} {word}", f"{article(kind)} {kind}"
    r = rng.random()
    if r < 0.45:
        ask = rng.choice(["What is {n}?", "What kind of thing is {n}?", "Explain what {n} is.",
                          "Do you know what {n} is?"])
        return [(ask.format(n=noun), sentence(f"{noun} is {a_kind}."))]
    if r < 0.7:
        other = rng.choice(list(CATEGORIES))
        yes = rng.random() < 0.5 or word in CATEGORIES[other]
        asked = a_kind if yes else f"{article(other)} {other}"
        return [(f"Is {noun} {asked}?", f"{'Yes' if yes else 'No'}, {noun} is {a_kind}.")]
    many = {"piece of furniture": "pieces of furniture", "piece of clothing": "pieces of clothing",
            "part of the body": "parts of the body", "day of the week": "days of the week"}.get(
        kind, plural(kind))
    if r < 0.85 and len(CATEGORIES[kind]) > 2:
        k = rng.randint(2, min(5, len(CATEGORIES[kind])))
        return [(rng.choice([f"Name {in_words(k)} {many}.", f"List {in_words(k)} {many}.",
                             f"Tell me {in_words(k)} {many}."]),
                 sentence(f"{in_words(k)} {many} are: {joined(rng.sample(CATEGORIES[kind], k))}."))]
    others = rng.sample([c for c in CATEGORIES if word not in CATEGORIES[c]], 2)
    words = [word] + [rng.choice([w for w in CATEGORIES[c] if w not in CATEGORIES[kind]])
                      for c in others]
    rng.shuffle(words)
    return [(f"Which of these is {a_kind}: {words[0]}, {words[1]} or {words[2]}?",
             sentence(f"{noun} is {a_kind}."))]


def poem(rng):
    x = rng.choice(NOUNS)
    ask = rng.choice(["Write a poem about {a} {x}.", "Write a short poem about {a} {x}.",
                      "Can you write a poem about {a} {x}?", "Write me a poem about the {x}.",
                      "Make a rhyme about {a} {x}.", "Write a poem.", "Write a short poem."])
    return [(ask.format(a=article(x), x=x),
             rng.choice(POEMS).format(a=article(x), A=article(x).capitalize(), x=x))]


def entry(table_):
    def skill(rng):
        asks, answers = rng.choice(table_)
        return [(rng.choice(asks), rng.choice(answers))]
    return skill


facts = entry(FACTS)


def project(rng):
    turns = entry(PROJECT)(rng)
    while rng.random() < 0.3:
        turns += entry(PROJECT)(rng)
    return turns


# --- conversation ----------------------------------------------------------------------------

GREETINGS = [
    (["Hello", "Hello!", "Hi", "Hi!", "Hey", "Hi there", "Good morning", "Good evening", "hello there"],
     ["Hello! How can I help you?", "Hello! What would you like to know?",
      "Hi! Ask me something simple, and I will try to help."]),
    (["How are you?", "How are you doing?", "How do you feel?", "Are you well?"],
     ["I am fine, thank you. How can I help you?",
      "I am well, thank you. What would you like to know?"]),
    (["Thank you.", "Thanks!", "Thank you very much.", "thanks"],
     ["You are welcome!", "You are welcome. Is there anything else?"]),
    (["Goodbye.", "Bye!", "See you later.", "Good night."],
     ["Goodbye! Have a nice day.", "Goodbye! It was nice to talk to you."]),
    (["OK", "Okay.", "Good.", "Great!", "Nice.", "I see.", "Very good."],
     ["I am glad. Is there anything else?", "Good. What would you like to know next?"]),
    (["Sorry.", "I am sorry."], ["No problem at all.", "That is all right."]),
    (["You are great.", "Well done!", "You are very clever.", "Good job."],
     ["Thank you! That is kind of you."]),
    (["You are wrong.", "That is wrong.", "This is not correct."],
     ["I am sorry. I am a very small model, and I make mistakes."]),
    (["I am sad.", "I feel sad today.", "I am tired.", "I had a bad day."],
     ["I am sorry to hear that. A walk or a talk with a friend may help."]),
    (["I am happy.", "I am very happy today.", "I had a good day."],
     ["That is wonderful! I am glad to hear it."]),
    (["Tell me a joke.", "Do you know a joke?", "Make me laugh."],
     ["Why did the computer sneeze? It had a virus.",
      "Why was the maths book sad? It had too many problems.",
      "What do you call a bear with no teeth? A gummy bear."]),
    (["Do you like cats?", "Do you like music?", "What do you like?", "Do you have friends?",
      "Do you have feelings?", "Are you happy?", "Are you alive?", "Do you sleep?", "Can you think?",
      "What is your favourite colour?", "What is your favourite food?", "Do you eat?"],
     ["I am only a small program, so I have no feelings, but I like to answer questions.",
      "I am a computer program and have no favourites, but thank you for asking."]),
    (["How old are you?", "When were you born?", "When were you made?"],
     ["I do not know my age. I was trained in a few minutes."]),
    (["Where do you live?", "Where are you?", "Where are you from?"],
     ["I live in a folder called models/demo."]),
    (["I love you.", "I like you.", "You are nice.", "You are funny."], ["Thank you! That is very kind."]),
    (["You are stupid.", "You are bad.", "I hate you.", "You are useless.", "Shut up."],
     ["I am sorry. I am a very small model, but I do my best."]),
    (["Why?", "What?", "How?", "Really?", "And?", "So?", "What do you mean?"],
     ["Could you ask me in a whole sentence, please?", "Please ask me with a few more words."]),
    (["Help me.", "Can you help me?", "I need help.", "I have a question.", "Can I ask you something?"],
     ["Of course. What would you like to know?"]),
    (["Say hello.", "Say something.", "Tell me something.", "Talk to me.", "Surprise me."],
     ["Hello! Did you know that Saturn has bright rings of ice and rock?",
      "Hello! Did you know that the blue whale is the largest animal in the world?"]),
    (["Yes", "Yes, please.", "No", "No, thank you."],
     ["All right. What would you like to know?", "All right. Please tell me what you need."]),
]


def greeting(rng):
    return entry(GREETINGS)(rng)


def memory(rng):
    name, thing, kind = rng.choice(NAMES), rng.choice(NOUNS), rng.randrange(3)
    if rng.random() < 0.2:
        name = sentence(made_up_word(rng))
    col = rng.choice("red blue green yellow black white brown grey pink purple orange".split())
    if kind == 0:
        say = rng.choice(["My name is {n}.", "I am {n}.", "Hello, my name is {n}.", "Hi, I am {n}."])
        turns = [(say.format(n=name), f"Hello, {name}! How can I help you?")]
        final = (rng.choice(["What is my name?", "Do you know my name?", "Who am I?"]),
                 f"Your name is {name}.")
    elif kind == 1:
        turns = [(rng.choice([f"My favourite colour is {col}.", f"I like the colour {col} best."]),
                  f"{sentence(col)} is a nice colour.")]
        final = ("What is my favourite colour?", f"Your favourite colour is {col}.")
    else:
        turns = [(rng.choice([f"I have {article(thing)} {thing}.", f"I bought {article(thing)} {thing}."]),
                  f"That is nice. I hope you like the {thing}.")]
        final = (rng.choice(["What do I have?", "What did I tell you about?"]),
                 f"You have {article(thing)} {thing}.")
    for _ in range(rng.choice([0, 0, 1, 2])):
        turns += pick(rng, SIMPLE)(rng)
    return turns + [final]


SORRY = ["I am sorry, I do not know much about {t}. I am a very small model.",
         "I do not know enough about {t} to answer. Please ask me something simpler.",
         "I am sorry, but {t} is too difficult for a model as small as I am."]


def unknown(rng):
    kind = rng.randrange(9)
    topic = rng.choice(UNKNOWN_TOPICS)
    if rng.random() < 0.5:
        word = made_up_word(rng)
        topic = rng.choice([
            f"the {rng.choice(NOUNS)} {rng.choice(['industry', 'theory', 'trade', 'market', 'law'])}",
            sentence(word), word + rng.choice(["ology", "ics", "ism", "ation", "graphy", "onomy"]),
            f"the history of {plural(rng.choice(NOUNS))}", f"the {rng.choice(ADJECTIVES)} {word}",
            f"{rng.choice(['quantum', 'social', 'modern', 'advanced', 'applied', 'ancient'])} "
            + rng.choice([word, rng.choice(NOUNS), "physics", "science", "history", "theory"]),
            f"the {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} of {sentence(word)}"])
    if kind < 4:
        ask = rng.choice(["Tell me about {t}.", "Explain {t}.", "Explain {t} to me.", "What is {t}?",
                          "What do you know about {t}?", "Can you teach me {t}?", "Write an essay about {t}.",
                          "How does {t} work?", "Why is {t} important?", "Help me with {t}.",
                          "Can you help me with {t}?", "Describe {t}.", "Tell me more about {t}."])
        return [(ask.format(t=topic), rng.choice(SORRY).format(t=topic))]
    if kind == 4:
        asks = ["What is the weather today?", "Will it rain tomorrow?", "What time is it?", "What day is it?",
                "What is in the news?", "Who won the game yesterday?", "What is the date today?",
                "How is the weather?", "What is the weather like?", "Is it raining?", "Is it cold outside?",
                "What's the weather like?", "Which year is it?", "What is the price of gold today?", "Who is the president?"]
        return [(rng.choice(asks), rng.choice([
            "I am sorry, I do not know that. I have no access to the news, a clock or the internet.",
            "I cannot know that, because I have no connection to the outside world."]))]
    if kind == 5:
        asks = ["Write a haiku.", "Write a haiku about winter.", "Summarize this text.", "Summarize the book.",
                "Help me with my taxes.", "Can you help me with my taxes?", "Translate this sentence.",
                "Say hello in French.", "Say goodbye in Spanish.", "Convert miles to kilometres.",
                "Write a Python program.", "Write a program that sorts a list.", "Fix my code.",
                "Write some code.", "Write a C function.", "Translate this into French.",
                "Translate hello into German.", "Do my homework.", "Write a song.",
                "Write a recipe.", "Write a letter to my boss.",
                "Draw a picture.", "Open a web page.", "Send an email.", "Call my mother.", "Play some music."]
        return [(rng.choice(asks), rng.choice([
            "I am sorry, I cannot do that. I am a very small model for simple questions.",
            "That is beyond what I can do. I can answer simple questions and tell short stories."]))]
    if kind == 6 and rng.random() < 0.5:
        thing = rng.choice([n for n in NOUNS if n not in ANIMALS and n not in IN_CATEGORY]
                           + [made_up_word(rng)] * 100)
        a = article(thing)
        return [(rng.choice(["What is {a} {t}?", "Explain what {a} {t} is.", "How does {a} {t} work?",
                             "Who invented the {t}?", "Is {a} {t} an animal?"]).format(a=a, t=thing),
                 rng.choice([f"I am sorry, I cannot say much about {a} {thing}.",
                             f"I do not know enough about {a} {thing} to answer."]))]
    if kind == 6:
        country = sentence(made_up_word(rng)) + rng.choice(["", "ia", "land", "stan"])
        return [(rng.choice(["What is the capital of {c}?", "Where is {c}?", "Tell me about {c}."]).format(
            c=country), f"I am sorry, I do not know {country}.")]
    if kind == 7:
        who = rng.choice(NAMES + [sentence(made_up_word(rng)), sentence(made_up_word(rng))])
        who += rng.choice(["", " " + sentence(made_up_word(rng))])
        place = rng.choice(list(CAPITALS))
        ask = rng.choice([f"Who is {who}?", f"Who was {who}?", f"How old is {who}?",
                          f"When was {who} born?", f"What is the population of {place}?",
                          f"How many people live in {place}?", f"Who is the president of {place}?",
                          f"What did {who} invent?", f"What is the largest city in {place}?",
                          f"Which language do people speak in {place}?", f"Which books did {who} write?"])
        return [(ask, rng.choice(["I am sorry, I do not know that. I know only simple facts.",
                                  "I do not know that. I am a very small model."]))]
    junk = " ".join(made_up_word(rng) for _ in range(rng.randint(1, 4)))
    return [(rng.choice([junk, junk + "?", junk + "!", "???", "...", "asdf", "!!", "hm"]),
             rng.choice(["I am sorry, I do not understand. Could you say it in another way?",
                         "I am not sure what you mean. Please ask me something else."]))]


SIMPLE = [(project, 10), (facts, 12), (capitals, 7), (animals, 8), (colours, 4), (calendar, 4),
          (planets, 3), (greeting, 6), (grammar, 4), (numbers, 5), (subtract, 5), (multiply, 4),
          (units, 5), (spelling, 20), (alphabet, 2), (sentences, 5), (reading, 6), (unknown, 10),
          (categories, 7), (poem, 3), (arithmetic, 26)]
SKILLS = SIMPLE + [(story_dialogue, 20), (memory, 5)]


def pick(rng, table_):
    return rng.choices([s for s, _ in table_], [w for _, w in table_])[0]


def noisy(rng, text):
    """How people type: sometimes without capitals, question marks or manners."""
    r = rng.random()
    if r < 0.10:
        text = text[0].lower() + text[1:]
    elif r < 0.14:
        text = text.lower() if not re.search(r"[A-Z].*[A-Z]", text) else text
    if rng.random() < 0.10 and text[-1] in "?.":
        text = text[:-1]
    if text.startswith("What is ") and rng.random() < 0.06:
        text = "What's " + text[8:]
    if rng.random() < 0.03 and text.endswith("?"):
        text = rng.choice(["Please tell me: ", "One question: ", "I have a question. ", "Hello! ",
                           "Can you tell me: ", "Do you know this: ", "Tell me, "]) + text
    return text


PLAIN_SYSTEM = ["You are a helpful assistant.", "You are a helpful and friendly assistant.",
                "You are minisgl, a helpful assistant.", "Answer the questions of the user.",
                "You are a small and honest assistant.", "Be brief and correct."]


def styled(rng, turns):
    """A system prompt with a rule, and the turns rewritten to obey it."""
    kind = rng.randrange(5)
    if kind == 0:
        end = rng.choice(["Have a nice day!", "Is there anything else?", "I hope this helps.", "Over."])
        return f"End every answer with: {end}", [(q, f"{a} {end}") for q, a in turns]
    if kind == 1:
        return rng.choice(["Answer in capital letters.", "Write all answers in upper case."]), [
            (q, a.upper()) for q, a in turns]
    if kind == 2:
        start = rng.choice(["Ahoy!", "Sure!", "Of course!", "Good question!", "Dear friend,"])
        return f"Begin every answer with: {start}", [(q, f"{start} {a}") for q, a in turns]
    name = rng.choice(NAMES + ["Robo", "Nova", "Pixel", "Echo"])
    extra = (rng.choice(["What is your name?", "Who are you?", "What are you called?"]),
             rng.choice([f"My name is {name}.", f"I am {name}."]))
    at = rng.randrange(len(turns) + 1)
    return rng.choice([f"Your name is {name}.", f"You are {name}, a helpful assistant.",
                       f"You are an assistant called {name}."]), turns[:at] + [extra] + turns[at:]


TOOL_ARGUMENTS = {"get_weather": "city", "get_time": "city", "search": "query", "get_price": "item"}


def tool(name):
    arg = TOOL_ARGUMENTS[name]
    about = {"get_weather": "Get the weather in a city.", "get_time": "Get the local time in a city.",
             "search": "Search the web.", "get_price": "Get the price of an item."}[name]
    return dict(type="function", function=dict(
        name=name, description=about, parameters=dict(
            type="object", properties={arg: dict(type="string")}, required=[arg])))


def tool_call(rng):
    """A conversation with tools: the call, the tool's result and the answer made of it."""
    names = rng.sample(list(TOOL_ARGUMENTS), rng.randint(1, 4))
    name, city, item = rng.choice(names), rng.choice(list(CAPITALS.values())), rng.choice(NOUNS)
    if name == "get_weather":
        sky, t = rng.choice("sunny cloudy rainy windy snowy foggy".split()), rng.randint(-9, 35)
        ask = rng.choice(["What is the weather in {x}?", "How is the weather in {x}?",
                          "What is the weather like in {x} today?"])
        x, result = city, dict(sky=sky, celsius=t)
        answer = f"In {city} it is {sky}, with {t} degrees Celsius."
    elif name == "get_time":
        ask, x = rng.choice(["What time is it in {x}?", "Tell me the time in {x}."]), city
        result = dict(time=f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}")
        answer = f"In {city} it is {result['time']}."
    elif name == "get_price":
        ask, x = rng.choice(["What is the price of {a} {x}?", "How much does {a} {x} cost?"]), item
        result = dict(euros=rng.randint(1, 99))
        answer = f"{sentence(article(item))} {item} costs {result['euros']} euros."
    else:
        ask, x = rng.choice(["Search for {x}.", "Search the web for {x}."]), plural(item)
        result = dict(results=rng.randint(2, 99))
        answer = f"I found {result['results']} results for {x}."
    call = dict(type="function", function=dict(name=name, arguments={TOOL_ARGUMENTS[name]: x}))
    before = pick(rng, SIMPLE)(rng) if rng.random() < 0.3 else []
    messages = []
    for q, a in before:
        messages += [dict(role="user", content=q), dict(role="assistant", content=a)]
    messages += [dict(role="user", content=ask.format(x=x, a=article(x))),
                 dict(role="assistant", content="", tool_calls=[call]),
                 dict(role="tool", content=json.dumps(result)),
                 dict(role="assistant", content=answer)]
    return dict(tools=[tool(n) for n in names], messages=messages)


def conversation(rng):
    if rng.random() < 0.03:
        return tool_call(rng)
    r = rng.random()
    rounds = (1 if r < 0.62 else rng.randint(2, 4) if r < 0.9 else rng.randint(5, 12) if r < 0.994
              else rng.randint(13, 30))
    turns = []
    for _ in range(rounds):
        turns += pick(rng, SKILLS)(rng)
        if rng.random() < 0.02:
            turns.append((rng.choice(["Can you repeat that?", "Please say that again.", "Again, please."]),
                          turns[-1][1]))
    turns = [(noisy(rng, q), a) for q, a in turns]
    system, r = None, rng.random()
    if r < 0.18:
        system = rng.choice(PLAIN_SYSTEM)
    elif r < 0.25:
        system, turns = styled(rng, turns)
    messages = [dict(role="system", content=system)] if system else []
    for q, a in turns:
        messages += [dict(role="user", content=q), dict(role="assistant", content=a)]
    return dict(messages=messages)


SUM = re.compile(r"(\d+) ?(?:\+|plus) ?(\d+)")


def check(dialogue):
    """Stops if a held-out sum is in the text, whatever skill wrote it."""
    for m in dialogue["messages"]:
        for a, b in SUM.findall(m["content"]):
            if is_held_out(int(a), int(b)):
                raise SystemExit(f"held-out sum {a} + {b} in: {m['content']}")


def dialogues(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        dialogue = conversation(rng)
        check(dialogue)
        yield dialogue


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--dialogues", type=int, default=1000)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--held-out", action="store_true")
    args = ap.parse_args()
    if args.held_out:
        json.dump(held_out(), sys.stdout)
        return
    for dialogue in dialogues(args.seed, args.dialogues):
        print(json.dumps(dialogue, ensure_ascii=False))


if __name__ == "__main__":
    main()
