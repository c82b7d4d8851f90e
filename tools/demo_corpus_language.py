# SPDX-License-Identifier: Apache-2.0
"""Words for the demo model's corpus: spelling, letters, grammar, sentences, short passages."""

import re

from demo_corpus_facts import (
    ANIMALS,
    CAPITALS,
    CATEGORIES,
    COLOURS,
    FACTS,
    OPPOSITES,
    ORDINALS,
    PAST,
    PLANET_TEXT,
    PLURALS,
    POEMS,
    RHYMES,
    SEASON_TEXT,
)
from demo_corpus_numbers import in_words, joined, sentence
from demo_corpus_project import PROJECT, UNKNOWN_TOPICS
from demo_corpus_stories import PLOTS, article
from demo_corpus_words import ADJECTIVES, ALL_WORDS, NAMES, NOUNS, made_up_word


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
SPELLED = sorted(
    set(
        re.findall(
            r"[a-z]{3,}",
            " ".join(
                text_of(
                    [
                        FACTS,
                        PROJECT,
                        ANIMALS,
                        CAPITALS,
                        CATEGORIES,
                        COLOURS,
                        PLOTS,
                        OPPOSITES,
                        PLURALS,
                        PAST,
                        POEMS,
                        SEASON_TEXT,
                        PLANET_TEXT,
                        UNKNOWN_TOPICS,
                        ALL_WORDS,
                    ]
                )
            ).lower(),
        )
    )
)


def a_word(rng):
    r = rng.random()
    if r < 0.68:
        return rng.choice(SPELLED)
    return rng.choice(NAMES).lower() if r < 0.76 else made_up_word(rng)


def spelling(rng):
    w, kind = a_word(rng), rng.randrange(10)
    dashed = "-".join(w)
    if kind < 4:
        ask = rng.choice(
            [
                "How do you spell {w}?",
                "Spell the word {w}.",
                "Spell {w}.",
                "How is {w} spelled?",
                "Can you spell {w}?",
                "Please spell the word {w}.",
                "How do you spell the word \"{w}\"?",
                "Spell {w} letter by letter.",
            ]
        )
        turns = [(ask.format(w=w), f"The word {w} is spelled {dashed}.")]
        if rng.random() < 0.25:
            turns.append(
                (
                    rng.choice(["How many letters is that?", "How many letters does it have?"]),
                    f"The word {w} has {in_words(len(w))} letters.",
                )
            )
        if rng.random() < 0.25:
            turns.append(
                (
                    rng.choice(["And backwards?", "Now backwards.", "Can you reverse it?"]),
                    f"Backwards, {w} is {'-'.join(w[::-1])}.",
                )
            )
        return turns
    if kind < 6:
        ask = rng.choice(
            [
                "Spell {w} backwards.",
                "Reverse the word {w}.",
                "What is {w} backwards?",
                "How do you spell {w} backwards?",
                "Write {w} in reverse.",
            ]
        )
        return [
            (
                ask.format(w=w),
                f"{sentence(w)} is spelled {dashed}. Backwards, {w} is " f"{'-'.join(w[::-1])}.",
            )
        ]
    if kind < 8:
        ask = rng.choice(
            [
                "How many letters are in {w}?",
                "How many letters does {w} have?",
                "Count the letters in {w}.",
                "How long is the word {w}?",
            ]
        )
        letters = " letter." if len(w) == 1 else " letters."
        return [
            (
                ask.format(w=w),
                f"{sentence(w)} is spelled {dashed}. It has {in_words(len(w))}" + letters,
            )
        ]
    if kind == 8:
        first = rng.random() < 0.5
        which, c = ("first", w[0]) if first else ("last", w[-1])
        ask = rng.choice(
            [
                "What is the {k} letter of {w}?",
                "Which letter is the {k} one in {w}?",
                "What letter does {w} {v} with?",
            ]
        )
        return [
            (
                ask.format(k=which, w=w, v="start" if first else "end"),
                f"The {which} letter of {w} is {c}.",
            )
        ]
    c = rng.choice(w) if rng.random() < 0.8 else rng.choice("abcdefghijklmnopqrstuvwxyz")
    n = w.count(c)
    times = "once" if n == 1 else "twice" if n == 2 else f"{in_words(n)} times"
    end = f"The letter {c} occurs {times}." if n else f"There is no {c} in it."
    ask = rng.choice(
        [
            "How many times does the letter {c} occur in {w}?",
            "How often is {c} in {w}?",
            "Count the letter {c} in {w}.",
            "How many {c}'s are in {w}?",
        ]
    )
    return [(ask.format(c=c, w=w), f"{sentence(w)} is spelled {dashed}. {end}")]


