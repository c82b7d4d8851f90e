#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/tokenizer/: small tokenizers with the pipelines of the public models, and what
`tokenizers` (PyPI) makes of nasty texts with them. Needed to change the vectors, never to run the tests.

Each folder NAME holds tokenizer.json and cases.json:
  {"encode": [{"text", "ids", "special": ids with add_special_tokens, "decoded", "skipped"}, ...],
   "decode": [{"ids", "decoded", "skipped"}, ...],
   "pairs": [{"a", "b": texts, "ids", "types"}, ...]} (of those whose files have templates for two)
`skipped` is decoded with skip_special_tokens; it is left out where equal to `decoded`, and `special`
where equal to `ids`.

patterns.json holds regular expressions and the pieces (lengths in bytes) that they cut texts into:
  [{"pattern", "cuts": [{"text", "pieces"}, ...]}, ...]
unicode.json holds, for each normalizer, the FNV-1a hash of what it makes of every code point.

usage: make_tokenizer_vectors.py [OUTPUT_DIR [NAME ...]]
"""
import collections
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
MARK = "\u2581"

# Training text: enough to make merges that cross case, script, digit and space borders.
SENTENCES = """The quick brown fox jumps over the lazy dog, and then it doesn't come back again.
We're sure they'll say that you've seen what I'd done; it's the server's fault, isn't it?
A tokenizer turns text into numbers, and the model turns numbers into other numbers.
for (int i = 0; i < n; i++) {\n    sum += a[i] * b[i];\n}\n\treturn sum;
In 2024 there were 365 or 366 days, 12 months, 1,000 ideas and 3.14159 reasons to wait.
Der Fluß fließt über die Straße, während die Mädchen schöne Äpfel essen.
L'été dernier, le garçon naïf a mangé des crêpes à l'hôtel où il avait dormi.
El niño pequeño comió piñas en la montaña con su compañero.
Быстрая коричневая лиса прыгает через ленивую собаку снова и снова.
Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.
今天天气很好，我们去公园散步吧。今天的天气比昨天好。
日本語の文章をここに書きます。カタカナとひらがなと漢字があります。
한국어 문장을 여기에 씁니다. 오늘 날씨가 좋습니다.
مرحبا بالعالم، هذا نص عربي قصير للتجربة.
नमस्ते दुनिया, यह हिन्दी का एक छोटा वाक्य है।
สวัสดีชาวโลก นี่คือข้อความภาษาไทยสั้นๆ
Hello world! Hello, World? HELLO WORLD... hello_world hello-world (hello) [world] {x} <y>
{"name": "get_weather", "arguments": {"city": "Paris", "days": 3, "unit": "celsius"}}
http://example.com/path?query=1&other=2#frag user@example.org ~/bin/run.sh --help -v
😀 😃 🎉 great 👍 ok ❤️ yes 👨‍👩‍👧 family""".split("\n")

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\r\n", "\r\n\r\n", "\t", "\t\t x", "a", " a", "a ",
    "  a  b   c    ", "Hello world", " Hello world ", "hello\nworld\n", "hello \n world", "a\u00a0b",
    "a\u2003\u2003b", "x\u3000\u3000y", "\u1680a", "a\u180eb", "\u200ba\u200b", "a\u0085b\u2028c\u2029d",
    "a\x00b", "\x00", "\x01\x02\x7f", "\x0b\x0c", "   \n\n  \n x", "x   \n", "x\n   ", "x  \r\n  y",
    "I'm you're he's we've they'll I'd don't", "I'M YOU'RE HE'S WE'VE THEY'LL I'D DON'T", "'s'S'\u017f'x",
    "'", "''", "' s", "it''s", "'sword 'told 'dark", "l'\u00e9t\u00e9 d'or", "1", "12", "123", "1234", "1234567890",
    "3.14159", "1,000,000", "x1y22z333", "\u0661\u0662\u0663\u0664", "\u00b2\u00b3\u00bc\u2460\u2167", "\u0bf0 10\u4e07",
    "!", "!!", "?!...", " !", "a!b", "--", " -- ", "(a)", "foo_bar", "a.b.c", "\n!\n!!\n\n", "//\n//",
    "\u00e9", "e\u0301", "\u0301", " \u0301x", "a\u0301\u0323\u0302b", "\u1e69 s\u0323\u0307 s\u0307\u0323", "\u212b \u00c5 A\u030a", "\ufb01 \ufb03 \uff21\uff22 \u2460",
    "\u1100\u1161\u11a8 \uac01 \uac00\u11a8", "\u0958 \u0915\u093c", "\u2126 \u03a9", "\u0344", "\U0001d15e", "\u0f73\u0f75",
    "\u0130 I \u0131 \u03a3\u03c3\u03c2 \u1e9e", "\uff1cs\uff1e", "\U00011938 \U00011935\U00011930", "\u32ff\ua7f2",
    "😀", "😀😃🎉", "👨‍👩‍👧", "❤️", "👍🏽", "🇩🇪🇫🇷", "a😀b", "☃", "☃☃☃ ☃", "𝕳𝖊𝖑𝖑𝖔", "\U0001f9d1\u200d\U0001f4bb",
    "今天天气很好", "日本語の文章", "カタカナ 漢字", "한국어 문장", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดีชาวโลก",
    "Привет, мир!", "Γειά σου Κόσμε", "Straße über Äpfel", "\u0531\u0561 \u10d0\u10d1 \u1200\u1201", "\U00010400\U00010428 \U0001e900\U0001e922",
    "\u2581", "\u2581\u2581a", "a\u2581b", " \u2581 ", "a \u2581 b", "\ufffd", "\ufffe\uffff", "\U0010ffff\U000e0001", "\u0378\u0380\U00031350",
    "\ufeffbom", "\u202eabc\u202c", "\u00ad", "a\u200db", "\u0600\u06dd",
    "Ġ", "Ċ", "âĢĻ", "ĠHello", "<0x41>", "<0x0A>", "<0xE2><0x98><0x83>", "<0xZZ>",
    "{\"a\": [1, 2, {\"b\": null}]}", "def f(x):\n    return x + 1\n\n\nprint(f(2))\n", "\tif (x) {\r\n\t\ty;\r\n\t}\r\n",
    "https://example.com/a?b=c&d=%20#e", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    " " * 70, "\n" * 40, "ab" * 50, "=" * 61, "é" * 33, "☃" * 20, "The the THE tHe " * 5, "0" * 50, " a" * 30,
]
# Added tokens next to text, spaces and each other; %s is replaced by each token of a tokenizer.
AROUND = ["%s", "a%sb", " %s ", "  %s  x", "x  %s", "%s%s", "%s %s", "a %s. %sb", "\n%s\n", "%s\t\n y", "é%sé",
          "_%s_", "\u2581%s", "<%s>", "%s" * 3 + "!"]


def texts_for(added, rng):
    out = list(TEXTS)
    for i, token in enumerate(added):
        shapes = AROUND if i < 4 else rng.sample(AROUND, 4)
        out += [s.replace("%s", token) for s in shapes]
        out += [token[:-1], token[1:], token.upper(), token + token[0]]
    pool = [SENTENCES, added or ["x"], list(" \n\t'\u00a0\u2581") + ["  ", "\r\n"], list("aZ09_.é中ß☃😀\u0301\u200d")]
    for _ in range(40):
        s = ""
        for _ in range(rng.randint(1, 6)):
            piece = rng.choice(rng.choice(pool))
            a = rng.randrange(len(piece))
            s += piece if rng.random() < 0.3 else piece[a:a + rng.randint(1, 20)]
        out.append(s)
    for _ in range(20):
        out.append("".join(random_char(rng) for _ in range(rng.randint(1, 16))))
    out += SENTENCES
    return out


def random_char(rng):
    top = rng.choice([0x80, 0x250, 0x700, 0x3100, 0x10000, 0x20000, 0x110000])
    while True:
        c = rng.randrange(top)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def corpus():
    rng = random.Random(7)
    words = " ".join(SENTENCES).split(" ")
    lines = SENTENCES * 6
    lines += [" ".join(rng.choice(words) for _ in range(12)) for _ in range(200)]
    return lines + ["    " * k + "x" for k in range(1, 6)] * 4


def train(pre_tokenizer, vocab_size, alphabet=(), byte_level=False):
    """(tokens in order of id, merges) of a BPE model; byte-level or not."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizer
    if not byte_level:  # the most frequent characters; the library's own choice varies between runs
        count = collections.Counter("".join(corpus()).replace(" ", MARK))
        alphabet = sorted(sorted(count), key=lambda c: -count[c])[:180]
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, initial_alphabet=list(alphabet),
                                  limit_alphabet=180 if not byte_level else 1000)
    t.train_from_iterator(corpus(), trainer)
    model = json.loads(t.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return tokens, [tuple(m) for m in model["merges"]]


def byte_level_model(regex, size=700, **kw):
    pre = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(regex), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokens, merges = train(pre, size, sorted(pre_tokenizers.ByteLevel.alphabet()), True)
    return models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges, **kw), pre


