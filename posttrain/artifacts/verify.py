"""Verification of one artifact without running anything: parse and schema, recomputation, digests (levels V0 to V2).

Nothing that an artifact names is imported or executed; a file it names is only read, and only inside its own folder.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from posttrain.artifacts import audit, recompute
from posttrain.artifacts.comparisons import close, comparison_problems
from posttrain.artifacts.digests import code_digest
from posttrain.artifacts.documents import shown
from posttrain.artifacts.evidence import HISTORICAL, SENTINEL, Evidence, gather, read_document
from posttrain.artifacts.manifest import PART, published_root
from posttrain.artifacts.report import Check, Level, Report, render, settle

__all__ = ["HISTORICAL", "SENTINEL", "Check", "Report", "render", "verify"]

Fingerprints = Callable[[dict[str, Any]], str | None]

BEYOND = (
    "V3: the training was not run again, so numbers made up with care would pass",
    "V4: other artifacts of the family, reused seeds and generated pages were not looked at",
)


Claims = Callable[[Mapping[str, Any], Mapping[str, Mapping[str, Any]]], list[dict[str, Any]] | None]


def verify(
    path: Path | str,
    *,
    fingerprints: Fingerprints | None = None,
    package_root: Path | str | None = None,
    claims: Claims | None = None,
) -> Report:
    """Checks an artifact file, or the run folder that holds one.

    `fingerprints` draws the data set of a plan's `dataset` block again and gives its fingerprint, None if it cannot;
    `package_root` is the folder of the package whose code is compared with the recorded one; `claims` decides a study's
    claims again from the artifact and its arms by name, None if it cannot. Raises OSError if a file that is there
    cannot be read.
    """
    path = Path(path)
    file = path / "artifact.json" if path.is_dir() else path
    if not file.exists():
        return Report(str(path), (), BEYOND, (f"there is no {file.name}: the run is incomplete or lies elsewhere",))
    from posttrain.artifacts.bench_verify import is_bench, verify_bench  # which rest on this module
    from posttrain.artifacts.eval_verify import is_eval, verify_eval

    package = None if package_root is None else Path(package_root)
    if is_bench(file):
        return verify_bench(file, path, fingerprints, package)
    if is_eval(file):
        return verify_eval(file, path, fingerprints, package)
    artifact, checks = read_document(file, "artifact-v2", "artifact")
    if artifact is None:
        return Report(str(path), checks, ("V1 and V2: the artifact cannot be used as it is", *BEYOND))
    evidence = gather(artifact)
    checks = (
        *checks,
        *evidence.checks,
        *_recomputed(evidence),
        *_decided(evidence, claims),
        *_digested(evidence, fingerprints, package),
    )
    skipped = [f"{check.level} {check.name}: {check.message}" for check in checks if check.status == "skipped"]
    execution = None if evidence.execution is None else evidence.execution.value["execution"]
    mixed = () if execution is None else tuple(audit.mixed_code(execution))
    return Report(str(path), checks, (*skipped, *BEYOND), (*evidence.unverifiable, *mixed))


def _skip(name: str, level: Level, reason: str) -> Check:
    return Check(name, level, "skipped", reason)


def _recomputed(evidence: Evidence) -> Iterable[Check]:
    """Level V1, in the order of the artifact."""
    artifact, historical = evidence.artifact.value, evidence.historical
    plan = None if evidence.plan is None else evidence.plan.value["plan"]
    seeds = settle("seeds", "V1", recompute.seed_problems(artifact, historical=historical), "one run a seed, in order")
    yield seeds
    yield settle("names", "V1", recompute.name_problems(artifact), "one method, one data set")
    yield settle(
        "history", "V1", recompute.history_problems(artifact), "steps rise to the end, the final point is last"
    )
    yield settle("relative accuracy", "V1", recompute.gain_problems(artifact), "(final - baseline)/baseline to the bit")
    if recompute.counts_items(artifact, plan):
        yield settle("accuracy grid", "V1", recompute.grid_problems(artifact), "whole numbers of items")
    else:
        yield _skip("accuracy grid", "V1", "nothing says that accuracy counts graded items")
    identity = recompute.identity_problems(artifact)
    if identity is None:
        yield _skip("entropy identity", "V1", "the reference policy is not known to be uniform")
    else:
        yield settle("entropy identity", "V1", identity, "entropy + divergence = entropy of the uniform reference")
    problems = recompute.policy_problems(artifact, plan, historical=historical)
    policy = settle("claim policy", "V1", problems, "fits tier, seeds and formal flag")
    yield policy
    if plan is not None:
        yield settle("study", "V1", recompute.study_problems(artifact, plan), "planned rivals and claims are all there")
    if "comparison" in artifact and "failed" not in (seeds.status, policy.status):
        yield from _compared(evidence)
    if "mechanism" in artifact:
        yield settle(
            "claims", "V1", recompute.claim_problems(artifact, plan), "as planned; outcomes follow their rules"
        )
        by_hand = recompute.judged_by_hand(artifact)
        if by_hand:
            yield _skip("claim outcomes", "V1", f"{shown(by_hand)} have rules in free words")


def _decided(evidence: Evidence, claims: Claims | None) -> Iterable[Check]:
    """What the claims measured, worked out again from the runs of all arms."""
    artifact = evidence.artifact.value
    if "mechanism" not in artifact:
        return
    arms = {name: arm.value for name, arm in evidence.arms.items()}
    again = claims(artifact, arms) if claims else None
    if again is None:
        yield _skip("claim measurements", "V1", "the study or some of its arms are not at hand")
        return
    pairs = zip(artifact["mechanism"]["claims"], again, strict=False)
    problems = [
        f"claim {old['id']} measured {old['measured']}, the runs give {new['measured']}"
        for old, new in pairs
        if not _agree(old["measured"], new["measured"])
    ]
    yield settle("claim measurements", "V1", problems, f"{len(again)} worked out again from the runs of all arms")


def _agree(old: Any, new: Any) -> bool:
    """Equal texts and counts, and numbers within the tolerance of derived values."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(_agree(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_agree, old, new))
    return close(old, new) if isinstance(old, float) or isinstance(new, float) else old == new


