"""`sequence`: forecasts of noisy series whose next value depends on several earlier ones; idea: a fading-memory gate.

A series is autoregressive, x_t = sum_k a_k x_{t-k} + noise, over lags 1, 4 and 8 with coefficients of the seed. The
model reads L values and forecasts the one after each of the second half. Scales: series have variance near 1, so an
error of 1 is no forecast at all, and the noise alone leaves about NOISE squared.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posttrain.bench.loops import Batch, Data, Training
from posttrain.bench.models import Transformer
from posttrain.bench.track import Found, Idea, Settings, Track, checked, tracks
from posttrain.evaluation.study import Claim, Results

LAGS = (1, 4, 8)
WARM_UP = 32  # values before a series is read
INPUT = 1.7  # constant activity of the analytic check
ITERATIONS = 300
ROUNDING = 1e-12
STEADY, POLE = 0.01, 0.05  # what counts as agreement with the predictions
CELLS = ((0.001, 0.85, 0.5), (0.003, 0.9, 0.5), (0.006, 0.9, 1.0))  # lr, rho, beta, as recorded


def data(seed: int, options: Settings) -> Data:
    """Coefficients, then noise for the training and the test series, from one stream."""
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.5, 1.0, len(LAGS)) * rng.choice([-1.0, 1.0], len(LAGS))
    weights *= options["memory"] / np.abs(weights).sum()
    length = options["length"]
    noise = {
        split: rng.standard_normal((options[f"{split}_examples"], WARM_UP + length + 1)) for split in ("train", "test")
    }
    found = {split: _batch(_series(drawn, weights, options["noise"]), length) for split, drawn in noise.items()}
    return Data(found["train"], found["test"], noise)


def _series(noise: np.ndarray, weights: np.ndarray, scale: float) -> np.ndarray:
    """Autoregressive series [N, time] driven by the noise."""
    series = scale * noise
    for t in range(max(LAGS), series.shape[1]):
        series[:, t] += sum(w * series[:, t - lag] for w, lag in zip(weights, LAGS, strict=True))
    return series


def _batch(series: np.ndarray, length: int) -> Batch:
    """Inputs [N, L, 1], and as targets [N, L / 2] the value after each token of the second half."""
    read = torch.from_numpy(series[:, WARM_UP:]).float()
    return Batch(read[:, :length].unsqueeze(-1), read[:, length // 2 + 1 : length + 1])


def model(settings: Settings, options: Settings) -> nn.Module:
    """The transformer with its gate."""
    sizes = {key: settings[key] for key in ("width", "layers", "heads", "rho", "beta")}
    return Transformer(1, 1, options["length"], **sizes)


def loss(model: Any, batch: Batch, settings: Settings) -> Tensor:
    """Mean squared forecast error over the second half."""
    forecast = model(batch.inputs).squeeze(-1)
    return (forecast[:, -batch.targets.shape[1] :] - batch.targets).square().mean()


def evaluate(model: nn.Module, data: Data, settings: Settings) -> float:
    """The loss on the test series."""
    return float(loss(model, data.test, settings))


def measure(model: Any, data: Data, settings: Settings) -> dict[str, float]:
    """Gains and states of the trained gate on the test series."""
    if not isinstance(model, Transformer):
        return {}
    states = model.states(data.test.inputs).double()
    gains = 1 / (1 + settings["beta"] * states)
    before, after = states[:, :-1].flatten(), states[:, 1:].flatten()
    centred = before - before.mean()
    return {
        "initial_gain": float(gains[:, 0].mean()),
        "final_gain": float(gains[:, -1].mean()),
        "mean_state": float(states[:, -1].mean()),
        "fitted_state_pole": float((centred * after).sum() / centred.square().sum()),
        "pole_through_origin": float((before * after).sum() / before.square().sum()),
        "rho": settings["rho"],
        "beta": settings["beta"],
    }


def _steady(results: Results) -> dict[str, list[float]]:
    gains, states = (results.measure("idea", name) for name in ("final_gain", "mean_state"))
    betas = results.measure("idea", "beta")
    return {"distance": [g - 1 / (1 + b * m) for g, b, m in zip(gains, betas, states, strict=True)]}


def _pole(results: Results) -> dict[str, list[float]]:
    poles, rhos = results.measure("idea", "fitted_state_pole"), results.measure("idea", "rho")
    return {"distance": [pole - rho for pole, rho in zip(poles, rhos, strict=True)]}


def mechanism(found: Found) -> dict[str, Any]:
    """The recorded fields; the pole is fitted with an intercept, the recorded way stands beside it."""
    best, seed = found.settings["idea"], found.seeds[0]
    shown = {
        name: found.results.measure("idea", name)[0]
        for name in ("initial_gain", "final_gain", "mean_state", "fitted_state_pole", "pole_through_origin")
    }
    steady = 1 / (1 + best["beta"] * shown["mean_state"])
    inner: dict[str, Any] = {"trained_model_seed": seed, "metric": found.metrics["idea"][0]}
    for name, value in shown.items():
        inner[name] = value
        if name == "mean_state":
            inner["predicted_steady_gain"] = steady
    rates = [cell["lr"] for cell in track.sweep]
    return {
        "track_rationale": track.rationale,
        "observed_best_cfg": found.best["idea"],
        "idea_sweep": [
            {"cfg": cell["cfg"], "result": {key: cell[key] for key in ("mean", "std", "per_seed", "n")}}
            for cell in found.idea_sweep
        ],
        "mechanism_signature": {**inner, "rho": best["rho"], "beta": best["beta"]},
        "protocol": {
            "seeds": list(found.seeds),
            "epochs": best["epochs"],
            "baseline_lr_grid": rates,
            "idea_lr_grid": [cell["cfg"]["lr"] for cell in found.idea_sweep],
        },
    }


def math_check() -> dict[str, Any]:
    """Steady gain and half-life of the state equation, iterated."""
    rows = [analytic_row(rho, beta) for _, rho, beta in CELLS]
    errors = max(row["steady_gain_abs_error"] for row in rows)
    apart = max(abs(row["half_observed"] - row["half_predicted"]) for row in rows)
    return {"rows": rows, **checked(steady_gain=(errors, ROUNDING), half_life=(float(apart), 0.0))}


def analytic_row(rho: float, beta: float) -> dict[str, Any]:
    """One cell of the analytic check: the state after 300 steps of constant input, and when rho^k first is a half."""
    state = 0.0
    for _ in range(ITERATIONS):
        state = rho * state + (1 - rho) * INPUT
    steps, left = 0, 1.0
    while left > 0.5:
        steps, left = steps + 1, left * rho
    return {
        "rho": rho,
        "steady_gain_abs_error": abs(1 / (1 + beta * state) - 1 / (1 + beta * INPUT)),
        "half_observed": steps,
        "half_predicted": math.ceil(math.log(0.5) / math.log(rho)),
    }


track = Track(
    name="sequence",
    model="transformer_tiny",
    metric="mean squared forecast error on held-out series",
    direction="lower is better",
    rationale=(
        "Sequence forecast contains multi-token temporal correlations and matches the proposed per-token fading-memory "
        "transformer gate."
    ),
    task=Training(data, model, loss, evaluate, measure),
    budget={"epochs": 8, "batch_size": 16},
    base={"lr": 0.001, "rho": 0.0, "beta": 0.0, "weight_decay": 0.0, "width": 32, "layers": 2, "heads": 2},
    data={"train_examples": 512, "test_examples": 256, "length": 32, "memory": 0.9, "noise": 0.65},
    sweep=tuple({"lr": lr} for lr in (0.001, 0.003, 0.006)),
    shown=("lr", "epochs", "rho", "beta"),
    idea=Idea(
        name="fading-memory-gate",
        sweep=tuple({"lr": lr, "rho": rho, "beta": beta} for lr, rho, beta in CELLS),
        claims=(
            Claim(
                id="S1",
                claim="The gate settles at the gain that its state equation gives for a constant activity",
                prediction="the mean gain at the last token is 1/(1 + beta m) at the mean state m there",
                metric="largest distance over the seeds, gain",
                rule="value at most threshold",
                threshold=STEADY,
                values=_steady,
            ),
            Claim(
                id="S2",
                claim="The state forgets at the rate rho",
                prediction="the slope of the state on its previous value, fitted with an intercept, is rho",
                metric="largest distance over the seeds, slope",
                rule="value at most threshold",
                threshold=POLE,
                values=_pole,
            ),
        ),
    ),
    mechanism=mechanism,
    math_check=math_check,
    recorded_tuning=8,
    domain="forecasting",
)
tracks.register(track.name)(track)