def sentencepiece_model(size=700, special=("<unk>", "<s>", "</s>")):
    """Ids as SentencePiece gives them: control tokens, 256 bytes, then pieces."""
    tokens, merges = train(pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always"), size)
    spaces = [MARK * k for k in (2, 4, 8) if MARK * k not in tokens]
    merges = [(MARK * (k // 2),) * 2 for k in (2, 4, 8) if MARK * k in spaces] + merges
    head = list(special) + ["<0x%02X>" % b for b in range(256)]
    vocab = {t: i for i, t in enumerate(head + [t for t in tokens + spaces if t not in head])}
    return models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)


def special(*contents):
    return [AddedToken(c, special=True, normalized=False) for c in contents]


def sp_decoder():
    return decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                              decoders.Strip(" ", 1, 0)])


def bos(token, first=None):
    template = processors.TemplateProcessing(single=[token[0], "$A"], pair=[token[0], "$A", "$B"],
                                             special_tokens=[token])
    return processors.Sequence([first, template]) if first else template


def qwen2():
    model, pre = byte_level_model(QWEN)
    t = Tokenizer(model)
    t.normalizer, t.pre_tokenizer = normalizers.NFC(), pre
    t.post_processor, t.decoder = processors.ByteLevel(trim_offsets=False), decoders.ByteLevel()
    t.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    t.add_tokens([AddedToken(c, normalized=False) for c in ("<tool_call>", "</tool_call>", "<think>")])
    return t


def llama3():
    model, pre = byte_level_model(LLAMA3, ignore_merges=True)
    t = Tokenizer(model)
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    t.add_special_tokens(special("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|eot_id|>"))
    t.post_processor = bos(("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>")),
                           processors.ByteLevel(trim_offsets=True))
    return t


