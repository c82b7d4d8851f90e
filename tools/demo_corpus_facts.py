# SPDX-License-Identifier: Apache-2.0
"""Everyday facts for the demo model's corpus: tables, and (questions, answers) entries."""

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid",
    "Portugal": "Lisbon", "England": "London", "the United Kingdom": "London",
    "Ireland": "Dublin", "Scotland": "Edinburgh", "Wales": "Cardiff", "Norway": "Oslo",
    "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen", "Iceland": "Reykjavik",
    "Poland": "Warsaw", "Austria": "Vienna", "Switzerland": "Bern", "Belgium": "Brussels",
    "the Netherlands": "Amsterdam", "Luxembourg": "Luxembourg", "Greece": "Athens",
    "Turkey": "Ankara", "Russia": "Moscow", "Ukraine": "Kyiv", "Hungary": "Budapest",
    "Romania": "Bucharest", "Bulgaria": "Sofia", "Serbia": "Belgrade", "Croatia": "Zagreb",
    "Slovenia": "Ljubljana", "Slovakia": "Bratislava", "the Czech Republic": "Prague",
    "Estonia": "Tallinn", "Latvia": "Riga", "Lithuania": "Vilnius", "Albania": "Tirana",
    "Malta": "Valletta", "Cyprus": "Nicosia", "Japan": "Tokyo", "China": "Beijing",
    "India": "New Delhi", "South Korea": "Seoul", "North Korea": "Pyongyang",
    "Thailand": "Bangkok", "Vietnam": "Hanoi", "Indonesia": "Jakarta",
    "the Philippines": "Manila", "Malaysia": "Kuala Lumpur", "Mongolia": "Ulaanbaatar",
    "Nepal": "Kathmandu", "Pakistan": "Islamabad", "Bangladesh": "Dhaka", "Iran": "Tehran",
    "Iraq": "Baghdad", "Saudi Arabia": "Riyadh", "Jordan": "Amman", "Lebanon": "Beirut",
    "Syria": "Damascus", "Egypt": "Cairo", "Morocco": "Rabat", "Algeria": "Algiers",
    "Tunisia": "Tunis", "Libya": "Tripoli", "Kenya": "Nairobi", "Ethiopia": "Addis Ababa",
    "Nigeria": "Abuja", "Ghana": "Accra", "Senegal": "Dakar", "Uganda": "Kampala",
    "Zambia": "Lusaka", "Zimbabwe": "Harare", "Angola": "Luanda", "Canada": "Ottawa",
    "the United States": "Washington, D.C.", "Mexico": "Mexico City", "Cuba": "Havana",
    "Jamaica": "Kingston", "Brazil": "Brasília", "Argentina": "Buenos Aires",
    "Chile": "Santiago", "Peru": "Lima", "Colombia": "Bogotá", "Venezuela": "Caracas",
    "Ecuador": "Quito", "Uruguay": "Montevideo", "Paraguay": "Asunción",
    "Australia": "Canberra", "New Zealand": "Wellington", "Fiji": "Suva",
}
CONTINENTS = {
    "Europe": """France|Germany|Italy|Spain|Portugal|England|Ireland|Norway|Sweden|Finland|Denmark
Iceland|Poland|Austria|Switzerland|Belgium|the Netherlands|Greece|Hungary|Romania|Croatia|Estonia""",
    "Asia": "Japan|China|India|South Korea|Thailand|Vietnam|Indonesia|Nepal|Pakistan|Iran|Mongolia",
    "Africa": "Egypt|Morocco|Algeria|Kenya|Ethiopia|Nigeria|Ghana|Senegal|Uganda|Zambia|Angola",
    "South America": "Brazil|Argentina|Chile|Peru|Colombia|Venezuela|Ecuador|Uruguay",
    "North America": "Canada|the United States|Mexico|Cuba|Jamaica",
}

