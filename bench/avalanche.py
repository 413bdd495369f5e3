"""Avalanche's A-GEM in the same table as ours. It gets a virtual environment of its own, made on first use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.steps import cells, table

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-avalanche"
READY = VENV / ".installed"
REQUIRED = ("-c", "constraints.txt", "-e", ".", "avalanche-lib==0.6.0")
MINUTES = 20


class NotMeasured(Exception):
    """Why there are no numbers."""


def _call(command: list[str], what: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60 * MINUTES, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotMeasured(f"{what} took more than {MINUTES} minutes") from None
    except OSError as error:
        raise NotMeasured(f"{what} could not be started: {error.strerror}") from error
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        # What pip itself calls an error says more than the notes around it.
        errors = [line for line in lines if line.startswith("ERROR:")] or lines
        raise NotMeasured(f"{what} failed: {errors[-1] if errors else f'exit code {done.returncode}'}")
    return done.stdout


def install() -> None:
    """Lets pip resolve Avalanche beside the pinned torch; A-GEM imports nearly all of what it depends on."""
    if READY.exists() and READY.read_text(encoding="utf-8") == repr(REQUIRED):
        return
    _call([sys.executable, "-m", "venv", str(VENV)], "making .venv-avalanche")
    _call([str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", *REQUIRED], "installing Avalanche")
    READY.write_text(repr(REQUIRED), encoding="utf-8")


def run(console: Console, quick: bool) -> dict[str, Any]:
    """Both A-GEMs in one process of that environment, or the reason why not."""
    try:
        if not READY.exists():
            console.print("installing Avalanche into .venv-avalanche (once, about 1.5 GB) …")
        install()
        command = [str(VENV / "bin" / "python"), "-m", "bench.peer", *(["--quick"] if quick else [])]
        printed = _call(command, "timing Avalanche")
        found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    except NotMeasured as reason:
        console.print(f"Avalanche: not measured: {reason}", markup=False)
        return {"not_measured": str(reason)}
    out = table("One A-GEM step beside Avalanche's")
    for row in found["rows"]:
        out.add_row(*cells(row), "")
    console.print(out)
    if found["torchvision_operators_declared"]:
        console.print("torchvision's compiled part does not fit this torch; A-GEM needs none of it")
    return found
