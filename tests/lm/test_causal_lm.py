"""What a causal LM says about completions: against its own full logits, under padding, with adapters, on disk."""

import copy
import json
from dataclasses import replace

import pytest
import tiny_lm
import torch
from tiny_lm import EOS, policy, problems

from posttrain.functional import divergences
from posttrain.policies.base import Divergence
from posttrain.policies.causal_lm import CausalLM
from posttrain.policies.lm_loading import Lora, adapter_settings, with_lora
from posttrain.registry import ConfigError, policies
from posttrain.samplers.in_process import parity
from posttrain.testing.bench import nudge

KINDS = ["llama", "qwen2", "gemma2", "cohere", "granite", "phi", "gpt2"]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def drawn(made, group_size=3, step=1):
    return made.sample(problems(), group_size, None, 0, step)


def full_log_probs(made, rollouts, temperature=1.0):
    """Every next-token log-prob [B, T, V] by the model's own forward pass, one row at a time, without padding."""
    rows = torch.zeros(*rollouts.mask.shape, made.vocabulary.size, dtype=torch.float64)
    for i, (prompt, there, ids, mask) in enumerate(
        zip(rollouts.prompt_ids, rollouts.prompt_mask, rollouts.completion_ids, rollouts.mask, strict=True)
    ):
        given, completion = prompt[there], ids[mask]
        if len(completion):
            logits = made.model(input_ids=torch.cat([given, completion])[None]).logits[0, len(given) - 1 : -1]
            logits = logits.double()[:, : made.vocabulary.size] / temperature
            rows[i, : len(completion)] = torch.log_softmax(logits, -1)
    return rows


def gradient(made, value):
    made.zero_grad()
    value.backward(retain_graph=True)
    return torch.cat([p.grad.flatten() for p in made.parameters() if p.requires_grad])


def apart(one, other):
    return float((one - other).detach().abs().max() / other.detach().abs().max().clamp(min=1))


@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_their_gradient_are_those_of_the_models_own_logits(kind):
    made, teacher = policy(kind, temperature=0.7), policy(kind, seed=9)
    rollouts = drawn(made)
    mask, ids = rollouts.mask, torch.arange(60).expand(*rollouts.mask.shape, 60)
    found = made.score(
        rollouts, mask, support_ids=ids, divergence=Divergence("jsd", 0.3), against=teacher.states(rollouts)
    )
    dense = full_log_probs(made, rollouts, 0.7)
    sampled = dense.gather(-1, rollouts.completion_ids.unsqueeze(-1)).squeeze(-1) * mask
    entropy = -(dense.exp() * dense).sum(-1) * mask
    jsd = divergences.jsd(dense, full_log_probs(teacher, rollouts).detach(), 0.3) * mask
    expected = (sampled, entropy, dense * mask.unsqueeze(-1), jsd)
    numbers = (found.logprobs, found.entropy, found.support_logprobs, found.divergence)
    for one, other in zip(numbers, expected, strict=True):
        assert apart(one, other) < 1e-6  # norms and rotations of most models are float32 inside
        assert apart(gradient(made, one.sum()), gradient(made, other.sum())) < 1e-5
    assert apart(rollouts.logprobs, sampled) < 1e-6
    assert apart(rollouts.entropy, entropy) < 1e-6


def test_numbers_stand_at_the_places_asked_for_and_are_zero_elsewhere():
    made = policy(critic=True)
    rollouts = drawn(made)
    where = rollouts.mask & (torch.arange(rollouts.mask.shape[1]) % 2 == 0)
    some, whole = (made.score(rollouts, w, values=True) for w in (where, rollouts.mask))
    for name in ("logprobs", "entropy", "values"):
        expected = torch.where(where, getattr(whole, name), 0)
        assert apart(getattr(some, name), expected) < 1e-6
    assert not made.score(rollouts, torch.zeros_like(where)).logprobs.any()


def test_nothing_is_said_of_padding_even_where_it_is_asked_about():
    made = policy(critic=True)
    rollouts = drawn(made)
    assert not rollouts.mask.all()
    everywhere = torch.ones_like(rollouts.mask)
    states = made.states(rollouts)
    for where in (everywhere, rollouts.mask):
        score = made.score(rollouts, where, divergence=Divergence("reverse_kl"), against=states, values=True)
        for name in ("logprobs", "entropy", "divergence", "values"):
            assert not getattr(score, name)[~rollouts.mask].any(), name
    asked, told = (made.targets(rollouts, where, 3) for where in (everywhere, rollouts.mask))
    assert torch.equal(asked.mask, told.mask)
    assert torch.equal(asked.logprobs, told.logprobs)


