"""`sparse-opd`: two tokens per completion against all, and against other choices of two (arXiv 2609.04565)."""

from __future__ import annotations

from posttrain.evaluation.probes import first_gradient_norm
from posttrain.evaluation.study import Claim, Results, Study, difference, ratio, studies

FAR = 0.6  # teacher.distance of the far teacher
TOKENS = 64  # completion length under l1-paper


def _parity(results: Results) -> dict[str, list[float]]:
    return {"gain ratio": ratio(results.gain("main"), results.gain("dense"))}


def _selection(results: Results) -> dict[str, list[float]]:
    rivals = ("random", "first", "last")
    return {f"over {rival}": difference(results.final("main"), results.final(rival)) for rival in rivals}


def _decoupling(results: Results) -> dict[str, list[float]]:
    sparse, dense = (results.final(arm, "kl_from_teacher") for arm in ("main", "dense"))
    accuracy = [value + 0.01 for value in difference(results.final("main"), results.final("dense"))]
    return {"KL to the teacher over dense": difference(sparse, dense), "accuracy over dense + 0.01": accuracy}


def _failure(results: Results) -> dict[str, list[float]]:
    loss = [-gain for gain in results.gain("lowest-far")]
    near = difference(results.final("main"), results.final("lowest"))
    far = difference(results.final("extremes-far"), results.final("lowest-far"))
    return {
        "accuracy lost by lowest, far teacher": loss,
        "accuracy gained by extremes, far teacher": results.gain("extremes-far"),
        "extremes over lowest, far minus near": difference(far, near),
    }


def _step_size(results: Results) -> dict[str, list[float]]:
    kept, length = (results.measure(arm, "first gradient norm") for arm in ("kept", "main"))
    return {"relative deviation": [value / (TOKENS / 2) - 1 for value in ratio(kept, length)]}


def _under_adam(results: Results) -> dict[str, list[float]]:
    return {"accuracy difference": difference(results.final("kept"), results.final("main"))}


studies.register("sparse-opd")(
    Study(
        config="l1-paper",
        arms={
            "dense": {"algorithm.select.rule": "all"},
            "random": {"algorithm.select.rule": "random", "algorithm.select.k": 2},
            "first": {"algorithm.select.rule": "first", "algorithm.select.k": 2},
            "last": {"algorithm.select.rule": "last", "algorithm.select.k": 2},
            "lowest": {"algorithm.select.rule": "lowest", "algorithm.select.k": 1},
            "lowest-far": {
                "algorithm.select.rule": "lowest",
                "algorithm.select.k": 1,
                "dataset.distance": FAR,
            },
            "extremes-far": {"dataset.distance": FAR},
            "kept": {"algorithm.normaliser": "kept"},
        },
        rivals=("dense", "random", "first", "last", "lowest"),
        probes={"first gradient norm": first_gradient_norm},
        claims=(
            Claim(
                id="S1",
                claim="Two extreme tokens per completion do nearly what all tokens do",
                prediction="at least 95 % of dense's accuracy gain over the start",
                metric="accuracy gain / dense's accuracy gain",
                rule="interval at least threshold",
                threshold=0.95,
                values=_parity,
            ),
            Claim(
                id="S2",
                claim="Which two tokens matters more than how many",
                prediction="extremes beat two random, first or last tokens at equal steps",
                metric="accuracy minus each rival's",
                rule="every interval above threshold",
                threshold=0.0,
                values=_selection,
            ),
            Claim(
                id="S3",
                claim="Accuracy and distance to the teacher come apart",
                prediction="farther from the teacher than dense at equal (within 0.01) or better accuracy",
                metric="exact KL(student || teacher) and accuracy, minus dense's",
                rule="every interval above threshold",
                threshold=0.0,
                values=_decoupling,
            ),
            Claim(
                id="S4",
                claim="With a far teacher, pushing down alone collapses while both extremes survive",
                prediction="lowest loses accuracy, extremes gain, and the gap grows with the teacher's distance",
                metric="accuracy against the start and between arms, near and far teacher",
                rule="every interval above threshold",
                threshold=0.0,
                values=_failure,
            ),
            Claim(
                id="S5a",
                claim="Dividing by kept tokens instead of the length multiplies the gradient by length / kept",
                prediction="a factor of 32 at length 64",
                metric="first gradient's norm, kept / response length, relative to 32",
                rule="value at most threshold",
                threshold=1e-9,
                values=_step_size,
            ),
            Claim(
                id="S5b",
                claim="Under Adam the two normalisers train alike",
                prediction="no accuracy difference beyond 0.01",
                metric="largest absolute accuracy difference over seeds",
                rule="value at most threshold",
                threshold=0.01,
                values=_under_adam,
            ),
        ),
    )
)
