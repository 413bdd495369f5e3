"""What a home can tell about itself without a secret and without torch: tasks, releases, budgets, accuracies."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from l2dp.book import shown
from l2dp.store import history

if TYPE_CHECKING:
    from l2dp.store.home import Home


def status(home: Home) -> dict[str, Any]:
    """JSON. Every ε has its status beside it."""
    from l2dp.store.home import ABANDONED

    declared = home.declared
    guarantee = declared.guarantee
    with home.book(readonly=True) as book:
        own = home.charges(book).own
        head = book.head()
        levels = book.levels()
    evaluations = history.read(home.path / history.EVALUATIONS)
    accuracy = {line["index"]: line["accuracy"] for line in evaluations}
    tasks: list[dict[str, Any]] = []
    places = count()
    for found in own:
        state = "unfinished" if found.state == "reserved" else "abandoned" if found.answer == ABANDONED else "learned"
        index = next(places) if state == "learned" else None
        tasks.append(
            {
                "task": found.task,
                "state": state,
                "index": index,
                "time": found.body["time"],
                "declared_size": found.body["noise"]["declared_size"],
                "blocks": found.blocks,
                "charged": {
                    "status": guarantee.status,
                    "epsilon": found.cost.epsilon,
                    "delta": found.cost.delta,
                },
                "accuracy": None if index is None else accuracy.get(index),
            }
        )
    return {
        "home": str(home.path),
        "identity": declared.identity,
        "learner": declared.learner,
        "labels": list(declared.labels),
        "guarantee": guarantee.to_json(),
        "lifetime": {"status": guarantee.status, "epsilon": declared.epsilon, "delta": declared.delta},
        "per_task_epsilon": declared.per_task_epsilon,
        "tasks": tasks,
        "unfinished": next((task["task"] for task in tasks if task["state"] == "unfinished"), None),
        "releases": history.read(home.path / history.RELEASES),
        "ledger": {"place": shown(declared.ledger), "head": {"sequence": head.sequence, "hash": head.hash}},
        "budget": {
            "blocks": levels.blocks,
            "block": "task" if declared.unit == "record" else "user",
            "levels": [
                {
                    "status": guarantee.status,
                    "epsilon": spent.epsilon,
                    "delta": spent.delta,
                    "of_lifetime": spent.epsilon / declared.epsilon,
                    "blocks": blocks,
                }
                for spent, blocks in levels.counts
            ],
        },
        "fingerprints": dict(zip(("known", "excluded"), home.index().counts(), strict=True)),
        "accuracy": evaluations,
    }
