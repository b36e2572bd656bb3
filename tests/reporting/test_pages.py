"""Pages are a pure function of the published files; hand-written text survives, every edit shows."""

import copy
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import (
    COMPARED,
    CONTROLLED_PLAN,
    DENSE,
    REPOSITORY,
    SMALL,
    STUDY,
    STUDY_PLAN,
    command,
    datasets,
    edit_json,
    make,
    methods,
    snapshot,
    verify,
)

from posttrain.artifacts.documents import read
from posttrain.artifacts.verdicts import BELOW_SESOI, BETTER, NO_EFFECT, WORSE
from posttrain.reporting import build, figures, manual, publishing, results, sentences
from posttrain.reporting.claims import check_text
from posttrain.reporting.formatting import number
from posttrain.reporting.licence import licence_of
from posttrain.reporting.reading import Entry, File, SuiteError, read_suite, received_files

PAGE = "docs/post-training/2609.04565-sparse-opd/README.md"
DPO = "docs/post-training/2305.18290-dpo/README.md"


def differences(root: Path) -> list[str]:
    return list(build.compare(root, build.build(root, methods(), datasets())))


def test_a_build_is_what_the_check_expects(published):
    built = build.build(published, methods(), datasets())
    assert differences(published) == []
    assert [str(problem) for problem in built.problems] == []


def test_two_builds_in_other_folders_locales_time_zones_and_hash_seeds_are_identical(published, tmp_path):
    code = (
        "import sys; from pathlib import Path; from posttrain.evaluation.facts import datasets, methods;"
        "from posttrain.reporting import build; root = Path(sys.argv[1]);"
        "build.write(root, build.build(root, methods(), datasets()))"
    )
    trees = []
    settings = {"one": ("C", "UTC", "1"), "other/place": ("de_DE.UTF-8", "Asia/Tokyo", "77")}
    for name, (locale, zone, seed) in settings.items():
        root = tmp_path / name
        shutil.copytree(published, root, ignore=shutil.ignore_patterns("README.md", "figures"))
        env = os.environ | {"LC_ALL": locale, "TZ": zone, "PYTHONHASHSEED": seed, "PYTHONPATH": str(REPOSITORY)}
        subprocess.run([sys.executable, "-c", code, str(root)], env=env, cwd=root, check=True)
        trees.append(snapshot(root))
    assert trees[0] == trees[1] == snapshot(published)


def test_every_page_ends_with_its_sources_and_names_no_machine(published):
    for path, data in build.build(published, methods(), datasets()).files.items():
        text = data.decode()
        assert str(published) not in text
        assert "/tmp/" not in text
        if path.endswith(".md"):
            assert text.rstrip().endswith("```\nposttrain docs build\nposttrain docs check\n```")
    page = (published / PAGE).read_text()
    for name in ("metrics/arithmetic-smoke-seeds42-44.json", "manifests/arithmetic-smoke-seeds42-44.json"):
        assert name in page
    assert "posttrain train sparse-opd steps=12\n" in page


def test_a_failed_claim_stands_like_a_confirmed_one(root):
    artifact = read(root / STUDY)
    page = (root / DPO).read_text()
    for claim in artifact["mechanism"]["claims"]:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {claim['id']} |")]
        assert claim["prediction"] in row
        assert row.endswith(f"| **{claim['outcome']}** |")


def test_every_registered_method_has_a_page_and_a_row_of_the_catalogue(published):
    catalogue = (published / "docs/post-training/README.md").read_text()
    for method in methods():
        page = (published / f"docs/post-training/{method.folder}/README.md").read_text()
        assert f"[`{method.name}`]({method.folder}/README.md)" in catalogue
        assert all(f"`algorithm.{option}`" in page for option in method.defaults)
        assert method.summary in page


def test_historical_records_are_marked_and_not_compared(published):
    page = (published / PAGE).read_text()
    assert "**historical, not verified**" in page  # the small run has other steps
    assert "**historical, not verified**" in (published / "docs/bench/README.md").read_text()


