"""Trackers see every step once, live and over kills; whatever happens to them, the run is the same."""

import inspect
import json
import os
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import torch

from posttrain import settings
from posttrain.artifacts.verify import verify
from posttrain.assembly import pin
from posttrain.evaluation import trackers
from posttrain.evaluation.conduct import conduct, for_tuning
from posttrain.evaluation.experiment import solo
from posttrain.evaluation.work import Unit, perform
from posttrain.registry import ConfigError

STEPS = 8
SMALL = {"steps": STEPS, "eval_steps": 4, "tune": None, "seeds": "3"}


@pytest.fixture(autouse=True)
def _pinned():
    before, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    pin()
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(deterministic)


# The signatures of wandb 0.31 and trackio 0.43, as far as anybody could call them by keyword.
WANDB_INIT = [
    "entity",
    "project",
    "dir",
    "id",
    "name",
    "notes",
    "tags",
    "config",
    "config_exclude_keys",
    "config_include_keys",
    "allow_val_change",
    "group",
    "job_type",
    "mode",
    "force",
    "reinit",
    "resume",
    "resume_from",
    "fork_from",
    "save_code",
    "tensorboard",
    "sync_tensorboard",
    "monitor_gym",
    "settings",
]
TRACKIO_INIT = [
    "name",
    "group",
    "space_id",
    "server_url",
    "dataset_id",
    "bucket_id",
    "config",
    "resume",
    "settings",
    "private",
    "embed",
    "auto_log_gpu",
    "gpu_log_interval",
    "auto_log_cpu",
    "cpu_log_interval",
    "webhook_url",
    "webhook_min_level",
]


class Server:
    """What a service keeps: by run, all rows in the order they came."""

    def __init__(self):
        self.rows: dict[str, list[tuple[int, dict]]] = {}
        self.finished = 0
        self.given: list[dict] = []

    def first(self, name: str) -> int:
        return 1 + max((step for step, _ in self.rows.setdefault(name, [])), default=-1)


class FakeWandB:
    def __init__(self, server, name):
        self.server, self.name, self.step = server, name, server.first(name)

    def log(self, data, step=None, commit=None):
        assert step >= self.step, "wandb drops steps that lie behind, with a warning"
        assert commit, "without it the last step waits for the next one"
        self.server.rows[self.name].append((step, data))
        self.step = step + 1

    def finish(self, exit_code=None):
        self.server.finished += 1


class FakeTrackio:
    def __init__(self, server, name):
        self.server, self.name, self._next_step = server, name, server.first(name)

    def log(self, metrics, step=None):
        self.server.rows[self.name].append((step, metrics))  # as often as it is told


def module(monkeypatch, name: str) -> ModuleType:
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None, origin=f"{name}/__init__.py")
    monkeypatch.setitem(sys.modules, name, made)
    return made


@pytest.fixture
def wandb(monkeypatch):
    server, made = Server(), module(monkeypatch, "wandb")

    def init(**given):
        assert set(given) <= set(WANDB_INIT)
        assert (given["resume"], given["reinit"]) == ("allow", "create_new")
        server.given.append(given)
        return FakeWandB(server, given["id"])

    made.init, made.Settings = init, lambda console: console
    return server


@pytest.fixture
def trackio(monkeypatch):
    server, made = Server(), module(monkeypatch, "trackio")

    def init(project, **given):
        assert set(given) <= set(TRACKIO_INIT)
        assert given["resume"] == "allow"
        server.given.append(given)
        print("* a line that belongs to no output")
        return FakeTrackio(server, given["name"])

    def finish():
        print("* another one")
        server.finished += 1

    made.init, made.finish = init, finish
    return server


def unit(folder: Path, *names: str, seed: int = 3) -> Unit:
    config = settings.load("grpo", "l1", overrides={**SMALL, "report_to": list(names)})
    return Unit("grpo", "grpo", config.resolved, seed, folder, save_steps=4)


def killed(of: Unit, before: int) -> None:
    """The unit up to an update in which its process ends at once; nothing is closed and nothing flushed."""
    child = os.fork()
    if not child:
        try:
            perform(of, lambda row: os._exit(137) if row["step"] == before else None)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 137


