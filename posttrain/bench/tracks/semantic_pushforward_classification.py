"""`semantic_pushforward_classification`: fine-grained responses, three states; idea: a correction for each state.

A model gives probabilities over K responses; response k belongs to state k mod 3, and the mass of a state is the sum of
its responses' probabilities. The training labels are distorted: some responses of state 0 are reported as the
next one, of state 1. A split without distortion serves to correct the masses, q_s ~ m_s ** a_s, fitted by likelihood.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posttrain.bench.loops import Batch, Data, Training
from posttrain.bench.models import MLP
from posttrain.bench.track import Found, Idea, Settings, Track, checked, grid, tracks
from posttrain.evaluation.study import Claim, Results

STATES = 3
MASS_ERROR = 1e-6  # float32 rounding of a sum to one
ROUNDING = 1e-12
ITERATIONS = 60
LIMIT = 3.0  # of |log a|: masses near uniform would otherwise have no largest likelihood


def data(seed: int, options: Settings) -> Data:
    """A map from inputs to responses, then inputs, choices and distortions of three splits, from one stream."""
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((options["inputs"], options["responses"]))
    bends = rng.standard_normal((options["inputs"], options["responses"]))
    made, drawn = {}, {}
    for split in ("train", "calibration", "test"):
        n = options[f"{split}_examples"]
        inputs, uniforms = rng.standard_normal((n, options["inputs"])), rng.random((n, 2))
        scores = options["sharpness"] * (inputs @ directions + np.sin(2 * inputs) @ bends) / options["inputs"] ** 0.5
        labels = _choose(scores, uniforms[:, 0])
        if split == "train":
            moved = uniforms[:, 1] < options["distortion"] * (labels % STATES == 0)
            labels = np.where(moved, (labels + 1) % options["responses"], labels)
        made[split] = Batch(torch.from_numpy(inputs).float(), torch.from_numpy(labels))
        drawn[split] = np.concatenate([inputs, uniforms], 1)
    return Data(made["train"], made["test"], drawn, {"calibration": made["calibration"]})


def _choose(scores: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """One response per row by inverse CDF of the softmax."""
    mass = np.exp(scores - scores.max(1, keepdims=True)).cumsum(1)
    return (mass <= uniforms[:, None] * mass[:, -1:]).sum(1).clip(max=scores.shape[1] - 1)


def pushforward(probabilities: Tensor) -> Tensor:
    """Masses of the states: [N, K] -> [N, 3]."""
    state = torch.arange(probabilities.shape[1]) % STATES
    return probabilities @ nn.functional.one_hot(state, STATES).to(probabilities)


def model(settings: Settings, options: Settings) -> nn.Module:
    """A perceptron from inputs to response logits."""
    return MLP(options["inputs"], options["responses"], settings["width"])


def loss(model: Any, batch: Batch, settings: Settings) -> Tensor:
    """Cross-entropy of the reported response."""
    return nn.functional.cross_entropy(model(batch.inputs) / settings["temperature"], batch.targets)


def fit_correction(masses: Tensor, states: Tensor, common: bool) -> Tensor:
    """Exponents [3] that maximise the likelihood of the states under q ~ m ** a, by Newton's method on log a
    within its limit.

    masses [N, 3] float64; `common` fits one exponent for all states, which changes no decision.
    """
    logs, free = masses.clamp_min(1e-12).log(), 1 if common else STATES

    def cost(log_a: Tensor) -> Tensor:
        return nn.functional.cross_entropy(log_a.expand(STATES).exp() * logs, states)

    log_a = torch.zeros(free, dtype=torch.float64)
    with torch.enable_grad():
        for _ in range(ITERATIONS):
            here = log_a.clone().requires_grad_(True)
            (slope,) = torch.autograd.grad(cost(here), here)
            curve = torch.autograd.functional.hessian(cost, log_a)
            values, vectors = torch.linalg.eigh(torch.as_tensor(curve))
            step = vectors @ ((vectors.T @ slope) / values.abs().clamp_min(1e-3))
            log_a = (log_a - step.clamp(-0.5, 0.5)).clamp(-LIMIT, LIMIT)
            if step.abs().max() < 1e-10:
                break
    return log_a.expand(STATES).exp()


def read(model: Any, data: Data, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """Raw masses [N, 3] of the test items (float32), corrected ones (float64), and the exponents [3]."""

    def masses(batch: Batch) -> Tensor:
        return pushforward((model(batch.inputs) / settings["temperature"]).softmax(-1))

    held = data.further["calibration"]
    common = settings["correction"] == "common"
    exponents = fit_correction(masses(held).double(), held.targets % STATES, common)
    raw = masses(data.test)
    corrected = (exponents * raw.double().clamp_min(1e-12).log()).softmax(-1)  # m ** a, renormalised
    return raw, corrected, exponents


def evaluate(model: nn.Module, data: Data, settings: Settings) -> float:
    """Share of test items whose likeliest state is wrong."""
    corrected = read(model, data, settings)[1]
    return int((corrected.argmax(-1) != data.test.targets % STATES).sum()) / len(data.test)


def measure(model: nn.Module, data: Data, settings: Settings) -> dict[str, Any]:
    """Mass error, exponents, how far the correction moves the masses and what it gains in likelihood."""
    raw, corrected, exponents = read(model, data, settings)
    states = data.test.targets % STATES
    gain = corrected.log() - raw.double().clamp_min(1e-12).log()
    return {
        "mass_error": float((raw.sum(-1) - 1).abs().max()),
        "abs_calibrated_vs_raw": float((corrected - raw.double()).abs().mean()),
        "log_likelihood_gain": float(gain.gather(-1, states.unsqueeze(-1)).mean()),
        **{f"a_{state}": value for state, value in enumerate(exponents.tolist())},
    }


def mechanism(found: Found) -> dict[str, Any]:
    """The recorded fields, over the evaluation seeds."""
    results = found.results
    exponents = np.array([results.measure("idea", f"a_{state}") for state in range(STATES)])
    return {
        "mechanism_signature": {
            "prediction": (
                "pushforward conserves state mass; calibration learns a nontrivial correction when raw response "
                "probabilities are distorted"
            ),
            "predicted_vs_observed": {
                "predicted_mass_error": 0.0,
                "observed_mass_error_mean": float(np.mean(results.measure("idea", "mass_error"))),
                "observed_abs_calibrated_vs_raw_mean": float(np.mean(results.measure("idea", "abs_calibrated_vs_raw"))),
                "learned_a_mean_by_state": exponents.mean(1).tolist(),
                "learned_a_std_by_state": exponents.std(1).tolist(),
            },
        }
    }


def math_check() -> dict[str, Any]:
    """Two ways of aggregating agree, and the masses of 400 random distributions over 9 responses add up to one."""
    probabilities = np.random.default_rng(0).dirichlet(np.ones(9), 400)
    masses = pushforward(torch.from_numpy(probabilities)).numpy()
    direct = np.stack([probabilities[:, state::STATES].sum(1) for state in range(STATES)], 1)
    aggregation, conservation = float(np.abs(masses - direct).max()), float(np.abs(masses.sum(1) - 1).max())
    return {
        "aggregation_error_vs_direct": aggregation,
        "mass_conservation_error": conservation,
        **checked(aggregation=(aggregation, ROUNDING), mass_conservation=(conservation, ROUNDING)),
    }


def _claim(id: str, claim: str, prediction: str, metric: str, rule: str, threshold: float, name: str) -> Claim:
    def values(results: Results) -> dict[str, list[float]]:
        return {name: results.measure("idea", name)}

    return Claim(id, claim, prediction, metric, rule, threshold, values)


track = Track(
    name="semantic_pushforward_classification",
    model="mlp_tiny",
    metric="error rate of the predicted state on 400 test items",
    direction="lower is better",
    rationale=(
        "Decisions on coarse states from fine-grained responses. Both arms see the calibration split: the baseline "
        "fits one exponent for all states, which can change no decision."
    ),
    task=Training(data, model, loss, evaluate, measure),
    budget={"epochs": 18, "batch_size": 32},
    base={"lr": 0.003, "temperature": 1.0, "weight_decay": 0.0, "width": 32, "correction": "common"},
    data={
        "train_examples": 1200, "calibration_examples": 200, "test_examples": 400, "inputs": 4, "responses": 9,
        "sharpness": 4.0, "distortion": 0.25,
    },
    sweep=grid(lr=(0.001, 0.003, 0.006), temperature=(0.8, 1.0, 1.2)),
    shown=("lr", "epochs", "temperature", "weight_decay"),
    idea=Idea(
        name="per-state-correction",
        settings={"correction": "per_state"},
        claims=(
            _claim(
                "C1", "The pushforward conserves state mass", "the masses add up to one but for float32 rounding",
                "largest distance of the total mass from one, over test items and seeds", "value at most threshold",
                MASS_ERROR, "mass_error",
            ),
            _claim(
                "C2", "The correction is nontrivial where response probabilities are distorted",
                "corrected masses give test states a higher likelihood than raw ones",
                "gain in log-likelihood, nats per test item", "interval above threshold", 0.0, "log_likelihood_gain",
            ),
        ),
    ),
    mechanism=mechanism,
    math_check=math_check,
    domain="uncertainty_calibration",
)  # fmt: skip
tracks.register(track.name)(track)
