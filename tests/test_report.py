import base64
import hashlib
import io
import re
import struct
import zlib
from html.parser import HTMLParser

import pytest
from rich.console import Console

from l2dp.budget import NO_PRIVACY, Guarantee
from l2dp.errors import BadInput
from l2dp.metrics import average_accuracy, average_forgetting, p_value_curve
from l2dp.report import Row, curve_png, html_page, print_table, table_rows
from made_results import HOSTILE, result


@pytest.fixture
def results():
    return [
        result("agem", NO_PRIVACY, 0.9312),
        result("l2dp-ml", Guarantee("refuted", 0.5, 0.0), 0.61, released=0.45),
        result("theirs", Guarantee("claimed", 2.0, 1e-6), 0.7),
        result("private-replay", Guarantee("proved", 0.5, 1e-5).over(4), 0.87654),
    ]


class Page(HTMLParser):
    """Checks that tags nest; keeps the tags with their attributes, the tables' rows and the visible text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.rows, self.captions, self.small, self.text = [], [], [], [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "caption":
            self.captions.append("")

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open or "script" in self.open:
            return
        self.text += data
        if "small" in self.open and "td" in self.open:
            self.small.append(data)
        elif "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data
        if "caption" in self.open:
            self.captions[-1] += data


def page(results, folder, title="A title", notes=()):
    path = folder / "report.html"
    html_page(results, path, title, list(notes))
    return path.read_text(encoding="utf-8")


def printed(rows, width=200):
    out = io.StringIO()
    print_table(rows, Console(file=out, width=width, force_terminal=False))
    return out.getvalue()


def png_size(data):
    """Width and height, after checking signature, every chunk's checksum and the length of the pixel data."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, pixels, kinds = 8, b"", []
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length)[0] == zlib.crc32(kind + body)
        kinds.append(kind)
        pixels += body if kind == b"IDAT" else b""
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack_from(">IIBB", body)
        at += 12 + length
    assert kinds[-1] == b"IEND"
    assert (depth, colour) == (8, 6)
    assert len(zlib.decompress(pixels)) == height * (1 + 4 * width)
    return width, height


def test_rows_hold_the_results_numbers_beside_their_guarantees(results):
    agem, noisy, released, theirs, ours = table_rows(results)
    assert agem == Row(
        "agem",
        "none (no privacy)",
        results[0]["average_accuracy"][-1],
        results[0]["average_forgetting"][-1],
        12.345,
    )
    assert noisy.guarantee == released.guarantee == "ε=0.5 claimed, refuted"
    assert "secret draws" in noisy.method
    assert "θ alone" in released.method
    assert noisy.average_accuracy == results[1]["average_accuracy"][-1]
    assert released.average_accuracy == results[1]["released"]["average_accuracy"][-1]
    forgotten = average_forgetting(results[1]["released"]["accuracy_matrix"])
    assert released.forgetting == pytest.approx(forgotten[-1])
    assert theirs.guarantee == "ε=2, δ=1e-06 claimed"
    assert ours.guarantee == "ε=0.5, δ=1e-05 proved"


def test_printed_digits_agree_with_the_results(results, tmp_path):
    rows = table_rows(results)
    in_page = Page(page(results, tmp_path)).rows[1 : 1 + len(rows)]
    in_terminal = [line for line in printed(rows).splitlines() if "%" in line]
    for row, cells, line in zip(rows, in_page, in_terminal, strict=True):
        method, guarantee, accuracy, forgetting, runs, seconds = cells
        assert (method, guarantee, accuracy, forgetting, seconds) == row.cells()
        assert runs == "1"
        assert accuracy.endswith("%")
        assert float(accuracy[:-1]) == pytest.approx(100 * row.average_accuracy, abs=0.005001)
        assert float(forgetting) == pytest.approx(row.forgetting, abs=0.0005001)
        assert float(seconds) == pytest.approx(row.seconds, abs=0.05001)
        assert line.split() == " ".join(row.cells()).split()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_terminal_width_cuts_a_guarantee_or_a_number(results, width):
    rows = table_rows(results)
    text = printed(rows, width)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    for word in ("refuted", "claimed", "proved", "privacy", *(row.cells()[2] for row in rows)):
        assert word in text


STATUS = re.compile(r"proved|claimed|no privacy")


