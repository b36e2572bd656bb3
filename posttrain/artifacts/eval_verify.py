"""Verification of an evaluation (`eval_version` 1), levels V0 to V2, by the same reports as any other artifact.

Every number is worked out again from `items.jsonl` beside the artifact, a comparison also from the items of the other
evaluation, which lies in `against/`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.artifacts import audit
from posttrain.artifacts import verify as levels
from posttrain.artifacts.comparisons import close
from posttrain.artifacts.digests import file_digest
from posttrain.artifacts.documents import DocumentError, load, parse
from posttrain.artifacts.evaluations import Item, compared, decided, measured, overall, paired, read_items
from posttrain.artifacts.evidence import Document, Evidence, gather, read_document
from posttrain.artifacts.manifest import ManifestError, inside
from posttrain.artifacts.report import Check, Level, Report, settle

AGAINST = "against"  # folder of the other evaluation, beside the artifact
ITEMS = "items.jsonl"
METHOD = "eval"  # what the execution record calls what ran
BEYOND = ("V3: the model was not asked again, so answers made up with care would pass", levels.BEYOND[1])


@dataclass(frozen=True)
class Answers:
    """An evaluation's artifact with its items by seed, as far as they can be read."""

    artifact: Document
    items: Mapping[int, Sequence[Item]] | None
    problems: tuple[str, ...]  # what is wrong with the file of items

    @property
    def models(self) -> dict[int, Mapping[str, Any]]:
        """The model of each seed."""
        return {entry["seed"]: entry["model"] for entry in self.artifact.value["evaluations"]}


def is_eval(file: Path) -> bool:
    """Whether a file is one JSON object that says it is an evaluation."""
    try:
        value = parse(load(file), file.name)
    except DocumentError:
        return False
    return isinstance(value, dict) and "eval_version" in value


def read_answers(artifact: Document) -> Answers:
    """The artifact with the items beside it."""
    recorded = artifact.value["items"]
    try:
        path = inside(artifact.path.parent, ITEMS)
    except ManifestError as error:
        return Answers(artifact, None, (str(error),))
    if not path.is_file():
        return Answers(artifact, None, (f"{ITEMS} is missing beside the artifact",))
    problems = []
    if (file_digest(path), path.stat().st_size) != (recorded["sha256"], recorded["bytes"]):
        problems.append(f"{ITEMS} does not have the recorded digest and size")
    try:
        items = list(read_items(path))
    except DocumentError as error:
        return Answers(artifact, None, (*problems, str(error)))
    if len(items) != recorded["n"]:
        problems.append(f"{ITEMS} holds {len(items)} items, recorded are {recorded['n']}")
    by_seed: dict[int, list[Item]] = {}
    for item in items:
        by_seed.setdefault(item.seed, []).append(item)
    if list(by_seed) != artifact.value["seeds"]:
        problems.append(f"{ITEMS} holds the seeds {list(by_seed)}, the artifact {artifact.value['seeds']}")
    return Answers(artifact, by_seed, tuple(problems))


def verify_eval(file: Path, shown: Path, fingerprints: levels.Fingerprints | None, package: Path | None) -> Report:
    """Checks one evaluation; `shown` is the path that was asked for. See `verify.verify`."""
    document, checks = read_document(file, "eval-v1", "artifact")
    if document is None:
        return Report(str(shown), checks, ("V1 and V2: the artifact cannot be used as it is", *BEYOND))
    answers, evidence = read_answers(document), gather(as_artifact(document))
    checks = (
        *checks,
        *evidence.checks,
        settle("items", "V0", answers.problems, "strict lines of the recorded number, digest and size"),
        *_recomputed(answers),
        *_digested(answers, evidence, fingerprints, package),
    )
    skipped = [f"{check.level} {check.name}: {check.message}" for check in checks if check.status == "skipped"]
    return Report(str(shown), checks, (*skipped, *BEYOND), evidence.unverifiable)


