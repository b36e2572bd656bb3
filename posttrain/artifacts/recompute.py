"""Level V1 of a verification: what an artifact derives is worked out again from what it measured.

Every function takes an artifact that keeps its schema and gives sentences about what does not hold.
"""

import math
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from posttrain.artifacts.claims import judge

Artifact = Mapping[str, Any]
Plan = Mapping[str, Any]

FORMAL_FROM = 3  # seeds
EXACT_ACCURACY = {"arithmetic-smoke"}  # data sets whose accuracy is a share of graded items
UNIFORM_ENTROPY = {"arithmetic-smoke": math.log(6)}  # nats; six candidates, and the reference is the untrained policy
IDENTITY_TOLERANCE = 1e-9

# The sentence on what a page may claim, the tiers it belongs to and whether it is formal (None: either).
CLAIM_POLICIES: dict[str, tuple[set[str], bool | None]] = {
    "smoke only, no performance claim": ({"l0_smoke", "l1_mechanism", "l2_tiny_lm", "l3_real_model"}, False),
    "descriptive single-seed mechanism reproduction": ({"l1_mechanism", "l2_tiny_lm"}, False),
    "descriptive multi-seed mechanism reproduction": ({"l1_mechanism", "l2_tiny_lm"}, False),
    "formal multi-seed mechanism comparison": ({"l1_mechanism"}, True),
    "formal multi-seed tiny-LM comparison": ({"l2_tiny_lm"}, True),
    "single-checkpoint benchmark report": ({"l3_real_model"}, False),
    "formal real-model comparison": ({"l3_real_model"}, True),
}
FORMAL_FIELDS = ("primary_metric", "direction", "planned_n", "alpha", "family_id", "family_size", "sesoi")
FORMAL_FIELDS += ("failure_value",)


def _runs(artifact: Artifact) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for i, run in enumerate(artifact["runs"]):
        yield f"/runs/{i}", run


def seed_problems(artifact: Artifact, *, historical: bool) -> Iterator[str]:
    """One run for each seed, in order, bearing that seed and how it ended."""
    seeds, runs = artifact["seeds"], artifact["runs"]
    if artifact["evaluation_protocol"]["seeds"] != seeds:
        yield f"/evaluation_protocol/seeds is {artifact['evaluation_protocol']['seeds']}, /seeds is {seeds}"
    if len(runs) != len(seeds):
        yield f"there are {len(runs)} runs for {len(seeds)} seeds"
        return
    for (place, run), seed in zip(_runs(artifact), seeds, strict=True):
        if run.get("seed", seed if historical else None) != seed:
            yield f"{place}/seed is {run.get('seed')}, its place in /seeds says {seed}"
        if "status" not in run and not historical:
            yield f"{place} lacks the key 'status'; say how it ended"


def name_problems(artifact: Artifact) -> Iterator[str]:
    """One method and one data set throughout, and the method's name at the end of the intended folder."""
    method = artifact["method"]
    for place, run in _runs(artifact):
        if run["algorithm"] != method:
            yield f"{place}/algorithm is {run['algorithm']!r}, /method is {method!r}"
        if run["dataset"] != artifact["runs"][0]["dataset"]:
            yield f"{place}/dataset is {run['dataset']!r}, that of the first run is {artifact['runs'][0]['dataset']!r}"
    folder = artifact["provenance"]["artifact_path"].split("/")[2]
    if re.sub(r"^[0-9]{4}\.[0-9]{5}-", "", folder) != method and folder != method:
        yield f"/provenance/artifact_path lies in {folder!r}, /method is {method!r}"


