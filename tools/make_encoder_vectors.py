#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/encoders: small random encoders, and what transformers makes of texts with them in float32.

    python3 tools/make_encoder_vectors.py tests/vectors/tokenizer tests/vectors/encoders

Each folder is a model as sentence-transformers saves one (config.json, model.safetensors, tokenizer.json, modules.json,
1_Pooling/config.json), or as transformers saves one that classifies, and
  expected.json: {"cases": [{"ids", "pair_from": first id of the second text, 0: there is one text,
                             "values": the pooled hidden state, or the labels' logits}, ...]}
of one label also "pairs": [{"query", "document", "score": the sigmoid of its logit}, ...].
Texts are computed one by one, so that nothing is padded. Needs torch and transformers >= 5. Never needed to build, run
or test.
"""
import json
import shutil
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import (BertConfig, BertForSequenceClassification, BertModel, ModernBertConfig,
                          ModernBertForSequenceClassification, ModernBertModel, NomicBertConfig, NomicBertModel,
                          RobertaConfig, RobertaForSequenceClassification, RobertaModel, XLMRobertaConfig,
                          XLMRobertaForSequenceClassification, XLMRobertaModel)

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
LABELS = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}
ONE = {"id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}}
BERT = {**SMALL, "max_position_embeddings": 160}
ROBERTA = {**SMALL, "max_position_embeddings": 162, "type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
# Windows of 4 tokens to each side, and layers of both kinds.
MODERN = {**SMALL, "num_hidden_layers": 4, "max_position_embeddings": 160, "local_attention": 8, "pad_token_id": 0,
          "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
# name: class, config class, fields, tokenizer, pooling (None: it classifies)
MODELS = {
    "bert": (BertModel, BertConfig, BERT, "bert", "mean"),
    "bert_cls": (BertModel, BertConfig, {**BERT, "hidden_act": "gelu_new"}, "bert", "cls"),
    "bert_last": (BertModel, BertConfig, {**BERT, "hidden_act": "silu", "type_vocab_size": 1}, "bert", "lasttoken"),
    "roberta": (RobertaModel, RobertaConfig, ROBERTA, "roberta", "mean"),
    "xlm_roberta": (XLMRobertaModel, XLMRobertaConfig, ROBERTA, "xlmr", "cls"),
    "modernbert": (ModernBertModel, ModernBertConfig, MODERN, "bert", "mean"),
    "modernbert_biases": (ModernBertModel, ModernBertConfig,
                          {**MODERN, "norm_bias": True, "attention_bias": True, "mlp_bias": True,
                           "hidden_activation": "gelu_pytorch_tanh",
                           "layer_types": ["sliding_attention", "full_attention"] * 2}, "bert", "cls"),
    "nomic_bert": (NomicBertModel, NomicBertConfig, {**SMALL, "max_position_embeddings": 160}, "bert", "mean"),
    "bert_classifier": (BertForSequenceClassification, BertConfig, {**BERT, **LABELS}, "bert", None),
    "bert_reranker": (BertForSequenceClassification, BertConfig, {**BERT, **ONE}, "bert", None),
    "roberta_classifier": (RobertaForSequenceClassification, RobertaConfig, {**ROBERTA, **LABELS}, "roberta", None),
    "xlm_roberta_reranker": (XLMRobertaForSequenceClassification, XLMRobertaConfig, {**ROBERTA, **ONE}, "xlmr", None),
    "modernbert_classifier": (ModernBertForSequenceClassification, ModernBertConfig, {**MODERN, **LABELS}, "bert", None),
    "modernbert_reranker": (ModernBertForSequenceClassification, ModernBertConfig,
                            {**MODERN, **ONE, "classifier_pooling": "mean", "classifier_bias": True}, "bert", None),
}
OLD_SPELLING = ("modernbert",)  # of rotations and layers, as files on the hub have them
PAIRS = [(q, d) for q in ("What do foxes eat?", "今天 weather") for d in ("a quick fox eats mice", "a blue car", "Straße", "the dog doesn't")]
LENGTHS = [1, 2, 7, 33, 130, 160]


def randomise(model, gen):
    """Weights large enough that every part of a layer counts."""
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            p.copy_(torch.randn(p.shape, generator=gen) * 0.2)
        elif p.dim() == 1:
            p.copy_(1 + torch.randn(p.shape, generator=gen) * 0.2)
        else:
            p.copy_(torch.randn(p.shape, generator=gen) * (1.0 if "embeddings" in name else 1.5 / p.shape[-1] ** 0.5))


def pooled(model, pooling, ids, pair_from):
    inputs = {"input_ids": torch.tensor([ids])}
    if pair_from > 0 and getattr(model.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = torch.tensor([[int(i >= pair_from) for i in range(len(ids))]])
    out = model(**inputs)
    if pooling is None:
        return out.logits[0]
    hidden = out.last_hidden_state[0]
    return {"mean": hidden.mean(0), "cls": hidden[0], "lasttoken": hidden[-1]}[pooling]


def pairs(model, tokenizer):
    out = []
    for query, document in PAIRS:
        e = tokenizer.encode(query, document)
        inputs = {"input_ids": torch.tensor([e.ids])}
        if getattr(model.config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = torch.tensor([e.type_ids])
        out.append({"query": query, "document": document,
                    "score": float(f"{torch.sigmoid(model(**inputs).logits[0, 0]):.8g}")})
    return out


def write_modules(folder, pooling, hidden):
    module = "sentence_transformers.models."
    (folder / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "", "type": module + "Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": module + "Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": module + "Normalize"}], indent=1) + "\n")
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{m}": m.removesuffix("_token").removesuffix("_tokens") == pooling
             for m in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")}
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": hidden, **modes}, indent=1) + "\n")


def respell(folder):
    config = json.loads((folder / "config.json").read_text())
    ropes = config.pop("rope_parameters")
    config.pop("layer_types")
    config.update(global_rope_theta=ropes["full_attention"]["rope_theta"],
                  local_rope_theta=ropes["sliding_attention"]["rope_theta"], global_attn_every_n_layers=3,
                  torch_dtype=config.pop("dtype"))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


@torch.no_grad()
def make(name, tokenizers, out):
    cls, config_cls, fields, tokenizer, pooling = MODELS[name]
    text = (tokenizers / tokenizer / "tokenizer.json").read_text()
    vocab = json.loads(text)["model"]["vocab"]
    config = config_cls(vocab_size=len(vocab), **fields)
    config._attn_implementation = "eager"
    model = cls(config).eval()
    gen = torch.Generator().manual_seed(sorted(MODELS).index(name) + 1)
    randomise(model, gen)
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "tokenizer.json").write_text(text)
    if pooling is not None:
        write_modules(folder, pooling, fields["hidden_size"])
    if name in OLD_SPELLING:
        respell(folder)
    cases = []
    for n in LENGTHS:
        ids = torch.randint(5, len(vocab), (n,), generator=gen).tolist()
        for pair_from in ([0, n // 2] if pooling is None and n > 2 else [0]):
            cases.append({"ids": ids, "pair_from": pair_from,
                          "values": [float(f"{v:.8g}") for v in pooled(model, pooling, ids, pair_from)]})
    expected = {"cases": cases}
    if fields.get("id2label") == ONE["id2label"]:
        expected["pairs"] = pairs(model, Tokenizer.from_str(text))
    lists = ['"%s":[\n%s\n]' % (k, ",\n".join(json.dumps(c, separators=(",", ":")) for c in v)) for k, v in expected.items()]
    (folder / "expected.json").write_text("{%s}\n" % ",\n".join(lists))


def main():
    tokenizers, out = map(Path, sys.argv[1:3])
    for name in sys.argv[3:] or MODELS:
        make(name, tokenizers, out)


if __name__ == "__main__":
    main()