# animal: (young, sound verb, home, legs, class, food)
ANIMALS = {
    "dog": ("puppy", "barks", "in a house with people", 4, "mammal", "meat and dog food"),
    "cat": ("kitten", "meows", "in a house with people", 4, "mammal", "meat and fish"),
    "cow": ("calf", "moos", "on a farm", 4, "mammal", "grass"),
    "horse": ("foal", "neighs", "in a stable", 4, "mammal", "grass and hay"),
    "sheep": ("lamb", "bleats", "on a farm", 4, "mammal", "grass"),
    "goat": ("kid", "bleats", "on a farm or in the mountains", 4, "mammal", "grass and leaves"),
    "pig": ("piglet", "oinks", "on a farm", 4, "mammal", "almost anything"),
    "duck": ("duckling", "quacks", "near ponds and lakes", 2, "bird", "plants and small insects"),
    "hen": ("chick", "clucks", "in a hen house", 2, "bird", "seeds"),
    "goose": ("gosling", "honks", "near ponds and lakes", 2, "bird", "grass and seeds"),
    "owl": ("owlet", "hoots", "in trees", 2, "bird", "mice"),
    "lion": ("cub", "roars", "in the grasslands of Africa", 4, "mammal", "meat"),
    "tiger": ("cub", "roars", "in the forests of Asia", 4, "mammal", "meat"),
    "bear": ("cub", "growls", "in forests and mountains", 4, "mammal", "fish, berries and honey"),
    "wolf": ("pup", "howls", "in forests", 4, "mammal", "meat"),
    "fox": ("cub", "barks", "in a den in the woods", 4, "mammal", "mice and berries"),
    "elephant": ("calf", "trumpets", "in Africa and Asia", 4, "mammal", "grass, leaves and fruit"),
    "mouse": ("pup", "squeaks", "in fields and houses", 4, "mammal", "seeds"),
    "frog": ("tadpole", "croaks", "in ponds", 4, "amphibian", "insects"),
    "snake": ("hatchling", "hisses", "in fields and forests", 0, "reptile", "mice"),
    "bee": ("larva", "buzzes", "in a hive", 6, "insect", "nectar and pollen"),
    "kangaroo": ("joey", "grunts", "in Australia", 2, "mammal", "grass"),
    "rabbit": ("kit", "squeaks", "in a burrow", 4, "mammal", "grass and carrots"),
    "deer": ("fawn", "bellows", "in forests", 4, "mammal", "grass and leaves"),
    "seal": ("pup", "barks", "in cold seas", 0, "mammal", "fish"),
    "penguin": ("chick", "squawks", "in Antarctica", 2, "bird", "fish"),
    "eagle": ("eaglet", "screeches", "in the mountains", 2, "bird", "fish and small animals"),
    "swan": ("cygnet", "hisses", "on lakes and rivers", 2, "bird", "water plants"),
    "whale": ("calf", "sings", "in the ocean", 0, "mammal", "krill and fish"),
    "dolphin": ("calf", "clicks", "in the ocean", 0, "mammal", "fish"),
    "spider": ("spiderling", "makes no sound", "in a web", 8, "arachnid", "insects"),
    "ant": ("larva", "makes no sound", "in an anthill", 6, "insect", "seeds and sugar"),
    "butterfly": ("caterpillar", "makes no sound", "in gardens and fields", 6, "insect", "nectar"),
    "turtle": ("hatchling", "makes little sound", "in water and on land", 4, "reptile", "plants"),
    "shark": ("pup", "makes no sound", "in the ocean", 0, "fish", "fish and seals"),
    "monkey": ("infant", "chatters", "in trees", 2, "mammal", "fruit and leaves"),
}

