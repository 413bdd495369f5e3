"""Folders of runs as reports: what is found and taken together, and the formats other than the page."""

import csv
import io
import json
import re

import pytest

from l2dp import cli
from l2dp.budget import NO_PRIVACY, Guarantee
from l2dp.errors import BadInput
from l2dp.metrics import mean_and_sd
from l2dp.report import write_report
from l2dp.report.document import Cell, Chart, Heat, Table
from l2dp.report.latex import table as latex_table
from l2dp.report.writing import read_document
from made_results import HOSTILE, result

PROVED = Guarantee("proved", 0.5, 1e-5)


def store(folder, name, content):
    path = folder / name / "result.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    for seed in (0, 1, 2):
        store(folder, f"ours/seed-{seed}", result("private-replay", PROVED, 0.9 - 0.01 * seed**2, seed=seed))
    store(folder, "agem", result("agem", NO_PRIVACY, 0.8))
    store(folder, "split", result("agem", NO_PRIVACY, 0.6, benchmark="split-digits"))
    return folder


def headline(places, **options):
    return read_document(places, "title", **options).tables()[0]


def test_runs_that_differ_in_their_seed_are_taken_together(runs):
    table = headline([runs])
    assert table.columns == (*("method", "setting", "guarantee", "average accuracy", "forgetting", "runs", "seconds"),)
    cells = {(row[0].text, row[1].text): [cell.text for cell in row[2:]] for row in table.rows}
    found = [json.loads((runs / f"ours/seed-{seed}/result.json").read_text()) for seed in (0, 1, 2)]
    mean, deviation = mean_and_sd([one["average_accuracy"][-1] for one in found])
    lost, lost_deviation = mean_and_sd([one["average_forgetting"][-1] for one in found])
    assert cells["private-replay", "permuted-digits, 4 tasks, protocol class"] == [
        "ε=0.5, δ=1e-05 proved",
        f"{100 * mean:.2f}% ± {100 * deviation:.2f}",
        f"{lost:z.3f} ± {lost_deviation:z.3f}",
        "3",
        "12.3",
    ]
    assert cells["agem", "split-digits, 4 tasks, protocol class"][3] == "1"
    assert len(cells) == 3


def test_the_same_run_found_twice_counts_once(runs, tmp_path):
    store(tmp_path / "copy", "seed-0", json.loads((runs / "ours/seed-0/result.json").read_text()))
    table = headline([runs, runs / "ours", tmp_path / "copy"])
    assert [row[5].text for row in table.rows if row[0].text == "private-replay"] == ["3"]


def test_methods_that_look_alike_are_told_apart_by_their_options(tmp_path):
    for lr in (0.1, 0.2):
        config = {"learner": {"lr": lr, "model": "mlp"}, "evaluate_every": 1 if lr == 0.1 else 2}
        store(tmp_path, f"lr-{lr}", result("agem", NO_PRIVACY, 0.8, config=config))
    assert [row[0].text for row in headline([tmp_path]).rows] == ["agem, lr 0.1", "agem, lr 0.2"]


def test_unfinished_runs_are_named_and_left_out(runs):
    (runs / "half" / "state").mkdir(parents=True)
    (runs / "half" / "run.json").write_text("{}")
    (runs / "half" / "state" / "secret.json").write_text("not JSON, and not to be read")
    (runs / "agem" / "run.json").write_text("{}")
    document = read_document([runs], "title")
    assert document.notes == [f"Unfinished, and left out: {runs / 'half'}"]


@pytest.mark.parametrize(
    "content", ["", "{", '{"learner": "agem"}', "[" * 100_000], ids=["empty", "cut", "bare", "deep"]
)
def test_a_damaged_result_is_one_line_and_nothing_is_written(runs, tmp_path, content, capsys):
    (runs / "agem" / "result.json").write_text(content)
    with pytest.raises(SystemExit) as left:
        cli.main(["report", str(runs), "--out", str(tmp_path / "report.html")])
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "agem" in told
    assert not (tmp_path / "report.html").exists()


def test_where_there_is_nothing_to_report(tmp_path):
    with pytest.raises(BadInput, match="does not exist"):
        read_document([tmp_path / "nowhere"], "title")
    with pytest.raises(BadInput, match="nothing to report"):
        read_document([tmp_path], "title")
    with pytest.raises(BadInput, match="choose --format"):
        write_report([tmp_path], tmp_path / "report.docx")


