"""A local folder of data is read from itself alone: what its own files say about other places is refused.

A card (README.md) may name data files by pattern, and a saved dataset its tables by name. Libraries follow both out of
the folder and into the network; whoever points at a folder has not asked for that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posttrain.registry import ConfigError

_SCHEME = re.compile(r"[A-Za-z][\w+.-]*:")  # file:, https:, hf:, also the drive of a machine


def refuse_outside(folder: Path) -> None:
    """ConfigError for the first place outside `folder` that a card or a saved dataset in it names."""
    for file, place in _named(folder):
        if _SCHEME.match(place) or place.startswith(("/", "~", "\\")) or ".." in Path(place.replace("\\", "/")).parts:
            raise ConfigError(
                f"dataset.path: `{file}` names `{place}`, which lies outside its folder. A local folder is read from "
                "itself alone: copy the data into it and name them there, or give a hub id."
            )


def _named(folder: Path) -> Iterator[tuple[Path, str]]:
    """Files of the folder with each place they name."""
    for card in (folder / "README.md", folder / ".huggingface.yaml"):
        if card.is_file():
            configs = _card(card).get("configs")
            for config in configs if isinstance(configs, list) else []:
                if isinstance(config, dict):
                    for key in ("data_files", "data_dir"):
                        yield from ((card, place) for place in _texts(config.get(key)))
    for file in (folder / "dataset_dict.json", *folder.rglob("state.json")):
        if file.is_file():
            said = _json(file)
            yield from ((file, place) for key in ("splits", "_data_files") for place in _texts(said.get(key)))


def _card(file: Path) -> dict[str, Any]:
    """The metadata of a card, by the reader that the library itself uses."""
    import yaml
    from huggingface_hub import DatasetCard

    try:
        if file.suffix == ".md":
            return DatasetCard.load(file, ignore_metadata_errors=True).data.to_dict()
        said = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"dataset.path: `{file}` cannot be read: {error}") from error
    return said if isinstance(said, dict) else {}


def _json(file: Path) -> dict[str, Any]:
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"dataset.path: `{file}` is not valid JSON: {error}") from error
    return said if isinstance(said, dict) else {}


def _texts(value: Any) -> Iterator[str]:
    """Every text in lists and mappings, split names among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