def gpt2():
    pre = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens, merges = train(pre, 600, sorted(pre_tokenizers.ByteLevel.alphabet()), True)
    vocab = {t: i for i, t in enumerate(tokens)}
    vocab["<|endoftext|>"] = len(vocab)
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<|endoftext|>",
                             continuing_subword_prefix="", end_of_word_suffix=""))
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=True)])
    return t


def llama2():
    t = Tokenizer(sentencepiece_model())
    t.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    t.post_processor, t.decoder = bos(("<s>", 1)), sp_decoder()
    t.add_special_tokens([AddedToken(c, special=True, normalized=True) for c in ("<unk>", "<s>", "</s>")])
    return t


def spm():
    """llama2 with merges that follow from the pieces' scores, as transformers works them out for a SentencePiece
    model. Pieces stand in the order of merging, single characters last, and score -(id - 259) as in Llama 2."""
    from transformers.convert_slow_tokenizer import generate_merges
    tokens, _ = train(pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always"), 700)
    spaces = [MARK * k for k in (2, 4, 8) if MARK * k not in tokens]
    head = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    tokens = [t for t in spaces + tokens if len(t) > 1] + [t for t in tokens if len(t) == 1]
    vocab = {t: i for i, t in enumerate(head + tokens)}
    scores = {t: -float(vocab[t] - len(head)) for t in tokens}
    merges = generate_merges(vocab, scores)
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    t.post_processor, t.decoder = bos(("<s>", 1)), sp_decoder()
    t.add_special_tokens(special("<unk>", "<s>", "</s>"))
    return t


def smollm():
    """Single digits, then GPT-2's pattern."""
    pre = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokens, merges = train(pre, 600, sorted(pre_tokenizers.ByteLevel.alphabet()), True)
    t = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(tokens)}, merges=merges))
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    t.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    return t