def test_rows_in_parts_are_the_rows_at_once():
    made = policy("gpt2")
    rollouts = drawn(made)
    with torch.no_grad():
        whole, targets = made.score(rollouts, rollouts.mask), made.targets(rollouts, rollouts.mask, 3)
        states = made.states(rollouts).hidden
        made.config = replace(made.config, rows=5)
        parts, other = made.score(rollouts, rollouts.mask), made.targets(rollouts, rollouts.mask, 3)
        assert apart(made.states(rollouts).hidden, states) < 1e-12
    assert apart(parts.logprobs, whole.logprobs) < 1e-12
    assert torch.equal(other.support_ids, targets.support_ids)
    assert apart(other.support_logprobs, targets.support_logprobs) < 1e-12


def test_no_tensor_of_the_size_of_all_logits_is_made():
    from test_lm_head import Largest

    made = policy("gpt2", made=tiny_lm.model("gpt2", vocabulary=3000), chunk=2)
    rollouts = drawn(made, 8)
    with Largest() as largest:
        made.score(rollouts, rollouts.mask).logprobs.sum().backward()
    rows, length = rollouts.mask.shape
    assert made.vocabulary.size == 60
    assert largest.elements <= 3000 * 32 < rows * length * 3000 / 4  # the embedding itself


def point_at_the_successor(module, arguments, given, output):
    """Hidden states that point at the id after the one that was read."""
    output.last_hidden_state = 100 * torch.nn.functional.one_hot((given["input_ids"] + 1) % 60, 60).double()
    return output


def test_shift_a_model_that_knows_each_next_token_scores_zero_nats_on_its_continuation():
    made = policy(made=tiny_lm.model(hidden_size=60, num_attention_heads=2, num_key_value_heads=1))
    made.model.model.register_forward_hook(point_at_the_successor, with_kwargs=True)
    with torch.no_grad():
        made.model.lm_head.weight.copy_(torch.eye(60))
    prompt = replace(problems(1)[0], prompt="w0 w1", responses=("w2 w3 w4", "w3 w4 w5"))
    rows = made.respond([prompt], 0, 0)
    found = made.score(rows, rows.mask).logprobs
    assert found[0, :3].tolist() == pytest.approx([0, 0, 0], abs=1e-12)
    assert found[1, 0] < -50  # off by one
    assert found[1, 1:3].tolist() == pytest.approx([0, 0], abs=1e-12)


# -- targets, expectations, the critic ------------------------------------------------------------------------


def test_targets_carry_the_sampled_token_and_the_most_probable_ones():
    made = policy("gpt2")
    rollouts = drawn(made)
    dense = full_log_probs(made, rollouts).detach()
    found = made.targets(rollouts, rollouts.mask, 4)
    assert found.support_ids.shape == (*rollouts.mask.shape, 4)
    inside = rollouts.mask
    assert bool((found.support_ids == rollouts.completion_ids.unsqueeze(-1)).any(-1)[inside].all())
    assert apart(found.support_logprobs[inside], dense.gather(-1, found.support_ids)[inside]) < 1e-12
    assert apart(found.logprobs[inside], rollouts.logprobs[inside]) < 1e-12
    assert not found.support_logprobs[~inside].any()
    assert not found.support_logprobs.requires_grad


def test_expectations_are_the_means_over_its_own_prefixes_of_exact_numbers():
    made, other = policy("gpt2"), policy("gpt2", seed=5)
    found = made.expectations(problems(), {"other": other})
    again = made.expectations(problems(), {"other": other})
    rollouts = made._draw(problems(), 1, 0, -1, greedy=False)
    mine, theirs = (full_log_probs(p, rollouts).detach() for p in (made, other))
    exact = (divergences.reverse_kl(mine, theirs) * rollouts.mask).sum(1) / rollouts.mask.sum(1)
    assert apart(found.kl["other"], exact) < 1e-12
    assert torch.equal(found.kl["other"], again.kl["other"])
    assert apart(made.expectations(problems(), {"self": made.snapshot()}).kl["self"], torch.zeros(4)) < 1e-12


def test_the_critic_starts_at_zero_and_reaches_the_backbone_once_it_has_weights():
    made = policy(critic=True)
    rollouts = drawn(made)
    assert not made.score(rollouts, rollouts.mask, values=True).values.any()
    torch.nn.init.normal_(made.critic.weight)
    made.score(rollouts, rollouts.mask, values=True).values.sum().backward()
    assert made.model.model.embed_tokens.weight.grad.any()
    assert made.score(rollouts, rollouts.mask).values is None


