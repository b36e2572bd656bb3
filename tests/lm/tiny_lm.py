"""Tiny language models and tokenizers, made in a moment without a network."""

from dataclasses import replace
from functools import lru_cache

import torch

from posttrain.batch import Problem
from posttrain.policies.causal_lm import CausalLM, CausalLMPolicy

WORDS = ("<pad>", "<eos>", "<bos>", "<u>", "</u>", "<a>", *(f"w{i}" for i in range(54)))
EOS, BOS = 1, 2
CHAT = (
    "<bos>{% for m in messages %}{{ '<u> ' + m.content + ' </u>' if m.role == 'user' else '<a> ' + m.content + ' <eos>'"
    " }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
SHAPE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": BOS, "eos_token_id": EOS,
    "pad_token_id": 0,
}  # fmt: skip


@lru_cache
def tokenizer(chat=CHAT, words=WORDS):
    """One id a word, split at blanks; written in front of nothing, it begins with nothing."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", bos_token="<bos>", pad_token="<pad>")
    wrapped.add_special_tokens({"additional_special_tokens": ["<u>", "</u>", "<a>"]})
    wrapped.chat_template = chat
    return wrapped


def model(kind="llama", dtype=torch.float64, seed=0, vocabulary=60, scale=1.0, **options):
    """Random weights of a size that makes distributions neither flat nor certain."""
    import transformers as hf

    if kind == "gpt2":
        config = hf.GPT2Config(
            vocab_size=vocabulary, n_embd=32, n_layer=2, n_head=4, n_positions=256, bos_token_id=BOS, eos_token_id=EOS
        )
    else:
        more = {
            "gemma2": {"head_dim": 8, "final_logit_softcapping": 2.0, "sliding_window": 6, "query_pre_attn_scalar": 8},
            "cohere": {"logit_scale": 0.25},
            "granite": {"logits_scaling": 4.0},
            "phi": {},
        }.get(kind, {})
        names = {"llama": "LlamaConfig", "qwen2": "Qwen2Config", "gemma2": "Gemma2Config", "cohere": "CohereConfig",
                 "granite": "GraniteConfig", "phi": "PhiConfig"}  # fmt: skip
        config = getattr(hf, names[kind])(vocab_size=vocabulary, **{**SHAPE, **more, **options})
    torch.manual_seed(seed)
    made = hf.AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" not in name and "ln_" not in name:
                parameter.copy_(scale * 0.25 * torch.randn(parameter.shape, dtype=torch.float64))
        made.get_output_embeddings().weight[EOS] *= 3  # completions end at different places, some at the limit
    return made


def problems(number=4, responses=2, lengths=(3, 1, 5, 2)):
    """Prompts of different lengths; candidates list the vocabulary, for the dense references."""
    return [
        Problem(
            id=f"p{i}",
            prompt=" ".join(f"w{(7 * i + j) % 54}" for j in range(lengths[i % len(lengths)])),
            answer=f"w{i}",
            candidates=WORDS,
            responses=tuple(" ".join(f"w{(i + 3 * r + j) % 54}" for j in range(2 + r)) for r in range(responses)),
        )
        for i in range(number)
    ]


def policy(kind="llama", dtype="float64", seed=0, critic=False, given=None, scale=1.0, made=None, **options):
    """A policy over `problems()`."""
    config = replace(CausalLM(dtype=dtype, max_completion_tokens=6, max_prompt_tokens=16, rows=64), **options)
    made = made or model(kind, getattr(torch, dtype), seed, scale=scale)
    return CausalLMPolicy(config, made, tokenizer(), problems() if given is None else given, critic)
