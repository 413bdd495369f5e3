"""Results in the `result.json` format, made up for tests of reports."""

import json

from l2dp.metrics import average_accuracy, average_forgetting

HOSTILE = "<script>alert('x')</script>\"&\x1b[31m\u202e$\\frac{ [bold]_"


def result(learner, guarantee, level, tasks=4, released=None, **changes):
    def matrix(level):
        return [
            [round(level - 0.013 * (tau - t), 4) if t <= tau else 0.1234 for t in range(tasks)] for tau in range(tasks)
        ]

    made = {
        "benchmark": "permuted-digits",
        "learner": learner,
        "seed": 0,
        "tasks": tasks,
        "protocol": "class",
        "guarantee": guarantee.to_json(),
        "accuracy_matrix": matrix(level),
        "average_accuracy": average_accuracy(matrix(level)),
        "average_forgetting": average_forgetting(matrix(level)),
        "released": None,
        "examples_per_second": 1000.0,
        "seconds": 12.345,
        "peak_memory_mb": 100.0,
        "config": {},
        "version": "0.1.0",
    }
    if released is not None:
        made["released"] = {
            "accuracy_matrix": matrix(released),
            "average_accuracy": average_accuracy(matrix(released)),
        }
    return json.loads(json.dumps({**made, **changes}))
