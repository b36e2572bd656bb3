"""Names: taken once, found with a hint, and registered from outside by an import."""

import hashlib
import sys
from dataclasses import dataclass

import pytest

from posttrain import registry
from posttrain.registry import REGISTRIES, ConfigError, Registry, did_you_mean, load_plugins


@dataclass(frozen=True)
class Thing:
    """Something to register."""


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """Registered names and imported modules are those from before, whatever a plugin did."""
    for r in REGISTRIES:
        r.names()
    entries, modules = [(r, dict(r._entries)) for r in REGISTRIES], dict(sys.modules)
    yield
    for r, before in entries:
        r._entries.clear()
        r._entries.update(before)
    for name in set(sys.modules) - set(modules):
        if "plugin" in name:
            del sys.modules[name]


@pytest.fixture
def things() -> Registry:
    return Registry("thing", "posttrain.templates")  # a package without modules


PLUGIN = '''
from dataclasses import dataclass

from posttrain.registry import rewards


@rewards.register("{name}")
@dataclass(frozen=True)
class Reward:
    """A reward from outside."""

    def __call__(self, problem, text):
        return 1.0
'''


def plugin(folder, name="from-outside", file="my_plugin.py", text=PLUGIN):
    folder.mkdir(exist_ok=True)
    path = folder / file
    path.write_text(text.format(name=name))
    return path


# -- names ------------------------------------------------------------------------------------------------------------


def test_a_name_gives_back_what_was_registered_under_it(things):
    assert things.register("one")(Thing) is Thing
    assert things.get("one") is Thing
    assert things.names() == ["one"]
    assert "one" in things
    assert "two" not in things


def test_a_name_taken_twice_is_refused_and_the_first_one_stays(things):
    things.register("one")(Thing)

    @dataclass(frozen=True)
    class Other:
        pass

    with pytest.raises(ConfigError, match=r"thing `one` is registered twice\. Give one of them another name"):
        things.register("one")(Other)
    assert things.get("one") is Thing


def test_an_unknown_name_is_refused_with_the_nearest_one(things):
    for name in ("sparse-opd", "opd", "grpo"):
        things.register(name)(Thing)
    with pytest.raises(ConfigError, match=r"unknown thing `sparse_opd`\. Did you mean `sparse-opd`\?"):
        things.get("sparse_opd")


def test_an_unknown_name_that_is_near_to_nothing_lists_what_there_is(things):
    for name in ("opd", "grpo"):
        things.register(name)(Thing)
    with pytest.raises(ConfigError, match=r"unknown thing `zzz`\. Known: grpo, opd\."):
        things.get("zzz")


def test_a_hint_about_nothing_is_empty():
    assert did_you_mean("anything", []) == ""


def test_a_class_that_is_no_dataclass_is_refused_with_what_to_add(things):
    class Plain:
        pass

    with pytest.raises(ConfigError, match=r"thing `plain`: .*Plain.* is not a dataclass. Add @dataclass"):
        things.register("plain")(Plain)
    assert "plain" not in things


@pytest.mark.parametrize(("kind", "plural"), [("policy", "policies"), ("reward", "rewards")])
def test_kinds_have_a_plural(kind, plural):
    assert Registry(kind, "posttrain").plural == plural


def test_every_part_a_run_is_made_of_has_built_in_names_without_being_asked_to_import_them():
    least = {
        "algorithms": "dpo gkd grpo gspo lightning-opd opd ppo reinforce rloo sparse-opd tip",
        "policies": "bandit factored tree",
        "teachers": "cached frozen snapshot",
        "datasets": "arithmetic-smoke decisions preferences",
        "rewards": "axes exact positions",
    }
    found = {r.plural: r.names() for r in REGISTRIES}
    assert found.keys() >= least.keys()
    for plural, names in least.items():
        assert set(names.split()) <= set(found[plural])


