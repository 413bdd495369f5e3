import random
import statistics
import time
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from l2dp.errors import BadInput
from l2dp.metrics import average_accuracy, average_forgetting, mean_and_sd, p_value_curve

# Worked by hand. Task 2 is best after task 1 (0.75), before it was learned: the maximum lies at l < t.
HAND = [
    [0.90, 0.75, 0.10, 0.10],
    [0.80, 0.70, 0.20, 0.10],
    [0.60, 0.50, 0.90, 0.10],
    [0.70, 0.55, 0.95, 0.80],
]
HAND_ACCURACY = [0.9, 0.75, 2.0 / 3.0, 0.75]
HAND_FORGETTING = [None, 0.10, (0.30 + 0.25) / 2, (0.20 + 0.20 - 0.05) / 3]

accuracy = st.floats(0.0, 1.0, allow_subnormal=False)
accuracy_or_none = st.one_of(st.none(), accuracy)


@st.composite
def matrices(draw, entries=accuracy_or_none):
    tasks = draw(st.integers(1, 7))
    learned = draw(st.integers(1, tasks))
    return [[draw(entries) for _ in range(tasks)] for _ in range(learned)]


@st.composite
def curves(draw):
    length = draw(st.integers(0, 8))
    return [[draw(accuracy_or_none) for _ in range(length)] for _ in range(2)]


def forgetting_by_the_book(matrix):
    averages = [None]
    for tau in range(1, len(matrix)):
        per_task = []
        for t in range(tau):
            drops = [
                matrix[earlier][t] - matrix[tau][t]
                for earlier in range(tau)
                if matrix[earlier][t] is not None and matrix[tau][t] is not None
            ]
            per_task.append(max(drops) if drops else None)
        averages.append(None if None in per_task else sum(per_task) / tau)
    return averages