def as_artifact(document: Document) -> Document:
    """The document with the fields under which plan, execution and place are looked up elsewhere."""
    return replace(document, value={**document.value, "method": METHOD, "runs": []})


# -- V1 -------------------------------------------------------------------------------------------------------


def _recomputed(answers: Answers) -> Iterable[Check]:
    artifact = answers.artifact.value
    yield settle("seeds", "V1", _seed_problems(artifact), "one evaluation a seed, in order")
    if answers.items is None:
        yield Check("results", "V1", "failed", f"cannot be worked out again: {'; '.join(answers.problems)}")
        return
    yield settle("results", "V1", _result_problems(artifact, answers.items), "every number follows from the items")
    if "comparison" in artifact:
        yield _compared(answers)


def _seed_problems(artifact: Mapping[str, Any]) -> Iterable[str]:
    seeds, settings = artifact["seeds"], artifact["settings"]
    if [entry["seed"] for entry in artifact["evaluations"]] != seeds:
        yield "the evaluations are not those of /seeds"
    if bool(settings["k"]) != bool(settings["samples"]) or max(settings["k"], default=0) > settings["samples"]:
        yield f"k = {settings['k']} cannot be worked out from {settings['samples']} samples"
    for entry in artifact.get("comparison", []):
        if entry["seed"] not in seeds:
            yield f"a comparison is of seed {entry['seed']}, which was not evaluated"
    models = [entry["model"] for entry in artifact["evaluations"]]
    if any(model["name"] != artifact["name"] for model in models):
        yield f"not all models are called {artifact['name']!r}"


def _result_problems(artifact: Mapping[str, Any], items: Mapping[int, Sequence[Item]]) -> Iterable[str]:
    settings = artifact["settings"]
    for i, entry in enumerate(artifact["evaluations"]):
        recorded = {key: value for key, value in entry.items() if key not in ("seed", "model")}
        try:
            found = measured(items.get(entry["seed"], ()), settings["k"])
        except ValueError as error:
            yield f"/evaluations/{i}: {error}"
            continue
        yield from _differences(recorded, found, f"/evaluations/{i}")
        if found.get("samples", {"per_item": 0})["per_item"] != settings["samples"]:
            yield f"/settings/samples is {settings['samples']}, the items of seed {entry['seed']} hold others"
    yield from _differences(artifact.get("overall"), overall(artifact["evaluations"]), "/overall")


def _compared(answers: Answers) -> Check:
    """The comparison worked out again from both files of items."""
    artifact, rival = answers.artifact.value, _rival(answers.artifact)
    if isinstance(rival, Check):
        return rival
    assert answers.items is not None
    if rival.problems or rival.items is None:
        return Check("comparison", "V1", "failed", f"{AGAINST}/: {'; '.join(rival.problems)}")
    problems: list[str] = []
    found = []
    for i, entry in enumerate(artifact["comparison"]):
        seed = entry["seed"]
        try:
            pairs = paired(answers.items.get(seed, ()), rival.items.get(seed, ()))
            again = compared(pairs)
        except (ValueError, ZeroDivisionError) as error:
            problems.append(f"/comparison/{i}: {error}")
            continue
        model = rival.models.get(seed, {})
        against = {"name": model.get("name"), "weights": model.get("weights"), "artifact_sha256": rival.artifact.digest}
        others = other_settings(artifact["settings"], rival.artifact.value["settings"])
        found.append({"seed": seed, "against": against, "other_settings": others, **again})
    if not problems:
        if [entry["seed"] for entry in found] != artifact["seeds"]:
            problems.append(f"the comparison is of other seeds than {artifact['seeds']}")
        again = decided(found, artifact["evaluation_protocol"]["alpha"])
        problems += _differences(artifact["comparison"], again, "/comparison")
        if artifact["provenance"]["dataset_fingerprint"] != rival.artifact.value["provenance"]["dataset_fingerprint"]:
            problems.append("the other evaluation is on other data")
    return settle("comparison", "V1", problems, f"{len(found)} worked out again, item by item")


