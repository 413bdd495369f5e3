"""`python -m bench`: tables on the console, everything in `bench.json`. Ends with 0: a noisy machine is no error."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

# Before torch is imported: threads that spin while they wait make a busy machine ten times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from rich.console import Console

from bench import avalanche, books, dpsgd, flat, ingest, private_gradient, steps
from bench.timing import machine
from l2dp.durable import make_folder, write_json

SECTIONS = {
    "steps": steps.run,
    "avalanche": avalanche.run,
    "flat": flat.run,
    "dpsgd": dpsgd.run,
    "fingerprints": books.run_fingerprints,
    "ledger": books.run_ledger,
    "ingest": ingest.run,
    "private-gradient": private_gradient.run,
}


def _sections(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown section {unknown[0]!r}; choose from {', '.join(SECTIONS)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="What steps cost, and how that grows.")
    parser.add_argument("--out", type=Path, default=Path("bench/out"), help="folder for bench.json")
    parser.add_argument("--quick", action="store_true", help="few repetitions: a look, not a measurement")
    parser.add_argument("--only", type=_sections, default=list(SECTIONS), help="some of " + ",".join(SECTIONS))
    arguments = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    # Wide enough for the tables when the output goes to a file.
    console = Console() if os.isatty(1) else Console(width=170)
    facts = machine()
    console.print(
        f"{facts['processor']}, {facts['cores']} cores, {facts['torch_threads']} threads, torch {facts['torch']}, "
        f"load {facts['load_average'][0]:.1f}",
        highlight=False,
    )
    found = {name: SECTIONS[name](console, arguments.quick) for name in SECTIONS if name in arguments.only}
    requirements = {name: section["passed"] for name, section in found.items() if "passed" in section}
    make_folder(arguments.out)
    write_json(
        arguments.out / "bench.json",
        {
            "machine": facts,
            "load_average_after": list(os.getloadavg()),
            "quick": arguments.quick,
            "requirements": requirements,
            **found,
        },
    )
    for name, passed in requirements.items():
        console.print(f"{name}: all met" if passed else f"[bold white on red] {name}: ABOVE LIMIT [/]")
    console.print(f"written to {arguments.out / 'bench.json'}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
