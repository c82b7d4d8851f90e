# SPDX-License-Identifier: Apache-2.0
"""The world in the demo model's corpus: capitals, animals, colours, calendar, things, poems."""

from demo_corpus_facts import (
    ANIMALS,
    CAPITALS,
    CATEGORIES,
    COLOURS,
    CONTINENTS,
    DAYS,
    MIXES,
    MONTH_DAYS,
    MONTHS,
    NO_ARTICLE,
    ORDINALS,
    PLANET_TEXT,
    PLANETS,
    POEMS,
    SEASON_TEXT,
    SEASONS,
    SHAPES,
)
from demo_corpus_numbers import in_words, joined, plural, sentence
from demo_corpus_stories import article
from demo_corpus_words import NOUNS


def capitals(rng):
    country, city = rng.choice(list(CAPITALS.items()))
    kind = rng.randrange(8)
    if kind < 5:
        ask = rng.choice(
            [
                "What is the capital of {c}?",
                "What is the capital of {c}?",
                "Which city is the capital of {c}?",
                "Name the capital of {c}.",
                "Capital of {c}?",
                "Tell me the capital of {c}.",
                "what's the capital of {c}",
            ]
        )
        turns = [(ask.format(c=country), f"The capital of {country} is {city}.")]
        while rng.random() < 0.3:
            country, city = rng.choice(list(CAPITALS.items()))
            turns.append(
                (
                    rng.choice([f"And of {country}?", f"And {country}?", f"What about {country}?"]),
                    f"The capital of {country} is {city}.",
                )
            )
        return turns
    if kind < 7:
        if city == "London":
            country = "the United Kingdom"
        ask = rng.choice(
            [
                "{y} is the capital of which country?",
                "Of which country is {y} the capital?",
                "Where is {y}?",
                "In which country is {y}?",
                "Which country has the capital {y}?",
            ]
        )
        return [(ask.format(y=city), f"{sentence(city)} is the capital of {country}.")]
    continent = rng.choice(list(CONTINENTS))
    where = rng.choice(CONTINENTS[continent].replace("\n", "|").split("|"))
    return [
        (
            rng.choice([f"On which continent is {where}?", f"Where is {where}?"]),
            f"{sentence(where)} is in {continent}.",
        )
    ]


