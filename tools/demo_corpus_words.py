# SPDX-License-Identifier: Apache-2.0
"""Common English words for spelling, sentences and the tokenizer."""

NOUNS = """apple arm army artist aunt baby back bag baker ball balloon banana band bank barn basket
bath beach bean bear beard bed bee bell belt bench berry bicycle bird birthday blanket blood boat
body bone book boot bottle bowl box boy branch bread breakfast brick bridge brother brush bucket
building bus bush butter butterfly button cabin cake camera camp candle candy car card carpet
carrot castle cat cave chain chair cheese cherry chest chicken child chimney church circle circus
city classroom clock cloud coat coffee coin computer cook corn corner country cousin cow crab
crayon cream crown cup curtain daughter day deer desk diamond dinner dish doctor dog doll dolphin
donkey door dragon drawer dream dress drum duck dust eagle ear earth egg elbow elephant engine
evening eye face family farm farmer father feather fence field finger fire fish flag floor flower
foot forest fork fox friend frog fruit garden gate ghost giant giraffe girl glass glove goat gold
goose grape grass guitar hair hammer hand harbour hat hawk head heart hedge helmet hen hill
holiday honey horse hospital hotel house ice insect island jacket jar jelly jewel jungle kettle
key king kitchen kite kitten knee knife knight ladder lady lake lamb lamp leaf leg lemon lesson
letter library light lion lip lizard lock log lunch machine magic mail map market meadow meal
meat medicine melon message milk mill mirror money monkey moon morning mother mountain mouse
mouth museum music nail neck needle neighbour nest net night noise nose notebook number nurse nut
oak ocean office oil onion orange orchard oven owl paint palace pan paper parent park parrot
party path peach pear pen pencil penguin pepper piano picnic picture pig pillow pilot pirate
plane planet plant plate pocket poem police pond pony potato present prince princess prize puppet
puppy purse puzzle queen rabbit radio railway rain rainbow raven ribbon rice ring river road
robot rock roof room rope rose sailor salad salt sand sandwich scarf school scissors sea seed
shadow shark sheep shelf shell ship shirt shoe shop shoulder sister skirt sky snail snake snow
soap sock soldier song soup spade spider spoon square squirrel stable stage stair star station
stick stone storm story stove stranger straw stream street student sugar summer sun supper swan
table tail teacher telephone tent thief thumb thunder ticket tiger toad tomato tongue tooth towel
tower town toy train treasure tree triangle truck trumpet tulip tunnel turtle umbrella uncle
valley van vase vegetable village violin voice wagon wall watch water waterfall wave weather
wheel whistle wind window wing winter witch wolf woman wood wool word worker world worm yard year
zebra zoo"""
VERBS = """answer arrive ask bake begin bite blow bounce break bring build burn buy call carry catch
change chase choose clap clean climb close collect come cook copy count cover crawl cross cry cut
dance decide deliver dig discover draw dream drink drive drop eat enjoy enter explain fall feed
feel fight fill find finish fix float fly fold follow forget forgive gather give glow grow guess
happen hear help hide hold hope hug hunt hurry imagine invite join jump keep kick kiss knock know
laugh lead learn leave lend lift listen live look lose love make mark measure meet melt mix move
need notice obey offer open order paint pass pick plant play point polish pour practise pray
prepare press promise protect pull push reach read receive remember repair repeat reply rest
return ride ring roll run sail save say search see sell send serve shake share shine shout show
shut sing sit skip sleep slide smell smile sneeze solve speak spell spend spin spread stand stare
start stay steal step stop study swim swing take talk taste teach tell thank think throw tie
touch travel try turn understand use visit wait wake walk want warm wash watch water wave wear
weigh whisper win wish wonder work worry write yawn"""
ADJECTIVES = """afraid alone amazing ancient angry awake bad beautiful better big bitter black blue
bold brave bright broken brown busy calm careful cheap cheerful clean clear clever cold
comfortable common cool correct crazy curious dangerous dark deep delicious different difficult
dirty dry dull eager early easy empty equal excellent excited famous fast fine first flat foolish
fresh friendly full funny gentle glad golden good grateful great green grey happy hard heavy
helpful high hollow honest hot huge hungry important jolly kind large last late lazy light little
lonely long loud lovely lucky magical narrow nervous new nice noisy old open orange patient
perfect pink plain pleasant polite poor pretty proud purple quick quiet rare ready real red rich
right ripe rough round sad safe scared secret serious shallow sharp shiny short shy sick silent
silly silver simple sleepy slow small smart smooth soft special square steep sticky straight
strange strong sudden sunny sweet tall tame tasty terrible thick thin thirsty tidy tiny tired
true ugly useful usual warm weak wet white whole wide wild wise wonderful wooden wrong yellow
young"""
OTHERS = """about above across after again against almost already also although always among another
any anything around away because before behind below beside between beyond both carefully
certainly could during each either enough even ever every everybody everything everywhere except
far finally from here however inside instead into later least less maybe might more most much
must myself near nearly neither never next nobody nothing nowhere now often once only other
otherwise outside over perhaps quickly quite rather really several shall should since slowly some
somebody something sometimes somewhere soon still such suddenly than their themselves then there
therefore these they this those though through together today tomorrow tonight toward under until
upon very well what whatever when where whether which while who whole whose why with within
without would yesterday yet your alphabet backend baseline batch binary cache chunk client
compiler context decode directory engine function hardware header kernel language latency layer
library licence matrix memory message model network offset option output package parameter
pointer prefill prefix process program prompt protocol python queue random register request
router sample scheduler sequence server shard socket softmax software stream string system
template tensor terminal thread throughput token tokenizer training variable vector version
weight window worker"""
NAMES = """Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Mia Noah Olivia Paul Rosa
Sam Tina Victor Alice Bob Carol Daniel Ella Frank Hannah Ivan Julia Karl Lena Max Nina Oscar
Peter Ruth Simon Tom Vera Will Zoe Amir Chen Fatima Hiro Kofi Lin Maria Omar Priya Ravi Sofia
Yuki Lucas Marta"""

NOUNS, VERBS, ADJECTIVES, OTHERS, NAMES = (
    s.split() for s in (NOUNS, VERBS, ADJECTIVES, OTHERS, NAMES))
ALL_WORDS = sorted(set(NOUNS + VERBS + ADJECTIVES + OTHERS))

_ONSETS = "b c d f g h j k l m n p r s t v w y z bl br ch cl cr dr fl fr gl gr pl pr sh sl sp st th tr".split()
_VOWELS = "a e i o u ai ea ee oa oo ou".split()
_CODAS = ["", "", "b", "ck", "d", "g", "l", "ll", "m", "n", "nd", "nt", "p", "r", "rk", "s", "st", "t", "x"]


def made_up_word(rng):
    """A word that means nothing, from syllables or from parts of two words: teaches spelling beyond
    the list, and the letters of tokens that are parts of words."""
    if rng.random() < 0.4:
        a, b = rng.choice(ALL_WORDS), rng.choice(ALL_WORDS)
        return a[:rng.randint(2, len(a))] + b[rng.randint(0, max(0, len(b) - 2)):]
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
                   for _ in range(rng.choice([1, 2, 2, 3])))
