"""What is loaded is the model of the folder: every weight of it and no other, its end tokens, and no broken file."""

import json
import shutil

import pytest
import tiny_lm
import torch
from tiny_lm import EOS, policy, problems

from posttrain.policies.causal_lm import CausalLM
from posttrain.policies.lm_files import SETTINGS
from posttrain.registry import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    policy("llama", "float32").save(path)
    return path


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "model")


def edit(file, **values):
    found = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**found, **values}))


def loaded(folder):
    return CausalLM(model=str(folder), max_completion_tokens=8).build(problems(), {}, False)


def adapter_of(whole, folder, layers=None):
    """An adapter on a folder, in a folder of its own."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    config = LoraConfig(r=2, target_modules=["q_proj"], layers_to_transform=layers, task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(whole), config).save_pretrained(folder)
    tiny_lm.tokenizer().save_pretrained(folder)
    edit(folder / "adapter_config.json", base_model_name_or_path=str(whole))
    return folder


# -- weights ----------------------------------------------------------------------------------------------------------

ANOTHER = {
    "fewer layers": (
        {"num_hidden_layers": 1},
        r"holds 9 weights for which the model of its config\.json has no place \(model\.layers\.1\.input_layernorm.*"
        r"model\.layers\.1\.mlp\.down_proj\.weight.* left out",
    ),
    "more layers": (
        {"num_hidden_layers": 3},
        r"lacks 9 of its weights \(model\.layers\.2\.input_layernorm\.weight.* random",
    ),
    "other sizes": (
        {"intermediate_size": 50},
        r"has 6 weights of another size than its config\.json says \(model\.layers\.0\.mlp\.down_proj\.weight.* random",
    ),
}


@pytest.mark.parametrize("kind", ANOTHER)
def test_weights_of_another_model_than_the_configuration_describes_are_refused_by_name(folder, kind):
    change, words = ANOTHER[kind]
    edit(folder / "config.json", **change)
    with pytest.raises(ConfigError, match=words):
        loaded(folder)


def test_weights_that_transformers_declares_to_be_of_no_account_are_left_out(tmp_path):
    """GPT-2's published files hold a causal mask in each layer, which is no weight."""
    from safetensors.torch import load_file, save_file

    policy("gpt2", "float32").save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    masks = {f"transformer.h.{layer}.attn.bias": torch.ones(1, 1, 4, 4) for layer in range(2)}
    save_file({**weights, **masks}, tmp_path / "model.safetensors", {"format": "pt"})
    assert loaded(tmp_path).encoder.eos == {EOS}


@pytest.mark.parametrize("kind", ANOTHER)
@pytest.mark.parametrize("beside", [False, True], ids=["elsewhere", "in one folder"])
def test_the_model_under_an_adapter_is_looked_at_as_closely_as_one_alone(folder, tmp_path, kind, beside):
    """transformers reports of the adapter alone, which here has all its weights."""
    adapter_of(folder, tmp_path / "adapter", layers=[0])
    if beside:
        for path in (tmp_path / "adapter").glob("adapter*"):
            shutil.copy(path, folder)
    place = folder if beside else tmp_path / "adapter"
    assert sum(parameter.requires_grad for parameter in loaded(place).parameters()) == 2
    change, words = ANOTHER[kind]
    if kind == "other sizes":
        words = words.replace("6", r"\d")
    edit(folder / "config.json", **change)
    with pytest.raises(ConfigError, match=words):
        loaded(place)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target_modules": ["v_proj"]}, r"lacks 4 of its weights \(model\.layers\.0\.self_attn\.v_proj\.lora_A"),
        ({"layers_to_transform": [0]}, r"holds 2 weights for .* \(model\.layers\.1\.self_attn\.q_proj\.lora_A"),
        ({"r": 3}, r"has 4 weights of another size .* \(model\.layers\.0\.self_attn\.q_proj\.lora_A"),
    ],
)
def test_so_are_the_weights_of_the_adapter(folder, tmp_path, change, words):
    place = adapter_of(folder, tmp_path / "adapter")
    edit(place / "adapter_config.json", **change)
    with pytest.raises(ConfigError, match=words):
        loaded(place)