def _compared(evidence: Evidence) -> Iterable[Check]:
    """The comparison block worked out again, from the rivals' artifacts where they are at hand."""
    artifact = evidence.artifact.value
    digests = [entry["against"]["artifact_sha256"] for entry in artifact["comparison"]]
    found = {digest: arm for digest in digests if (arm := evidence.arm_with(digest)) is not None}
    runs = {digest: arm.value["runs"] for digest, arm in found.items()}
    problems = comparison_problems(artifact["runs"], artifact["comparison"], runs, artifact["evaluation_protocol"])
    yield settle("comparison", "V1", problems, f"{len(digests)} worked out again, {len(found)} from the rivals' runs")
    if len(found) < len(set(digests)):
        yield _skip(
            "rival artifacts", "V1", f"{len(set(digests)) - len(found)} not at hand; their differences were taken"
        )


def _digested(evidence: Evidence, fingerprints: Fingerprints | None, package_root: Path | None) -> Iterable[Check]:
    """Level V2, from the artifact outwards."""
    artifact = evidence.artifact.value
    if evidence.historical:
        yield _skip("digests", "V2", "none was recorded in this historical artifact")
        return
    sentinels = [key for key, value in artifact["provenance"].items() if value == SENTINEL]
    sentinel = [f"/provenance/{key} is {SENTINEL!r}, but this file is not historical" for key in sentinels]
    yield settle("sentinel", "V2", sentinel, "nothing claims to be from before provenance was recorded")
    yield settle("content digest", "V2", audit.content_problems(artifact), "SHA-256 of the canonical form")
    if evidence.plan is None:
        yield _skip("plan", "V2", "there is no plan to compare with")
    else:
        plan = evidence.plan.value["plan"]
        yield settle(
            "plan digest", "V2", audit.plan_digest_problems(evidence, evidence.plan), "stamped in the artifact"
        )
        yield settle("plan", "V2", audit.plan_agreement_problems(artifact, plan), "the artifact is what was planned")
        yield _dataset(plan["dataset"], fingerprints)
    if evidence.arms:
        yield settle("arms", "V2", audit.arm_problems(evidence), "those at hand are the recorded ones, under one plan")
    yield from _executed(evidence, package_root)
    yield _place(evidence)


def _dataset(dataset: dict[str, Any], fingerprints: Fingerprints | None) -> Check:
    """The data set drawn again."""
    if fingerprints is None:
        return _skip("data set", "V2", "no generator was given to draw it again")
    try:
        found = fingerprints(dataset)
    except ValueError as error:
        return Check("data set", "V2", "failed", f"the generator refuses the recorded data set: {error}")
    if found is None:
        return _skip("data set", "V2", f"generator or files of {shown(dataset['id'])} are not at hand")
    problems = [] if found == dataset["fingerprint"] else [f"drawn again it is {found}, not {dataset['fingerprint']}"]
    return settle("data set", "V2", problems, "drawn again, the same fingerprint")


def _executed(evidence: Evidence, package_root: Path | None) -> Iterable[Check]:
    """The execution record, the files it lists and the code it ran."""
    execution, folder = evidence.execution, evidence.artifact.path.resolve().parent
    if execution is None:
        yield _skip("execution", "V2", "there is no execution record to compare with")
        return
    yield settle(
        "execution", "V2", audit.execution_problems(evidence.artifact, execution), "this artifact came out of it"
    )
    files = audit.recorded_outputs(evidence)
    if execution.path.parent != folder:
        yield _skip("output files", "V2", "published without its run folder")
    else:
        yield settle("output files", "V2", audit.output_problems(folder, files), f"{len(files)} as recorded")
        if (folder / PART).is_file():
            yield settle("part", "V2", audit.part_problems(folder), "one seed of a plan, as its digest says")
        extra = audit.unrecorded_files(folder, files)
        if extra:
            yield Check("other files", "V2", "warned", f"{len(extra)} in the folder are in no record: {shown(extra)}")
    if execution.value["execution"]["inputs"]:
        yield _skip("input files", "V2", "they may lie anywhere, so none was opened")
    if package_root is None:
        yield _skip("code", "V2", "no package was given to compare with")
        return
    recorded, present = execution.value["execution"]["code"]["dirhash"], code_digest(package_root)
    same = recorded == present
    yield Check(
        "code",
        "V2",
        "passed" if same else "warned",
        "the present package is the recorded one"
        if same
        else f"the present package is {present}, recorded is {recorded}",
    )


def _place(evidence: Evidence) -> Check:
    """Where the file lies, which binds only below `docs/`."""
    root, path = published_root(evidence.artifact.path), evidence.artifact.path.resolve()
    if root is None:
        return _skip("place", "V2", "outside docs/ the recorded place is only the intended one")
    recorded, found = evidence.artifact.value["provenance"]["artifact_path"], path.relative_to(root).as_posix()
    problems = [] if recorded == found else [f"/provenance/artifact_path is {recorded}, the file lies in {found}"]
    return settle("place", "V2", problems, "the recorded one")
