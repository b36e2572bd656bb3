"""The HTML report: one file, no network, every token with its colour and its numbers."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from small_runs import command, edit_execution, verify

from posttrain.artifacts.documents import read
from posttrain.artifacts.gap import LABEL, TEACHER, gap_closed
from posttrain.reporting import html, results
from posttrain.reporting.claims import check_text
from posttrain.reporting.licence import licence_of
from posttrain.reporting.reading import Entry, File, Suite
from posttrain.reporting.samples import sample_blocks

VOID = {"meta", "link", "br", "img", "input", "hr", "col"}


class Reader(HTMLParser):
    """Ids, references and whether every element is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.references, self.faults = [], [], [], []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.references += [found[key] for key in ("src", "href", "xlink:href", "action", "data") if key in found]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)


@pytest.fixture(scope="module")
def page(runs):
    return html.render(html.read_run(runs.controlled), verify(runs.controlled))


def test_the_page_is_closed_and_reaches_for_nothing(page):
    reader = Reader()
    reader.feed(page)
    assert reader.faults == []
    assert reader.open == []
    assert all(reference.startswith(("#", "data:,")) for reference in reader.references)
    assert not re.search(r"@import|fetch\(|XMLHttpRequest|url\((?!#)", page)


def test_ids_are_unique_but_for_the_seeds_that_the_button_hides(page):
    reader = Reader()
    reader.feed(page)
    ids = [name for name in reader.ids if not name.startswith("seed-")]
    assert len(set(ids)) == len(ids)
    targets = {reference[1:] for reference in reader.references if reference.startswith("#")}
    targets |= set(re.findall(r"url\(#([^)]+)\)", page))
    assert targets <= set(ids)


def test_every_part_is_there(page):
    for heading in ("Verdict and reasons", "Held-out measurements", "KL and entropy at every step",
                    "Selected positions", "Loss, gradient and reward", "Cost", "Sampled completions",
                    "Where this comes from"):  # fmt: skip
        assert f"<h2>{heading}</h2>" in page
    assert page.count("<svg ") == len(re.findall("</svg>", page)) >= 10
    assert "Checked at V0, V1, V2." in page
    assert "95 % interval" in page


def test_the_same_run_gives_the_same_bytes(runs, page):
    assert html.render(html.read_run(runs.controlled), verify(runs.controlled)) == page


def test_claims_are_shown_with_their_outcomes(runs):
    page = html.render(html.read_run(runs.study), verify(runs.study))
    for claim in json.loads((runs.study / "artifact.json").read_text())["mechanism"]["claims"]:
        assert f"<td>{claim['outcome']}</td>" in page


def test_a_damaged_run_is_reported_as_not_verified(run):
    text = (run / "artifact.json").read_text().replace('"accuracy": 0.', '"accuracy": 0.1', 1)
    (run / "artifact.json").write_text(text)
    assert "Not verified: " in html.render(html.read_run(run), verify(run))


@pytest.mark.parametrize("name", ["artifact.json", "plan.json", "execution.json", "metrics.jsonl", "samples.jsonl"])
def test_an_incomplete_run_is_named(run, name, capsys):
    (run / name).unlink()
    assert command("report", str(run))[0] == 1
    assert f"is incomplete: there is no {name}" in capsys.readouterr().err


def test_a_broken_row_is_named_with_its_line(run, capsys):
    (run / "samples.jsonl").write_text('{"seed": 1}\n{"seed": NaN}\n')
    assert command("report", str(run))[0] == 1
    assert "samples.jsonl:2" in capsys.readouterr().err


def test_the_report_lies_beside_the_run_and_not_in_it(run):
    before = sorted(path.name for path in run.iterdir())
    code, said = command("report", str(run))
    assert code == 0
    assert said.strip().endswith("run-report.html")
    assert sorted(path.name for path in run.iterdir()) == before


def rows(**changed):
    row = {"seed": 42, "step": 3, "problem": "p", "prompt": "1+1", "completion": "2 <b>", "answer": "2",
           "tokens": ["2", "<b>"], "logprobs": [-1.0, -2.0], "teacher_logprobs": [-0.5, -4.0],
           "supervised": [False, True]}  # fmt: skip
    return [{**row, **changed}]


def test_tokens_are_coloured_by_the_teachers_log_ratio_and_supervised_ones_framed():
    text = sample_blocks(rows())
    first, second = re.findall(r"<span(?! class=(?:right|wrong)).*?</span>", text)
    assert "--teacher" in first and "0.19" in first and "log-ratio +0.500" in first and "class=kept" not in first
    assert "--student" in second and "0.75" in second and "log-ratio -2.00" in second and "class=kept" in second
    assert "&lt;b&gt;" in second


