"""Fairness is structural: what an arm may not change it cannot change."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bench_shared import PLANTED

from posttrain.bench.conduct import Unit, conduct, perform
from posttrain.bench.options import load
from posttrain.bench.track import Cell, Idea, grid, tracks
from posttrain.registry import ConfigError

# Small data and few passes: the laws do not depend on how long one trains.
SMALL = {
    "sequence": ["data.train_examples=24", "data.test_examples=8", "data.length=12", "settings.epochs=2"],
    "multiscale_diffusion_pde": ["data.train_examples=32", "data.test_examples=8", "settings.epochs=2"],
    "semantic_pushforward_classification": ["data.train_examples=32", "data.test_examples=20", "settings.epochs=2"],
    "bandit_policy_gradient": ["data.train_examples=8", "data.validation_examples=8", "settings.steps=3"],
    "distillation_gap": [
        "data.train_examples=8",
        "data.validation_examples=4",
        "settings.steps=2",
        "settings.problems_per_step=4",
    ],
}
ALGORITHMS = ["bandit_policy_gradient", "distillation_gap"]  # tracks whose ideas are settings of `posttrain train`
TRAINED = [name for name in SMALL if name not in ALGORITHMS]
pytestmark = pytest.mark.usefixtures("hardly_trained")
IDEA = "from posttrain.bench.track import Idea\n{body}\nidea = Idea(name='mine', {arguments})\n"


def small(name: str, tmp_path: Path, body: str = "", arguments: str = "") -> Any:
    path = tmp_path / "mine.py"
    path.write_text(IDEA.format(body=body, arguments=arguments))
    return load(name, str(path), SMALL[name])


def test_every_track_is_in_the_table_of_small_ones() -> None:
    assert tracks.names() == sorted(SMALL)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_both_arms_start_alike_at_every_seed_and_seeds_differ(name: str) -> None:
    bench = load(name, overrides=SMALL[name])
    last = len(bench.track.sweep) - 1
    starts = {
        (arm, seed): perform(bench, Unit(arm, place, seed)).start
        for arm, place in (("baseline", 0), ("idea", last))
        for seed in (0, 1)
    }
    for seed in (0, 1):
        assert starts["baseline", seed] == starts["idea", seed]
        assert "data" in starts["idea", seed]
    differing = {key for key in starts["idea", 0] if starts["idea", 0][key] != starts["idea", 1][key]}
    assert differing >= ({"data"} if name == "distillation_gap" else {"data", "initial_weights"})


@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_cell_is_a_pure_function_whatever_ran_before_it(name: str) -> None:
    bench = load(name, overrides=SMALL[name])
    unit = Unit("idea", 1, 5)
    first = perform(bench, unit)
    torch.manual_seed(99)
    state = torch.random.get_rng_state()
    perform(bench, Unit("baseline", 0, 6))
    assert repr(perform(bench, unit)) == repr(first)  # where there is no gap to close the metric is NaN
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator was used"


@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_renamed_baseline_gives_the_baselines_numbers_in_every_cell(name: str, tmp_path: Path) -> None:
    bench = small(name, tmp_path)
    for place in range(len(bench.track.sweep)):
        assert repr(perform(bench, Unit("idea", place, 3))) == repr(perform(bench, Unit("baseline", place, 3)))


def test_a_renamed_baseline_of_a_real_track_is_called_identical(tmp_path: Path) -> None:
    bench = small("multiscale_diffusion_pde", tmp_path)
    found = conduct(bench, tmp_path / "run").artifact
    assert found["comparison"]["degenerate"] == "identical"
    assert found["comparison"]["verdict"] == "no measurable effect"
    assert found["mechanism_signature"]["custom_idea"]["changes"] == []


@pytest.mark.parametrize(
    ("body", "arguments", "changes"),
    [
        ("def f(base, settings):\n    base.head.bias.data += 1\n    return base", "model=f", ["model"]),
        ("def f(model, batch, settings, base):\n    return 2 * base(model, batch, settings)**2", "loss=f", ["loss"]),
        ("def f(base, data, settings):\n    return base.flip(1)", "order=f", ["order"]),
        (
            "import torch\ndef f(parameters, settings):\n    return torch.optim.SGD(parameters, lr=settings['lr'])",
            "optimizer=f",
            ["optimizer"],
        ),
    ],
)
def test_each_hook_changes_the_idea_and_nothing_that_both_arms_share(
    body: str, arguments: str, changes: list[str], tmp_path: Path
) -> None:
    for name in TRAINED:
        bench = small(name, tmp_path, body, arguments)
        idea, baseline = perform(bench, Unit("idea", 1, 0)), perform(bench, Unit("baseline", 1, 0))
        assert bench.idea.changes == changes
        assert idea.start == baseline.start
        assert idea != baseline, f"{name}: the hook had no effect"


def test_a_module_from_outside_that_draws_from_the_global_generator_is_reproducible(tmp_path: Path) -> None:
    body = "import torch\ndef f(base, settings):\n    base.head = torch.nn.Linear(64, 32)\n    return base"
    bench = small("multiscale_diffusion_pde", tmp_path, body, "model=f")
    assert perform(bench, Unit("idea", 0, 1)) == perform(bench, Unit("idea", 0, 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("sweep=({'lr': 0.1},)", "1 cells, but the baseline is tuned over 3"),
        ("sweep=tuple({'lr': x} for x in (1, 2, 3, 4))", "4 cells"),
        ("settings={'epochs': 100}", r"epochs: the idea `mine` sets it.*settings.epochs=VALUE"),
        ("settings={'batch_size': 1}", "batch_size"),
        ("sweep=tuple({'points': x} for x in (8, 16, 32))", r"points.*data.points=VALUE"),
    ],
)
def test_an_idea_cannot_buy_itself_a_larger_budget_or_other_data(arguments: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        small("multiscale_diffusion_pde", tmp_path, "", arguments)


def test_an_order_that_trains_longer_is_refused(tmp_path: Path) -> None:
    body = "def f(base, data, settings):\n    return base.repeat(2, 1)"
    bench = small("multiscale_diffusion_pde", tmp_path, body, "order=f")
    with pytest.raises(ConfigError, match=r"idea.order: gave shape \(4, 32\), expected \(2, 32\)"):
        perform(bench, Unit("idea", 0, 0))


@pytest.mark.parametrize(
    ("hook", "body", "message"),
    [
        ("model", "def f(base, settings):\n    base.eval()", "idea.model: gave NoneType, expected a torch Module"),
        ("loss", "def f(model, batch, settings, base):\n    return 0.5", "idea.loss: gave the number 0.5"),
        (
            "loss",
            "def f(model, batch, settings, base):\n    return model(batch.inputs)",
            r"idea.loss: gave a tensor of shape .*take its mean",
        ),
        ("order", "def f(base, data, settings):\n    return iter(base)", "idea.order: gave .*expected a torch Tensor"),
        ("order", "def f(base, data, settings):\n    return base / 1", "idea.order: gave torch.float32"),
        ("optimizer", "def f(parameters, settings):\n    return 0.1", "idea.optimizer: gave float"),
    ],
)
def test_a_hook_that_gives_something_else_is_told_so(hook: str, body: str, message: str, tmp_path: Path) -> None:
    bench = small("multiscale_diffusion_pde", tmp_path, body, f"{hook}=f")
    with pytest.raises(ConfigError, match=message):
        perform(bench, Unit("idea", 0, 0))


@pytest.mark.parametrize("given", ["base.numpy()", "base.tolist()", "base"])
def test_an_order_may_be_a_tensor_an_array_or_lists(given: str, tmp_path: Path) -> None:
    body = f"def f(base, data, settings):\n    return {given}"
    bench = small("multiscale_diffusion_pde", tmp_path, body, "order=f")
    assert perform(bench, Unit("idea", 0, 0)).metric == perform(bench, Unit("baseline", 0, 0)).metric


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(
    ("body", "arguments", "message"),
    [
        ("def f(base, settings):\n    return base", "model=f", "ideas are settings, not hooks"),
        ("", "settings={'algorithm': 'grpoo'}", "Did you mean `grpo`"),
        ("", "settings={'algorithm': 'rloo', 'algorithm.klip': 1.0}", "klip"),
        ("", "settings={'learning_rat': 1.0}", "Did you mean `learning_rate`"),
    ],
)
def test_an_idea_that_posttrain_train_would_refuse_is_refused_before_anything_runs(
    name: str, body: str, arguments: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        small(name, tmp_path, body, arguments)


def test_a_setting_that_one_arm_lacks_is_an_error_unless_it_is_the_default(tmp_path: Path) -> None:
    """Dropped in silence it would make the arms differ in more than the idea."""
    (tmp_path / "mine.py").write_text(IDEA.format(body="", arguments="settings={'algorithm': 'dapo'}"))
    idea = str(tmp_path / "mine.py")
    assert load("bandit_policy_gradient", idea).idea.settings == {"algorithm": "dapo"}
    with pytest.raises(ConfigError, match="kl_coef"):
        load("bandit_policy_gradient", idea, ["settings.kl_coef=0.1"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tuning_seeds=7-9"], r"\[7\] are also evaluation seeds"),
        (["protocol=recorded", "tuning_seeds=0-3"], "Leave tuning_seeds out"),
        (["protocol=mine"], "expected one of disjoint, recorded"),
        (["evaluation_seed=0-3"], "Did you mean `evaluation_seeds`"),
        (["alpha=1.5"], "alpha"),
        (["family_size=0"], "family_size"),
        (["sesoi_rel_pct=-1"], "sesoi_rel_pct"),
        (["scale=2.0"], r"Write data.scale=VALUE"),
        (["settings.epoch=3"], "Did you mean `epochs`"),
        (["settings.epochs=many"], "type of its default"),
        (["settings.offset=1.0"], "the sweep of `planted` varies it"),
        (["failure_value=bad"], "failure_value"),
        (["failure_value=nan"], "failure_value: found nan, expected a finite number"),
        (["failure_value=inf"], "failure_value: found inf, expected a finite number"),
        (["alpha=nan"], "alpha"),
        (["sesoi_rel_pct=nan"], "sesoi_rel_pct"),
        (["evaluation_seeds=5-3"], "rising range"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_before_anything_runs(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(PLANTED, overrides=overrides)


def test_a_track_with_an_unknown_direction_or_metric_setting_is_refused() -> None:
    track = load(PLANTED).track
    with pytest.raises(ConfigError, match="lower is better"):
        replace(track, direction="smaller is better")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the sweep names `ofset`"):
        replace(track, sweep=({"ofset": 1.0},))
    with pytest.raises(ConfigError, match="found no cell"):
        replace(track, sweep=())
    with pytest.raises(ConfigError, match="both arms share budget and data"):
        replace(track, sweep=({"epochs": 3},))


def test_files_that_define_nothing_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty_one.py").write_text("")
    with pytest.raises(ConfigError, match="defines no `track`"):
        load(str(tmp_path / "empty_one.py"))
    with pytest.raises(ConfigError, match="defines no `idea`"):
        load("sequence", str(tmp_path / "empty_one.py"))
    with pytest.raises(ConfigError, match="Did you mean `sequence`"):
        load("sequences")


def test_the_last_axis_of_a_grid_varies_fastest() -> None:
    assert grid(a=(1, 2), b=(3, 4)) == ({"a": 1, "b": 3}, {"a": 1, "b": 4}, {"a": 2, "b": 3}, {"a": 2, "b": 4})


def test_grids_seeds_and_field_names_are_the_recorded_ones() -> None:
    cells = {name: [t.cfg(c, None) for c in t.cells(None)] for name in TRAINED for t in [tracks.get(name)]}
    assert cells["sequence"] == [{"lr": lr, "epochs": 8, "rho": 0.0, "beta": 0.0} for lr in (0.001, 0.003, 0.006)]
    assert cells["multiscale_diffusion_pde"] == [{"lr": lr, "weight_decay": 0.0} for lr in (0.001, 0.003, 0.01)]
    assert cells["semantic_pushforward_classification"] == [
        {"lr": lr, "epochs": 18, "temperature": t, "weight_decay": 0.0}
        for lr in (0.001, 0.003, 0.006)
        for t in (0.8, 1.0, 1.2)
    ]
    gate, haar = (tracks.get(name) for name in ("sequence", "multiscale_diffusion_pde"))
    assert [gate.cfg(c, gate.idea) for c in gate.cells(gate.idea)] == [
        {"lr": lr, "epochs": 8, "rho": rho, "beta": beta}
        for lr, rho, beta in ((0.001, 0.85, 0.5), (0.003, 0.9, 0.5), (0.006, 0.9, 1.0))
    ]
    assert [haar.cfg(c, haar.idea)["detail_weight"] for c in haar.cells(haar.idea)] == [0.5, 1.0, 2.0]
    assert all(tracks.get(name).seeds == tuple(range(8)) for name in tracks.names())
    assert all(not set(tracks.get(name).seeds) & set(tracks.get(name).tuning_seeds) for name in tracks.names())


def test_shipped_configurations_load_and_say_what_the_tracks_say() -> None:
    for name in tracks.names():
        bench = load(name)
        assert (bench.track.seeds, bench.tuning_seeds) == (bench.evaluation_seeds, bench.track.tuning_seeds)
        assert bench.track == tracks.get(name)
        recorded = load(name, overrides=["protocol=recorded"])
        assert recorded.tuning_seeds == recorded.evaluation_seeds[: bench.track.recorded_tuning]


def test_an_idea_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"idea.name"):
        Idea(name="")


def test_a_cell_holds_everything_its_training_depends_on() -> None:
    track = tracks.get("sequence")
    cell = Cell(track.cells(None)[0], track.data, 0)
    assert set(cell.settings) == {*track.budget, *track.base}