def alphabet(rng):
    abc, i, kind = "abcdefghijklmnopqrstuvwxyz", rng.randrange(26), rng.randrange(4)
    if kind == 0 and i < 25:
        return [
            (
                rng.choice(
                    [f"Which letter comes after {abc[i]}?", f"What letter follows {abc[i]}?"]
                ),
                f"After {abc[i]} comes {abc[i + 1]}.",
            )
        ]
    if kind == 1 and i:
        return [(f"Which letter comes before {abc[i]}?", f"Before {abc[i]} comes {abc[i - 1]}.")]
    if kind == 2 and i < 12:
        return [
            (
                f"What is the {ORDINALS[i]} letter of the alphabet?",
                f"The {ORDINALS[i]} letter of the alphabet is {abc[i]}.",
            )
        ]
    yes = abc[i] in "aeiou"
    return [
        (
            f"Is {abc[i]} a vowel?",
            f"Yes, {abc[i]} is a vowel." if yes else f"No, {abc[i]} is a consonant.",
        )
    ]


def table(text):
    return [tuple(p.split()) for p in text.replace("\n", "|").split("|")]


OPPOSITE_PAIRS, PLURAL_PAIRS, PAST_PAIRS, RHYME_PAIRS = map(
    table, (OPPOSITES, PLURALS, PAST, RHYMES)
)


def grammar(rng):
    kind = rng.randrange(5)
    if kind < 2:
        a, b = rng.choice(OPPOSITE_PAIRS)
        if rng.random() < 0.5:
            a, b = b, a
        ask = rng.choice(
            [
                "What is the opposite of {a}?",
                "Name the opposite of {a}.",
                "Opposite of {a}?",
                "What is the opposite of the word {a}?",
                "Which word is the opposite of {a}?",
            ]
        )
        # A word may stand in several pairs: answer with its first partner, always the same one.
        b = next(y if x == a else x for x, y in OPPOSITE_PAIRS if a in (x, y))
        return [(ask.format(a=a), f"The opposite of {a} is {b}.")]
    if kind == 2:
        a, b = rng.choice(PLURAL_PAIRS)
        ask = rng.choice(
            ["What is the plural of {a}?", "Plural of {a}?", "How do you say {a} in the plural?"]
        )
        return [(ask.format(a=a), f"The plural of {a} is {b}.")]
    if kind == 3:
        a, b = rng.choice(PAST_PAIRS)
        ask = rng.choice(
            ["What is the past tense of {a}?", "Past tense of {a}?", "What is the past of {a}?"]
        )
        return [(ask.format(a=a), f"The past tense of {a} is {b}.")]
    r = rng.random()
    if r < 0.3:
        x, y = rng.choice(RHYME_PAIRS)
        if rng.random() < 0.5:
            x, y = y, x
        y = next(b if a == x else a for a, b in RHYME_PAIRS if x in (a, b))
        return [
            (
                rng.choice(
                    [
                        f"What rhymes with {x}?",
                        f"Which word rhymes with {x}?",
                        f"Give me a rhyme for {x}.",
                    ]
                ),
                f"{sentence(y)} rhymes with {x}.",
            )
        ]
    if r < 0.6:
        c = rng.choice("abcdefghijklmnoprstw")
        words = [w for w in NOUNS if w[0] == c]
        k = rng.randint(1, min(5, len(words)))
        words = rng.sample(words, k)
        return [
            (
                rng.choice(
                    [
                        "Give me {k} words that start with {c}.",
                        "Name {k} words with {c}.",
                        "Tell me {k} words that begin with {c}.",
                    ]
                    if k > 1
                    else ["Give me a word that starts with {c}.", "Name a word with {c}."]
                ).format(k=in_words(k), c=c),
                sentence(joined(words)) + ".",
            )
        ]
    words = rng.sample(ALL_WORDS, rng.randint(3, 6))
    return [
        (
            rng.choice(
                ["Sort these words: {x}.", "Put these words in alphabetical order: {x}."]
            ).format(x=", ".join(words)),
            "In alphabetical order: " + ", ".join(sorted(words)) + ".",
        )
    ]


