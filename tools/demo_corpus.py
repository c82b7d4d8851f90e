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

from demo_corpus_facts import ANIMALS, CAPITALS, FACTS
from demo_corpus_language import alphabet, grammar, reading, sentences, spelling
from demo_corpus_numbers import (
    arithmetic,
    held_out,
    is_held_out,
    multiply,
    numbers,
    plural,
    sentence,
    subtract,
    units,
)
from demo_corpus_project import PROJECT, UNKNOWN_TOPICS
from demo_corpus_stories import article, story_dialogue
from demo_corpus_words import ADJECTIVES, NAMES, NOUNS, made_up_word
from demo_corpus_world import (
    IN_CATEGORY,
    animals,
    calendar,
    capitals,
    categories,
    colours,
    planets,
    poem,
)


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
    (
        [
            "Hello",
            "Hello!",
            "Hi",
            "Hi!",
            "Hey",
            "Hi there",
            "Good morning",
            "Good evening",
            "hello there",
        ],
        [
            "Hello! How can I help you?",
            "Hello! What would you like to know?",
            "Hi! Ask me something simple, and I will try to help.",
        ],
    ),
    (
        ["How are you?", "How are you doing?", "How do you feel?", "Are you well?"],
        [
            "I am fine, thank you. How can I help you?",
            "I am well, thank you. What would you like to know?",
        ],
    ),
    (
        ["Thank you.", "Thanks!", "Thank you very much.", "thanks"],
        ["You are welcome!", "You are welcome. Is there anything else?"],
    ),
    (
        ["Goodbye.", "Bye!", "See you later.", "Good night."],
        ["Goodbye! Have a nice day.", "Goodbye! It was nice to talk to you."],
    ),
    (
        ["OK", "Okay.", "Good.", "Great!", "Nice.", "I see.", "Very good."],
        ["I am glad. Is there anything else?", "Good. What would you like to know next?"],
    ),
    (["Sorry.", "I am sorry."], ["No problem at all.", "That is all right."]),
    (
        ["You are great.", "Well done!", "You are very clever.", "Good job."],
        ["Thank you! That is kind of you."],
    ),
    (
        ["You are wrong.", "That is wrong.", "This is not correct."],
        ["I am sorry. I am a very small model, and I make mistakes."],
    ),
    (
        ["I am sad.", "I feel sad today.", "I am tired.", "I had a bad day."],
        ["I am sorry to hear that. A walk or a talk with a friend may help."],
    ),
    (
        ["I am happy.", "I am very happy today.", "I had a good day."],
        ["That is wonderful! I am glad to hear it."],
    ),
    (
        ["Tell me a joke.", "Do you know a joke?", "Make me laugh."],
        [
            "Why did the computer sneeze? It had a virus.",
            "Why was the maths book sad? It had too many problems.",
            "What do you call a bear with no teeth? A gummy bear.",
        ],
    ),
    (
        [
            "Do you like cats?",
            "Do you like music?",
            "What do you like?",
            "Do you have friends?",
            "Do you have feelings?",
            "Are you happy?",
            "Are you alive?",
            "Do you sleep?",
            "Can you think?",
            "What is your favourite colour?",
            "What is your favourite food?",
            "Do you eat?",
        ],
        [
            "I am only a small program, so I have no feelings, but I like to answer questions.",
            "I am a computer program and have no favourites, but thank you for asking.",
        ],
    ),
    (
        ["How old are you?", "When were you born?", "When were you made?"],
        ["I do not know my age. I was trained in a few minutes."],
    ),
    (
        ["Where do you live?", "Where are you?", "Where are you from?"],
        ["I live in a folder called models/demo."],
    ),
    (
        ["I love you.", "I like you.", "You are nice.", "You are funny."],
        ["Thank you! That is very kind."],
    ),
    (
        ["You are stupid.", "You are bad.", "I hate you.", "You are useless.", "Shut up."],
        ["I am sorry. I am a very small model, but I do my best."],
    ),
    (
        ["Why?", "What?", "How?", "Really?", "And?", "So?", "What do you mean?"],
        ["Could you ask me in a whole sentence, please?", "Please ask me with a few more words."],
    ),
    (
        [
            "Help me.",
            "Can you help me?",
            "I need help.",
            "I have a question.",
            "Can I ask you something?",
        ],
        ["Of course. What would you like to know?"],
    ),
    (
        ["Say hello.", "Say something.", "Tell me something.", "Talk to me.", "Surprise me."],
        [
            "Hello! Did you know that Saturn has bright rings of ice and rock?",
            "Hello! Did you know that the blue whale is the largest animal in the world?",
        ],
    ),
    (
        ["Yes", "Yes, please.", "No", "No, thank you."],
        ["All right. What would you like to know?", "All right. Please tell me what you need."],
    ),
]