def animals(rng):
    name, (young, sound, home, legs, kind, food) = rng.choice(list(ANIMALS.items()))
    a = article(name)
    pairs = [
        (
            [
                "What is a baby {n} called?",
                "What do you call a young {n}?",
                "What is a young {n} called?",
            ],
            f"A young {name} is called {article(young)} {young}.",
        ),
        (
            [
                "What sound does {a} {n} make?",
                "What does {a} {n} say?",
                "Which sound does {a} {n} make?",
            ],
            f"{sentence(a)} {name} {sound}.",
        ),
        (
            ["Where does {a} {n} live?", "Where do you find {a} {n}?"],
            f"{sentence(a)} {name} lives {home}.",
        ),
        (
            ["How many legs does {a} {n} have?"],
            f"{sentence(a)} {name} has {in_words(legs) if legs else 'no'} legs.",
        ),
        (
            ["What kind of animal is {a} {n}?", "Is {a} {n} a mammal?", "What is {a} {n}?"],
            f"{sentence(a)} {name} is {article(kind)} {kind}.",
        ),
        (
            ["What does {a} {n} eat?", "What do you feed {a} {n}?"],
            f"{sentence(a)} {name} eats {food}.",
        ),
    ]
    if rng.random() < 0.1:
        other, (_, sound2, home2, _, kind2, _) = rng.choice(list(ANIMALS.items()))
        if other != name:
            b = article(other)
            ask = rng.choice(
                [
                    "What is the difference between {a} {n} and {b} {m}?",
                    "Compare {a} {n} and {b} {m}.",
                ]
            )
            return [
                (
                    ask.format(a=a, n=name, b=b, m=other),
                    f"{sentence(a)} {name} is {article(kind)} {kind}, {sound} and lives {home}. "
                    f"{sentence(b)} {other} is {article(kind2)} {kind2}, {sound2} and lives {home2}.",
                )
            ]
    if rng.random() < 0.12:
        k = rng.randint(2, 6)
        names = rng.sample(list(ANIMALS), k)
        return [
            (
                rng.choice([f"Name {in_words(k)} animals.", f"List {in_words(k)} animals."]),
                sentence(f"{in_words(k)} animals are: {joined(names)}."),
            )
        ]
    if rng.random() < 0.12:
        text = (
            f"{sentence(a)} {name} is {article(kind)} {kind}. It lives {home} and eats {food}. "
            f"A young {name} is called {article(young)} {young}."
        )
        return [
            (
                rng.choice(
                    [
                        "Tell me about the {n}.",
                        "What do you know about {a} {n}?",
                        "Describe {a} {n}.",
                    ]
                ).format(n=name, a=a),
                text,
            )
        ]
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
        ask = rng.choice(
            [
                "What do you get when you mix {x} and {y}?",
                "Mix {x} and {y}.",
                "Which colour do {x} and {y} make?",
                "What colour is {x} mixed with {y}?",
            ]
        )
        return [(ask.format(x=x, y=y), f"{sentence(x)} and {y} make {z}.")]
    if rng.random() < 0.1:
        cols = rng.sample(
            "red blue green yellow black white brown grey pink purple orange".split(),
            k := rng.randint(2, 5),
        )
        return [
            (
                f"Name {in_words(k)} colours.",
                sentence(f"{in_words(k)} colours are: {joined(cols)}."),
            )
        ]
    thing, col = rng.choice(list(COLOURS.items()))
    if rng.random() < 0.25:
        ask_col = (
            col
            if rng.random() < 0.5
            else rng.choice(
                "red blue green yellow black white brown grey pink purple orange".split()
            )
        )
        ask = rng.choice(
            [f"Is {thing} {ask_col}?", f"{sentence(thing)} is {ask_col}. True or false?"]
        )
        yes, no = ("True", "False") if ask.endswith("false?") else ("Yes", "No")
        return [(ask, f"{yes if ask_col == col else no}, {thing} is {col}.")]
    ask = rng.choice(
        [
            "What colour is {t}?",
            "What color is {t}?",
            "Which colour does {t} have?",
            "Tell me the colour of {t}.",
        ]
    )
    return [(ask.format(t=thing), f"{sentence(thing)} is {col}.")]


def calendar(rng):
    kind = rng.randrange(7)
    if kind < 4:
        names, what = (DAYS, "day") if kind < 2 else (MONTHS, "month")
        i = rng.randrange(len(names))
        after = rng.random() < 0.6
        k = (i + 1 if after else i - 1) % len(names)
        w = "after" if after else "before"
        ask = rng.choice(
            [
                "Which {what} comes {w} {x}?",
                "What {what} comes {w} {x}?",
                "What is the {what} {w} {x}?",
            ]
        )
        return [
            (ask.format(what=what, w=w, x=names[i]), f"{sentence(w)} {names[i]} comes {names[k]}.")
        ]
    i = rng.randrange(12)
    if kind == 4:
        return [
            (
                rng.choice(
                    [f"How many days does {MONTHS[i]} have?", f"How many days are in {MONTHS[i]}?"]
                ),
                (
                    f"{MONTHS[i]} has {MONTH_DAYS[i]} days."
                    if i != 1
                    else "February has 28 days, and 29 in a leap year."
                ),
            )
        ]
    if kind == 5:
        return [
            (
                rng.choice(
                    [
                        f"What is the {ORDINALS[i]} month of the year?",
                        f"Which month is the {ORDINALS[i]} one?",
                    ]
                ),
                f"The {ORDINALS[i]} month of the year is {MONTHS[i]}.",
            )
        ]
    s = rng.randrange(4)
    if rng.random() < 0.5:
        return [
            (
                rng.choice(
                    [f"Which season comes after {SEASONS[s]}?", f"What comes after {SEASONS[s]}?"]
                ),
                f"After {SEASONS[s]} comes {SEASONS[(s + 1) % 4]}.",
            )
        ]
    return [
        (
            rng.choice(
                [
                    f"What happens in {SEASONS[s]}?",
                    f"Tell me about {SEASONS[s]}.",
                    f"What is {SEASONS[s]} like?",
                ]
            ),
            SEASON_TEXT[SEASONS[s]],
        )
    ]


