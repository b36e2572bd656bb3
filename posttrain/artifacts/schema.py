"""JSON Schema 2020-12, the part that our own schemas use, with the usual traps closed.

Stricter than the standard where it invites mistakes: a number written 2.0 is no integer and does not equal 2, a
pattern covers the whole string (no newline slips in behind `$`), and a keyword this file does not know is an error.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from posttrain.artifacts.digests import canonical
from posttrain.artifacts.documents import pointer, shown

Name = Literal["artifact-v2", "bench-v1", "eval-v1", "eval-item-v1", "plan-v1", "execution-v1"]
Schema = Mapping[str, Any] | bool
Where = tuple[str | int, ...]


class SchemaError(ValueError):
    """A schema that uses a keyword, a reference or a pattern this validator does not support."""


@dataclass(frozen=True)
class Violation:
    """One place of a document that breaks its schema."""

    path: str  # JSON Pointer
    message: str  # what was found and what belongs there

    def __str__(self) -> str:
        return f"{self.path or 'the document'}: {self.message}"


@cache
def load_schema(name: Name) -> dict[str, Any]:
    """One of the shipped schemas, checked; callers must not change it."""
    text = Path(__file__).with_name("schemas").joinpath(f"{name}.json").read_text(encoding="utf-8")
    schema = json.loads(text)
    check_schema(schema)
    return schema


def violations(document: Any, name: Name) -> list[Violation]:
    """Where a document breaks one of the shipped schemas; empty if it keeps it."""
    return validate(document, load_schema(name))


def validate(document: Any, schema: Schema) -> list[Violation]:
    """Where a JSON value breaks a schema that `check_schema` accepts; empty if it keeps it."""
    return list(_breaches(document, schema, (), schema))


def check_schema(schema: Schema) -> None:
    """Raises SchemaError unless every keyword, reference and pattern in the schema is supported."""
    for part in _parts(schema):
        for keyword, rule in part.items():
            if keyword not in _RULES and keyword not in _ANNOTATIONS:
                known = ", ".join(sorted(_RULES))
                raise SchemaError(f"the keyword {keyword!r} is not supported; express it with {known}")
            if keyword == "$ref":
                _resolve(rule, schema)
            for pattern in [rule] if keyword == "pattern" else rule if keyword == "patternProperties" else []:
                if not (pattern.startswith("^") and pattern.endswith("$")):
                    raise SchemaError(f"the pattern {pattern!r} must cover the whole string; write ^...$")


def _parts(schema: Schema) -> Iterator[Mapping[str, Any]]:
    """The schema and every schema inside it."""
    if isinstance(schema, bool):
        return
    yield schema
    inside = [schema[key] for key in ("items", "additionalProperties") if key in schema]
    inside += schema.get("anyOf", [])
    for key in ("properties", "patternProperties", "$defs"):
        inside += schema.get(key, {}).values()
    for part in inside:
        yield from _parts(part)


def _resolve(reference: str, root: Schema) -> Schema:
    name = reference.removeprefix("#/$defs/")
    if isinstance(root, bool) or name == reference or name not in root.get("$defs", {}):
        raise SchemaError(f"the reference {reference!r} leads nowhere; write #/$defs/<name>")
    return root["$defs"][name]


def _breaches(value: Any, schema: Schema, path: Where, root: Schema) -> Iterator[Violation]:
    if isinstance(schema, bool):
        if not schema:
            yield Violation(pointer(path), "must not be here; take it out")
        return
    for keyword, rule in schema.items():
        if keyword in _RULES:
            yield from _RULES[keyword](value, rule, _Place(path, schema, root))


@dataclass(frozen=True)
class _Place:
    """Where a rule is applied: the path of the value, the schema that holds the rule and the whole schema."""

    path: Where
    schema: Mapping[str, Any]
    root: Schema

    def breach(self, message: str) -> Iterator[Violation]:
        yield Violation(pointer(self.path), message)

    def inside(self, value: Any, schema: Schema, *step: str | int) -> Iterator[Violation]:
        return _breaches(value, schema, self.path + step, self.root)


_Rule = Callable[[Any, Any, _Place], Iterator[Violation]]


def _json_type(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    names = {int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), type(value).__name__)


def _is(value: Any, name: str) -> bool:
    return _json_type(value) in (name, "integer" if name == "number" else name)


def _equal(a: Any, b: Any) -> bool:
    return _json_type(a) == _json_type(b) and a == b


def _type(value: Any, rule: str | list[str], at: _Place) -> Iterator[Violation]:
    names = [rule] if isinstance(rule, str) else rule
    if not any(_is(value, name) for name in names):
        yield from at.breach(f"is {shown(value)} ({_json_type(value)}); write a value of type {' or '.join(names)}")


def _enum(value: Any, rule: list[Any], at: _Place) -> Iterator[Violation]:
    if not any(_equal(value, option) for option in rule):
        yield from at.breach(f"is {shown(value)}; write {' or '.join(map(shown, rule))}")


def _pattern(value: Any, rule: str, at: _Place) -> Iterator[Violation]:
    if isinstance(value, str) and not re.fullmatch(rule, value):
        yield from at.breach(f"is {shown(value)}; write text that matches {rule}")


def _bound(
    kind: type | tuple[type, ...], size: Callable[[Any], Any], fits: Callable[[Any, Any], bool], words: str
) -> _Rule:
    def rule_of(value: Any, rule: Any, at: _Place) -> Iterator[Violation]:
        if isinstance(value, kind) and not isinstance(value, bool) and not fits(size(value), rule):
            yield from at.breach(f"is {shown(value)}; write {words.format(rule)}")

    return rule_of


def _unique_items(value: Any, rule: bool, at: _Place) -> Iterator[Violation]:
    if rule and isinstance(value, list) and len({canonical(item) for item in value}) < len(value):
        yield from at.breach(f"is {shown(value)}; write each item once")


def _items(value: Any, rule: Schema, at: _Place) -> Iterator[Violation]:
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from at.inside(item, rule, i)


def _required(value: Any, rule: list[str], at: _Place) -> Iterator[Violation]:
    if isinstance(value, dict):
        for key in rule:
            if key not in value:
                yield from at.breach(f"lacks the key {key!r}; add it")


def _properties(value: Any, rule: Mapping[str, Schema], at: _Place) -> Iterator[Violation]:
    if isinstance(value, dict):
        for key, schema in rule.items():
            if key in value:
                yield from at.inside(value[key], schema, key)


def _pattern_properties(value: Any, rule: Mapping[str, Schema], at: _Place) -> Iterator[Violation]:
    if isinstance(value, dict):
        for pattern, schema in rule.items():
            for key in value:
                if re.fullmatch(pattern, key):
                    yield from at.inside(value[key], schema, key)


def _additional_properties(value: Any, rule: Schema, at: _Place) -> Iterator[Violation]:
    if isinstance(value, dict):
        named, patterns = at.schema.get("properties", {}), at.schema.get("patternProperties", {})
        for key, member in value.items():
            if key not in named and not any(re.fullmatch(pattern, key) for pattern in patterns):
                yield from at.inside(member, rule, key)


def _any_of(value: Any, rule: list[Schema], at: _Place) -> Iterator[Violation]:
    attempts = [list(at.inside(value, schema)) for schema in rule]
    if all(attempts):
        # The attempt that breaks furthest inside is the one the writer meant.
        yield from max(attempts, key=lambda breaches: breaches[0].path.count("/"))


_NUMBER = (int, float)
_ANNOTATIONS = {"$schema", "$id", "$defs", "title", "description"}
_RULES: dict[str, _Rule] = {
    "$ref": lambda value, rule, at: at.inside(value, _resolve(rule, at.root)),
    "type": _type,
    "enum": _enum,
    "const": lambda value, rule, at: _enum(value, [rule], at),
    "pattern": _pattern,
    "minimum": _bound(_NUMBER, lambda x: x, lambda x, limit: x >= limit, "at least {}"),
    "maximum": _bound(_NUMBER, lambda x: x, lambda x, limit: x <= limit, "at most {}"),
    "exclusiveMinimum": _bound(_NUMBER, lambda x: x, lambda x, limit: x > limit, "more than {}"),
    "minLength": _bound(str, len, lambda n, limit: n >= limit, "at least {} characters"),
    "minItems": _bound(list, len, lambda n, limit: n >= limit, "at least {} items"),
    "maxItems": _bound(list, len, lambda n, limit: n <= limit, "at most {} items"),
    "uniqueItems": _unique_items,
    "items": _items,
    "required": _required,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "anyOf": _any_of,
}
