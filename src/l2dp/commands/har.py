"""`l2dp har`: raw accelerometer recordings → windows that a stream can be made of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from l2dp.commands.common import say, warn, words
from l2dp.errors import BadInput

app = typer.Typer(no_args_is_help=True, help="Raw accelerometer recordings → tasks.")


@app.callback()
def har() -> None:
    """Raw accelerometer recordings → tasks."""


@app.command()
def ingest(
    samples: Annotated[Path, typer.Argument(help="CSV or Parquet: user, time, x, y, z.")],
    labels: Annotated[Path, typer.Argument(help="CSV or Parquet: user, start, end, label, and position if known.")],
    out: Annotated[Path, typer.Option(help="Folder for the windows; must not exist or be empty.")],
    columns: Annotated[str, typer.Option(help="Names in the samples where they differ: user=who,time=t.")] = "",
    label_columns: Annotated[str, typer.Option(help="Names in the labels where they differ.")] = "",
    clock: Annotated[str, typer.Option(help="Of numbers: ns, us, ms or s since 1970. Of text: iso.")] = "ns",
    label_clock: Annotated[str | None, typer.Option(help="The clock of the labels, if another.")] = None,
    zone: Annotated[str, typer.Option(help="Time zone of dates that name none.")] = "UTC",
    units: Annotated[str, typer.Option(help="Of accelerations: m/s2, g or mg.")] = "m/s2",
    rates: Annotated[str, typer.Option(help="Sampling rates to keep, in Hz.")] = "5,10,20,50",
    tolerance: Annotated[float, typer.Option(help="How far a session's mean rate may be off.")] = 0.05,
    gap: Annotated[float, typer.Option(help="Milliseconds; a longer gap ends a session.")] = 300,
    trim: Annotated[float, typer.Option(help="Seconds left out at both ends of a label session.")] = 10,
    cap: Annotated[float, typer.Option(help="Minutes of a label session that count.")] = 30,
    size: Annotated[int, typer.Option(help="Samples in a window.")] = 100,
    overlap: Annotated[
        str, typer.Option(help="0.5, with exceptions: running=0.9, @10=0.75, running@10=0.8; or paper.")
    ] = "0.5",
    classes: Annotated[str | None, typer.Option(help="Labels that count; declare them for private data.")] = None,
    rename: Annotated[str, typer.Option(help="Labels by another name: jogging=running,upstairs=stairs.")] = "",
    exclude_position: Annotated[str, typer.Option(help="Phone positions that do not count: Table.")] = "",
    resample: Annotated[str, typer.Option(help="Lower rates from higher ones: 20:5,50:10.")] = "",
    split: Annotated[str, typer.Option(help="Train and test apart by user, or by window (the paper's).")] = "user",
    test: Annotated[float, typer.Option(help="The share that tests.")] = 0.15,
    split_seed: Annotated[int, typer.Option(help="Decides who tests.")] = 0,
    unit: Annotated[str, typer.Option(help="Who is to be protected: user, or window (the paper's).")] = "user",
    normalise: Annotated[
        str, typer.Option(help="public constants, paper (statistics of the data, not private) or private (paid for).")
    ] = "public",
    epsilon: Annotated[
        float | None, typer.Option(help="With --normalise private: what the constants may cost.")
    ] = None,
) -> None:
    """Recordings → windows with labels: prints the funnel and writes it, with the windows, into a folder.

    Duplicates are merged, sessions end at gaps, only stable rates are kept; labels are attached, trimmed and capped;
    what is left is cut into windows, split and normalised.
    """
    from l2dp.boundary.moments import paid_constants
    from l2dp.budget import Budget
    from l2dp.har import folder, tables
    from l2dp.har.ingest import Recipe
    from l2dp.har.report import bar, show
    from l2dp.har.windows import Overlap
    from l2dp.noise import SystemNoise

    for name, value, allowed in (
        ("--split", split, ("user", "window")),
        ("--unit", unit, ("user", "window")),
        ("--normalise", normalise, ("public", "paper", "private")),
    ):
        if value not in allowed:
            raise BadInput(f"{name} {value}: choose from {', '.join(allowed)}")
    finish = folder.Finish(split, unit, test, split_seed, normalise)  # type: ignore[arg-type]  # checked above
    recipe = Recipe(
        gap,
        _hertz(rates, "--rates"),
        tolerance,
        trim_seconds=trim,
        cap_minutes=cap,
        size=size,
        overlap="paper" if overlap == "paper" else Overlap.parse(overlap),
        rename=words(_parts(rename)),
        classes=None if classes is None else tuple(_parts(classes)),
        exclude_positions=tuple(_parts(exclude_position)),
        resample=_pairs(resample),
    )
    if (epsilon is not None) != (normalise == "private"):
        raise BadInput("--epsilon and --normalise private go together; give both or neither")
    paid = None if epsilon is None else paid_constants(Budget(epsilon), SystemNoise())
    for line in finish.warnings():
        warn(line)
    if overlap == "paper":
        warn("--overlap paper: overlaps follow everybody's data, so one person changes the windows of others")
    console = Console()
    described_samples = tables.samples(samples, tables.Dialect(words(_parts(columns)), clock, zone, units))
    marks = tables.label_sessions(labels, tables.Dialect(words(_parts(label_columns)), label_clock or clock, zone))
    with bar(Console(stderr=True)) as progress:
        described = folder.write(described_samples, marks, recipe, finish, out, progress, paid)
    show(described, console)
    say(f"windows in {out}")


def _parts(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _hertz(text: str, option: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in _parts(text))
    except ValueError:
        raise BadInput(f"{option} {text!r}: give numbers, separated by commas") from None


def _pairs(text: str) -> dict[float, float]:
    found = {}
    for word in _parts(text):
        old, colon, new = word.partition(":")
        try:
            found[float(old)] = float(new if colon else "none")
        except ValueError:
            raise BadInput(f"--resample {word!r}: write it as recorded:wanted, for instance 20:5") from None
    return found