def other_settings(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Keys under which two evaluations were made differently."""
    found = [key for key in ("samples", "reward") if ours[key] != theirs[key]]
    keys = [*ours["policy"], *(key for key in theirs["policy"] if key not in ours["policy"])]
    return found + [f"policy.{key}" for key in keys if ours["policy"].get(key) != theirs["policy"].get(key)]


def _rival(artifact: Document) -> Answers | Check:
    """The other evaluation, or the check that says why it cannot be used."""
    try:
        path = inside(artifact.path.parent, f"{AGAINST}/artifact.json")
    except ManifestError as error:
        return Check("comparison", "V1", "failed", str(error))
    if not path.is_file():
        return Check("comparison", "V1", "skipped", f"{AGAINST}/artifact.json is not at hand")
    document, checks = read_document(path, "eval-v1", AGAINST)
    if document is None:
        return Check("comparison", "V1", "failed", "; ".join(c.message for c in checks if c.status == "failed"))
    digests = {entry["against"]["artifact_sha256"] for entry in artifact.value["comparison"]}
    if digests != {document.digest}:
        return Check("comparison", "V1", "failed", f"{AGAINST}/artifact.json is not the recorded one")
    return read_answers(document)


def _differences(recorded: Any, found: Any, place: str) -> Iterable[str]:
    """Places where a recorded value is not the one that was worked out again."""
    if isinstance(recorded, Mapping) and isinstance(found, Mapping) and recorded.keys() == found.keys():
        for key in recorded:
            yield from _differences(recorded[key], found[key], f"{place}/{key}")
    elif isinstance(recorded, list) and isinstance(found, list) and len(recorded) == len(found):
        for i, (a, b) in enumerate(zip(recorded, found, strict=True)):
            yield from _differences(a, b, f"{place}/{i}")
    elif not close(recorded, found):
        yield f"{place} is {recorded}, the items give {found}"


# -- V2 -------------------------------------------------------------------------------------------------------


def _digested(
    answers: Answers, evidence: Evidence, fingerprints: levels.Fingerprints | None, package: Path | None
) -> Iterable[Check]:
    level: Level = "V2"
    yield settle("content digest", level, audit.content_problems(answers.artifact.value), "SHA-256 of the content")
    if evidence.plan is None:
        yield Check("plan", level, "skipped", "there is no plan to compare with")
    else:
        plan = evidence.plan.value["plan"]
        problems = audit.plan_digest_problems(evidence, evidence.plan)
        yield settle("plan digest", level, problems, "stamped in the artifact")
        yield settle("plan", level, _plan_problems(evidence.artifact.value, plan), "the artifact is what was planned")
        yield levels._dataset(plan["dataset"], fingerprints)
    yield from levels._executed(evidence, package)


def _plan_problems(artifact: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterable[str]:
    yield from audit.plan_agreement_problems(artifact, plan)
    planned, dataset = plan["common_config"], plan["dataset"]
    for key, found in (("settings", artifact["settings"]), ("split", artifact["benchmark"]["split"])):
        if planned.get(key) != found:
            yield f"{key}: found {found}, the plan says {planned.get(key)}"
    if artifact["benchmark"]["dataset"] != dataset["id"]:
        yield f"/benchmark/dataset is {artifact['benchmark']['dataset']!r}, the plan says {dataset['id']!r}"
    sizes: dict[str, int] = {}
    for split in dataset["splits"]:
        seed = split["name"].partition("/")[0]
        sizes[seed] = sizes.get(seed, 0) + split["n"]
    arms = planned.get("models", {})
    for entry in artifact["evaluations"]:
        if entry["n_items"] != sizes.get(str(entry["seed"])):
            yield f"seed {entry['seed']} has {entry['n_items']} items, the plan {sizes.get(str(entry['seed']))}"
        if {"seed": entry["seed"], **entry["model"]} not in arms.get(artifact["name"], []):
            yield f"the model of seed {entry['seed']} is not the one that was planned"
