"""The card of a trained language model: what it is, what was measured, and the artifact that says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.artifacts.digests import bytes_digest
from posttrain.artifacts.documents import dumps
from posttrain.artifacts.gap import LABEL, gap_closed
from posttrain.reporting.sentences import said
from posttrain.settings import TrainConfig


def model_card(artifact: Mapping[str, Any], config: TrainConfig, seed: int) -> str:
    """Markdown for the model folder of one seed. The numbers are the artifact's; the digest names it."""
    run = next(run for run in artifact["runs"] if run["seed"] == seed)
    base = config.resolved["policy"]["model"].rstrip("/").rsplit("/", 1)[-1]  # a folder by its name, not its place
    rows = [
        f"| {name} | {before:.4f} | {run['final'][name]:.4f} |"
        for name, before in run["baseline"].items()
        if before is not None
    ]
    gap = gap_closed(artifact)
    if gap is not None:
        share = gap.shares[seed]
        rows.append(f"| {LABEL} | – | undefined |" if share is None else f"| {LABEL} | {0:.4f} | {share:.4f} |")
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            "tags: [posttrain]",
            "---",
            "",
            f"# {base} after {artifact['method']}, seed {seed}",
            "",
            f"Trained by posttrain with `{config.method}` on `{run['dataset']}`, {run['training']['steps']} steps.",
            "",
            "| held-out | before | after |",
            "|---|---|---|",
            *rows,
            "",
            *said(artifact),
            "",
            f"Artifact: `{bytes_digest(dumps(artifact))}`, intended place `{artifact['provenance']['artifact_path']}`.",
            "",
        ]
    )
