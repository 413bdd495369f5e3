"""The audit of every stated guarantee in one table: what is promised, and the highest bound against it."""

from __future__ import annotations

import os
from typing import Any

from l2dp.audit import audit, settings
from l2dp.audit.attacks import ATTACKS
from l2dp.budget import Guarantee
from l2dp.durable import read_json, write_json
from l2dp.errors import BadInput
from l2dp.experiments.functions import Ask, Table

STATED = {"l2dp-ml": 0.5, "naive-gaussian": 1.0, "private-replay": 1.0}
"""The ε that each learner is audited at; private-replay in all its settings, pure ε among them."""
QUICK_RUNS = 200


def summary(ask: Ask) -> Table:
    """One row for each setting of each learner; the findings themselves go into the folder.

    An audit of the same ε and level that lies among the known results (`l2dp audit … --level thorough --out`) or in
    the folder, from a call that was stopped, is taken.
    """
    rows: list[list[Any]] = []
    for learner, epsilon in STATED.items():
        found = _known(ask, learner, epsilon)
        if found is None:
            found = audit(
                settings.targets(learner, epsilon, None, {}),
                "quick" if ask.quick else "thorough",
                QUICK_RUNS if ask.quick else None,
                len(os.sched_getaffinity(0)),
                tell=ask.console.print,
            ).to_json()
        write_json(ask.folder / f"{learner}.json", found)
        for variant in dict.fromkeys(finding["variant"] for finding in found["findings"]):
            mine = [finding for finding in found["findings"] if finding["variant"] == variant]
            rows.append([learner, variant or "–", *_cells(mine)])
    columns = ["method", "setting", "stated", "attacks", "strongest", "ε at least (95 %)", "at most", "verdict"]
    notes = [
        "A lower bound is evidence against a guarantee, never for one; *holds so far* proves nothing (docs/audit.md).",
        "*At most* is the bound if every guess had been right: more trials raise it.",
    ]
    return Table(columns, rows, notes)


def _known(ask: Ask, learner: str, epsilon: float) -> dict[str, Any] | None:
    # The same settings, all attacks, all their trials: nothing less stands for the audit of a learner.
    whole = {
        "learner": learner,
        "level": "quick" if ask.quick else "thorough",
        "runs": QUICK_RUNS if ask.quick else None,
        "attacks": [attack.NAME for attack in ATTACKS],
        "targets": [target.to_json() for target in settings.targets(learner, epsilon, None, {})],
    }
    for folder in ask.known:
        for path in sorted(folder.rglob("*.json")):
            try:
                found = read_json(path)
            except BadInput:
                continue
            if isinstance(found, dict) and {key: found.get(key) for key in whole} == whole:
                return found
    return None


def _cells(findings: list[dict[str, Any]]) -> list[Any]:
    tried = [finding for finding in findings if finding["verdict"] != "not applicable"]
    stated = next((finding["stated"] for finding in findings if finding["stated"] is not None), None)
    promise = "–" if stated is None else str(Guarantee(**stated))
    verdicts = {finding["verdict"] for finding in tried}
    verdict = "refuted" if "refuted" in verdicts else "holds so far" if tried else "not applicable"
    bounded = [finding for finding in tried if finding["lower_bound"] is not None]
    if not bounded:
        return [promise, len(tried), "–", "–", "–", verdict]
    best = max(bounded, key=lambda finding: finding["lower_bound"])
    ceiling = "–" if best["ceiling"] is None else f"{best['ceiling']:.2f}"
    return [promise, len(tried), best["attack"], f"{best['lower_bound']:.2f}", ceiling, verdict]
