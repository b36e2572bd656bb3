"""Level V1 of a bench artifact: what it derives is worked out again from the per-seed values.

Every function takes an artifact that keeps its schema and gives sentences about what does not hold.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from posttrain.artifacts.bench_statistics import (
    best_cell,
    comparison_block,
    recorded_comparison,
    sample_std,
    summary,
)
from posttrain.artifacts.claims import judge
from posttrain.artifacts.comparisons import close

Artifact = Mapping[str, Any]
Plan = Mapping[str, Any]


def arm_problems(artifact: Artifact) -> Iterator[str]:
    """Mean, deviation and number of each arm's values."""
    for place, arm in (("/baseline/full", artifact["baseline"]["full"]), ("/idea", artifact["idea"])):
        expected = summary(arm["per_seed"])
        if "std_ddof1" in arm:
            expected["std_ddof1"] = sample_std(arm["per_seed"])
        yield from _differing(place, arm, expected, exact=("per_seed", "n"))
        if arm["n"] != artifact["n_seeds"]:
            yield f"{place}/n is {arm['n']}, /n_seeds is {artifact['n_seeds']}"


def sweep_problems(artifact: Artifact) -> Iterator[str]:
    """Each arm's best cell is the first with the best mean, and cell means follow from their seeds where recorded."""
    for place, best, cells in sweeps(artifact):
        for i, cell in enumerate(cells):
            if "per_seed" in cell and not close(cell["mean"], summary(cell["per_seed"])["mean"]):
                yield f"{place}/{i}/mean is {cell['mean']}, its seeds give {summary(cell['per_seed'])['mean']}"
        first = cells[best_cell([cell["mean"] for cell in cells], artifact["metric_direction"])]["cfg"]
        if best is not None and best != first:
            yield f"the best cell of {place} is {first}, recorded is {best}"


def sweeps(artifact: Artifact) -> Iterator[tuple[str, Any, Sequence[Mapping[str, Any]]]]:
    """Place, recorded best cell and cells of each sweep that the artifact holds."""
    yield "/baseline/sweep", artifact["baseline"]["best_cfg"], artifact["baseline"]["sweep"]
    mechanism, best = artifact["mechanism_signature"], artifact["idea"].get("best_cfg")
    if "protocol" in artifact:
        yield "/protocol/idea_sweep", best, artifact["protocol"]["idea_sweep"]
    if "idea_hyperparameter_sweep" in mechanism:
        yield "/mechanism_signature/idea_hyperparameter_sweep", best, mechanism["idea_hyperparameter_sweep"]
    if "idea_sweep" in mechanism:
        cells = [
            {"cfg": cell["cfg"], "mean": cell["result"]["mean"], "per_seed": cell["result"]["per_seed"]}
            for cell in mechanism["idea_sweep"]
        ]
        yield "/mechanism_signature/idea_sweep", mechanism.get("observed_best_cfg"), cells


def comparison_problems(artifact: Artifact, *, historical: bool) -> Iterator[str]:
    """The `comparison` block, field by field; the historical ones by the recorded recipe and to the bit."""
    baseline, idea = artifact["baseline"]["full"]["per_seed"], artifact["idea"]["per_seed"]
    found, direction = artifact["comparison"], artifact["metric_direction"]
    try:
        if historical:
            expected = recorded_comparison(baseline, idea, direction)
        else:
            failed = found.get("failed_seeds", [])
            expected = comparison_block(baseline, idea, artifact["protocol"], direction, failed)
    except (ValueError, OverflowError) as error:
        yield f"/comparison cannot be worked out again: {error}"
        return
    exact = tuple(expected) if historical else ("per_seed_diffs",)
    yield from _differing("/comparison", found, expected, exact=exact)
    if not historical and set(found) != set(expected):
        yield f"/comparison has the keys {sorted(set(found) ^ set(expected))} too much or too little"


def _differing(place: str, found: Mapping[str, Any], expected: Mapping[str, Any], exact: Sequence[str]) -> list[str]:
    """Where an object differs from what its numbers give; counts and words must be equal."""
    return [
        f"{place}/{key} is {found.get(key)!r}, the values give {value!r}"
        for key, value in expected.items()
        if not close(found.get(key), value, exact=key in exact)
    ]


