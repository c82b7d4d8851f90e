# SPDX-License-Identifier: Apache-2.0
"""Short stories from a grammar: {a|b} chooses, [slot] inserts, "a(n)" becomes the right article."""
import re

from demo_corpus_words import ADJECTIVES, NAMES as PEOPLE, NOUNS, made_up_word

HEROES = """fox|wolf|bear|rabbit|mouse|owl|cat|dog|frog|turtle|duck|goose|hen|horse|donkey|goat
sheep|pig|cow|lion|tiger|elephant|monkey|penguin|seal|whale|dolphin|crab|snail|bee|butterfly
spider|ant|squirrel|hedgehog|deer|eagle|raven|swan|parrot|kitten|puppy|dragon|giant|ghost|witch
wizard|king|queen|prince|princess|knight|farmer|fisherman|baker|sailor|pirate|teacher|doctor
painter|musician|robot|computer|snowman|boy|girl|child|old man|old woman|dwarf|fairy|shepherd
tailor|miller|soldier|astronaut|star|cloud|tree|river|train|boat|kite|teapot|lamp|clock""".replace("\n", "|").split("|")
HELPERS = """owl|bear|rabbit|mouse|turtle|squirrel|hedgehog|deer|raven|swan|duck|frog|bee|cat|dog
horse|goat|old man|old woman|farmer|baker|sailor|boy|girl|shepherd|wise owl|friendly giant""".replace(
    "\n", "|").split("|")
EXTRA = """bird crow lighthouse unicorn mermaid spaceship princess elf troll snowflake wizard
sparrow rooster otter beaver panda koala camel ladybird firefly cricket lobster octopus starfish
goldfish hamster windmill bridge mountain castle violin cupcake pumpkin snowball rainbow raindrop
pencil teddy nurse fireman policeman captain hunter emperor magician detective scientist inventor
baby grandmother grandfather programmer engineer""".split()
ADJS = """small|brave|clever|lonely|curious|kind|hungry|shy|lazy|proud|cheerful|sleepy|young|old
quiet|gentle|friendly|tiny|happy|careful|honest|patient""".replace("\n", "|").split("|")
NAMES = """Leo|Mia|Max|Nina|Oscar|Ruby|Tim|Lily|Hugo|Ella|Finn|Rosa|Sam|Zoe|Otto|Ida|Bruno|Clara
Felix|Luna|Toby|Alma|Pip|Nora""".replace("\n", "|").split("|")
PLACES = """in the forest|near a river|by the sea|on a hill|in a small village|in the mountains
on a farm|on an island|at the edge of a meadow|in an old castle|in a big city|beside a lake
in a green valley|in a garden|in the desert""".replace("\n", "|").split("|")
THINGS = """golden key|silver bell|old map|red apple|blue stone|small lamp|wooden box|lost letter
green feather|glass bottle|magic seed|shiny coin|warm scarf|little drum|book of songs|paper boat""".replace("\n", "|").split("|")

OPENINGS = [
    "Once upon a time, there was a(n) [adj] [hero] who lived [place]. {The [hero] was called [name].|"
    "[Its] name was [name].}",
    "A(n) [adj] [hero] called [name] lived [place].",
    "Long ago, a(n) [adj] [hero] named [name] lived [place].",
    "There once was a(n) [adj] [hero] [place]. [Its] name was [name].",
]

