"""Tables of one's own: what is read, and what is refused in one line, nothing spent and nothing lost."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from homes import LABELS, WIDTH, frame, home, table, user_home
from l2dp.errors import BadInput
from l2dp.streams import tables
from l2dp.streams.schema import Schema, check_task_name, read_columns, read_labels
from l2dp.streams.tables import read_table

SCHEMA = Schema((WIDTH,), LABELS)


def refused(path: Path, what: str, schema: Schema = SCHEMA) -> None:
    with pytest.raises(BadInput, match=what) as caught:
        read_table(path, schema)
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


def written(path: Path, found: pl.DataFrame) -> Path:
    {".csv": found.write_csv, ".parquet": found.write_parquet, ".arrow": found.write_ipc}[path.suffix](path)
    return path


KINDS = ["csv", "parquet", "arrow"]


@pytest.mark.parametrize("kind", [*KINDS, "npz"])
def test_values_labels_and_columns(tmp_path: Path, kind: str) -> None:
    found = read_table(table(tmp_path, 1, kind=kind), SCHEMA)
    expected = frame(1)
    assert np.array_equal(found.x, expected.select(pl.exclude("label")).to_numpy().astype(np.float32))
    assert [LABELS[place] for place in found.y] == expected["label"].to_list()
    if kind != "npz":
        assert found.schema.columns == tuple(f"f{place}" for place in range(WIDTH))


@pytest.mark.parametrize("kind", KINDS)
def test_columns_go_by_name_not_by_place(tmp_path: Path, kind: str) -> None:
    named = Schema((WIDTH,), LABELS, columns=tuple(f"f{place}" for place in range(WIDTH)))
    mixed = frame(1).with_columns(note=pl.lit("ignored")).select(["note", "label", *reversed(named.columns or ())])
    found = read_table(written(tmp_path / f"mixed.{kind}", mixed), named)
    assert np.array_equal(found.x, read_table(table(tmp_path, 1), SCHEMA).x)


def test_ranges_are_declared_and_values_outside_are_marked(tmp_path: Path) -> None:
    wide = Schema((WIDTH,), LABELS, tuple([0.0] * WIDTH), tuple(float(p + 1) for p in range(WIDTH)))
    some = pl.DataFrame({f"f{p}": [0.0, (p + 1) / 2, p + 1.0, -0.001, p + 1.001] for p in range(WIDTH)})
    found = read_table(written(tmp_path / "t.parquet", some.with_columns(label=pl.lit("low"))), wide)
    assert found.x[0].tolist() == [-1.0] * WIDTH
    assert found.x[1].tolist() == [0.0] * WIDTH
    assert found.x[2].tolist() == [1.0] * WIDTH
    assert np.isnan(found.x[3:]).all()


@given(
    st.floats(-1e30, 1e30),
    st.floats(1e-3, 1e30),
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
)
@settings(deadline=None, max_examples=200)
def test_what_is_in_range_is_scaled_into_it(low: float, span: float, parts: list[float]) -> None:
    high = low + span
    if not low < high:
        return
    raw = np.array([[min(high, max(low, low + part * (high - low)))] for part in parts])
    found = tables._scaled(raw, Schema((1,), ("a",), (low,), (high,)))
    assert np.all(np.abs(found) <= 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda f: f.drop("label"), "no column 'label'|columns beside"),
        (lambda f: f.drop("f3"), "has 11 columns beside 'label', 12 are declared"),
        (lambda f: f.with_columns(more=pl.lit(1.0)), "has 13 columns beside"),
        (lambda f: f.with_columns(f3=pl.lit("x")), "not a number|inputs are numbers"),
        (lambda f: f.with_columns(label=pl.lit("unheard of")), "row 1: label 'unheard of' is not one of those"),
        (lambda f: f.with_columns(label=pl.lit("=HYPERLINK(1)")), "is not one of those declared"),
        (lambda f: f.with_columns(label=pl.lit("x" * 100_000)), "has 100,000 bytes"),
        (lambda f: f.with_columns(label=pl.lit(None, pl.String())), "column 'label' is empty|is not one of"),
        (lambda f: f[:0], "no rows"),
        (lambda f: f.with_columns([pl.lit(0.0).alias(f"c{i}") for i in range(10_000)]), "has 10012 columns"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, kind: str, change: Any, what: str) -> None:
    refused(written(tmp_path / f"wrong.{kind}", change(frame(1))), what)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["user 3 ", " user 3", "user 3\t", " "])
def test_a_person_is_not_two_for_a_space(tmp_path: Path, kind: str, name: str) -> None:
    place = user_home(tmp_path)
    people = frame(1, users=30)
    who = ["user 3" if row == 11 else name if row == 12 else one for row, one in enumerate(people["who"])]
    path = written(tmp_path / f"people.{kind}", people.with_columns(who=pl.Series(who)))
    with pytest.raises(BadInput, match=r"row 13: (the user '.*' begins or ends with a space|no user)"):
        place.learn(path, "one")
    assert place.status()["budget"]["blocks"] == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1.5, -1.0001, None, 1e300])
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_value_is_refused_before_anything_is_charged(tmp_path: Path, kind: str, value: Any) -> None:
    place = home(tmp_path)
    column = frame(1)["f3"].cast(pl.Float64()).to_list()
    column[41] = value
    path = written(tmp_path / f"wrong.{kind}", frame(1).with_columns(f3=pl.Series(column, dtype=pl.Float64())))
    with pytest.raises(BadInput, match=r"row 42, column 'f3': the value is missing, not a number, or outside"):
        place.learn(path, "one")
    found = place.status()
    assert found["tasks"] == []
    assert found["budget"]["blocks"] == found["fingerprints"]["known"] == 0
    assert place.verify() == []


@given(data=st.data())
@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("kind", [*KINDS, "npz"])
def test_a_damaged_file_is_read_as_it_was_or_refused_in_one_line(
    tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    whole = table(tmp_path, 1, kind=kind).read_bytes()
    broken = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 6))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(broken)), st.integers(0, len(broken))))
    path = tmp_path / f"broken.{kind}"
    path.write_bytes(bytes(broken[:cut]))
    try:
        found = read_table(path, SCHEMA)
    except BadInput as error:
        lines = str(error).splitlines()
    else:
        lines = [f"{found.x.shape[1:]}"]
        assert found.x.shape[1:] == (WIDTH,)
    assert len(lines) == 1


@given(st.binary(max_size=300))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("kind", [*KINDS, "npz"])
def test_noise_is_refused(tmp_path: Path, kind: str, data: bytes) -> None:
    path = tmp_path / f"noise.{kind}"
    path.write_bytes(data)
    with pytest.raises(BadInput):
        read_table(path, SCHEMA)


def test_bombs_and_pickles_in_npz_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**8, WIDTH)})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as stream:
            stream.write(header.getvalue())
            for _ in range(300):
                stream.write(bytes(1 << 20))
        archive.writestr("label.npy", b"")
    refused(path, "no real data does|not as long as|unpacks to")
    np.savez(path, x=np.array([{}] * 3, dtype=object), label=np.arange(3))
    refused(path, "never unpickled")


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({"x": np.zeros((3, WIDTH))}, "lacks the arrays label"),
        ({"x": np.zeros((3, WIDTH + 1)), "label": np.array(["low"] * 3)}, "inputs of shape"),
        ({"x": np.zeros((3, WIDTH)), "label": np.array(["low"] * 2)}, "one for each record"),
        ({"x": np.zeros((3, WIDTH)), "label": np.zeros(3)}, "whole numbers or texts"),
        ({"x": np.zeros((3, WIDTH), complex), "label": np.array(["low"] * 3)}, "inputs are numbers"),
        ({"x": np.zeros((3, WIDTH)), "label": np.array(["low" * 1000] * 3)}, "labels and users are short"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path: Path, arrays: dict[str, Any], what: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    refused(tmp_path / "a.npz", what)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,a,label\n0,0,0,x\n")
    refused(tmp_path / "t.csv", "two columns 'a'", Schema((2,), ("x",), columns=("a", "b")))


def test_what_is_no_table(tmp_path: Path) -> None:
    refused(tmp_path / "nothing.csv", "there is no file")
    (tmp_path / "t.xlsx").write_bytes(b"x")
    refused(tmp_path / "t.xlsx", "unknown kind of file")
    refused(tmp_path, "give a table")
    refused(Path("a\0b.csv"), "not a path|there is no file")


# --- users ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_users_are_numbered_in_the_order_they_appear(tmp_path: Path, kind: str) -> None:
    by_user = Schema((WIDTH,), LABELS, unit_column="who")
    path = written(tmp_path / f"t.{kind}", frame(1, 4).with_columns(who=pl.Series(["b", "a", "b", "c"])))
    found = read_table(path, by_user)
    assert found.users == ("b", "a", "c")
    assert found.owners is not None
    assert found.owners.tolist() == [0, 1, 0, 2]
    nobody = written(tmp_path / f"n.{kind}", frame(1, 2).with_columns(who=pl.Series(["b", None])))
    refused(nobody, "column 'who'", by_user)


# --- images -----------------------------------------------------------------------------------------------

PICTURES = Schema((3, 4, 5), ("cat", "dog"), (0.0,), (255.0,))


def picture(path: Path, size: tuple[int, int] = (5, 4), value: int = 7, mode: str = "RGB") -> None:
    path.parent.mkdir(exist_ok=True)
    Image.new(mode, size, (value, 0, 255) if mode == "RGB" else value).save(path)


def test_a_folder_of_images(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "1.png")
    picture(tmp_path / "dog" / "1.png", value=255)
    found = read_table(tmp_path, PICTURES)
    assert found.x.shape == (2, 3, 4, 5)
    assert found.y is not None
    assert found.y.tolist() == [0, 1]
    assert found.x[1, 0].min() == found.x[:, 2].min() == 1.0
    assert found.x[:, 1].max() == -1.0
    picture(tmp_path / "mouse" / "1.png")
    refused(tmp_path, "label 'mouse'", PICTURES)


def test_images_that_are_none_or_too_large_are_refused(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "1.png", (6, 4))
    refused(tmp_path, "has 6x4 pixels, 5x4 are declared", PICTURES)
    (tmp_path / "cat" / "1.png").write_bytes(b"not an image")
    refused(tmp_path, "is not a whole image file", PICTURES)
    (tmp_path / "cat" / "1.png").unlink()
    refused(tmp_path, "holds no images", PICTURES)
    (tmp_path / "cat" / "link.png").symlink_to("/etc/hostname")
    refused(tmp_path, "holds no images", PICTURES)


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "..", "cat/1.png", ""])
def test_a_list_of_images_names_files_beside_it_only(tmp_path: Path, name: str) -> None:
    picture(tmp_path / "1.png")
    pl.DataFrame({"file": ["1.png", name], "label": ["cat", "dog"]}).write_csv(tmp_path / "records.csv")
    refused(tmp_path, "is not the name of a file beside it|column 'file' is empty", PICTURES)


def test_a_list_of_images_with_users(tmp_path: Path) -> None:
    picture(tmp_path / "1.png")
    picture(tmp_path / "2.png")
    pl.DataFrame({"file": ["1.png", "2.png"], "label": ["cat", "dog"], "who": ["b", "b"]}).write_csv(
        tmp_path / "records.csv"
    )
    found = read_table(tmp_path, Schema((3, 4, 5), ("cat", "dog"), (0.0,), (255.0,), unit_column="who"))
    assert found.users == ("b",)


# --- names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a\\b", ".hidden", "=1+1", "@x", "a\nb", " a", "x" * 300, "-rm"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(BadInput):
        check_task_name(name)


@pytest.mark.parametrize("name", ["2026-11", "März 2026", "-1", "a b.c"])
def test_names_that_are(name: str) -> None:
    assert check_task_name(name) == name


def test_lists_of_labels_and_columns(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("\ufeffa\n\n b \n", "utf-8")
    assert read_labels(tmp_path / "l.txt") == ("a", "b")
    (tmp_path / "c.txt").write_text("age,0,120\nheight, in cm,0,250\n")
    assert read_columns(tmp_path / "c.txt") == (("age", "height, in cm"), [(0.0, 120.0), (0.0, 250.0)])
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="UTF-8"):
        read_columns(tmp_path / "c.txt")
