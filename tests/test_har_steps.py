"""Each step on hand-made recordings with known answers: gaps, duplicates, clocks, labels, windows, scales."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from l2dp.errors import BadInput
from l2dp.har import labels as verdicts_of
from l2dp.har.normalise import GRAVITY, Constants, Moments
from l2dp.har.order import survey, whole_sessions
from l2dp.har.resample import resample
from l2dp.har.sessions import find_sessions, finite, keep_stable, merge_duplicates
from l2dp.har.split import user_tests, windows_test
from l2dp.har.tables import Dialect, label_sessions, samples
from l2dp.har.windows import REST, SHORT, Overlap, cut, gather

MS = 10**6
S = 10**9
RATES = (5, 10, 20, 50)


def recording(times_ms, user=0, values=None) -> pl.DataFrame:
    times = np.round(np.asarray(times_ms, dtype=np.float64) * MS).astype(np.int64)
    axis = np.zeros(len(times), np.float32) if values is None else np.asarray(values, np.float32)
    codes = np.broadcast_to(np.asarray(user, np.uint32), times.shape).copy()
    return pl.DataFrame({"user": codes, "time": times, "x": axis, "y": axis, "z": axis})


# --- duplicates and broken values


def test_duplicates_become_their_mean():
    frame = recording([0, 20, 20, 20, 40], values=[1, 2, 4, 9, 7])
    merged, lost = merge_duplicates(frame)
    assert merged["time"].to_list() == [0, 20 * MS, 40 * MS]
    assert merged["x"].to_list() == [1, 5, 7]
    assert sum(lost.values()) == 2


def test_the_same_instant_of_two_users_is_not_a_duplicate():
    merged, lost = merge_duplicates(recording([0, 0], user=[0, 1], values=[1, 3]))
    assert merged["x"].to_list() == [1, 3]
    assert lost == {}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_samples_without_a_finite_value_are_left_out(bad):
    frame = recording([0, 20, 40]).with_columns(y=pl.Series([0.0, bad, 1.0], dtype=pl.Float32))
    kept, lost = finite(frame)
    assert kept["time"].to_list() == [0, 40 * MS]
    assert sum(lost.values()) == 1


# --- sessions


@pytest.mark.parametrize(("gap", "sessions"), [(299, 1), (300, 1), (301, 2)])
def test_a_gap_of_more_than_300_ms_ends_a_session(gap, sessions):
    found = find_sessions(recording([0, 20, 20 + gap, 40 + gap]), 300 * MS)
    assert len(found) == sessions
    assert found["count"].sum() == 4


def test_a_session_has_one_user():
    found = find_sessions(recording([0, 20, 40, 60], user=[0, 0, 1, 1]), 300 * MS)
    assert found.rows() == [(0, 0, 2), (1, 2, 2)]


@pytest.mark.parametrize("rate", RATES)
def test_a_stable_rate_is_recognised(rate):
    frame = recording(np.arange(200) * 1000 / rate)
    kept, lost = keep_stable(frame, find_sessions(frame, 300 * MS), RATES)
    assert kept["rate"].to_list() == [rate]
    assert sum(lost.values()) == 0


@pytest.mark.parametrize(("rate", "kept"), [(47.6, True), (47.4, False), (52.4, True), (52.6, False), (25, False)])
def test_the_mean_rate_may_be_five_per_cent_off(rate, kept):
    frame = recording(np.arange(400) * 1000 / rate)
    found, lost = keep_stable(frame, find_sessions(frame, 300 * MS), RATES)
    assert len(found) == kept
    assert lost["rate is none of those wanted"] == (0 if kept else 400)


def test_a_clock_that_drifts_a_little_is_kept_and_one_that_drifts_far_is_not():
    little = recording(np.cumsum(np.linspace(20.0, 21.0, 1000)))
    kept, _ = keep_stable(little, find_sessions(little, 300 * MS), RATES)
    assert kept["rate"].to_list() == [50]
    far = recording(np.cumsum(np.linspace(14.0, 26.0, 1000)))  # 50 Hz on average, and hardly ever
    kept, lost = keep_stable(far, find_sessions(far, 300 * MS), RATES)
    assert len(kept) == 0
    assert lost["rate is not stable"] == 1000


def test_a_change_of_rate_within_a_session_is_not_stable():
    frame = recording(np.cumsum([20.0] * 500 + [50.0] * 500))
    kept, lost = keep_stable(frame, find_sessions(frame, 300 * MS), RATES)
    assert len(kept) == 0
    assert sum(lost.values()) == 1000


def test_a_single_sample_has_no_rate():
    frame = recording([0, 1000, 1020, 1040])
    kept, lost = keep_stable(frame, find_sessions(frame, 300 * MS), RATES)
    assert lost["session of a single sample"] == 1
    assert kept["count"].to_list() == [3]


def test_whole_sessions_keep_back_the_last_one():
    ready, carry = whole_sessions(recording([0, 20, 1000, 1020, 1040]), 300 * MS)
    assert len(ready) == 2
    assert carry["time"].to_list() == [1000 * MS, 1020 * MS, 1040 * MS]


def test_an_endless_session_is_cut_between_two_instants():
    frame = recording([0, 20, 40, 60, 60, 60])
    ready, carry = whole_sessions(frame, 300 * MS, longest=4)
    assert len(ready) == 3
    assert carry["time"].to_list() == [60 * MS] * 3


# --- labels


def marks(*rows) -> pl.DataFrame:
    table = [(user, start * S, end * S, label, position) for user, start, end, label, position in rows]
    kinds = {"user": pl.UInt32, "start": pl.Int64, "end": pl.Int64, "label": pl.String, "position": pl.String}
    return pl.DataFrame(table, schema=kinds, orient="row")


def told(verdicts: pl.DataFrame) -> list[tuple[int, float, float, str | None]]:
    """user, start, end in seconds (ends inclusive again), label or reason."""
    return [
        (user, round(start / S, 6), round(end / S, 6), reason or label)
        for user, start, end, label, reason in verdicts.select("user", "start", "end", "label", "reason").iter_rows()
    ]


def test_label_sessions_that_end_before_they_start_are_left_out():
    good, lost = verdicts_of.valid(marks((0, 5, 4, "a", None), (0, 5, 5, "a", None), (0, 5, 6, "a", None)))
    assert len(good) == 1
    assert lost["ends before it starts"] == 2


def test_where_two_labels_overlap_neither_counts():
    verdicts = verdicts_of.resolve(marks((0, 0, 100, "walking", None), (0, 60, 160, "sitting", None)))
    assert told(verdicts) == [
        (0, 0, 60, "walking"),
        (0, 60, 100, verdicts_of.CONTESTED),
        (0, 100, 160, "sitting"),
    ]


def test_overlapping_sessions_of_one_label_are_one():
    verdicts = verdicts_of.resolve(marks((0, 0, 100, "a", None), (0, 60, 160, "a", None), (0, 20, 30, "a", None)))
    assert told(verdicts) == [(0, 0, 160, "a")]


def test_a_session_within_another_cuts_it_in_two():
    verdicts = verdicts_of.resolve(marks((0, 0, 100, "a", None), (0, 40, 50, "b", None)))
    assert told(verdicts) == [(0, 0, 40, "a"), (0, 40, 50, verdicts_of.CONTESTED), (0, 50, 100, "a")]


def test_other_users_do_not_matter():
    verdicts = verdicts_of.resolve(marks((0, 0, 100, "a", None), (1, 40, 50, "b", None)))
    assert told(verdicts) == [(0, 0, 100, "a"), (1, 40, 50, "b")]


def test_three_labels_at_once_and_the_same_label_at_two_positions():
    verdicts = verdicts_of.resolve(marks((0, 0, 90, "a", "Hand"), (0, 30, 60, "b", "Hand"), (0, 40, 50, "a", "Table")))
    assert [row[3] for row in told(verdicts)] == ["a", *[verdicts_of.CONTESTED] * 3, "a"]


def test_trimmed_by_ten_seconds_at_both_ends():
    verdicts = verdicts_of.trim(verdicts_of.resolve(marks((0, 0, 100, "a", None))), 10 * S)
    assert told(verdicts) == [(0, 0, 10, verdicts_of.MARGIN), (0, 10, 90, "a"), (0, 90, 100, verdicts_of.MARGIN)]


@pytest.mark.parametrize("seconds", [5, 10, 15, 20])
def test_a_label_session_of_up_to_twenty_seconds_is_all_margin(seconds):
    verdicts = verdicts_of.trim(verdicts_of.resolve(marks((0, 0, seconds, "a", None))), 10 * S + 1)
    assert {row[3] for row in told(verdicts)} == {verdicts_of.MARGIN}
    assert sum(verdicts["end"] - verdicts["start"]) == seconds * S + 1


def test_capped_at_thirty_minutes():
    verdicts = verdicts_of.cap(verdicts_of.resolve(marks((0, 0, 4000, "a", None), (1, 0, 1799, "b", None))), 1800 * S)
    assert told(verdicts) == [(0, 0, 1800, "a"), (0, 1800, 4000, verdicts_of.LATE), (1, 0, 1799, "b")]


def test_only_the_labels_and_positions_that_are_wanted():
    found = verdicts_of.resolve(
        marks((0, 0, 9, "jogging", "Hand"), (0, 20, 29, "eating", "Hand"), (0, 40, 49, "running", "Table"))
    )
    found = verdicts_of.choose(found, {"jogging": "running"}, ("running",))
    found = verdicts_of.exclude_positions(found, ("Table",))
    assert [row[3] for row in told(found)] == ["running", verdicts_of.UNWANTED, verdicts_of.POSITION]


def test_labels_attach_to_sessions_and_time_without_a_label_is_counted():
    frame = recording(np.arange(0, 10_000, 20))
    sessions, _ = keep_stable(frame, find_sessions(frame, 300 * MS), RATES)
    verdicts = verdicts_of.resolve(marks((0, 2, 4, "a", None), (0, 3, 6, "b", None), (0, 60, 70, "c", None)))
    stretches, lost = verdicts_of.attach(frame, sessions, verdicts)
    assert stretches.select("label", "first", "count").rows() == [("a", 100, 50), ("b", 201, 100)]
    assert lost == {verdicts_of.CONTESTED: 51, verdicts_of.UNLABELLED: 500 - 50 - 51 - 100}


def test_a_label_over_two_sessions_makes_two_stretches():
    frame = recording([*np.arange(0, 5000, 20), *np.arange(6000, 9000, 20)])
    sessions, _ = keep_stable(frame, find_sessions(frame, 300 * MS), RATES)
    stretches, lost = verdicts_of.attach(frame, sessions, verdicts_of.resolve(marks((0, 0, 100, "a", None))))
    assert stretches.select("session", "first", "count").rows() == [(0, 0, 250), (1, 250, 150)]
    assert lost == {verdicts_of.UNLABELLED: 0}


# --- windows


def stretch(count, label="a", rate=50.0, first=0) -> pl.DataFrame:
    return pl.DataFrame(
        {"user": [0], "session": [0], "rate": [float(rate)], "label": [label], "first": [first], "count": [count]}
    )


@pytest.mark.parametrize(
    ("count", "overlap", "starts", "left"),
    [
        (99, 0.5, [], 99),
        (100, 0.5, [0], 0),
        (149, 0.5, [0], 49),
        (150, 0.5, [0, 50], 0),
        (250, 0.25, [0, 75, 150], 0),
        (120, 0.9, [0, 10, 20], 0),
        (300, 0.0, [0, 100, 200], 0),
    ],
)
def test_windows_and_what_is_left(count, overlap, starts, left):
    table, lost = cut(stretch(count, first=7), 100, Overlap(overlap))
    assert table["first"].to_list() == [7 + start for start in starts]
    assert lost[SHORT] + lost[REST] == left


def test_a_window_holds_the_samples_it_names():
    frame = recording(np.arange(300) * 20, values=np.arange(300)).with_columns(y=-pl.col("x"))
    table, _ = cut(stretch(300), 100, Overlap(0.5))
    values = gather(frame, table, 100)
    assert values.shape == (5, 3, 100)
    assert values[3, 0].tolist() == list(range(150, 250))
    assert values[3, 1].tolist() == [-value for value in range(150, 250)]


def test_the_papers_overlap_goes_from_25_to_90_per_cent():
    rule = Overlap.balancing({("walking", 50.0): 10_000, ("running", 50.0): 4_000, ("running", 10.0): 20})
    assert rule.of("walking", 50) == 0.25
    assert rule.of("running", 50) == pytest.approx(0.7)
    assert rule.of("running", 10) == 0.9


def test_overlaps_by_label_and_rate():
    rule = Overlap.parse("0.25,running=0.9,@10=0.75,running@10=0.8")
    assert [rule.of("a", 50), rule.of("running", 50), rule.of("a", 10), rule.of("running", 10)] == [
        0.25,
        0.9,
        0.75,
        0.8,
    ]
    with pytest.raises(BadInput, match="overlap"):
        Overlap.parse("much")
    with pytest.raises(BadInput, match=r"at most 0\.99"):
        Overlap.parse("1.0")


# --- resampling


def test_a_slow_wave_survives_resampling_and_a_fast_one_does_not_fold_back():
    seconds = np.arange(1000) / 50
    slow, fast = np.sin(2 * np.pi * 1.0 * seconds), np.sin(2 * np.pi * 9.0 * seconds)
    for wave, kept in ((slow, 1.0), (fast, 0.0)):  # 9 Hz sampled at 10 Hz would look like 1 Hz
        frame, table = resample(recording(seconds * 1000, values=wave), stretch(1000), {50.0: 10.0})
        assert table.select("rate", "first", "count").row(0) == (10.0, 0, 200)
        assert np.diff(frame["time"].to_numpy()).tolist() == [100 * MS] * 199
        inner = frame["x"].to_numpy()[20:-20]
        want = kept * np.sin(2 * np.pi * np.arange(200) / 10)[20:-20]
        assert np.abs(inner - want).max() < 0.06


def test_resampling_only_lowers():
    with pytest.raises(BadInput, match="lower"):
        resample(recording([0, 20]), stretch(2), {50.0: 100.0})


# --- the split and the scale


def test_a_user_tests_or_trains_whoever_else_is_there():
    share = np.mean([user_tests(f"user {n}", 0.15, 0) for n in range(20_000)])
    assert abs(share - 0.15) < 0.015  # six standard deviations
    assert user_tests("anna", 0.15, 0) == user_tests("anna", 0.15, 0)
    assert {user_tests("anna", 0.5, seed) for seed in range(40)} == {True, False}


def test_windows_test_in_the_share_asked_for():
    starts = np.arange(40_000, dtype=np.int64) * 20 * MS
    chosen = windows_test("anna", starts, 0.15, 0)
    assert abs(chosen.mean() - 0.15) < 0.011
    assert (windows_test("anna", starts[5:9], 0.15, 0) == chosen[5:9]).all()
    assert (windows_test("bert", starts, 0.15, 0) != chosen).any()


def test_public_constants_map_two_g_to_one():
    values = np.array([[[-40, -GRAVITY, 0, GRAVITY, 2 * GRAVITY, 40]] * 3], np.float32)
    assert Constants()(values)[0, 0].tolist() == [-1, -0.5, 0, 0.5, 1, 1]


def test_the_papers_constants_are_mean_and_deviation_of_what_was_added():
    generator = np.random.default_rng(0)
    values = generator.normal([[1.0], [2.0], [3.0]], [[1.0], [2.0], [0.5]], (500, 3, 100)).astype(np.float32)
    moments = Moments()
    moments.add(values[:200])
    moments.add(values[200:])
    found = moments.constants()
    assert found.mean == pytest.approx(values.mean(axis=(0, 2)), abs=1e-4)
    assert found.deviation == pytest.approx(values.std(axis=(0, 2)), abs=1e-4)
    assert not found.to_json()["private"]


# --- reading


def write_csv(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(("units", "value"), [("m/s2", 2.0), ("g", 2 * GRAVITY), ("mg", 2 * GRAVITY / 1000)])
def test_units(tmp_path, units, value):
    path = write_csv(tmp_path / "s.csv", "user,time,x,y,z", "7,1,2,2,2")
    row = samples(path, Dialect(units=units)).collect().row(0)
    assert row == pytest.approx(("7", 1, value, value, value))


@pytest.mark.parametrize(("clock", "text"), [("ns", "1500000000"), ("us", "1500000"), ("ms", "1500"), ("s", "1.5")])
def test_clocks(tmp_path, clock, text):
    path = write_csv(tmp_path / "s.csv", "user,time,x,y,z", f"a,{text},0,0,0")
    assert samples(path, Dialect(clock=clock)).collect()["time"].to_list() == [1_500_000_000]


def test_a_column_name_may_declare_the_clock(tmp_path):
    path = write_csv(tmp_path / "s.csv", "user,time_ms,x,y,z", "a,1500,0,0,0")
    assert samples(path, Dialect()).collect()["time"].to_list() == [1_500_000_000]


def test_columns_by_name(tmp_path):
    path = write_csv(tmp_path / "s.csv", "who,t,ax,ay,az", "a,5,1,2,3")
    names = {"user": "who", "time": "t", "x": "ax", "y": "ay", "z": "az"}
    assert samples(path, Dialect(columns=names)).collect().row(0) == ("a", 5, 1, 2, 3)
    with pytest.raises(BadInput, match="no column 'user', only 'who', 't'"):
        samples(path, Dialect())


def test_an_hour_that_the_clock_skips_is_no_gap_and_one_it_shows_twice_has_no_instant(tmp_path):
    path = write_csv(
        tmp_path / "s.csv",
        "user,time,x,y,z",
        "a,2024-03-31T01:59:59.900,0,0,0",
        "a,2024-03-31T03:00:00.000,0,0,0",  # summer time begins: a tenth of a second later
        "a,2024-10-27T02:30:00.000,0,0,0",  # winter time begins: which of the two?
        "a,2024-03-31T02:30:00.000,0,0,0",  # never
    )
    times = samples(path, Dialect(clock="iso", zone="Europe/Berlin")).collect()["time"].to_list()
    assert times[1] - times[0] == 100 * MS
    assert times[2:] == [None, None]


def test_a_clock_that_cannot_be_meant_gives_no_instant(tmp_path):
    path = write_csv(tmp_path / "s.csv", "user,time,x,y,z", "a,1700000000000000000,0,0,0")
    assert samples(path, Dialect(clock="s")).collect()["time"].to_list() == [None]


def test_labels_with_and_without_a_position(tmp_path):
    path = write_csv(tmp_path / "l.csv", "user,start,end,label,position", "1,0,9, walking ,Hand")
    assert label_sessions(path, Dialect()).row(0) == ("1", 0, 9, "walking", "Hand")
    path = write_csv(tmp_path / "m.csv", "user,start,end,label", "1,0,9,walking")
    assert label_sessions(path, Dialect()).row(0) == ("1", 0, 9, "walking", None)


@pytest.mark.parametrize(
    ("header", "row", "clock", "message"),
    [
        ("user,time,x,y,z", "a,today,1,1,1", "ns", "clock iso"),
        ("user,time,x,y,z", "a,5,1,1,1", "iso", "holds numbers"),
        ("user,time,x,y,z", "a,5,one,1,1", "ns", "not numbers"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, header, row, clock, message):
    path = write_csv(tmp_path / "s.csv", header, row)
    with pytest.raises(BadInput, match=message):
        samples(path, Dialect(clock=clock)).collect()


def test_wrong_declarations():
    for wrong, message in (({"clock": "min"}, "clock"), ({"units": "N"}, "units"), ({"zone": "Mars"}, "time zone")):
        with pytest.raises(BadInput, match=message):
            Dialect(**wrong)


# --- order


def lazy(users, times) -> pl.LazyFrame:
    zero = [0.0] * len(times)
    return pl.LazyFrame(
        {"user": users, "time": times, "x": zero, "y": zero, "z": zero},
        schema_overrides={"time": pl.Int64, "user": pl.String},
    )


def test_a_survey_sees_whether_a_file_is_in_order():
    assert survey(lazy(["b", "b", "a"], [1, 2, 1])).ordered
    assert not survey(lazy(["b", "a", "b"], [1, 1, 2])).ordered
    back = survey(lazy(["a", "a", "a"], [1, 3, 2]))
    assert (back.ordered, back.backward) == (False, 1)


def test_rows_without_a_user_or_an_instant_are_counted():
    found = survey(lazy(["a", None, "a"], [1, 2, None]))
    assert (found.total, found.unplaced, found.users) == (3, 2, ["a"])
