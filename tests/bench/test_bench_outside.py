"""Code from outside: tried before anything is tuned, and what it raises is said in one paragraph."""

import io
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_bench_fairness import IDEA, SMALL, TRAINED

from posttrain.bench import conduct as conduct_module
from posttrain.bench.conduct import Unit, conduct, perform
from posttrain.bench.foreign import HOOKS, OutsideError, described, kept_calls
from posttrain.bench.options import load
from posttrain.bench.rehearsal import Noted, rehearse
from posttrain.bench.track import Cell, Idea, tracks
from posttrain.cli import main
from posttrain.registry import ConfigError
from posttrain.templates import __file__ as templates

TEMPLATE = Path(templates).with_name("bench_track.py.txt")
FEW = ["evaluation_seeds=0-5", "tuning_seeds=100"]
PDE = [*SMALL["multiscale_diffusion_pde"], *FEW]
SIGNATURES = {hook: f"def f({', '.join(given)}):" for hook, given in HOOKS.items()}


def idea(tmp_path: Path, body: str, arguments: str) -> str:
    path = tmp_path / "mine.py"
    path.write_text(IDEA.format(body=body, arguments=arguments))
    return str(path)


def raising(hook: str, tmp_path: Path) -> str:
    return idea(tmp_path, f"{SIGNATURES[hook]}\n    raise LookupError('broken\\nhere')", f"{hook}=f")


