"""One seed of one arm as a unit of work, and how units are spread over ranks and processes.

At the tiers L0 to L2 ranks and processes share seeds, not rows: floating-point sums depend on how they are cut, and
the artifact must not. At L3 all ranks train one seed after the other together, each on its rows of every step.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain import stopping
from posttrain.evaluation import saving
from posttrain.ranks import Ranks
from posttrain.registry import digests, require_same
from posttrain.settings import REPEATABLE

if TYPE_CHECKING:
    from posttrain.trainer import Outcome

FIDELITY = {
    "l0": "mechanism reproduction on a candidate-policy model",
    "l1": "mechanism reproduction on a candidate-policy model",
    "l2": "post-training of a tiny causal language model pretrained by this package",
    "l3": "post-training of a named checkpoint",
}

KILLED = "One of the processes was killed, as the system does when memory runs out. Try fewer, with --jobs."


@dataclass(frozen=True)
class Unit:
    """Plain data, so that it can travel to another process."""

    arm: str
    algorithm: str
    config: Mapping[str, Any]  # resolved
    seed: int
    folder: Path  # where the arm's own files go
    study: str | None = None  # whose probes to measure
    plugins: tuple[str, ...] = ()
    keep: bool = True  # whether metrics and a trained language model are kept, which tuning has no use for
    save_steps: int | None = None  # updates between two checkpoints; None: a minute

    @property
    def model(self) -> Path:
        """Where a trained language model is saved."""
        return self.folder / "model" / f"seed-{self.seed}"


@dataclass(frozen=True)
class Done:
    """What a unit leaves behind: its part of the artifact, rows of metrics and samples, and what its phases cost."""

    run: dict[str, Any]
    metrics: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    phases: dict[str, dict[str, float]]  # seconds, tokens, peak_bytes -> phase -> number
    found: dict[str, int] = field(default_factory=dict)  # in a teacher's store, which other runs may have filled


def perform(unit: Unit, step: Callable[[Mapping[str, Any]], None] = lambda row: None, ranks: Ranks = Ranks()) -> Done:
    """Trains and measures one seed on `ranks` together, or takes up what an earlier process left of it.

    `step` is told of each update. Only the main rank writes; what it found counts.
    """
    found = ranks.alone("looking for a finished seed", lambda: saving.finished(unit))
    if found is not None:
        return found
    done = _perform(unit, step, ranks)
    return ranks.alone("keeping the finished seed", lambda: saving.finish(unit, done))


def _perform(unit: Unit, step: Callable[[Mapping[str, Any]], None], ranks: Ranks) -> Done:
    from posttrain import settings
    from posttrain.assembly import assemble, pin
    from posttrain.evaluation.study import Study, studies
    from posttrain.policies.causal_lm import CausalLMPolicy
    from posttrain.teachers.cached import CachedTeacher
    from posttrain.teachers.ledger import Ledger
    from posttrain.tracking import accuracy_of, judge

    config = settings.resolve(unit.config, unit.algorithm)
    if config.tier in REPEATABLE:
        pin()
    store = unit.folder / "teacher-cache" / f"seed-{unit.seed}"

    def built() -> Any:
        problems = config.dataset.build(unit.seed)
        return problems, assemble(config, unit.seed, problems=problems, folder=store, ranks=ranks)

    problems, trainer = ranks.each("putting the run together", built)
    trainer.phases.memory = isinstance(trainer.policy, CausalLMPolicy)  # others are too quick to look at the kernel
    saver = saving.Saver(unit, trainer)
    saver.resume()

    def report(row: dict[str, Any]) -> None:
        step(row)
        saver.after(row)

    trainer.report = report
    try:
        outcome = trainer.run()
    finally:
        saver.trackers.close()
    before, after = outcome.baseline["accuracy"], outcome.final["accuracy"]
    run = {
        "algorithm": unit.arm,
        "dataset": config.data,
        "baseline": outcome.baseline,
        "final": outcome.final,
        "training": {
            "steps": config.steps,
            "learning_rate": config.learning_rate,
            "group_size": config.group_size,
            "train_examples": len(problems.train),
            "validation_examples": len(problems.validation),
            "data_source": problems.source,
            **_counters(outcome),
            "last_diagnostics": outcome.last_diagnostics,
            "fidelity": FIDELITY[config.tier],
        },
        "history": outcome.history,
        "relative_accuracy": (after - before) / before if before else None,
        "seed": unit.seed,
        "status": "completed",
    }
    if isinstance(trainer.reference, CausalLMPolicy):
        run["model"] = trainer.reference.description()
    if unit.keep and isinstance(trainer.policy, CausalLMPolicy):
        ranks.alone("saving the model", lambda: trainer.policy.save(unit.model))
    teacher = trainer.teacher.distribution() if trainer.teacher else None
    if teacher is not None:
        answers = judge(config.evaluation.accuracy, problems.validation, teacher.greedy(problems.validation))
        known = accuracy_of(answers)
        if not math.isnan(known):
            run["measures"] = {"teacher accuracy": known}
    found: Study | None = studies.get(unit.study) if unit.study else None
    if found is not None and (not found.probed or unit.arm in arm_names(unit.study or "", found.probed)):

        def fresh() -> Any:
            return assemble(config, unit.seed, problems=problems, folder=store)

        measured = {name: float(probe(fresh, trainer)) for name, probe in found.probes.items()}
        run["measures"] = run.get("measures", {}) | measured
    ledger = trainer.teacher.ledger if isinstance(trainer.teacher, CachedTeacher) else None
    found_there = {} if ledger is None else asdict(Ledger.over(ranks.gather(ledger)).found)
    answers = [*trainer.answers, *trainer.samples()]
    return Done(run, saver.metrics, answers, outcome.phases.state_dict(), found_there)


def _counters(outcome: Outcome) -> dict[str, int]:
    """What was counted, in the order of the recorded artifacts."""
    counted = asdict(outcome.events)
    later = {name: counted.pop(name) for name in ("rollout_policy_refreshes", "corrupt_cache_entries")}
    return {**counted, "critic_updates": outcome.critic_updates, **later, "refills": outcome.refills}


def arm_names(algorithm: str, short: Sequence[str]) -> list[str]:
    """Arms of a study by their full names; `main` is the algorithm itself."""
    return [algorithm if name == "main" else f"{algorithm}.{name}" for name in short]


def perform_all(
    units: Sequence[Unit],
    ranks: Ranks,
    jobs: int,
    progress: Callable[[int], None],
    step: Callable[[Mapping[str, Any]], None],
) -> list[Done]:
    """All units in the given order, on every rank. `progress(i)` is told of each finished unit of this process."""
    if ranks.size > 1 and not any(unit.config["tier"] in REPEATABLE for unit in units):
        return list(_jointly(units, ranks, progress, step))
    mine = [(i, unit) for i, unit in enumerate(units) if i % ranks.size == ranks.rank]
    found: dict[int, Done] = {}
    with _rank_named(ranks):
        for i, done in _spread(mine, jobs) if jobs > 1 and len(mine) > 1 else _alone(mine, step):
            found[i] = done
            progress(i)
    gathered = {i: done for part in ranks.gather(found) for i, done in part.items()}
    return [gathered[i] for i in range(len(units))]


def _jointly(
    units: Sequence[Unit],
    ranks: Ranks,
    progress: Callable[[int], None],
    step: Callable[[Mapping[str, Any]], None],
) -> Iterator[Done]:
    """Each unit by all ranks together."""
    for i, unit in enumerate(units):
        yield perform(unit, step, ranks)
        progress(i)


def _alone(units: Sequence[tuple[int, Unit]], step: Callable[[Mapping[str, Any]], None]) -> Any:
    for i, unit in units:
        yield i, perform(unit, step)


@contextmanager
def _rank_named(ranks: Ranks) -> Iterator[None]:
    """A reward that fails on one of several ranks says on which."""
    from posttrain.rewards.base import RewardError

    try:
        yield
    except RewardError as error:
        if ranks.size == 1:
            raise
        raise RewardError(f"rank {ranks.rank}: {error}") from error


def _spread(units: Sequence[tuple[int, Unit]], jobs: int) -> Any:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    stopping.share(stop)
    given = (units[0][1].plugins, stop, digests(units[0][1].plugins))
    with ProcessPoolExecutor(min(jobs, len(units)), context, initializer=_prepare, initargs=given) as pool:
        with deaf_to_interrupts():
            futures = {pool.submit(_perform_here, unit): i for i, unit in units}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise BrokenProcessPool(f"{KILLED} What is finished is kept: --output DIR --resume auto.") from error
        except BaseException:
            # The others save their state and end, whatever it was: the folder's lock is about to be given back.
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Processes started in here do not hear Ctrl-C: this one alone answers it, and takes them down."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_expected: dict[str, str] = {}  # digests of the plugins as the run's first process imported them


def _perform_here(unit: Unit) -> Done:
    require_same(_expected)
    return perform(unit)


def _prepare(plugins: tuple[str, ...], stop: Any, expected: dict[str, str]) -> None:
    from posttrain.assembly import pin
    from posttrain.registry import load_plugins

    stopping.end_with_parent()
    stopping.share(stop)
    signal.signal(signal.SIGTERM, stopping.request)
    pin()
    load_plugins(plugins)
    _expected.update(expected)
