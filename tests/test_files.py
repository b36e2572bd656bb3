"""Rows from files: read exactly, kept or counted, never on both sides of a split, and pinned by their fingerprint."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.data.files import Files
from posttrain.data.reading import AbsentData, read_table
from posttrain.data.rows import Columns, question_of
from posttrain.evaluation import records
from posttrain.registry import ConfigError
from posttrain.settings import component

ROOT = Path(__file__).parents[1]
# {"q":"a<U+2028>b"} CRLF {"q":"<e-acute>"} LF LF {"q":"c"}, without a last line end
SAMPLE = '{"q":"a\u2028b"}\r\n{"q":"\u00e9"}\n\n{"q":"c"}'.encode()
BOM = b"\xef\xbb\xbf"


def write(folder, data, name="data.jsonl"):
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else "\n".join(map(json.dumps, data)).encode())
    return path


def rows(count=10, **more):
    return [{"prompt": f"q{i}", "answer": str(i), **more} for i in range(count)]


def build(path, seed=0, **options):
    return Files(path=str(path), **options).build(seed)


def everything(problems):
    return (*problems.train, *problems.validation)


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "POSIX"])
@pytest.mark.parametrize("mark", [b"", BOM], ids=["plain", "bom"])
def test_br_35_three_records_in_every_locale(tmp_path, locale, mark):
    """BR-35: 3 records 'a<U+2028>b', e-acute, 'c'; str.splitlines would make 5 pieces."""
    assert len(SAMPLE.decode().splitlines()) == 5
    path = write(tmp_path, mark + SAMPLE)
    code = (
        "import sys; from pathlib import Path; from posttrain.data.reading import read_table;"
        "print(ascii([(n, row['q']) for n, row in read_table(Path(sys.argv[1]), 'dataset.path').rows]))"
    )
    variables = {**os.environ, "LC_ALL": locale, "LANG": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = subprocess.run(
        [sys.executable, "-c", code, str(path)], env=variables, cwd=ROOT, capture_output=True, text=True
    )
    assert ended.stdout.strip() == ascii([(1, "a\u2028b"), (2, "\u00e9"), (4, "c")]), ended.stderr


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (SAMPLE.replace(b"\xc3\xa9", b"\xe9"), r"data\.jsonl, line 2: byte 0xe9 is not UTF-8"),
        (SAMPLE.replace(b"\n\n", b'\n{"q":\n'), r"data\.jsonl, line 3: is not valid JSON"),
        (b'{"q":1}\n[1]', r"line 2: found a list, expected an object"),
        (b'{"q":1}\nnull', r"line 2: found null"),
        (b'{"q":1,"q":2}', r"line 1: .*key 'q' stands twice"),
        (b'{"q":NaN}', r"line 1: .*NaN is no JSON number"),
        (b'{"q":"\\ud800"}', r"line 1: .*half a character"),
        (b'{"q":1} {"q":2}', r"line 1: is not valid JSON"),
        ("\ufeffé".encode("utf-16"), r"line 1: byte 0xff is not UTF-8"),
        (b"[" * 100_000, r"line 1: is not valid JSON"),
    ],
)
def test_br_35_what_cannot_be_read_is_refused_with_file_and_line(tmp_path, data, message):
    """BR-35: a Latin-1 byte on line 2, a broken line 3."""
    with pytest.raises(ConfigError, match=message):
        read_table(write(tmp_path, data), "dataset.path")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("d.csv", b"a,b\n1,2\n1,2,3\n", r"d\.csv, line 3: found 3 values for 2 columns"),
        ("d.csv", b"a,a\n1,2\n", r"line 1: two columns are called `a`"),
        ("d.csv", b"a;b\n1;2\n", r"d\.csv, line 1: ';' parts the columns\. Save it with commas"),
        ("d.csv", b"a\tb\n1\t2\n", r"line 1: '\\t' parts the columns"),
        ("d.csv", b'a,b\n"1,2\n', r"line 2: is not valid CSV"),
        ("d.csv", b"a,b\n1,\xe9\n", r"d\.csv, line 2: byte 0xe9 is not UTF-8"),
        ("d.json", b'{"a": 1}', r"d\.json: found one object, expected one list of objects.*\.jsonl"),
        ("d.json", b'[{"a": 1}, 2]', r"d\.json, row 2: found 2"),
        ("d.json", b'[{"a":\n\n1', r"d\.json: is not valid JSON"),
        ("d.parquet", b"PAR1 no", r"d\.parquet: is not a readable Parquet file"),
        ("d.txt", b"", r"found `d\.txt`, expected a file that ends in \.jsonl"),
    ],
)
def test_every_other_format_names_file_and_place_too(tmp_path, name, data, message):
    with pytest.raises(ConfigError, match=message):
        read_table(write(tmp_path, data, name), "dataset.path")


def test_a_file_that_is_not_there_is_named_with_the_setting(tmp_path):
    with pytest.raises(AbsentData, match=r"dataset\.validation: there is no file"):
        build(write(tmp_path, rows()), validation=str(tmp_path / "none.jsonl"))


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(table=st.lists(st.fixed_dictionaries({"prompt": TEXT, "n": st.integers(0, 9)}), min_size=1, max_size=8))
@pytest.mark.parametrize("kind", ["jsonl", "crlf", "json", "csv", "parquet"])
def test_rows_come_back_as_they_were_written_in_every_format(tmp_path_factory, kind, table):
    folder = tmp_path_factory.mktemp("round")
    if kind in ("jsonl", "crlf"):
        end = "\r\n" if kind == "crlf" else "\n"
        data = end.join(json.dumps(row, ensure_ascii=False) for row in table).encode()
        path, expected = write(folder, data), table
    elif kind == "json":
        path, expected = write(folder, json.dumps(table).encode(), "d.json"), table
    elif kind == "csv":
        quoted = ['"{}",{}\r\n'.format(row["prompt"].replace('"', '""'), row["n"]) for row in table]
        path = write(folder, ("prompt,n\r\n" + "".join(quoted)).encode(), "d.csv")
        expected = [{"prompt": row["prompt"], "n": str(row["n"])} for row in table]
    else:
        path, expected = folder / "d.parquet", table
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), path)
    assert [row for _, row in read_table(path, "dataset.path").rows] == expected


def test_a_csv_row_bears_the_line_it_begins_on(tmp_path):
    path = write(tmp_path, b'prompt,answer\n"two\nlines",1\n\nb,2\n', "d.csv")
    assert [number for number, _ in read_table(path, "dataset.path").rows] == [2, 5]


def test_a_csv_value_may_be_longer_than_pythons_usual_limit(tmp_path):
    path = write(tmp_path, b"prompt\n" + b"x" * 200_000, "d.csv")
    assert len(read_table(path, "dataset.path").rows[0][1]["prompt"]) == 200_000


# -- rows as problems -------------------------------------------------------------------------------------------------

USER, SAID, OTHER = (
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo"},
    {"role": "assistant", "content": "no"},
)
SYSTEM = {"role": "system", "content": "be brief"}


@pytest.mark.parametrize(
    ("row", "prompt", "messages", "responses"),
    [
        ({"prompt": "hi", "answer": "1"}, "hi", None, ()),
        ({"question": "hi", "solution": "1"}, "hi", None, ()),
        ({"prompt": "hi", "completion": "yo"}, "hi", None, ("yo",)),
        ({"prompt": "hi", "chosen": "yo", "rejected": "no"}, "hi", None, ("yo", "no")),
        ({"text": "yo"}, "", None, ("yo",)),
        ({"prompt": [USER]}, "hi", [USER], ()),
        ({"prompt": [SYSTEM, USER], "completion": [SAID]}, "hi", [SYSTEM, USER], ("yo",)),
        ({"messages": [SYSTEM, USER, SAID]}, "hi", [SYSTEM, USER], ("yo",)),
        ({"messages": [USER, OTHER, USER]}, "hi", [USER, OTHER, USER], ()),
        ({"prompt": [USER], "chosen": [SAID], "rejected": [OTHER]}, "hi", [USER], ("yo", "no")),
        ({"chosen": [USER, SAID], "rejected": [USER, OTHER]}, "hi", [USER], ("yo", "no")),
        ({"prompt": "hi", "chosen": [USER, SAID], "rejected": [USER, OTHER]}, "hi", [USER], ("yo", "no")),
        ({"prompt": "hi", "completion": [SAID]}, "hi", [USER], ("yo",)),
        ({"prompt": "hi", "messages": [USER, SAID]}, "hi", None, ()),
    ],
)
def test_every_form_of_a_row_becomes_the_same_kind_of_problem(tmp_path, row, prompt, messages, responses):
    """TRL's standard and conversational rows, and pairs with the prompt inside or outside; no answer leaks into one."""
    other = json.loads(json.dumps(row).replace('"hi"', '"ho"').replace('"text": "yo"', '"text": "ya"'))
    (problem,) = [p for p in everything(build(write(tmp_path, [row, other]), held_out=1)) if p.id == "data.jsonl:1"]
    assert (problem.prompt, problem.responses) == (prompt, responses)
    assert problem.meta.get("messages") == messages