def planets(rng):
    i = rng.randrange(8)
    if rng.random() < 0.5:
        return [
            (
                rng.choice(
                    ["Tell me about {p}.", "What is {p}?", "What do you know about {p}?"]
                ).format(p=PLANETS[i]),
                PLANET_TEXT[PLANETS[i]],
            )
        ]
    if rng.random() < 0.5:
        return [
            (
                rng.choice(
                    [
                        f"What is the {ORDINALS[i]} planet from the Sun?",
                        f"Which planet is the {ORDINALS[i]} one from the Sun?",
                    ]
                ),
                f"The {ORDINALS[i]} planet from the Sun is {PLANETS[i]}.",
            )
        ]
    shape, n = rng.choice(list(SHAPES.items()))
    return [
        (
            rng.choice(
                [
                    f"How many sides does {article(shape)} {shape} have?",
                    f"How many corners does {article(shape)} {shape} have?",
                ]
            ),
            f"{sentence(article(shape))} {shape} has {in_words(n)} sides and {in_words(n)} corners.",
        )
    ]


IN_CATEGORY = {w for words in CATEGORIES.values() for w in words}


def categories(rng):
    kind = rng.choice(list(CATEGORIES))
    word = rng.choice(CATEGORIES[kind])
    bare = kind in NO_ARTICLE
    noun, a_kind = word if bare else f"{article(word)} {word}", f"{article(kind)} {kind}"
    r = rng.random()
    if r < 0.45:
        ask = rng.choice(
            [
                "What is {n}?",
                "What kind of thing is {n}?",
                "Explain what {n} is.",
                "Do you know what {n} is?",
            ]
        )
        return [(ask.format(n=noun), sentence(f"{noun} is {a_kind}."))]
    if r < 0.7:
        other = rng.choice(list(CATEGORIES))
        yes = rng.random() < 0.5 or word in CATEGORIES[other]
        asked = a_kind if yes else f"{article(other)} {other}"
        return [(f"Is {noun} {asked}?", f"{'Yes' if yes else 'No'}, {noun} is {a_kind}.")]
    many = {
        "piece of furniture": "pieces of furniture",
        "piece of clothing": "pieces of clothing",
        "part of the body": "parts of the body",
        "day of the week": "days of the week",
    }.get(kind, plural(kind))
    if r < 0.85 and len(CATEGORIES[kind]) > 2:
        k = rng.randint(2, min(5, len(CATEGORIES[kind])))
        return [
            (
                rng.choice(
                    [
                        f"Name {in_words(k)} {many}.",
                        f"List {in_words(k)} {many}.",
                        f"Tell me {in_words(k)} {many}.",
                    ]
                ),
                sentence(f"{in_words(k)} {many} are: {joined(rng.sample(CATEGORIES[kind], k))}."),
            )
        ]
    others = rng.sample([c for c in CATEGORIES if word not in CATEGORIES[c]], 2)
    words = [word] + [
        rng.choice([w for w in CATEGORIES[c] if w not in CATEGORIES[kind]]) for c in others
    ]
    rng.shuffle(words)
    return [
        (
            f"Which of these is {a_kind}: {words[0]}, {words[1]} or {words[2]}?",
            sentence(f"{noun} is {a_kind}."),
        )
    ]


def poem(rng):
    x = rng.choice(NOUNS)
    ask = rng.choice(
        [
            "Write a poem about {a} {x}.",
            "Write a short poem about {a} {x}.",
            "Can you write a poem about {a} {x}?",
            "Write me a poem about the {x}.",
            "Make a rhyme about {a} {x}.",
            "Write a poem.",
            "Write a short poem.",
        ]
    )
    return [
        (
            ask.format(a=article(x), x=x),
            rng.choice(POEMS).format(a=article(x), A=article(x).capitalize(), x=x),
        )
    ]
