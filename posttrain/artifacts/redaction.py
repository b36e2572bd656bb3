"""Secrets kept out of records: what a command line or a config names like one is replaced by `<redacted>`."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

REDACTED = "<redacted>"

_SECRET_WORDS = {"token", "key", "apikey", "password", "passwd", "secret", "secrets", "credential", "credentials"}
_SECRET_WORDS |= {"auth", "authorization", "bearer"}
# `pad_token` and `sort_key` name no secret, and hiding them would hide evidence.
_HARMLESS_BEFORE = {"pad", "eos", "bos", "unk", "sep", "cls", "mask", "image", "stop", "end", "sort", "group", "metric"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_VALUES = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abp]-)[A-Za-z0-9_-]{8,}"
    r"|(?<=Bearer )\S+|(?<=bearer )\S+|(?<=Basic )\S+"
    r"|(?<=://)[^/@\s]+(?=@)"
)


def names_secret(name: str) -> bool:
    """Whether a flag, config key or variable is named like a secret, such as `--hf-token` or `server.apiKey`."""
    words = [word.lower() for word in _WORD.findall(name)]
    return any(
        word in _SECRET_WORDS and not (i > 0 and words[i - 1] in _HARMLESS_BEFORE) for i, word in enumerate(words)
    )


def redact(argv: Sequence[str]) -> list[str]:
    """A command line without its secrets: `--x=v`, `x.token=v` and `--token v`, known token shapes, URL passwords."""
    shown, hide_next = [], False
    for word in argv:
        name, equals, _ = word.partition("=")
        if hide_next and not word.startswith("-"):
            shown.append(REDACTED)
        elif equals and names_secret(name):
            shown.append(f"{name}={REDACTED}")
        else:
            shown.append(_SECRET_VALUES.sub(REDACTED, word))
        hide_next = not equals and word.startswith("-") and names_secret(word)
    return shown


def redact_config(config: Any) -> Any:
    """A config without its secrets: text under a key named like one, and text of a known token shape anywhere."""
    if isinstance(config, Mapping):
        return {
            key: REDACTED if isinstance(value, str) and value and names_secret(str(key)) else redact_config(value)
            for key, value in config.items()
        }
    if isinstance(config, list | tuple):
        return [redact_config(item) for item in config]
    return _SECRET_VALUES.sub(REDACTED, config) if isinstance(config, str) else config