def test_the_answer_without_a_column_of_its_own_is_what_the_row_says(tmp_path):
    made = everything(build(write(tmp_path, [{"prompt": "a", "completion": "x"}, {"prompt": "b", "completion": "y"}])))
    assert {problem.prompt: problem.answer for problem in made} == {"a": "x", "b": "y"}


def test_other_columns_reach_reward_functions_and_values_of_columnar_files_do_not_disturb(tmp_path):
    table = [{"prompt": f"q{i}", "answer": i, "level": 3, "tests": ["a", "b"], "when": None} for i in range(3)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), tmp_path / "d.parquet")
    problem = build(tmp_path / "d.parquet").train[0]
    assert (problem.meta["level"], problem.meta["tests"], problem.answer) == (3, ["a", "b"], problem.prompt[1:])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "x", "other": 1}, r"row 2: has no `answer`; its columns are `prompt`, `other`"),
        ({"prompt": "x", "answer": None}, r"row 2: has no `answer`; its columns are `prompt`$"),
        ({"prompt": 3, "answer": "1"}, r"row 2: its prompt is 3, expected text"),
        ({"prompt": "x", "answer": [1]}, r"row 2: its answer is \[1\], expected text or a number"),
        ({"prompt": "x", "answer": True}, r"row 2: its answer is True"),
        ({"prompt": "x", "answer": " "}, r"row 2: its answer is empty"),
        ({"prompt": "", "answer": "1"}, r"row 2: its prompt is empty"),
        ({"prompt": [{"role": "user"}], "answer": "1"}, r"row 2: message 1 of its prompt .*expected role and content"),
        ({"prompt": [], "answer": "1"}, r"row 2: its prompt is \[\], expected messages"),
        ({"prompt": [USER, SAID], "answer": "1"}, r"row 2: its prompt ends with the assistant's turn"),
    ],
)
def test_a_row_that_lacks_something_is_refused_by_number_with_what_is_there(tmp_path, row, message):
    with pytest.raises(ConfigError, match=rf"data\.jsonl, {message}"):
        build(write(tmp_path, [{"prompt": "a", "answer": "1"}, row]))


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"q": "a"}, {}, r"columns\.prompt: data\.jsonl has no column of a usual name .*its columns are `q`"),
        ({"q": "a"}, {"columns": Columns(prompt="Q")}, r"has no `Q` \(dataset\.columns\.prompt\); its columns are `q`"),
        ({"prompt": "a", "chosen": "b"}, {}, r"columns\.rejected: data\.jsonl has no such column, but pairs need"),
        ({"chosen": "a", "rejected": "b"}, {}, r"row 1: has chosen and rejected as text, but no prompt"),
        ({"prompt": [USER], "completion": [USER]}, {}, r"row 1: its response ends with the user"),
        (
            {"prompt": [SYSTEM], "completion": [USER, SAID]},
            {},
            r"row 1: its response has more turns than one, and those before the last are not the prompt",
        ),
        (
            {"chosen": [USER, SAID], "rejected": [SYSTEM, OTHER]},
            {},
            r"row 1: its rejected has more turns than one",
        ),
        ({"prompt": "a", "answer": "7"}, {"answer_after": "####"}, r"row 1: its answer has no '####'"),
    ],
)
def test_columns_that_do_not_fit_are_refused_with_those_that_are_there(tmp_path, row, options, message):
    with pytest.raises(ConfigError, match=message):
        build(write(tmp_path, [row]), **options)


