"""`tip`: which half, or tenth, of the tokens to distil (arXiv 2604.14084)."""

from __future__ import annotations

from posttrain.evaluation.study import Claim, Results, Study, difference, studies

SMALL = 0.1


def _kl(results: Results, worse: str, better: str) -> list[float]:
    """How much farther from the teacher one arm ends than another, nats per token."""
    return difference(results.final(worse, "kl_from_teacher"), results.final(better, "kl_from_teacher"))


def _entropy_half(results: Results) -> dict[str, list[float]]:
    return {"KL": [-value for value in _kl(results, "entropy", "dense")]}


def _random(results: Results) -> dict[str, list[float]]:
    return {"KL": _kl(results, "random-small", "soft-or-small")}


def _entropy_small(results: Results) -> dict[str, list[float]]:
    return {"KL": _kl(results, "entropy-small", "soft-or-small")}


studies.register("tip")(
    Study(
        config="l1",
        arms={
            "dense": {"algorithm.keep": 1.0},
            "entropy": {"algorithm.score": "entropy"},
            "soft-or-small": {"algorithm.keep": SMALL},
            "entropy-small": {"algorithm.keep": SMALL, "algorithm.score": "entropy"},
            "divergence-small": {"algorithm.keep": SMALL, "algorithm.score": "divergence"},
            "random-small": {"algorithm.keep": SMALL, "algorithm.score": "random"},
        },
        rivals=("dense", "entropy"),
        claims=(
            Claim(
                id="T1",
                claim="The half of the tokens with the highest student entropy does what all tokens do",
                prediction="at most 0.05 nats farther from the teacher than dense",
                metric="exact KL(student || teacher), dense minus entropy-only, nats per token",
                rule="interval at least threshold",
                threshold=-0.05,
                values=_entropy_half,
            ),
            Claim(
                id="T2",
                claim="At a tenth of the tokens the soft OR beats a random choice",
                prediction="nearer to the teacher than random tokens",
                metric="exact KL(student || teacher), random minus soft OR, nats per token",
                rule="interval above threshold",
                threshold=0.0,
                values=_random,
            ),
            Claim(
                id="T3",
                claim="At a tenth of the tokens the soft OR beats entropy alone, which cannot see confident mistakes",
                prediction="nearer to the teacher than entropy-only tokens",
                metric="exact KL(student || teacher), entropy-only minus soft OR, nats per token",
                rule="interval above threshold",
                threshold=0.0,
                values=_entropy_small,
            ),
        ),
    )
)
