"""Conducts an evaluation: everything that can be wrong first, then the plan, the answers, the artifact, the record."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from posttrain.artifacts import manifest
from posttrain.artifacts.digests import dataset_fingerprint
from posttrain.artifacts.documents import dumps, write_atomically
from posttrain.artifacts.eval_verify import AGAINST, ITEMS, Answers, other_settings, read_answers, verify_eval
from posttrain.artifacts.evaluations import Completion, Item, compared, decided, paired
from posttrain.artifacts.evidence import read_document
from posttrain.artifacts.lock import NAME as LOCK
from posttrain.artifacts.lock import exclusive
from posttrain.artifacts.report import FAILED
from posttrain.assembly import pin, refuse_chosen_answers, refuse_without_answers
from posttrain.batch import Problem
from posttrain.evaluation import benchmark_records as records
from posttrain.evaluation.answering import Cost, answer, require_gradable
from posttrain.evaluation.benchmark import Benchmark, problems_of, prompt_digest
from posttrain.evaluation.benchmark_records import Model
from posttrain.evaluation.checkpoints import Subject
from posttrain.evaluation.disk import disk_is_full, full_disk
from posttrain.policies.causal_lm import CausalLMPolicy
from posttrain.policies.lm_loading import Lora
from posttrain.registry import ConfigError, Plugin
from posttrain.settings import REPEATABLE, TIERS
from posttrain.tiny import located

PARTS = ("config.yaml", "plan.json", ITEMS, "artifact.json", "execution.json")


@dataclass(frozen=True)
class EvalWatch:
    """Who is told of progress: how many completions there will be, and completions and tokens as they are drawn."""

    start: Callable[[int], None] = lambda completions: None
    step: Callable[[int, int], None] = lambda completions, tokens: None


@dataclass(frozen=True)
class Evaluated:
    """A finished evaluation and where it lies."""

    folder: Path
    artifact: Mapping[str, Any]

    @property
    def path(self) -> Path:
        """The artifact's file."""
        return self.folder / "artifact.json"


def conduct(
    subject: Subject,
    benchmark: Benchmark,
    against: Subject | Path | None = None,
    output: Path | None = None,
    *,
    plugins: Sequence[Plugin] = (),
    watch: EvalWatch = EvalWatch(),
    argv: Sequence[str] = (),
) -> Evaluated:
    """Evaluates a subject, and another one or a finished evaluation beside it; ConfigError before any work."""
    if output is not None and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"--output: {output} is not an empty folder. Choose a new one, or remove it.")
    if isinstance(against, Subject):
        against = _apart(against.asked_with(subject.seeds), subject)
    if records.tier_of([subject, against] if isinstance(against, Subject) else [subject]) in REPEATABLE:
        pin()
    session = _Session(subject, benchmark, against, tuple(plugins), watch, tuple(argv))
    return session.run(output)


def _apart(rival: Subject, subject: Subject) -> Subject:
    """The rival under a name of its own."""
    return replace(rival, name=f"{rival.name} (2)") if rival.name == subject.name else rival