def test_columns_are_mapped_by_name_and_the_answer_may_stand_behind_a_mark(tmp_path):
    table = [{"q": f"{i}?", "worked": f"so {i} #### is\n#### {i},000 "} for i in range(4)]
    columns = Columns(prompt="q", answer="worked", response="worked")
    made = everything(build(write(tmp_path, table), columns=columns, answer_after="####"))
    assert {p.prompt: p.answer for p in made} == {f"{i}?": f"{i},000" for i in range(4)}
    assert all(p.responses == (p.meta["worked"],) for p in made)


# -- kept, counted, split ---------------------------------------------------------------------------------------------

QUESTIONS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 30)), min_size=2, max_size=40)


@settings(max_examples=80, deadline=None)
@given(
    drawn=QUESTIONS,
    held_out=st.sampled_from([0.1, 0.5, 1.0, 3.0]),
    limit=st.sampled_from([None, 8, 20]),
    caps=st.tuples(st.sampled_from([None, 2, 5]), st.sampled_from([None, 1])),
)
def test_kept_and_left_out_add_up_to_read_and_no_question_is_on_both_sides(
    tmp_path_factory, drawn, held_out, limit, caps
):
    path = write(tmp_path_factory.mktemp("d"), [{"prompt": f"q{a} " + "x" * b, "answer": a} for a, b in drawn])
    options = {"held_out": held_out, "max_prompt_characters": limit, "train_examples": caps[0]}
    try:
        made = build(path, **options, validation_examples=caps[1])
    except ConfigError as error:
        assert f"read {len(drawn)}, kept " in str(error)  # noqa: PT017
        return
    train, validation = ({question_of(p) for p in side} for side in (made.train, made.validation))
    assert not train & validation
    read, kept, out = (
        int(made.source.partition(word)[2].split(",")[0].split(";")[0].split(":")[0])
        for word in ("read ", "kept ", "left out ")
    )
    assert (read, kept) == (len(drawn), len(made.train) + len(made.validation))
    assert kept + out == read


