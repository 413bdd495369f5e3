"""docs/reproducibility.md and its pictures are what the committed results say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from l2dp.experiments import declared, figures, pages
from l2dp.experiments.runner import known_results

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
DOCS = ROOT / "docs"


def test_the_page_agrees_with_the_results() -> None:
    text, pictures = pages.build(RESULTS)
    assert (DOCS / pages.PAGE).read_text("utf-8") == text, "run `l2dp experiment docs`"
    for name, (found, picture) in pictures.items():
        assert pages.stamped(DOCS / "figures" / name) == figures.data_hash(found, picture), "run `l2dp experiment docs`"


def test_every_experiment_is_on_the_page() -> None:
    text = (DOCS / pages.PAGE).read_text("utf-8")
    for name in declared.names():
        assert f"\n## {name}\n" in text


def test_another_result_changes_the_page(tmp_path: Path) -> None:
    results = tmp_path / "results"
    shutil.copytree(RESULTS, results)
    path = next(path for path in sorted(results.rglob("*.json")) if "split-mnist-agem-domain" in path.name)
    path.write_text(path.read_text("utf-8").replace('"protocol": "domain"', '"protocol": "task"'), "utf-8")
    assert pages.build(results)[0] != pages.build(RESULTS)[0]


def test_only_full_forms_are_taken_up(tmp_path: Path) -> None:
    """A quick run that lies in the folder of runs does not get into the results."""
    out, results, docs = tmp_path / "out", tmp_path / "results", tmp_path / "docs"
    results.mkdir()
    done = sorted(RESULTS.rglob("*.json"))
    full = next(path for path in done if "split-mnist-agem-domain" in path.name)
    for number, text in enumerate(
        (full.read_text("utf-8"), full.read_text("utf-8").replace('"per_task": null', '"per_task": 100'))
    ):
        (out / "runs" / f"run-{number}").mkdir(parents=True)
        (out / "runs" / f"run-{number}" / "result.json").write_text(text, "utf-8")
    assert len(known_results([out / "runs"])) == 2
    said = pages.update(results, out, docs)
    assert said.startswith("1 results taken")
    assert len(known_results([results])) == 1
    assert pages.update(results, out, docs).startswith("0 results taken")
    page = (docs / pages.PAGE).read_text("utf-8")
    assert "72.9" in page
    assert list((docs / "figures").glob("fig-split-mnist-accuracy.png"))


def test_no_row_of_the_page_has_a_bare_epsilon() -> None:
    for line in (DOCS / pages.PAGE).read_text("utf-8").splitlines():
        if line.startswith("| ") and "ε=" in line:
            assert any(word in line for word in ("proved", "refuted", "claimed", "no status")), line


@pytest.mark.parametrize("name", declared.names())
def test_rows_beside_the_paper_ran_on_everything_or_say_so(name: str) -> None:
    from l2dp.experiments.outcome import outcome

    experiment = declared.load(name)
    if experiment.function:
        return
    for row in outcome(experiment, known_results([RESULTS]))["rows"]:
        if row["verdict"]:
            assert row["state"] == "run"
            assert "records a task" not in row["on"]
