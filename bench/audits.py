"""Many independent audits of one learner, and how near the bounds come: the figures of docs/audit.md.

Continues a file that holds fewer audits than asked for.

    python -m bench.audits private-replay --epsilon 1 --count 20 --out results/audit/private-replay.json
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch

from l2dp.audit import Audit, audit, settings
from l2dp.audit.attacks import ATTACKS
from l2dp.durable import make_folder, read_json, write_json


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.audits", description="Audits, again and again.")
    parser.add_argument("learner")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--level", choices=("quick", "thorough"), default="thorough")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    targets = settings.targets(asked.learner, asked.epsilon, None, {})
    make_folder(asked.out.parent)
    attacks = {attack.NAME: attack.RUNS[asked.level] for attack in ATTACKS}
    head = {"learner": asked.learner, "epsilon": asked.epsilon, "level": asked.level, "trials": attacks}
    audits: list[dict[str, Any]] = []
    if asked.out.exists():
        there = read_json(asked.out)
        if {key: there.get(key) for key in head} != head:
            raise SystemExit(f"{asked.out} holds audits of another kind; choose another --out")
        audits = there["audits"]
    while len(audits) < asked.count:
        audits.append(_short(audit(targets, asked.level, workers=asked.workers)))
        refuted = sum(one["verdict"] == "refuted" for one in audits)
        write_json(asked.out, head | {"refuted": refuted, "highest": _highest(audits), "audits": audits})
        print(f"{asked.learner}: {len(audits)} of {asked.count} audits, {refuted} refuted", flush=True)


def _short(found: Audit) -> dict[str, Any]:
    tried = [finding for finding in found.findings if finding.verdict != "not applicable"]
    return {
        "verdict": found.verdict,
        "seconds": found.seconds,
        "findings": [[f.attack, f.variant, f.lower_bound, f.verdict_bound, f.p_value] for f in tried],
    }


def _highest(audits: list[dict[str, Any]]) -> dict[str, float]:
    """The largest 95 % bound of each attack, over all settings and audits."""
    highest: dict[str, float] = {}
    for one in audits:
        for attack, _, shown, _, p_value in one["findings"]:
            if p_value is None:
                highest[attack] = max(highest.get(attack, 0.0), shown)
    return highest


if __name__ == "__main__":
    main()
