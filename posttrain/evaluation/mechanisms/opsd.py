"""`opsd`: a teacher that has seen the solution, on the student's own completions (arXiv 2601.18734)."""

from __future__ import annotations

from posttrain.evaluation.study import Claim, Results, Study, difference, studies


def _over_sft(results: Results) -> dict[str, list[float]]:
    return {"accuracy": difference(results.final("main"), results.final("sft"))}


studies.register("opsd")(
    Study(
        config="l1",
        others={"sft": "sft"},
        rivals=("sft",),
        claims=(
            Claim(
                id="V1",
                claim="A privileged teacher's distribution teaches more than the right answers do",
                prediction="higher accuracy than SFT on as many completions",
                metric="accuracy minus SFT's",
                rule="interval above threshold",
                threshold=0.0,
                values=_over_sft,
            ),
        ),
    )
)
