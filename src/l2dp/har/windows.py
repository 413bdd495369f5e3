"""From labelled stretches to windows of equal length, overlapping by class and rate.

A stretch is a range of rows, so a window that lies within it crosses no border of a session or a label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from l2dp.errors import BadInput
from l2dp.har.tables import AXES

LEAST, MOST = 0.25, 0.9
"""The paper's overlap of the largest class, and of the smallest."""

SHORT = "stretch is shorter than a window"
REST = "left over at the end of a stretch"


@dataclass(frozen=True)
class Overlap:
    """What share of a window its successor repeats: one number, or others for some labels, rates, or both.

    >>> Overlap.parse("0.5,running=0.9,@10=0.75").of("running", 10)
    0.9
    """

    usual: float = 0.5
    others: Mapping[tuple[str | None, float | None], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for value in (self.usual, *self.others.values()):
            if not 0 <= value <= 0.99:
                raise BadInput(f"an overlap must be at least 0 and at most 0.99, not {value}")

    def of(self, label: str, rate: float) -> float:
        """The most exact rule wins: label and rate, label, rate, the usual one."""
        for key in ((label, rate), (label, None), (None, rate)):
            if key in self.others:
                return self.others[key]
        return self.usual

    @staticmethod
    def parse(text: str) -> Overlap:
        """`0.5`, with exceptions such as `running=0.9`, `@10=0.75` (10 Hz) and `running@10=0.8`."""
        usual, others = 0.5, {}
        for word in text.split(","):
            key, equals, value = word.strip().rpartition("=")
            label, _, rate = key.partition("@")
            try:
                if equals:
                    others[(label or None, float(rate) if rate else None)] = float(value)
                else:
                    usual = float(value)
            except ValueError:
                raise BadInput(f"--overlap {word!r}: write 0.5, label=0.9, @10=0.75 or label@10=0.8") from None
        return Overlap(usual, others)

    @staticmethod
    def balancing(samples: Mapping[tuple[str, float], int]) -> Overlap:
        """The paper's rule: 25 % for the largest class and rate, the more the smaller, up to 90 %.

        The paper gives the two ends; in between we let a class and rate with a share s of the largest's samples make as
        many windows as that one: overlap 1 − 0.75 s.
        """
        largest = max(samples.values(), default=0)
        rules: dict[tuple[str | None, float | None], float] = {
            key: float(np.clip(1 - (1 - LEAST) * count / largest, LEAST, MOST))
            for key, count in samples.items()
            if largest
        }
        return Overlap(LEAST, rules)

    def to_json(self) -> dict[str, float]:
        named = {f"{label or ''}{'' if rate is None else f'@{rate:g}'}": v for (label, rate), v in self.others.items()}
        return {"*": self.usual, **named}


def cut(stretches: pl.DataFrame, size: int, overlap: Overlap) -> tuple[pl.DataFrame, dict[str, int]]:
    """One row for each window (user, session, rate, label, first), and the samples that are in none, by reason."""
    count = stretches["count"].to_numpy()
    strides = np.array(
        [
            max(1, round(size * (1 - overlap.of(label, rate))))
            for label, rate in stretches.select("label", "rate").iter_rows()
        ],
        dtype=np.int64,
    )
    number = np.where(count >= size, (count - size) // np.maximum(strides, 1) + 1, 0)
    owner = np.repeat(np.arange(len(stretches)), number)
    place = np.arange(len(owner)) - np.repeat(number.cumsum() - number, number)
    first = stretches["first"].to_numpy()[owner] + place * strides[owner]
    covered = np.where(number > 0, (number - 1) * strides + size, 0)
    dropped = {
        SHORT: int(count[number == 0].sum()),
        REST: int((count - covered)[number > 0].sum()),
    }
    return stretches.select("user", "session", "rate", "label")[owner].with_columns(first=pl.Series(first)), dropped


def gather(frame: pl.DataFrame, windows: pl.DataFrame, size: int) -> NDArray[np.float32]:
    """The values of windows: window, axis, sample."""
    rows = frame.select(AXES).to_numpy(order="c")
    if len(windows) == 0:
        return np.zeros((0, len(AXES), size), np.float32)
    sliding = np.lib.stride_tricks.sliding_window_view(rows, size, axis=0)
    values: NDArray[np.float32] = sliding[windows["first"].to_numpy()]
    return values
