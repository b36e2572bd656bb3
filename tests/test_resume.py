"""A killed run, resumed, equals the run that was not killed, bit for bit (law 10)."""

import itertools
import multiprocessing
import os
import resource
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from posttrain import settings, stopping
from posttrain.artifacts import provenance
from posttrain.artifacts.documents import read
from posttrain.artifacts.verify import verify
from posttrain.assembly import assemble, pin
from posttrain.checkpoint import Checkpoints
from posttrain.evaluation import saving
from posttrain.evaluation.conduct import Watch, conduct
from posttrain.evaluation.experiment import Experiment, solo, vary
from posttrain.evaluation.work import Unit, perform
from posttrain.registry import ConfigError, Plugin, load_plugins

ALGORITHMS = ("sparse-opd", "grpo", "ppo", "dpo")
SMALL = {"l1": {}, "l2": {"dataset.train_examples": 32, "dataset.validation_examples": 8, "problems_per_step": 4}}
ELSEWHERE = torch.Generator().manual_seed(11).get_state()
SHORT = {"steps": 8, "eval_steps": 4, "tune": None, "seeds": "3"}


@pytest.fixture(autouse=True)
def _pinned():
    before, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    pin()
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(deterministic)


def config(algorithm: str, tier: str = "l1", **more):
    return settings.load(algorithm, tier, overrides={**SHORT, **SMALL[tier], **more})


def experiment(algorithm: str, **more) -> Experiment:
    return solo(config(algorithm, **more), None, [])


def trained(trainer, until: int | None = None):
    """The trainer after `until` steps, or at its end."""
    if until is not None:

        def report(row):
            if trainer.completed == until:
                raise stopping.Stopped

        trainer.report = report
        with pytest.raises(stopping.Stopped):
            trainer.run()
    else:
        trainer.report = lambda row: None
        trainer.run()
    return trainer


def everything(trainer) -> dict:
    """The whole state, without what a clock says."""
    return {key: value for key, value in trainer.state_dict().items() if key != "phases"}