def test_hand_written_text_survives_a_rebuild_and_nothing_else_does(root):
    page = root / PAGE
    page.write_text(page.read_text().replace(manual.BEGIN + "\n", f"{manual.BEGIN}\nRead the paper first.\n"))
    page.write_text(page.read_text().replace("## Objective", "## Objectives"))
    build.write(root, build.build(root, methods(), datasets()))
    assert "Read the paper first." in page.read_text()
    assert "## Objectives" not in page.read_text()
    assert differences(root) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(manual.END, ""),
        lambda text: text.replace(manual.BEGIN, ""),
        lambda text: text.replace(manual.BEGIN, manual.BEGIN * 2),
        lambda text: text.replace(manual.BEGIN, "<!--manual:begin-->"),
        lambda text: text.replace(manual.BEGIN, "@").replace(manual.END, manual.BEGIN).replace("@", manual.END),
    ],
)
def test_broken_markers_are_named_and_nothing_is_overwritten(root, change, capsys):
    (root / PAGE).write_text(change((root / PAGE).read_text()))
    before = snapshot(root)
    code, _ = command("docs", "build", "--root", str(root))
    assert code == 3
    assert f"{PAGE}:" in capsys.readouterr().err
    assert snapshot(root) == before


def test_a_claim_without_licence_in_hand_written_text_fails_with_its_line(root):
    page = root / PAGE
    text = page.read_text().replace(manual.BEGIN + "\n", f"{manual.BEGIN}\nIt outperforms `dense`, by 0.987.\n")
    page.write_text(text)
    code, said = command("docs", "check", "--root", str(root))
    line = text[: text.index("It outperforms")].count("\n") + 1
    assert code == 1
    assert f"{PAGE}:{line}: 'outperforms' has no licence" in said
    assert f"{PAGE}:{line}: the number '0.987' is no result of sparse-opd that is published" in said


@pytest.mark.parametrize(
    "name",
    ["README.md", "docs/README.md", "docs/guide/new.md", "docs/bench/note.md", "docs/post-training/x/n.md"]
    + [f"docs/guide/new.{ending}" for ending in ("markdown", "mdown", "mkd", "MD")],
)
def test_every_hand_written_file_below_docs_is_at_the_gate(root, name):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("# Notes\n\n`sparse-opd` outperforms `dense`, by 0.987.\n")
    code, said = command("docs", "check", "--root", str(root))
    assert code == 1
    assert f"{name}:3: 'outperforms' has no licence" in said and f"{name}:3: the number '0.987'" in said


def test_decision_records_weigh_the_design_and_are_left_out(root):
    (root / "docs/adr").mkdir()
    (root / "docs/adr/0001.md").write_text("Reading took 0.987 of it.\n")
    assert command("docs", "check", "--root", str(root))[0] == 0


def test_the_check_prints_a_unified_difference_and_changes_nothing(root):
    (root / PAGE).write_text((root / PAGE).read_text().replace("3 seeds (42-44)", "4 seeds (42-45)"))
    before = snapshot(root)
    code, said = command("docs", "check", "--root", str(root))
    assert code == 1
    assert f"--- {PAGE} (on disk)" in said
    assert "-[arithmetic-smoke-seeds42-44](metrics/arithmetic-smoke-seeds42-44.json): arithmetic-smoke, 4 seeds" in said
    assert snapshot(root) == before