@settings(max_examples=30, deadline=None)
@given(order=st.permutations(range(12)))
def test_which_rows_are_held_out_depends_on_no_order(tmp_path_factory, order):
    def held(table):
        return {p.prompt for p in build(write(tmp_path_factory.mktemp("d"), table), held_out=4).validation}

    assert held([rows(12)[i] for i in order]) == held(rows(12))


def test_a_seed_changes_nothing_unless_asked_and_then_the_split(tmp_path):
    path = write(tmp_path, rows(40))
    same = [build(path, seed) for seed in (0, 1)]
    assert same[0] == same[1]
    apart = [build(path, seed, resplit=True, held_out=10) for seed in (0, 1)]
    assert apart[0].validation != apart[1].validation
    assert {p.id for p in everything(apart[0])} == {p.id for p in everything(apart[1])}


def test_a_question_that_is_trained_on_and_held_out_is_refused_or_left_out_and_counted(tmp_path):
    train, other = write(tmp_path, rows(5)), write(tmp_path, [{"prompt": "q3", "answer": "x"}], "test.jsonl")
    with pytest.raises(ConfigError, match=r"dataset\.leaks: 1 of 5 .*`data\.jsonl:4` .*`test\.jsonl:1`"):
        build(train, validation=str(other))
    made = build(train, validation=str(other), leaks="drop")
    assert [p.prompt for p in made.train] == ["q0", "q1", "q2", "q4"]
    assert "data.jsonl: read 5, kept 4, left out 1: 1 whose question is held out (dataset.leaks)" in made.source