def mistral():
    t = Tokenizer(sentencepiece_model(special=("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]")))
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first", split=False)
    t.post_processor, t.decoder = bos(("<s>", 1)), sp_decoder()
    t.add_special_tokens(special("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"))
    return t


def tekken():
    model, pre = byte_level_model(TEKKEN, ignore_merges=True)
    t = Tokenizer(model)
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    t.add_special_tokens(special("<unk>", "<s>", "</s>", "[INST]"))
    t.post_processor = bos(("<s>", t.token_to_id("<s>")))
    return t


def flags():
    """Every flag of an added token, under a normalizer that changes their contents."""
    model, _ = byte_level_model(QWEN, 400)
    t = Tokenizer(model)
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    t.decoder = decoders.ByteLevel()
    t.add_tokens([AddedToken("<L>", lstrip=True, normalized=False), AddedToken("<R>", rstrip=True, normalized=False),
                  AddedToken("<LR>", lstrip=True, rstrip=True), AddedToken("Word", single_word=True),
                  AddedToken("raw", single_word=True, normalized=False), AddedToken("  ", normalized=False, lstrip=True),
                  AddedToken("ＷＩＤＥ"), AddedToken("wi"), AddedToken("é\n", normalized=False, rstrip=True)])
    t.add_special_tokens([AddedToken("<S>", special=True, normalized=True), AddedToken("<Sx>", special=True, normalized=False),
                          AddedToken("<|s", special=True, normalized=False, single_word=True)])
    return t


def pieces():
    """The pre-tokenizers one after the other, no byte fallback, unknown tokens not fused."""
    tokens, merges = train(pre_tokenizers.Metaspace(), 450)
    t = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(["<unk>"] + tokens)}, merges=merges, unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Strip(), normalizers.Replace(Regex(r"[\u0300-\u036f]+|x{2,}"), "")])
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split("-", "merged_with_previous"), pre_tokenizers.Split(Regex("[aeiou]+"), "contiguous", invert=True),
        pre_tokenizers.Punctuation("merged_with_next"), pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first", split=True)])
    t.decoder = decoders.Metaspace(replacement=MARK, prepend_scheme="first")
    t.add_tokens([AddedToken("[x]"), AddedToken("ÄÖ")])
    return t


def words():
    """Whitespace pre-tokenizer, fused unknowns, old spelling of merges, no decoder."""
    tokens, merges = train(pre_tokenizers.Whitespace(), 420)
    t = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(["<unk>"] + tokens)}, merges=merges, unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.NFKD()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)])
    t.add_special_tokens(special("<s>", "<pad>"))
    t.post_processor = processors.TemplateProcessing(single="<s> $A <pad> <pad>", pair="$A $B", special_tokens=[("<s>", t.token_to_id("<s>")), ("<pad>", t.token_to_id("<pad>"))])
    return t