def test_the_command_writes_every_format(runs, tmp_path, capsys):
    for name in ("report.html", "report.md", "report.pdf", "report.csv"):
        with pytest.raises(SystemExit) as left:
            cli.main(["report", str(runs / "ours"), str(runs / "agem"), "--out", str(tmp_path / "out" / name)])
        assert left.value.code == 0
    assert f"report in {tmp_path / 'out' / 'report.csv'}" in capsys.readouterr().out
    assert (tmp_path / "out" / "report.pdf").read_bytes().startswith(b"%PDF-")
    markdown = (tmp_path / "out" / "report.md").read_text()
    pictures = re.findall(r"\]\(([^)]*\.svg)\)", markdown)
    assert len(pictures) == 4
    assert all((tmp_path / "out" / picture).read_text().startswith("<?xml") for picture in pictures)


def test_csv_holds_the_numbers_in_full(runs, tmp_path):
    write_report([runs / "agem"], tmp_path / "report.csv")
    first = (tmp_path / "report.csv").read_text().split("\n\n")[0]
    (row,) = csv.DictReader(io.StringIO(first))
    known = json.loads((runs / "agem" / "result.json").read_text())
    assert float(row["average accuracy"]) == known["average_accuracy"][-1]
    assert float(row["forgetting"]) == known["average_forgetting"][-1]
    assert float(row["seconds"]) == known["seconds"]
    assert (row["status"], row["epsilon"]) == ("none", "")


def test_figures_for_a_paper(runs, tmp_path):
    document = write_report([runs / "ours", runs / "agem"], tmp_path / "report.html", figures=tmp_path / "figures")
    for chart in document.charts():
        assert (tmp_path / "figures" / f"{chart.name}.svg").read_text().startswith("<?xml")
        assert (tmp_path / "figures" / f"{chart.name}.pdf").read_bytes().startswith(b"%PDF-")
        points = list(csv.DictReader(io.StringIO((tmp_path / "figures" / f"{chart.name}.csv").read_text())))
        assert [float(point["y"]) for point in points] == [p.y for series in chart.series for p in series.points]
    for table in document.tables():
        text = (tmp_path / "figures" / f"{table.name}.tex").read_text()
        assert text == latex_table(table)
        assert text.count("\\\\\n") == 1 + len(table.rows)
    names = [
        part.name for section in document.sections for part in section.parts if isinstance(part, Chart | Table | Heat)
    ]
    assert len(set(names)) == len(names)


def test_the_baseline_of_p_values_can_be_named(runs):
    charts = {chart.name.split("-")[0]: chart for chart in read_document([runs], "title", "agem").charts()}
    assert [series.label.split(" ")[0] for series in charts["p"].series] == ["private-replay"]
    assert "against agem — none (no privacy)" in charts["p"].about


def test_hostile_names_stay_text_in_every_format(tmp_path):
    name = f"=1+1|`x`[a](javascript:alert(1))<b>{HOSTILE}"
    store(tmp_path, "one", result(name, NO_PRIVACY, 0.5, benchmark=HOSTILE))
    write_report([tmp_path], tmp_path / "out" / "report.csv")
    row = next(csv.DictReader(io.StringIO((tmp_path / "out" / "report.csv").read_text())))
    assert row["method"].startswith("'=1+1|")
    write_report([tmp_path], tmp_path / "out" / "report.md")
    text = (tmp_path / "out" / "report.md").read_text()
    assert not re.search(r"(?<!\\)<|(?<!\\)`|\x1b|\u202e", text)
    assert "](javascript" not in text
    write_report([tmp_path], tmp_path / "out" / "report.pdf", figures=tmp_path / "figures")
    assert not any("\x1b" in path.read_text() for path in (tmp_path / "figures").glob("*.tex"))


def test_latex_escapes_what_acts():
    part = Table("t", "50% of $x_1$", ("a & b", "n"), [(Cell(r"\input{x}#~^ε±"), Cell("1", 1.0))], 1)
    text = latex_table(part)
    assert r"\caption{50\% of \$x\_1\$}" in text
    assert r"a \& b & n \\" in text
    assert r"\textbackslash{}input\{x\}\#\textasciitilde{}\textasciicircum{}$\varepsilon$$\pm$ & 1 \\" in text


def test_many_lines_start_with_the_best_of_each_learner(tmp_path):
    for place in range(20):
        store(tmp_path, f"a{place}", result("agem", NO_PRIVACY, 0.5 + 0.01 * place, config={"learner": {"lr": place}}))
    store(tmp_path, "poor", result("private-replay", PROVED, 0.2))
    (chart, *_) = read_document([tmp_path], "title").charts()
    shown = [series.label for series in chart.series if series.shown]
    assert len(shown) == 12
    assert "private-replay — ε=0.5, δ=1e-05 proved" in shown
    assert len(chart.series) == 21


def test_a_home_among_the_runs_is_passed_by(runs):
    (runs / "clinic" / "fingerprints").mkdir(parents=True)
    (runs / "clinic" / "home.json").write_text("{}")
    (runs / "clinic" / "fingerprints" / "index.json").write_text("0123\n{}")
    assert headline([runs])
