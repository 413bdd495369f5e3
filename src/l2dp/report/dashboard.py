"""A home at a glance, from what `home.status()` tells: tasks, budget, accuracy over time, releases, audits.

Nothing here opens a home: it is given facts that hold no secret, and every ε among them has its status.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from l2dp.budget import Guarantee
from l2dp.errors import BadInput
from l2dp.report import audits, words
from l2dp.report.comparison import guarantee_cell
from l2dp.report.document import Cell, Chart, Document, Point, Section, Series, Table
from l2dp.report.lines import read_guarantee

Status = dict[str, Any]
Audits = Sequence[tuple[str, dict[str, Any]]]

ACCURACY = (
    "Measured on the test data that was given, without noise: it is for those who may see that data. "
    "Only what was declared public is in a model card."
)


def document(status: Status, found: Audits = (), statement: Callable[[int], str] | None = None) -> Document:
    """The page of a home. `statement` says where the privacy statement of a release is, if it can be had."""
    try:
        return _document(status, found, statement)
    except (AttributeError, KeyError, TypeError, ValueError) as flaw:
        raise BadInput(f"the status of the home cannot be shown: {words.short(repr(flaw), 80)}") from None


def said(charge: dict[str, Any]) -> Guarantee:
    """A charge as a guarantee: under `none` its numbers promise nothing and are not shown."""
    return Guarantee("none") if charge["status"] == "none" else read_guarantee(charge)


def _document(status: Status, found: Audits, statement: Callable[[int], str] | None) -> Document:
    guarantee = read_guarantee(status["guarantee"])
    unit = guarantee.unit
    learned = [task for task in status["tasks"] if task["state"] == "learned"]
    about = (
        f"{guarantee} for every {unit}, over the lifetime · {words.tasks(len(learned))} learned · "
        f"{len(status['releases'])} release{'' if len(status['releases']) == 1 else 's'} · {status['learner']}, "
        f"{len(status['labels'])} labels"
    )
    sections = [
        Section("Budget", [_budget(status), *_remarks(status)]),
        Section("Accuracy over time", [*_drift(status, guarantee)]),
        Section("Tasks", [_tasks(status)]),
        Section("Releases", [_releases(status, guarantee, statement)]),
        audits.section(found) if found else Section("Audit", [UNAUDITED]),
        Section("This home", [_facts(status)]),
    ]
    statuses = tuple(status for status in words.STATUS_MEANS if status == guarantee.status)
    return Document(f"Home {status['home']}", about, sections, [], statuses, for_papers=False)


def _budget(status: Status) -> Table:
    block = status["budget"]["block"]
    lifetime = said(status["lifetime"])
    rows = [
        (
            Cell(f"{level['blocks']} {block}{'' if level['blocks'] == 1 else 's'}", float(level["blocks"])),
            guarantee_cell(said(level)),
            Cell(f"{100.0 * level['of_lifetime']:.1f}%", level["of_lifetime"], share=min(1.0, level["of_lifetime"])),
        )
        for level in status["budget"]["levels"]
    ]
    caption = f"What every block has spent, of {lifetime} for its lifetime"
    return Table("budget", caption, ("blocks", "spent by each", "of the lifetime"), rows, 2)


def _remarks(status: Status) -> list[str]:
    remarks = []
    if not status["budget"]["levels"]:
        remarks.append("Nothing has been spent yet.")
    if status["budget"]["block"] == "task":
        remarks.append(
            "A block is a task: a record is in one task only, which the home enforces, so what its task spent is what "
            "the record has spent, for ever."
        )
    else:
        share = status.get("per_task_epsilon")
        told = f" A task may spend at most ε={share:g} ({status['lifetime']['status']}) of it." if share else ""
        remarks.append(f"A block is a user, with all their records in all tasks.{told}")
    if status.get("unfinished") is not None:
        remarks.append(f"Unfinished: {words.clean(str(status['unfinished']))}. Its units stay charged; learn it again.")
    return remarks


def _drift(status: Status, guarantee: Guarantee) -> list[Chart | str]:
    by_data: dict[str, dict[int, dict[str, Any]]] = {}
    for line in status["accuracy"]:
        # The last word on a model and a table is what counts.
        by_data.setdefault(str(line["data"]), {})[line["index"]] = line
    if not by_data:
        return ["No test data was given: “l2dp evaluate HOME test.parquet”, after a task, adds a point."]
    series = []
    for style, (data, lines) in enumerate(by_data.items()):
        points = [
            Point(
                index + 1,
                line["accuracy"],
                f"after {words.short(str(line['task']), 60)} (task {index + 1})",
                f"{words.percent(line['accuracy'])} of {line['records']}",
            )
            for index, line in sorted(lines.items())
        ]
        public = "public" if all(line["public"] for line in lines.values()) else "not public"
        series.append(Series(f"{words.short(data, 60)} ({public}) — {guarantee}", points, style))
    chart = Chart("drift", "Accuracy of the newest model", "tasks learned", "accuracy", series, "percent", ACCURACY)
    return [chart]


def _tasks(status: Status) -> Table:
    rows = [
        (
            Cell(words.short(str(task["task"]), 80)),
            Cell(str(task["state"])),
            Cell(words.short(str(task["time"]), 40)),
            guarantee_cell(said(task["charged"])),
            Cell(f"{task['declared_size']}", float(task["declared_size"])),
            Cell(f"{task['blocks']}", float(task["blocks"])),
            Cell(words.percent(task["accuracy"]), task["accuracy"]),
        )
        for task in reversed(status["tasks"])
    ]
    columns = ("task", "state", "time", "charged to each block", "declared size", "blocks", "accuracy then")
    return Table("tasks", "Tasks, the newest first", columns, rows, 4)


def _releases(status: Status, guarantee: Guarantee, statement: Callable[[int], str] | None) -> Table:
    rows = [
        (
            Cell(
                f"after {words.short(str(made['task']), 80)}",
                link=None if statement is None else statement(number),
                small="" if statement is None else "its privacy statement",
            ),
            guarantee_cell(guarantee),
            Cell(words.short(str(made["out"]), 200)),
            Cell(str(made["sha256"])[:16] + "…"),
            Cell(str(made["ledger_head"]["sequence"]), float(made["ledger_head"]["sequence"])),
            Cell(f"{made['bytes'] / 1e6:.2f}", made["bytes"] / 1e6),
        )
        for number, made in reversed(list(enumerate(status["releases"])))
    ]
    columns = ("release", "guarantee", "written to", "SHA-256 of its list of files", "ledger entry", "MB")
    return Table("releases", "Releases, the newest first", columns, rows, 4)


UNAUDITED = (
    "No audit is kept in this home. “l2dp audit HOME --out HOME/audits/NAME” attacks its learner in the settings of "
    "the home, and its findings appear here."
)


def _facts(status: Status) -> Table:
    ledger = status["ledger"]
    rows = [
        ("identity", str(status["identity"])),
        ("ledger", str(ledger["place"])),
        ("ledger's head", f"entry {ledger['head']['sequence']}, {ledger['head']['hash']}"),
        ("fingerprints", f"{status['fingerprints']['known']} known, {status['fingerprints']['excluded']} excluded"),
        ("labels", ", ".join(str(label) for label in status["labels"])),
    ]
    cells = [(Cell(name), Cell(words.short(text, 400))) for name, text in rows]
    return Table("facts", "What the home is, and where its ledger stands", ("fact", "value"), cells, 2)
