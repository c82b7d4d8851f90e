#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes further folders of tests/vectors/encoders: small random models as sentence-transformers saves them, with Dense
modules and prompts, decoders that classify or rank, and what sentence-transformers makes of texts with them in float32.

    python3 tools/make_retrieval_vectors.py tests/vectors/tokenizer tests/vectors/encoders

expected.json is that of make_encoder_vectors.py; with prompts also "texts": [{"prompt_name": or null, "text", "values":
of length 1}, ...], and where texts stand in a chat template "ids" of each: all that the model reads. Of bge-m3 "tokens":
[{"text", "ids", "vectors", "weights": of each token, as FlagEmbedding makes them of the hidden states}, ...]. Of a reranker by one token's logit there are no cases, and "chat" beside "pairs" has the scores with
a chat template that knows no queries and documents (chat.jinja): both are sigmoid(logit / 5). Needs torch, transformers
>= 5 and sentence-transformers >= 6. Never needed to build, run or test.
"""
import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.base.modules.normalize import Normalize
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import (BertConfig, BertModel, Gemma3TextConfig, Gemma3TextForSequenceClassification, Gemma3TextModel,
                          LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast, Qwen3Config,
                          Qwen3ForCausalLM, Qwen3ForSequenceClassification, Qwen3Model, XLMRobertaConfig, XLMRobertaModel)

from make_encoder_vectors import BERT, LABELS, LENGTHS, ONE, PAIRS, ROBERTA, randomise, write_modules

DECODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
           "intermediate_size": 48, "max_position_embeddings": 160, "bos_token_id": None, "eos_token_id": None,
           "pad_token_id": None}
# A window of 3 tokens to each side: of 7, half.
GEMMA = {**DECODER, "num_hidden_layers": 3, "query_pre_attn_scalar": 12, "sliding_window": 7,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
PROMPTS = {"query": "task: search result | query: ", "document": "title: none | text: ", "none": ""}
TEXTS = ["What do foxes eat?", "a quick fox eats mice", "今天 weather, Straße", "a"]
IDENTITY, TANH, GELU, SILU = torch.nn.Identity(), torch.nn.Tanh(), torch.nn.GELU(), torch.nn.SiLU()
# name: class, config, tokenizer, pooling, Dense modules (columns, bias, activation), what texts get without a name
EMBED = {
    "gemma3_encoder": (Gemma3TextModel, Gemma3TextConfig, {**GEMMA, "use_bidirectional_attention": True}, "llama2", "mean",
                       [(96, False, IDENTITY), (24, False, IDENTITY)], None),
    "gemma3_encoder_hub": (Gemma3TextModel, Gemma3TextConfig, {**GEMMA, "use_bidirectional_attention": True, "attention_bias": True},
                           "llama2", "cls", [], "document"),
    "qwen3_dense": (Qwen3Model, Qwen3Config, DECODER, "qwen2", "lasttoken", [(24, True, SILU)], None),
    "bert_dense": (BertModel, BertConfig, BERT, "bert", "mean", [(40, True, TANH), (32, True, GELU), (16, True, IDENTITY)], None),
}
CLASSIFY = {
    "qwen3_classifier": (Qwen3ForSequenceClassification, Qwen3Config, {**DECODER, **LABELS}, "qwen2"),
    "llama_reranker": (LlamaForSequenceClassification, LlamaConfig, {**DECODER, **ONE}, "llama3"),
    "gemma3_reranker": (Gemma3TextForSequenceClassification, Gemma3TextConfig, {**GEMMA, **ONE}, "llama2"),
    "qwen3_reranker": (Qwen3ForSequenceClassification, Qwen3Config, {**DECODER, **ONE}, "qwen2"),
}
# The same with a chat template, in which sentence-transformers puts texts: of contents that are strings, and of parts.
FLAT = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
PARTS = ("{%- for m in messages %}{{ '[INST] ' if m.role == 'user' else '<<SYS>>' }}"
         "{%- for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}\n{% endfor -%}")
TURNS = {
    "qwen3_turns": (Qwen3Model, Qwen3Config, DECODER, "qwen2", "lasttoken", [], None),
    "gemma3_encoder_turns": (Gemma3TextModel, Gemma3TextConfig, {**GEMMA, "use_bidirectional_attention": True}, "llama2", "mean",
                             [], "query"),
}
# Those whose prompts are not pooled.
WITHOUT_PROMPT = {
    "bert_without_prompt": (BertModel, BertConfig, BERT, "bert", "mean", [], "document"),
    "xlm_roberta_without_prompt": (XLMRobertaModel, XLMRobertaConfig, ROBERTA, "xlmr", "cls", [], None),
}
TEMPLATES = {"qwen3_turns": (FLAT, {"chat_template": {"add_generation_prompt": True}}), "gemma3_encoder_turns": (PARTS, None)}
# What zerank's folders have, in its first and its present form.
CHAT = ("{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
ROLES = ("{%- set query = messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first -%}\n"
         "{%- set document = messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first -%}\n"
         "{{- '<|im_start|>q\\n' ~ query ~ '<|im_end|>\\n<|im_start|>' ~ document ~ '<|im_end|>\\n' -}}\n"
         "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}\n")
YES = 42


def number(x):
    return float(f"{float(x):.8g}")


def tokenizer_of(tokenizers, name, template=None):
    t = PreTrainedTokenizerFast(tokenizer_file=str(tokenizers / name / "tokenizer.json"))
    t.pad_token = t.convert_ids_to_tokens(0)  # of which no text here has any
    if template is not None:
        t.chat_template = template
    return t


def save_model(tokenizers, cls, config_cls, fields, name, seed, folder, template=None):
    """A random model and its tokenizer in `folder`, as transformers saves them."""
    tokenizer = tokenizer_of(tokenizers, name, template)
    model = cls(config_cls(vocab_size=len(tokenizer), **fields)).eval()
    randomise(model, torch.Generator().manual_seed(seed))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def write(tokenizers, folder, name, expected):
    # As it is in tests/vectors/tokenizer: saving adds what padding and truncation need.
    shutil.copyfile(tokenizers / name / "tokenizer.json", folder / "tokenizer.json")
    for extra in ("README.md", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / extra).unlink(missing_ok=True)
    lists = ['"%s":[\n%s\n]' % (k, ",\n".join(json.dumps(c, separators=(",", ":"), ensure_ascii=False) for c in v))
             for k, v in expected.items()]
    (folder / "expected.json").write_text("{%s}\n" % ",\n".join(lists))


def respell(folder):
    """As files on the hub are."""
    config = json.loads((folder / "config.json").read_text())
    ropes = config.pop("rope_parameters")
    config.update(rope_theta=ropes["full_attention"]["rope_theta"], rope_local_base_freq=ropes["sliding_attention"]["rope_theta"],
                  rope_scaling=None, torch_dtype=config.pop("dtype"), _sliding_window_pattern=6)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def ids_of(gen, n, vocab):
    return torch.randint(5, vocab, (n,), generator=gen).tolist()


def embeds(name, tokenizers, folder, seed):
    cls, config_cls, fields, tokenizer, pooling, dense, usual = {**EMBED, **TURNS, **WITHOUT_PROMPT}[name]
    template, processing = TEMPLATES.get(name, (None, None))
    with tempfile.TemporaryDirectory() as base:
        vocab = len(save_model(tokenizers, cls, config_cls, fields, tokenizer, seed, base, template))
        transformer = Transformer(base, processing_kwargs=processing)
        if name in WITHOUT_PROMPT:  # at the end of a prompt by itself it is not counted
            words = transformer.tokenizer
            words.sep_token = words.convert_ids_to_tokens(words("a")["input_ids"][-1])
    gen = torch.Generator().manual_seed(seed)
    modules, columns = [transformer, Pooling(fields["hidden_size"], pooling, include_prompt=name not in WITHOUT_PROMPT)], fields["hidden_size"]
    for out, bias, act in dense:
        modules.append(Dense(columns, out, bias=bias, activation_function=act,
                             init_weight=torch.randn(out, columns, generator=gen) * 1.5 / columns ** 0.5,
                             init_bias=torch.randn(out, generator=gen) * 0.2 if bias else None))
        columns = out
    model = SentenceTransformer(modules=modules + [Normalize()], prompts=PROMPTS, default_prompt_name=usual, device="cpu").eval()
    model.save(str(folder), create_model_card=False)
    if name.endswith("_hub"):
        respell(folder)
    cases = []
    for n in LENGTHS:
        features = {"input_ids": torch.tensor([ids_of(gen, n, vocab)]), "attention_mask": torch.ones(1, n, dtype=torch.long)}
        ids = features["input_ids"][0].tolist()
        for module in modules:
            features = module(features)
        cases.append({"ids": ids, "pair_from": 0, "values": [number(v) for v in features["sentence_embedding"][0]]})
    texts = [{"prompt_name": p, "text": t, "values": [number(v) for v in model.encode(t, prompt_name=p)]}
             for p in (None, *PROMPTS) for t in TEXTS]
    for t in texts if name in TURNS else []:
        t["ids"] = model.preprocess([t["text"]], prompt=PROMPTS.get(t["prompt_name"] or usual))["input_ids"][0].tolist()
    write(tokenizers, folder, tokenizer, {"cases": cases, "texts": texts})


def classifies(name, tokenizers, folder, seed):
    cls, config_cls, fields, tokenizer = CLASSIFY[name]
    vocab = len(save_model(tokenizers, cls, config_cls, fields, tokenizer, seed, folder))
    model, gen = cls.from_pretrained(folder, attn_implementation="eager").eval(), torch.Generator().manual_seed(seed)
    cases = []
    for n in LENGTHS:
        ids = ids_of(gen, n, vocab)
        cases.append({"ids": ids, "pair_from": 0, "values": [number(v) for v in model(torch.tensor([ids])).logits[0]]})
    expected = {"cases": cases}
    if fields.get("id2label") == ONE["id2label"]:
        ranker = CrossEncoder(str(folder), device="cpu")
        expected["pairs"] = [{"query": q, "document": d, "score": number(ranker.predict([(q, d)], batch_size=1)[0])}
                             for q, d in PAIRS]
    write(tokenizers, folder, tokenizer, expected)


def bge_m3(tokenizers, folder, seed):
    """Vectors and weights of each token, beside the text's; in files of their own, or (bge_m3_whole) all in the model's, as
    the class BgeM3Model saves them that some folders bring along."""
    tokenizer = save_model(tokenizers, XLMRobertaModel, XLMRobertaConfig, ROBERTA, "xlmr", seed, folder)
    model, gen = XLMRobertaModel.from_pretrained(folder, attn_implementation="eager").eval(), torch.Generator().manual_seed(seed)
    hidden = ROBERTA["hidden_size"]
    colbert, sparse = ({"weight": torch.randn(n, hidden, generator=gen) / hidden ** 0.5,
                        "bias": torch.randn(n, generator=gen) * 0.2 + 0.3} for n in (24, 1))
    if folder.name.endswith("_whole"):
        config = json.loads((folder / "config.json").read_text()) | {
            "architectures": ["BgeM3Model"], "model_type": "bge-m3", "colbert_dim": 24, "sentence_pooling_method": "cls",
            "unused_tokens": [0, 2, 1, 3], "auto_map": {"AutoModel": "modeling_bge_m3.BgeM3Model"}}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        tensors = {"roberta." + k: v for k, v in model.state_dict().items() if not k.startswith("pooler.")}
        tensors |= {f"{n}_linear.{k}": v for n, head in (("colbert", colbert), ("sparse", sparse)) for k, v in head.items()}
        save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        save_file(colbert, folder / "colbert_linear.safetensors")
        save_file(sparse, folder / "sparse_linear.safetensors")
        write_modules(folder, "cls", hidden)
    cases, tokens = [], []
    for n in LENGTHS:
        ids = ids_of(gen, n, len(tokenizer))
        state = model(torch.tensor([ids])).last_hidden_state[0]
        cases.append({"ids": ids, "pair_from": 0, "values": [number(v) for v in state[0]]})
    for text in TEXTS + ["fox fox mice fox"]:
        ids = tokenizer(text)["input_ids"]
        state = model(torch.tensor([ids])).last_hidden_state[0]
        vectors = torch.nn.functional.normalize(state @ colbert["weight"].T + colbert["bias"], dim=-1)
        weights = torch.relu(state @ sparse["weight"][0] + sparse["bias"])
        tokens.append({"text": text, "ids": ids, "vectors": [[number(v) for v in row] for row in vectors],
                       "weights": [number(v) for v in weights]})
    write(tokenizers, folder, "xlmr", {"cases": cases, "tokens": tokens})


def by_one_token(tokenizers, folder, seed):
    """As zerank's: the logit of one token."""
    scores = {}
    for key, template in (("chat", CHAT), ("pairs", ROLES)):
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory() as base:
            tokenizer = save_model(tokenizers, Qwen3ForCausalLM, Qwen3Config, DECODER, "qwen2", seed, base, template)
            causal = Qwen3ForCausalLM.from_pretrained(base).eval()
            transformer = Transformer(base, transformer_task="text-generation",
                                      processing_kwargs={"chat_template": {"add_generation_prompt": True}})
        if key == "pairs":
            ranker = CrossEncoder(modules=[transformer, LogitScore(YES)], device="cpu", activation_fn=torch.nn.Identity())
            logits = [ranker.predict([pair], batch_size=1)[0] for pair in PAIRS]
            ranker.save(str(folder), create_model_card=False)
        else:
            logits = []
            for query, document in PAIRS:
                messages = [{"role": "system", "content": query}, {"role": "user", "content": document}]
                ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
                logits.append(causal(torch.tensor([ids])).logits[0, -1, YES])
        scores[key] = [{"query": q, "document": d, "score": number(torch.sigmoid(torch.tensor(float(v)) / 5))}
                       for (q, d), v in zip(PAIRS, logits)]
    write(tokenizers, folder, "qwen2", scores)
    (folder / "chat.jinja").write_text(CHAT)


@torch.no_grad()
def main():
    tokenizers, out = map(Path, sys.argv[1:3])
    names = [*EMBED, *CLASSIFY, "one_token_reranker", "bge_m3", *TURNS, *WITHOUT_PROMPT, "bge_m3_whole"]
    for name in sys.argv[3:] or names:
        folder, seed = out / name, 100 + names.index(name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if name in (*EMBED, *TURNS, *WITHOUT_PROMPT):
            embeds(name, tokenizers, folder, seed)
        elif name in CLASSIFY:
            classifies(name, tokenizers, folder, seed)
        else:
            {"one_token_reranker": by_one_token, "bge_m3": bge_m3, "bge_m3_whole": bge_m3}[name](tokenizers, folder, seed)


main()