def parts(words, size):
    """The `size` most frequent parts of words, of up to 8 characters, and how often they occur; all characters."""
    count = collections.Counter()
    for word in words:
        for a in range(len(word)):
            for b in range(a + 1, min(len(word), a + 8) + 1):
                count[(a > 0, word[a:b])] += 1
    single = sorted(k for k in count if len(k[1]) == 1)
    long = sorted((k for k in count if len(k[1]) > 1), key=lambda k: (-count[k] * len(k[1]), k))
    return [(k, count[k]) for k in single + long[:size]]


def wordpiece(normalizer, size=600):
    pre = pre_tokenizers.BertPreTokenizer()
    words = [w for s in SENTENCES for w, _ in pre.pre_tokenize_str(normalizer.normalize_str(s))]
    head = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = head + [("##" if inside else "") + part for (inside, part), _ in parts(words, size)]
    t = Tokenizer(models.WordPiece(vocab={x: i for i, x in enumerate(tokens)}, unk_token="[UNK]", max_input_chars_per_word=40))
    t.normalizer, t.pre_tokenizer = normalizer, pre
    t.add_special_tokens(special(*head))
    return t


def bert():
    """As bert-base-uncased."""
    t = wordpiece(normalizers.BertNormalizer(lowercase=True))
    t.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
                                                     special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return t


def bert_cased():
    """Accents go and case stays, no cleanup, BertProcessing."""
    t = wordpiece(normalizers.BertNormalizer(lowercase=False, strip_accents=True, clean_text=False))
    t.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return t


def roberta():
    pre = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens, merges = train(pre, 500, sorted(pre_tokenizers.ByteLevel.alphabet()), True)
    vocab = {t: i for i, t in enumerate(["<s>", "<pad>", "</s>", "<unk>"] + tokens + ["<mask>"])}
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False)
    t.add_special_tokens(special("<s>", "<pad>", "</s>", "<unk>") + [AddedToken("<mask>", special=True, lstrip=True, normalized=False)])
    return t


def charsmap():
    """SentencePiece's compiled form of some rules of nmt_nfkc: compatibility forms, marks that join, blanks."""
    import tempfile
    import unicodedata
    import sentencepiece
    rules = {}
    for c in list(range(0xA0, 0x250)) + list(range(0x2000, 0x2070)) + list(range(0x3300, 0x3310)) + list(range(0xFB00, 0xFB07)) + list(range(0xFF01, 0xFF5F)):
        to = unicodedata.normalize("NFKC", chr(c))
        if to != chr(c):
            rules[chr(c)] = to
        parted = unicodedata.normalize("NFD", chr(c))
        if len(parted) > 1:
            rules[parted] = to
    rules.update({"\t": " ", "\n": " ", "\r": " ", "\u3000": " ", "\u200b": " ", "\ufeff": "", "\x01": "", "\r\n": " "})
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "rules.tsv"), "w", encoding="utf-8") as f:
            for a, b in sorted(rules.items()):
                f.write(" ".join("%X" % ord(c) for c in a) + "\t" + " ".join("%X" % ord(c) for c in b) + "\n")
        with open(os.path.join(d, "text"), "w", encoding="utf-8") as f:
            f.write("\n".join(SENTENCES[:5]))
        sentencepiece.SentencePieceTrainer.train(input=os.path.join(d, "text"), model_prefix=os.path.join(d, "m"), vocab_size=60,
                                                 hard_vocab_limit=False, normalization_rule_tsv=os.path.join(d, "rules.tsv"), minloglevel=2)
        from sentencepiece import sentencepiece_model_pb2
        m = sentencepiece_model_pb2.ModelProto()
        with open(os.path.join(d, "m.model"), "rb") as f:
            m.ParseFromString(f.read())
        return m.normalizer_spec.precompiled_charsmap


