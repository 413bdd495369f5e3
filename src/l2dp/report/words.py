"""How numbers and strangers' names are written, in one place, so that every table, figure and page agrees.

Names may come from strangers' files. `clean` takes away whatever would act instead of being shown; the writers
of each format escape the rest.
"""

from __future__ import annotations

import html
import math

NOTHING = "–"

STATUS_MEANS = {
    "proved": "the argument is written down, and its premises are tested.",
    "claimed": "somebody says so; nobody here has proved or broken it.",
    "refuted": "the source claims this ε, and an attack beats it.",
    "none": "no privacy at all.",
}


def status_words(status: str) -> str:
    """A status as it is shown: what was refuted was claimed by somebody."""
    return {"refuted": "claimed, refuted", "none": "no privacy"}.get(status, status)


def percent(value: float | None, digits: int = 2) -> str:
    return NOTHING if value is None else f"{100.0 * value:z.{digits}f}%"


def decimal(value: float | None, digits: int = 3) -> str:
    return NOTHING if value is None else f"{value:z.{digits}f}"


def p_value(value: float | None) -> str:
    """Four digits at least as small as they come; the smallest a float holds is not zero."""
    if value is None:
        return NOTHING
    return f"{value:.4f}" if value >= 0.001 else "< 1e-300" if value < 1e-300 else f"{value:.2e}"


def spread(mean: str, deviation: str | None) -> str:
    """`94.62% ± 0.31`; the unit stands once."""
    return mean if deviation is None or mean == NOTHING else f"{mean} ± {deviation.removesuffix('%')}"


def tasks(count: object) -> str:
    return "1 task" if str(count) == "1" else f"{count} tasks"


def clean(text: str) -> str:
    """Without terminal escapes, direction overrides and whatever else would act instead of being shown."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def short(text: str, width: int) -> str:
    return clean(text if len(text) <= width else f"{text[: width - 1]}…")


def escape(text: str) -> str:
    """For HTML, inside tags and attributes alike."""
    return html.escape(clean(text))


def escape_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(escape(line) for line in text.split("\n"))


def number(value: object) -> float | None:
    """Python's JSON reader lets NaN and infinities through; they are as good as not evaluated."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value) if math.isfinite(value) else None


def ticks(first: float, last: float) -> list[int]:
    """At most ten whole numbers, in steps of 1, 2 or 5 times a power of ten."""
    step = next(
        scale * 10**power for power in range(12) for scale in (1, 2, 5) if last - first <= 10 * scale * 10**power
    )
    return [tick for tick in range(0, math.floor(last) + 1, step) if tick >= 1]


def evenly(indices: list[int], most: int) -> list[int]:
    """At most so many of them, with the first and the last."""
    if len(indices) <= most:
        return indices
    return [indices[round(place * (len(indices) - 1) / (most - 1))] for place in range(most)]
