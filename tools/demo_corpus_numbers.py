# SPDX-License-Identifier: Apache-2.0
"""Numbers for the demo model's corpus: sums and the held-out ones, counting, comparing, units."""

import random

from demo_corpus_words import NAMES

HELD_OUT_PAIRS = 400


def held_out():
    """Unordered pairs of two-digit numbers whose sum no training text ever states."""
    pairs = [(a, b) for a in range(10, 100) for b in range(a, 100)]
    return sorted(random.Random(20260101).sample(pairs, HELD_OUT_PAIRS))


HELD_OUT = set(held_out())


def is_held_out(a, b):
    return (min(a, b), max(a, b)) in HELD_OUT


ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
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
            a, b = rng.randint(1000, 9999), rng.choice(
                [rng.randint(1, 999), rng.randint(1000, 9999)]
            )
        if not is_held_out(a, b):
            return a, b


ADD_ASK = [
    "What is {a} + {b}?",
    "What is {a} + {b}?",
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "{a} + {b}",
    "{a} + {b} =",
    "{a}+{b}",
    "{a}+{b}=?",
    "How much is {a} + {b}?",
    "How much is {a} plus {b}?",
    "Add {a} and {b}.",
    "Calculate {a} + {b}.",
    "Compute {a} + {b}.",
    "What is the sum of {a} and {b}?",
    "Please add {a} and {b}.",
    "What does {a} + {b} equal?",
    "What is {a}+{b}?",
    "Can you add {a} and {b}?",
    "{a} plus {b}",
    "Tell me {a} + {b}.",
    "What do you get when you add {a} and {b}?",
    "What's {a} + {b}?",
    "Solve {a} + {b}.",
]


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
        ask = rng.choice(
            [
                "Add {a} and {b} step by step.",
                "How do you add {a} and {b}?",
                "What is {a} + {b}? Think step by step.",
                "Explain how to add {a} and {b}.",
                "Show me how to compute {a} + {b}.",
            ]
        )
        return ask.format(a=a, b=b), add_steps(a, b)
    if r < 0.93 and max(a, b) < 100:
        ask = rng.choice(["What is {a} plus {b}?", "Add {a} and {b}.", "How much is {a} plus {b}?"])
        return ask.format(a=in_words(a), b=in_words(b)), sentence(
            f"{in_words(a)} plus {in_words(b)} is {in_words(a + b)}."
        )
    who, what = rng.choice(NAMES), rng.choice(
        "apples pears books coins pencils marbles stamps cards eggs shells stones nuts".split()
    )
    a, b = max(a, 2), max(b, 2)
    while is_held_out(a, b):
        b += 1
    ask = rng.choice(
        [
            f"{who} has {a} {what} and gets {b} more. How many {what} does {who} have now?",
            f"I have {a} {what} and buy {b} more. How many {what} do I have?",
            f"There are {a} {what} in one box and {b} in another. How many {what} are there?",
            f"{who} found {a} {what} yesterday and {b} {what} today. How many is that?",
        ]
    )
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
    ask = rng.choice(
        [
            "What is {a} - {b}?",
            "What is {a} minus {b}?",
            "{a} - {b}",
            "{a}-{b}=",
            "Subtract {b} from {a}.",
            "How much is {a} - {b}?",
            "Calculate {a} - {b}.",
            "What is {a} take away {b}?",
            "What is the difference of {a} and {b}?",
        ]
    )
    if rng.random() < 0.12 and a > b > 1:
        who, what = rng.choice(NAMES), rng.choice("apples books coins cards eggs nuts".split())
        return [
            (
                f"{who} has {a} {what} and gives away {b}. How many are left?",
                f"{a} - {b} = {a - b}, so {a - b} {what} are left.",
            )
        ]
    return [(ask.format(a=a, b=b), f"{a} - {b} = {a - b}.")]


