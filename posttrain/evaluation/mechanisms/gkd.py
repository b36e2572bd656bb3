"""`gkd`: training on one's own completions against training on given ones (arXiv 2306.13649)."""

from __future__ import annotations

from posttrain.evaluation.probes import forward_kl_on_data_states, forward_kl_on_own_states
from posttrain.evaluation.study import Claim, Results, Study, difference, studies


def _gap(results: Results, arm: str) -> list[float]:
    """How much worse the student is on the states it visits than on those of the data."""
    return difference(results.measure(arm, "FKL on own states"), results.measure(arm, "FKL on data states"))


def _exposure(results: Results) -> dict[str, list[float]]:
    return {"gap": difference(_gap(results, "data-only"), _gap(results, "own-only"))}


def _own_states(results: Results) -> dict[str, list[float]]:
    data, own = (results.measure(arm, "FKL on own states") for arm in ("data-only", "own-only"))
    return {"FKL": difference(data, own)}


studies.register("gkd")(
    Study(
        config="l1",
        arms={"data-only": {"algorithm.student_share": 0.0}, "own-only": {"algorithm.student_share": 1.0}},
        rivals=("data-only", "own-only"),
        probes={"FKL on own states": forward_kl_on_own_states, "FKL on data states": forward_kl_on_data_states},
        claims=(
            Claim(
                id="G1",
                claim="On the states it visits, a student trained on its own completions is nearer to the teacher",
                prediction="lower KL(teacher || student) on own states than with data alone",
                metric="KL(teacher || student) on own states, data only minus own only, nats per token",
                rule="interval above threshold",
                threshold=0.0,
                values=_own_states,
            ),
            Claim(
                id="G2",
                claim="Own completions shrink the gap between visited and given states (exposure bias)",
                prediction="a smaller gap than with data alone",
                metric="gap of KL(teacher || student), own minus data states; data only minus own only",
                rule="interval above threshold",
                threshold=0.0,
                values=_exposure,
            ),
        ),
    )
)
