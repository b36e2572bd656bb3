"""`causal_lm`: a transformers model as a policy. The backbone runs once, the vocabulary projection where it is asked.

Rows are packed before the backbone sees them (prompt and completion without the padding between and before them), so
positions are right and no attention mask is needed, however a batch was padded. Tensors [B, T] of rollouts and scores
stay on their own device; hidden states and weights on the model's.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from posttrain.batch import Problem, Rollouts, Scores, Targets
from posttrain.policies.base import Divergence, Expectations, Policy, States
from posttrain.policies.lm_encoding import Encoder, Template
from posttrain.policies.lm_files import load
from posttrain.policies.lm_head import Question, answer, top_support
from posttrain.policies.lm_intact import require_intact
from posttrain.policies.lm_loading import (
    COMPLETION,
    Lora,
    adapter_settings,
    check_model,
    completion_limit,
    end_tokens,
    head_of,
    merged,
    with_lora,
)
from posttrain.policies.lm_projection import Head
from posttrain.policies.lm_rows import joined, keys_of, packed, placed, prompts_of, responses_of, rollouts_of
from posttrain.policies.vocabulary import vocabulary
from posttrain.ranges import POSITIVE, at_least, check, or_null
from posttrain.registry import ConfigError, policies
from posttrain.samplers.in_process import Sampling, draw

NO_PART_OF_THE_MODEL = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache")
EXPECTATION_STEP = -1  # the step in the keys of completions that serve measurement alone


@policies.register("causal_lm")
@dataclass(frozen=True)
class CausalLM:
    """Options of a causal language model."""

    model: str = ""  # a folder or a hub id
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] | None = None  # null: the model's own choice
    device: Literal["cpu", "cuda"] = "cpu"
    gradient_checkpointing: bool = False
    temperature: float = 1.0  # divides the logits in every log-prob and while sampling
    max_prompt_tokens: int = 512  # a longer prompt is refused, never cut
    max_completion_tokens: int | None = None  # null: 256, or the positions that the longest prompt leaves the model
    rows: int = 64  # completions in the sampler's batch, and in a forward pass without gradient
    chunk: int | None = None  # positions whose logits there may be at once; null: about 64 MiB of them
    lora: Lora = Lora()
    template: Template = Template()
    start: str | None = None  # only null: the weights are those of `model`
    trust_remote_code: bool = False  # runs the Python files of the model's folder or repository

    def __post_init__(self) -> None:
        one = at_least(1)
        check("policy", self, temperature=POSITIVE, max_prompt_tokens=one, rows=one)
        check("policy", self, max_completion_tokens=or_null(one))
        check("policy", self, chunk=or_null(one))

    def build(self, problems: Sequence[Problem], weights: Mapping[str, np.ndarray], critic: bool) -> CausalLMPolicy:
        """The policy of the loaded model; prompts over the limit are found here, before anything is trained."""
        if weights:
            raise ConfigError("policy.start: weights of a dataset fit no language model. Write policy.start=null.")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("policy.device: found cuda, but torch finds no such device. Write policy.device=cpu.")
        require_intact(self.model)
        model, tokenizer = load(self.model, self.dtype, self.attn_implementation, self.trust_remote_code)
        return CausalLMPolicy(self, model, tokenizer, problems, critic)


class CausalLMPolicy(torch.nn.Module):
    """A causal LM over whatever problems it is given."""

    keyed = True

    def __init__(self, config: CausalLM, model: Any, tokenizer: Any, problems: Sequence[Problem], critic: bool) -> None:
        super().__init__()
        self.config = config
        limits = (config.max_prompt_tokens, config.max_completion_tokens or COMPLETION)
        self.encoder = Encoder(tokenizer, config.template, end_tokens(model, tokenizer), *limits)
        self.vocabulary = vocabulary(tokenizer)
        self.model = with_lora(model.to(config.device), config.lora)
        check_model(self.model, self.encoder, self.vocabulary.size)
        # One width for all prompts, so that rollouts of different steps can be put together.
        self.width = max((len(self.encoder.prompt(problem)) for problem in problems), default=1)
        completion = completion_limit(model, self.width, config.max_completion_tokens)
        self.encoder = replace(self.encoder, max_completion_tokens=completion)
        self.real = torch.float64 if config.dtype == "float64" else torch.float32
        size = model.get_output_embeddings().in_features
        self.critic = torch.nn.Linear(size, 1, dtype=self.real, device=config.device) if critic else None
        if self.critic is not None:
            torch.nn.init.zeros_(self.critic.weight)
            torch.nn.init.zeros_(self.critic.bias)
        self.known_identity: tuple[int, Mapping[str, str]] | None = None  # of a frozen policy, with its version

    # -- drawing ----------------------------------------------------------------------------------------------

    def sample(
        self, problems: Sequence[Problem], group_size: int, stream: np.random.Generator, seed: int, step: int
    ) -> Rollouts:
        """Completions drawn from the rows' keys alone; `stream` is for candidate policies (see `Policy.sample`)."""
        return self._draw(problems, group_size, seed, step, greedy=False)

    def greedy(self, problems: Sequence[Problem]) -> Rollouts:
        """The most probable token at each step, lowest id on a tie (see `Policy.greedy`)."""
        return self._draw(problems, 1, 0, 0, greedy=True)

    def respond(self, problems: Sequence[Problem], seed: int, step: int) -> Rollouts:
        """The problems' data rows with their end tokens (see `Policy.respond`)."""
        drawn, size = responses_of(self.encoder, problems, self.real)
        return rollouts_of(self.encoder, problems, drawn, keys_of(problems, size, seed, step), "data", self.width)

    def prompts(self, problems: Sequence[Problem], group_size: int = 1) -> tuple[Tensor, Tensor]:
        """Ids and mask [B, S] of the problems' prompts, left-padded to at least `width`."""
        return prompts_of(self.encoder, problems, group_size, self.width)

    def _draw(self, problems: Sequence[Problem], group_size: int, seed: int, step: int, greedy: bool) -> Rollouts:
        prompts = [ids for problem in problems for ids in [self.encoder.prompt(problem)] * group_size]
        keys = keys_of(problems, group_size, seed, step)
        settings = Sampling(self.encoder.max_completion_tokens, self.encoder.eos, self.config.rows, greedy)
        with torch.no_grad():
            self._set_modes()
            drawn = draw(self.model.base_model, self._head().detached(), prompts, keys, settings, self.config.device)
        return rollouts_of(self.encoder, problems, drawn, keys, "student", self.width)

    # -- pricing ----------------------------------------------------------------------------------------------

    def score(
        self,
        rollouts: Rollouts,
        where: Tensor,
        *,
        support_ids: Tensor | None = None,
        divergence: Divergence | None = None,
        against: States | None = None,
        values: bool = False,
    ) -> Scores:
        """Log-probs, entropy and what else is asked for at `where` (see `Policy.score`)."""

        def part(rows: slice) -> Scores:
            here = where[rows] & rollouts.mask[rows]
            hidden = self._hidden(rollouts, rows, here)
            asked = Question(rollouts.completion_ids[rows][here].to(hidden.device))
            if support_ids is not None:
                asked = asked.with_support(support_ids[rows][here].to(hidden.device))
            if divergence is not None and against is not None:
                other = against.hidden[rows][here.to(against.hidden.device)]
                asked = asked.against(divergence, other, against.project)
            found = answer(self._head(), hidden, asked)
            return Scores(
                logprobs=placed(found.logprobs, here),
                entropy=placed(found.entropy, here),
                divergence=None if found.divergence is None else placed(found.divergence, here),
                support_logprobs=None if found.support_logprobs is None else placed(found.support_logprobs, here),
                values=placed(self._values(hidden), here) if values else None,
            )

        return joined(part, self._slices(rollouts))

    @torch.no_grad()
    def states(self, rollouts: Rollouts) -> States:
        """Hidden states [B, T, H], zero beyond the mask (see `Policy.states`)."""
        parts = []
        for rows in self._slices(rollouts):
            mask = rollouts.mask[rows]
            hidden = self._hidden(rollouts, rows, mask)
            parts.append(placed(hidden, mask.to(hidden.device)))
        return States(torch.cat(parts), self._head().detached())

    @torch.no_grad()
    def targets(self, rollouts: Rollouts, where: Tensor, top_k: int | None = None) -> Targets:
        """Log-probs at `where`, optionally of the top k and the sampled token (see `Policy.targets`)."""
        where = where & rollouts.mask  # nobody speaks of padding
        if top_k is None:
            scores = self.score(rollouts, where)
            return Targets(scores.logprobs, where, entropy=scores.entropy)

        def part(rows: slice) -> Targets:
            here = where[rows]
            hidden = self._hidden(rollouts, rows, here)
            ids = rollouts.completion_ids[rows][here].to(hidden.device)
            found, kept = top_support(self._head().detached(), hidden, ids, top_k)
            assert found.support_logprobs is not None
            return Targets(
                placed(found.logprobs, here),
                here,
                placed(kept, here),
                placed(found.support_logprobs, here),
                placed(found.entropy, here),
            )

        return joined(part, self._slices(rollouts))

    @torch.no_grad()
    def expectations(self, problems: Sequence[Problem], others: Mapping[str, Policy]) -> Expectations:
        """Estimates from one completion of each problem, drawn from keys of their own (the same at every call).

        Each is the mean over the completion's tokens of an exact number at its prefix: the entropy of the next token,
        and the full-vocabulary KL(policy || other). Prefixes are sampled, next tokens are not: no estimate is
        negative, and its variance is that of the prefixes alone.
        """
        rollouts = self._draw(problems, 1, 0, EXPECTATION_STEP, greedy=False)
        length = rollouts.mask.sum(1)
        kl = {}
        for name, other in others.items():
            found = self.score(
                rollouts, rollouts.mask, divergence=Divergence("reverse_kl"), against=other.states(rollouts)
            )
            assert found.divergence is not None
            kl[name] = found.divergence.sum(1) / length
        return Expectations(rollouts.entropy.sum(1) / length, kl)

    def token_texts(self, problem: Problem, ids: Sequence[int]) -> list[str]:
        """Each token's own bytes as text (see `Policy.token_texts`); part of a character is written as `\\xNN`."""
        return [self.vocabulary.text(token) for token in ids]

    # -- copying ----------------------------------------------------------------------------------------------

    def snapshot(self) -> CausalLMPolicy:
        """A frozen copy: of what is trained, so with adapters a copy of the adapters as they are now.

        Frozen weights are shared. Nothing is switched off to get at a reference.
        """
        shared: list[Any] = [p for p in self.parameters() if not p.requires_grad]
        shared += [self.config, self.encoder, self.vocabulary]
        return copy.deepcopy(self, {id(part): part for part in shared}).requires_grad_(False)

    def identity(self) -> Mapping[str, str]:
        """Digests of weights, vocabulary, template and settings (see `Policy.identity`); worked out once if frozen."""
        version = sum(tensor._version for tensor in (*self.parameters(), *(kept for _, kept in self._kept_buffers())))
        if self.known_identity is not None and self.known_identity[0] == version:
            return self.known_identity[1]
        weights = hashlib.sha256()
        for name, tensor in (*self.named_parameters(), *self._kept_buffers()):
            weights.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            weights.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        # Two models may share every weight and still compute otherwise (rope_theta, norms, the scale of an adapter).
        built = {k: v for k, v in self.model.config.to_diff_dict().items() if k not in NO_PART_OF_THE_MODEL}
        built |= adapter_settings(self.model)
        how = (self.config.temperature, self.config.dtype, self.config.attn_implementation, self.config.device)
        limits = (self.encoder.max_prompt_tokens, self.encoder.max_completion_tokens)
        settings = "/".join([*map(str, how + limits), json.dumps(built, sort_keys=True, default=str)])
        template, known = self.encoder.digest, self.vocabulary.digest
        found = {"weights": weights.hexdigest(), "vocabulary": known, "template": template, "settings": settings}
        frozen = not any(parameter.requires_grad for parameter in self.parameters())
        self.known_identity = (version, found) if frozen else None
        return found

    def _kept_buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Buffers that are saved with the model, such as a router's biases: they decide logits like weights do."""
        kept = self.state_dict(keep_vars=True).keys()
        return [(name, buffer) for name, buffer in self.named_buffers() if name in kept]

    def description(self) -> dict[str, str]:
        """What an artifact says of the model: digests of weights, tokenizer and chat template with its options."""
        known = {"weights": self.identity()["weights"], "template": self.encoder.digest}
        known["tokenizer"] = self.encoder.tokenizer_digest
        return {name: f"sha256:{value}" for name, value in known.items()}

    def save(self, folder: Path) -> None:
        """A folder that `AutoModelForCausalLM.from_pretrained` loads: adapters are merged into the weights."""
        from transformers.utils import logging

        adapters = any("lora_" in name for name, _ in self.model.named_parameters())
        model = merged(copy.deepcopy(self.model)) if adapters else self.model
        logging.disable_progress_bar()
        model.save_pretrained(folder)
        self.encoder.tokenizer.save_pretrained(folder)

    # -- the model --------------------------------------------------------------------------------------------

    def _head(self) -> Head:
        return head_of(self.model, self.vocabulary.size, self.config.temperature, self.config.chunk)

    def _slices(self, rollouts: Rollouts) -> Iterator[slice]:
        """Rows per forward pass: all where there is a gradient, since micro-batches are the trainer's business."""
        total = len(rollouts.texts)
        step = max(1, total if torch.is_grad_enabled() else self.config.rows)
        for start in range(0, max(total, 1), step):
            yield slice(start, min(start + step, total))

    def _hidden(self, rollouts: Rollouts, rows: slice, where: Tensor) -> Tensor:
        """[N, H]: the states that predict the completion tokens at `where` [b, T] of the rows.

        Rows without such a token and columns behind the last one are left out; one token is always run, so that every
        rank runs a forward and a backward pass.
        """
        self._set_modes()
        asked = where.any(1).nonzero().squeeze(1)
        if not len(asked):
            asked = torch.arange(min(1, len(where)))
        ids, place = packed(rollouts, rows, asked)
        where = where[asked]
        ids = ids[:, : int(place[where].max()) + 1 if where.any() else 1].to(self.config.device)
        positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        hidden = self.model.base_model(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
        row, column = where.nonzero(as_tuple=True)
        return hidden[row.to(ids.device), place[row, column].to(ids.device)]

    def _values(self, hidden: Tensor) -> Tensor:
        """The critic's [N]: linear in the hidden state."""
        assert self.critic is not None
        return self.critic(hidden.to(self.real)).squeeze(-1)

    def _set_modes(self) -> None:
        """Evaluation mode, whoever changed it; with gradient, layers that recompute, and dropout of adapters if any."""
        self.model.eval()
        if not torch.is_grad_enabled():
            return
        if self.config.gradient_checkpointing:
            _recompute(self.model)
        if self.config.lora.dropout:
            for name, module in self.model.named_modules():
                if name.endswith("lora_dropout"):
                    module.train()


def _recompute(model: torch.nn.Module) -> None:
    """transformers recomputes layers in training mode alone: the layers enter it, what they hold (dropout) does not."""
    from torch.utils.checkpoint import checkpoint
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers: list[Any] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer.training = layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        for name, value in vars(layer).items():
            if "drop" in name and isinstance(value, float):
                setattr(layer, name, 0.0)