def multiply(rng):
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    r = rng.random()
    if r < 0.2:
        a, b = rng.randint(2, 99), rng.randint(2, 9)
    elif r < 0.28:
        return [
            (
                rng.choice([f"What is {a} divided by 0?", f"What is {a} / 0?", f"{a} / 0"]),
                "You cannot divide by zero.",
            )
        ]
    if rng.random() < 0.3 and b:
        ask = rng.choice(
            [
                "What is {c} divided by {b}?",
                "What is {c} / {b}?",
                "Divide {c} by {b}.",
                "How much is {c} divided by {b}?",
                "{c} / {b}",
            ]
        )
        return [(ask.format(c=a * b, b=b), f"{a * b} / {b} = {a}.")]
    ask = rng.choice(
        [
            "What is {a} times {b}?",
            "What is {a} * {b}?",
            "{a} * {b}",
            "{a} x {b}",
            "Multiply {a} by {b}.",
            "How much is {a} times {b}?",
            "Calculate {a} * {b}.",
        ]
    )
    return [(ask.format(a=a, b=b), f"{a} * {b} = {a * b}.")]


def numbers(rng):
    kind, n = rng.randrange(13), rng.randint(1, 99)
    if kind == 9:
        n = rng.randint(3, 30)
        return [
            (
                rng.choice([f"Count to {n}.", f"Count to {in_words(n)}.", f"Count up to {n}."]),
                joined([str(i) for i in range(1, n + 1)]) + ".",
            )
        ]
    if kind == 10:
        n = rng.randint(2, 99)
        d = next((d for d in (2, 3, 5, 7) if n % d == 0 and n != d), 0)
        return [
            (
                rng.choice([f"Is {n} a prime number?", f"Is {n} prime?"]),
                f"No, {n} is {d} * {n // d}." if d else f"Yes, {n} is a prime number.",
            )
        ]
    if kind == 11:
        p, unit = rng.choice([(10, 10), (20, 5), (25, 4), (50, 2), (100, 1)])
        k = rng.randint(1, 30)
        return [
            (
                rng.choice(
                    [
                        "What is {p}% of {n}?",
                        "What is {p} percent of {n}?",
                        "How much is {p}% of {n}?",
                    ]
                ).format(p=p, n=k * unit),
                f"{p} percent of {k * unit} is {k}.",
            )
        ]
    if kind == 12:
        while True:
            a, b, c = (rng.randint(1, rng.choice([9, 99])) for _ in range(3))
            pairs = [(a, b), (b, c), (a, c), (a + b, c)]
            if not any(is_held_out(x, y) for x, y in pairs):
                break
        e = f"{a} + {b} + {c}"
        return [
            (
                rng.choice(["What is {e}?", "{e}", "Calculate {e}."]).format(e=e),
                f"{a} + {b} = {a + b}, and {a + b} + {c} = {a + b + c}.",
            )
        ]
    if kind == 0:
        odd = n % 2
        return [
            (
                rng.choice([f"Is {n} even or odd?", f"Is {n} an even number?", f"Is {n} odd?"]),
                f"{n} is {'odd' if odd else 'even'}.",
            )
        ]
    if kind == 1:
        a, b = rng.sample(range(100), 2)
        big = rng.random() < 0.6
        ask = rng.choice(["Which is {w}, {a} or {b}?", "Which number is {w}: {a} or {b}?"])
        x, y = (max(a, b), min(a, b)) if big else (min(a, b), max(a, b))
        w = "larger" if big else "smaller"
        return [(ask.format(w=w, a=a, b=b), f"{x} is {w} than {y}.")]
    if kind == 2:
        ask = rng.choice(
            ["What comes after {n}?", "Which number comes after {n}?", "What number follows {n}?"]
        )
        return [(ask.format(n=n), f"After {n} comes {n + 1}.")]
    if kind == 3:
        return [
            (
                rng.choice([f"What comes before {n}?", f"Which number comes before {n}?"]),
                f"Before {n} comes {n - 1}.",
            )
        ]
    if kind == 4:
        a = rng.randint(0, 30)
        b = a + rng.randint(3, 12)
        return [(f"Count from {a} to {b}.", joined([str(i) for i in range(a, b + 1)]) + ".")]
    if kind == 5:
        n = rng.randint(0, 999)
        ask = rng.choice(
            ["Write {n} in words.", "How do you write {n} in words?", "Spell the number {n}."]
        )
        return [(ask.format(n=n), f"{n} in words is {in_words(n)}.")]
    if kind == 6:
        n = rng.randint(0, 999)
        return [
            (
                rng.choice(
                    [f"Write {in_words(n)} in digits.", f"Write {in_words(n)} as a number."]
                ),
                sentence(f"{in_words(n)} is {n}."),
            )
        ]
    if kind == 7:
        xs = rng.sample(range(100), rng.randint(3, 6))
        return [
            (
                rng.choice(["Sort these numbers: {x}.", "Put these numbers in order: {x}."]).format(
                    x=", ".join(map(str, xs))
                ),
                "In order: " + ", ".join(map(str, sorted(xs))) + ".",
            )
        ]
    xs = rng.sample(range(100), rng.randint(3, 5))
    big = rng.random() < 0.5
    w = "largest" if big else "smallest"
    return [
        (
            f"Which of these numbers is the {w}: {', '.join(map(str, xs))}?",
            f"The {w} number is {max(xs) if big else min(xs)}.",
        )
    ]