# -- modes ----------------------------------------------------------------------------------------------------


def test_br_13_dropout_of_the_model_is_off_whoever_turned_it_on():
    made = policy("gpt2")
    assert made.model.config.attn_pdrop == 0.1
    made.train()
    rollouts = drawn(made)
    made.train()
    ratio = (made.score(rollouts, rollouts.mask).logprobs.detach() - rollouts.logprobs).exp()
    assert float((ratio - 1).abs().max()) < 1e-12


def test_dropout_of_adapters_is_on_where_it_was_asked_for_and_in_training_alone():
    made = policy("llama", lora=Lora(4, dropout=0.5))
    nudge(made, 0.1, 0)
    rollouts = drawn(made)
    assert parity(made, rollouts) < 1e-6
    assert apart(made.score(rollouts, rollouts.mask).logprobs, rollouts.logprobs) > 1e-3
    assert parity(made, rollouts) < 1e-6


@pytest.mark.parametrize("options", [{}, {"lora": Lora(4)}], ids=["full", "lora"])
def test_recomputed_layers_give_the_same_gradient(options):
    found = []
    for recompute in (False, True):
        made = policy("llama", gradient_checkpointing=recompute, **options)
        nudge(made, 0.01, 0)
        rollouts = drawn(made)
        calls = []
        made.model.model.layers[0].mlp.register_forward_pre_hook(lambda *a, calls=calls: calls.append(1))
        found.append(gradient(made, made.score(rollouts, rollouts.mask).logprobs.sum()))
        assert len(calls) == 1 + recompute
        assert parity(made, rollouts) < 1e-6
    assert apart(found[1], found[0]) < 1e-12


# -- copies ---------------------------------------------------------------------------------------------------


def test_a_snapshot_stays_where_it_was():
    made = policy("gpt2")
    rollouts, before = drawn(made), made.identity()
    past = made.snapshot()
    nudge(made, 0.1, 1)
    assert past.identity() == before != made.identity()
    assert apart(past.targets(rollouts, rollouts.mask).logprobs, rollouts.logprobs) < 1e-12
    assert not any(parameter.requires_grad for parameter in past.parameters())
    assert all(parameter.requires_grad for parameter in made.parameters())


def test_the_identity_names_weights_vocabulary_template_and_settings():
    made, other = policy("gpt2"), policy("gpt2", temperature=0.5)
    assert set(made.identity()) == {"weights", "vocabulary", "template", "settings"}
    assert {k for k in made.identity() if made.identity()[k] != other.identity()[k]} == {"settings"}


def test_models_of_the_same_tensors_that_compute_otherwise_have_other_identities():
    """An adapter's scale stands in no tensor, a router's bias in no parameter; a store of answers goes by both."""
    one, other = (policy("llama", lora=Lora(4, alpha=alpha)) for alpha in (8.0, 64.0))
    other.load_state_dict(one.state_dict())
    assert one.identity()["weights"] == other.identity()["weights"]
    assert one.identity()["settings"] != other.identity()["settings"]
    made = policy("llama")
    before = made.identity()
    made.model.register_buffer("bias_of_a_router", torch.zeros(3))
    made.model.register_buffer("worked_out", torch.zeros(3), persistent=False)
    with_buffer = made.identity()
    assert before["weights"] != with_buffer["weights"]
    made.model.worked_out += 1
    assert made.identity() == with_buffer
    made.model.bias_of_a_router += 1
    assert made.identity()["weights"] != with_buffer["weights"]


def test_the_settings_of_an_adapter_are_in_an_order_of_their_own():
    made = policy("llama", lora=Lora(4, target_modules="q_proj,v_proj,k_proj,o_proj"))
    (said,) = adapter_settings(made.model).values()
    assert said["target_modules"] == ["k_proj", "o_proj", "q_proj", "v_proj"]
    assert adapter_settings(policy("llama").model) == {}


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "embed_tokens,lm_head,q_proj"])
def test_adapters_on_a_matrix_that_is_both_ends_of_a_model_are_refused(target):
    """Merged into the shared matrix they would change the other end as well."""
    with pytest.raises(ConfigError, match="embedding and its head are one matrix"):
        with_lora(tiny_lm.model("llama", tie_word_embeddings=True), Lora(2, target_modules=target))
    with_lora(tiny_lm.model("llama", tie_word_embeddings=True), Lora(2, target_modules="q_proj"))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modules_to_save": ["norm"]}, "whole layers or tokens"),
        ({"trainable_token_indices": [7]}, "whole layers or tokens"),
        ({"lora_bias": True}, "lora_bias"),
    ],
)
def test_adapters_that_could_not_be_saved_as_weights_are_refused_before_training(options, message):
    from peft import LoraConfig, inject_adapter_in_model

    if "lora_bias" in options:
        options = {**options, "target_modules": ["fc1"]}
        made = tiny_lm.model("phi")
    else:
        made = tiny_lm.model("llama")
    adapted = inject_adapter_in_model(LoraConfig(r=2, task_type="CAUSAL_LM", **options), made)
    with pytest.raises(ConfigError, match=message):
        with_lora(adapted, Lora())


