"""Prompts and data rows as ids: one beginning, one end, nothing cut in silence, nothing rendered in two ways."""

import json
from dataclasses import replace

import pytest
import tiny_lm
import torch
from tiny_lm import BOS, EOS, WORDS, policy, tokenizer

from posttrain.batch import Problem
from posttrain.policies.causal_lm import CausalLM, CausalLMPolicy
from posttrain.policies.lm_encoding import Template
from posttrain.registry import ConfigError
from posttrain.settings import component

CHAT = [{"role": "user", "content": "w1 w2"}]
THINK = (
    "<bos>{% for m in messages %}{{ '<u> ' + m.content + ' </u>' if m.role == 'user' else '<a> ' + m.content + ' <eos>'"
    " }}{% endfor %}{% if add_generation_prompt %}<a>{% if enable_thinking is not false %} w53{% endif %}{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role, please') }}{% endif %}" + (
    tiny_lm.CHAT
)


def ids(text):
    return [WORDS.index(word) for word in text.split()]


def adding_bos():
    """A tokenizer that writes <bos> in front of everything it is not told to leave alone."""
    from tokenizers.processors import TemplateProcessing

    made = tokenizer.__wrapped__()
    made.backend_tokenizer.post_processor = TemplateProcessing("<bos> $A", special_tokens=[("<bos>", BOS)])
    return made


def chat(written=None, given=None, **options):
    made = tokenizer.__wrapped__(tiny_lm.CHAT if written is None else written)
    config = CausalLM(dtype="float64", max_completion_tokens=6, max_prompt_tokens=16, **options)
    problem = Problem("c", "", "w3", responses=("w3",), meta={"messages": CHAT if given is None else given})
    return CausalLMPolicy(config, tiny_lm.model(), made, [problem], False), problem


def test_a_plain_prompt_begins_as_the_tokenizer_begins_and_once_at_that():
    plain = Problem("p", "w1 w2", "")
    assert policy().encoder.prompt(plain) == ids("w1 w2")
    encoder = replace(policy().encoder, tokenizer=adding_bos())
    assert encoder.prompt(plain) == [BOS, *ids("w1 w2")]
    assert encoder.prompt(replace(plain, prompt="<bos> w1 w2")) == [BOS, *ids("w1 w2")]


def test_br_25_exactly_one_beginning_in_prompt_sample_data_row_and_teacher():
    made, problem = chat()
    made.encoder = replace(made.encoder, tokenizer=adding_bos())
    prompt = ids("<bos> <u> w1 w2 </u> <a>")
    sampled, data, greedy = made.sample([problem], 2, None, 0, 1), made.respond([problem], 0, 0), made.greedy([problem])
    for rollouts in (sampled, data, greedy):
        for row, mask in zip(rollouts.prompt_ids, rollouts.prompt_mask, strict=True):
            assert row[mask].tolist() == prompt
        assert not (rollouts.completion_ids[rollouts.mask] == BOS).any()
    rendered = made.encoder.tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert rendered == prompt


def test_br_25_the_completion_is_the_answer_and_its_end_and_never_the_header():
    made, problem = chat()
    rows = made.respond([problem], 0, 0)
    assert rows.completion_ids[rows.mask].tolist() == ids("w3 <eos>")
    assert rows.texts == ("w3",)
    assert not rows.truncated.any()


def test_br_25_a_prompt_that_is_rendered_otherwise_once_an_answer_follows_is_refused_by_number():
    made, problem = chat(THINK)
    with pytest.raises(ConfigError, match=r"row 0 of problem `c`.*first at token 6"):
        made.respond([problem], 0, 0)
    made, problem = chat(THINK, template=Template(enable_thinking=False))
    assert made.respond([problem], 0, 0).completion_ids.tolist() == [ids("w3 <eos>")]


def test_br_25_a_template_that_refuses_says_so_in_a_plain_message():
    with pytest.raises(ConfigError, match="refuses the messages of problem `c`: no system role, please"):
        chat(NO_SYSTEM, [{"role": "system", "content": "w1"}, *CHAT])


def test_br_25_messages_without_a_template_are_refused():
    with pytest.raises(ConfigError, match="has no chat template"):
        chat("")


def test_a_plain_prompt_may_become_a_message():
    made = policy(template=Template(wrap=True))
    assert made.encoder.prompt(Problem("p", "w1 w2", "")) == ids("<bos> <u> w1 w2 </u> <a>")


def test_what_a_template_writes_behind_the_end_is_no_part_of_the_completion():
    behind = tiny_lm.CHAT.replace("' <eos>'", "' <eos> w9'")
    made, problem = chat(behind)
    assert made.respond([problem], 0, 0).completion_ids.tolist() == [ids("w3 <eos>")]


def test_br_06_an_end_token_in_an_earlier_turn_shortens_nothing():
    earlier = [*CHAT, {"role": "assistant", "content": "w4"}, *CHAT]
    made, problem = chat(given=earlier)
    rows = made.respond([problem], 0, 0)
    expected = ids("<bos> <u> w1 w2 </u> <a> w4 <eos> <u> w1 w2 </u> <a>")
    assert rows.prompt_ids[rows.prompt_mask].tolist() == expected
    assert rows.completion_ids[rows.mask].tolist() == ids("w3 <eos>")


def test_br_06_data_rows_end_with_their_end_token_inside_the_mask():
    made = policy()
    rows = made.respond(tiny_lm.problems(), 0, 0)
    assert rows.mask.sum(1).tolist() == [3, 4] * 4
    last = rows.completion_ids.gather(1, rows.mask.sum(1, keepdim=True) - 1)
    assert set(last.flatten().tolist()) == {EOS}
    assert not rows.logprobs.any()
    assert set(rows.source.tolist()) == {2}
    assert rows.group_size == 2


def test_a_data_row_over_the_limit_is_cut_and_marked():
    made = policy(max_completion_tokens=3)
    rows = made.respond(tiny_lm.problems(), 0, 0)
    assert rows.truncated.tolist() == [False, True] * 4
    assert EOS not in rows.completion_ids[1].tolist()


def test_a_prompt_over_the_limit_is_refused_before_training_and_named():
    with pytest.raises(ConfigError, match="prompt of problem `p2` has 5 tokens, the limit is 4"):
        policy(max_prompt_tokens=4)


def test_a_prompt_without_tokens_is_refused():
    with pytest.raises(ConfigError, match="problem `empty` has no tokens"):
        policy(given=[Problem("empty", "", "")])


def test_problems_with_different_numbers_of_rows_are_refused():
    given = tiny_lm.problems(2)
    with pytest.raises(ConfigError, match=r"have \[1, 2\] responses each"):
        policy().respond([given[0], replace(given[1], responses=("w1",))], 0, 0)


def test_prompts_are_left_padded_to_one_width():
    made = policy()
    found, mask = made.prompts(tiny_lm.problems(), 2)
    assert found.shape == (8, 5)
    assert mask.sum(1).tolist() == [3, 3, 1, 1, 5, 5, 2, 2]
    assert bool((mask.int().diff(dim=1) >= 0).all())


def test_the_digest_follows_template_and_options():
    digests = {
        policy(template=template).encoder.digest
        for template in (
            Template(),
            Template(wrap=True),
            Template(enable_thinking=False),
            Template(enable_thinking=True),
        )
    }
    assert len(digests) == 4
    assert chat(THINK, template=Template(enable_thinking=False))[0].encoder.digest not in digests


def test_br_06_a_model_overfitted_on_one_line_gives_its_end_the_highest_probability():
    made = policy("llama", "float32")
    line = [Problem("line", "w1", "", responses=("w2 w3 w4",))]
    rows = made.respond(line, 0, 0)
    optimizer = torch.optim.Adam(made.parameters(), lr=0.02)
    for _ in range(25):
        optimizer.zero_grad()
        (-made.score(rows, rows.mask).logprobs.sum()).backward()
        optimizer.step()
    assert made.greedy(line).completion_ids.tolist() == [ids("w2 w3 w4 <eos>")]


# -- templates, tokenizers and data, end to end -----------------------------------------------------------------------


def test_br_25_the_five_paths_agree_about_every_id():
    """BR-25: one BOS, at index 0, in SFT rows, rollouts, reference, teacher and evaluation; 2 tokens are trained."""
    from posttrain.teachers.base import Surroundings
    from posttrain.teachers.frozen import Frozen

    made, problem = chat()
    made.encoder = replace(made.encoder, tokenizer=adding_bos())
    reference = made.snapshot()
    teacher = Frozen(model="itself").build(Surroundings(made, load=lambda model: reference))
    rows = {"sft": made.respond([problem], 0, 0), "rollout": made.sample([problem], 1, None, 0, 1)}
    rows["evaluation"] = made.greedy([problem])
    prompts = {tuple(r.prompt_ids[r.prompt_mask].tolist()) for r in rows.values()}
    rendered = made.encoder.tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    direct = made.encoder.tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert (
        prompts == {tuple(direct)} == {tuple(made.encoder.tokenizer(rendered, add_special_tokens=False)["input_ids"])}
    )
    assert [direct.index(BOS), direct.count(BOS)] == [0, 1]
    sft = rows["sft"]
    assert sft.completion_ids[sft.mask].tolist() == ids("w3 <eos>")
    ours = made.score(sft, sft.mask).logprobs
    # Reference and teacher price the ids of the rollout, never a text of their own.
    for other in (reference.targets(sft, sft.mask).logprobs, teacher.targets(sft, sft.mask, None).logprobs):
        assert torch.equal(other, ours)


def test_br_25_every_row_of_a_dataset_is_tried_before_training_and_refused_by_number(tmp_path):
    """BR-25: full_ids[:len(prompt_ids)] == prompt_ids, else that row is refused by number."""
    from posttrain.data.files import Files

    table = [{"messages": [*CHAT, {"role": "assistant", "content": f"w{i}"}]} for i in range(3)]
    table = [{"messages": [{"role": "user", "content": f"w{i}"}, row["messages"][1]]} for i, row in enumerate(table)]
    (tmp_path / "talk.jsonl").write_text("\n".join(map(json.dumps, table)))
    problems = Files(path=str(tmp_path / "talk.jsonl"), held_out=1).build(0)
    made, _ = chat(THINK)
    for problem in problems.train:
        with pytest.raises(ConfigError, match=rf"row 0 of problem `talk\.jsonl:{problem.id[-1]}`.*first at token 5"):
            made.respond([problem], 0, 0)


@pytest.mark.parametrize(
    ("template", "field"),
    [
        (Template(enable_thinking=False), r"template\.enable_thinking"),
        (Template(reasoning_effort="low"), r"template\.reasoning_effort"),
        (Template(options={"date_string": "today"}), r"template\.options\.date_string"),
    ],
)
def test_an_option_that_the_template_never_reads_is_refused(template, field):
    with pytest.raises(ConfigError, match=rf"policy\.{field}: the chat template of policy\.model never mentions it"):
        chat(template=template)


def test_any_option_of_a_template_reaches_it():
    written = tiny_lm.CHAT.replace("<bos>", "<bos>{% if greet is defined %} w{{ greet }} {% endif %}")
    assert chat(written)[0].encoder.prompt(chat(written)[1]) == ids("<bos> <u> w1 w2 </u> <a>")
    made, problem = chat(written, template=Template(options={"greet": 7}))
    assert made.encoder.prompt(problem) == ids("<bos> w7 <u> w1 w2 </u> <a>")
    with pytest.raises(ConfigError, match=r"template\.options\.tokenize: the program itself decides"):
        Template(options={"tokenize": True})


def test_the_command_line_gives_a_template_any_option():
    made, spelled = component("policy", {"name": "causal_lm", "template": {"options": {"date_string": "1 May"}}})
    assert made.template.keywords() == spelled["template"]["options"] == {"date_string": "1 May"}
    with pytest.raises(ConfigError, match=r"policy\.template\.options: found 'x', expected options by name"):
        component("policy", {"name": "causal_lm", "template": {"options": "x"}})
    with pytest.raises(ConfigError, match=r"policy\.template\.options\.a: .*read elsewhere"):
        component("policy", {"name": "causal_lm", "template": {"options": {"a": "${oc.env:HOME}"}}})


def test_the_tokenizers_digest_follows_what_turns_text_into_ids_and_not_how_it_was_used():
    first = policy().encoder.tokenizer_digest
    used = tokenizer.__wrapped__()
    used(["w1", "w1 w2"], padding=True, truncation=True, max_length=1)
    assert replace(policy().encoder, tokenizer=used).tokenizer_digest == first
    assert replace(policy().encoder, tokenizer=adding_bos()).tokenizer_digest != first
    other = tokenizer.__wrapped__(words=(*WORDS[:-2], WORDS[-1], WORDS[-2]))
    assert replace(policy().encoder, tokenizer=other).tokenizer_digest != first


def test_br_06_with_pad_equal_to_eos_or_none_at_all_the_end_is_trained_and_the_vocabulary_keeps_its_size():
    """BR-06 (a), (c): masks come from lengths; no id past the embedding; rows of different length work."""
    for pad in ("<eos>", None):
        used = tokenizer.__wrapped__()
        used.pad_token = pad
        config = CausalLM(dtype="float64", max_completion_tokens=6, max_prompt_tokens=16)
        given = [Problem("a", "w1", "", responses=("w5 w6",)), Problem("b", "w1 w2 w3", "", responses=("w7",))]
        made = CausalLMPolicy(config, tiny_lm.model(), used, given, False)
        rows = made.respond(given, 0, 0)
        assert [row[mask].tolist() for row, mask in zip(rows.completion_ids, rows.mask, strict=True)] == [
            ids("w5 w6 <eos>"),
            ids("w7 <eos>"),
        ]
        assert rows.mask.sum().item() == 5
        assert len(made.model.get_input_embeddings().weight) == 60
        drawn = made.sample(given, 2, None, 0, 1)
        assert drawn.completion_ids.max() < 60


def test_br_06_what_is_cut_at_the_limit_is_truncated_and_what_ends_there_is_not():
    """BR-06 (b): masks [1,1,1,0,0] and [1,1,1,1,1]; the second is flagged, the first is not."""
    given = [Problem("a", "w1", "", responses=("w7 w8",)), Problem("b", "w1", "", responses=("w7 w8 w9 w5 w6",))]
    rows = policy(max_completion_tokens=5).respond(given, 0, 0)
    assert rows.mask.int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert rows.truncated.tolist() == [False, True]


SPECIAL = ["<eos>", "<bos>", "<pad>", "<u>", "</u>", "<a>"]


@pytest.mark.parametrize("token", SPECIAL)
@pytest.mark.parametrize("place", ["prompt", "message", "response", "answer"])
def test_text_that_spells_a_special_token_is_refused_by_row_and_never_becomes_that_token(token, place):
    """In a plain prompt, in a turn of a conversation, in a completion to imitate and in an assistant's turn."""
    text = f"w1 {token} w2"
    if place in ("prompt", "response"):
        row = Problem("rows.jsonl:7", text if place == "prompt" else "w1", "", responses=(text,))
        encoder = policy().encoder
    else:
        turn = [{"role": "user", "content": text if place == "message" else "w1"}]
        row = Problem("rows.jsonl:7", "", "", responses=(text,), meta={"messages": turn})
        encoder = chat()[0].encoder
    with pytest.raises(
        ConfigError, match=rf"of problem `rows\.jsonl:7` holds the text '{token}', .*special_text=token"
    ):
        encoder.prompt(row) if place in ("prompt", "message") else encoder.response(row, 0)


def test_a_template_writes_its_own_special_tokens_and_a_plain_prompt_may_begin_with_its_beginning():
    made, problem = chat()
    assert made.encoder.prompt(problem) == ids("<bos> <u> w1 w2 </u> <a>")
    assert policy().encoder.prompt(Problem("p", "<bos> w1", "")) == ids("<bos> w1")
    with pytest.raises(ConfigError, match="holds the text '<bos>'"):
        policy().encoder.prompt(Problem("p", "<bos> w1 <bos>", ""))


def test_special_tokens_in_a_text_are_tokens_where_that_is_asked_for():
    encoder = replace(policy().encoder, template=Template(special_text="tokens"))
    rendered = Problem("p", "<bos> <u> w1 </u> <a>", "", responses=("w2 <eos>",))
    assert encoder.prompt(rendered) == ids("<bos> <u> w1 </u> <a>")
    assert encoder.response(rendered, 0)[0] == ids("w2 <eos> <eos>")


def test_without_special_tokens_every_text_is_text():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({"x": 0, "<eos>": 1}, unk_token="x"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    encoder = replace(policy().encoder, tokenizer=PreTrainedTokenizerFast(tokenizer_object=made))
    assert encoder.prompt(Problem("p", "x <eos>", "")) == [0, 1]