def assert_close(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or one == pytest.approx(other, abs=1e-12)


def test_hand_worked_matrix():
    assert_close(average_accuracy(HAND), HAND_ACCURACY)
    assert_close(average_forgetting(HAND), HAND_FORGETTING)


def test_forgetting_is_not_measured_from_the_accuracy_right_after_learning():
    right_after = (HAND[0][0] - HAND[2][0] + HAND[1][1] - HAND[2][1]) / 2
    assert average_forgetting(HAND)[2] > right_after + 0.02


def test_forgetting_is_negative_where_a_later_task_helps():
    assert average_forgetting([[0.5, 0.5], [0.75, 0.5]]) == [None, -0.25]


def test_one_task_and_no_task():
    assert average_accuracy([[0.5]]) == [0.5]
    assert average_forgetting([[0.5]]) == [None]
    assert average_accuracy([]) == average_forgetting([]) == []


def test_an_unfinished_run_has_fewer_rows_than_tasks():
    assert_close(average_accuracy(HAND[:2]), HAND_ACCURACY[:2])
    assert_close(average_forgetting(HAND[:2]), HAND_FORGETTING[:2])


def test_sampled_rows():
    none = [None] * 4
    sampled = [HAND[0], none, none, HAND[3]]
    assert_close(average_accuracy(sampled), [0.9, None, None, 0.75])
    assert_close(average_forgetting(sampled), [None, None, None, (0.20 + 0.20 - 0.85) / 3])
    assert average_forgetting([none, none, none, HAND[3]]) == [None] * 4


def test_only_the_needed_entries_need_to_be_evaluated():
    lower = [[value if t <= tau else None for t, value in enumerate(row)] for tau, row in enumerate(HAND)]
    assert_close(average_accuracy(lower), HAND_ACCURACY)
    assert_close(average_forgetting(lower), [None, 0.10, 0.25, (0.20 + 0.15 - 0.05) / 3])


@pytest.mark.parametrize("matrix", [[[0.5], [0.5, 0.5]], [[0.5], [0.5]], [0.5], [["high"]], [[]], [[[0.5]]]], ids=repr)
def test_what_is_no_matrix_is_refused_in_one_line(matrix):
    for measure in (average_accuracy, average_forgetting):
        with pytest.raises(BadInput, match="accuracy matrix") as refusal:
            measure(matrix)
        assert "\n" not in str(refusal.value)


@settings(deadline=None)
@given(matrices())
def test_forgetting_is_the_papers_formula(matrix):
    assert_close(average_forgetting(matrix), forgetting_by_the_book(matrix))


@settings(deadline=None)
@given(matrices())
def test_accuracy_is_none_or_within_the_bounds_of_its_row(matrix):
    for tau, mean in enumerate(average_accuracy(matrix), start=1):
        used = matrix[tau - 1][:tau]
        assert (mean is None) == (None in used)
        if mean is not None:
            assert min(used) - 1e-12 <= mean <= max(used) + 1e-12


@settings(deadline=None)
@given(matrices(entries=accuracy), st.floats(-0.5, 0.5))
def test_forgetting_does_not_see_a_shift_and_accuracy_does(matrix, shift):
    shifted = [[value + shift for value in row] for row in matrix]
    assert_close(average_forgetting(shifted), average_forgetting(matrix))
    assert_close(average_accuracy(shifted), [mean + shift for mean in average_accuracy(matrix)])


@settings(deadline=None)
@given(matrices())
def test_tasks_to_come_and_later_rows_change_nothing(matrix):
    tasks = len(matrix)
    cut = [row[:tasks] for row in matrix]
    assert_close(average_accuracy(cut), average_accuracy(matrix))
    assert_close(average_forgetting(cut), average_forgetting(matrix))
    assert_close(average_accuracy(matrix[:-1]), average_accuracy(matrix)[:-1])
    assert_close(average_forgetting(matrix[:-1]), average_forgetting(matrix)[:-1])


def test_a_thousand_tasks_are_fast():
    generator = random.Random(0)
    matrix = [[generator.random() for _ in range(1000)] for _ in range(1000)]
    start = time.process_time()
    accuracies, forgettings = average_accuracy(matrix), average_forgetting(matrix)
    assert time.process_time() - start < 5.0
    assert accuracies[-1] == pytest.approx(sum(matrix[-1]) / 1000)
    worst = [max(column[:-1]) - column[-1] for column in zip(*matrix, strict=True)]
    assert forgettings[-1] == pytest.approx(sum(worst[:-1]) / 999)


@pytest.mark.parametrize("paired", [False, True])
def test_p_values_are_scipys(paired):
    a = [0.90, 0.85, 0.83, 0.80, 0.81]
    b = [0.70, 0.72, 0.69, 0.60, 0.58]
    test = stats.ttest_rel if paired else stats.ttest_ind
    found = p_value_curve(a, b, paired=paired)
    assert found[0] is None
    assert found[1:] == [pytest.approx(test(a[:n], b[:n]).pvalue, rel=1e-12) for n in range(2, 6)]
    assert p_value_curve(b, a, paired=paired) == pytest.approx(found)


def test_p_value_worked_by_hand():
    # t = (2 - 3) / sqrt(1/3 + 1/3) = -1.2247 with 4 degrees of freedom; the tables give 0.288 for both tails.
    assert p_value_curve([0.1, 0.2, 0.3], [0.2, 0.3, 0.4])[-1] == pytest.approx(0.288, abs=5e-4)


@pytest.mark.parametrize("paired", [False, True])
def test_p_values_drop_nones_in_pairs(paired):
    a = [None, 0.9, 0.8, None, 0.7, 0.65]
    b = [0.5, 0.6, None, None, 0.4, 0.45]
    kept = p_value_curve([0.9, 0.7, 0.65], [0.6, 0.4, 0.45], paired=paired)
    assert p_value_curve(a, b, paired=paired) == [None, None, None, None, kept[1], kept[2]]


@pytest.mark.parametrize("paired", [False, True])
def test_p_values_of_constant_curves(paired):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert p_value_curve([0.1] * 4, [0.1] * 4, paired=paired) == [None, 1.0, 1.0, 1.0]
        assert p_value_curve([0.5] * 3, [0.25] * 3, paired=paired) == [None, 0.0, 0.0]
        assert p_value_curve([0.3, 0.7, 0.5], [0.3, 0.7, 0.5], paired=paired) == [None, 1.0, 1.0]
        assert p_value_curve([0.1, 0.1 + 1e-16], [0.1, 0.1], paired=paired)[1] <= 1.0


def test_p_values_of_curves_of_different_lengths_are_refused():
    with pytest.raises(BadInput, match="2 and 1 tasks"):
        p_value_curve([0.5, 0.5], [0.5])


@settings(deadline=None)
@given(curves(), st.booleans())
def test_p_values_are_probabilities(pair, paired):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = p_value_curve(*pair, paired=paired)
    assert len(found) == len(pair[0])
    both = 0
    for x, y, p in zip(*pair, found, strict=True):
        both += x is not None and y is not None
        assert (p is None) == (both < 2)
        assert p is None or 0.0 <= p <= 1.0


def test_mean_and_sd():
    mean, sd = mean_and_sd([[[0.25, None], [0.5, 1.0]], [[0.75, 0.5], [0.5, None]]])
    assert mean == [[0.5, None], [0.5, None]]
    assert sd == [[pytest.approx(0.125**0.5), None], [0.0, None]]
    assert mean_and_sd([[0.5, None]]) == ([0.5, None], [0.0, None])
    assert mean_and_sd([1.0, 2.0, 6.0]) == (3.0, pytest.approx(7.0**0.5))
    assert mean_and_sd([None, 2.0]) == (None, None)


@settings(deadline=None)
@given(st.lists(st.lists(accuracy, min_size=3, max_size=3), min_size=2, max_size=5))
def test_mean_and_sd_are_the_standard_librarys(runs):
    mean, sd = mean_and_sd(runs)
    columns = list(zip(*runs, strict=True))
    assert mean == pytest.approx([statistics.mean(column) for column in columns])
    assert sd == pytest.approx([statistics.stdev(column) for column in columns], abs=1e-9)


def test_runs_of_different_shapes_are_refused():
    with pytest.raises(BadInput, match="different shapes"):
        mean_and_sd([[0.5], [0.5, 0.5]])
    with pytest.raises(BadInput, match="no runs"):
        mean_and_sd([])
