"""The tracks' mathematics, each against a closed form, a dense reference or a hand-computed number."""

import math

import numpy as np
import pytest
import torch
from bench_shared import PLANTED

from posttrain.assembly import assemble
from posttrain.bench import loops, models
from posttrain.bench.options import load
from posttrain.bench.tracks import bandit_policy_gradient as bandit
from posttrain.bench.tracks import multiscale_diffusion_pde as pde
from posttrain.bench.tracks import semantic_pushforward_classification as semantic
from posttrain.bench.tracks import sequence

STREAM = torch.Generator().manual_seed(0)


def transformer(rho: float, beta: float) -> torch.nn.Module:
    settings = {**sequence.track.base, "rho": rho, "beta": beta}
    return models.initialise(sequence.model(settings, {"length": 12}), torch.Generator().manual_seed(1))


# -- shared models and loop -----------------------------------------------------------------------------------


def test_the_transformer_does_not_look_ahead() -> None:
    model = transformer(0.9, 0.5)
    inputs = torch.randn(3, 12, 1, generator=STREAM)
    changed = inputs.clone()
    changed[:, 7:] += 5
    assert torch.allclose(model(inputs)[:, :7], model(changed)[:, :7], atol=1e-6)
    assert not torch.allclose(model(inputs)[:, 7:], model(changed)[:, 7:], atol=1e-2)


def test_attention_equals_the_library_function() -> None:
    block = models._Block(8, 2)
    hidden = torch.randn(2, 5, 8, generator=STREAM)
    mixed = block.mix(block.before(hidden)).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
    seen = torch.nn.functional.scaled_dot_product_attention(*mixed, is_causal=True).transpose(1, 2).reshape(2, 5, 8)
    after = hidden + block.out(seen)
    expected = after + block.down(torch.nn.functional.gelu(block.up(block.between(after))))
    assert torch.allclose(block(hidden), expected, atol=1e-6)


def test_beta_zero_is_the_identity_whatever_rho() -> None:
    inputs = torch.randn(3, 12, 1, generator=STREAM)
    assert torch.equal(transformer(0.0, 0.0)(inputs), transformer(0.9, 0.0)(inputs))


def test_the_state_equation_has_its_closed_form() -> None:
    """m_t = (1 - rho) sum_k rho^k u_{t-k}; for a constant u it is u (1 - rho^t)."""
    activity = torch.rand(4, 9, generator=STREAM, dtype=torch.float64)
    found = models.fading_memory(activity, 0.8)
    for t in range(9):
        weights = 0.2 * 0.8 ** torch.arange(t, -1, -1, dtype=torch.float64)
        assert torch.allclose(found[:, t], (weights * activity[:, : t + 1]).sum(1), atol=1e-15)
    constant = models.fading_memory(torch.full((1, 9), 1.7, dtype=torch.float64), 0.8)[0]
    assert torch.allclose(constant, 1.7 * (1 - 0.8 ** torch.arange(1, 10, dtype=torch.float64)), atol=1e-14)


def test_the_gate_divides_each_tokens_representation() -> None:
    inputs = torch.randn(2, 12, 1, generator=STREAM)
    gated, plain = transformer(0.85, 0.5), transformer(0.85, 0.0)
    state = plain.states(inputs)
    ungated = plain(inputs) - plain.head.bias
    assert torch.allclose(gated(inputs) - gated.head.bias, ungated / (1 + 0.5 * state).unsqueeze(-1), atol=1e-6)


def test_initial_weights_come_from_the_stream_within_their_bound() -> None:
    first, second = (models.initialise(models.MLP(4, 2, 8), torch.Generator().manual_seed(3)) for _ in range(2))
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert all(p.abs().max() <= 1 / math.sqrt(4) for p in first.layers[0].parameters())


def test_the_loop_is_adamw_on_the_batches_of_the_order() -> None:
    """Three steps by hand on a linear model against `descend`."""
    train = loops.Batch(torch.randn(6, 2, generator=STREAM), torch.randn(6, 1, generator=STREAM))
    order = torch.tensor([[5, 0, 1, 2, 3, 4], [4, 3, 2, 1, 0, 5]])

    def loss(model, batch, settings):
        return (model(batch.inputs) - batch.targets).square().mean()

    found, expected = (models.initialise(torch.nn.Linear(2, 1), torch.Generator().manual_seed(5)) for _ in range(2))
    loops.descend(found, torch.optim.AdamW(found.parameters(), lr=0.1), train, order, {"batch_size": 4}, loss)
    optimizer = torch.optim.AdamW(expected.parameters(), lr=0.1)
    for rows in ([5, 0, 1, 2], [3, 4], [4, 3, 2, 1], [0, 5]):
        optimizer.zero_grad()
        loss(expected, train.rows(torch.tensor(rows)), {}).backward()
        optimizer.step()
    assert torch.equal(found.weight, expected.weight)


