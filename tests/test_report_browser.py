"""The report in a real Chromium: quiet, offline, usable by pointer and keyboard, accessible, fast when large."""

import json
import math
import os
from pathlib import Path

import pytest

from browser import chromium
from l2dp.budget import NO_PRIVACY, Guarantee
from l2dp.report import html_page
from l2dp.report.folders import find
from made_results import HOSTILE, result


@pytest.fixture(scope="module")
def tab():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    results = [
        result("agem", NO_PRIVACY, 0.9312),
        result("l2dp-ml", Guarantee("refuted", 0.5, 0.0), 0.61, released=0.45),
        result("l2dp-ml", Guarantee("refuted", 2.0, 0.0), 0.66, released=0.47),
        result("theirs", Guarantee("claimed", 2.0, 1e-6), 0.7),
        *(result("private-replay", Guarantee("proved", 0.5, 1e-5).over(4), 0.85 + 0.01 * s, seed=s) for s in range(3)),
        *(result("joint", NO_PRIVACY, 0.9, benchmark="split-digits", tasks=30, seed=s) for s in range(2)),
        *(result("agem", NO_PRIVACY, 0.7, benchmark="split-digits", config={"learner": {"lr": r}}) for r in range(9)),
        result(HOSTILE, NO_PRIVACY, 0.5, benchmark=HOSTILE),
    ]
    path = tmp_path_factory.mktemp("report") / "report.html"
    html_page(results, path, f"A title {HOSTILE}", [HOSTILE])
    return path.as_uri()


@pytest.fixture
def opened(tab, address):
    tab.complaints.clear()
    tab.requests.clear()
    tab.look(1280, dark=False)
    tab.open(address)
    yield tab
    assert tab.complaints == []
    assert [asked for asked in tab.requests if not asked.startswith(("file:", "data:"))] == []


def cells(tab, table, column):
    return tab.run(f"[...document.querySelectorAll('#{table} tbody tr')].map(row => row.cells[{column}].textContent)")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_looks(opened, width, dark, tmp_path):
    """No serious flaw for axe-core, nothing wider than the window; the picture is kept where CI can show it."""
    opened.look(width, dark)
    assert opened.run("document.documentElement.scrollWidth") <= width
    background = opened.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    folder = Path(os.environ.get("L2DP_SCREENSHOTS", tmp_path))
    picture = opened.screenshot(folder / f"report-{width}-{'dark' if dark else 'light'}.png")
    assert len(picture) > 20_000
    assert opened.flaws() == []


def test_axe_would_find_a_flaw(opened):
    opened.run("document.querySelector('.legend button').replaceChildren()")
    assert any(flaw.startswith("button-name") for flaw in opened.flaws(".legend"))


def test_a_head_sorts_its_column_both_ways(opened):
    opened.run("document.querySelectorAll('#results thead button')[3].click()")
    column = cells(opened, "results", 3)
    numbers = [float(text.split("%")[0]) for text in column]
    assert len(numbers) == 18
    assert numbers == sorted(numbers)
    assert opened.run("document.querySelectorAll('#results th')[3].ariaSort") == "ascending"
    opened.run("document.querySelectorAll('#results thead button')[3].click()")
    assert [float(text.split("%")[0]) for text in cells(opened, "results", 3)] == sorted(numbers, reverse=True)
    opened.run("document.querySelectorAll('#results thead button')[2].click()")
    guarantees = cells(opened, "results", 2)
    assert guarantees[0].startswith("ε=0.5")
    assert guarantees[-1].startswith("none")
    assert opened.run("document.querySelectorAll('#results th')[3].ariaSort") == "none"


def test_what_has_no_number_sorts_last_either_way(opened):
    for _ in range(2):
        opened.run("document.querySelectorAll('#results thead button')[4].click()")
        texts = cells(opened, "results", 4)
        dashes = [text == "–" for text in texts]
        assert dashes == sorted(dashes)


def test_the_legend_toggles_lines(opened):
    visible = "[...document.querySelectorAll('figure.chart')][0].querySelectorAll('.plot g:not(.off)').length"
    before = opened.run(visible)
    opened.run("document.querySelector('figure.chart .legend button').click()")
    assert opened.run(visible) == before - 1
    assert opened.run("getComputedStyle(document.querySelector('.plot g')).display") == "none"
    assert opened.run("document.querySelector('.legend button').ariaPressed") == "false"
    opened.run("document.querySelector('figure.chart [data-all=false]').click()")
    assert opened.run(visible) == 0
    opened.run("document.querySelector('figure.chart [data-all=true]').click()")
    assert opened.run(visible) == before


def test_the_pointer_shows_values_beside_their_guarantees(opened):
    opened.run("document.querySelector('.plot').scrollIntoView({block: 'center'})")
    box = json.loads(opened.run("JSON.stringify(document.querySelector('.plot svg').getBoundingClientRect())"))
    opened.point(box["x"] + box["width"] * 0.97, box["y"] + box["height"] / 2)
    told = opened.run("document.querySelector('.hint').innerText")
    assert told.startswith("after 4 tasks")
    known = result("agem", NO_PRIVACY, 0.9312)["average_accuracy"][-1]
    assert f"agem — none (no privacy)\n{100 * known:.2f}%" in told.replace(" \n", "\n")
    assert "proved" in told
    assert "±" in told
    opened.point(2, 2)
    assert opened.run("document.querySelector('.hint').hidden")


