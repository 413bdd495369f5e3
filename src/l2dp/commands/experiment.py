"""`l2dp experiment`: one table or figure by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from l2dp.commands.common import numbers, say
from l2dp.errors import BadInput


def experiment(
    name: Annotated[
        list[str],
        typer.Argument(help="Experiments by name, a .toml file of your own, `all`, `list`, or `docs`."),
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Minutes on small data; never beside the paper.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for runs and tables; a sweep there is continued.")] = Path(
        "experiments"
    ),
    engine: Annotated[str, typer.Option(help="local: processes here; ray: a Ray cluster.")] = "local",
    workers: Annotated[int | None, typer.Option(help="Runs at the same time; default: one a core.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Other seeds than the file says: 0,1,2.")] = None,
    known: Annotated[
        list[Path] | None, typer.Option(help="A folder with finished results that need no run; repeatable.")
    ] = None,
    docs: Annotated[Path, typer.Option(help="With `docs`: the folder to write the page into.")] = Path("docs"),
) -> None:
    """One table or figure of the paper, or one of ours; `list` says what there is.

    Runs that are finished are not repeated, interrupted ones continue, failures are listed at the end. `docs` writes
    docs/reproducibility.md and its figures from the results in --known (default: results), to which it adds the
    finished runs in --out.
    """
    from l2dp.experiments import perform

    console = Console()
    if name == ["list"]:
        found = known or [folder for folder in (Path("results"),) if folder.is_dir()]
        say(perform.overview(out, found))
    elif name == ["docs"]:
        from l2dp.experiments import pages

        if known is not None and len(known) > 1:
            raise BadInput("`docs` keeps results in one folder; give --known once")
        console.print(pages.update(known[0] if known else Path("results"), out, docs), highlight=False, markup=False)
    else:
        chosen = None if seeds is None else numbers(seeds, "--seeds")
        perform.perform(name, out, console, quick, known or [], engine, workers, chosen)
