"""Tiny language models made here, pretrained once on `steps` and kept in a cache: `tiny:teacher`, `tiny:student`, ...

Teacher and student see the same worked answers, the student for fewer updates, so there is a gap to close. The reader
has also learned to use a worked answer that stands before the question, which a model has to be able to before it can
teach itself from one. A model is named by the digest of its recipe; the same recipe makes the same weights on the same
kind of machine.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posttrain.artifacts.digests import content_digest
from posttrain.data.steps import ALPHABET, Steps
from posttrain.registry import ConfigError, did_you_mean

PREFIX = "tiny:"
PAD, EOS = "<pad>", "<eos>"


@dataclass(frozen=True)
class Recipe:
    """Everything a tiny model depends on: 83 thousand parameters, one minute at most on one core."""

    updates: int
    version: int = 1
    hidden_size: int = 64
    layers: int = 2
    heads: int = 4
    examples: int = 20000
    data_seed: int = 1_000_000  # far from the seeds of runs
    initial_seed: int = 0
    batch_size: int = 64
    learning_rate: float = 3e-3
    warmup: int = 50
    decay_over: int = 500  # updates of the whole cosine: the student stops on the way
    shown: float | None = None  # share of the examples whose worked answer and a `;` stand before the question


RECIPES = {
    "teacher": Recipe(updates=500),
    "student": Recipe(updates=260),
    "reader": Recipe(updates=450, decay_over=1000, shown=0.5),
}


def located(model: str) -> str:
    """The folder of a `tiny:` model, made now if it is not in the cache; any other name as it is."""
    if not model.startswith(PREFIX):
        return model
    name = model.removeprefix(PREFIX)
    if name not in RECIPES:
        raise ConfigError(f"policy.model: there is no tiny model `{name}`.{did_you_mean(name, RECIPES)}")
    recipe = RECIPES[name]
    said = {key: value for key, value in asdict(recipe).items() if value is not None}
    folder = cache_folder() / f"tiny-{name}-{content_digest(said).removeprefix('sha256:')[:16]}"
    if not (folder / "model.safetensors").is_file():
        _make(recipe, name, folder)
    return str(folder)


def cache_folder() -> Path:
    """`POSTTRAIN_CACHE`, or `posttrain` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("POSTTRAIN_CACHE") or Path(base) / "posttrain")


def _make(recipe: Recipe, name: str, folder: Path) -> None:
    """Trains beside the place and renames into it: a kill leaves nothing that looks finished, several makers agree."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # of the library's saving, of a file that is there in a moment
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        tokenizer, model = tokenizer_of(scratch), untrained(recipe)
        print(f"pretraining the tiny {name}, {recipe.updates} updates, once", file=sys.stderr, flush=True)
        pretrain(model, recipe, tokenizer)
        model.save_pretrained(scratch)
        try:
            scratch.rename(folder)
        except OSError:
            if not (folder / "model.safetensors").is_file():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def tokenizer_of(folder: Path) -> Any:
    """One token per character of the alphabet, saved in `folder`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({token: i for i, token in enumerate((PAD, EOS, *ALPHABET))}, unk_token=PAD))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token=PAD, eos_token=EOS, padding_side="left")
    tokenizer.save_pretrained(folder)
    return tokenizer


def untrained(recipe: Recipe) -> Any:
    """The model at its initial weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(ALPHABET) + 2,
        hidden_size=recipe.hidden_size,
        intermediate_size=2 * recipe.hidden_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(recipe.initial_seed)
        return LlamaForCausalLM(config)


def pretrain(model: Any, recipe: Recipe, tokenizer: Any, report: Callable[[int, float], None] | None = None) -> None:
    """Maximum likelihood of the worked answers, AdamW under a cosine; one thread, so that the weights repeat."""
    ids, labels = _corpus(recipe, tokenizer)
    stream = np.random.default_rng(recipe.initial_seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.01)

    def factor(step: int) -> float:
        return min(1.0, (step + 1) / recipe.warmup) * 0.5 * (1 + float(np.cos(np.pi * step / recipe.decay_over)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for update in range(1, recipe.updates + 1):
            rows = torch.from_numpy(stream.integers(0, len(ids), recipe.batch_size))
            logits = model(ids[rows]).logits[:, :-1].flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, labels[rows][:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if report is not None:
                report(update, loss.item())
    finally:
        torch.set_num_threads(threads)


def _corpus(recipe: Recipe, tokenizer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels [N, L], right-padded; the question and the padding carry no label (-100)."""
    problems = Steps(train_examples=recipe.examples, validation_examples=1).build(recipe.data_seed).train
    shown = np.random.default_rng(recipe.data_seed).random(len(problems)) < (recipe.shown or 0.0)
    asked = [f"{p.responses[0]};{p.prompt}" if show else p.prompt for p, show in zip(problems, shown, strict=True)]
    answers = [[*tokenizer.encode(p.responses[0]), tokenizer.eos_token_id] for p in problems]
    rows = list(zip(map(tokenizer.encode, asked), answers, strict=True))
    length = max(len(question) + len(answer) for question, answer in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.int64)
    labels = torch.full_like(ids, -100)
    for row, (question, answer) in enumerate(rows):
        end = len(question) + len(answer)
        ids[row, :end] = torch.tensor(question + answer)
        labels[row, len(question) : end] = torch.tensor(answer)
    return ids, labels