def equal(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and torch.equal(torch.signbit(a.double()), torch.signbit(b.double()))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return repr(a) == repr(b)


def halves(folder: Path, made, half: int, spoil=lambda state: state):
    """Half the steps, through a checkpoint on disk and a trainer made anew, to the end."""
    checkpoints = Checkpoints(folder, {})
    checkpoints.save(half, trained(made(), half).state_dict())
    torch.rand(7)  # another process would not stand where this one does
    resumed = made()
    resumed.load_state_dict(spoil(checkpoints.load()[0]))
    return trained(resumed)


@pytest.mark.parametrize("tier", ["l1", "l2"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_two_halves_equal_the_whole_bit_for_bit(algorithm, tier, tmp_path):
    chosen = config(algorithm, tier)

    def made():
        return assemble(chosen, 3, folder=tmp_path / "store")

    assert equal(everything(halves(tmp_path, made, 4)), everything(trained(made())))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_twenty_and_twenty_updates_of_a_language_model_equal_forty(algorithm, tmp_path):
    chosen = config(algorithm, "l2", steps=40, eval_steps=10)

    def made():
        return assemble(chosen, 3, folder=tmp_path / "store")

    assert equal(everything(halves(tmp_path, made, 20)), everything(trained(made())))


@pytest.mark.parametrize("algorithm", [a for a in settings.registry.algorithms.names() if a not in ALGORITHMS])
def test_every_other_algorithm_goes_on_bit_for_bit_too(algorithm, tmp_path):
    chosen = settings.load(algorithm, "l1", overrides=SHORT)

    def made(store="store"):
        return assemble(chosen, 3, folder=tmp_path / store)

    assert equal(everything(halves(tmp_path, made, 4)), everything(trained(made("a store of its own"))))


def test_a_snapshot_that_was_taken_on_the_way_is_there_again(tmp_path):
    chosen = config("sparse-opd", **{"teacher.refresh_every": 3})

    def made():
        return assemble(chosen, 3)

    whole = trained(made())
    assert whole.teacher.events().rollout_policy_refreshes == 2
    assert equal(everything(halves(tmp_path, made, 4)), everything(whole))


def test_dropout_of_adapters_goes_on_where_it_was(tmp_path):
    """BR-19: dropout draws from torch's global stream, which another process has not drawn from."""
    chosen = config("grpo", "l2", **{"policy.lora.rank": 2, "policy.lora.dropout": 0.3})

    def made():
        return assemble(chosen, 3)

    whole = everything(trained(made()))
    assert equal(everything(halves(tmp_path, made, 4)), whole)
    # The control: what another process would have drawn is not the same.
    assert not equal(everything(halves(tmp_path, made, 4, drawn_elsewhere)), whole)


def drawn_elsewhere(state):
    return {**state, "own": [{**own, "torch_stream": ELSEWHERE} for own in state["own"]]}


def without_moments(state):
    return {**state, "optimizer": [{} for _ in state["optimizer"]]}


def without_streams(state):
    fresh = np.random.default_rng(3).bit_generator.state
    return {**state, "stream": fresh}


@pytest.mark.parametrize("spoil", [without_moments, without_streams])
def test_a_state_without_moments_or_without_streams_is_noticed(spoil, tmp_path):
    """The negative controls: where they passed, the comparison above would compare nothing."""
    chosen = config("grpo")

    def made():
        return assemble(chosen, 3)

    assert not equal(everything(halves(tmp_path, made, 4, spoil)), everything(trained(made())))


def test_adam_goes_on_with_its_moments():
    """BR-19: rate 0.1, gradients 1, -1, 1, -1, stopped after two: w = -0.123053; with lost moments -0.189474."""
    for moments_kept, expected in ((True, -0.123053), (False, -0.189474)):
        weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.0)
        for i, gradient in enumerate((1.0, -1.0, 1.0, -1.0)):
            if i == 2 and not moments_kept:
                optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.0)
            weight.grad = torch.tensor(gradient, dtype=torch.float64)
            optimizer.step()
        assert abs(float(weight.detach()) - expected) < 1e-6
    # What `state_dict` of the trainer keeps of an optimizer is all it holds.
    trainer = trained(assemble(config("grpo", optim="adamw_torch"), 3), 2)
    for parameter, saved in zip(trainer.parameters, trainer.state_dict()["optimizer"], strict=True):
        assert saved.keys() == trainer.optimizer.state[parameter].keys() == {"step", "exp_avg", "exp_avg_sq"}


# -- whole runs, as a person starts them ----------------------------------------------------------------------


def run_in_child(made: Experiment, folder: Path, ready=None) -> int:
    """The run in a process of its own; gives its pid."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if ready is not None:
            ready()
        conduct(made, folder, resume=True, save_steps=2)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)  # also where no room is left to print in: this process must not go on with the tests


def code_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def left_behind(folder: Path) -> dict[str, bytes]:
    """Everything that must not depend on how often a run was killed."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("execution.json", ".lock")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_at_every_file_operation_of_a_run_ends_in_the_same_bytes(stride, tmp_path):
    made = experiment("sparse-opd", seeds="3-4", steps=4, eval_steps=2)
    conduct(made, tmp_path / "whole", save_steps=2)
    expected = left_behind(tmp_path / "whole")
    folder = tmp_path / "run"
    for k in itertools.count(1, stride):
        shutil.rmtree(folder, ignore_errors=True)
        code = code_of(run_in_child(made, folder, lambda k=k: ends_at(k)))
        if code == 0:
            break
        assert code == 137
        assert code_of(run_in_child(made, folder)) == 0
        assert left_behind(folder) == expected, f"killed before file operation {k}"
    assert k > 100


def ends_at(k: int) -> None:
    """Ends this process before its k-th file operation."""
    count = 0
    for name in ("open", "write", "fsync", "replace", "unlink", "mkdir", "rmdir"):
        real = getattr(os, name)

        def operation(*args, real=real, **kwargs):
            nonlocal count
            count += 1
            if count == k:
                os._exit(137)
            return real(*args, **kwargs)

        setattr(os, name, operation)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_kills_at_random_moments_end_in_the_same_bytes(algorithm, tmp_path):
    made = experiment(algorithm, seeds="3-4", steps=20, eval_steps=5)
    began = time.monotonic()
    conduct(made, tmp_path / "whole", save_steps=2)
    usual = time.monotonic() - began
    expected, folder = left_behind(tmp_path / "whole"), tmp_path / "run"
    moments = np.random.default_rng(len(algorithm))
    kills = 0
    for _ in range(40):
        child = run_in_child(made, folder)
        time.sleep(usual * float(moments.uniform(0.1, 0.9)))
        os.kill(child, signal.SIGKILL)
        code = code_of(child)
        if code == 0:
            break
        kills += 1
        if kills == 6:
            assert code_of(run_in_child(made, folder)) == 0
            break
    assert left_behind(folder) == expected
    record = read(folder / "execution.json")["execution"]
    assert record.get("kill_count", 0) == len(record.get("resumed_from", [])) <= kills


def test_sigterm_saves_after_the_current_update_and_the_run_goes_on(tmp_path):
    made = experiment("grpo", steps=20)
    conduct(made, tmp_path / "whole")
    seen = []

    def step(row):
        seen.append(row["step"])
        if len(seen) == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(stopping.Stopped, match=r"Go on with --output .* --resume auto"):
        conduct(made, tmp_path / "run", watch=Watch(step=step))
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    assert not (tmp_path / "run" / "execution.json").exists()
    again = []
    conduct(made, tmp_path / "run", watch=Watch(step=lambda row: again.append(row["step"])), resume=True)
    assert again == list(range(8, 21))
    assert left_behind(tmp_path / "run") == left_behind(tmp_path / "whole")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert not stopping.requested()


@pytest.mark.parametrize("changed", ["package", "plugin", None])
def test_a_run_ended_by_other_code_than_began_it_says_so_and_is_not_verified(changed, tmp_path, monkeypatch, capsys):
    """No rerun of one code could tell which of its updates were whose."""
    made, folder = experiment("grpo", steps=8), tmp_path / "run"

    def plugins(content):
        return [Plugin("mine.py", "sha256:" + content * 64)]

    def stop(row):
        if row["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(stopping.Stopped):
        conduct(made, folder, watch=Watch(step=stop), plugins=plugins("0"))
    assert "the code has changed" not in capsys.readouterr().err
    if changed == "package":
        monkeypatch.setattr(provenance, "code_digest", lambda root: "sha256:" + "1" * 64)
    conduct(made, folder, resume=True, plugins=plugins("2" if changed == "plugin" else "0"))
    assert ("the code has changed" in capsys.readouterr().err) == bool(changed)
    report = verify(folder)
    assert report.exit_code == (3 if changed else 0)
    assert any("begun by other code" in reason for reason in report.unverifiable) == bool(changed)


def spread(made: Experiment, folder: Path) -> int:
    """The run over two processes, in a process of its own; the first checkpoint says that both are at work."""
    child = os.fork()
    if child:
        while not list(folder.rglob("step-*.json")):
            time.sleep(0.01)
        return child
    try:
        os.setpgid(0, 0)
        conduct(made, folder, jobs=2, save_steps=1)
    except stopping.Stopped:
        os._exit(stopping.EXIT_CODE)
    except BaseException:
        os._exit(1)
    os._exit(0)


def processes_of(group: int) -> list[int]:
    """Processes of a group that are still alive."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(pgrp) == group and state not in "ZX":
            found.append(int(path.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_processes_that_share_the_seeds_end_with_the_one_that_started_them(number, tmp_path):
    """Asked to stop, they save; where their parent is killed, nobody goes on writing into the folder."""
    made = experiment("grpo", seeds="3-4", steps=400, eval_steps=400)
    folder = tmp_path / "run"
    child = spread(made, folder)
    os.kill(child, number)
    assert code_of(child) == (stopping.EXIT_CODE if number == signal.SIGTERM else -signal.SIGKILL)
    deadline = time.monotonic() + 20
    while processes_of(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(child) == []
    conduct(made, folder, resume=True)
    conduct(made, tmp_path / "whole")
    assert left_behind(folder) == left_behind(tmp_path / "whole")


def test_a_complete_run_is_not_run_again(tmp_path):
    made = experiment("grpo")
    first = conduct(made, tmp_path / "run", resume=True)
    again = conduct(made, tmp_path / "run", resume=True, watch=Watch(step=lambda row: pytest.fail("trained again")))
    assert again == first


def unit_of(made: Experiment, folder: Path) -> Unit:
    arm = made.main
    return Unit(arm.name, arm.config.method, arm.config.resolved, arm.config.seeds[0], folder, save_steps=2)


def test_a_finished_seed_is_taken_as_it_is_unless_its_record_is_flipped(tmp_path, capsys):
    unit = unit_of(experiment("grpo"), tmp_path)
    done = perform(unit)
    assert perform(unit, lambda row: pytest.fail("trained again")) == done
    record = saving.place_of(unit) / saving.FINISHED
    flipped = bytearray(record.read_bytes())
    flipped[100] ^= 1
    record.write_bytes(flipped)
    steps = []
    again = perform(unit, lambda row: steps.append(row["step"]))
    assert (again.run, again.metrics, again.samples) == (done.run, done.metrics, done.samples)
    assert steps == []  # the last checkpoint was that of the end
    assert "finished.json: its digest does not agree" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_finished_seed_whose_model_is_not_what_was_saved_is_run_again(damage, tmp_path, capsys):
    """The artifact names the model's digest: another file under that name would be published with it."""
    chosen = config("sparse-opd", "l2", steps=2, eval_steps=2)
    unit = Unit("sparse-opd", "sparse-opd", chosen.resolved, 3, tmp_path, save_steps=2)
    done = perform(unit)
    [weights] = unit.model.rglob("*.safetensors")
    saved = weights.read_bytes()
    weights.write_bytes(saved[:-1] + bytes([saved[-1] ^ 1])) if damage == "flipped" else weights.unlink()
    again = perform(unit)
    assert "is not what was saved; the seed is run again" in capsys.readouterr().err
    assert weights.read_bytes() == saved
    assert again.run == done.run


def test_a_checkpoint_is_due_after_a_minute_or_twenty_times_what_the_last_one_took(tmp_path, monkeypatch):
    saver = saving.Saver(replace(unit_of(experiment("grpo"), tmp_path), save_steps=None), assemble(config("grpo"), 3))
    for cost, wait in ((0.0, 60.0), (2.0, 60.0), (30.0, 600.0)):
        saver.last, saver.cost = 1000.0, cost
        for passed, due in ((wait - 0.1, False), (wait, True)):
            monkeypatch.setattr(saving.time, "monotonic", lambda passed=passed: 1000.0 + passed)
            assert saver._due() == due


def test_a_torn_checkpoint_is_named_and_the_one_before_it_gone_on_from(tmp_path, capsys):
    unit = unit_of(experiment("grpo"), tmp_path)
    done = perform(unit)
    place = saving.place_of(unit)
    (place / saving.FINISHED).unlink()
    newest = place / "step-8.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    steps = []
    again = perform(unit, lambda row: steps.append(row["step"]))
    assert steps == [7, 8]
    assert (again.run, again.metrics, again.samples) == (done.run, done.metrics, done.samples)
    assert "step-8.json: its tensors do not have the digest" in capsys.readouterr().err


def test_only_the_run_that_lies_there_is_gone_on_with(tmp_path):
    folder = tmp_path / "run"
    conduct(experiment("grpo"), folder)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    (folder / "execution.json").unlink()
    before = left_behind(folder)
    with pytest.raises(ConfigError, match=r"of another run: -learning_rate: .*; \+learning_rate: 0.5"):
        conduct(experiment("grpo", learning_rate=0.5), folder, resume=True)
    with pytest.raises(ConfigError, match="go on with what lies in it by --resume auto"):
        conduct(experiment("grpo"), folder)
    with pytest.raises(ConfigError, match="which run"):
        conduct(experiment("grpo"), None, resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="holds no run"):
        conduct(experiment("grpo"), tmp_path / "other", resume=True)
    assert left_behind(folder) == before


def test_a_full_disk_ends_the_run_with_an_error_and_costs_nothing(tmp_path):
    """BR-33 (c): no file may grow beyond what a checkpoint needs; with room again, the run ends in the same bytes."""
    made = experiment("grpo", steps=12, **{"policy": {"name": "factored"}})
    conduct(made, tmp_path / "whole", save_steps=2)
    folder = tmp_path / "run"

    def little_room():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500))

    assert code_of(run_in_child(made, folder, little_room)) == 1
    assert not (folder / "artifact.json").exists()
    assert not [path for path in folder.rglob("*") if path.name.endswith(".writing")]
    assert code_of(run_in_child(made, folder)) == 0
    assert left_behind(folder) == left_behind(tmp_path / "whole")