@pytest.mark.parametrize(
    "name",
    [
        "docs/post-training/2609.04565-sparse-opd/metrics/arithmetic-smoke-seeds42-44.json",
        COMPARED,
        DENSE,
        STUDY,
        "docs/post-training/manifests/arithmetic-smoke-seeds42-44.json",
        "docs/post-training/manifests/arithmetic-smoke-seeds42-44/sparse-opd.json",
        "docs/post-training/historical/sparse-opd-arithmetic-smoke-seeds42-44.json",
        "docs/bench/historical/sequence.json",
        PAGE,
        "docs/post-training/README.md",
        f"docs/post-training/2609.04565-sparse-opd/figures/{CONTROLLED_PLAN}-differences.svg",
    ],
)
def test_every_one_byte_edit_of_a_published_file_is_caught(root, name):
    """Hand-written text is the one thing that may change; everything else is bound by a digest or rebuilt."""
    path, draw = root / name, random.Random(name)
    data = path.read_bytes()
    missed = []
    for place in sorted(draw.sample(range(len(data)), 8)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            caught = bool(differences(root))
        except SuiteError:
            caught = True
        if not caught:
            missed.append(place)
    assert missed == []


def test_missing_files_are_caught(root):
    for name in (f"figures/{CONTROLLED_PLAN}-curves.svg", "README.md"):
        (root / f"docs/post-training/2609.04565-sparse-opd/{name}").unlink()
    assert [text.split(" is missing")[0].rpartition("/")[2] for text in differences(root)] == [
        "README.md",
        f"{CONTROLLED_PLAN}-curves.svg",
    ]


def test_files_that_nothing_generates_any_more_are_named(root):
    (root / "docs/post-training/2609.04565-sparse-opd/figures/old.svg").write_text("<svg/>")
    assert differences(root) == [
        "docs/post-training/2609.04565-sparse-opd/figures/old.svg is generated no more; delete it"
    ]


@pytest.mark.parametrize("name", ["notes.txt", "metrics/x.txt", "metrics/other.json.bak", "opd/run.log"])
def test_what_lies_among_published_files_and_is_none_is_named(root, name):
    path = root / "docs/post-training" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    code, said = command("docs", "check", "--root", str(root))
    assert code == 1 and f"docs/post-training/{name} is neither published nor a page" in said


@pytest.mark.parametrize("name", ["post-training/link", "bench/link.json", "post-training/opd/link.svg", "guide/link"])
def test_a_symbolic_link_among_published_files_is_named(root, name, tmp_path):
    (root / "docs" / name).parent.mkdir(exist_ok=True)
    (root / "docs" / name).symlink_to(tmp_path)
    code, said = command("docs", "check", "--root", str(root))
    assert code == 1 and f"docs/{name} is a symbolic link" in said


DEEP = "[" * 65 + "]" * 65


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"schema_version": 2,', "is not one JSON value"),
        ("1: {}", "is not one JSON value"),
        ('{"schema_version": 2, "schema_version": 2}', "stands twice"),
        ('{"schema_version": NaN}', "NaN is not JSON"),
        (f'{{"schema_version": {DEEP}}}', "nests deeper than 64"),
        ('{"schema_version": 3}', "has schema_version 3, this posttrain reads 2"),
        ('{"method": "sparse-opd"}', "neither schema_version nor bench_version"),
        ("\ufeff{}", "byte order mark"),
    ],
)
@pytest.mark.parametrize("verb", ["build", "check"])
def test_an_artifact_that_cannot_be_used_is_one_clear_line(root, text, reason, verb, capsys):
    name = "docs/post-training/2609.04565-sparse-opd/metrics/arithmetic-smoke-seeds42-44.json"
    (root / name).write_text(text)
    before = snapshot(root)
    code, _ = command("docs", verb, "--root", str(root))
    said = capsys.readouterr().err
    assert code == 3
    assert name in said
    assert reason in said
    assert said.count("\n") == 1
    assert snapshot(root) == before


@pytest.mark.parametrize("place", ["manifests/arithmetic-smoke-seeds42-44.json", "2305.18290-dpo", "README.md"])
def test_a_symbolic_link_is_never_followed(root, place, tmp_path, capsys):
    path = root / "docs/post-training" / place
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    before = snapshot(tmp_path / "elsewhere") if (tmp_path / "elsewhere").is_dir() else None
    code, _ = command("docs", "build", "--root", str(root))
    assert code == 3
    assert "symbolic link" in capsys.readouterr().err
    assert before is None or snapshot(tmp_path / "elsewhere") == before


