"""Colours and shapes, for pages and for paper: safe for colour-blind readers, and never the only sign of anything."""

from __future__ import annotations

from collections.abc import Sequence

# Okabe and Ito's colour-blind safe hues, darkened or lightened for a contrast of 3:1 to the background.
LIGHT = ("#0072b2", "#d55e00", "#007a5a", "#a8457f", "#8a6100", "#4a5560")
DARK = ("#56b4e9", "#ff8a3d", "#2cc295", "#e29bc4", "#e6b800", "#c0c8d0")
MARKERS = ("o", "s", "^", "D", "v", "P")

STATUS_LIGHT = {"proved": "#00694d", "claimed": "#7a5600", "refuted": "#a83200", "none": "#4a5560"}
STATUS_DARK = {"proved": "#2cc295", "claimed": "#e6b800", "refuted": "#ff9c5b", "none": "#c0c8d0"}
STATUS_MARKERS = {"proved": "o", "claimed": "D", "refuted": "X", "none": "s"}

OUTLINES = {
    "o": "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "s": "m-3.7-3.7h7.4v7.4h-7.4z",
    "^": "m0-4.6l4.4 8h-8.8z",
    "D": "m0-5l5 5l-5 5l-5-5z",
    "v": "m0 4.6l4.4-8h-8.8z",
    "P": "m-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "X": "m-5-3l2-2l3 3l3-3l2 2l-3 3l3 3l-2 2l-3-3l-3 3l-2-2l3-3z",
}
"""Matplotlib's markers as SVG path data around a point."""

HEAT_STEPS = 20


def heat_colours() -> list[tuple[str, str]]:
    """Background and ink of every step, from none to all; the ink is the one with the higher contrast."""
    made = []
    for step in range(HEAT_STEPS + 1):
        share = step / HEAT_STEPS
        rgb = [round(start + share * (end - start)) for start, end in ((238, 8), (243, 56), (248, 120))]
        light = luminance(rgb)
        made.append((f"#{bytes(rgb).hex()}", "#fff" if 1.05 / (light + 0.05) > (light + 0.05) / 0.05 else "#000"))
    return made


def luminance(rgb: Sequence[int]) -> float:
    """How bright a colour is, as contrast is reckoned for readers (WCAG's relative luminance)."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (c / 255 for c in rgb)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