def unigram(head, size=700, **kw):
    words = [MARK + w for s in SENTENCES for w in s.split()]
    total = float(sum(len(w) for w in words))
    count = collections.Counter()
    for (_, part), n in parts(words, size):
        count[part] += n
    import math
    scored = sorted(((p, round(math.log(n / total), 6)) for p, n in count.items()), key=lambda x: (-x[1], x[0]))
    return models.Unigram(vocab=[(x, 0.0) for x in head] + scored, **kw)


def xlmr():
    """As XLM-R: a compiled map, then Metaspace and Unigram."""
    t = Tokenizer(unigram(["<s>", "<pad>", "</s>", "<unk>"], unk_id=3))
    t.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap()), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always")
    t.decoder = decoders.Metaspace(replacement=MARK, prepend_scheme="always")
    t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    t.add_special_tokens(special("<s>", "<pad>", "</s>", "<unk>"))
    return t


def unigram_bytes():
    """Unigram with tokens for bytes, words split at blanks first."""
    t = Tokenizer(unigram(["<pad>", "</s>", "<unk>"] + ["<0x%02X>" % b for b in range(256)], size=300, unk_id=2, byte_fallback=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always", split=False)])
    t.decoder = sp_decoder()
    t.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    t.add_special_tokens(special("<pad>", "</s>", "<unk>"))
    return t


ALL = [qwen2, llama3, gpt2, llama2, mistral, tekken, flags, pieces, words, spm, smollm, bert, bert_cased, roberta, xlmr,
       unigram_bytes]
PAIRS = ("bert", "bert_cased", "roberta", "xlmr")  # whose files say what stands around two texts
OLD_MERGES = ("gpt2", "llama2", "words")  # written as "a b"


def to_json(t, name):
    j = json.loads(t.to_str())
    if name in OLD_MERGES:
        j["model"]["merges"] = [" ".join(m) for m in j["model"]["merges"]]
    if name == "mistral":  # the spelling of older files next to the newer one
        j["pre_tokenizer"]["add_prefix_space"] = True
    return json.dumps(j, ensure_ascii=False, separators=(",", ":"))


# Where a pipeline differs from its nearest kin and TEXTS does not show it.
EXTRA = {"smollm": ["a  12", "1  2   3", "x    7", "\n\n    4 5"]}


def cases(t, rng, extra):
    added = [a.content for _, a in sorted(t.get_added_tokens_decoder().items())]
    encode, decode = [], []
    for text in texts_for(added, rng) + extra:
        case = {"text": text, "ids": t.encode(text, add_special_tokens=False).ids}
        full = t.encode(text, add_special_tokens=True).ids
        if full != case["ids"]:
            case["special"] = full
        case["decoded"] = t.decode(full, skip_special_tokens=False)
        skipped = t.decode(full, skip_special_tokens=True)
        if skipped != case["decoded"]:
            case["skipped"] = skipped
        encode.append(case)
    size = max(t.get_vocab().values()) + 1
    for _ in range(120):
        low = rng.choice([0, 0, 3, 131, 180])
        ids = [rng.randrange(low, min(size, low + rng.choice([8, 128, size]))) for _ in range(rng.randint(1, 12))]
        case = {"ids": ids, "decoded": t.decode(ids, skip_special_tokens=False)}
        skipped = t.decode(ids, skip_special_tokens=True)
        if skipped != case["decoded"]:
            case["skipped"] = skipped
        decode.append(case)
    return {"encode": encode, "decode": decode}


def pairs(t):
    out = []
    for a, b in (("What do foxes eat?", "A quick fox eats mice."), ("", "x"), ("x", ""), ("Straße  ", "今天 é")):
        e = t.encode(a, b)
        out.append({"a": a, "b": b, "ids": e.ids, "types": e.type_ids})
    return out


PATTERNS = [QWEN, LLAMA3, TEKKEN, r"\s+", r"\w+|[^\w\s]+", r"[\w]+", r"[^\W\d]+", r"\W+", r"\d{1,3}(?=(\d{3})*\b)", r"\b",
            r"\Bb|b\B", r"^.|.$", r"\A.|.\z|.\Z", r"\h+", r"[\h_]+", r"\S\s", r"(?<=a)b|c(?!d)", r"(?<!a)b",
            r"(?i:'s|'t)|\S+", r"(?i)hello|w\u00f6rld|\u017f|K", r"x*", r"(?:ab|a)++|[\s\S]", r"(?>a+)b?", r"a{2}|b{,2}|c{1,}", r"\P{L}+",
            r"\p{^N}+", r"\p{Lu}\p{Ll}*|\p{N}+", r"[\p{P}\p{S}]+", r"\p{M}+", r"[\p{Han}\u3005]+|\p{Hiragana}+",
            r"\p{Katakana}+|\p{Hangul}+", r"\P{Latin}+", r"[\x{4e00}-\x{9fa5}\x41\u00e9]+", r"[\t\n\r\f\v\a\e]+", r"[\]\[^-]+|[-a]", r"\r\n|\n"]


def patterns():
    rng, out = random.Random(5), []
    pool = [x for x in TEXTS if x] + SENTENCES
    for p in PATTERNS:
        split, cuts = pre_tokenizers.Split(Regex(p), "isolated"), []
        for text in rng.sample(pool, 18) + ["ab aab abb c cd a\nb\n", "hello W\u00f6RLD \u017f\u212a k 1234567 \u00b2\u00bd a\u00b2b",
                                            "\u4eca\u5929\u3005\u3002 \u3042\u30a2\uac00 \U00031350\U0002ebf0", "[]^-_\t\x0b\x07 \u180e\u200d"]:
            cuts.append({"text": text, "pieces": [len(x.encode()) for x, _ in split.pre_tokenize_str(text)]})
        out.append({"pattern": p, "cuts": cuts})
    return out


def fnv(data, h=0xCBF29CE484222325):
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def unicode_hashes():
    """Each character alone, and between a base and marks of high and low combining class."""
    out = {}
    for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
        norm, h = getattr(normalizers, name)(), fnv(b"")
        for c in range(1, 0x110000):
            if c >= 0x33500 and not 0xE0000 <= c < 0xE0200 or 0xD800 <= c < 0xE000:
                continue
            h = fnv(norm.normalize_str("%c a%c\u0345\u0334%c" % (c, c, c)).encode(), h)
        out[name] = "%016x" % h
    return out


def write_lines(path, items):
    with open(path, "w", encoding="utf-8") as f:
        lines = ",\n".join(json.dumps(x, ensure_ascii=True, separators=(",", ":")) for x in items)
        f.write("[\n%s\n]\n" % lines)


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else "tests/vectors/tokenizer"
    for make in ALL:
        name = make.__name__
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        text = to_json(make(), name)
        os.makedirs(os.path.join(out, name), exist_ok=True)
        with open(os.path.join(out, name, "tokenizer.json"), "w", encoding="utf-8") as f:
            f.write(text + "\n")
        with open(os.path.join(out, name, "cases.json"), "w", encoding="utf-8") as f:
            t = Tokenizer.from_str(text)
            c = cases(t, random.Random(name), EXTRA.get(name, []))
            if name in PAIRS:
                c["pairs"] = pairs(t)
            lines = ['"%s":[\n%s\n]' % (k, ",\n".join(json.dumps(x, ensure_ascii=True, separators=(",", ":")) for x in v))
                     for k, v in c.items()]
            f.write("{%s}\n" % ",\n".join(lines))
    if len(sys.argv) > 2:
        return
    write_lines(os.path.join(out, "patterns.json"), patterns())
    with open(os.path.join(out, "unicode.json"), "w", encoding="utf-8") as f:
        f.write(json.dumps(unicode_hashes(), indent=1) + "\n")


if __name__ == "__main__":
    main()
