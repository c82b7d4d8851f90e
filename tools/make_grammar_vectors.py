#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/grammar: documents that schemas allow and refuse, strings that patterns match.

usage: make_grammar_vectors.py OUT_DIR      (needs jsonschema, which judges every document)

Valid documents come from a generator over the schema, in the order of its properties; invalid ones
are mutations that jsonschema refuses or that are no JSON. Patterns are judged by re.fullmatch.
"""
import copy
import json
import pathlib
import random
import re
import string
import sys

import jsonschema

R = random.Random(15)
TEXT = string.ascii_letters + string.digits + ' _-.,:"\\/\n\té日😀{}[]'

SCHEMAS = {
    "person": {"type": "object", "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "email": {"type": "string", "format": "email"}, "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5}},
        "required": ["name", "age"], "additionalProperties": False},
    "open": {"type": "object", "properties": {"a": {"type": "number"}, "ab": {"type": "boolean"}, "a\"é": {"type": "null"}},
             "required": ["a"], "additionalProperties": True},
    "map": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 4},
    "tree": {"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"},
             "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "required": ["v"], "additionalProperties": False}},
             "$ref": "#/$defs/node"},
    "tuple": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}, {"enum": ["x", 1, None, {"a": [1, 2.5]}]}],
              "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5},
    "closed tuple": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}], "items": False},
    "union": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer", "minimum": -5, "maximum": 17},
              {"type": "object", "properties": {"k": {"const": "v"}}, "required": ["k"], "additionalProperties": False}]},
    "kinds": {"oneOf": [{"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer", "minimum": 1}},
                         "required": ["kind", "lives"], "additionalProperties": False},
                        {"type": "object", "properties": {"kind": {"const": "dog"}, "good": {"type": "boolean"}},
                         "required": ["kind"], "additionalProperties": False}]},
    "all": {"allOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
                      {"properties": {"a": {"type": "integer", "maximum": 9}, "b": {"type": "string"}}, "required": ["b"]}],
            "additionalProperties": True},
    "pattern": {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}(-[0-9]{4})?$"},
                "has": {"type": "string", "pattern": "ab+c"}, "q": {"type": "string", "pattern": "^\"[^\\\\\"]{0,3}\"$"},
                "both": {"type": "string", "pattern": "^(x|yz)*$", "minLength": 3, "maxLength": 6}},
                "required": ["zip", "has", "q", "both"], "additionalProperties": False},
    "formats": {"type": "object", "properties": {f: {"type": "string", "format": f} for f in ("date", "time", "date-time", "uuid", "ipv4")},
                "additionalProperties": False},
    "patterns": {"type": "object", "properties": {"id": {"type": "integer"}}, "patternProperties": {"^x_[a-z]+$": {"type": "string"}},
                 "additionalProperties": False},
    "types": {"type": "array", "items": {"type": ["string", "null", "boolean", "integer"]}},
    "any": {},
    "range 1": {"type": "integer", "minimum": -37, "maximum": 1204}, "range 2": {"type": "integer", "exclusiveMinimum": 99},
    "range 3": {"type": "integer", "exclusiveMaximum": -10}, "range 4": {"type": "number", "minimum": 0, "maximum": 1},
    "range 5": {"type": "number", "exclusiveMinimum": -2.5, "exclusiveMaximum": 10.25},
    "range 6": {"type": "number", "minimum": 3.14, "maximum": 3.15}, "range 7": {"type": "number", "maximum": -0.5},
    "range 8": {"type": "number", "minimum": 0.125}, "range 9": {"type": "number", "exclusiveMinimum": 0},
    "multiple": {"type": "integer", "multipleOf": 7}, "cents": {"type": "number", "multipleOf": 0.01},
    "names": {"type": "object", "propertyNames": {"pattern": "^[a-z]{2,4}$"}, "additionalProperties": {"type": "boolean"}},
    "long": {"type": "string", "minLength": 30, "maxLength": 90},
    "many": {"type": "array", "items": {"type": "integer"}, "minItems": 8, "maxItems": 40},
    "deep": {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "object", "properties": {
             "c": {"type": "array", "items": {"$ref": "#/properties/a/properties/b"}, "maxItems": 2}}, "additionalProperties": False}},
             "additionalProperties": False}}, "additionalProperties": False},
    "escapes 1": {"type": "string", "pattern": "^[\n\"a-c]*$", "minLength": 2, "maxLength": 4},
    "escapes 2": {"type": "string", "pattern": "b", "minLength": 3, "maxLength": 5},
    "optional": {"type": "object", "properties": {c: {"type": "integer"} for c in "abcdefgh"}, "required": ["c", "f"],
                 "additionalProperties": False},
}

PATTERNS = [r"a*b", r"[a-z]+@[a-z]+\.(com|org)", r"\d{3}-\d{4}", r"(ab|a)(c|bcd)", r"(a|b|ab)*abb", r"x{2,5}y{0,3}z+",
            r"[^a-c\s]{2,}", r"(foo|bar)?baz", r"\w+\s\w+", r"(a{2,30}b){1,20}", r"[é-ï日]+", r".{3,50}", r"(?:a|b){10,12}",
            r"\x41\u0042[\-\]]", r"a?b?c?d?", r"(a+)+b", r"", r"[a-z]{0,3}[0-9]{0,3}", r"((a|b)(c|d)){3}"]


def word(lo, hi):
    return "".join(R.choice(TEXT) for _ in range(R.randint(lo, hi)))


def resolve(s, root):
    while "$ref" in s:
        at = root
        for t in s["$ref"].split("/")[1:]:
            at = at[t]
        s = at
    return s


def anything(depth):
    k = R.randint(0, 6 if depth < 3 else 4)
    if k == 5:
        return [anything(depth + 1) for _ in range(R.randint(0, 3))]
    if k == 6:
        return {word(0, 4): anything(depth + 1) for _ in range(R.randint(0, 3))}
    return [None, True, R.randint(-1000, 1000), round(R.uniform(-10, 10), 3), word(0, 8)][k]


FORMS = {"date": lambda: "%04d-%02d-%02d" % (R.randint(0, 9999), R.randint(1, 12), R.randint(1, 28)),
         "time": lambda: "%02d:%02d:%02dZ" % (R.randint(0, 23), R.randint(0, 59), R.randint(0, 59)),
         "uuid": lambda: "-".join("%0*x" % (n, R.getrandbits(4 * n)) for n in (8, 4, 4, 4, 12)),
         "ipv4": lambda: ".".join(str(R.randint(0, 255)) for _ in range(4)),
         "email": lambda: R.choice(["a.b+c@ex-ample.org", "x@y.io", "Some_One@mail.example.com"])}
FORMS["date-time"] = lambda: FORMS["date"]() + "T" + FORMS["time"]()
MADE = {"^[0-9]{5}(-[0-9]{4})?$": ["12345", "12345-6789"], "ab+c": ["abc", "x abbbc\n", "\"abc\""],
        "^\"[^\\\\\"]{0,3}\"$": ["\"\"", "\"a\n1\""], "^(x|yz)*$": ["xxx", "xyz", "yzyzyz", "xxxxxx"],
        "^[\n\"a-c]*$": ["\n\n", "\"\"\"\"", "a\nb", "cc\n"], "b": ["b\n\\", "\"b\"cd", "bbb", "\n\n\n\nb"],
        "^[a-z]{2,4}$": ["ab", "abcd"], "^x_[a-z]+$": ["x_a", "x_abc"]}


def gen(s, root, depth=0):
    if s is True or s == {}:
        return anything(depth)
    s = resolve(s, root)
    if "allOf" in s:
        s = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 9}, "b": {"type": "string"}},
             "required": ["a", "b"]}
    for k in ("anyOf", "oneOf"):
        if k in s:
            return gen(R.choice(s[k]), root, depth)
    if "const" in s:
        return s["const"]
    if "enum" in s:
        return R.choice(s["enum"])
    t = s["type"] if isinstance(s["type"], str) else R.choice(s["type"])
    if t == "null":
        return None
    if t == "boolean":
        return R.random() < 0.5
    if t == "string":
        if "format" in s:
            return FORMS[s["format"]]()
        if "pattern" in s:
            return R.choice(MADE[s["pattern"]])
        return word(s.get("minLength", 0), s.get("maxLength", 12))
    if t in ("integer", "number"):
        lo = s.get("minimum", s.get("exclusiveMinimum", -10**R.randint(1, 8)))
        hi = s.get("maximum", s.get("exclusiveMaximum", max(lo, 0) + 10**R.randint(1, 8)))
        lo = min(lo, hi - 10**R.randint(1, 5)) if "inimum" not in str(s) else lo
        if "multipleOf" in s:
            return R.randint(-9, 99) * s["multipleOf"] if t == "integer" else round(R.uniform(-9, 9), 2)
        if t == "integer":
            return R.randint(lo, hi)
        return R.choice([lo, hi, round(R.uniform(lo, hi), R.randint(0, 6))])
    if t == "array":
        n = R.randint(s.get("minItems", 0), s.get("maxItems", 3 if depth < 3 else 0))
        pre = s.get("prefixItems", [])
        if s.get("items") is False:
            n = min(n, len(pre))
        return [gen(pre[i] if i < len(pre) else s.get("items", True), root, depth + 1) for i in range(n)]
    out = {}
    for k, v in s.get("properties", {}).items():
        if k in s.get("required", []) or (R.random() < 0.5 and depth < 6):
            out[k] = gen(v, root, depth + 1)
    more = s.get("additionalProperties", True)
    if "patternProperties" in s:
        (p, v), = s["patternProperties"].items()
        more, names = v, MADE[p]
    elif "propertyNames" in s:
        names = MADE[s["propertyNames"]["pattern"]]
    else:
        names = [word(0, 5) for _ in range(3)] + ["b", "abc"]
    if more is not False:
        for _ in range(R.randint(s.get("minProperties", 0), 2)):
            k = R.choice(names)
            if k not in out:
                out[k] = gen(more, root, depth + 1)
    return out


def forms(d):
    yield json.dumps(d, separators=(",", ":"), ensure_ascii=False)
    yield json.dumps(d, ensure_ascii=False)
    yield json.dumps(d, indent=R.choice([1, 2, 4]), ensure_ascii=False)


def mutate(d):
    d = copy.deepcopy(d)
    if isinstance(d, dict) and d and R.random() < 0.8:
        k = R.choice(list(d))
        c = R.randint(0, 2)
        if c == 0:
            del d[k]
        elif c == 1:
            d[R.choice(["zz", "nam", k + "x"])] = R.choice([1, "x", None])
        else:
            d[k] = mutate(d[k])
        return d
    if isinstance(d, list) and d and R.random() < 0.8:
        i = R.randrange(len(d))
        c = R.randint(0, 2)
        if c == 0:
            del d[i]
        elif c == 1:
            d.insert(i, R.choice([1, "x", None, 2.5]))
        else:
            d[i] = mutate(d[i])
        return d
    if isinstance(d, str) and R.random() < 0.7:
        return R.choice([d + "x" * R.choice([1, 30, 100]), d[:-1], d[1:] + "é", d.replace("-", "_", 1)])
    if isinstance(d, (int, float)) and R.random() < 0.7:
        return R.choice([d + 1, d * 10, -d, d + 0.5, -d - 1, d + 1000])
    return R.choice([None, True, 1, -3, 2.5, "x", [], {}, [1], {"a": 1}])


def text_level(t):
    i = R.randrange(len(t))
    return R.choice([t[:i], t[:i] + t[i + 1:], t[:i] + R.choice(",:{}[]\"x") + t[i:], t + "x", t + "}"])


def main():
    out = pathlib.Path(sys.argv[1])
    cases = []
    for name, s in SCHEMAS.items():
        check = jsonschema.Draft202012Validator(s, format_checker=None)
        good, bad = [], []
        for _ in range(400):
            d = gen(s, s)
            if not check.is_valid(d):
                continue
            t = R.choice(list(forms(d)))
            if len(t) > 300 or "e-" in t:
                continue
            if len(good) < 14 and t not in good:
                good.append(t)
            m = mutate(d)
            if len(bad) < 10 and not check.is_valid(m):
                bad.append(json.dumps(m, ensure_ascii=False))
            m = text_level(t)
            try:
                json.loads(m)
            except ValueError:
                if len(bad) < 14:
                    bad.append(m)
        assert good and bad, name
        cases.append({"name": name, "schema": s, "valid": good, "invalid": bad})
    pats = []
    for p in PATTERNS:
        alphabet = "abcdxyz019-@. é日foobrAB]\n_"
        yes, no = [], []
        for _ in range(4000):
            t = "".join(R.choice(alphabet) for _ in range(R.randint(0, 12)))
            (yes if re.fullmatch(p, t, re.A) else no).append(t)
        made = ["aab", "me@x.org", "123-4567", "abcd", "ababb", "xxyyzz", "foobaz", "a b", "aabaaab", "aaab", "acbdac", "ababababab", "AB-", "AB]"]
        for t in made:
            (yes if re.fullmatch(p, t, re.A) else no).append(t)
        yes, no = sorted(set(yes)), sorted(set(no))
        pats.append({"pattern": p, "yes": R.sample(yes, min(8, len(yes))), "no": R.sample(no, min(12, len(no)))})
    out.mkdir(parents=True, exist_ok=True)
    (out / "schemas.json").write_text(json.dumps(cases, ensure_ascii=False, indent=0) + "\n")
    (out / "patterns.json").write_text(json.dumps(pats, ensure_ascii=False, indent=0) + "\n")


main()