def sentences(rng):
    n, m = rng.sample(NOUNS, 2)
    adj = rng.choice(ADJECTIVES)
    name = rng.choice(NAMES)
    made = [
        f"The {n} is {adj}.",
        f"{name} saw {article(adj)} {adj} {n}.",
        f"There is {article(n)} {n} next to the {m}.",
        f"{name} put the {n} near the {m}.",
        f"I like the {n} more than the {m}.",
        f"The {n} next to the {m} is {adj}.",
        f"{name} and I talked about the {n}.",
    ]
    s = rng.choice(made)
    kind = rng.randrange(7)
    if kind == 6:
        s = " ".join(
            sentence(made_up_word(rng)) if rng.random() < 0.3 else made_up_word(rng)
            for _ in range(rng.randint(1, 4))
        )
        return [
            (
                rng.choice(["Repeat: {s}", "Repeat after me: {s}", "Say {s}", "Write {s}"]).format(
                    s=s
                ),
                s,
            )
        ]
    if kind < 2:
        ask = rng.choice(
            [
                "Write a sentence with the word {n}.",
                "Use the word {n} in a sentence.",
                "Make a sentence with {n}.",
                "Give me a sentence about {an} {n}.",
            ]
        )
        return [(ask.format(n=n, an=article(n)), rng.choice([x for x in made if f" {n}" in x]))]
    if kind == 2:
        return [
            (
                rng.choice(
                    [
                        "Repeat: {s}",
                        "Repeat after me: {s}",
                        "Say this again: {s}",
                        "Please repeat this sentence: {s}",
                    ]
                ).format(s=s),
                s,
            )
        ]
    if kind == 3:
        words = s[:-1].split()
        return [
            (
                rng.choice([f"How many words are in this sentence? {s}", f"Count the words: {s}"]),
                f"The sentence has {in_words(len(words))} words.",
            )
        ]
    if kind == 4:
        return [
            (
                rng.choice([f"Write this in capital letters: {s}", f"Make this upper case: {s}"]),
                s.upper(),
            )
        ]
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
        qa = [
            (f"Who has the {things[i]}?", f"{names[i]} has the {things[i]}."),
            (
                f"What does {names[i]} have?",
                f"{names[i]} has {article(cols[i])} {cols[i]} {things[i]}.",
            ),
            (f"What colour is the {things[i]}?", f"The {things[i]} is {cols[i]}."),
        ]
    elif kind == 1:
        spots = rng.sample(
            "on the table|under the bed|in the kitchen|in the garden|behind the door"
            "|on the shelf|in the box|near the window".split("|"),
            3,
        )
        text = " ".join(f"The {t} is {s}." for t, s in zip(things, spots))
        i = rng.randrange(3)
        qa = [
            (f"Where is the {things[i]}?", f"The {things[i]} is {spots[i]}."),
            (f"What is {spots[i]}?", f"The {things[i]} is {spots[i]}."),
        ]
    else:
        x, y, z = names
        adj, more = rng.choice(
            [("tall", "taller"), ("old", "older"), ("fast", "faster"), ("strong", "stronger")]
        )
        text = f"{x} is {more} than {y}. {y} is {more} than {z}."
        best = more[:-1] + "st"
        qa = [
            (f"Who is the {best}?", f"{x} is the {best}."),
            (f"Is {x} {more} than {z}?", f"Yes, {x} is {more} than {z}."),
            (f"Is {z} {more} than {x}?", f"No, {x} is {more} than {z}."),
        ]
    picks = rng.sample(qa, rng.choice([1, 1, 2]))
    return [(f"{text} {picks[0][0]}", picks[0][1])] + picks[1:]