@dataclass
class _Session:
    subject: Subject
    benchmark: Benchmark
    against: Subject | Path | None
    plugins: tuple[Plugin, ...]
    watch: EvalWatch
    argv: tuple[str, ...]
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    loaded: tuple[str, CausalLMPolicy] | None = None  # the last model, since most evaluations are of one
    splits: dict[int, dict[str, tuple[Problem, ...]]] = field(default_factory=dict)
    problems: dict[int, list[Problem]] = field(default_factory=dict)

    def run(self, output: Path | None) -> Evaluated:
        self.splits = {seed: problems_of(self.benchmark, seed) for seed in self.subject.seeds}
        self.problems = {seed: [p for part in parts.values() for p in part] for seed, parts in self.splits.items()}
        resolved = self.benchmark.resolved
        if self.subject.run is None or self.subject.run.resolved["dataset"] != resolved["dataset"]:
            everything = [problem for some in self.problems.values() for problem in some]
            refuse_chosen_answers(self.benchmark.dataset, self.benchmark.reward, resolved["reward"], everything)
            name = (resolved["reward"] or {}).get("name", "exact")
            refuse_without_answers("reward", name, self.benchmark.reward, everything)
        require_gradable(self.benchmark.reward, next(iter(self.problems.values()))[0])
        whole = {name: part for parts in self.splits.values() for name, part in parts.items()}
        stored = self._stored(whole) if isinstance(self.against, Path) else None
        rivals = self._identified(self.against) if isinstance(self.against, Subject) else []
        models = self._identified(self.subject)
        plan = manifest.plan_document(records.plan(self.benchmark, whole, models, rivals or self._known(stored)))
        folder = output or self._default_folder()
        with exclusive(folder, plan["plan_sha256"]):
            if any(path.name != LOCK for path in folder.iterdir()):
                raise ConfigError(f"--output: {folder} is not empty any more: another evaluation ended there.")
            try:
                return self._measure(folder, plan, models, rivals, stored)
            except Exception as error:
                if not disk_is_full(error):
                    raise
                raise OSError(full_disk(folder, "Make room, remove the folder and evaluate again.")) from error

    def _measure(
        self, folder: Path, plan: dict[str, Any], models: list[Model], rivals: list[Model], stored: Answers | None
    ) -> Evaluated:
        self._begin(folder, self.subject, plan)
        if rivals:
            self._begin(folder / AGAINST, rivals[0].subject, plan)
        each = 1 + self.benchmark.samples
        self.watch.start(each * sum(map(len, self.problems.values())) * (2 if rivals else 1))
        if rivals:
            self._evaluate(folder / AGAINST, rivals, plan, None)
            stored = _read(folder / AGAINST / "artifact.json")
        elif stored is not None:
            _copy(stored.artifact.path.parent, folder / AGAINST)
        return Evaluated(folder, self._evaluate(folder, models, plan, stored))

    # -- before any work --------------------------------------------------------------------------------------

    def _stored(self, splits: records.Splits) -> Answers:
        """A finished evaluation that asked the same questions; its numbers are checked before they are used."""
        assert isinstance(self.against, Path)
        report = verify_eval(self.against, self.against, None, None)
        if report.exit_code == FAILED:
            wrong = next(check for check in report.checks if check.status == "failed")
            raise ConfigError(f"--against: {self.against} does not verify ({wrong.name}: {wrong.message})")
        missing = [name for name in PARTS if not self.against.with_name(name).is_file()]
        if missing:
            raise ConfigError(f"--against: {self.against.parent} is incomplete, it has no {missing[0]}")
        stored = _read(self.against)
        seeds = stored.artifact.value["seeds"]
        if set(self.subject.seeds) - set(seeds):
            raise ConfigError(f"--against: it is of seeds {seeds}, this one of {list(self.subject.seeds)}. See --seed.")
        if stored.artifact.value["settings"]["reward"] != self.benchmark.settings["reward"]:
            raise ConfigError("--against: its answers were judged by another reward. Evaluate both with the same one.")
        assert stored.items is not None
        for seed in self.subject.seeds:
            try:
                paired([_asked(seed, problem) for problem in self.problems[seed]], stored.items[seed])
            except ValueError as error:
                raise ConfigError(f"--against: {error}") from error
        drawn = dataset_fingerprint({name: [p.drawn for p in part] for name, part in splits.items()})
        if set(self.subject.seeds) != set(seeds) or drawn != stored.artifact.value["provenance"]["dataset_fingerprint"]:
            raise ConfigError(
                f"--against: {self.against} is on other data (seeds {seeds}, fingerprint "
                f"{stored.artifact.value['provenance']['dataset_fingerprint']}). Evaluate both on the same."
            )
        return stored

    def _identified(self, subject: Subject) -> list[Model]:
        """Every model loaded once and named by its digests; prompts that do not fit are found here."""
        found = []
        # Backwards, so that the one that is evaluated first is still there.
        for seed in reversed(subject.seeds):
            policy = self._policy(subject, seed)
            revision = getattr(policy.model.config, "_commit_hash", None)
            found.append(Model(subject, seed, dict(policy.identity()), revision))
        return found[::-1]

    def _policy(self, subject: Subject, seed: int) -> CausalLMPolicy:
        name = subject.models[seed]
        key = f"{name} {seed}"
        if self.loaded is None or self.loaded[0] != key:
            self.loaded = None  # before the next one is loaded
            config = replace(self.benchmark.policy, model=located(name), lora=Lora(), gradient_checkpointing=False)
            self.loaded = (key, config.build(self.problems[seed], {}, False).requires_grad_(False))
        return self.loaded[1]

    def _known(self, stored: Answers | None) -> list[Model]:
        """The models of a finished evaluation, for the plan."""
        if stored is None:
            return []
        found = []
        tier = next(
            short for short, name in TIERS.items() if name == stored.artifact.value["evaluation_protocol"]["tier"]
        )
        for seed, model in stored.models.items():
            subject = Subject(model["name"], tier, {seed: ""}, None, {seed: model["run"]} if "run" in model else {})
            keys = {"weights": "weights", "vocabulary": "tokenizer", "template": "template"}
            identity = {key: model[name].removeprefix("sha256:") for key, name in keys.items()}
            found.append(Model(subject, seed, identity, model.get("revision")))
        return found

    def _default_folder(self) -> Path:
        """A new folder under `runs/`; a counter keeps it new."""
        name = "".join(c if c.isalnum() or c in "._-" else "-" for c in self.subject.name)
        digest = self.benchmark.digest(*self.subject.models.values(), str(self.against))
        base, count = f"eval-{name}-{self.benchmark.dataset_name}-{digest}", 1
        while (Path("runs") / (base if count == 1 else f"{base}-{count}")).exists():
            count += 1
        return Path("runs") / (base if count == 1 else f"{base}-{count}")

    # -- the work ---------------------------------------------------------------------------------------------

    def _config(self, subject: Subject) -> dict[str, Any]:
        policy = {**self.benchmark.resolved["policy"], "model": next(iter(subject.models.values()))}
        if len(set(subject.models.values())) > 1:
            policy["model"] = [subject.models[seed] for seed in subject.seeds]
        return {**self.benchmark.resolved, "policy": policy}

    def _begin(self, folder: Path, subject: Subject, plan: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        yaml = OmegaConf.to_yaml(OmegaConf.create(self._config(subject)))
        write_atomically(folder / "config.yaml", yaml.encode())
        write_atomically(folder / "plan.json", dumps(plan))

    def _evaluate(
        self, folder: Path, models: Sequence[Model], plan: Mapping[str, Any], rival: Answers | None
    ) -> dict[str, Any]:
        """Answers, items, artifact, and last the record that says the evaluation is complete."""
        cost, subject, items = Cost(), models[0].subject, {}
        for model in models:
            policy, seed = self._policy(subject, model.seed), model.seed
            items[seed] = answer(policy, self.problems[seed], self.benchmark, seed, cost, self.watch.step)
        lines = b"".join(_line(item) for part in items.values() for item in part)
        comparison = [] if rival is None else self._compare(items, rival, plan["plan"]["alpha"])
        source = self.benchmark.dataset.build(subject.seeds[0]).source
        found = records.artifact(self.benchmark, models, items, lines, source, plan, comparison)
        write_atomically(folder / ITEMS, lines)
        write_atomically(folder / "artifact.json", dumps(found))
        execute = partial(records.execution, self.benchmark, self._config(subject), models, folder, cost)
        record = execute(self.started, datetime.now(UTC), self.plugins, self.argv)
        write_atomically(folder / "execution.json", dumps(manifest.execution_document(record)))
        return found

    def _compare(self, items: Mapping[int, Sequence[Item]], rival: Answers, alpha: float) -> list[dict[str, Any]]:
        """One entry a seed, paired by item id; p adjusted over all of them."""
        assert rival.items is not None
        artifact = rival.artifact.value
        entries = [
            {
                "seed": seed,
                "against": {
                    "name": artifact["name"],
                    "weights": rival.models[seed]["weights"],
                    "artifact_sha256": rival.artifact.digest,
                },
                "other_settings": other_settings(self.benchmark.settings, artifact["settings"]),
                **compared(paired(found, rival.items[seed])),
            }
            for seed, found in items.items()
        ]
        return decided(entries, alpha)


def _asked(seed: int, problem: Problem) -> Item:
    """A question that nobody has answered yet, for pairing alone."""
    return Item(seed, problem.id, prompt_digest(problem), "", Completion(None, 0, False))


def _read(path: Path) -> Answers:
    document, checks = read_document(path, "eval-v1", "artifact")
    if document is None:
        raise ConfigError(f"--against: {'; '.join(check.message for check in checks if check.status == 'failed')}")
    return read_answers(document)


def _copy(source: Path, target: Path) -> None:
    """The files of a finished evaluation, byte for byte: what the comparison is worked out from stays with it."""
    target.mkdir(parents=True)
    for name in PARTS:
        shutil.copyfile(source / name, target / name)


def _line(item: Item) -> bytes:
    return (json.dumps(item.as_json(), ensure_ascii=False, allow_nan=False) + "\n").encode()