def test_the_keyboard_reaches_everything(opened):
    seen = set()
    for _ in range(400):
        opened.press("Tab")
        seen.add(
            opened.run(
                "document.activeElement.matches('a,button,summary,.plot,.wide,pre') && "
                "(document.activeElement.className || document.activeElement.tagName)"
            )
        )
        if opened.run("document.activeElement === document.body"):
            break
    else:
        pytest.fail("the keyboard never gets out of the page")
    assert {"A", "BUTTON", "SUMMARY", "plot", "wide", "theme"} <= seen
    opened.run("document.querySelector('.plot').focus()")
    opened.press("End")
    assert opened.run("document.querySelector('.hint').innerText").startswith("after 4 tasks")
    opened.press("ArrowLeft")
    assert opened.run("document.querySelector('.hint').innerText").startswith("after 3 tasks")
    opened.press("Home")
    opened.press("ArrowRight")
    assert opened.run("document.querySelector('.hint').innerText").startswith("after 2 tasks")
    opened.press("Escape")
    assert opened.run("document.querySelector('.hint').hidden")
    opened.run("document.querySelector('.legend button').focus()")
    opened.press(" ")
    assert opened.run("document.querySelector('.legend button').ariaPressed") == "false"
    opened.run("document.querySelector('#results thead button').focus()")
    opened.press("Enter")
    assert opened.run("document.querySelector('#results th').ariaSort") == "ascending"


def test_the_theme_button_turns_the_theme(opened):
    opened.run("document.querySelector('.theme').click()")
    assert opened.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    opened.call("Emulation.setEmulatedMedia", media="print")
    assert opened.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    opened.call("Emulation.setEmulatedMedia", media="")


def test_matrices_open_when_asked_for(opened):
    """Those beyond the first few are written by the script, and must equal those that Python writes."""
    closed = "document.querySelector('details.matrix:not([open])')"
    opened.run(f"(window.box = {closed}).querySelector('summary').click()")
    opened.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
    rows = opened.run("[...box.querySelectorAll('tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))")
    matrix = result("agem", NO_PRIVACY, 0.7)["accuracy_matrix"]
    assert [row[1:] for row in rows] == [[f"{100 * value:.0f}" for value in row] for row in matrix]
    shaded = opened.run("[...box.querySelectorAll('tbody tr')].map(row => row.cells[1].className)")
    same = opened.run(
        "[...document.querySelector('details.matrix[open] tbody').rows].map(row => row.cells[1].className)"
    )
    assert all(name.startswith("c") for name in shaded)
    assert [name.split()[1:] for name in shaded] == [name.split()[1:] for name in same]


def test_hostile_names_are_text(opened):
    shown = "<script>alert('x')</script>\"&\N{REPLACEMENT CHARACTER}[31m"
    assert shown in opened.run("document.querySelector('h1').textContent")
    assert any(shown in name for name in cells(opened, "results", 0))
    assert opened.run("document.scripts.length") == 1
    # The values of a hostile line are told under its name, as text.
    opened.run("(window.last = [...document.querySelectorAll('.plot')].at(-1)).focus()")
    opened.press("End")
    assert shown in opened.run("last.querySelector('.hint').textContent")


def test_printing_makes_pages(opened):
    made = opened.call("Page.printToPDF", printBackground=True)
    assert len(made["data"]) > 50_000


def long_run(place, tasks):
    """A result of a long stream as `l2dp run` leaves it: evaluated about twenty times, the rest null."""
    nothing = [None] * tasks
    every = math.ceil(tasks / 20)
    level = 0.3 + 0.6 * (place % 97) / 97
    row = [round(level + 0.05 * math.sin(column), 4) for column in range(tasks)]
    matrix = [row if (tau + 1) % every == 0 else nothing for tau in range(tasks)]
    curve = [level if (tau + 1) % every == 0 else None for tau in range(tasks)]
    method, seed = divmod(place, 5)
    return result("agem", NO_PRIVACY, 0.5, tasks=1) | {
        "learner": ("agem", "private-replay", "l2dp-ml", "finetune")[method % 4],
        "benchmark": f"stream-{method % 3}",
        "guarantee": Guarantee("proved", 0.5 + method, 1e-5).to_json(),
        "tasks": tasks,
        "seed": seed,
        "accuracy_matrix": matrix,
        "average_accuracy": curve,
        "average_forgetting": [None if value is None else 0.1 for value in curve],
    }


def test_five_hundred_runs_of_a_thousand_tasks(tab, tmp_path):
    runs = [long_run(place, 1000) for place in range(500)]
    # Half of them were evaluated after every task.
    for place, one in enumerate(runs[:250]):
        one["average_accuracy"] = [0.5 + 0.4 * math.sin(place + tau / 100) for tau in range(1000)]
    path = tmp_path / "report.html"
    html_page(runs, path, "many runs", [])
    assert path.stat().st_size < 10_000_000
    tab.look(1280, dark=False)
    seconds = min(tab.open(path.as_uri()) for _ in range(5))
    assert cells(tab, "results", 5) == ["5"] * 100
    assert seconds < 3


def test_folders_of_long_runs_are_read_in_little_memory(tmp_path):
    for place in range(3):
        (tmp_path / f"run-{place}.json").write_text(json.dumps(long_run(place, 1000)))
    lines = find([tmp_path]).lines
    assert len(lines) == 3
    assert all(len(line.matrix.values) <= 25 and len(line.matrix.values[0]) <= 25 for (line,) in lines)