def interrupted(of: Unit, before: int) -> None:
    """The same within this process, so that a fake server keeps what it was told."""

    def step(row):
        if row["step"] == before:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perform(of, step)


def events(folder: Path):
    """What a reader of TensorBoard sees."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def expected(rows: list[dict]) -> dict[str, list[tuple[int, float]]]:
    names = dict.fromkeys(name for row in rows for name in row if name not in ("seed", "step"))
    return {name: [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in rows if name in row] for name in names}


# -- once -------------------------------------------------------------------------------------------------------------


def test_tensorboard_has_every_number_of_every_row(tmp_path):
    done = perform(unit(tmp_path, "tensorboard"))
    assert len(done.metrics) == STEPS
    assert events(tmp_path / "tensorboard" / "seed-3") == expected(done.metrics)


@pytest.mark.parametrize("before", [1, 4, 6], ids=["before any step", "before a checkpoint", "behind one"])
def test_after_a_kill_tensorboard_has_every_step_once_and_nothing_of_what_was_abandoned(before, tmp_path):
    of = unit(tmp_path, "tensorboard")
    killed(of, before)
    done = perform(of)
    assert events(tmp_path / "tensorboard" / "seed-3") == expected(done.metrics)


def test_a_reader_that_watches_purges_what_was_abandoned(tmp_path):
    """The event with which a second writer begins, after a file that the reader has read already."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    run = trackers.Tracked(tmp_path, "grpo", 3, {}, "id")
    starts = []
    for _ in range(2):
        trackers.TensorBoard(run).close()
        (path,) = (tmp_path / "tensorboard" / "seed-3").iterdir()
        found = [event for event in EventFileLoader(str(path)).Load() if event.HasField("session_log")]
        starts.append([(event.session_log.status, event.step) for event in found])
    assert starts == [[], [(1, 0)]]  # 1: START


def test_another_future_leaves_nothing_in_tensorboard(tmp_path):
    """What an earlier process logged beyond its checkpoint is not shown, whatever it was."""
    run = trackers.Tracked(tmp_path, "grpo", 3, {}, "id")
    for rows in ([(1, 0.5), (2, 0.25), (3, 9.0), (4, 9.0)], [(1, 0.5), (2, 0.25), (3, 0.125)]):
        writer = trackers.TensorBoard(run)
        for step, loss in rows:
            writer.log({"seed": 3, "step": step, "loss": loss})
        writer.close()
    assert events(tmp_path / "tensorboard" / "seed-3") == {"loss": [(1, 0.5), (2, 0.25), (3, 0.125)]}


@pytest.mark.parametrize("service", ["wandb", "trackio"])
def test_a_service_gets_every_step_once_however_often_the_run_is_taken_up(service, tmp_path, request):
    server = request.getfixturevalue(service)
    of = unit(tmp_path, service)
    for before in (3, 6, 7):
        interrupted(of, before)
    done = perform(of)
    ((_, rows),) = server.rows.items()
    assert [step for step, _ in rows] == list(range(1, STEPS + 1))
    numbers = [{key: value for key, value in row.items() if key not in ("seed", "step")} for row in done.metrics]
    assert [row for _, row in rows] == numbers
    assert server.finished == len(server.given) == 4
    assert len({given["name"] for given in server.given}) == 1
    assert server.given[0]["config"] == of.config


@pytest.mark.parametrize("service", ["wandb", "trackio"])
def test_rows_that_a_service_lost_in_a_kill_are_given_to_it_again(service, tmp_path, request):
    server = request.getfixturevalue(service)
    of = unit(tmp_path, service)
    interrupted(of, 6)
    ((_, rows),) = server.rows.items()
    del rows[2:]  # the checkpoint is of step 4
    perform(of)
    assert [step for step, _ in rows] == list(range(1, STEPS + 1))