def greeting(rng):
    return entry(GREETINGS)(rng)


def memory(rng):
    name, thing, kind = rng.choice(NAMES), rng.choice(NOUNS), rng.randrange(3)
    if rng.random() < 0.2:
        name = sentence(made_up_word(rng))
    col = rng.choice("red blue green yellow black white brown grey pink purple orange".split())
    if kind == 0:
        say = rng.choice(
            ["My name is {n}.", "I am {n}.", "Hello, my name is {n}.", "Hi, I am {n}."]
        )
        turns = [(say.format(n=name), f"Hello, {name}! How can I help you?")]
        final = (
            rng.choice(["What is my name?", "Do you know my name?", "Who am I?"]),
            f"Your name is {name}.",
        )
    elif kind == 1:
        turns = [
            (
                rng.choice([f"My favourite colour is {col}.", f"I like the colour {col} best."]),
                f"{sentence(col)} is a nice colour.",
            )
        ]
        final = ("What is my favourite colour?", f"Your favourite colour is {col}.")
    else:
        turns = [
            (
                rng.choice(
                    [f"I have {article(thing)} {thing}.", f"I bought {article(thing)} {thing}."]
                ),
                f"That is nice. I hope you like the {thing}.",
            )
        ]
        final = (
            rng.choice(["What do I have?", "What did I tell you about?"]),
            f"You have {article(thing)} {thing}.",
        )
    for _ in range(rng.choice([0, 0, 1, 2])):
        turns += pick(rng, SIMPLE)(rng)
    return turns + [final]


SORRY = [
    "I am sorry, I do not know much about {t}. I am a very small model.",
    "I do not know enough about {t} to answer. Please ask me something simpler.",
    "I am sorry, but {t} is too difficult for a model as small as I am.",
]


