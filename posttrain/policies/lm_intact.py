"""Files of a model's folder that a broken copy left out or cut short, named before a library stumbles over them."""

from __future__ import annotations

from pathlib import Path

from posttrain.registry import ConfigError

# One of these is in every folder that has a tokenizer, whatever kind it is of.
TOKENIZERS = ("*token*", "vocab*", "merges*", "*.model", "*.tiktoken")


def require_intact(model: str) -> None:
    """ConfigError for a folder without a tokenizer, or with a weights file that is not whole; a hub id passes."""
    folder = Path(model)
    if not (folder / "config.json").is_file():
        return  # no folder, or none of a model: loading says so
    for file in sorted(folder.glob("*.safetensors")):
        _require_whole(file)
    if not any(found for pattern in TOKENIZERS for found in folder.glob(pattern)):
        raise ConfigError(
            f"policy.model: `{folder}` has no tokenizer (tokenizer.json or the like). Save it there as well: "
            "tokenizer.save_pretrained(FOLDER)."
        )


def _require_whole(file: Path) -> None:
    """The header of a safetensors file says how long it is; nothing else of it is read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise ConfigError(
            f"policy.model: `{file}` is damaged or cut short ({file.stat().st_size} bytes: {error}). Copy it again."
        ) from error
