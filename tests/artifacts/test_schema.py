"""Laws of the schemas: they agree with a full validator except where JSON Schema invites a mistake."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from complete_run import RECORD, CompleteRun
from hypothesis import given
from hypothesis import strategies as st

from posttrain.artifacts.documents import read
from posttrain.artifacts.schema import SchemaError, Violation, check_schema, load_schema, validate, violations

NAMES = ("artifact-v2", "plan-v1", "execution-v1")
ODD = [None, True, 0, 1, -1, 2**53 - 1, 0.5, -0.5, "", "x", "../x", "sha256:" + "0" * 64, [], [1, 1], [None], {}]


@pytest.fixture(params=NAMES)
def sample(request: pytest.FixtureRequest, complete: CompleteRun) -> tuple[str, Any]:
    """A shipped schema's name and a document that keeps it, one run and one history row long at most."""
    name = request.param
    document = read(complete.folder / f"{name.split('-')[0]}.json")
    if name == "artifact-v2":
        del document["runs"][1:], document["runs"][0]["history"][1:]
    if name == "plan-v1":
        del document["plan"]["dataset"]["splits"][2:]
    return name, document


def mutants(document: Any) -> Iterator[Any]:
    """Copies with one value replaced by an odd one, one key missing, one key too many or one item doubled."""
    for path in places(document):
        for odd in ODD:
            yield changed(document, path, lambda place, key, odd=odd: place.__setitem__(key, odd))
        yield changed(document, path, lambda place, key: place.pop(key))
        yield changed(
            document, path, lambda place, key: place[key].update(extra=1) if isinstance(place[key], dict) else 0
        )
        yield changed(
            document, path, lambda place, key: place[key].extend(place[key]) if isinstance(place[key], list) else 0
        )


def places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    if path:
        yield path
    for key, member in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from places(member, (*path, key))


def changed(document: Any, path: tuple, change: Any) -> Any:
    document = copy.deepcopy(document)
    place = document
    for key in path[:-1]:
        place = place[key]
    change(place, path[-1])
    return document


def test_the_shipped_schemas_are_sound_and_the_documents_keep_them(sample):
    name, document = sample
    jsonschema.Draft202012Validator.check_schema(load_schema(name))
    assert violations(document, name) == []
    assert name != "artifact-v2" or violations(read(RECORD), name) == []
    assert name != "artifact-v2" or jsonschema.Draft202012Validator(load_schema(name)).is_valid(read(RECORD))


def test_every_mutant_is_judged_as_by_a_full_validator(sample):
    name, document = sample
    full = jsonschema.Draft202012Validator(load_schema(name))
    disagreements = [
        mutant for mutant in mutants(document) if (violations(mutant, name) == []) != full.is_valid(mutant)
    ]
    assert disagreements == []


def test_an_empty_object_lacks_every_required_key():
    for name in NAMES:
        assert [v.path for v in violations({}, name)] == [""] * len(load_schema(name)["required"])


SCHEMAS = [
    {"type": ["integer", "null"], "minimum": 3, "maximum": 5},
    {"type": "number", "exclusiveMinimum": 0},
    {"const": 1},
    {"enum": ["a", None, 2]},
    {"type": "string", "minLength": 2, "pattern": "^a.*$"},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2, "uniqueItems": True},
    {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/x"}], "$defs": {"x": {"type": "object", "required": ["a"]}}},
    {"properties": {"a": False}, "patternProperties": {"^b.*$": {"type": "null"}}, "additionalProperties": True},
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 8) | st.floats(-3, 8) | st.text("ab\n", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "bb", "c"]), inner),
    max_leaves=5,
)


def trapped(value: Any) -> bool:
    """Whether a value holds what JSON Schema lets through: a whole number written as a float, or a final newline."""
    text = json.dumps(value)
    return ".0" in text or "\\n" in text