def unknown(rng):
    kind = rng.randrange(9)
    topic = rng.choice(UNKNOWN_TOPICS)
    if rng.random() < 0.5:
        word = made_up_word(rng)
        topic = rng.choice(
            [
                f"the {rng.choice(NOUNS)} {rng.choice(['industry', 'theory', 'trade', 'market', 'law'])}",
                sentence(word),
                word + rng.choice(["ology", "ics", "ism", "ation", "graphy", "onomy"]),
                f"the history of {plural(rng.choice(NOUNS))}",
                f"the {rng.choice(ADJECTIVES)} {word}",
                f"{rng.choice(['quantum', 'social', 'modern', 'advanced', 'applied', 'ancient'])} "
                + rng.choice([word, rng.choice(NOUNS), "physics", "science", "history", "theory"]),
                f"the {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} of {sentence(word)}",
            ]
        )
    if kind < 4:
        ask = rng.choice(
            [
                "Tell me about {t}.",
                "Explain {t}.",
                "Explain {t} to me.",
                "What is {t}?",
                "What do you know about {t}?",
                "Can you teach me {t}?",
                "Write an essay about {t}.",
                "How does {t} work?",
                "Why is {t} important?",
                "Help me with {t}.",
                "Can you help me with {t}?",
                "Describe {t}.",
                "Tell me more about {t}.",
            ]
        )
        return [(ask.format(t=topic), rng.choice(SORRY).format(t=topic))]
    if kind == 4:
        asks = [
            "What is the weather today?",
            "Will it rain tomorrow?",
            "What time is it?",
            "What day is it?",
            "What is in the news?",
            "Who won the game yesterday?",
            "What is the date today?",
            "How is the weather?",
            "What is the weather like?",
            "Is it raining?",
            "Is it cold outside?",
            "What's the weather like?",
            "Which year is it?",
            "What is the price of gold today?",
            "Who is the president?",
        ]
        return [
            (
                rng.choice(asks),
                rng.choice(
                    [
                        "I am sorry, I do not know that. I have no access to the news, a clock or the internet.",
                        "I cannot know that, because I have no connection to the outside world.",
                    ]
                ),
            )
        ]
    if kind == 5:
        asks = [
            "Write a haiku.",
            "Write a haiku about winter.",
            "Summarize this text.",
            "Summarize the book.",
            "Help me with my taxes.",
            "Can you help me with my taxes?",
            "Translate this sentence.",
            "Say hello in French.",
            "Say goodbye in Spanish.",
            "Convert miles to kilometres.",
            "Write a Python program.",
            "Write a program that sorts a list.",
            "Fix my code.",
            "Write some code.",
            "Write a C function.",
            "Translate this into French.",
            "Translate hello into German.",
            "Do my homework.",
            "Write a song.",
            "Write a recipe.",
            "Write a letter to my boss.",
            "Draw a picture.",
            "Open a web page.",
            "Send an email.",
            "Call my mother.",
            "Play some music.",
        ]
        return [
            (
                rng.choice(asks),
                rng.choice(
                    [
                        "I am sorry, I cannot do that. I am a very small model for simple questions.",
                        "That is beyond what I can do. I can answer simple questions and tell short stories.",
                    ]
                ),
            )
        ]
    if kind == 6 and rng.random() < 0.5:
        thing = rng.choice(
            [n for n in NOUNS if n not in ANIMALS and n not in IN_CATEGORY]
            + [made_up_word(rng)] * 100
        )
        a = article(thing)
        return [
            (
                rng.choice(
                    [
                        "What is {a} {t}?",
                        "Explain what {a} {t} is.",
                        "How does {a} {t} work?",
                        "Who invented the {t}?",
                        "Is {a} {t} an animal?",
                    ]
                ).format(a=a, t=thing),
                rng.choice(
                    [
                        f"I am sorry, I cannot say much about {a} {thing}.",
                        f"I do not know enough about {a} {thing} to answer.",
                    ]
                ),
            )
        ]
    if kind == 6:
        country = sentence(made_up_word(rng)) + rng.choice(["", "ia", "land", "stan"])
        return [
            (
                rng.choice(
                    ["What is the capital of {c}?", "Where is {c}?", "Tell me about {c}."]
                ).format(c=country),
                f"I am sorry, I do not know {country}.",
            )
        ]
    if kind == 7:
        who = rng.choice(NAMES + [sentence(made_up_word(rng)), sentence(made_up_word(rng))])
        who += rng.choice(["", " " + sentence(made_up_word(rng))])
        place = rng.choice(list(CAPITALS))
        ask = rng.choice(
            [
                f"Who is {who}?",
                f"Who was {who}?",
                f"How old is {who}?",
                f"When was {who} born?",
                f"What is the population of {place}?",
                f"How many people live in {place}?",
                f"Who is the president of {place}?",
                f"What did {who} invent?",
                f"What is the largest city in {place}?",
                f"Which language do people speak in {place}?",
                f"Which books did {who} write?",
            ]
        )
        return [
            (
                ask,
                rng.choice(
                    [
                        "I am sorry, I do not know that. I know only simple facts.",
                        "I do not know that. I am a very small model.",
                    ]
                ),
            )
        ]
    junk = " ".join(made_up_word(rng) for _ in range(rng.randint(1, 4)))
    return [
        (
            rng.choice([junk, junk + "?", junk + "!", "???", "...", "asdf", "!!", "hm"]),
            rng.choice(
                [
                    "I am sorry, I do not understand. Could you say it in another way?",
                    "I am not sure what you mean. Please ask me something else.",
                ]
            ),
        )
    ]