PLOTS = [
    # a thing is found and given back
    ["{One morning|One day|One sunny day}, [name] found a(n) [thing] {on the path|under a tree|in the grass}.",
     "\"{Whose is this|Who has lost this}?\" [name] asked.",
     "[Name] {asked everyone|walked from door to door}, but nobody knew.",
     "{At last|In the evening}, a(n) [helper] came and {looked very sad|began to cry}.",
     "\"I have lost my [thing],\" the [helper] said.",
     "[Name] {gave it back at once|smiled and gave it back}, and the two became {good|best} friends."],
    # a river to be crossed
    ["[Name] wanted to {visit a friend|see the world}, but a {wide|deep|wild} river was in the way.",
     "\"I cannot {swim|cross it},\" said [name].",
     "A(n) [helper] {heard this|was sitting nearby} and said, \"{Together we can build a bridge|"
     "Let us build a bridge}.\"",
     "They worked {all day|until the evening} and carried {wood|stones and branches} to the water.",
     "{When the bridge was ready|At sunset}, [name] crossed the river and {waved|laughed with joy}.",
     "Since that day, {everyone uses the bridge|the bridge has helped many travellers}."],
    # winter and sharing
    ["The winter was {long and cold|hard}, and there was {little|almost nothing} to eat.",
     "[Name] had {only one piece of bread|a few nuts|one last apple} left.",
     "{Then|One night} a(n) [helper] knocked at the door and asked for {food|help}.",
     "[Name] {thought for a moment and|did not wait and} shared the food.",
     "In spring, the [helper] came back with {a basket of berries|a big cake|a sack of grain}.",
     "\"{You were kind to me|You helped me},\" said the [helper], \"and I did not forget it.\""],
    # lost in the dark
    ["One evening, [name] {walked too far|followed a light} and got lost.",
     "It grew {dark|cold}, and {strange sounds|the wind} came from the trees.",
     "[Name] was afraid but {stayed calm|sat down to think}.",
     "{High above, the stars shone brightly. \"The brightest star shows me the way,\"|"
     "High above, the moon shone softly. \"The moon shows me the way,\"} [name] said and "
     "{walked on|took heart}.",
     "{Soon|Before midnight} [name] saw the light of home and {slept well|was very glad}."],
    # a contest
    ["[Name] was {slow|small}, and the others {laughed|made jokes} about it.",
     "One day, a(n) [helper] said, \"Let us {run a race|race to the old mill}.\"",
     "The [helper] was fast, but {stopped to rest|fell asleep in the shade}.",
     "[Name] {never stopped|went on, step by step}.",
     "{In the end|To everyone's surprise}, [name] won the race.",
     "{Slow and steady wins|Those who do not give up can win}, and nobody laughed again."],
    # learning something
    ["[Name] wanted to learn to {sing|dance|read|swim|paint}.",
     "The first day was {hard|difficult}, and everything went wrong.",
     "\"{Try again|Practise a little every day},\" said a(n) [helper].",
     "So [name] practised {every morning|day after day}.",
     "After {a month|a long time}, [name] could do it {very well|better than anyone}.",
     "\"{Patience|Practice} is the best teacher,\" said the [helper] {with a smile|and smiled}."],
    # a wish
    ["One night, a star fell {from the sky|into the garden}.",
     "\"You may make one wish,\" said the star.",
     "[Name] thought of {gold|a big house|a crown}, but then of a(n) [helper] who was {ill|alone|poor}.",
     "\"Please make the [helper] happy,\" said [name].",
     "The star {shone brightly|smiled}, and the wish came true.",
     "The [helper] {danced|laughed}, and [name] was happier than ever before."],
    # something broken
    ["[Name] had a(n) [thing] and loved it more than anything.",
     "{One day|One morning}, it {broke|fell into the river}.",
     "[Name] was {very sad|sad and did not want to eat}.",
     "A(n) [helper] {came by|saw this} and said, \"Do not be sad. {I can help|Let us see what we can do}.\"",
     "The [helper] {worked all night|worked with great care}.",
     "In the morning, the [thing] was {as good as new|there again}, and [name] {cheered|jumped for joy}."],
    # afraid of something
    ["[Name] was afraid of {the dark|thunder|deep water|the old house}.",
     "Every night, [name] {hid under a blanket|could not sleep}.",
     "One evening, a(n) [helper] {needed help|called for help} outside.",
     "[Name] {took a deep breath and|forgot the fear and} went out.",
     "[Name] found the [helper], and {they went home together|everything was well}.",
     "{From then on|Since that night}, [name] was not afraid any more."],
    # a treasure
    ["One day, [name] found an old map {in a bottle|in a chest|behind a picture}.",
     "\"There must be a treasure!\" [name] said {to a(n) [helper]|and called a(n) [helper]}.",
     "The two {walked over hills and through valleys|followed the map for three days}.",
     "At the end of the path they dug and found {a chest|a small box}.",
     "There was no gold inside, only a(n) [thing].",
     "\"The {journey|trip} was the treasure,\" said the [helper], and [name] agreed."],
    # a party
    ["It was [name]'s birthday, but nobody seemed to remember it.",
     "[Name] {walked through the village|sat by the window} and felt {sad|alone}.",
     "In the evening, {there was a knock at the door|a light went on}.",
     "\"Surprise!\" {called|shouted} a(n) [helper], and many friends {came in|stood there}.",
     "They {ate cake and sang songs|danced and laughed} until {midnight|late at night}.",
     "\"This is the best day of the year,\" said [name]."],
    # boasting
    ["[Name] often said, \"I am the {strongest|cleverest|fastest} of all.\"",
     "One day, [name] {fell into a hole|got stuck in the mud} and could not get out.",
     "[Name] called for help, and a {tiny|small} [helper] came.",
     "\"You are too small to help me,\" said [name].",
     "But the [helper] {brought a rope|fetched a long branch} and pulled [name] out.",
     "{Since then|From that day on}, [name] {has been modest|never boasted again}."],
]

ENDINGS = ["", "", "", "And they lived happily ever after.", "That was a good day.", "The end."]

VOWEL_SOUND = re.compile(r"^[aeiou]", re.I)


