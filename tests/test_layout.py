"""The map of the house: who may import whom, what files are called and how long they are, and calls nobody makes."""

import ast
import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "posttrain"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}

# Who may import whom (docs/adr/0006): each module, or the package it lies in, with what it may import beside itself.
# The entry with the longest name counts; `*` is everything but the command line and `testing`.
ARROWS = {
    "batch": "",
    "registry": "",
    "artifacts": "",
    "artifacts.lock": "registry artifacts",  # its refusals are a user's errors
    "functional": "",
    "ranks": "registry",
    "ranges": "registry",
    "overrides": "registry",
    "conversion": "registry overrides",
    "policies.base": "batch",
    "policies": "batch registry ranges functional policies.base samplers",
    "samplers": "batch registry ranges functional policies policies.base",
    "teachers.base": "batch policies.base",
    "teachers": "batch registry ranges functional policies policies.base teachers.base",
    "algorithms.base": "batch registry functional policies.base",
    "algorithms": "batch registry ranges functional policies.base algorithms.base",
    "data": "batch registry ranges",
    "rewards.base": "batch",
    "rewards": "batch registry ranges rewards.base",
    "judging": "batch rewards.base",
    "tracking": "batch ranks judging policies.base rewards.base",
    "microscope": "batch algorithms.base policies.base teachers.base",
    "phases": "",
    "stopping": "",
    "verbs": "",
    "optimization": "ranges",
    "checkpoint": "artifacts registry",
    "shares": "batch ranks",
    "trainer": (
        "batch tracking judging ranks shares registry functional microscope optimization phases "
        "policies.base teachers.base algorithms.base rewards.base"
    ),
    "shorthand": "registry",
    "settings": "registry ranges optimization conversion overrides shorthand",
    "tiny": "artifacts data registry",
    "assembly": (
        "batch registry ranks ranges functional tracking trainer settings shorthand tiny data rewards samplers "
        "algorithms policies teachers algorithms.base policies.base teachers.base"
    ),
    "reporting": "artifacts registry",
    "evaluation": "*",
    "evaluation.conduct": "* testing",  # the smoke tier runs the laws
    "evaluation.cli": "* testing cli",
    "bench": "*",
    "testing": "*",
    "cli": "* testing evaluation.cli bench.cli reporting.cli reporting.actions teachers.cli",
    "bench.cli": "* testing cli",
    "teachers.cli": "* testing cli",
    "reporting.cli": "* testing cli reporting.actions",
    "reporting.actions": "* testing cli",  # what its verbs do
    "__main__": "cli",
    "__init__": "",
    "configs": "",
    "templates": "",
}
VERBS = ("cli", "evaluation.cli", "bench.cli", "reporting.cli", "reporting.actions", "teachers.cli")
OUTSIDE = (*VERBS, "testing", "__main__")