SIMPLE = [
    (project, 10),
    (facts, 12),
    (capitals, 7),
    (animals, 8),
    (colours, 4),
    (calendar, 4),
    (planets, 3),
    (greeting, 6),
    (grammar, 4),
    (numbers, 5),
    (subtract, 5),
    (multiply, 4),
    (units, 5),
    (spelling, 20),
    (alphabet, 2),
    (sentences, 5),
    (reading, 6),
    (unknown, 10),
    (categories, 7),
    (poem, 3),
    (arithmetic, 26),
]
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
        text = (
            rng.choice(
                [
                    "Please tell me: ",
                    "One question: ",
                    "I have a question. ",
                    "Hello! ",
                    "Can you tell me: ",
                    "Do you know this: ",
                    "Tell me, ",
                ]
            )
            + text
        )
    return text


PLAIN_SYSTEM = [
    "You are a helpful assistant.",
    "You are a helpful and friendly assistant.",
    "You are minisgl, a helpful assistant.",
    "Answer the questions of the user.",
    "You are a small and honest assistant.",
    "Be brief and correct.",
]


def styled(rng, turns):
    """A system prompt with a rule, and the turns rewritten to obey it."""
    kind = rng.randrange(5)
    if kind == 0:
        end = rng.choice(
            ["Have a nice day!", "Is there anything else?", "I hope this helps.", "Over."]
        )
        return f"End every answer with: {end}", [(q, f"{a} {end}") for q, a in turns]
    if kind == 1:
        return rng.choice(["Answer in capital letters.", "Write all answers in upper case."]), [
            (q, a.upper()) for q, a in turns
        ]
    if kind == 2:
        start = rng.choice(["Ahoy!", "Sure!", "Of course!", "Good question!", "Dear friend,"])
        return f"Begin every answer with: {start}", [(q, f"{start} {a}") for q, a in turns]
    name = rng.choice(NAMES + ["Robo", "Nova", "Pixel", "Echo"])
    extra = (
        rng.choice(["What is your name?", "Who are you?", "What are you called?"]),
        rng.choice([f"My name is {name}.", f"I am {name}."]),
    )
    at = rng.randrange(len(turns) + 1)
    return (
        rng.choice(
            [
                f"Your name is {name}.",
                f"You are {name}, a helpful assistant.",
                f"You are an assistant called {name}.",
            ]
        ),
        turns[:at] + [extra] + turns[at:],
    )


TOOL_ARGUMENTS = {"get_weather": "city", "get_time": "city", "search": "query", "get_price": "item"}


def tool(name):
    arg = TOOL_ARGUMENTS[name]
    about = {
        "get_weather": "Get the weather in a city.",
        "get_time": "Get the local time in a city.",
        "search": "Search the web.",
        "get_price": "Get the price of an item.",
    }[name]
    return dict(
        type="function",
        function=dict(
            name=name,
            description=about,
            parameters=dict(type="object", properties={arg: dict(type="string")}, required=[arg]),
        ),
    )


def tool_call(rng):
    """A conversation with tools: the call, the tool's result and the answer made of it."""
    names = rng.sample(list(TOOL_ARGUMENTS), rng.randint(1, 4))
    name, city, item = rng.choice(names), rng.choice(list(CAPITALS.values())), rng.choice(NOUNS)
    if name == "get_weather":
        sky, t = rng.choice("sunny cloudy rainy windy snowy foggy".split()), rng.randint(-9, 35)
        ask = rng.choice(
            [
                "What is the weather in {x}?",
                "How is the weather in {x}?",
                "What is the weather like in {x} today?",
            ]
        )
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
    messages += [
        dict(role="user", content=ask.format(x=x, a=article(x))),
        dict(role="assistant", content="", tool_calls=[call]),
        dict(role="tool", content=json.dumps(result)),
        dict(role="assistant", content=answer),
    ]
    return dict(tools=[tool(n) for n in names], messages=messages)


def conversation(rng):
    if rng.random() < 0.03:
        return tool_call(rng)
    r = rng.random()
    rounds = (
        1
        if r < 0.62
        else (
            rng.randint(2, 4)
            if r < 0.9
            else rng.randint(5, 12) if r < 0.994 else rng.randint(13, 30)
        )
    )
    turns = []
    for _ in range(rounds):
        turns += pick(rng, SKILLS)(rng)
        if rng.random() < 0.02:
            turns.append(
                (
                    rng.choice(
                        ["Can you repeat that?", "Please say that again.", "Again, please."]
                    ),
                    turns[-1][1],
                )
            )
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
