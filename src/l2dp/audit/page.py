"""How an audit is shown: a table, a figure of error trade-off curves, and `audit.json`."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from l2dp.audit.engine import FAMILY_ERROR, SHOWN_ERROR, Audit, Finding
from l2dp.durable import make_folder, write_bytes, write_json

AT_MOST = 6
"""Curves in the figure: those with the highest bounds."""


def show(found: Audit, console: Console) -> None:
    """The table, and a sentence on what it means."""
    tried = [finding for finding in found.findings if finding.verdict != "not applicable"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("attack: threat model", overflow="fold")  # together: a narrow terminal has no room for both
    for heading in ("stated", f"ε ≥ ({1 - SHOWN_ERROR:.0%})", "at most", "verdict"):
        table.add_column(heading, justify="left" if heading in ("stated", "verdict") else "right", no_wrap=True)
    for finding in tried:
        setting = f" ({finding.variant})" if finding.variant else ""
        table.add_row(f"{finding.attack}{setting}: {finding.threat_model}", *_numbers(finding))
    console.print(table, highlight=False, markup=False)
    left_out = sorted({finding.attack for finding in found.findings} - {finding.attack for finding in tried})
    if left_out:
        console.print(f"not applicable: {', '.join(left_out)}", highlight=False, soft_wrap=True)
        if not tried:
            for why in dict.fromkeys(finding.why for finding in found.findings):
                console.print(f"  {why}", highlight=False, soft_wrap=True)
    if any(not finding.could_refute for finding in tried):
        console.print(
            "* so few trials cannot refute this ε, whatever they show; raise --runs, or use --level thorough",
            highlight=False,
            soft_wrap=True,
        )
    console.print(
        f"{found.learner}: {found.verdict}. ε ≥ is a lower bound at {1 - SHOWN_ERROR:.0%} for each attack, at most the "
        f"largest that its trials could show. A guarantee is called refuted only if the chance of doing so wrongly is "
        f"below {FAMILY_ERROR:g} over all {len(tried)} attacks. 'holds so far' proves nothing.",
        highlight=False,
        soft_wrap=True,
    )


def _numbers(finding: Finding) -> tuple[str, str, str, str]:
    stated = "none" if finding.stated is None else str(finding.stated.guarantee)
    if finding.p_value is not None:
        return stated, f"p = {finding.p_value:.2g}", "", finding.verdict
    verdict = finding.verdict if finding.could_refute else f"{finding.verdict} *"
    return stated, _number(finding.lower_bound), _number(finding.ceiling), verdict


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def write(found: Audit, folder: Path) -> None:
    """`audit.json`, and `audit.png` if there is a curve to draw."""
    make_folder(folder)
    write_json(folder / "audit.json", found.to_json())
    drawn = [finding for finding in found.findings if finding.curve.get("false_positive_rate")]
    if drawn:
        draw(drawn, folder / "audit.png")


def draw(findings: list[Finding], path: Path) -> None:
    """Misses against false alarms, and the region that (ε, δ) leaves to an attacker: above the dashed lines."""
    from matplotlib.figure import Figure

    best = sorted(findings, key=lambda finding: -(finding.lower_bound or 0.0))[:AT_MOST]
    figure = Figure(figsize=(6.4, 5.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    regions = {}
    for finding in best:
        rates = finding.curve
        label = f"{finding.attack}{f' ({finding.variant})' if finding.variant else ''}: ε ≥ {finding.lower_bound:.2f}"
        axes.plot(rates["false_positive_rate"], rates["false_negative_rate"], linewidth=1.4, label=label)
        if finding.stated is not None:
            regions[finding.stated.epsilon, finding.stated.delta] = str(finding.stated.guarantee)
    alarms = np.linspace(0, 1, 400)
    for (epsilon, delta), words in regions.items():
        allowed = np.maximum(
            0, np.maximum(1 - delta - np.exp(epsilon) * alarms, np.exp(-epsilon) * (1 - delta - alarms))
        )
        axes.plot(alarms, allowed, "k--", linewidth=1)
        axes.annotate(words, (0.5, float(np.interp(0.5, alarms, allowed))), fontsize=8, ha="left", va="bottom")
    axes.set(xlabel="false alarms", ylabel="misses", xlim=(0, 1), ylim=(0, 1))
    axes.set_title("What an attacker achieves, and what the guarantee allows (above the dashed lines)", fontsize=9)
    axes.legend(fontsize=7, loc="upper right")
    png = io.BytesIO()
    figure.savefig(png, format="png")
    write_bytes(path, png.getvalue())
