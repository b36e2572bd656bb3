"""What every module of tests finds: the names this package registers, and no others."""

import sys

import pytest

from posttrain.registry import REGISTRIES


@pytest.fixture(autouse=True, scope="module")
def _registries_as_they_were():
    """Names that plugins of a module register are gone after it: the catalogue lists what is registered."""
    for registry in REGISTRIES:
        registry.names()  # the package's own, which register when they are first asked for
    before = [(registry, dict(registry._entries)) for registry in REGISTRIES]
    yield
    for registry, entries in before:
        registry._entries.clear()
        registry._entries.update(entries)
    for name in [name for name in sys.modules if name.startswith("posttrain_plugin_")]:
        del sys.modules[name]
