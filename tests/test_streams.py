"""Random numbers that serve different purposes come from different streams, all over the package."""

import ast
import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

from posttrain.functional.selection import keyed_uniforms

PACKAGE = Path(__file__).parents[1] / "posttrain"
# A track of the bench measures gradients as the probes of a study do, on runs of its own.
SAME_PURPOSE = {("bench.tracks.bandit_policy_gradient", "2"): ("evaluation.probes", "PROBE_STREAM")}


def calls(name: str) -> dict[tuple[str, str], ast.Call]:
    """Every call of a function in the package, by module and place."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            if name in (getattr(called, "attr", None), getattr(called, "id", None)):
                found[module, str(node.lineno)] = node
    return found


def number(module: str, node: ast.expr) -> int:
    """The value of a literal, or of a constant of the module."""
    if isinstance(node, ast.Name):
        return getattr(importlib.import_module(f"posttrain.{module}"), node.id)
    return ast.literal_eval(node)


def purposes(found: dict[tuple[str, str], ast.expr]) -> dict[tuple[str, str], int]:
    """Stream numbers by purpose: the module with the constant that names the stream there."""
    named = {(module, ast.unparse(node)): number(module, node) for (module, _), node in found.items()}
    return {key: value for key, value in named.items() if key not in SAME_PURPOSE}


def keyed() -> dict[tuple[str, str], int]:
    """Streams of numbers that are drawn from the keys of rows."""
    given = {}
    for place, call in calls("keyed_uniforms").items():
        words = [*call.args[2:3], *(word.value for word in call.keywords if word.arg == "stream")]
        assert words, f"{place}: no stream is named, and the one nobody names belongs to nobody"
        given[place] = words[0]
    return purposes(given)


def seeded(length: int) -> dict[tuple[str, str], int]:
    """Last numbers of generators that are seeded by several."""
    lists = {place: call.args[0] for place, call in calls("default_rng").items() if call.args}
    return purposes(
        {
            place: node.elts[-1]
            for place, node in lists.items()
            if isinstance(node, ast.List) and len(node.elts) == length
        }
    )


@pytest.mark.parametrize(("found", "least"), [(keyed, 6), (lambda: seeded(2), 3), (lambda: seeded(3), 1)])
def test_every_purpose_has_a_stream_of_its_own(found, least):
    by_purpose = found()
    assert len(by_purpose) >= least, "the search no longer finds what it is about"
    shared = {n: [key for key, other in by_purpose.items() if other == n] for n in by_purpose.values()}
    assert {n: keys for n, keys in shared.items() if len(keys) > 1} == {}


def test_no_numbered_generator_is_that_of_the_seed_alone():
    """numpy fills seeds up with zeros: [seed, 0] is the stream of the training itself."""
    assert np.random.default_rng([5, 0]).random() == np.random.default_rng(5).random()
    assert 0 not in {*seeded(2).values(), *seeded(3).values()}


def test_streams_of_one_key_have_nothing_in_common():
    """2000 numbers of each of the streams in use: no two agree, and none are correlated beyond chance (5 sigma)."""
    keys = torch.tensor([[0, 1, 2, 3]])
    drawn = torch.cat([keyed_uniforms(keys, 2000, stream) for stream in sorted(keyed().values())])
    assert len(drawn.unique()) == drawn.numel()
    apart = torch.corrcoef(drawn) - torch.eye(len(drawn), dtype=torch.float64)
    assert float(apart.abs().max()) < 5 / 2000**0.5
