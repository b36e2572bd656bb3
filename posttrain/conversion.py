"""Plain data into frozen dataclasses: the registered class is the schema, and every mistake names its field."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, make_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from posttrain.overrides import ELSEWHERE, TRUNCATING
from posttrain.registry import ConfigError, did_you_mean, policies


def spelled(made: Any) -> dict[str, Any]:
    """A dataclass as plain data, nested ones too."""
    return {
        f.name: spelled(getattr(made, f.name)) if is_dataclass(getattr(made, f.name)) else getattr(made, f.name)
        for f in fields(made)
    }


def refuse_unknown(prefix: str, given: Mapping[str, Any], schema: Any, owner: str = "there is") -> None:
    """Refuses keys the schema lacks, with the nearest one, also one level down and from other tools."""
    names = schema if isinstance(schema, set) else {f.name for f in fields(schema)}
    for key in map(str, given):
        if key in names:
            continue
        full = f"{prefix}.{key}" if prefix else key
        # What stands in a section that there is none of is named by itself: it may only be misplaced.
        inside: Any = given.get(key)
        while isinstance(inside, Mapping) and inside:
            key, inside = str(next(iter(inside))), next(iter(inside.values()))
            full = f"{full}.{key}"
        if key in TRUNCATING:
            raise ConfigError(
                f"{full}: completions are drawn from the policy's whole distribution, the one whose log-probs are "
                "trained on; a sampler that leaves tokens out would make every ratio wrong. Leave it out."
            )
        if key in ELSEWHERE:
            raise ConfigError(
                f"{full}: this is called `{ELSEWHERE[key]}` here. Write {ELSEWHERE[key]}"
                + ("=VALUE." if ELSEWHERE[key].replace(".", "").isidentifier() else ".")
            )
        raise ConfigError(f"{full}: {owner} no such setting.{did_you_mean(key, names)}")


def refuse_misspelt_policy(given: Mapping[str, Any]) -> None:
    """An option that no policy has, before the policy it was meant for is inferred from the others.

    `policy.modle=FOLDER` would otherwise be an option of the candidate policy that a missing model leaves.
    """
    options = {f.name for name in policies.names() for f in fields(policies.get(name))} | {"name"}
    for key in given:
        part, _, option = key.partition(".")
        word = option.partition(".")[0]
        if part == "policy" and option and word not in options and word not in (*ELSEWHERE, *TRUNCATING):
            near = difflib.get_close_matches(word, options, n=1)
            meant = f" Did you mean `policy.{near[0]}`?" if near else did_you_mean(word, options)
            tier = " It implies tier l3." if near == ["model"] else ""
            raise ConfigError(f"{key}: no policy has such a setting.{meant}{tier}")


def typed_values(cls: type, given: Mapping[str, Any], prefix: str, names: set[str]) -> dict[str, Any]:
    """Values converted by the field types of a dataclass, nested ones built."""
    typed: dict[str, Any] = {}
    for f in fields(cls):
        if f.name not in names or f.name not in given:
            continue
        value, default = given[f.name], None if f.default is MISSING else f.default
        if is_dataclass(default) and not isinstance(default, type):
            options = value if isinstance(value, dict) else {"rule": value}
            refuse_unknown(f"{prefix}{f.name}", options, type(default))
            inner = {**spelled(default), **typed_values(type(default), options, f"{prefix}{f.name}.", set(options))}
            typed[f.name] = made(type(default), inner, f"{prefix}{f.name}")
        else:
            typed[f.name] = _one(cls, f.name, value, prefix)
    return typed


def made(cls: type, values: dict[str, Any], where: str) -> Any:
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def _one(cls: type, name: str, value: Any, prefix: str) -> Any:
    """One value under the type of its field, by OmegaConf's rules without its silent roundings."""
    if isinstance(value, tuple):
        return value
    hint = get_type_hints(cls)[name]
    if get_origin(hint) is tuple and isinstance(value, list):
        cell = make_dataclass("Cell", [(name, get_args(hint)[0])])
        return tuple(_one(cell, name, item, prefix) for item in value)
    if get_origin(hint) is Mapping:
        return _free(value, f"{prefix}{name}")
    kinds = get_args(hint) or (hint,)
    rounded = (isinstance(value, bool) and bool not in kinds) or (isinstance(value, float) and float not in kinds)
    rounded = rounded or (type(value) is int and bool in kinds)
    read_elsewhere = isinstance(value, str) and "${" in value  # `${oc.env:HOME}` is another value on another machine
    try:
        if rounded or read_elsewhere:
            raise ValueError(value)
        if isinstance(value, int) and float in kinds and int not in kinds:
            value = float(value)
        schema = OmegaConf.structured(make_dataclass("Setting", [("value", hint)]))
        OmegaConf.update(schema, "value", value)  # an assignment would not convert
        return schema.value
    except (OmegaConfBaseException, ValueError, OverflowError) as error:
        found = str(value).lower() if isinstance(value, bool) else repr(value)
        raise ConfigError(f"{prefix}{name}: found {found}, expected {_expected(hint)}") from error


def _free(value: Any, where: str) -> dict[str, Any]:
    """Options whose names are not ours, such as a chat template's: plain values under names."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: found {value!r}, expected options by name: {where}.NAME=VALUE")
    for name, one in value.items():
        if isinstance(one, str) and "${" in one:
            raise ConfigError(f"{where}.{name}: found {one!r}, which is read elsewhere. Write the value itself.")
    return {str(name): one for name, one in value.items()}


def _expected(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    return " or ".join(words.get(kind, getattr(kind, "__name__", str(kind))) for kind in get_args(hint) or (hint,))