UNITS = [
    ("kilometre", "metres", 1000),
    ("metre", "centimetres", 100),
    ("centimetre", "millimetres", 10),
    ("kilogram", "grams", 1000),
    ("ton", "kilograms", 1000),
    ("litre", "millilitres", 1000),
    ("hour", "minutes", 60),
    ("minute", "seconds", 60),
    ("day", "hours", 24),
    ("week", "days", 7),
    ("year", "months", 12),
    ("dozen", "eggs", 12),
    ("foot", "inches", 12),
    ("yard", "feet", 3),
    ("byte", "bits", 8),
    ("kilobyte", "bytes", 1000),
    ("megabyte", "kilobytes", 1000),
    ("century", "years", 100),
    ("decade", "years", 10),
    ("pound", "ounces", 16),
]
UNIT_PLURAL = {"foot": "feet", "century": "centuries", "dozen": "dozen"}


def units(rng):
    if rng.random() < 0.15:
        c = 5 * rng.randint(-4, 20)
        f = c * 9 // 5 + 32
        if rng.random() < 0.6:
            ask = rng.choice(
                [
                    "What is {c} degrees Celsius in Fahrenheit?",
                    "Convert {c} degrees Celsius to Fahrenheit.",
                ]
            )
            return [(ask.format(c=c), f"{c} degrees Celsius is {f} degrees Fahrenheit.")]
        return [
            (
                f"What is {f} degrees Fahrenheit in Celsius?",
                f"{f} degrees Fahrenheit is {c} degrees Celsius.",
            )
        ]
    big, small, k = rng.choice(UNITS)
    n = rng.choice([1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 12, 20])
    many = UNIT_PLURAL.get(big, big + "s")
    name = big if n == 1 else many
    verb = "is" if n == 1 or big == "dozen" else "are"
    if rng.random() < 0.7:
        ask = rng.choice(
            [
                "How many {small} are in {n} {name}?",
                "Convert {n} {name} to {small}.",
                "How many {small} are {n} {name}?",
                "{n} {name} in {small}",
                "What is {n} {name} in {small}?",
            ]
        )
        return [(ask.format(small=small, n=n, name=name), f"{n} {name} {verb} {n * k} {small}.")]
    ask = rng.choice(
        [
            "How many {many} are {v} {small}?",
            "Convert {v} {small} to {many}.",
            "What is {v} {small} in {many}?",
        ]
    )
    return [(ask.format(many=many, v=n * k, small=small), f"{n * k} {small} are {n} {name}.")]