def test_a_built_in_name_taken_by_a_plugin_first_is_refused_when_the_built_in_ones_load(tmp_path, monkeypatch):
    package = tmp_path / "things_plugin"
    plugin(package, file="__init__.py", text="")
    text = (
        "from dataclasses import dataclass\nimport builtins\n"
        "@builtins.things.register('one')\n@dataclass(frozen=True)\nclass One: pass\n"
    )
    plugin(package, file="one.py", text=text)
    monkeypatch.syspath_prepend(tmp_path)
    things = Registry("thing", "things_plugin")
    monkeypatch.setattr("builtins.things", things, raising=False)
    things.register("one")(Thing)
    with pytest.raises(ConfigError, match="`one` is registered twice"):
        things.get("one")


# -- plugins ----------------------------------------------------------------------------------------------------------


def test_a_file_registers_its_names_and_is_recorded_with_its_digest(tmp_path):
    path = plugin(tmp_path)
    (loaded,) = load_plugins([str(path)])
    assert loaded.name == str(path)
    assert loaded.sha256 == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    assert registry.rewards.get("from-outside")()(None, "") == 1.0


def test_a_module_registers_its_names_and_is_recorded_with_its_digest(tmp_path, monkeypatch):
    path = plugin(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (loaded,) = load_plugins(["my_plugin"])
    assert loaded.name == "my_plugin"
    assert loaded.sha256 == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    assert "from-outside" in registry.rewards


def test_an_installed_plugin_is_found_by_its_entry_point(tmp_path, monkeypatch):
    plugin(tmp_path, file="installed_plugin.py")
    info = tmp_path / "installed_plugin-1.0.dist-info"
    plugin(info, file="METADATA", text="Metadata-Version: 2.1\nName: installed-plugin\nVersion: 1.0\n")
    plugin(info, file="entry_points.txt", text="[posttrain.plugins]\nanything = installed_plugin\n")
    monkeypatch.syspath_prepend(tmp_path)
    (loaded,) = load_plugins()
    assert loaded.name == "anything"
    assert "from-outside" in registry.rewards


def test_the_same_file_twice_is_one_plugin_and_no_error(tmp_path, monkeypatch):
    path = plugin(tmp_path)
    monkeypatch.chdir(tmp_path)
    first, second, third = load_plugins([str(path), str(path), "my_plugin.py"])
    assert first == second
    assert third.sha256 == first.sha256


def test_two_files_of_one_name_are_two_plugins(tmp_path):
    for name in ("one", "two"):
        load_plugins([str(plugin(tmp_path / name, name))])
    assert {"one", "two"} <= set(registry.rewards.names())


def test_a_plugin_that_takes_a_name_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="reward `exact` is registered twice"):
        load_plugins([str(plugin(tmp_path, "exact"))])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import module_that_is_nowhere", "ModuleNotFoundError: No module named 'module_that_is_nowhere'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def", "SyntaxError"),
    ],
)
def test_a_plugin_that_fails_to_import_is_named_with_the_reason_and_leaves_no_half_module(tmp_path, text, why):
    path = plugin(tmp_path, text=text)
    with pytest.raises(ConfigError, match=rf"plugin `.*my_plugin\.py` does not import: {why}"):
        load_plugins([str(path)])
    assert "posttrain_plugin_my_plugin" not in sys.modules


def test_a_plugin_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"plugin `.*nowhere\.py`: there is no such file. Give a path"):
        load_plugins([str(tmp_path / "nowhere.py")])
    with pytest.raises(ConfigError, match="plugin `plugin_nowhere`: there is no module of this name"):
        load_plugins(["plugin_nowhere"])


@pytest.mark.parametrize("word", ["my.pyy", "my.p", "mypy_"])
def test_a_misspelt_file_of_a_reward_is_answered_with_how_a_file_is_named(tmp_path, monkeypatch, capsys, word):
    from posttrain.cli import main

    monkeypatch.chdir(tmp_path)
    plugin(tmp_path, file="my.py")
    assert main(["train", "grpo", f"reward={word}:score"]) == 2
    said = capsys.readouterr().err
    assert f"plugin `{word}`: there is no module of this name. Did you mean `my.py`?" in said
    assert "reward=FILE.py:FUNCTION" in said
    assert len(said.splitlines()) == 1