@given(VALUES, st.sampled_from(SCHEMAS))
def test_any_value_is_judged_as_by_a_full_validator_or_more_strictly_in_the_known_traps(value, schema):
    check_schema(schema)
    ours, theirs = validate(value, schema) == [], jsonschema.Draft202012Validator(schema).is_valid(value)
    assert ours == theirs or (trapped(value) and theirs and not ours)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (1.0, {"type": "integer"}),
        (2.0, {"const": 2}),
        (True, {"const": 1}),
        (True, {"type": "integer"}),
        (False, {"type": "number"}),
        ("a\n", {"type": "string", "pattern": "^a$"}),
        ("b\na", {"type": "string", "pattern": "^a$"}),
    ],
)
def test_the_traps_of_json_schema_are_closed(value, schema):
    assert validate(value, schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"format": "date-time"},
        {"properties": {"a": {"multipleOf": 2}}},
        {"$defs": {"unused": {"if": True}}},
        {"anyOf": [{"items": {"oneOf": []}}]},
        {"pattern": "a"},
        {"pattern": "^a"},
        {"patternProperties": {"x-": True}},
        {"$ref": "#/$defs/missing"},
        {"$ref": "https://example.com/schema"},
    ],
)
def test_a_keyword_pattern_or_reference_that_would_be_ignored_is_an_error(schema):
    with pytest.raises(SchemaError, match=r"not supported|must cover the whole string|leads nowhere"):
        check_schema(schema)


def test_a_violation_says_where_what_was_found_and_what_to_write():
    schema = {"type": "object", "properties": {"a/b": {"type": "array", "items": {"enum": ["x", "y"]}}}}
    found = validate({"a/b": ["x", "z" * 100]}, schema)
    assert found == [Violation("/a~1b/1", 'is "' + "z" * 56 + '...; write "x" or "y"')]
    assert str(found[0]).startswith("/a~1b/1: is ")
    assert str(validate(1, schema)[0]) == "the document: is 1 (integer); write a value of type object"


@pytest.mark.parametrize(
    "key", ["started_at", "wall_seconds", "host", "git_commit", "code_digest", "environment_digest"]
)
@pytest.mark.parametrize("place", [(), ("runs", 0), ("runs", 0, "training"), ("evaluation_protocol",), ("provenance",)])
def test_an_artifact_holds_no_time_host_path_commit_or_version(complete, place, key):
    artifact: Any = complete.artifact
    inner = artifact
    for step in place:
        inner = inner[step]
    inner[key] = 1.5
    assert [v.path for v in violations(artifact, "artifact-v2")] == ["".join(f"/{s}" for s in (*place, key))]


def test_an_artifact_may_carry_what_the_design_adds(complete):
    artifact: Any = complete.artifact
    for row in (artifact["runs"][0]["final"], artifact["runs"][0]["history"][0]):
        row["kl_from_teacher"] = 0.5
    artifact["runs"][1]["baseline"]["kl_from_teacher"] = None
    artifact["runs"][0]["training"]["cache_hits"] = 7
    artifact["runs"][0]["outputs"] = [{"path": "items.jsonl", "sha256": "0" * 64, "bytes": 1}]
    artifact["provenance"]["supersedes"] = "sha256:" + "0" * 64
    artifact["x-note"] = {"anything": [1]}
    artifact["provenance"]["artifact_path"] = "docs/post-training/sparse-opd/metrics/a.json"
    assert violations(artifact, "artifact-v2") == []


@pytest.mark.parametrize(
    "path",
    [
        "/docs/post-training/a/metrics/a.json",
        "docs/post-training/../metrics/a.json",
        "docs/post-training/a/metrics/a.json\n",
        "docs/post-training/2609.0456-a/b/metrics/a.json",
        "docs/post-training/a/metrics/a.yaml",
        "docs/post-training/a/a.json",
    ],
)
def test_an_artifact_path_lies_at_one_depth_below_docs(complete, path):
    artifact: Any = complete.artifact
    artifact["provenance"]["artifact_path"] = path
    assert violations(artifact, "artifact-v2")