def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any) -> None:
        raise AssertionError("a cell was trained")

    monkeypatch.setattr(conduct_module, "perform", run)


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("hook", sorted(HOOKS))
def test_a_hook_that_raises_is_named_with_its_line_before_anything_is_tuned(
    name: str, hook: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_runs(monkeypatch)
    words = ["bench", "run", name, "--idea", raising(hook, tmp_path), "--output", str(tmp_path / "run")]
    assert main([*words, *SMALL[name], *FEW]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1, "one paragraph, no traceback"
    assert f"idea.{hook}: raised LookupError: broken here (mine.py, line 3, in f)" in said
    assert all(f"{given}: " in said for given in HOOKS[hook]), "what the hook was given"
    assert "Nothing was trained. --traceback shows the calls that led there." in said
    assert not (tmp_path / "run").exists()


def test_the_traceback_is_there_for_whoever_asks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "run", "sequence", "--idea", raising("loss", tmp_path), *SMALL["sequence"]]
    assert main([*words, "--traceback"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("Traceback (most recent call last):")
    assert 'mine.py", line 3, in f' in said
    assert said.splitlines()[-1].endswith("Nothing was trained.")


def test_what_a_hook_is_given_is_said_by_name_shape_and_type(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        conduct(load("sequence", raising("order", tmp_path), SMALL["sequence"]), tmp_path / "run")
    assert "base: Tensor [2, 24] int64" in str(caught.value)
    assert "train a Batch, inputs Tensor [24, 12, 1] float32, targets Tensor [24, 6] float32" in str(caught.value)
    assert "settings: epochs, batch_size, lr," in str(caught.value)


@pytest.mark.parametrize(
    ("body", "arguments", "message"),
    [
        (
            "def f(base):\n    return base",
            "model=f",
            r"takes 1 positional argument but 2 were given \(mine.py, line 2,",
        ),
        (
            "import torch",
            "model=lambda base, settings: torch.nn.Linear(3, 4)",
            r"\(model\): track.loss: raised Runtime",
        ),
        ("class F:\n    def __call__(self, *a):\n        return 1 / 0", "loss=F()", r"ZeroDivision.*mine.py, line 4"),
        (
            "import functools\ndef f(x, *a):\n    return x['lr']",
            "loss=functools.partial(f, {})",
            r"KeyError: 'lr' \(mine",
        ),
        ("def f(m, b, s, base):\n    return base(m, b, s).detach()", "loss=f", "depends on no parameter"),
        ("def f(m, b, s, base):\n    return base(m, b, s).item()", "loss=f", r"idea.loss: gave the number .*no .item"),
        (
            "def f(m, b, s, base):\n    return base(m, b, s) * float('nan')",
            "loss=f",
            "idea.loss: gave nan on the first",
        ),
        (
            "def f(base, data, s):\n    return base + 30",
            "order=f",
            "idea.order: gave numbers from 30 to 61, expected 0 to 31",
        ),
        (
            "def f(base, data, s):\n    return base[:1]",
            "order=f",
            r"idea.order: gave shape \(1, 32\), expected \(2, 32\)",
        ),
        (
            "def f(base, data, settings):\n    return [[1], [2, 3]]",
            "order=f",
            r"the idea `mine` \(order\): raised Value",
        ),
    ],
)
def test_whatever_way_an_idea_fails_in_it_is_told_before_anything_is_tuned(
    body: str, arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_runs(monkeypatch)
    bench = load("multiscale_diffusion_pde", idea(tmp_path, body, arguments), PDE)
    with pytest.raises(ConfigError, match=message):
        conduct(bench, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("lambda r: {'x': r.measure('idea', 'pixel')}", r"idea.claims: X: raised KeyError: 'pixel' \(mine.py, line 3"),
        ("lambda r: None", "X: its values gave NoneType, expected"),
        ("lambda r: {'x': [1.0], 'y': [2.0]}", "gave 2 quantities, but the rule `value at most threshold` reads one"),
        ("lambda r: {'x': ['a']}", "for `x`, expected one number per seed"),
    ],
)
def test_a_prediction_that_cannot_be_read_is_refused_before_the_trainings_it_is_about(
    values: str, message: str, tmp_path: Path
) -> None:
    body = "from posttrain.evaluation.study import Claim"
    claim = f"claims=(Claim('X', 'c', 'p', 'm', 'value at most threshold', 1.0, {values}),)"
    bench = load("multiscale_diffusion_pde", idea(tmp_path, body, claim), PDE)
    with pytest.raises(ConfigError, match=message):
        rehearse(bench)


def test_a_prediction_that_only_one_batch_leaves_undefined_is_not_refused(tmp_path: Path) -> None:
    body = "from posttrain.evaluation.study import Claim\nfrom statistics import correlation"
    values = "lambda r: {'x': [correlation(r.measure('idea', 'pixel_mse'), r.measure('baseline', 'pixel_mse'))]}"
    claim = f"claims=(Claim('X', 'c', 'p', 'm', 'value at most threshold', 1.0, {values}),)"
    bench = load("multiscale_diffusion_pde", idea(tmp_path, body, claim), PDE)
    rehearse(bench)
    assert conduct(bench, tmp_path / "run").artifact["mechanism_signature"]["mechanism_signature"]["claims"]


@pytest.mark.parametrize("more", [[], ["--jobs", "2", "--traceback"]])
def test_a_hook_that_raises_later_ends_the_run_in_one_paragraph(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hook may count its calls: no dry call finds that."""
    body = "seen = []\ndef f(model, batch, settings, base):\n    seen.append(1)\n    if len(seen) > 9:\n        1 / 0"
    path = idea(tmp_path, f"{body}\n    return base(model, batch, settings)", "loss=f")
    long = ["data.train_examples=32", "data.test_examples=8", "settings.epochs=12", *FEW]
    words = ["bench", "run", "multiscale_diffusion_pde", "--idea", path, *long, "--output", str(tmp_path / "run")]
    assert main([*words, *more]) == 1
    *calls, said = capsys.readouterr().err.splitlines()
    # With two workers either cell may be the first to raise.
    assert re.search(r"the idea `mine` \(loss\), cell [01], seed 100: idea\.loss: raised ZeroDivisionError: div", said)
    assert "mine.py, line 6, in f" in said
    assert f"{tmp_path / 'run'} is incomplete" in said
    assert calls[-1:] == (["ZeroDivisionError: division by zero"] if more else []), "of another process too"


def test_the_error_travels_between_processes_whole() -> None:
    error = OutsideError("what happened", "the calls")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.calls, kept_calls(again)) == ("what happened", "the calls", "the calls")
    assert kept_calls(ValueError("another")) is None


def test_a_fault_of_this_package_is_not_laid_at_anyones_door(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = load("multiscale_diffusion_pde", overrides=PDE)
    broken = replace(bench, track=replace(bench.track, task=object()))
    with pytest.raises(AttributeError):
        perform(broken, Unit("idea", 0, 0))


@pytest.mark.usefixtures("hardly_trained")
@pytest.mark.parametrize("name", ["bandit_policy_gradient", "distillation_gap"])
def test_an_algorithm_from_outside_that_raises_is_named_with_its_line(name: str, tmp_path: Path) -> None:
    base = tracks.get(name).base["algorithm"]
    body = (
        "from dataclasses import dataclass\nfrom posttrain.registry import algorithms\n"
        f"@algorithms.register('mine-{name}')\n@dataclass(frozen=True)\nclass Mine(type(algorithms.get('{base}')()"
        ")):\n    def prepare(self, *given):\n        raise IndexError('no such thing')"
    )
    bench = load(name, idea(tmp_path, body, f"settings={{'algorithm': 'mine-{name}'}}"), SMALL[name])
    with pytest.raises(
        ConfigError, match=r"\(algorithm\): raised IndexError: no such thing \(mine.py, line 8, in prep"
    ):
        conduct(bench, tmp_path / "run")


# -- tracks from outside ----------------------------------------------------------------------------------------------


def custom(tmp_path: Path, old: str, new: str) -> str:
    text = TEMPLATE.read_text().replace("{name}", "mine-track").replace("{file}", "mine_track.py")
    assert old in text
    path = tmp_path / "mine_track.py"
    path.write_text(text.replace(old, new))
    return str(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rng = np.random.default_rng(seed)", "1 / 0", r"track.data: raised ZeroDivisionError.*mine_track.py, line"),
        ("return Data(", "return (", "track.data: gave tuple, expected a Data"),
        ("MLP(inputs=1", "MLP(inputs=2", "the baseline: track.loss: raised RuntimeError"),
        (
            'return MLP(inputs=1, outputs=1, width=settings["width"])',
            "return settings['width']",
            "track.model: gave int",
        ),
        ("return float(loss(model, data.test, settings))", "return data.tost", "track.evaluate: raised AttributeError"),
        ("return float(loss(model, data.test, settings))", "pass", "track.evaluate: gave NoneType, expected a float"),
        (
            "return (model(batch.inputs) - batch.targets).abs().mean()",
            "1 / 0",
            r"idea `absolute-error` \(loss\): idea.loss",
        ),
        (
            '"noise": 0.3}',
            '"noise": 0.3, "noize": 1.0}',
            "track.data: it sets `noize`, and nothing reads it. Did you mean",
        ),
        ('"width": 32}', '"width": 32, "depth": 3}', "track.base: it sets `depth`, and nothing reads it"),
        ('"batch_size": 16}', '"batch_size": 16, "hours": 1}', "track.budget: it sets `hours`, and nothing reads it"),
        ('"epochs": 8', '"epochs": 0', "settings.epochs: found 0, expected at least 1"),
        ('domain="regression"', "math_check=lambda: 1 / 0", "track.math_check: raised ZeroDivisionError"),
        ('domain="regression"', "mechanism=lambda found: found.nothing", "track.mechanism: raised AttributeError"),
    ],
)
def test_every_function_of_a_track_from_outside_is_tried_before_anything_is_tuned(
    old: str, new: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_runs(monkeypatch)
    with pytest.raises(ConfigError, match=message):
        conduct(load(custom(tmp_path, old, new), overrides=FEW), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -- settings that nothing reads --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("sequence", "{'lrr': 0.1}", "lrr: the idea `mine` sets it, and nothing reads it. Did you mean `lr`"),
        (
            "sequence",
            "{'algorithm': 'dapo'}",
            "algorithm: .* of bandit_policy_gradient and distillation_gap, not of `seq",
        ),
        ("multiscale_diffusion_pde", "{'detail_weight': 2.0}", r"detail_weight: .*as settings\['detail_weight'\]"),
    ],
)
def test_a_setting_of_an_idea_that_nothing_reads_is_refused_before_anything_runs(
    name: str, settings: str, message: str, tmp_path: Path
) -> None:
    for arguments in (f"settings={settings}", f"sweep=({settings},) * 3"):
        with pytest.raises(ConfigError, match=message):
            conduct(load(name, idea(tmp_path, "", arguments), SMALL[name]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "read",
    [
        "s['mine']",
        "s.get('mine')",
        "dict(s)",
        "{**s}",
        "s | {}",
        "{} | s",
        "list(s.items())",
        "s.copy()",
        "'mine' in s",
        "[s[key] for key in s]",
        "(lambda **given: given)(**s)",
    ],
)
def test_every_way_of_reading_a_setting_counts(read: str, tmp_path: Path) -> None:
    body = f"def f(model, batch, s, base):\n    {read}\n    return base(model, batch, s)"
    rehearse(load("multiscale_diffusion_pde", idea(tmp_path, body, "loss=f, settings={'mine': 1}"), PDE))


def test_noted_settings_are_a_dict_in_every_other_way() -> None:
    noted = Noted({"a": 1, "b": 2})
    assert noted["a"] == 1
    assert noted.read == {"a"}
    assert noted == {"a": 1, "b": 2}
    assert list(noted.values()) == [1, 2]
    assert noted.read == {"a", "b"}


@pytest.mark.parametrize("name", TRAINED)
def test_every_setting_of_a_shipped_track_is_read(name: str) -> None:
    bench = load(name, overrides=SMALL[name])
    data, task, read, given = Noted(bench.track.data), bench.track.task, set(), set()
    for arm in (None, bench.idea):
        cells = [Cell(Noted(cell), data, 100, arm) for cell in bench.track.cells(arm)]
        task.rehearse(cells)
        read |= {key for cell in cells for key in cell.settings.read}
        given |= {key for cell in bench.track.cells(arm) for key in cell}
    assert read == given
    assert data.read == set(bench.track.data)


def test_a_rehearsal_leaves_no_trace_in_the_numbers(tmp_path: Path) -> None:
    body = "def f(model, batch, settings, base):\n    return 2 * base(model, batch, settings)"
    bench = load("multiscale_diffusion_pde", idea(tmp_path, body, "loss=f"), PDE)
    before = perform(bench, Unit("idea", 1, 3))
    rehearse(bench)
    assert perform(bench, Unit("idea", 1, 3)) == before


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("lrr=0.1", "lrr: the track `sequence` has no such setting. Did you mean `settings.lr`"),
        ("trian_examples=3", "Did you mean `data.train_examples`"),
        ("algorithm=grpo", "It is one of bandit_policy_gradient, distillation_gap"),
        ("seeds=0-3", "Did you mean `evaluation_seeds` or `tuning_seeds`"),
        ("quux=1", "Known: alpha,"),
        ("settings.algorithm=grpo", "the track has no such setting"),
    ],
)
def test_a_word_that_no_track_reads_is_refused_with_the_nearest_one(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("sequence", overrides=[word])


@pytest.mark.parametrize(
    ("name", "word", "message"),
    [
        ("sequence", "settings.heads=3", "settings.heads: found 3, expected a divisor of the width 32"),
        ("sequence", "settings.layers=-1", "settings.layers: found -1, expected at least 1"),
        *(
            (name, word, message)
            for name in TRAINED
            for word, message in [
                ("settings.width=0", "settings.width: found 0, expected at least 1"),
                ("settings.batch_size=0", "settings.batch_size: found 0, expected at least 1"),
                ("settings.epochs=1.5", "settings.epochs: found 1.5, expected the type of its default"),
                ("data.train_examples=-4", "train_examples=-4: `.*` cannot be trained with this: ValueError"),
            ]
        ),
    ],
)
def test_a_setting_that_a_track_cannot_work_with_is_refused_before_anything_runs(
    name: str, word: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_runs(monkeypatch)
    others = [small for small in SMALL[name] if small.partition("=")[0] != word.partition("=")[0]]
    with pytest.raises(ConfigError, match=message):
        conduct(load(name, overrides=[*others, word]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", TRAINED)
def test_a_split_of_nothing_is_refused(name: str, tmp_path: Path) -> None:
    others = [word for word in SMALL[name] if not word.startswith("data.test_examples")]
    with pytest.raises(ConfigError, match=r"test_examples=0: |gave an empty split"):
        conduct(load(name, overrides=[*others, "data.test_examples=0"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("settings={'lr': 'high'}", r"lr: the idea `mine` sets it to 'high', expected the type of its default 0\.\d+"),
        ("settings={'width': 1.5}", "width: the idea `mine` sets it to 1.5, expected the type of its default"),
        ("sweep=({'lr': None},) * 3", "lr: the idea `mine` sets it to None"),
        ("settings=['lr']", r"settings: the idea `mine` has \['lr'\] there, expected a mapping"),
        ("sweep=(0.1, 0.2, 0.3)", r"sweep\[0\]: the idea `mine` has 0.1 there, expected a mapping"),
    ],
)
def test_a_setting_of_an_idea_has_the_type_of_its_default(arguments: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load("multiscale_diffusion_pde", idea(tmp_path, "", arguments), PDE)


def test_a_whole_number_stands_for_a_float_of_an_idea(tmp_path: Path) -> None:
    load("multiscale_diffusion_pde", idea(tmp_path, "", "settings={'weight_decay': 1}"), PDE)


@pytest.mark.parametrize("name", ["My Idea/../x", "", " x", "x" * 65, "a\nb", None, 3])
def test_what_no_file_can_be_called_names_neither_idea_nor_track(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"idea\.name: found .*expected at most 64 letters"):
        Idea(name=name)
    with pytest.raises(ConfigError, match=r"track\.name: found"):
        replace(tracks.get("sequence"), name=name)


@pytest.mark.parametrize(
    ("body", "message"),
    [("x = 1", "defines no `idea`. Write `idea = Idea"), ("idea = {'lr': 1}", "its `idea` is a dict. Write `idea")],
)
def test_a_file_that_defines_something_else_says_what_to_define(body: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(body)
    with pytest.raises(ConfigError, match=message):
        load("sequence", str(tmp_path / "mine.py"))


def test_an_idea_or_track_without_a_file_is_told_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--idea: there is no file .*none.py. `posttrain bench new idea NAME`"):
        load("sequence", str(tmp_path / "none.py"))
    with pytest.raises(ConfigError, match=r"bench: there is no file .*none.py. `posttrain bench new track NAME`"):
        load(str(tmp_path / "none.py"))


def test_a_file_that_does_not_import_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "half.py"
    path.write_text("x = 1\n\ny = nothing\n")
    with pytest.raises(ConfigError, match=r"half.py` does not import: NameError: name 'nothing' .*\(half.py, line 3\)"):
        load("sequence", str(path))


def test_anything_is_described_in_few_words() -> None:
    assert described(3) == "3"
    assert described([]) == "list of 0"
    assert described(io.StringIO()) == "StringIO"
    assert described({str(i): i for i in range(14)}).endswith("10, 11 and 2 more")


def test_a_setting_that_a_hook_reads_later_is_read(tmp_path: Path) -> None:
    body = "calls = []\ndef f(model, batch, s, base):\n    calls.append(1)\n"
    body += "    return base(model, batch, s) * (s['late'] if len(calls) > 99 else 1)"
    rehearse(load("multiscale_diffusion_pde", idea(tmp_path, body, "loss=f, settings={'late': 2.0}"), PDE))


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    track = tmp_path / "a" / "mine.py"
    track.write_text(TEMPLATE.read_text().replace("{name}", "own-track"))
    with pytest.raises(ConfigError, match=r"mine.py: two files of this run are called so. Rename one"):
        load(str(track), idea(tmp_path, "", "settings={'width': 8}"))


@pytest.mark.parametrize(
    ("value", "message"),
    [("[1.0, 2.0]", "`k` is list of 2"), ("torch.ones(2)", r"`k` is Tensor \[2\]"), ("{}", "`k` is")],
)
def test_a_measure_that_json_cannot_hold_is_refused_before_anything_runs(
    value: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"track.measure: {message}"):
        rehearse(measuring(value, tmp_path))


@pytest.mark.parametrize("value", ["np.float32(2)", "torch.tensor(2.0)", "np.int64(2)", "2", "True", "'two'", "None"])
def test_a_measure_may_be_a_number_of_any_library(value: str, tmp_path: Path) -> None:
    rehearse(measuring(value, tmp_path))


def measuring(value: str, tmp_path: Path) -> Any:
    path = tmp_path / "own_track.py"
    text = TEMPLATE.read_text().replace("{name}", "own-track").replace("Training(data, model, loss, evaluate)", "TASK")
    task = f"TASK = Training(data, model, loss, evaluate, lambda model, data, settings: {{'k': {value}}})"
    path.write_text(text.replace("\ntrack = Track(", f"\n{task}\ntrack = Track("))
    return load(str(path))
