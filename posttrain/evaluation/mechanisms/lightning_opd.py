"""`lightning-opd`: cached completions and a cached teacher against the online form (arXiv 2604.13010)."""

from __future__ import annotations

from posttrain.evaluation.study import Claim, Results, Study, difference, studies


def _calls(results: Results) -> dict[str, list[float]]:
    return {"calls": results.training("main", "online_teacher_calls")}


def _prefill(results: Results) -> dict[str, list[float]]:
    calls = results.training("main", "teacher_prefill_calls")
    return {"difference": difference(calls, results.training("main", "train_examples"))}


def _parity(results: Results) -> dict[str, list[float]]:
    return {"accuracy": difference(results.final("main"), results.final("online"))}


studies.register("lightning-opd")(
    Study(
        config="l1",
        others={"online": "opd"},
        rivals=("online",),
        claims=(
            Claim(
                id="L1",
                claim="Training asks no teacher",
                prediction="no online teacher call",
                metric="online teacher calls",
                rule="value at most threshold",
                threshold=0.0,
                values=_calls,
            ),
            Claim(
                id="L2",
                claim="The teacher is asked once per training example",
                prediction="as many prefill calls as training examples",
                metric="prefill calls minus training examples",
                rule="value at most threshold",
                threshold=0.0,
                values=_prefill,
            ),
            Claim(
                id="L3",
                claim="With one and the same teacher, offline is as good as online",
                prediction="no more than 0.01 less accuracy than online distillation",
                metric="accuracy minus the online arm's",
                rule="interval at least threshold",
                threshold=-0.01,
                values=_parity,
            ),
        ),
    )
)