def test_a_folder_has_one_writer_at_a_time(tmp_path):
    """Eight processes do the same run: one does it, seven are told who does; then all find it complete."""
    made, folder = experiment("grpo", steps=60), tmp_path / "run"
    conduct(made, tmp_path / "whole")
    codes = [code_of(child) for child in [run_in_child(made, folder) for _ in range(8)]]
    assert 0 in codes
    assert set(codes) <= {0, 1}
    assert left_behind(folder) == left_behind(tmp_path / "whole")
    assert [code_of(run_in_child(made, folder)) for _ in range(2)] == [0, 0]


def test_a_signal_that_comes_while_the_request_is_looked_at_does_not_wait_for_itself():
    """The handler may interrupt `is_set`, which holds the lock that `set` takes."""
    event = multiprocessing.get_context("spawn").Event()
    stopping.share(event)
    try:
        with event._cond:
            stopping.request()
            assert stopping._asked == [True]
        deadline = time.monotonic() + 10
        while not event.is_set() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert event.is_set()
    finally:
        stopping._asked[0] = False
        stopping._shared.clear()


def test_an_error_in_one_process_gives_the_lock_back_when_no_other_writes_any_more(tmp_path):
    """Seed 4 fails at once; seed 3 has saved its state and ended before anybody else may begin in the folder."""
    (tmp_path / "mine.py").write_text("def score(completion, id):\n    return 1 / 0 if id.startswith('4/') else 1.0\n")
    made = experiment("grpo", seeds="3-4", steps=400, eval_steps=400)
    source = f"{tmp_path / 'mine.py'}:score"
    config = vary(made.main.config, {"reward": {"name": "function", "source": source}})
    broken = replace(made, arms=(replace(made.main, config=config),))
    plugins = load_plugins([str(tmp_path / "mine.py")])
    with pytest.raises(Exception, match=r"ZeroDivisionError"):
        conduct(broken, tmp_path / "run", jobs=2, save_steps=1, plugins=plugins)
    assert multiprocessing.active_children() == []
    assert not (tmp_path / "run" / ".lock").exists()