def test_every_accuracy_stands_beside_a_status(results, tmp_path):
    text = page(results, tmp_path)
    shown = Page(text)
    for cells in shown.rows[1:6]:
        assert STATUS.search(cells[1])
    assert len(shown.captions) == 1 + 5 + 1
    assert all(STATUS.search(caption) for caption in shown.captions[1:6])
    # What the script shows under the pointer is a value and the label of its line.
    labels = re.findall(r'data-i="\d+"><svg.*?<span>(.*?)</span>', text)
    assert len(labels) == 5 + 5 + 4 + 5
    against_epsilon = labels[-5:]
    assert all(STATUS.search(label) for label in labels if label not in against_epsilon)
    values = [value for texts in re.findall(r'data-v="([^"]*)"', text)[-5:] for value in texts.split("|")]
    assert len(values) == 5
    assert all(STATUS.search(value) for value in values)
    assert all(STATUS.search(phrase) for phrase in re.findall(r"ε=[^<;:|]*", text))
    for described in re.findall(r"<desc[^>]*>(.*?)</desc>", text):
        assert all(STATUS.search(part) for part in described.split("; "))


def test_figures_agree_with_the_results_to_the_last_digit(results, tmp_path):
    text = page(results, tmp_path)
    curves = [texts.split("|") for texts in re.findall(r'data-v="([^"]*)"', text)]
    known = [results[0], results[1], results[1]["released"], results[2], results[3]]
    for shown, one in zip(curves[:5], known, strict=True):
        assert shown == [f"{100 * value:.2f}%" for value in one["average_accuracy"]]
    for shown, one in zip(curves[5:10], known, strict=True):
        told = one.get("average_forgetting") or average_forgetting(one["accuracy_matrix"])
        assert shown == [f"{value:z.3f}" for value in told[1:]]
    # Where the lines run is what the values say: y in the picture against accuracy is one straight line.
    heights = re.findall(r'<path class="line" d="M([^"]*L[^"]*)"', text)
    places = [float(place.split()[1]) for path in heights[:5] for place in path.split("L")]
    accuracies = [value for one in known for value in one["average_accuracy"]]
    for place, value in zip(places, accuracies, strict=True):
        assert place == pytest.approx(364 - 348 * value, abs=0.06)


def test_p_values_are_the_metrics(results, tmp_path):
    text = page(results, tmp_path)
    shown = [texts.split("|") for texts in re.findall(r'data-v="(p [^"]*)"', text)]
    base = results[1]["average_accuracy"]
    others = [results[0], results[1]["released"], results[2], results[3]]
    assert len(shown) == len(others)
    for told, other in zip(shown, others, strict=True):
        wanted = p_value_curve(other["average_accuracy"], base)[1:]
        for text, p in zip(told, wanted, strict=True):
            assert float(text.removeprefix("p ")) == pytest.approx(p, rel=0.006, abs=0.00006)


def test_the_overlap_of_source_records_is_stated_with_its_status(results, tmp_path):
    assert (
        "per record, add-remove; a source record is in 4 tasks: ε=2, δ=4e-05 proved"
        in Page(page(results, tmp_path)).small
    )


def test_page_is_self_contained_and_accessible(results, tmp_path):
    text = page(results, tmp_path, notes=["first note", "second note"])
    shown = Page(text)
    assert not re.search(r"https?:|url\(|@import", text)
    tags = [tag for tag, _ in shown.tags]
    assert not {"img", "iframe", "object", "embed", "base"} & set(tags)
    assert tags.count("script") == tags.count("style") == 1
    assert not [name for _, names in shown.tags for name in names if name.startswith("on") or name in ("src", "style")]
    links = {names["href"] for _, names in shown.tags if "href" in names}
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert tags.count("caption") == tags.count("table") == 7
    assert all(names.get("scope") in ("row", "col") for tag, names in shown.tags if tag == "th")
    assert "prefers-color-scheme:dark" in text
    assert 'name="viewport"' in text
    assert "first note" in shown.text
    assert "second note" in shown.text
    pictures = [names for tag, names in shown.tags if tag == "svg" and names.get("aria-hidden") != "true"]
    assert len(pictures) == 4
    assert all(names["role"] == "img" and names["aria-label"] for names in pictures)


def test_the_policy_allows_the_script_and_the_style_and_nothing_else(results, tmp_path):
    text = page(results, tmp_path)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
    assert "default-src 'none'" in policy
    for tag, allowed in (("script", "script-src"), ("style", "style-src")):
        content = re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL).group(1)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{allowed} 'sha256-{digest}';" in policy
    assert "unsafe" not in policy


def test_heat_map_holds_every_evaluated_accuracy(results, tmp_path):
    results[0]["accuracy_matrix"][1] = [None] * 4
    results[0]["accuracy_matrix"][2][3] = None
    rows = Page(page(results, tmp_path)).rows[7:10]
    kept = [results[0]["accuracy_matrix"][tau] for tau in (0, 2, 3)]
    assert [row[0] for row in rows] == ["1", "3", "4"]
    assert [row[1:] for row in rows] == [
        ["–" if value is None else f"{100 * value:.0f}" for value in row] for row in kept
    ]