def test_held_out_rows_of_a_file_with_the_same_name_have_ids_of_their_own(tmp_path):
    (tmp_path / "test").mkdir()
    other = write(tmp_path / "test", [{"prompt": "z", "answer": "1"}])
    made = build(write(tmp_path, rows(2)), validation=str(other))
    assert [p.id for p in everything(made)] == ["data.jsonl:1", "data.jsonl:2", "validation/data.jsonl:1"]


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ([], {}, r"read 0, kept 0, left out 0\. data\.jsonl is empty"),
        (
            rows(3),
            {"max_prompt_characters": 1},
            r"no training problem is left: data\.jsonl: read 3, kept 0, left out 3: 3 with more than 1 characters",
        ),
        (rows(1), {}, r"no training problem is left: data\.jsonl: read 1, kept 1"),
    ],
)
def test_br_35_nothing_left_is_refused_with_what_was_read_kept_and_why(tmp_path, table, options, message):
    """BR-35: empty file, all rows over the limit: counts 'read r, kept k, why'."""
    with pytest.raises(ConfigError, match=message):
        build(write(tmp_path, table), **options)


def test_br_35_fewer_rows_than_a_step_needs_are_refused_before_a_model_is_looked_for(tmp_path, monkeypatch, capsys):
    """BR-35: less than a batch; the model's folder is not even there."""
    from posttrain.cli import main

    monkeypatch.chdir(tmp_path)
    write(tmp_path, rows(5))
    words = ["train", "grpo", "policy.model=./no-model", "dataset=data.jsonl", "reward=exact", "problems_per_step=8"]
    assert main([*words, "--output", "run"]) == 2
    said = capsys.readouterr().err
    assert "problems_per_step: found 8" in said
    assert "read 5, kept 5" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("held_out", [0, -1, 1.5, float("nan")])
def test_a_share_or_number_that_cannot_be_held_out_is_refused(held_out):
    with pytest.raises(ConfigError, match=r"dataset\.held_out: found"):
        Files(path="x.jsonl", held_out=held_out)


# -- what pins a file -------------------------------------------------------------------------------------------------


def fingerprint(path, **options):
    splits = records.drawn_splits("files", {"path": str(path), **options}, [0])
    return records.dataset_fingerprint(splits)


def test_a_fingerprint_follows_every_value_of_every_row_and_the_split_and_not_the_place(tmp_path):
    first = fingerprint(write(tmp_path, rows(6)))
    (tmp_path / "b").mkdir()
    assert fingerprint(write(tmp_path / "b", BOM + b"\r\n".join(json.dumps(r).encode() for r in rows(6)))) == first
    changed = [rows(6, note="x"), rows(7), rows(6)[::-1], [*rows(5), {"prompt": "q5", "answer": "6"}]]
    found = {fingerprint(write(tmp_path, table, "c.jsonl")) for table in changed} | {first}
    assert len(found) == 5
    assert fingerprint(write(tmp_path, rows(6)), held_out=2) != first


def test_columnar_values_that_json_lacks_have_a_fingerprint_too(tmp_path):
    import datetime

    table = [
        {"prompt": f"q{i}", "when": datetime.date(2026, 1, 1 + i), "bytes": b"\x00", "big": 2**60, "nan": float("nan")}
        for i in range(3)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), tmp_path / "d.parquet")
    assert fingerprint(tmp_path / "d.parquet").startswith("sha256:")


