"""docs/reproducibility.md and its pictures are what the committed results say."""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from l2dp.experiments import declared, figures, pages
from l2dp.experiments.identity import configuration, digest
from l2dp.experiments.outcome import outcome
from l2dp.experiments.runner import known_results
from l2dp.sweeps import Request

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
DOCS = ROOT / "docs"


def test_the_page_agrees_with_the_results() -> None:
    text, pictures = pages.build(RESULTS)
    assert (DOCS / pages.PAGE).read_text("utf-8") == text, "run `l2dp experiment docs`"
    for name, (found, picture) in pictures.items():
        assert pages.stamped(DOCS / "figures" / name) == figures.data_hash(found, picture), "run `l2dp experiment docs`"


def test_pictures_of_functions_are_the_recorded_ones() -> None:
    for path in sorted((RESULTS / "experiments").glob("*.png")):
        assert (DOCS / "figures" / path.name).read_bytes() == path.read_bytes(), "run `l2dp experiment docs`"
    shown = set(re.findall(r"\(figures/([^)]+)\)", (DOCS / pages.PAGE).read_text("utf-8")))
    assert shown
    assert {name for name in shown if not (DOCS / "figures" / name).is_file()} == set()


def test_what_is_recorded_is_not_replaced(tmp_path: Path) -> None:
    results, out = tmp_path / "results", tmp_path / "out"
    (results / "experiments").mkdir(parents=True)
    shutil.copy(RESULTS / "experiments" / "speed.json", results / "experiments")
    old = json.loads((RESULTS / "experiments" / "speed.json").read_text("utf-8"))
    (out / "speed").mkdir(parents=True)
    (out / "speed" / "outcome.json").write_text(json.dumps(old | {"notes": ["another"]}), "utf-8")
    assert pages.collect(results, out) == 0
    (results / "experiments" / "speed.json").unlink()
    assert pages.collect(results, out) == 1


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
    experiment = declared.load(name)
    if experiment.function:
        return
    for row in outcome(experiment, known_results([RESULTS]))["rows"]:
        if row["verdict"]:
            assert row["state"] == "run"
            assert "records a task" not in row["on"]


# --- tables that are written by hand ----------------------------------------------------------------------

ORDERS = {
    "5 - 10 - 20 - 50": "fig-har",
    "50 - 20 - 10 - 5": "fig-har-50-20-10-5",
    "20 - 50 - 5 - 10": "fig-har-20-50-5-10",
    "20 - 5 - 10 - 50": "fig-har-20-5-10-50",
}
ACCURACY = re.compile(r"\d\d\.\d(?: ± \d+\.\d)?")


def rows(text: str, head: str) -> list[list[str]]:
    """The cells below the line of a Markdown table that starts so."""
    below = text[text.index(f"\n{head}") :].split("\n\n", 1)[0].strip().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (below[0], *below[2:])]


def section(name: str) -> str:
    return (DOCS / pages.PAGE).read_text("utf-8").split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]


def test_human_activity_in_four_orders_is_what_the_results_say() -> None:
    head, *found = rows((DOCS / "human-activity.md").read_text("utf-8"), "| method | 5 - 10 - 20 - 50 |")
    assert head[1:] == list(ORDERS)
    assert len(found) == 9
    for column, name in enumerate(ORDERS.values(), 1):
        said = {cells[2] for cells in rows(section(name), "| method | guarantee |")}
        for cells in found:
            shown = ACCURACY.findall(cells[column])
            assert shown, cells
            assert set(shown) <= said, (name, cells[0])


def test_baselines_of_human_activity_are_what_the_results_say() -> None:
    _, *found = rows((DOCS / "human-activity.md").read_text("utf-8"), "| model | split |")
    said = {cells[2] for cells in rows(section("table-har-baselines"), "| method | guarantee |")}
    for cells in found:
        assert set(ACCURACY.findall(cells[2])) <= said, cells[0]


@pytest.mark.parametrize(
    ("agem", "others"),
    [
        ("permuted-mnist-agem", "private-replay/full"),
        ("private-replay/disjoint-agem", "private-replay/disjoint"),
        ("split-mnist-agem-class", "private-replay/split"),
        ("private-replay/cifar-agem", "private-replay/cifar"),
    ],
)
def test_what_privacy_is_compared_with_is_what_the_results_say(agem: str, others: str) -> None:
    files = (agem, f"{others}-finetune", f"{others}-joint")
    found = [json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["average_accuracy"][-1] for name in files]
    assert " / ".join(f"{100 * accuracy:.1f}" for accuracy in found) + " %" in (DOCS / "results.md").read_text("utf-8")


