"""A model folder or hub id as a model and a tokenizer: safetensors alone, the model's own weights and all of them, and
no code unless asked for.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from posttrain.registry import ConfigError

# Files of a model's folder that hold one JSON object each, where they are there.
SETTINGS = (
    "config.json", "generation_config.json", "adapter_config.json", "tokenizer_config.json", "tokenizer.json",
    "special_tokens_map.json", "added_tokens.json", "model.safetensors.index.json",
)  # fmt: skip
NOWHERE = "no-adapter-here"  # a folder inside a model's, where no adapter is found
NAMED = 3  # weights, of those that a message is about


def load(model: str, dtype: str, attn_implementation: str | None, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """Model and tokenizer; whatever is wrong with them is a ConfigError that names it."""
    if not model:
        raise ConfigError("policy.model: nothing is chosen. Write policy.model=FOLDER or policy.model=HUB_ID.")
    folder = Path(model)
    if folder.is_dir():
        _check_folder(folder, trust_remote_code)
    elif model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise ConfigError(f"policy.model: there is no folder `{model}`. Give a folder or a hub id (owner/name).")
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # what it finds about the weights is refused by name below
    local = {"trust_remote_code": trust_remote_code, "local_files_only": folder.is_dir()}
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, **local)
        options = {"dtype": getattr(torch, dtype), "attn_implementation": attn_implementation, **local}
        return _with_weights(model, options), tokenizer
    except ConfigError:
        raise
    except Exception as error:  # whatever its files make transformers stumble over, they are the user's input
        what = (
            "cannot be loaded" if folder.is_dir() else "is no folder here, and no model of the hub was found under it"
        )
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(f"policy.model: `{model}` {what}: {said}") from error


def _with_weights(model: str, options: Mapping[str, Any]) -> Any:
    """The model with weights that were all found.

    Of a model with an adapter transformers reports what it found for the adapter, and would put random weights in the
    place of others below it: the model below is looked at first.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils.peft_utils import find_adapter_config_file

    def loaded(name: str, **more: Any) -> Any:
        found: Any = AutoModelForCausalLM.from_pretrained(
            name,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are listed then, and refused by name
            output_loading_info=True,
            **options,
            **more,
        )
        made, report = found
        _check_weights(name, report)
        return made

    adapter = find_adapter_config_file(model, local_files_only=options["local_files_only"])
    if adapter is not None and (Path(model) / "config.json").is_file():
        loaded(model, adapter_kwargs={"subfolder": NOWHERE})
    elif adapter is not None:
        below = str(_read_object(Path(adapter)).get("base_model_name_or_path"))
        if Path(below).is_dir():
            _check_folder(Path(below), options["trust_remote_code"])
        loaded(below)
    return loaded(model)


def _check_weights(model: str, report: Mapping[str, Any]) -> None:
    """Refuses weights that are not the model's, all of them and no others; transformers itself leaves out of its
    report what an architecture declares to be of no account."""
    # One of another size is listed with both shapes.
    found = {
        kind: sorted(name if isinstance(name, str) else str(name[0]) for name in report.get(f"{kind}_keys") or ())
        for kind in ("missing", "mismatched", "unexpected")
    }
    if lost := found["missing"]:
        raise ConfigError(
            f"policy.model: `{model}` lacks {len(lost)} of its weights ({_named(lost)}); they would be random. "
            "Copy the folder again."
        )
    if other := found["mismatched"]:
        raise ConfigError(
            f"policy.model: `{model}` has {len(other)} weights of another size than its config.json says "
            f"({_named(other)}); they would be random. Copy config.json and the weights from one place."
        )
    if more := found["unexpected"]:
        raise ConfigError(
            f"policy.model: `{model}` holds {len(more)} weights for which the model of its config.json has no place "
            f"({_named(more)}); they would be left out. Copy config.json and the weights from one place."
        )


def _named(names: Sequence[str]) -> str:
    """The first few of them."""
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")


def _check_folder(folder: Path, trust_remote_code: bool) -> None:
    """Refuses, before anything is read, what would run code or leave weights out."""
    adapter, config = folder / "adapter_config.json", folder / "config.json"
    if not config.is_file() and not adapter.is_file():
        raise ConfigError(f"policy.model: `{folder}` has no config.json. Give the folder of a transformers model.")
    for file in (folder / name for name in SETTINGS):
        if not file.is_file():
            continue
        settings = _read_object(file)
        if "auto_map" in settings and not trust_remote_code:
            raise ConfigError(
                f"policy.model: `{file}` asks to run code from the folder (auto_map: {settings['auto_map']}). "
                "Where transformers knows the architecture, remove auto_map from the file; where you have read and "
                "trust that code, write policy.trust_remote_code=true."
            )
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(path.name for kind in ("*.bin", "*.pt", "*.pth") for path in folder.glob(kind))
        found = f"only {pickles[0]}, a pickle, which can run code" if pickles else "no weights"
        raise ConfigError(f"policy.model: `{folder}` has {found}. Save the model as safetensors.")


def _read_object(file: Path) -> dict[str, Any]:
    """The JSON object that a file holds."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"policy.model: `{file}` is not valid JSON ({error}). Copy the folder again.") from error
    if not isinstance(found, dict):
        raise ConfigError(
            f"policy.model: `{file}` holds {reprlib.repr(found)}, expected an object {{...}}. Copy the folder again."
        )
    return found