def test_hostile_text_stays_text():
    text = sample_blocks(rows(prompt="<script>alert(1)</script>", tokens=['"><script>'], logprobs=[-1.0],
                              teacher_logprobs=[-1.0], supervised=[False]))  # fmt: skip
    assert "<script>" not in text


def test_samples_without_tokens_are_shown_as_they_are():
    old = [{key: value for key, value in rows()[0].items() if key not in ("tokens", "logprobs", "teacher_logprobs")}]
    assert "2 &lt;b&gt;" in sample_blocks(old)
    assert "None was kept" in sample_blocks([])


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser")
@pytest.mark.slow
def test_a_browser_opens_it_without_a_word_on_its_console(page, tmp_path):
    (tmp_path / "report.html").write_text(page)
    command_line = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
                    f"--screenshot={tmp_path / 'report.png'}", (tmp_path / "report.html").as_uri()]  # fmt: skip
    done = subprocess.run(command_line, capture_output=True, text=True, timeout=60, check=True)
    assert "CONSOLE" not in done.stderr
    assert (tmp_path / "report.png").stat().st_size > 10_000


def test_the_cost_of_a_phase_has_its_seconds_tokens_and_peak_memory(run):
    def change(record):
        record["phases"] = {"sample": 2.5, "reward": 0.25}
        record["phase_tokens"] = {"sample": 12345}
        record["phase_peak_bytes"] = {"sample": 3 * 2**20 // 2}

    edit_execution(run, change)
    page = html.render(html.read_run(run), verify(run))
    sample, reward = re.findall(r"<tr><td>(?:sample|reward)</td>.*?</tr>", page)
    assert re.findall(r"<td class=n>(.*?)</td>", sample) == ["2.50", "12345", "1.50 MiB"]
    assert re.findall(r"<td class=n>(.*?)</td>", reward) == ["0.250", "–", "–"]


def answer(step, completion, accuracy, seed=42):
    return {"seed": seed, "step": step, "decoding": "greedy", "problem": "p", "prompt": "1+1", "answer": "2",
            "completion": completion, "accuracy": accuracy}  # fmt: skip


def test_the_answers_of_each_evaluation_stand_below_each_other_with_their_grades():
    table = [answer(0, "3", 0.0), answer(4, "2", 1.0), answer(8, "two <b>", None), answer(8, "x", 0.5, seed=43)]
    text = sample_blocks([*table, *rows()])
    first, second = re.findall(r"<details.*?</details>", text, re.DOTALL)
    cells = re.findall(r"<tr><td class=n>(.*?)</td><td class=tokens>(.*?)</td><td>(.*?)</td></tr>", first)
    assert cells == [("0", "3", "✗"), ("4", "2", "✓"), ("8", "two &lt;b&gt;", "not readable")]
    assert 'data-seed="43"' in second and "<td>0.5000</td>" in second
    assert text.count("<div class=sample") == 1  # the sampled completion, shown as without the answers
    assert text.startswith(sample_blocks(rows()))


def test_a_run_of_today_has_its_answers_in_the_page(page):
    assert "<h2>Answers over the steps</h2>" in page


def test_blanks_of_a_token_can_be_seen():
    text = sample_blocks(rows(tokens=[" 4", "\n"]))
    assert ">·4</span>" in text and ">↵</span>" in text


@pytest.mark.parametrize("teacher", [2.0, 0.0])
def test_the_share_of_the_gap_to_the_teacher_is_shown_and_has_its_licence(teacher, runs):
    """A run dressed as one of a language model, whose teacher is above the start or is not."""
    folder = runs.controlled
    value, plan, execution = (read(folder / f"{name}.json") for name in ("artifact", "plan", "execution"))
    value["evaluation_protocol"]["tier"] = "l2_tiny_lm"
    for run in value["runs"]:
        run["measures"] = {TEACHER: teacher}
    entry = Entry(*(File(f"docs/{i}.json", "", part) for i, part in enumerate((value, plan, execution))))
    text = results.section(entry, {}, "docs", Suite(folder, ()))
    gap = gap_closed(value)
    assert f"| {LABEL} |" in text
    assert ("undefined: in 6 of 6 seeds" in text) == (gap.mean is None) == (teacher == 0.0)
    licence = licence_of([entry])
    assert check_text("page.md", text, licence, written=(0, 0)) == []
    if gap.mean is not None:  # without the runs that give the share, nothing licenses it
        for run in value["runs"]:
            run["measures"] = {}
        assert check_text("page.md", text, licence_of([entry]), written=(0, 0)) != []