def test_no_two_runs_and_no_two_seeds_share_an_identity(tmp_path, wandb, trackio):
    for folder, seed in ((tmp_path / "a", 3), (tmp_path / "a", 4), (tmp_path / "b", 3)):
        perform(unit(folder, "wandb", "trackio", seed=seed))
    for server in (wandb, trackio):
        assert len(server.rows) == 3
        assert all(len(rows) == STEPS for rows in server.rows.values())


def test_rows_arrive_while_the_run_goes(tmp_path, trackio):
    seen = []
    perform(unit(tmp_path, "trackio"), lambda row: seen.append(sum(map(len, trackio.rows.values()))))
    assert seen == list(range(STEPS))


def test_tuning_is_not_tracked(tmp_path, trackio):
    perform(for_tuning(replace(unit(tmp_path, "trackio"), folder=tmp_path)))
    assert trackio.given == []


# -- the run is the same ----------------------------------------------------------------------------------------------


def test_trackers_change_no_byte_of_artifact_metrics_and_samples(tmp_path, wandb, trackio, capsys):
    names = ["", "tensorboard,wandb,trackio"]
    for name in names:
        config = settings.load("grpo", "l1", overrides={**SMALL, "report_to": name or None})
        conduct(solo(config, None, []), tmp_path / f"run-{name}")
    for file in ("artifact.json", "plan.json", "metrics.jsonl", "samples.jsonl"):
        assert len({(tmp_path / f"run-{name}" / file).read_bytes() for name in names}) == 1, file
    told = tmp_path / f"run-{names[1]}"
    (told / "wandb").mkdir()  # where wandb puts its files
    (told / "wandb" / "run.wandb").touch()
    record = json.loads((told / "execution.json").read_text())["execution"]
    assert not [file for file in record["outputs"] if "tensorboard" in file["path"]]
    assert verify(told).exit_code == 0
    assert capsys.readouterr().out == ""  # trackio prints, and the output's last line is the artifact's path


@pytest.mark.parametrize("where", ["init", "log", "finish"])
def test_a_tracker_that_fails_costs_one_line_and_no_run(where, tmp_path, trackio, wandb, monkeypatch, capsys):
    plain = perform(unit(tmp_path / "plain"))
    calls = []

    def broken(*args, **given):
        calls.append(1)
        raise ConnectionError("no\nroute")

    at = FakeTrackio if where == "log" else sys.modules["trackio"]
    monkeypatch.setattr(at, where, broken)
    done = perform(unit(tmp_path / "run", "trackio", "wandb"))
    assert (done.run, done.metrics, done.samples) == (plain.run, plain.metrics, plain.samples)
    assert len(calls) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("*")]
    assert said == ["posttrain: report_to: trackio failed and is told no more: no route. metrics.jsonl has every row."]
    ((_, rows),) = wandb.rows.items()
    assert len(rows) == STEPS


# -- settings ---------------------------------------------------------------------------------------------------------


def test_every_tracker_that_settings_know_can_be_opened():
    assert tuple(trackers.TRACKERS) == settings.TRACKERS


@pytest.mark.parametrize("name", settings.TRACKERS)
def test_a_tracker_that_is_not_installed_is_named_with_the_command_that_installs_it(name, monkeypatch):
    monkeypatch.setattr(settings.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"report_to: `{name}` is not installed.*pip install 'posttrain\[{name}\]'"):
        settings.load("grpo", "l1", overrides={"report_to": name})


def test_a_folder_of_that_name_is_no_package(tmp_path, monkeypatch):
    """wandb leaves a folder `wandb` wherever it ran, which Python would import as an empty package."""
    (tmp_path / "nowhere").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(settings, "TRACKERS", ("nowhere",))
    with pytest.raises(ConfigError, match="`nowhere` is not installed"):
        settings.load("grpo", "l1", overrides={"report_to": "nowhere"})


@pytest.mark.parametrize(("name", "known"), [("wandb", WANDB_INIT), ("trackio", TRACKIO_INIT)])
def test_the_fakes_take_what_the_real_ones_take(name, known):
    """Where the packages are installed, as in a checkout that uses them."""
    real = pytest.importorskip(name)
    assert set(known) <= set(inspect.signature(real.init).parameters)