def name_of(path: Path) -> str:
    """`policies.base` for posttrain/policies/base.py; `__init__` for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def place(name: str) -> str:
    """The entry of `ARROWS` that speaks for a module."""
    parts = name.split(".")
    known = [".".join(parts[:i]) for i in range(len(parts), 0, -1) if ".".join(parts[:i]) in ARROWS]
    return known[0] if known else parts[0]


MODULES = {name_of(path) for path in FILES}


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Our modules that a file imports, inside functions and for type checkers too, with the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            # `from posttrain import ranks` means the module, `from posttrain import __version__` the package.
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name.removeprefix("posttrain.") in MODULES else str(node.module) for name in whole]
        else:
            continue
        for name in names:
            if name == "posttrain" or name.startswith("posttrain."):
                yield name.removeprefix("posttrain").removeprefix(".") or "__init__", node.lineno


def allowed(importer: str) -> set[str]:
    words = set(ARROWS[importer].split())
    if "*" in words:
        words |= set(ARROWS) - set(OUTSIDE)
    return words | {importer, "__init__"}


def test_every_module_has_its_place_on_the_map():
    """A new module in posttrain/ is written into `ARROWS` and into docs/adr, with what it may import."""
    assert {name for name in MODULES if place(name) not in ARROWS} == set()


def test_nobody_imports_against_the_arrows():
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for path, tree in TREES.items()
        for imported, line in imports(tree)
        if place(name_of(path)) in ARROWS and place(imported) not in allowed(place(name_of(path)))
    ]
    assert wrong == []


def test_the_arrows_form_no_circle():
    """But for candidates and their samplers, and for the command lines, which call each other inside verbs."""
    graph = {name: {to for to in allowed(name) if to not in (name, "__init__")} for name in ARROWS}
    graph["policies"] -= {"samplers"}
    for name in (*VERBS, "evaluation.conduct"):
        graph.pop(name)
    done: set[str] = set()
    for name in ("evaluation", "bench", "testing"):  # `*`: these stand above all others
        graph[name] -= {"evaluation", "bench", "testing", "evaluation.conduct"}
    while len(done) < len(graph):
        ready = {name for name, needs in graph.items() if name not in done and needs & graph.keys() <= done}
        assert ready, sorted(set(graph) - done)
        done |= ready


@pytest.mark.parametrize(
    ("importer", "imported", "fine"),
    [
        ("functional.selection", "functional.weighting", True),
        ("functional.selection", "batch", False),
        ("algorithms.grpo", "functional.advantages", True),
        ("algorithms.grpo", "algorithms.base", True),
        ("algorithms.grpo", "trainer", False),
        ("algorithms.grpo", "policies.candidate", False),
        ("artifacts.verify", "artifacts.audit", True),
        ("artifacts.verify", "evaluation.records", False),
        ("evaluation.conduct", "testing", True),
        ("evaluation.study", "testing", False),
        ("trainer", "settings", False),
        ("data.decisions", "data.arithmetic_smoke", True),
        ("registry", "batch", False),
    ],
)
def test_the_map_says_what_it_should(importer, imported, fine):
    assert (place(imported) in allowed(place(importer))) is fine


def test_the_smoke_tier_imports_the_laws_inside_a_function():
    """So that nobody who trains imports the test machinery."""
    tree = TREES[PACKAGE / "evaluation" / "conduct.py"]
    assert not [node for node in tree.body if isinstance(node, ast.ImportFrom) and "testing" in str(node.module)]


def third_party(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(TREES[path]):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        found |= {name.partition(".")[0] for name in names}
    return found - set(sys.stdlib_module_names) - {"posttrain"}


@pytest.mark.parametrize("folder", ["artifacts", "reporting"])
def test_who_reads_an_artifact_needs_no_torch(folder):
    heavy = {"torch", "transformers", "datasets", "accelerate", "omegaconf", "safetensors"}
    found = {path.name: third_party(path) & heavy for path in FILES if path.is_relative_to(PACKAGE / folder)}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


# -- names and sizes --------------------------------------------------------------------------------------------------


def test_no_module_of_ours_hides_one_of_python_or_of_an_installed_distribution():
    """`accelerate launch posttrain` runs the folder as a script, with its files first on the path."""
    ours = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    ours |= {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    installed = {
        top for top, sources in importlib.metadata.packages_distributions().items() if set(sources) != {"posttrain"}
    }
    assert ours & (set(sys.stdlib_module_names) | installed) == set()


def test_no_module_is_a_drawer_for_everything():
    drawers = ("util", "utils", "helper", "helpers", "common", "manager", "misc", "tools")
    assert [str(path.relative_to(ROOT)) for path in FILES if set(path.stem.split("_")) & set(drawers)] == []


def test_no_file_is_longer_than_its_kind_should_be():
    """An algorithm is read at one sitting, every other file at one go."""
    protocol = PACKAGE / "algorithms" / "base.py"
    limits = {path: 110 if path.parent == protocol.parent and path != protocol else 400 for path in FILES}
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > limits[p]} == {}


def test_every_module_says_what_it_is():
    assert [str(path.relative_to(ROOT)) for path, tree in TREES.items() if not ast.get_docstring(tree)] == []


# -- calls nobody makes -----------------------------------------------------------------------------------------------

UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle"}
UNSAFE_CALLS = {"eval", "exec", "compile", "yaml.load", "yaml.unsafe_load", "os.system", "os.popen"}
UNSAFE_ARGUMENTS = {("shell", True), ("weights_only", False), ("trust_remote_code", True), ("allow_pickle", True)}
LOADERS = {"importlib.import_module", "__import__", "importlib.util.spec_from_file_location", "runpy.run_path"}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def unsafe(tree: ast.AST, loads_plugins: bool = False) -> list[str]:
    """What in a file could run something that was read, with the line."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            names += [f"{getattr(node, 'module', '')}.{alias.name}" for alias in node.names]
            unsafe_names = [n for n in names if n.partition(".")[0] in UNSAFE_MODULES or n in UNSAFE_CALLS]
            found += [f"{node.lineno}: import {name}" for name in unsafe_names]
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func).removeprefix("builtins.")
        given = {(word.arg, word.value.value) for word in node.keywords if isinstance(word.value, ast.Constant)}
        found += [f"{node.lineno}: {key}={value}" for key, value in given & UNSAFE_ARGUMENTS]
        if name in UNSAFE_CALLS:
            found.append(f"{node.lineno}: {name}(...)")
        if name == "torch.load" and ("weights_only", True) not in given:
            found.append(f"{node.lineno}: torch.load without weights_only=True")
        if name in LOADERS and not loads_plugins and not all(isinstance(word, ast.Constant) for word in node.args):
            found.append(f"{node.lineno}: {name} of a name from outside")
    return found


def test_nothing_that_is_read_is_ever_run():
    """Plugins are code that a user names; the registry alone imports them."""
    found = {str(p.relative_to(ROOT)): unsafe(tree, p == PACKAGE / "registry.py") for p, tree in TREES.items()}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import joblib",
        "import shelve, marshal, dill",
        "from yaml import load",
        "exec(code)",
        "builtins.eval(x)",
        "eval(x)",
        "yaml.load(file)",
        "subprocess.run(x, shell=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "np.load(path, allow_pickle=True)",
        "importlib.import_module(name)",
        "importlib.import_module(f'posttrain.{name}')",
    ],
)
def test_each_of_those_calls_would_be_noticed(code):
    assert unsafe(ast.parse(code))


@pytest.mark.parametrize(
    "code", ["importlib.import_module('rich')", "torch.load(path, weights_only=True)", "model.eval()"]
)
def test_their_harmless_relatives_are_not(code):
    assert unsafe(ast.parse(code)) == []
