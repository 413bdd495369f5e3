"""`l2dp audit`: attacks on the guarantee of a learner, of a run or of a home."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from l2dp.commands.common import say, warn, words
from l2dp.durable import make_folder
from l2dp.errors import BadInput

BEATEN = 1


def audit(
    what: Annotated[
        str,
        typer.Argument(metavar="LEARNER|DIR", help="A learner (see `l2dp list`), or the folder of a run or a home."),
    ],
    epsilon: Annotated[float | None, typer.Option(help="The privacy budget that is stated.")] = None,
    delta: Annotated[float | None, typer.Option(help="The δ that goes with it; 0: pure ε.")] = None,
    runs: Annotated[int | None, typer.Option(help="Trials of every attack; default: by level.")] = None,
    level: Annotated[str, typer.Option(help="quick (two minutes on two cores) or thorough.")] = "quick",
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="A learner's option, name=value; repeatable.")
    ] = None,
    attack: Annotated[list[str] | None, typer.Option(help="Only this attack; repeatable. Default: all.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for audit.json and audit.png.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; default: one for each core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The findings as JSON.")] = False,
) -> None:
    """Tries to break a guarantee, and prints lower bounds on ε, each wrong with a chance of at most 5 %.

    Nothing of yours is read: attacks run the shipped code with this budget, on small networks and data made to be as
    bad as possible. A bound is evidence against a guarantee, never for one. Exit code 1 if a guarantee with the status
    `proved` is beaten.
    """
    if level not in ("quick", "thorough"):
        raise BadInput(f"--level {level}: choose quick or thorough")
    if workers is not None and workers < 1:
        raise BadInput(f"--workers must be at least 1, not {workers}")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    from l2dp.audit import audit as run_audit
    from l2dp.audit import page, settings
    from l2dp.audit.attacks import named
    from l2dp.learners import LEARNERS

    torch.set_num_threads(1)  # many small runs: processes pay, threads do not
    if out is not None:
        make_folder(out)  # before an audit of minutes, not after
    if Path(what).is_dir() and what not in LEARNERS:
        if epsilon is not None or delta is not None or option:
            raise BadInput(f"{what} has settings of its own; leave out --epsilon, --delta and -o")
        targets = settings.from_folder(Path(what))
    else:
        targets = settings.targets(what, epsilon, delta, words(option or []))
    chosen = named(attack or [])
    with Console(stderr=True).status("attacking") as status:
        found = run_audit(
            targets,
            "quick" if level == "quick" else "thorough",
            runs,
            workers or len(os.sched_getaffinity(0)),
            chosen,
            lambda done: status.update(f"done: {done}"),
        )
    if out is not None:
        page.write(found, out)
    if as_json:
        print(json.dumps(found.to_json(), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        page.show(found, Console())
        if out is not None:
            say(f"findings in {out}")
    if found.beaten:
        warn("a guarantee with the status proved is beaten: do not rely on it, and report this")
        raise typer.Exit(BEATEN)