def test_every_epoch_sees_every_example_once() -> None:
    order = loops.epochs(7, 5, torch.Generator().manual_seed(0))
    assert torch.equal(order.sort(1).values, torch.arange(7).expand(5, 7))
    assert len({tuple(row) for row in order.tolist()}) > 1


# -- sequence -------------------------------------------------------------------------------------------------


def test_targets_are_the_values_after_each_token_of_the_second_half() -> None:
    data = sequence.data(0, {**sequence.track.data, "length": 10})
    inputs, targets = data.train.inputs.squeeze(-1), data.train.targets
    assert targets.shape == (512, 5)
    assert torch.equal(inputs[:, 6:], targets[:, :-1])


def test_series_are_autoregressive_over_the_lags() -> None:
    weights = np.array([0.5, -0.3, 0.1])
    noise = np.random.default_rng(0).standard_normal((2, 30))
    series = sequence._series(noise.copy(), weights, 0.65)
    expected = 0.65 * noise[:, 20] + 0.5 * series[:, 19] - 0.3 * series[:, 16] + 0.1 * series[:, 12]
    assert np.allclose(series[:, 20], expected, atol=1e-14)


def test_the_loss_reads_the_forecasts_of_the_second_half() -> None:
    class Echo(torch.nn.Module):
        def forward(self, inputs):
            return inputs

    batch = loops.Batch(torch.arange(4.0).view(1, 4, 1), torch.tensor([[3.0, 5.0]]))
    # forecasts 2 and 3 against 3 and 5: (1 + 4) / 2
    assert float(sequence.loss(Echo(), batch, {})) == 2.5


@pytest.mark.parametrize(("rho", "half"), [(0.5, 1), (0.85, 5), (0.9, 7), (0.99, 69)])
def test_half_lives(rho: float, half: int) -> None:
    row = sequence.analytic_row(rho, 0.5)
    assert row["half_observed"] == row["half_predicted"] == half


# -- diffusion ------------------------------------------------------------------------------------------------


def test_haar_coefficients_of_a_hand_computed_field() -> None:
    """[1, 2, 3, 4]: coarse 10/2; detail of halves (3 - 7)/2; fine details (1 - 2)/sqrt 2 and (3 - 4)/sqrt 2."""
    coarse, details = pde.haar(torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64))
    assert coarse.tolist() == [[pytest.approx(5.0, abs=1e-14)]]
    assert details[0].tolist() == pytest.approx([-2.0, -1 / math.sqrt(2), -1 / math.sqrt(2)], abs=1e-14)


def test_at_weight_one_the_detail_loss_is_the_pixel_loss() -> None:
    model = models.initialise(models.MLP(32, 32, 16), torch.Generator().manual_seed(0)).double()
    fields = [torch.randn(9, 32, generator=STREAM, dtype=torch.float64) for _ in range(2)]
    batch = loops.Batch(*fields)
    with torch.no_grad():
        pixel = float(pde.loss(model, batch, {}))
        one, two = (float(pde.detail_loss(model, batch, {"detail_weight": w}, pde.loss)) for w in (1.0, 2.0))
    assert one == pytest.approx(pixel, rel=1e-12)
    assert two > pixel


def test_the_field_obeys_the_heat_equation() -> None:
    """A finite difference in time against diffusivity times the exact second derivative of the modes."""
    options = {**pde.track.data, "points": 64}
    amplitudes = np.random.default_rng(0).standard_normal((3, options["modes"], 2))
    step = 1e-5

    def at(time: float) -> np.ndarray:
        return pde.fields(amplitudes, {**options, "time": time})[1]

    slope = (at(0.05 + step) - at(0.05 - step)) / (2 * step)
    waves = 2 * np.pi * np.arange(33)
    curvature = np.fft.irfft(-(waves**2) * np.fft.rfft(at(0.05)), 64)
    assert np.allclose(slope, options["diffusivity"] * curvature, atol=1e-6)
    assert np.allclose(at(0.0), pde.fields(amplitudes, options)[0], atol=1e-14)


# -- pushforward ----------------------------------------------------------------------------------------------


def test_masses_add_up_and_belong_to_the_states() -> None:
    masses = semantic.pushforward(torch.tensor([[0.1, 0.2, 0.3, 0.05, 0.15, 0.2]], dtype=torch.float64))
    assert masses[0].tolist() == pytest.approx([0.15, 0.35, 0.5], abs=1e-15)