def test_a_missing_manifest_is_named(root, capsys):
    (root / "docs/post-training/manifests/arithmetic-smoke-seeds42-44/sparse-opd.json").unlink()
    assert command("docs", "check", "--root", str(root))[0] == 3
    assert "manifests/arithmetic-smoke-seeds42-44/sparse-opd.json is missing" in capsys.readouterr().err


def test_a_resealed_artifact_is_refused_before_a_page_repeats_it(root, capsys):
    """Its own digest can be formed again; that it came out of the recorded run cannot."""
    from posttrain.artifacts.digests import sealed
    from posttrain.artifacts.documents import dumps

    path = root / "docs/post-training/2609.04565-sparse-opd/metrics/arithmetic-smoke-seeds42-44.json"
    artifact = read(path)
    artifact["runs"][0]["history"][0]["loss"] = 0.25
    path.write_bytes(dumps(sealed(artifact)))
    assert command("docs", "build", "--root", str(root))[0] == 3
    assert "its bytes are no output of" in capsys.readouterr().err


def test_every_registered_dataset_is_in_the_catalogue_with_its_options(published):
    text = (published / "docs/post-training/README.md").read_text()
    assert {"files", "hub", "reasoning_gym", "steps"} <= {dataset.name for dataset in datasets()}
    for dataset in datasets():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{dataset.name}` |")]
        assert dataset.summary in row
        assert all(f"`{option}`" in row for option in dataset.defaults)


def test_an_artifact_whose_plan_lies_in_no_known_namespace_is_named(root):
    name = STUDY
    edit_json(root / name, lambda value: value.update(manifest_ref=value["manifest_ref"].replace("post", "posu")))
    with pytest.raises(SuiteError, match=rf"{name}: the namespace 'posu-training' is unknown"):
        build.build(root, methods(), datasets())


def test_an_artifact_of_a_method_that_nobody_registered_is_named(root):
    known = [method for method in methods() if method.name != "dpo"]
    with pytest.raises(SuiteError, match="is of 'dpo', which is not registered"):
        build.build(root, known)


def test_a_folder_without_docs_is_refused(tmp_path, capsys):
    assert command("docs", "build", "--root", str(tmp_path))[0] == 3
    assert "there is no docs/post-training/" in capsys.readouterr().err


def test_figures_of_another_matplotlib_are_compared_by_their_numbers_and_held_by_their_digest(root):
    """Another version draws other bytes: the check says so, and an edit of the figure still shows in the page."""
    here = figures.available()
    assert here is not None
    drawings = sorted((root / "docs/post-training").glob("*/figures/*.svg"))
    for path in drawings:
        path.write_bytes(path.read_bytes().replace(f"matplotlib {here}".encode(), b"matplotlib 0.0"))
    build.write(root, build.build(root, methods(), datasets()))
    built = build.build(root, methods(), datasets())
    assert len(built.notes) == 1
    assert differences(root) == []
    drawings[0].write_bytes(drawings[0].read_bytes().replace(b"</svg>", b"<g/></svg>"))
    assert differences(root) != []


def test_a_figure_names_its_axes_and_units_and_is_text(published):
    for path in (published / "docs/post-training").glob("*/figures/*.svg"):
        text = path.read_text()
        assert "share of items" in text
        assert "<text" in text
        assert "<dc:date>" not in text
    curves = published / f"docs/post-training/2609.04565-sparse-opd/figures/{CONTROLLED_PLAN}-curves.svg"
    assert "step (updates)" in curves.read_text()
    assert "nats per token" in curves.read_text()


def test_an_edit_of_a_plan_is_refused(root, capsys):
    edit_json(
        root / "docs/post-training/manifests/arithmetic-smoke-seeds42-44.json",
        lambda value: value["plan"].update(alpha=0.2),
    )
    assert command("docs", "build", "--root", str(root))[0] == 3
    assert "the plan's digest" in capsys.readouterr().err


def test_the_site_builds_strictly(published, tmp_path):
    pytest.importorskip("mkdocs")
    config = (REPOSITORY / "mkdocs.yml").read_text().replace("docs_dir: docs", f"docs_dir: {published / 'docs'}")
    (tmp_path / "mkdocs.yml").write_text(config)
    command_line = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")]
    done = subprocess.run(command_line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/post-training/2609.04565-sparse-opd/index.html").is_file()
    assert (tmp_path / "site/search/search_index.json").is_file()


# -- recorded artifacts that arrived damaged --------------------------------------------------------------------


def test_a_received_copy_is_put_where_it_belongs_with_the_bytes_that_arrived(root, tmp_path):
    [copy] = received_files(root)
    received, place = copy.read_bytes(), root / "docs/bench/historical/sequence.json"
    recorded = place.read_bytes()
    copy.unlink()
    place.unlink()
    (tmp_path / "as-received.txt").write_bytes(received)
    code, said = command("docs", "migrate", str(tmp_path / "as-received.txt"), "--root", str(root))
    assert code == 0, said
    assert (place.read_bytes(), copy.read_bytes()) == (recorded, received)
    page = (root / "docs/bench/README.md").read_text()
    assert "was mended by `strip-line-numbers` and `final-newline`" in page
    assert differences(root) == []


def test_a_copy_of_nothing_recorded_is_refused_and_nothing_is_written(root, tmp_path, capsys):
    before = snapshot(root)
    (tmp_path / "mine.json").write_text('{"bench_version": 1}')
    assert command("docs", "migrate", str(tmp_path / "mine.json"), "--root", str(root))[0] == 3
    assert "mine.json is no copy of a recorded artifact" in capsys.readouterr().err
    assert command("docs", "migrate", str(tmp_path / "absent.json"), "--root", str(root))[0] == 3
    assert snapshot(root) == before


def test_a_changed_or_misnamed_copy_is_caught(root):
    [copy] = received_files(root)
    data = copy.read_bytes()
    copy.write_bytes(data.replace(b"0.53", b"0.54", 1))
    with pytest.raises(SuiteError, match="no copy of a recorded artifact"):
        differences(root)
    copy.unlink()
    copy.with_name("0" * 64 + ".bin").write_bytes(data)
    with pytest.raises(SuiteError, match="its name says another digest"):
        differences(root)


@pytest.mark.parametrize(
    ("policy", "formal", "count", "compares", "shown"),
    [
        (
            "formal multi-seed mechanism comparison",
            True,
            3,
            False,
            "descriptive, 3 seeds of one method without a rival",
        ),
        ("formal multi-seed mechanism comparison", True, 12, True, "formal multi-seed mechanism comparison"),
        (
            "descriptive multi-seed mechanism reproduction",
            False,
            1,
            False,
            "descriptive single-seed mechanism reproduction",
        ),
        (
            "descriptive multi-seed mechanism reproduction",
            False,
            2,
            False,
            "descriptive multi-seed mechanism reproduction",
        ),
        ("smoke only, no performance claim", False, 1, False, "smoke only, no performance claim"),
    ],
)
def test_a_label_says_no_more_seeds_and_no_more_comparison_than_there_is(policy, formal, count, compares, shown):
    assert sentences.label(policy, formal, count, compares) == shown


def test_a_replication_stands_beside_what_it_repeats_whatever_it_found(runs, root, tmp_path):
    """Two studies of the same claims; the second one's outcomes are turned round, as a licence reads them."""
    again = make(tmp_path / "again", "reproduce", "dpo", *SMALL, "seeds=52-57")
    publishing.put(root, publishing.publication(again, verify))
    built = build.build(root, methods(), datasets())
    assert built.problems == ()
    page, catalogue = (built.files[name].decode() for name in (DPO, "docs/post-training/README.md"))
    plans = (STUDY_PLAN, STUDY_PLAN.replace("42-47", "52-57"))
    ids = [claim["id"] for claim in read(again / "artifact.json")["mechanism"]["claims"]]
    assert all(f"| {name}, {plan} |" in text for name in ids for plan in plans for text in (page, catalogue))
    assert f"{len(ids)} claims decided {2 * len(ids)} times, in several studies" in catalogue
    assert "in 2 studies" in catalogue


def test_claims_that_two_studies_decided_otherwise_each_have_their_licence(published):
    entry = next(entry for entry in read_suite(published).entries if "mechanism" in entry.value)
    turned = {"confirmed": "refuted", "refuted": "confirmed", "inconclusive": "confirmed"}
    value = copy.deepcopy(entry.value)
    value["manifest_ref"] = "post-training:again"
    for claim in value["mechanism"]["claims"]:
        claim["outcome"] = turned[claim["outcome"]]
    other = Entry(File("docs/post-training/x/metrics/again.json", "", value), entry.plan, entry.execution)
    method = next(method for method in methods() if method.name == entry.page)
    text = results.claims(method, [entry, other])
    assert {claim["outcome"] for _, claim in results.decided([entry, other])} > {"confirmed"}
    assert check_text("page.md", text, licence_of([entry, other]), (), method.name, written=(0, 0)) == []


def test_a_rival_s_own_page_shows_its_run_and_what_was_found(root, tmp_path):
    folder = make(tmp_path / "pair", "compare", "grpo", "rloo", *SMALL, "seeds=42-47", "group_size=4")
    publishing.put(root, publishing.publication(folder, verify))
    built = build.build(root, methods(), datasets())
    assert built.problems == ()
    page = built.files["docs/post-training/2402.14740-rloo/README.md"].decode()
    assert "It is a rival in [grpo, grpo-vs-rloo-" in page and "between `grpo` and `rloo`" in page
    row = next(line for line in built.files["docs/post-training/README.md"].decode().splitlines() if "[`rloo`]" in line)
    assert "| 6 |" in row


@pytest.mark.parametrize("page", sorted(REPOSITORY.glob("docs/bench/*/README.md")), ids=lambda page: page.parent.name)
def test_a_track_s_page_says_what_is_measured_and_what_is_better(page):
    text, plans = page.read_text(), list(REPOSITORY.glob(f"docs/bench/manifests/{page.parent.name}-*.json"))
    assert plans
    for plan in plans:
        frozen = read(plan)["plan"]
        assert f"{frozen['common_config']['metric']}; {frozen['direction']}." in text
    assert "Chosen settings: baseline `" in text


def test_differences_are_read_against_the_smallest_effect_of_interest(published):
    text = (published / "docs/post-training/2609.04565-sparse-opd/README.md").read_text()
    value = read(published / COMPARED)
    assert all(f"| {number(entry['sesoi'])} | **{entry['verdict']}** |" in text for entry in value["comparison"])
    entry = {**value["comparison"][0], "sesoi": 0.05, "degenerate": "none"}
    for verdict, difference, words in [
        (WORSE, -0.01, "The difference is below the smallest effect of interest, 0.05000."),
        (BETTER + BELOW_SESOI, 0.01, "The difference is below the smallest effect of interest, 0.05000."),
        (WORSE, -0.06, "6 paired seeds."),
        (NO_EFFECT, 0.01, "The interval lies within the smallest effect of interest, 0.05000."),
    ]:
        said = sentences.compared(value, {**entry, "verdict": verdict, "delta_mean": difference})
        assert said.endswith(words)
    same = sentences.compared(value, {**entry, "verdict": NO_EFFECT, "degenerate": "identical"})
    assert same.endswith("All differences are 0.")