def block(path):
    from posttrain import settings as configuration

    overrides = {"policy.model": "./nowhere", "dataset": str(path), "reward": "exact", "problems_per_step": 2}
    return records.dataset_block(configuration.load("grpo", "l3", overrides=overrides))


def test_a_plan_names_a_file_without_its_place_and_draws_it_again_where_it_is(tmp_path, monkeypatch):
    path = write(tmp_path, rows(6), "My data.jsonl")
    found = block(path)
    assert str(tmp_path) not in json.dumps(found)
    assert (found["id"], found["config"]["path"]) == ("files-my-data", "./My data.jsonl")
    monkeypatch.chdir(ROOT)
    assert records.regenerate(found) is None
    monkeypatch.chdir(tmp_path)
    assert records.regenerate(found) == found["fingerprint"]
    write(tmp_path, rows(7), "My data.jsonl")
    assert records.regenerate(found) != found["fingerprint"]


def test_settings_of_files_are_checked_like_all_others():
    with pytest.raises(ConfigError, match=r"dataset\.columns\.promt.*Did you mean `prompt`"):
        component("dataset", {"name": "files", "columns": {"promt": "q"}})
    made, spelled = component("dataset", {"name": "files", "path": "d.jsonl", "columns": {"prompt": "q"}})
    assert made == replace(Files(path="d.jsonl"), columns=Columns(prompt="q"))
    assert spelled["columns"]["prompt"] == "q"


@pytest.mark.parametrize(("resplit", "said"), [(False, "neither rows nor split"), (True, "which rows are held out")])
def test_explain_says_what_a_seed_changes_in_fixed_rows(tmp_path, resplit, said):
    from posttrain import settings as configuration
    from posttrain.evaluation.experiment import solo
    from posttrain.evaluation.explain import explain

    overrides = {"policy.model": "./nowhere", "dataset": str(write(tmp_path, rows())), "dataset.resplit": resplit}
    config = configuration.load("grpo", "l3", overrides={**overrides, "reward": "exact"})
    assert f"problems      {said}" in explain(solo(config, None, []), tmp_path / "run")


# -- faults that were silent ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (
            {"validation_examples": 5},
            ["validation_examples: asked for 5, but dataset.held_out=0.1 of 25 rows gives 2", "dataset.held_out=5 to"],
        ),
        ({"train_examples": 30}, ["train_examples: asked for 30, but data.jsonl leaves 23", "Give more rows"]),
    ],
)
def test_fewer_examples_than_were_asked_for_are_refused_with_what_there_is_and_what_gives_them(
    tmp_path, options, parts
):
    path = write(tmp_path, rows(25))
    with pytest.raises(ConfigError) as found:
        build(path, **options)
    assert all(part in str(found.value) for part in [*parts, "read 25"])
    assert len(build(path, validation_examples=5, held_out=5).validation) == 5


def test_named_held_out_rows_are_not_fewer_than_were_asked_for_either(tmp_path):
    other = write(tmp_path, [{"prompt": "z", "answer": "1"}], "test.jsonl")
    with pytest.raises(ConfigError, match=r"validation_examples: asked for 3, but test\.jsonl has 1 .*Give more rows"):
        build(write(tmp_path, rows(5)), validation=str(other), validation_examples=3)


@pytest.mark.parametrize(
    ("data", "place"), [(b'{"q": 1}\n\n{"q":\n', "line 3"), (b'{"q": 1}\n{"q": 1} 2\n{"q": 2}', "line 2")]
)
def test_a_bad_line_is_named_by_one_number_alone(tmp_path, data, place):
    with pytest.raises(ConfigError, match=rf"data\.jsonl, {place}: is not valid JSON: .* \(column \d+\)") as found:
        build(write(tmp_path, data))
    assert str(found.value).count("line ") == 1