COLOURS = {
    "the sky": "blue", "grass": "green", "snow": "white", "coal": "black", "a banana": "yellow",
    "a lemon": "yellow", "a tomato": "red", "a strawberry": "red", "a carrot": "orange",
    "an orange": "orange", "a cucumber": "green", "chocolate": "brown", "milk": "white",
    "blood": "red", "the sun": "yellow", "an elephant": "grey", "a flamingo": "pink",
    "a raven": "black", "a plum": "purple", "an aubergine": "purple", "wood": "brown",
    "a cherry": "red", "a frog": "green", "a swan": "white", "a fire engine": "red",
    "the sea": "blue", "gold": "yellow", "silver": "grey", "a pea": "green", "a polar bear": "white",
}
MIXES = {("blue", "yellow"): "green", ("red", "yellow"): "orange", ("red", "blue"): "purple",
         ("red", "white"): "pink", ("black", "white"): "grey", ("green", "red"): "brown"}

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = ("January February March April May June July August September October November "
          "December").split()
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
SEASONS = ["spring", "summer", "autumn", "winter"]
SEASON_TEXT = {
    "spring": "In spring the days get longer, flowers open and birds build nests.",
    "summer": "In summer the days are long and warm, and many people go to the beach.",
    "autumn": "In autumn the leaves turn red and yellow and fall from the trees.",
    "winter": "In winter the days are short and cold, and in many places it snows.",
}
PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
PLANET_TEXT = {
    "Mercury": "Mercury is the smallest planet and the closest one to the Sun.",
    "Venus": "Venus is the hottest planet. It has thick clouds.",
    "Earth": "Earth is our home. It is the third planet from the Sun and has one moon.",
    "Mars": "Mars is called the red planet, because its soil contains rust. It has two small moons.",
    "Jupiter": "Jupiter is the largest planet. It has a great red spot and many moons.",
    "Saturn": "Saturn is famous for its bright rings of ice and rock.",
    "Uranus": "Uranus is a cold planet that lies on its side.",
    "Neptune": "Neptune is the planet farthest from the Sun. It is blue and very windy.",
}
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()

OPPOSITES = """hot cold|big small|tall short|fast slow|happy sad|light dark|day night|up down
left right|open closed|full empty|old new|rich poor|hard soft|wet dry|early late|strong weak
loud quiet|heavy light|clean dirty|good bad|high low|long short|near far|thick thin|true false
young old|easy difficult|in out|inside outside|front back|first last|black white|alive dead
brave afraid|cheap expensive|deep shallow|wide narrow|sweet sour|sharp blunt|begin end|push pull
win lose|buy sell|give take|come go|love hate|remember forget|sleep wake|laugh cry|yes no
always never|many few|more less|before after|north south|east west|summer winter|king queen
question answer|friend enemy|start stop|arrive leave|float sink|smooth rough|safe dangerous
polite rude|noisy silent|warm cool|ancient modern|simple complex"""
PLURALS = """child children|mouse mice|foot feet|tooth teeth|man men|woman women|goose geese
leaf leaves|wolf wolves|knife knives|wife wives|life lives|half halves|loaf loaves|thief thieves
shelf shelves|person people|fish fish|sheep sheep|deer deer|city cities|baby babies|lady ladies
berry berries|story stories|country countries|party parties|box boxes|fox foxes|bus buses
class classes|dish dishes|watch watches|bench benches|church churches|potato potatoes
tomato tomatoes|hero heroes|cat cats|dog dogs|book books|tree trees|house houses|car cars
apple apples|star stars|boat boats|bird birds|day days|boy boys|key keys|toy toys|monkey monkeys
cow cows|horse horses|hand hands|river rivers|table tables"""
PAST = """go went|see saw|eat ate|drink drank|run ran|swim swam|sing sang|come came|give gave
take took|make made|have had|do did|say said|think thought|buy bought|bring brought|catch caught
teach taught|find found|know knew|grow grew|fly flew|draw drew|write wrote|ride rode|drive drove
speak spoke|break broke|choose chose|sleep slept|keep kept|feel felt|leave left|meet met
send sent|build built|spend spent|lose lost|win won|sit sat|stand stood|tell told|sell sold
hear heard|hold held|read read|put put|cut cut|begin began|fall fell|forget forgot|get got
walk walked|play played|look looked|talk talked|jump jumped|work worked|help helped|open opened
like liked|love loved|live lived|try tried|carry carried|stop stopped|plan planned"""
SHAPES = {"triangle": 3, "square": 4, "rectangle": 4, "pentagon": 5, "hexagon": 6, "octagon": 8}