def test_br_38_the_reference_of_a_fresh_adapter_is_the_base_and_shares_its_weights():
    made = policy("llama", lora=Lora(4))
    reference = made.snapshot()
    trained = {name for name, p in made.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    pairs = zip(made.parameters(), reference.parameters(), strict=True)
    assert all((one is other) != one.requires_grad for one, other in pairs)
    assert float(made.expectations(problems(), {"r": reference}).kl["r"].abs().max()) < 1e-12


@pytest.mark.parametrize("target", ["all-linear", "lm_head", "q_proj,v_proj"])
def test_br_38_the_reference_of_a_trained_adapter_is_the_adapter_at_the_start(target):
    made = policy("llama", lora=Lora(4, target_modules=target))
    nudged = [p for p in made.parameters() if p.requires_grad]
    with torch.no_grad():
        for place, parameter in enumerate(nudged):
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(place)))
    reference, full_copy = made.snapshot(), copy.deepcopy(made)
    rollouts = drawn(made)
    assert parity(made, rollouts) < 1e-6  # an adapter on the output head is part of it
    assert float(made.expectations(problems(), {"r": reference}).kl["r"].abs().max()) < 1e-12
    gradient(made, made.score(rollouts, rollouts.mask).logprobs.sum())
    with torch.no_grad():
        for parameter in nudged:
            parameter.add_(0.2)
    kl = [made.expectations(problems(), {"r": other}).kl["r"] for other in (reference, full_copy)]
    assert float(kl[0].min()) > 1e-4
    assert torch.equal(*kl)


# -- disk -----------------------------------------------------------------------------------------------------


def test_a_saved_folder_loads_with_transformers_and_as_a_policy(tmp_path):
    from transformers import AutoModelForCausalLM

    made = policy("llama", "float32", lora=Lora(4))
    nudge(made, 0.05, 3)
    rollouts = drawn(made)
    made.save(tmp_path)
    assert made.model.model.layers[0].mlp.up_proj.lora_A  # saving leaves the policy as it was
    loaded = CausalLM(model=str(tmp_path), max_completion_tokens=8).build(problems(), {}, False)
    assert apart(loaded.targets(rollouts, rollouts.mask).logprobs, rollouts.logprobs) < 1e-5
    assert loaded.vocabulary.digest == made.vocabulary.digest
    logits = AutoModelForCausalLM.from_pretrained(tmp_path)(rollouts.prompt_ids[:1]).logits
    assert apart(logits, made.model(rollouts.prompt_ids[:1]).logits) < 1e-5
    assert not list(tmp_path.glob("*.bin"))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