def protocol_problems(artifact: Artifact) -> Iterator[str]:
    """What makes the comparison fair: seeds apart, equal sweeps, failures declared, and the seeds that were planned."""
    protocol, cells = artifact["protocol"], artifact["baseline"]["sweep"]
    shared = sorted(set(protocol["eval_seeds"]) & set(protocol["sweep_seeds"]))
    if protocol["name"] == "disjoint" and shared:
        yield f"/protocol: seeds {shared} serve tuning and evaluation under the protocol 'disjoint'"
    if protocol["name"] == "recorded" and not set(protocol["sweep_seeds"]) <= set(protocol["eval_seeds"]):
        yield "/protocol: the recorded protocol tunes on evaluation seeds, but its sweep seeds are others"
    if len(protocol["idea_sweep"]) != len(cells):
        yield f"the baseline was tuned over {len(cells)} cells, the idea over {len(protocol['idea_sweep'])}"
    if len(protocol["eval_seeds"]) != artifact["n_seeds"]:
        yield f"/n_seeds is {artifact['n_seeds']}, /protocol/eval_seeds has {len(protocol['eval_seeds'])}"
    n = len(protocol["sweep_seeds"])
    wrong = [cell["cfg"] for cell in (*cells, *protocol["idea_sweep"]) if len(cell.get("per_seed", [])) != n]
    if wrong:
        yield f"the cells {wrong} do not hold one value for each of {n} sweep seeds"
    if protocol["name"] == "recorded":
        yield from _reused_problems(artifact)
    failed = artifact["comparison"].get("failed_seeds", [])
    if failed and (protocol["failure_value"] is None or not set(failed) <= set(protocol["eval_seeds"])):
        yield f"/comparison/failed_seeds is {failed}, but no failure value was declared for them"
    untrue = [key for key, value in protocol["identical"].items() if value is not True]
    if untrue:
        yield f"/protocol/identical: the arms did not share {untrue}, so their seeds are no pairs"


def _reused_problems(artifact: Artifact) -> Iterator[str]:
    """Tuning on evaluation seeds: the winner's tuning values are some of its evaluation values."""
    protocol = artifact["protocol"]
    places = [protocol["eval_seeds"].index(seed) for seed in protocol["sweep_seeds"] if seed in protocol["eval_seeds"]]
    arms = (
        ("baseline", artifact["baseline"]["sweep"], artifact["baseline"]["best_cfg"], artifact["baseline"]["full"]),
        ("idea", protocol["idea_sweep"], artifact["idea"].get("best_cfg"), artifact["idea"]),
    )
    for name, cells, best, full in arms:
        winner = next((cell for cell in cells if cell["cfg"] == best), None)
        if winner is not None and winner.get("per_seed") != [full["per_seed"][place] for place in places]:
            yield f"the {name}'s winning cell has other values at the seeds that it shares with the evaluation"


def signature_problems(artifact: Artifact, plan: Plan | None) -> Iterator[str]:
    """Predictions are those of the plan, outcomes follow from rule and measurement, and so does `confirmed`."""
    inner = artifact["mechanism_signature"].get("mechanism_signature", {})
    claims = inner.get("claims")
    if claims is None:
        return
    written = [{key: claim[key] for key in claim if key not in ("measured", "outcome")} for claim in claims]
    if plan is not None and written != plan.get("claims", []):
        yield "the claims of the signature are not those that the plan wrote down before the run"
    for i, claim in enumerate(claims):
        expected = judge(claim["rule"], claim["threshold"], claim["measured"])
        if claim["outcome"] != expected:
            yield f"claim {i} is {claim['outcome']}, its rule and measurement give {expected}"
    confirmed = all(claim["outcome"] == "confirmed" for claim in claims) if claims else None
    if inner.get("confirmed") is not confirmed:
        yield f"the signature's confirmed is {inner.get('confirmed')}, its claims give {confirmed}"


def analytic_problems(artifact: Artifact) -> Iterator[str]:
    """Identities inside the signature, and the analytic checks against their tolerances."""
    mechanism = artifact["mechanism_signature"]
    inner, checks = mechanism.get("mechanism_signature", {}), mechanism.get("math_check", {})
    if {"observed", "mean_detail_to_pixel_ratio"} <= inner.keys():
        ratios = [row["detail_mse"] / row["pixel_mse"] for row in inner["observed"]]
        expected = summary(ratios)["mean"]
        if not close(inner["mean_detail_to_pixel_ratio"], expected):
            yield f"mean_detail_to_pixel_ratio is {inner['mean_detail_to_pixel_ratio']}, its rows give {expected}"
    if {"beta", "mean_state", "predicted_steady_gain"} <= inner.keys():
        expected = 1 / (1 + inner["beta"] * inner["mean_state"])
        if not close(inner["predicted_steady_gain"], expected):
            yield f"predicted_steady_gain is {inner['predicted_steady_gain']}, the mean state gives {expected}"
        seeds = artifact.get("protocol", {}).get("eval_seeds", list(range(artifact["n_seeds"])))
        value = artifact["idea"]["per_seed"][seeds.index(inner["trained_model_seed"])]
        if inner["metric"] != value:
            yield f"the signature's metric is {inner['metric']}, the idea has {value} at that seed"
    for row in checks.get("rows", []):
        expected = math.ceil(math.log(0.5) / math.log(row["rho"]))
        if not row["half_predicted"] == row["half_observed"] == expected:
            yield f"a half-life of rho {row['rho']} is {row['half_observed']}, predicted is {expected}"
    for check in checks.get("checks", []):
        if check["ok"] is not (abs(check["error"]) <= check["tolerance"]):
            found = f"{check['ok']} at error {check['error']}, tolerance {check['tolerance']}"
            yield f"the check {check['name']} is {found}"
    if "checks" in checks and checks.get("confirmed") is not all(check["ok"] for check in checks["checks"]):
        yield f"math_check/confirmed is {checks.get('confirmed')}, its checks say otherwise"
