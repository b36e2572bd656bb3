"""What a loaded model is made into: with adapters or merged, its head, its limits, and whether it is understood."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch

from posttrain.policies.lm_encoding import Encoder
from posttrain.policies.lm_projection import Head
from posttrain.ranges import BELOW_ONE, POSITIVE, at_least, check, or_null
from posttrain.registry import ConfigError

HEAD_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
HALF_HEAD_TOLERANCE = 0.1
_PLACES = ("base_model_name_or_path", "revision", "inference_mode")  # of an adapter: they change no logit
COMPLETION = 256  # tokens, where nothing is asked for and the model has as many positions


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters (needs peft). Rank null trains all weights."""

    rank: int | None = None
    alpha: float | None = None  # null: twice the rank
    target_modules: str = "all-linear"  # or names, such as q_proj,v_proj
    dropout: float = 0.0  # active in `score` with gradient only; ratios then no longer start at one

    def __post_init__(self) -> None:
        check("", self, rank=or_null(at_least(1)), alpha=or_null(POSITIVE), dropout=BELOW_ONE)


def with_lora(model: Any, lora: Lora) -> Any:
    """The model with fresh adapters that alone are trainable; an adapter loaded with the model is trained on."""
    loaded = bool(getattr(model, "peft_config", None))
    if loaded and lora.rank is not None:
        raise ConfigError(
            "policy.lora.rank: the folder of policy.model already holds an adapter. Leave the rank out to train that "
            "one, or merge it into its model first."
        )
    if loaded:
        _refuse_what_cannot_be_merged(model)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name)
        return model
    if lora.rank is None:
        return model.requires_grad_(True)
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError("policy.lora: needs peft. Write: pip install 'posttrain[lora]'") from error
    names = lora.target_modules
    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha or 2 * lora.rank,  # type: ignore[arg-type]
        target_modules=names if names == "all-linear" else names.split(","),
        lora_dropout=lora.dropout,
        task_type="CAUSAL_LM",
    )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*tie_word_embeddings=True", UserWarning)  # refused below
            adapted = inject_adapter_in_model(settings, model)
    except ValueError as error:
        raise ConfigError(f"policy.lora.target_modules: found {names!r}: {error}") from error
    _refuse_what_cannot_be_merged(adapted)
    return adapted


def _refuse_what_cannot_be_merged(model: Any) -> None:
    """ConfigError for adapters that could be trained and not be saved as the weights of a model."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    advice = "Merge it into its model first, or train other layers."
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    bases = [getattr(layer, "base_layer", layer) for layer in ends]
    if any(isinstance(layer, BaseTunerLayer) for layer in ends) and bases[0].weight is bases[1].weight:
        raise ConfigError(
            "policy.lora: the model's embedding and its head are one matrix, and an adapter on either would change "
            f"both when it is saved. {advice}"
        )
    if any(isinstance(module, AuxiliaryTrainingWrapper) for module in model.modules()):
        raise ConfigError(f"policy.lora: the adapter trains whole layers or tokens (modules_to_save). {advice}")
    if any(getattr(adapter, "lora_bias", False) for adapter in getattr(model, "peft_config", {}).values()):
        raise ConfigError(f"policy.lora: the adapter has biases of its own (lora_bias). {advice}")


def adapter_settings(model: Any) -> dict[str, Any]:
    """How a model's adapters are computed, where it has some: their tensors say nothing of scale or form."""
    adapters = getattr(model, "peft_config", None) or {}
    return {
        f"adapter {name}": {
            key: sorted(value) if isinstance(value, set) else value  # a set is written in no order of its own
            for key, value in adapter.to_dict().items()
            if key not in _PLACES
        }
        for name, adapter in adapters.items()
    }