def test_the_correction_finds_planted_exponents() -> None:
    """States drawn from q ~ m ** (0.6, 1.0, 1.7): at 40 000 items the likelihood's maximum lies near."""
    rng = np.random.default_rng(0)
    masses = rng.dirichlet(np.ones(3), 40_000)
    powers = masses ** np.array([0.6, 1.0, 1.7])
    cumulative = (powers / powers.sum(1, keepdims=True)).cumsum(1)
    states = torch.from_numpy((cumulative <= rng.random((40_000, 1))).sum(1).clip(max=2))
    found = semantic.fit_correction(torch.from_numpy(masses), states, common=False)
    assert found.tolist() == pytest.approx([0.6, 1.0, 1.7], abs=0.05)


def test_the_correction_is_at_the_maximum_of_the_likelihood() -> None:
    rng = np.random.default_rng(1)
    masses = torch.from_numpy(rng.dirichlet(np.ones(3), 200))
    states = torch.from_numpy((masses.numpy().cumsum(1) <= rng.random((200, 1))).sum(1).clip(max=2))
    logs = masses.log()
    found = semantic.fit_correction(masses, states, common=False)

    def cost(a: torch.Tensor) -> float:
        return float(torch.nn.functional.cross_entropy(a * logs, states))

    for direction in torch.eye(3, dtype=torch.float64):
        for factor in (1.03, 0.97):
            assert cost(found * factor**direction) > cost(found)


def test_a_common_exponent_changes_no_decision() -> None:
    data = semantic.data(3, {**semantic.track.data, "train_examples": 60})
    model = models.initialise(
        semantic.model(semantic.track.base, semantic.track.data), torch.Generator().manual_seed(2)
    )
    with torch.no_grad():
        raw, corrected, _ = semantic.read(model, data, dict(semantic.track.base))
    assert torch.equal(raw.argmax(-1), corrected.argmax(-1))


def test_the_error_rate_lies_on_the_grid_of_the_test_items() -> None:
    data = semantic.data(3, semantic.track.data)
    model = models.initialise(
        semantic.model(semantic.track.base, semantic.track.data), torch.Generator().manual_seed(2)
    )
    with torch.no_grad():
        rate = semantic.evaluate(model, data, dict(semantic.track.base))
    assert rate == round(rate * 400) / 400


def test_only_training_labels_are_distorted() -> None:
    options = semantic.track.data
    clean = semantic.data(0, {**options, "distortion": 0.0})
    distorted = semantic.data(0, options)
    moved = clean.train.targets != distorted.train.targets
    assert torch.equal(clean.test.targets, distorted.test.targets)
    assert torch.equal(clean.further["calibration"].targets, distorted.further["calibration"].targets)
    assert set((clean.train.targets[moved] % 3).tolist()) == {0}
    assert set((distorted.train.targets[moved] % 3).tolist()) == {1}


# -- bandit ---------------------------------------------------------------------------------------------------


def trainer():
    config = bandit.TASK.config({**bandit.BUDGET, **bandit.BASE}, {**bandit.track.data, "train_examples": 12})
    return assemble(config, 4)


def test_the_exact_return_is_the_sum_over_candidates_and_what_sampling_approaches() -> None:
    made = trainer()
    problems = list(made.problems)
    exact = bandit.expected_return(made, problems).item()
    by_hand = 0.0
    for problem in problems:
        logits = (problem.features[0, :, : len(made.policy.weight)] * made.policy.weight.detach().numpy()).sum(-1)
        p = np.exp(logits - logits.max())
        by_hand += p[int(problem.answer)] / p.sum() / len(problems)
    assert exact == pytest.approx(by_hand, abs=1e-12)
    drawn = made.policy.sample(problems, 4000, np.random.default_rng(0), 0, 0)
    right = [text == problems[i // 4000].answer for i, text in enumerate(drawn.texts)]
    assert np.mean(right) == pytest.approx(exact, abs=0.01)


def test_rloo_follows_the_exact_gradient() -> None:
    """Leave-one-out is unbiased, so its mean gradient over many groups points where the exact one does."""
    made = trainer()
    made.algorithm = bandit.TASK.config(
        {**bandit.BUDGET, **bandit.BASE, "algorithm": "rloo"}, bandit.track.data
    ).algorithm
    few, many = (bandit.gradient_cosine(made, draws) for draws in (16, 512))
    # What is left is noise: its square falls as one over the number of draws.
    assert 1 - many < (1 - few) / 4
    assert many > 0.998


def test_the_planted_track_serves_the_other_tests() -> None:
    assert load(PLANTED).track.name == "planted"
