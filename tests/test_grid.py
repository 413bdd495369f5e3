"""A grid of settings: the best is marked, the price of choosing it is counted from what runs say they read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console

import l2dp
from l2dp.experiments import grid
from l2dp.experiments.declared import load
from l2dp.experiments.figures import draw, drawn
from l2dp.experiments.functions import Ask, call
from l2dp.experiments.perform import page
from l2dp.experiments.runner import jobs_of
from l2dp.learners import NaiveGaussian
from l2dp.lifetime import ONE, kept_readings, renyi_epsilon

GUARANTEE = "ε=2, δ=1e-05 proved"


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    torch.set_num_threads(1)
    stream = l2dp.streams.permuted("digits", tasks=4, per_task=200, seed=0)
    learner = NaiveGaussian(model="mlp-8", noise_scale=4.0, horizon=3, memory_per_task=40, reference_batch=20)
    return l2dp.run(stream, learner, schedule=l2dp.Schedule(20), evaluate_every=4).to_json()


def outcome(accuracies: dict[str, float | None]) -> dict[str, Any]:
    rows = [
        {
            "curve": [accuracy],
            "state": "run on a sub-sample",
            "name": name,
            "label": name,
            "guarantee": GUARANTEE,
            "epsilon": 2.0,
            "accuracy": accuracy,
            "runs": ["run"],
            "paper": None if name.startswith("8") else {"accuracy": 1 - accuracy},
        }
        if accuracy is not None
        else {"name": name, "label": name, "guarantee": "asks for ε=2, not run: no status", "paper": None}
        for name, accuracy in accuracies.items()
    ]
    return {"title": "a grid", "kind": "grid", "quick": False, "rows": rows, "effects": [], "notes": []}


def test_what_a_result_says_of_its_readings_is_what_it_was_charged(result: dict[str, Any]) -> None:
    phases = grid.phases_of(result)
    assert sum(sum(phase.replayed) for phase in phases) > 0
    stated = result["accounting"]["counted"][ONE]["modes"]["per-record"]["epsilon"]
    delta = result["guarantee"]["delta"]
    assert max(renyi_epsilon(one, delta) for one in kept_readings(phases)) == pytest.approx(stated, rel=1e-9)


def test_the_best_setting_of_each_budget_is_named_with_its_price(result: dict[str, Any]) -> None:
    found = outcome({"2-4.0-0.1": 0.2, "2-4.0-1.0": 0.6, "2-3.0-0.1": 0.4, "8-1.0-0.1": None})
    warning, said = grid.notes(found, {"run": result})
    assert "not covered" in warning
    assert "z=4.0, C=1.0 with 60.00 % (the paper's: z=4.0, C=0.1, 80.00 %)" in said
    once = result["accounting"]["counted"][ONE]["modes"]["per-record"]["epsilon"]
    chosen, together = (float(said.split(before)[1].split(",")[0]) for before in ("released: ε=", "all of them: ε="))
    assert once < chosen
    assert once < together < 3 * once
    assert "proved" in said


def test_of_settings_that_were_not_all_run_no_price_is_told(result: dict[str, Any]) -> None:
    _, said = grid.notes(outcome({"2-4.0-0.1": 0.2, "2-4.0-1.0": 0.6, "2-3.0-1.0": None}), {"run": result})
    assert "the best of 2 is z=4.0, C=1.0" in said
    assert "2 of 3 settings were run: the price of choosing needs them all" in said
    assert "released" not in said


def test_a_choice_among_unproved_runs_has_no_price(result: dict[str, Any]) -> None:
    unproved = {**result, "guarantee": {**result["guarantee"], "status": "none", "epsilon": None, "delta": None}}
    _, said = grid.notes(outcome({"2-4.0-0.1": 0.2}), {"run": unproved})
    assert "has no price" in said
    assert "instead of" not in said


def test_the_heat_map_marks_the_best_and_says_what_was_not_run(tmp_path: Path) -> None:
    found = outcome({"2-4.0-0.1": 0.2, "2-4.0-1.0": 0.6, "8-3.0-0.1": 0.4, "8-3.0-1.0": None})
    figure = Figure()
    grid.paint(figure, found)
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert sorted(words) == ["20.0", "40.0 ★", "60.0 ★", "not run"]
    assert [axes.get_title() for axes in figure.axes] == [GUARANTEE, GUARANTEE]
    assert drawn(found) == ["grid"]
    draw(found, "grid", tmp_path / "grid.png")
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")
    grid.paint(Figure(), outcome({"2-4.0-0.1": None}))


def test_the_grid_is_that_of_the_paper() -> None:
    full, quick = load("table-naive-grid"), load("table-naive-grid", quick=True)
    assert len(full.rows) == len(quick.rows) == 45
    for row in (*full.rows, *quick.rows):
        assert row.request is not None
        assert row.name == f"{row.request.epsilon:g}-{row.request.options['noise_scale']}-{row.request.options['clip']}"
        assert row.paper == (f"naive-grid/{row.name}" if row in full.rows else None)
    assert (len(jobs_of([full])), len(jobs_of([quick]))) == (3 * 45, 45)
    assert {row.request.benchmark for row in quick.rows if row.request} == {"permuted-digits"}


@pytest.mark.slow
def test_budget_growth_has_a_table_and_three_pictures(tmp_path: Path) -> None:
    experiment = load("budget-growth", quick=True)
    found = call(experiment, Ask(True, tmp_path, [], Console(quiet=True)))
    assert found["columns"][0] == "lifetime"
    assert len(found["columns"]) == 9
    assert all(any(status in column for status in ("proved", "claimed", "refuted")) for column in found["columns"][1:])
    assert {path.name for path in tmp_path.glob("*.png")} == set(found["figures"])
    assert "refuted" in page(found)