def test_code_of_the_model_under_an_adapter_is_refused_too(folder, tmp_path):
    place = adapter_of(folder, tmp_path / "adapter")
    edit(folder / "config.json", auto_map={"AutoModelForCausalLM": "own.Model"})
    with pytest.raises(ConfigError, match=r"model/config\.json` asks to run code"):
        loaded(place)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_whose_logits_are_no_numbers_is_refused_before_it_draws(value):
    made = tiny_lm.model()
    with torch.no_grad():
        made.model.layers[0].mlp.up_proj.weight[0, 0] = value
    with pytest.raises(ConfigError, match=r"its logits are not numbers \(NaN\)\. Its weights are broken"):
        policy(made=made)


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", ["3", "[1]", '"x"', "null", "{", "\x00", "[" * 100_000])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_file_of_settings_that_holds_no_object_is_refused_by_its_name(folder, name, body):
    (folder / name).write_text(body)
    with pytest.raises(
        ConfigError, match=rf"policy\.model: `.*/{name}` (holds .*, expected an object|is not valid JSON)"
    ):
        loaded(folder)


@pytest.mark.parametrize(
    "name", ["vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "model_type"]
)
@pytest.mark.parametrize("value", ["x", [1], 0, None])
def test_a_setting_that_means_nothing_is_an_error_of_the_users_and_no_traceback(folder, name, value):
    """What transformers says of it differs."""
    edit(folder / "config.json", **{name: value})
    with pytest.raises(ConfigError, match=r"^policy\.model: "):
        loaded(folder)


# -- ends -------------------------------------------------------------------------------------------------------------


def without_own_end(folder):
    edit(folder / "tokenizer_config.json", eos_token=None)
    return folder


@pytest.mark.parametrize("ends", [7, [7, 1], [9]])
def test_end_tokens_that_the_generation_settings_alone_know_end_completions_and_data_rows(folder, ends):
    edit(without_own_end(folder) / "config.json", eos_token_id=None)
    edit(folder / "generation_config.json", eos_token_id=ends)
    made = loaded(folder)
    assert made.encoder.tokenizer.eos_token_id is None
    expected = {ends} if isinstance(ends, int) else set(ends)
    assert made.encoder.eos == expected == ends_of_generate(folder)
    assert made.encoder.response(problems()[0], 0)[0][-1] == min(expected)
    shown = made.respond(problems(), 0, 1)
    assert made.score(shown, shown.mask).logprobs.isfinite().all()


def ends_of_generate(folder):
    """The ids at which the model's own `generate` stops."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    model._prepare_special_tokens(settings := model.generation_config, kwargs_has_attention_mask=True)
    return set(settings._eos_token_tensor.tolist())


def test_the_tokenizers_end_token_and_those_of_the_generation_settings_all_count(folder):
    edit(folder / "generation_config.json", eos_token_id=[7, 9])
    made = loaded(folder)
    assert made.encoder.eos == {EOS, 7, 9}
    assert made.encoder.response(problems()[0], 0)[0][-1] == EOS


def test_without_generation_settings_the_configurations_end_token_counts(folder):
    (without_own_end(folder) / "generation_config.json").unlink()
    edit(folder / "config.json", eos_token_id=9)
    assert loaded(folder).encoder.eos == {9} == ends_of_generate(folder)


@pytest.mark.parametrize("ends", [["x"], [1.5], [60], [-1], [True], "eos"])
def test_end_tokens_that_are_no_ids_are_refused(folder, ends):
    edit(folder / "generation_config.json", eos_token_id=ends)
    with pytest.raises(ConfigError, match=r"its end tokens \(eos_token_id\) are .*, expected ids from 0 to 59"):
        loaded(folder)


def test_a_model_that_knows_no_end_is_refused(folder):
    edit(without_own_end(folder) / "config.json", eos_token_id=None)
    (folder / "generation_config.json").unlink()
    with pytest.raises(ConfigError, match=r"neither its tokenizer \(eos_token\) nor its generation_config\.json"):
        loaded(folder)
