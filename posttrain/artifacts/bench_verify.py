"""Verification of a bench artifact (`bench_version` 1), levels V0 to V2, by the same reports as any other artifact."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from posttrain.artifacts import audit, bench_recompute
from posttrain.artifacts import verify as levels
from posttrain.artifacts.documents import DocumentError, load, parse
from posttrain.artifacts.evidence import Document, Evidence, gather, read_document
from posttrain.artifacts.report import Check, Report, settle

# The three recorded artifacts, by their bytes. The list is closed.
BENCH_HISTORICAL = frozenset(
    {
        "sha256:37e1cc6e590c28ee38bfa619a20a70c70603d7225741bc9431a47b76ae0aefd6",  # multiscale_diffusion_pde
        "sha256:31faf28f80ed40cb284c44178c7f1ffb5783f321b2f08f5a7c1eea8066c7ea34",  # semantic_pushforward_...
        "sha256:22991d8ad5eaf6989995bfa880ef3f0d29b2ae738db1034cdcef27d827d44b90",  # sequence
    }
)
NEW_FIELDS = ("protocol", "manifest_ref", "provenance")
_COPIED = ("alpha", "family_id", "failure_value")


def is_bench(file: Path) -> bool:
    """Whether a file is one JSON object that says it is a bench artifact."""
    try:
        value = parse(load(file), file.name)
    except DocumentError:
        return False
    return isinstance(value, dict) and "bench_version" in value


def verify_bench(file: Path, shown: Path, fingerprints: levels.Fingerprints | None, package: Path | None) -> Report:
    """Checks one bench artifact; `shown` is the path that was asked for. See `verify.verify`."""
    artifact, checks = read_document(file, "bench-v1", "artifact")
    if artifact is None:
        return Report(str(shown), checks, ("V1 and V2: the artifact cannot be used as it is", *levels.BEYOND))
    historical = artifact.digest in BENCH_HISTORICAL
    missing = [key for key in NEW_FIELDS if key not in artifact.value]
    evidence, unverifiable = None, (f"historical: {len(NEW_FIELDS)} fields not recorded",)
    if not historical:
        problems = [f"lacks {', '.join(missing)}, and it is none of the three recorded files"] if missing else []
        checks = (*checks, settle("provenance", "V0", problems, "protocol, plan and provenance are there"))
        if missing:
            checks = (*checks, *_recomputed(artifact.value, None, historical=True))
            return Report(str(shown), checks, ("V2: nothing says where the numbers come from", *levels.BEYOND))
        evidence = gather(as_artifact(artifact))
        checks, unverifiable = (*checks, *evidence.checks), evidence.unverifiable
    plan = None if evidence is None or evidence.plan is None else evidence.plan.value["plan"]
    checks = (*checks, *_recomputed(artifact.value, plan, historical=historical))
    checks = (*checks, *_digested(artifact, evidence, fingerprints, package))
    skipped = [f"{check.level} {check.name}: {check.message}" for check in checks if check.status == "skipped"]
    return Report(str(shown), checks, (*skipped, *levels.BEYOND), unverifiable)


def as_artifact(artifact: Document) -> Document:
    """The document with the fields under which plan, execution and place are looked up and compared elsewhere."""
    value, protocol = artifact.value, artifact.value["protocol"]
    copied = {key: protocol[key] for key in ("plan_sha256", "family_size", *_COPIED)}
    copied |= {"direction": value["metric_direction"], "planned_n": value["n_seeds"]}
    fields = {"method": value["track"], "seeds": protocol["eval_seeds"], "runs": [], "evaluation_protocol": copied}
    return replace(artifact, value={**value, **fields})


def _recomputed(artifact: Mapping[str, Any], plan: Mapping[str, Any] | None, *, historical: bool) -> Iterable[Check]:
    recipe = "every field, by the recorded recipe to the bit" if historical else "every field, the test exact"
    yield settle("arms", "V1", bench_recompute.arm_problems(artifact), "means and deviations from the seeds")
    yield settle("sweeps", "V1", bench_recompute.sweep_problems(artifact), "the first best cell was taken")
    problems = bench_recompute.comparison_problems(artifact, historical=historical)
    yield settle("comparison", "V1", problems, recipe)
    yield settle("signature", "V1", bench_recompute.signature_problems(artifact, plan), "outcomes follow their rules")
    yield settle("analytic checks", "V1", bench_recompute.analytic_problems(artifact), "identities and tolerances hold")
    if historical:
        yield Check("protocol", "V1", "skipped", "none was recorded; seeds of tuning are seeds of evaluation")
        yield Check("sweep means", "V1", "skipped", "the values behind most of them were not recorded")
    else:
        yield settle("protocol", "V1", bench_recompute.protocol_problems(artifact), "equal budgets, seeds as declared")


def _digested(
    artifact: Document, evidence: Evidence | None, fingerprints: levels.Fingerprints | None, package: Path | None
) -> Iterable[Check]:
    if evidence is None:
        yield Check("digests", "V2", "skipped", "none was recorded in this historical artifact")
        return
    yield settle("content digest", "V2", audit.content_problems(artifact.value), "SHA-256 of the canonical form")
    if evidence.plan is None:
        yield Check("plan", "V2", "skipped", "there is no plan to compare with")
    else:
        plan = evidence.plan.value["plan"]
        yield settle(
            "plan digest", "V2", audit.plan_digest_problems(evidence, evidence.plan), "stamped in the artifact"
        )
        yield settle("plan", "V2", _plan_problems(evidence.artifact.value, plan), "the artifact is what was planned")
        yield levels._dataset(plan["dataset"], fingerprints)
    yield from levels._executed(evidence, package)
    yield levels._place(evidence)


def _plan_problems(artifact: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterable[str]:
    yield from audit.plan_agreement_problems(artifact, plan)
    protocol, planned = artifact["protocol"], plan["common_config"]
    expected = {
        "track": (artifact["track"], planned.get("track")),
        "model": (artifact["model"], planned.get("model")),
        "protocol": (protocol["name"], planned.get("protocol")),
        "sweep_seeds": (protocol["sweep_seeds"], planned.get("sweep_seeds")),
        "budget": (protocol["budget"], planned.get("budget")),
        "sesoi_rel_pct": (protocol["sesoi_rel_pct"], planned.get("sesoi_rel_pct")),
        "baseline sweep": ([cell["cfg"] for cell in artifact["baseline"]["sweep"]], planned.get("baseline_sweep")),
        "idea sweep": ([cell["cfg"] for cell in protocol["idea_sweep"]], planned.get("idea_sweep")),
    }
    for name, (found, wanted) in expected.items():
        if found != wanted:
            yield f"the {name} is {found}, the plan says {wanted}"
