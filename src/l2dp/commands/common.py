"""What the commands share: parsing of lists and options, threads, warnings."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from l2dp.errors import BadInput

Out = Annotated[Path, typer.Option(help="Folder for the results; an unfinished run there is continued.")]


def numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise BadInput(f"{option} {text!r}: give a whole number, or several separated by commas") from None


def words(options: list[str]) -> dict[str, str]:
    found = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise BadInput(f"option {option!r}: write it as name=value")
        found[name.strip().replace("-", "_")] = value.strip()
    return found


def use_cores(threads: int | None) -> None:
    # Threads that spin while they wait make a machine that is busy with something else many times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    if threads is not None and threads < 1:
        raise BadInput(f"--threads must be at least 1, not {threads}")
    if threads is not None or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads or len(os.sched_getaffinity(0)))


def warn(message: str) -> None:
    print(f"l2dp: {message}", file=sys.stderr, flush=True)


def say(text: str) -> None:
    """One line for a person, as it is: names of theirs are not markup, and paths are not broken."""
    Console().print(text, highlight=False, soft_wrap=True, markup=False)