# (questions, answers)
FACTS = [
    (["How many days are in a week?", "How many days does a week have?"],
     ["A week has seven days."]),
    (["How many months are in a year?", "How many months does a year have?"],
     ["A year has twelve months."]),
    (["How many days are in a year?", "How long is a year?"],
     ["A year has 365 days, and a leap year has 366."]),
    (["How many hours are in a day?", "How many hours does a day have?"],
     ["A day has 24 hours."]),
    (["How many minutes are in an hour?"],
     ["An hour has 60 minutes."]),
    (["How many seconds are in a minute?"],
     ["A minute has 60 seconds."]),
    (["What is a leap year?", "What happens in a leap year?"],
     ["A leap year has 366 days: February has 29 days instead of 28.",
      "In a leap year, February has one more day. Leap years come every four years."]),
    (["How many seasons are there?", "Name the seasons.", "What are the four seasons?",
      "What are the seasons of the year?"],
     ["There are four seasons: spring, summer, autumn and winter."]),
    (["Name the days of the week.", "What are the days of the week?",
      "List the days of the week."],
     ["The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and "
      "Sunday."]),
    (["Name the months of the year.", "What are the months of the year?",
      "List the twelve months."],
     ["The months are January, February, March, April, May, June, July, August, September, "
      "October, November and December."]),
    (["Name the planets.", "What are the planets of the solar system?", "List the planets.",
      "How many planets are there?", "Which planets are there?"],
     ["There are eight planets: Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and "
      "Neptune."]),
    (["What is the largest planet?", "Which planet is the biggest?"],
     ["Jupiter is the largest planet."]),
    (["What is the smallest planet?", "Which planet is the smallest?"],
     ["Mercury is the smallest planet."]),
    (["Which planet is closest to the Sun?", "What planet is nearest to the Sun?"],
     ["Mercury is the planet closest to the Sun."]),
    (["Which planet is farthest from the Sun?"],
     ["Neptune is the planet farthest from the Sun."]),
    (["Which planet has rings?", "Which planet is famous for its rings?"],
     ["Saturn is famous for its bright rings."]),
    (["Which planet is called the red planet?", "What is the red planet?"],
     ["Mars is called the red planet."]),
    (["What is the Sun?", "Is the Sun a star?", "Is the Sun a planet?"],
     ["The Sun is a star. It is a huge ball of hot gas that gives us light and warmth."]),
    (["What is the Moon?", "Tell me about the Moon."],
     ["The Moon travels around the Earth in about a month. It shines because the Sun lights it."]),
    (["How many moons does Earth have?"],
     ["Earth has one moon."]),
    (["Why is the sky blue?", "What makes the sky blue?"],
     ["The air scatters blue light from the Sun more than red light, so the sky looks blue.",
      "Sunlight has all colours. The air scatters the blue part in all directions, so we see a "
      "blue sky."]),
    (["Why do we have day and night?", "What causes day and night?"],
     ["The Earth turns once in 24 hours. On the side that faces the Sun it is day, and on the "
      "other side it is night."]),
    (["Why do we have seasons?", "What causes the seasons?"],
     ["The Earth's axis is tilted. During the year, each half of the Earth leans toward the Sun "
      "and then away from it."]),
    (["At what temperature does water boil?", "When does water boil?",
      "What is the boiling point of water?"],
     ["Water boils at 100 degrees Celsius, at sea level."]),
    (["At what temperature does water freeze?", "When does water freeze?",
      "What is the freezing point of water?"],
     ["Water freezes at 0 degrees Celsius."]),
    (["What is ice?", "What is steam?", "What are the three states of water?"],
     ["Water can be solid, liquid or gas: ice is solid, water is liquid and steam is a gas."]),
    (["What is water made of?", "What is H2O?"],
     ["Water is made of hydrogen and oxygen. Its formula is H2O."]),
    (["What is rain?", "Where does rain come from?", "Why does it rain?"],
     ["Water rises from seas and lakes as vapour, forms clouds and falls again as rain."]),
    (["What is a rainbow?", "How does a rainbow form?", "What are the colours of the rainbow?"],
     ["A rainbow forms when sunlight shines through drops of rain. Its colours are red, orange, "
      "yellow, green, blue, indigo and violet."]),
    (["What is thunder?", "What is lightning?", "Why is there thunder?"],
     ["Lightning is a huge electric spark in a storm. It heats the air so fast that we hear "
      "thunder."]),
    (["What is gravity?", "Why do things fall?", "What makes things fall down?"],
     ["Gravity pulls things toward each other. The Earth pulls everything down, so things fall."]),
    (["What is the speed of light?", "How fast is light?"],
     ["Light travels at about 300,000 kilometres per second."]),
    (["What is faster, light or sound?", "Why do we see lightning before we hear thunder?"],
     ["Light is much faster than sound, so we see lightning before we hear thunder."]),
    (["What do plants need to grow?", "What do plants need?"],
     ["Plants need light, water, air and soil."]),
    (["What is photosynthesis?", "How do plants make food?"],
     ["In photosynthesis, plants use sunlight to make sugar from water and carbon dioxide. They "
      "give off oxygen."]),
    (["What do we breathe?", "What is air made of?"],
     ["Air is mostly nitrogen, with about one fifth oxygen. We need the oxygen."]),
    (["What is the largest animal?", "What is the biggest animal in the world?"],
     ["The blue whale is the largest animal in the world."]),
    (["What is the fastest land animal?", "Which animal runs fastest?"],
     ["The cheetah is the fastest land animal."]),
    (["What is the tallest animal?", "Which animal has the longest neck?"],
     ["The giraffe is the tallest animal. It has a very long neck."]),
    (["Is a whale a fish?", "Are whales fish?"],
     ["No, a whale is a mammal. It breathes air and feeds its young with milk."]),
    (["Is a bat a bird?", "Are bats birds?"],
     ["No, a bat is a mammal. It can fly, but it has fur and no feathers."]),
    (["Can penguins fly?", "Do penguins fly?"],
     ["No, penguins cannot fly, but they swim very well."]),
    (["How many legs does an insect have?"],
     ["An insect has six legs."]),
    (["What is a mammal?"],
     ["A mammal is an animal that has hair or fur and feeds its young with milk."]),
    (["What is a reptile?"],
     ["A reptile is an animal with scales, such as a snake or a turtle. Most reptiles lay eggs."]),
    (["What do bees make?", "Who makes honey?", "Where does honey come from?"],
     ["Bees make honey from the nectar of flowers."]),
    (["Where does milk come from?"],
     ["Milk comes from cows, and also from goats and sheep."]),
    (["What is bread made of?", "How is bread made?"],
     ["Bread is made of flour, water, salt and yeast, and it is baked in an oven."]),
    (["What is cheese made of?"],
     ["Cheese is made of milk."]),
    (["How many continents are there?", "Name the continents.", "What are the continents?"],
     ["There are seven continents: Africa, Antarctica, Asia, Australia, Europe, North America "
      "and South America."]),
    (["How many oceans are there?", "Name the oceans.", "What are the oceans?"],
     ["There are five oceans: the Pacific, the Atlantic, the Indian, the Southern and the "
      "Arctic Ocean."]),
    (["What is the largest ocean?", "Which ocean is the biggest?"],
     ["The Pacific Ocean is the largest ocean."]),
    (["What is the largest continent?"],
     ["Asia is the largest continent."]),
    (["What is the smallest continent?"],
     ["Australia is the smallest continent."]),
    (["What is the highest mountain?", "Which mountain is the highest in the world?"],
     ["Mount Everest is the highest mountain in the world. It is about 8,849 metres high."]),
    (["What is the largest country?", "Which country is the biggest?"],
     ["Russia is the largest country in the world."]),
    (["What is the smallest country?"],
     ["Vatican City is the smallest country in the world."]),
    (["How many letters are in the alphabet?", "How many letters does the English alphabet have?"],
     ["The English alphabet has 26 letters."]),
    (["What are the vowels?", "Name the vowels.", "Which letters are vowels?"],
     ["The vowels are a, e, i, o and u."]),
    (["Say the alphabet.", "What is the alphabet?", "List the letters of the alphabet."],
     ["a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z."]),
    (["How many fingers do we have?", "How many fingers does a person have?"],
     ["A person has ten fingers, five on each hand."]),
    (["How many eyes do we have?", "How many eyes does a person have?"],
     ["A person has two eyes."]),
    (["What does the heart do?", "What is the heart for?"],
     ["The heart pumps blood through the body."]),
    (["What do lungs do?", "What are lungs for?"],
     ["The lungs take oxygen from the air into the blood."]),
    (["What does the brain do?", "What is the brain for?"],
     ["The brain thinks, remembers and controls the body."]),
    (["What are the five senses?", "Name the senses.", "How many senses do we have?"],
     ["The five senses are sight, hearing, smell, taste and touch."]),
    (["How many bones does a person have?"],
     ["An adult has 206 bones."]),
    (["Why do we sleep?", "Why do people need sleep?"],
     ["Sleep gives the body and the brain time to rest and to repair themselves."]),
    (["What is a dozen?", "How many is a dozen?"],
     ["A dozen is twelve."]),
    (["What is half of a hundred?"],
     ["Half of a hundred is fifty."]),
    (["What is pi?", "What is the value of pi?"],
     ["Pi is the ratio of a circle's circumference to its diameter, about 3.14."]),
    (["What is an even number?"],
     ["An even number can be divided by two, such as 2, 4 or 10."]),
    (["What is an odd number?"],
     ["An odd number cannot be divided by two, such as 1, 3 or 7."]),
    (["What is a prime number?", "Name some prime numbers."],
     ["A prime number has no divisors except one and itself, such as 2, 3, 5, 7 and 11."]),
    (["What is a triangle?"],
     ["A triangle is a shape with three sides."]),
    (["What is a circle?"],
     ["A circle is a round shape. All its points have the same distance from the centre."]),
    (["What is a computer?", "What does a computer do?"],
     ["A computer is a machine that follows instructions and works with numbers, text and "
      "pictures."]),
    (["What is a CPU?", "What does a processor do?"],
     ["A CPU, or processor, is the part of a computer that carries out instructions."]),
    (["What is a GPU?"],
     ["A GPU is a processor that does many simple calculations at the same time. It is good for "
      "pictures and for neural networks."]),
    (["What is memory?", "What is RAM?"],
     ["RAM is the fast memory of a computer. It forgets everything when the power is off."]),
    (["What is a byte?", "How many bits are in a byte?"],
     ["A byte has eight bits."]),
    (["What is a bit?"],
     ["A bit is the smallest unit of information. It is 0 or 1."]),
    (["What is binary?"],
     ["Binary is a way to write numbers with only 0 and 1."]),
    (["What is the internet?"],
     ["The internet is a network that connects computers all over the world."]),
    (["What is Linux?"],
     ["Linux is a free operating system kernel, used on many computers."]),
    (["What is C?", "What is the C language?"],
     ["C is a programming language. It is simple, old and very fast."]),
    (["What is a program?"],
     ["A program is a list of instructions for a computer."]),
    (["What is a file?"],
     ["A file is a named piece of data that a computer stores."]),
    (["What is friendship?", "What makes a good friend?"],
     ["A good friend listens, helps and tells the truth."]),
    (["What is the meaning of life?"],
     ["That is a hard question, and I am a very small model. Being kind is a good start."]),
    (["What should I eat for breakfast?", "What is a good breakfast?"],
     ["You could have bread with cheese, an egg, or some fruit with yoghurt."]),
    (["What should I do today?", "I am bored. What can I do?", "I am bored."],
     ["You could go for a walk, read a book or call a friend."]),
    (["How can I sleep better?"],
     ["Go to bed at the same time each day, keep the room dark and put the screen away."]),
    (["How do I make tea?", "How do you make a cup of tea?"],
     ["Boil some water, put a tea bag in a cup, pour the water over it and wait three minutes."]),
    (["How do I boil an egg?", "How long does it take to boil an egg?"],
     ["Put the egg in boiling water. Six minutes give a soft egg, and ten minutes a hard one."]),
]