def results_of(command: str) -> list[dict[str, Any]]:
    """The recorded results of seeds 0, 1 and 2 of an `l2dp run …` as a table writes it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("benchmark", nargs="?", default="permuted-mnist")
    parser.add_argument("--learner", default="private-replay")
    for name in ("epsilon", "delta"):
        parser.add_argument(f"--{name}", type=float)
    for name in ("evaluate-every", "batch-size"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--disjoint", action="store_true")
    parser.add_argument("--protocol", default="class")
    parser.add_argument("--model", action="append", default=[], dest="option", type="model={}".format)
    parser.add_argument("-o", action="append", default=[], dest="option")
    words = vars(parser.parse_args(command.split()))
    options = dict(one.split("=", 1) for one in words.pop("option"))
    request = Request(**words, options=options)
    known = known_results([RESULTS])
    hashes = [digest(configuration(request, seed)) for seed in (0, 1, 2)]
    return [known[hash] for hash in hashes if hash in known]


@pytest.mark.parametrize(
    ("head", "accuracy", "command"),
    [
        ("| benchmark | ε | accuracy | almost no noise |", 2, 5),
        ("| method | guarantee | accuracy | forgetting | paper |", 2, 5),
    ],
)
def test_accuracies_beside_a_command_are_what_the_results_say(head: str, accuracy: int, command: int) -> None:
    _, *found = rows((DOCS / "results.md").read_text("utf-8"), head)
    checked, some = 0, []
    for cells in found:
        words = cells[command].strip("`")
        if words.endswith("make demo"):
            continue
        same = words == "same run"
        some = some if same else results_of(words)
        assert some, words
        last = [100 * (one["released"] if same else one)["average_accuracy"][-1] for one in some]
        match = re.search(r"(\d+\.\d)(?: ± (\d+\.\d))? %", cells[accuracy])
        assert match is not None, cells
        if match[2] is None:
            assert match[1] == f"{last[0]:.1f}", words
        else:
            assert len(last) == 3, words
            assert (match[1], match[2]) == (f"{fmean(last):.1f}", f"{stdev(last):.1f}"), words
        checked += 1
    assert checked >= 7


def test_protocols_of_split_mnist_are_what_the_results_say() -> None:
    _, *found = rows((DOCS / "results.md").read_text("utf-8"), "| protocol | A-GEM (none) |")
    assert len(found) == 3
    for protocol, agem, l2dp_ml in found:
        asked = f"split-mnist --protocol {protocol.strip('`')} --learner"
        assert agem == f"{100 * fmean(one['average_accuracy'][-1] for one in results_of(f'{asked} agem')):.1f} %"
        some = results_of(f"{asked} l2dp-ml --epsilon 0.5")
        both = [[one["average_accuracy"][-1] for one in tested] for tested in (some, [one["released"] for one in some])]
        assert l2dp_ml == " / ".join(f"{100 * fmean(one):.1f} %" for one in both)


def test_what_tasks_had_at_their_best_is_what_the_results_say() -> None:
    results = known_results([RESULTS])
    told = 0
    for name in declared.names():
        experiment = declared.load(name)
        for row in outcome(experiment, results)["rows"] if not experiment.function else ():
            if "best" not in row:
                continue
            told += 1
            matrices = [results[run]["accuracy_matrix"] for run in row["runs"]]
            best = [
                fmean([*(max(line[task] for line in matrix[:-1]) for task in range(len(matrix) - 1)), matrix[-1][-1]])
                for matrix in matrices
            ]
            assert row["best"]["ours"] == pytest.approx(fmean(best), abs=1e-9), row["name"]
    assert told


def test_how_near_chance_split_cifar_ends_is_what_the_results_say() -> None:
    results = known_results([RESULTS])
    made = outcome(declared.load("fig-split-cifar"), results)
    last = [results[run]["accuracy_matrix"][-1] for row in made["rows"] if row["state"] == "run" for run in row["runs"]]
    assert last
    lowest, highest = min(min(line[:-1]) for line in last), max(max(line[:-1]) for line in last)
    assert f"near chance ({100 * lowest:.0f} to {100 * highest:.0f} %) on every task but the last" in " ".join(
        made["notes"]
    )
