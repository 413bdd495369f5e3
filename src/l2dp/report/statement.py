"""The privacy statement of one release, on one printable page, for people who sign such statements.

Every number comes from the release's own `privacy.json`; the only arithmetic here is what an ε means for somebody who
guesses. A status other than `proved` is said first and largest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from l2dp.budget import Guarantee
from l2dp.errors import BadInput
from l2dp.report import audits, page, words
from l2dp.report.lines import read_guarantee


def success(epsilon: float, delta: float) -> float:
    """How often, at best, somebody is right who guesses whether a unit was in the data, at even odds beforehand.

    Under (ε, δ) the true and false positive rates of any test obey TPR ≤ e^ε·FPR + δ and 1 − FPR ≤ e^ε·(1 − TPR) + δ;
    the best accuracy (TPR + 1 − FPR)/2 under both is (e^ε + δ)/(1 + e^ε).

    >>> success(0.0, 0.0)
    0.5
    >>> round(success(1.0, 1e-5), 4)
    0.7311
    """
    shrunk = math.exp(-epsilon)
    return min(1.0, (1.0 + delta * shrunk) / (1.0 + shrunk))


class Audited(NamedTuple):
    """An audit of the learner that made a release, and what must be said beside it (None: nothing)."""

    audit: dict[str, Any]
    remark: str | None


def html(about: dict[str, Any], privacy: dict[str, Any], digests: dict[str, str], audited: Audited | None) -> str:
    """The page. `digests` are the SHA-256 of the release's files, under their names."""
    try:
        guarantee = read_guarantee({key: value for key, value in privacy.items() if key != "source_overlap"})
        body = list(_sheet(about, privacy, guarantee, digests, audited))
    except (AttributeError, KeyError, TypeError, ValueError) as flaw:
        raise BadInput(f"the release's privacy.json cannot be shown: {words.short(repr(flaw), 80)}") from None
    return page.whole(f"Privacy statement, model after task {about['task']}", body, page.asset("statement.css"))


def _sheet(
    about: dict[str, Any],
    privacy: dict[str, Any],
    guarantee: Guarantee,
    digests: dict[str, str],
    audited: Audited | None,
) -> Iterator[str]:
    escape = words.escape
    tasks = words.tasks(privacy["tasks"])
    head = privacy["ledger_head"]
    yield '<div class="sheet">'
    yield (
        f"<h1>Privacy statement</h1><p>Model after task <b>{escape(str(about['task']))}</b>, learned from {tasks} by "
        f"l2dp {escape(str(privacy['version']))} ({escape(str(about['learner']))})</p>"
    )
    yield f'<div class="promise {guarantee.status}">{page.status_mark(guarantee.status)}{escape(_title(guarantee))}'
    yield f"<p>{escape(_standing(guarantee, privacy))}</p></div>"
    yield f"<h2>Who is protected</h2><p>{escape(_who(guarantee, privacy))}</p>"
    yield "<h2>By how much, in plain words</h2>"
    yield from _how_much(guarantee)
    yield f"<h2>For how long</h2><p>{escape(_how_long(guarantee, privacy, tasks))}</p>"
    yield "<h2>What is not covered</h2><ul>"
    yield from (f"<li>{escape(str(text))}</li>" for text in privacy["not_covered"])
    yield "</ul><h2>How it was audited</h2>"
    yield f"<p>{escape(_audited(privacy, audited))}</p>"
    yield "<h2>What ties it to the ledger</h2>"
    yield (
        f"<p>Ledger entry {escape(str(head['sequence']))}, SHA-256 <code>{escape(str(head['hash']))}</code>. A ledger "
        "without this entry is not the one that this model was charged to.</p>"
    )
    yield "".join(f"<p>{escape(name)}: SHA-256 <code>{escape(digest)}</code></p>" for name, digest in digests.items())
    yield (
        f"<p>Mechanism: {escape(str(privacy['mechanism']))}. Noise: {escape(str(privacy['noise']))}. "
        f"Proof: {escape(str(privacy['proof']))}.</p>"
    )
    yield '<p class="sign"><span>name</span><span>date</span><span>signature</span></p></div>'


def _title(guarantee: Guarantee) -> str:
    if guarantee.epsilon is None:
        return "No privacy. Do not sign."
    delta = f", δ = {guarantee.delta:g}" if guarantee.delta else ", δ = 0"
    return f"ε = {guarantee.epsilon:g}{delta}: {words.status_words(guarantee.status)}"