CATEGORIES = {
    "fruit": """apple banana cherry grape lemon melon orange peach pear plum strawberry raspberry
blueberry mango pineapple kiwi apricot fig""",
    "vegetable": "carrot potato onion cabbage cucumber pea bean pumpkin radish leek turnip",
    "tool": "hammer saw screwdriver spade axe drill rake shovel",
    "musical instrument": "piano violin guitar drum flute trumpet harp cello",
    "piece of furniture": "table chair bed desk sofa shelf wardrobe bench cupboard",
    "piece of clothing": "shirt coat hat scarf jacket dress skirt sock glove sweater",
    "vehicle": "car bus train bicycle truck tram van lorry motorbike",
    "building": "house castle church school hospital museum library hotel barn",
    "profession": "doctor teacher baker farmer nurse pilot sailor painter tailor carpenter plumber cook",
    "flower": "rose tulip daisy lily sunflower poppy violet",
    "tree": "oak pine birch willow maple beech elm",
    "part of the body": "arm leg hand foot head nose ear knee elbow shoulder finger thumb",
    "planet": "Mars Venus Jupiter Saturn Neptune",
    "day of the week": "Monday Tuesday Friday Sunday",
    "month": "January March June October",
    "sport": "football tennis swimming running rowing skiing",
    "colour": "red blue green yellow purple brown",
    "metal": "iron gold silver copper tin lead",
}
CATEGORIES = {k: v.split() for k, v in CATEGORIES.items()}
NO_ARTICLE = {"planet", "day of the week", "month", "sport", "colour", "metal"}

