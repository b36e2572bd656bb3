"""`sft`: right answers alone, against a teacher's whole distribution."""

from __future__ import annotations

from posttrain.evaluation.study import Claim, Results, Study, difference, studies


def _gain(results: Results) -> dict[str, list[float]]:
    return {"accuracy": results.gain("main")}


def _sharper(results: Results) -> dict[str, list[float]]:
    return {"entropy": difference(results.final("distilled", "entropy"), results.final("main", "entropy"))}


studies.register("sft")(
    Study(
        config="l1",
        others={"distilled": "gkd"},
        rivals=("distilled",),
        claims=(
            Claim(
                id="F1",
                claim="Likelihood of the right answers raises accuracy on held-out problems",
                prediction="a gain in every seed",
                metric="accuracy after minus before",
                rule="interval above threshold",
                threshold=0.0,
                values=_gain,
            ),
            Claim(
                id="F2",
                claim="One-hot targets make a sharper policy than a teacher's distribution does",
                prediction="lower entropy than after distillation",
                metric="exact entropy, GKD minus SFT, nats per token",
                rule="interval above threshold",
                threshold=0.0,
                values=_sharper,
            ),
        ),
    )
)