def _standing(guarantee: Guarantee, privacy: dict[str, Any]) -> str:
    if guarantee.status == "none":
        seeded = " Its noise came from a seed." if "INSECURE" in str(privacy["noise"]) else ""
        return f"This model protects nobody.{seeded} Give it to nobody who may not see the data itself."
    means = words.STATUS_MEANS[guarantee.status]
    warning = {
        "proved": "",
        "claimed": " Do not rely on it.",
        "refuted": " The number protects nobody. Do not sign.",
    }[guarantee.status]
    return f"{means[0].upper()}{means[1:]}{warning}"


def _who(guarantee: Guarantee, privacy: dict[str, Any]) -> str:
    if guarantee.status == "none":
        return "Nobody."
    whose = (
        "Each record by itself, whoever it belongs to"
        if guarantee.unit == "record"
        else "Each user, with all their records in all tasks"
    )
    return f"{whose}. Neighbouring data ({guarantee.adjacency}): {privacy['meaning']}."


def _how_much(guarantee: Guarantee) -> Iterator[str]:
    if guarantee.status in ("none", "refuted") or guarantee.epsilon is None:
        yield "<p>There is no limit to what somebody who sees the model can find out about a person in the data.</p>"
        return
    delta = guarantee.delta or 0.0
    right = success(guarantee.epsilon, delta)
    # Rounded up: a bound that is rounded down is no bound.
    shown = math.ceil(1000.0 * right - 1e-9) / 10
    scale = 10.0 ** (2 - math.floor(guarantee.epsilon / math.log(10.0)))
    factor = math.ceil(math.exp(guarantee.epsilon) * scale - 1e-9) / scale
    words_for = (
        "hardly better than a coin"
        if right <= 0.6
        else "better than a coin, and often wrong"
        if right <= 0.8
        else "mostly right"
        if right <= 0.95
        else "nearly always right: such an ε protects little"
    )
    unit = guarantee.unit
    status = words.status_words(guarantee.status)
    yield f'<div class="guess">{_dots(right)}<div>'
    yield (
        f"<p>Somebody knows everything about the data but one thing: whether one {unit} was in it, at even odds. "
        f"They see every release there will ever be. Their best guess is right at most <b>{shown:g} times in 100</b> "
        f"({status}); a coin is right 50 times. That is {words_for}.</p>"
    )
    yield (
        f"<p>Put differently, whether that {unit} is in the data changes the probability of anything that is ever "
        f"concluded from the model by a factor of at most {factor:.3g}"
        f"{f', up to a chance of {delta:g}' if delta else ''} ({status}).</p></div></div>"
    )


def _dots(right: float) -> str:
    """A hundred guesses: those a coin gets right, those the model may add, and those that stay wrong."""
    gained = math.ceil(100.0 * right - 1e-9)
    drawn = []
    for place in range(100):
        row, column = divmod(place, 20)
        kind = "coin" if place < 50 else "gain" if place < gained else "rest"
        x, y = 10 + 15.8 * column, 10 + 16 * row
        # Not by colour alone: a coin's guesses are round, those that are added are diamonds.
        outline = f"M{x:.1f} {y}m0-6.5l6.5 6.5l-6.5 6.5l-6.5-6.5z" if kind == "gain" else ""
        circle = f'<circle class="{kind}" cx="{x:.1f}" cy="{y}" r="5"/>'
        drawn.append(f'<path class="gain" d="{outline}"/>' if outline else circle)
    words_for = f"Of 100 guesses a coin gets 50 right, an attacker at most {gained}"
    caption = f"right, of 100 guesses: a coin 50, an attacker ≤ {gained}"
    return (
        f'<svg viewBox="0 0 320 104" role="img" aria-label="{words_for}">{"".join(drawn)}'
        f'<text x="4" y="99" font-size="12" fill="currentColor">{caption}</text></svg>'
    )


def _how_long(guarantee: Guarantee, privacy: dict[str, Any], tasks: str) -> str:
    if guarantee.status == "none":
        return "There is no promise."
    one = privacy.get("per_task") or {}
    share = ""
    if guarantee.unit == "user" and one.get("epsilon") is not None:
        stated = Guarantee(guarantee.status, one["epsilon"], one.get("delta"))
        share = f" A task spends at most {stated} of it, and a user whose budget is used up is in no further task."
    elif guarantee.unit == "record":
        share = " A record is in one task only, so later tasks and releases cost it nothing."
    return (
        f"For the whole lifetime of the home that made this model: {tasks} so far and all to come, all releases taken "
        f"together. The ledger is charged before data is read, and refuses what would exceed the budget.{share}"
    )


def _audited(privacy: dict[str, Any], audited: Audited | None) -> str:
    if audited is None:
        kept = privacy["audit"]
        return f"{str(kept['status']).capitalize()}. “{kept['command']}” attacks the learner that made it."
    text = audits.summary(audited.audit)
    if audited.remark is not None:
        text += f" {words.short(audited.remark, 500)}"
    return f"{text} An audit can refute a guarantee and never prove one."