def test_hostile_names_and_notes_are_text(tmp_path):
    bad = result(HOSTILE, Guarantee("claimed", 1.0, 0.0), 0.5, benchmark=HOSTILE, protocol=HOSTILE)
    bad["guarantee"]["unit"] = HOSTILE
    bad["version"] = "\ud800"
    text = page([bad], tmp_path, HOSTILE, [HOSTILE])
    shown = Page(text)
    assert [tag for tag, _ in shown.tags].count("script") == 1
    assert "bold" not in {tag for tag, _ in shown.tags}
    assert "\x1b" not in text
    assert "\u202e" not in text
    readable = "<script>alert('x')</script>\"&\N{REPLACEMENT CHARACTER}[31m"
    assert shown.text.count(readable) >= 6
    assert readable in shown.rows[1][0]
    output = printed(table_rows([bad]))
    assert "\x1b" not in output
    assert "[bold]_" in output
    curve_png(
        [bad, result("_under", NO_PRIVACY, 0.5), result("日本語", NO_PRIVACY, 0.4)],
        tmp_path / "a.png",
        HOSTILE,
    )
    assert png_size((tmp_path / "a.png").read_bytes())


def test_png_is_a_picture_of_sensible_size(results, tmp_path):
    path = tmp_path / "curve.png"
    curve_png(results, path, "permuted-digits")
    data = path.read_bytes()
    width, height = png_size(data)
    assert 1000 <= width <= 2000
    assert 700 <= height <= 1500
    assert 20_000 < len(data) < 500_000
    assert [file.name for file in tmp_path.iterdir()] == ["curve.png"]


def test_results_that_differ_in_the_setting_are_told_apart():
    seeds = [result("agem", NO_PRIVACY, 0.9, seed=seed) for seed in (0, 1)]
    assert [row.method for row in table_rows(seeds)] == ["agem, seed 0", "agem, seed 1"]


def test_long_sampled_streams_stay_small(tmp_path):
    tasks = 200
    long = result("agem", NO_PRIVACY, 0.9, tasks=tasks)
    for tau in range(tasks):
        if (tau + 1) % 50:
            long["accuracy_matrix"][tau] = [None] * tasks
    long["average_accuracy"] = average_accuracy(long["accuracy_matrix"])
    long["average_forgetting"] = average_forgetting(long["accuracy_matrix"])
    text = page([long], tmp_path)
    assert len(text) < 90_000
    assert "25 of 200 tasks" in text
    assert [row[0] for row in Page(text).rows[3:7]] == ["50", "100", "150", "200"]
    curve_png([long], tmp_path / "curve.png", "long")


def test_what_was_not_evaluated_is_a_dash(tmp_path):
    bare = result("agem", NO_PRIVACY, 0.9, tasks=1, seconds=None)
    assert table_rows([bare])[0].cells()[3:] == ("–", "–")
    nothing = result("agem", NO_PRIVACY, 0.9, tasks=1, accuracy_matrix=[[None]], average_accuracy=[float("nan")])
    assert table_rows([nothing])[0].cells()[2] == "–"
    for one in (bare, nothing):
        Page(page([one], tmp_path))
        curve_png([one], tmp_path / "one.png", "one")


@pytest.mark.parametrize(
    "damage",
    [
        {"guarantee": {"status": "proved", "epsilon": None}},
        {"guarantee": {"status": "none", "epsilon": 0.5}},
        {"guarantee": {"status": "certain", "epsilon": 0.5}},
        {"guarantee": {"status": "proved", "epsilon": "0.5"}},
        {"guarantee": {"status": "proved", "epsilon": float("nan")}},
        {"guarantee": {}},
        {"guarantee": None},
        {"average_accuracy": ["high"]},
        {"average_accuracy": None},
        {"accuracy_matrix": [[0.5], [0.5, 0.5]]},
        {"released": [1]},
    ],
    ids=repr,
)
def test_damaged_results_are_refused_in_one_line_and_nothing_is_written(damage, tmp_path):
    damaged = {**result("agem", NO_PRIVACY, 0.9), **damage}
    for write in (
        lambda: table_rows([damaged]),
        lambda: html_page([damaged], tmp_path / "a.html", "title", []),
        lambda: curve_png([damaged], tmp_path / "a.png", "title"),
    ):
        with pytest.raises(BadInput, match=r"result 1 \(learner agem\)") as refusal:
            write()
        assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_no_results_are_refused():
    with pytest.raises(BadInput, match="no results"):
        table_rows([])