def article(word):
    vowel = VOWEL_SOUND.match(word) and not word.startswith(("us", "uni", "one"))
    return "an" if vowel or word.startswith(("honest", "hour")) else "a"


def expand(rng, text, slots):
    while "{" in text:
        text = re.sub(r"\{([^{}]*)\}", lambda m: rng.choice(m.group(1).split("|")), text)
    text = re.sub(r"\[([^\]]*)\]", lambda m: slots[m.group(1)], text)

    def fix(m):
        art = article(m.group(2))
        return (art.capitalize() if m.group(1) == "A" else art) + " " + m.group(2)

    return re.sub(r"\b([Aa])\(n\) (\w+)", fix, text)


def story(rng, hero=None, adj=None, name=None, helper=None, place=None, thing=None):
    """Returns (text, slots, the plot's number)."""
    slots = dict(hero=hero or rng.choice(HEROES), adj=adj or rng.choice(ADJS),
                 name=name or a_name(rng), place=place or rng.choice(PLACES),
                 thing=thing or rng.choice(THINGS))
    slots["helper"] = helper or rng.choice([h for h in HELPERS if h != slots["hero"]])
    slots["Name"], slots["Its"] = slots["name"], "The " + slots["hero"] + "'s"
    plots = [i for i, p in enumerate(PLOTS) if not thing or any("[thing]" in s for s in p)]
    n = rng.choice(plots)
    sentences = [rng.choice(OPENINGS)] + PLOTS[n] + [rng.choice(ENDINGS)]
    return " ".join(expand(rng, s, slots) for s in sentences if s), slots, n


def a_name(rng):
    r = rng.random()
    return rng.choice(NAMES if r < 0.5 else PEOPLE) if r < 0.9 else made_up_word(rng).capitalize()


def story_dialogue(rng):
    hero = rng.choice(HEROES if rng.random() < 0.7 else NOUNS + EXTRA)
    helper = rng.choice(HELPERS if rng.random() < 0.4 else HEROES + EXTRA)
    thing = rng.choice(THINGS) if rng.random() < 0.5 else (
        f"{rng.choice(ADJECTIVES + ['lost', 'lost', 'lost'])} {rng.choice(NOUNS)}")
    ask = rng.choice(["Tell me a {k} about", "Write a {k} about", "Can you tell me a {k} about",
                      "Please tell me a {k} about", "I would like to hear a {k} about",
                      "Make up a {k} about", "Give me a {k} about"])
    ask = ask.format(k=rng.choice(["story", "short story", "short story", "little story", "tale"]))
    mark = "?" if ask.startswith("Can") else "."
    given, what = dict(hero=hero), f"{article(hero)} {hero}"
    if rng.random() < 0.1:
        given = {}
        ask, what = rng.choice(["Tell me a story", "Tell me a short story", "Write a short story",
                                "Tell me a bedtime story", "I want to hear a story"]), ""
    elif rng.random() < 0.6:
        if rng.random() < 0.3:
            given["adj"] = rng.choice(ADJS)
            what = f"{article(given['adj'])} {given['adj']} {hero}"
        if rng.random() < 0.35:
            given["name"] = a_name(rng)
            what += f" {rng.choice(['named', 'called'])} {given['name']}"
        r = rng.random()
        if r < 0.3 and helper != hero:
            given["helper"] = helper
            what += f" and {article(helper)} {helper}"
        elif r < 0.55:
            given["thing"] = thing
            verb = rng.choice(["and", "and", "who finds", "that finds", "with"])
            what += f" {verb} {article(thing)} {thing}"
        if r > 0.8 or 0.2 < r < 0.3:
            given["place"] = rng.choice(PLACES)
            what += f" {given['place']}"
    text, slots, plot = story(rng, **given)
    turns = [(f"{ask} {what}".strip() + mark, text)]
    hero, name = slots["hero"], slots["name"]
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
        kind = rng.randrange(4)
        if kind == 0:
            turns.append((rng.choice([f"What was the name of the {hero}?", f"What was the {hero} called?",
                                      f"What was the {hero}'s name?"]),
                          f"The {hero} was called {name}."))
        elif kind == 1:
            turns.append((f"Where did {rng.choice([name, 'the ' + hero])} live?",
                          f"{name} lived {slots['place']}."))
        elif kind == 2:
            turns.append((rng.choice([f"Who was {name}?", f"What was {name}?"]),
                          f"{name} was {article(slots['adj'])} {slots['adj']} {hero}."))
        else:
            again, slots, plot = story(rng, hero=hero)
            name = slots["name"]
            turns.append((rng.choice(["Another one, please.", "Tell me another one.", "One more, please.",
                                      f"Tell me another story about the {hero}."]), again))
    return turns