def test_br_38_training_goes_on_from_an_adapter_folder(tmp_path):
    from peft import LoraConfig, get_peft_model

    base, adapter = tmp_path / "base", tmp_path / "adapter"
    policy("llama", "float32").save(base)
    from transformers import AutoModelForCausalLM

    trained = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=2, task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3)
    trained.save_pretrained(adapter)
    tiny_lm.tokenizer().save_pretrained(adapter)
    made = CausalLM(model=str(adapter), max_completion_tokens=8).build(problems(), {}, False)
    ids = torch.tensor([[7, 8, 9]])
    assert apart(made.model(ids).logits, trained(ids).logits) < 1e-5
    assert {p.requires_grad for n, p in made.named_parameters() if "lora_" in n} == {True}
    assert {p.requires_grad for n, p in made.named_parameters() if "lora_" not in n} == {False}
    assert float(made.expectations(problems(), {"r": made.snapshot()}).kl["r"].abs().max()) < 1e-6
    made.save(tmp_path / "merged")
    again = CausalLM(model=str(tmp_path / "merged"), max_completion_tokens=8).build(problems(), {}, False)
    assert apart(again.model(ids).logits, trained(ids).logits) < 1e-5
    with pytest.raises(ConfigError, match="already holds an adapter"):
        CausalLM(model=str(adapter), lora=Lora(4)).build(problems(), {}, False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    policy("llama", "float32").save(path)
    return path


def spoilt(folder, tmp_path, change):
    import shutil

    copied = tmp_path / "copied"
    shutil.copytree(folder, copied)
    change(copied)
    return CausalLM(model=str(copied)).build(problems(), {}, False)


def edit(name, **values):
    def change(path):
        settings = json.loads((path / name).read_text())
        (path / name).write_text(json.dumps({**settings, **values}))

    return change


def cut_in_half(path):
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[: len(data) // 2])


def lose_a_weight(path):
    from safetensors.torch import load_file, save_file

    weights = load_file(path / "model.safetensors")
    weights.pop("model.layers.0.mlp.up_proj.weight")
    save_file(weights, path / "model.safetensors", {"format": "pt"})


def pickle_instead(path):
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


def remote_code(path):
    (path / "own.py").write_text(f"open({str(path.parent / 'marker')!r}, 'w')")
    edit("config.json", auto_map={"AutoModelForCausalLM": "own.Model"})(path)


SPOILT = {
    "no config": (lambda path: (path / "config.json").unlink(), "has no config.json"),
    "no weights": (lambda path: (path / "model.safetensors").unlink(), "has no weights"),
    "truncated": (cut_in_half, "is damaged or cut short .* Copy it again"),
    "a weight lost": (lose_a_weight, r"lacks 1 of its weights \(model.layers.0.mlp.up_proj.weight\)"),
    "a pickle": (pickle_instead, "only pytorch_model.bin, a pickle"),
    "remote code": (remote_code, "config.json` asks to run code"),
    "tokenizer code": (edit("tokenizer_config.json", auto_map={"AutoTokenizer": ["own.T", None]}), "asks to run code"),
    "broken json": (lambda path: (path / "config.json").write_text("{"), "not valid JSON"),
    "no tokenizer": (lambda path: [p.unlink() for p in path.glob("tokenizer*")], "cannot be loaded|token"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_br_39_a_spoilt_folder_is_refused_with_one_clear_line_and_runs_no_code(name, folder, tmp_path):
    change, words = SPOILT[name]
    with pytest.raises(ConfigError, match=words):
        spoilt(folder, tmp_path, change)
    assert not (tmp_path / "marker").exists()


def test_a_model_with_fewer_rows_than_its_tokenizer_has_ids_is_refused():
    with pytest.raises(ConfigError, match="knows 60 ids, but the model has 59 embedding rows"):
        policy(made=tiny_lm.model(vocabulary=59))


def test_a_head_that_is_not_known_is_refused():
    made = tiny_lm.model("granite")
    made.config.logits_scaling = 4.0
    made.lm_head.register_forward_hook(lambda module, given, output: output * 2)
    with pytest.raises(ConfigError, match="in a way that is not known here"):
        policy(made=made)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": ""}, "policy.model: nothing is chosen"),
        ({"model": "./nowhere"}, "there is no folder `./nowhere`"),
    ],
)
def test_a_missing_model_is_named(options, words):
    with pytest.raises(ConfigError, match=words):
        CausalLM(**options).build([], {}, False)


def test_the_name_is_registered_and_weights_of_a_dataset_are_refused():
    import numpy as np

    assert policies.get("causal_lm") is CausalLM
    with pytest.raises(ConfigError, match=r"policy\.start"):
        CausalLM().build([], {"weight": np.zeros(2)}, False)


def test_options_out_of_range_are_refused():
    for options in ({"temperature": 0.0}, {"chunk": 0}, {"rows": 0}, {"max_completion_tokens": 0}):
        with pytest.raises(ConfigError, match=f"policy.{next(iter(options))}"):
            CausalLM(**options)
    with pytest.raises(ConfigError, match="rank: found 0"):
        Lora(0)


def test_rows_of_padding_in_the_embedding_are_cut_from_every_distribution():
    made = policy("llama", made=tiny_lm.model(vocabulary=64))
    with torch.no_grad():
        made.model.lm_head.weight[60:] *= 100
    rollouts = drawn(made, 8)
    assert int(rollouts.completion_ids.max()) < 60
    dense = full_log_probs(made, rollouts)
    assert apart(dense.exp().sum(-1)[rollouts.mask], torch.ones(1)) < 1e-12
    assert parity(made, rollouts) < 1e-6
    assert made.targets(rollouts, rollouts.mask, 99).support_ids.shape[-1] == 60
    assert EOS < 60