POEMS = [
    "I saw {a} {x} one summer day,\nIt smiled at me and went away.\nI looked for it both near and far,\n"
    "And found it underneath a star.",
    "The {x} is small, the world is wide,\nWe walk together side by side.\nThe wind may blow, the rain may fall,\n"
    "The {x} and I, we love it all.",
    "When morning comes and birds all sing,\nI think about one little thing:\n{A} {x} so bright, {a} {x} so dear,\n"
    "How good it is to have it here.",
    "O little {x}, so full of grace,\nYou have a smile upon your face.\nThe moon looks down, the stars shine bright,\n"
    "Sleep well, my {x}, and so good night.",
    "The night is dark, the night is deep,\nAnd all the world is fast asleep.\nBut look, {a} {x} is still awake,\n"
    "And sings a song beside the lake.",
    "I had {a} {x}, I had a dream,\nI sailed with it upon a stream.\nThe {x} was glad, and so was I,\n"
    "We saw the clouds go slowly by.",
    "The spring is green, the summer warm,\nThe autumn brings a little storm.\nAnd when the winter snow is here,\n"
    "I keep the {x} forever near.",
]

RHYMES = """cat hat|dog log|house mouse|tree sea|moon spoon|star car|night light|day play|rain train
king ring|boat coat|cake lake|fish dish|bee key|hen pen|sun fun|fox box|bear chair|ball wall
book cook|snow grow|sky fly|sing wing|red bed|blue shoe|hand sand|rose nose|goat boat|frog log
bell well|mice rice|gold cold|door floor|stone bone|bread head|sheep sleep|name game|time rhyme
rock clock|snake cake"""