def history_problems(artifact: Artifact) -> Iterator[str]:
    """Steps that rise up to the last, where the final point is read off; a run without one says how it ended."""
    for place, run in _runs(artifact):
        steps, total = [row["step"] for row in run["history"]], run["training"]["steps"]
        if any(later <= earlier for earlier, later in pairwise(steps)) or any(step != int(step) for step in steps):
            yield f"{place}/history has steps {steps}; they must be whole and rise"
        if run.get("status", "completed") != "completed":
            if steps and steps[-1] > total:
                yield f"{place}/history ends at step {steps[-1]}, after {total} steps"
            continue
        if (steps[-1] if steps else 0) != total:
            yield f"{place}/history ends at step {steps[-1] if steps else 0}, /training/steps is {total}"
        last = run["history"][-1] if steps else run["baseline"]
        expected = {key: value for key, value in last.items() if key not in ("step", "loss")}
        if run["final"] is None:
            yield f"{place}/final is null though the run completed"
        elif not _identical(run["final"], expected):
            yield f"{place}/final is {run['final']}, its last history row says {expected}"


def _identical(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two points agree to the bit, the sign of zero included."""
    return a.keys() == b.keys() and all(repr(a[key]) == repr(b[key]) for key in a)


def gain_problems(artifact: Artifact) -> Iterator[str]:
    """`relative_accuracy` is (final − baseline)/baseline to the bit; null at baseline 0 and without a final point."""
    for place, run in _runs(artifact):
        baseline, final = run["baseline"]["accuracy"], run["final"] and run["final"]["accuracy"]
        expected = None if final is None or baseline == 0 else (final - baseline) / baseline
        found = run["relative_accuracy"]
        if (found is None) != (expected is None) or found != expected:
            yield f"{place}/relative_accuracy is {found}, the accuracies give {expected}"


def _points(artifact: Artifact) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Place, point and run of everything that was evaluated."""
    for place, run in _runs(artifact):
        yield f"{place}/baseline", run["baseline"], run
        if run["final"] is not None:
            yield f"{place}/final", run["final"], run
        for i, row in enumerate(run["history"]):
            yield f"{place}/history/{i}", row, run


def counts_items(artifact: Artifact, plan: Plan | None) -> bool:
    """Whether accuracy is a share of graded items: known of the data set, or declared by the plan."""
    evaluation = (plan or {}).get("common_config", {}).get("evaluation")
    declared = isinstance(evaluation, Mapping) and evaluation.get("accuracy") == "exact"
    return declared or artifact["runs"][0]["dataset"] in EXACT_ACCURACY


def grid_problems(artifact: Artifact) -> Iterator[str]:
    """Accuracy is a whole number of items out of `validation_examples`, exactly."""
    for place, point, run in _points(artifact):
        items, accuracy = run["training"]["validation_examples"], point["accuracy"]
        if items == 0 or round(accuracy * items) / items != accuracy:
            yield f"{place}/accuracy is {accuracy}, no multiple of 1/{items}"


def identity_problems(artifact: Artifact) -> Iterator[str] | None:
    """Entropy plus divergence is the entropy of a uniform reference; None where the reference was not uniform."""
    expected = UNIFORM_ENTROPY.get(artifact["runs"][0]["dataset"])
    if expected is None or artifact["evaluation_protocol"]["tier"] not in ("l0_smoke", "l1_mechanism"):
        return None
    sums = [(place, point["entropy"] + point["kl_from_reference"]) for place, point, _ in _points(artifact)]
    broken = [(place, total) for place, total in sums if not abs(total - expected) <= IDENTITY_TOLERANCE]
    if 2 * len(broken) > len(sums):
        return None
    return (f"{place}: entropy and divergence add up to {total}, not {expected}" for place, total in broken)


def policy_problems(artifact: Artifact, plan: Plan | None, *, historical: bool) -> Iterator[str]:
    """The claim policy is one of the closed list, fits tier and flag, and a formal claim has what it needs."""
    protocol = artifact["evaluation_protocol"]
    policy, formal, tier = protocol["claim_policy"], protocol["formal_comparison"], protocol["tier"]
    if policy not in CLAIM_POLICIES:
        yield f"/evaluation_protocol/claim_policy is {policy!r}; write one of {sorted(CLAIM_POLICIES)}"
        return
    tiers, must_be_formal = CLAIM_POLICIES[policy]
    if tier not in tiers:
        yield f"the claim policy {policy!r} does not belong to the tier {tier}"
    if must_be_formal is not None and formal != must_be_formal:
        yield f"the claim policy {policy!r} needs formal_comparison {must_be_formal}, found {formal}"
    if historical:
        return
    if "single-seed" in policy and len(artifact["seeds"]) != 1:
        yield f"the claim policy {policy!r} is of one seed, found {len(artifact['seeds'])}"
    if formal and len(artifact["seeds"]) < FORMAL_FROM:
        yield f"a formal comparison needs {FORMAL_FROM} seeds, found {len(artifact['seeds'])}"
    needed = ("plan_sha256", *(FORMAL_FIELDS if formal or artifact.get("comparison") else ()))
    missing = [key for key in needed if key not in protocol]
    if missing:
        yield f"/evaluation_protocol lacks {', '.join(missing)}; copy them from the plan"
    planned = {protocol.get("planned_n"), *(look["n"] for look in (plan or {}).get("looks", []))}
    if "planned_n" in protocol and len(artifact["seeds"]) not in planned:
        yield f"{len(artifact['seeds'])} seeds were run, planned were {sorted(planned)}"
    if len(artifact.get("comparison", [])) > protocol.get("family_size", math.inf):
        yield f"{len(artifact['comparison'])} comparisons in a family of {protocol['family_size']}"


def study_problems(artifact: Artifact, plan: Plan) -> Iterator[str]:
    """The rivals and claims that the plan names are all there; only the artifact of the main arm owes them."""
    method = artifact["method"]
    if method in plan.get("controls", []) or method != plan.get("main", method):
        return
    if plan.get("claims") and "mechanism" not in artifact:
        yield f"the plan makes {len(plan['claims'])} claims, /mechanism is missing"
    entries, arms = artifact.get("comparison", []), artifact.get("mechanism", {}).get("arms", [])
    digest_of = {arm["name"]: arm["artifact_sha256"] for arm in arms}
    methods = {entry["against"]["method"] for entry in entries}
    digests = {entry["against"]["artifact_sha256"] for entry in entries}
    for name in plan.get("controls", []):
        if name not in methods and digest_of.get(name) not in digests:
            yield f"the plan names the rival {name!r}, /comparison does not hold it"
    if plan.get("arms") and not entries:
        yield f"the plan names the arms {sorted(plan['arms'])}, /comparison is empty"
    strangers = sorted(digest_of.keys() - plan.get("arms", {}).keys())
    if strangers:
        yield f"/mechanism/arms holds {strangers}, which the plan does not name"
    for entry in entries:
        if "mechanism" in artifact and entry["against"]["artifact_sha256"] not in digest_of.values():
            yield f"/comparison is against {entry['against']['method']!r}, which is no arm in /mechanism/arms"


def claim_problems(artifact: Artifact, plan: Plan | None) -> Iterator[str]:
    """Mechanism claims are those of the plan, word for word, and each outcome follows from rule and measurement."""
    claims = artifact["mechanism"]["claims"]
    if plan is not None:
        written = [{key: claim[key] for key in claim if key not in ("measured", "outcome")} for claim in claims]
        if written != plan.get("claims", []):
            yield "/mechanism/claims are not those that the plan wrote down before the run"
    for i, claim in enumerate(claims):
        expected = judge(claim["rule"], claim["threshold"], claim["measured"])
        if expected is not None and claim["outcome"] != expected:
            yield f"/mechanism/claims/{i}/outcome is {claim['outcome']}, its rule and measurement give {expected}"


def judged_by_hand(artifact: Artifact) -> list[str]:
    """Ids of the claims whose rule is in free words, so that no program can apply it."""
    claims = artifact["mechanism"]["claims"]
    return [claim["id"] for claim in claims if judge(claim["rule"], claim["threshold"], claim["measured"]) is None]