def merged(model: Any) -> Any:
    """The model with its adapters added into its weights, in place."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge()  # type: ignore[operator]
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, module.get_base_layer())
    for left in ("peft_config", "_weight_conversions"):  # by which saving would rename the keys to an adapter's
        model.__dict__.pop(left, None)
    model._hf_peft_config_loaded = False
    return model


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end a completion: the tokenizer's, and all at which the model's own `generate` would stop.

    Those are of generation_config.json or, where there is none, of config.json: one id or a list.
    """
    settings = getattr(model, "generation_config", None) or model.config.get_text_config()
    more = getattr(settings, "eos_token_id", None)
    listed = [token for token in (more if isinstance(more, list | tuple) else [more]) if token is not None]
    rows = len(model.get_input_embeddings().weight)
    if any(not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < rows for token in listed):
        raise ConfigError(
            f"policy.model: its end tokens (eos_token_id) are {listed}, expected ids from 0 to {rows - 1}. "
            "Correct them in generation_config.json, or in config.json where there is no such file."
        )
    return frozenset(listed) | ({tokenizer.eos_token_id} - {None})


def head_of(model: Any, rows: int, temperature: float, chunk: int | None) -> Head:
    """The model's vocabulary projection over its first `rows` ids, as it is now."""
    config, layer = model.config.get_text_config(), model.get_output_embeddings()
    weight, bias = _weight(layer), getattr(layer, "bias", None)
    scale = float(getattr(config, "logit_scale", None) or 1.0)  # Cohere
    scaling = float(getattr(config, "logits_scaling", None) or 1.0)  # Granite divides, HyperCLOVA X multiplies
    scale *= scaling if config.model_type.startswith("hyperclovax") else 1 / scaling
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma 2 and after
    if rows < len(weight):
        weight, bias = weight[:rows], None if bias is None else bias[:rows]
    return Head(weight, bias, scale, cap, temperature, chunk)


def _weight(layer: Any) -> torch.Tensor:
    """[V, H] of a linear layer, with what its adapters add."""
    weight: torch.Tensor
    if isinstance(layer, torch.nn.Linear):
        return layer.weight
    adapted = getattr(layer, "base_layer", None)
    if not isinstance(adapted, torch.nn.Linear):
        raise ConfigError(
            f"policy.model: its output layer is {type(layer).__name__}, expected a linear layer without quantisation"
        )
    weight = adapted.weight
    for name in layer.active_adapters:
        weight = weight + layer.get_delta_weight(name)
    return weight


def completion_limit(model: Any, prompt: int, asked: int | None) -> int:
    """Tokens of a completion, which have to fit behind the longest prompt into the positions the model was made for."""
    context = getattr(model.config, "max_position_embeddings", None)
    limit = asked or (COMPLETION if context is None else max(1, min(COMPLETION, context - prompt)))
    if context is not None and prompt + limit > context:
        raise ConfigError(
            f"policy.max_completion_tokens: found {limit} after a prompt of {prompt} tokens, but the model has "
            f"{context} positions (max_position_embeddings). Lower it, or leave long rows out with "
            "dataset.max_prompt_characters."
        )
    return limit


@torch.no_grad()
def check_model(model: Any, encoder: Encoder, size: int) -> None:
    """The tokenizer fits the embedding, and our head gives the model's own logits on a few tokens."""
    rows = len(model.get_input_embeddings().weight)
    if size > rows:
        raise ConfigError(
            f"policy.model: its tokenizer knows {size} ids, but the model has {rows} embedding rows. Resize the "
            "embeddings when tokens are added, and save both."
        )
    if not encoder.eos:
        raise ConfigError(
            "policy.model: neither its tokenizer (eos_token) nor its generation_config.json or config.json "
            "(eos_token_id) has an end token. Set one in its files."
        )
    model.eval()
    ids = torch.arange(min(8, size), device=model.device).unsqueeze(0)
    expected = model(input_ids=ids, use_cache=False).logits[0].to(torch.float64)
    if expected.isnan().any():
        raise ConfigError("policy.model: its logits are not numbers (NaN). Its weights are broken: copy them again.")
    head = head_of(model, rows, 1.0, None)
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
    apart = float((head.logits(hidden).to(torch.float64) - expected[:, : len(head.weight)]).abs().max())
    limit = HEAD_TOLERANCE.get(head.weight.dtype, HALF_HEAD_TOLERANCE) * (1 + float(expected.abs().max()))
    if not apart <= limit:
        raise ConfigError(
            f"policy.model: {type(model).__name__} turns hidden states into logits in a way that is not known here "
            f"(largest difference {apart:.3g}): found scale {head.scale:.3g} and soft-capping {head.cap}. "
            "Use another model, or report this one."
        )
