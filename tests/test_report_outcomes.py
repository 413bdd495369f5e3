"""Outcomes of experiments and audits in a report."""

import json

import pytest

from l2dp.errors import BadInput
from l2dp.report.document import Chart, Table
from l2dp.report.writing import read_document

WAYS = ["max over tasks — claimed, no bound", "per record — proved", "L2DP-ML — refuted, claimed by the paper"]
GROWTH = {
    "experiment": "budget-growth",
    "title": "How the privacy budget grows <b>",
    "about": "ε of a lifetime",
    "quick": False,
    "columns": ["lifetime", *WAYS],
    "rows": [
        ["1 task", "0.5", "0.5", "0.5"],
        ["10 tasks", "0.51", "1.25", "0.5"],
        ["1000 tasks", "0.52", "not computed", "0.5"],
        ["20 tasks, the largest 5 times the smallest", "1", "2", "3"],
    ],
    "notes": ["a note"],
}
SWEEP = {
    "experiment": "fig-permuted-mnist",
    "title": "Permuted MNIST",
    "about": "",
    "quick": True,
    "rows": [
        {
            "name": "ours", "label": "private-replay", "on": "permuted-mnist, 20 tasks", "state": "run", "why": None,
            "paper": {"place": "Figure 2", "accuracy": 0.4773}, "guarantee": "ε=0.5, δ=1e-05 proved",
            "status": "proved", "epsilon": 0.5, "seeds": [0, 1], "accuracy": 0.8912345, "accuracy_sd": 0.0012,
            "forgetting": 0.01234, "forgetting_sd": 0.001, "verdict": {"accuracy": "better"},
        },
        {
            "name": "theirs", "label": "NaiveGaussian", "on": "–", "state": "not possible", "why": "never published",
            "paper": None, "guarantee": "–", "seeds": [], "verdict": {},
        },
    ],
    "effects": [{"says": "more budget helps", "verdict": "confirmed", "difference": 0.1, "p": 3.2e-9}],
}  # fmt: skip


def document(tmp_path, **contents):
    for name, content in contents.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "outcome.json").write_text(json.dumps(content))
    return read_document([tmp_path], "title")


def test_budget_growth_is_a_picture_and_a_table(tmp_path):
    (section,) = document(tmp_path, growth=GROWTH).sections
    (chart,) = [part for part in section.parts if isinstance(part, Chart)]
    assert [series.label for series in chart.series] == WAYS
    assert [[(p.x, p.y) for p in series.points] for series in chart.series] == [
        [(1, 0.5), (10, 0.51), (1000, 0.52)],
        [(1, 0.5), (10, 1.25)],
        [(1, 0.5), (10, 0.5), (1000, 0.5)],
    ]
    assert [series.points[1].y_text for series in chart.series] == [
        "ε=0.51 claimed",
        "ε=1.25 proved",
        "ε=0.5 claimed, refuted",
    ]
    (table,) = [part for part in section.parts if isinstance(part, Table)]
    assert [[cell.text for cell in row] for row in table.rows] == GROWTH["rows"]
    assert "a note" in section.parts


def test_a_sweep_stands_beside_the_paper(tmp_path):
    (section,) = document(tmp_path, sweep=SWEEP).sections
    rows, effects = [part for part in section.parts if isinstance(part, Table)]
    assert [cell.text for cell in rows.rows[0]] == [
        "private-replay", "ε=0.5, δ=1e-05 proved", "permuted-mnist, 20 tasks", "accuracy better", "89.12% ± 0.12",
        "47.73%", "0.012 ± 0.001", "–", "2",
    ]  # fmt: skip
    assert rows.rows[0][1].status == "proved"
    assert rows.rows[1][3].text == "not possible: never published"
    assert [cell.text for cell in effects.rows[0]] == ["more budget helps", "confirmed", "0.100", "3.20e-09"]
    assert any("quick form" in part for part in section.parts if isinstance(part, str))


@pytest.mark.parametrize("damage", [{"rows": 3}, {"rows": [["1 task"]]}, {"columns": None}], ids=repr)
def test_a_damaged_outcome_is_refused(tmp_path, damage):
    with pytest.raises(BadInput, match="not the outcome of an experiment"):
        document(tmp_path, growth=GROWTH | damage)


def test_a_damaged_audit_is_refused(tmp_path):
    (tmp_path / "audit.json").write_text(json.dumps({"learner": "x", "verdict": "", "level": "", "findings": [1]}))
    with pytest.raises(BadInput, match=r"not in the audit\.json format"):
        read_document([tmp_path], "title")
