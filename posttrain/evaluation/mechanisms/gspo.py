"""`gspo`: one ratio per completion clips far more, and trains no worse (arXiv 2507.18071)."""

from __future__ import annotations

from posttrain.evaluation.study import Claim, Results, Study, difference, studies


def _clipping(results: Results) -> dict[str, list[float]]:
    own, token = (results.diagnostic(arm, "clip_fraction") for arm in ("main", "grpo"))
    return {"clip fraction": difference(own, token)}


def _parity(results: Results) -> dict[str, list[float]]:
    return {"accuracy": difference(results.final("main"), results.final("grpo"))}


studies.register("gspo")(
    Study(
        config="l1",
        others={"grpo": "grpo"},
        rivals=("grpo",),
        claims=(
            Claim(
                id="Q1",
                claim="It clips far more than GRPO",
                prediction="a clip fraction at least 0.1 higher in the last update, at four passes a step",
                metric="clip fraction minus GRPO's",
                rule="interval above threshold",
                threshold=0.1,
                values=_clipping,
            ),
            Claim(
                id="Q2",
                claim="It trains no worse for that",
                prediction="no more than 0.02 less accuracy than GRPO with as many passes",
                metric="accuracy minus GRPO's",
                rule="interval at least threshold",
                threshold=-0.02,
                values=_parity,
            ),
        ),
    )
)