NAN = float("nan")


@pytest.mark.parametrize("answers", [[1.0, NAN, 3.0], [1.0, None, 3.0], ["1", None, "3"]])
def test_an_answer_that_a_column_lacks_is_a_row_without_one_and_never_a_text(tmp_path, answers):
    table = pyarrow.table({"prompt": ["a", "b", "c"], "answer": answers})
    pyarrow.parquet.write_table(table, tmp_path / "d.parquet")
    with pytest.raises(ConfigError, match=r"d\.parquet, row 2: has no `answer`; its columns are `prompt`$"):
        build(tmp_path / "d.parquet")


@pytest.mark.parametrize("text", ["nan", "NaN", "null", "NULL", ""])
def test_an_answer_that_a_csv_file_can_only_write_as_text_is_missing_too(tmp_path, text):
    path = write(tmp_path, f"prompt,answer\na,1\nnull,2\nb,{text}\n".encode(), "d.csv")
    with pytest.raises(ConfigError, match=r"d\.csv, row 4: its answer is"):
        build(path)


def test_a_text_that_says_so_is_an_answer_where_the_format_knows_missing_values(tmp_path):
    made = build(write(tmp_path, [{"prompt": "0/0?", "answer": "NaN"}, {"prompt": "b", "answer": "null"}]))
    assert {problem.answer for problem in everything(made)} == {"NaN", "null"}


VARIANTS = ["What is  2+2?", "what is 2+2?", "What is\n2+2? ", "\tWHAT IS 2+2?"]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "messages"])
def test_a_question_is_the_same_in_any_case_and_spacing_and_as_a_message(tmp_path, variant, wrapped):
    prompt = [{"role": "user", "content": variant}] if wrapped else variant
    train = write(tmp_path, [{"prompt": "What is 2+2?", "answer": "4"}, {"prompt": "other", "answer": "1"}])
    other = write(tmp_path, [{"prompt": prompt, "answer": "4"}], "test.jsonl")
    with pytest.raises(ConfigError, match=r"dataset\.leaks: 1 of 2 training rows ask a question that is held out too"):
        build(train, validation=str(other))


@pytest.mark.parametrize("other", ["What is 2+3?", "What is 2 + 2?", "Please: what is 2+2?"])
def test_what_the_leak_check_does_not_see_is_another_text(tmp_path, other):
    train = write(tmp_path, [{"prompt": "What is 2+2?", "answer": "4"}])
    assert len(build(train, validation=str(write(tmp_path, [{"prompt": other, "answer": "4"}], "t.jsonl"))).train) == 1


@pytest.mark.parametrize("order", [1, -1])
def test_copies_in_another_case_are_on_the_same_side_of_a_split_whatever_their_order(tmp_path, order):
    table = [{"prompt": text, "answer": "4"} for text in VARIANTS] + rows(6)
    made = build(write(tmp_path, table[::order]), held_out=0.3)
    sides = [{p.prompt for p in side} & set(VARIANTS) for side in (made.train, made.validation)]
    assert sorted(map(len, sides)) == [0, 4]
    assert [p.prompt for p in made.validation if p.prompt not in VARIANTS] == [
        p.prompt for p in build(write(tmp_path, table), held_out=0.3).validation if p.prompt not in VARIANTS
    ][::order]


def test_the_source_says_where_chosen_texts_stand_for_answers(tmp_path):
    pairs = [{"prompt": f"q{i}", "chosen": str(i), "rejected": "x"} for i in range(4)]
    said = "without a column of answers, the chosen texts stand for them"
    assert said in build(write(tmp_path, pairs)).source
    assert said not in build(write(tmp_path, [{**row, "answer": row["chosen"]} for row in pairs])).source
    named = [{**row, "right": row["chosen"]} for row in pairs]
    assert said not in build(write(tmp_path, named), columns=Columns(answer="right")).source
