"""A table for a paper, in LaTeX with booktabs. Names are shown as they are: nothing in them is a command."""

from __future__ import annotations

from l2dp.report import words
from l2dp.report.document import Table

SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "–": "--", "—": "---", "…": r"\ldots{}", "±": r"$\pm$",
    "ε": r"$\varepsilon$", "δ": r"$\delta$", "θ": r"$\theta$", "τ": r"$\tau$", "≤": r"$\leq$", "≥": r"$\geq$",
    "\N{REPLACEMENT CHARACTER}": "?",
}  # fmt: skip


def escape(text: str) -> str:
    return "".join(SPECIAL.get(character, character) for character in words.clean(text))


def table(part: Table) -> str:
    """A `table` environment; small print goes below the body, once for each of its texts."""
    align = "l" * part.numeric + "r" * (len(part.columns) - part.numeric)
    small = list(dict.fromkeys(cell.small for row in part.rows for cell in row if cell.small))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape(part.caption)}}}",
        rf"\label{{tab:{part.name}}}",
        rf"\begin{{tabular}}{{{align}}}",
        r"\toprule",
        " & ".join(escape(column) for column in part.columns) + r" \\",
        r"\midrule",
        *(" & ".join(escape(cell.text) for cell in row) + r" \\" for row in part.rows),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\\[2pt]{{\footnotesize {escape(text)}}}" for text in small),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"
