"""The command line: parses, calls, prints. No logic lives here.

Errors are one line on standard error. Exit codes: 0 done, 1 a run failed, 2 wrong usage or bad input,
3 refused for privacy.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from l2dp.commands import audit, experiment, har, home
from l2dp.commands import report as pages
from l2dp.commands.common import Out, numbers, say, use_cores, warn, words
from l2dp.errors import BadInput, L2dpError

app = typer.Typer(
    name="l2dp",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Lifelong learning under one fixed privacy budget.",
)
app.add_typer(har.app, name="har")

_UsageError: Any = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")
"""Newer versions of Typer carry their own copy of Click; this is the class of whichever is in use."""

INTERRUPTED = 130


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        say(f"l2dp {version('l2dp')}")
        raise typer.Exit


@app.callback()
def _program(
    asked: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version and stop.")
    ] = False,
) -> None:
    """Lifelong learning under one fixed privacy budget."""


@app.command("run")
def run_command(
    benchmark: Annotated[str, typer.Argument(help="A benchmark (see `l2dp list`), permuted:PATH or split:PATH.")],
    out: Out,
    learner: Annotated[str, typer.Option(help="A learner, or module:Class for one of your own.")] = "private-replay",
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget, for learners that have one.")] = None,
    delta: Annotated[float | None, typer.Option(help="The δ that goes with it.")] = None,
    tasks: Annotated[int | None, typer.Option(help="Number of tasks.")] = None,
    per_task: Annotated[int | None, typer.Option(help="Training records in each task.")] = None,
    disjoint: Annotated[bool, typer.Option("--disjoint", help="Each record in one task only.")] = False,
    protocol: Annotated[str, typer.Option(help="class, task or domain.")] = "class",
    order: Annotated[str | None, typer.Option(help="Order of tasks: 3,1,2 or reverse.")] = None,
    epochs: Annotated[str, typer.Option(help="Epochs for all tasks (3) or for each (5,5,5,1).")] = "1",
    balanced: Annotated[bool, typer.Option("--balanced", help="The same number of steps for all tasks.")] = False,
    full_batch: Annotated[bool, typer.Option("--full-batch", help="A task is one batch (Algorithm 1).")] = False,
    batch_size: Annotated[int | None, typer.Option(help="Records in a batch.")] = None,
    model: Annotated[str | None, typer.Option(help="mnist-conv, cifar-resnet, har-conv, mlp or mlp-W1-W2.")] = None,
    clip: Annotated[float | None, typer.Option(help="C: the norm to which gradients are cut (naive-gaussian).")] = None,
    noise_scale: Annotated[
        float | None, typer.Option(help="z: noise over clip (naive-gaussian); default: the least that epsilon allows.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="A learner's option, name=value; repeatable.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Data order and initial weights; never privacy noise.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds: 0,1,2.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Evaluate after every so many tasks.")] = None,
    test_records: Annotated[int | None, typer.Option(help="Test with so many records of a task; default: all.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps …")] = "cpu",
    threads: Annotated[
        int | None, typer.Option(help="Threads of torch; default: all cores, or OMP_NUM_THREADS.")
    ] = None,
    insecure_noise_seed: Annotated[
        int | None,
        typer.Option(help="INSECURE: repeatable privacy noise, for tests. The guarantee becomes `none`."),
    ] = None,
) -> None:
    """One run of a learner over a benchmark; continues where it stopped."""
    if seed is not None and seeds is not None:
        raise BadInput("--seed and --seeds exclude each other; give one of them")
    use_cores(threads)
    from l2dp import parallel, report, sweeps

    if insecure_noise_seed is not None:
        warn("INSECURE NOISE: --insecure-noise-seed repeats the privacy noise; this run protects nobody")
    flags = {"model": model, "clip": clip, "noise_scale": noise_scale}
    chosen = words(option or []) | {name: str(value) for name, value in flags.items() if value is not None}
    request = sweeps.Request(
        benchmark,
        learner,
        epsilon,
        delta,
        tasks,
        per_task,
        disjoint,
        protocol,
        order,
        numbers(epochs, "--epochs"),
        balanced,
        full_batch,
        batch_size,
        chosen,
        evaluate_every,
        device,
        insecure_noise_seed,
        test_records,
    )
    with parallel.joined():
        console = Console(quiet=parallel.rank() > 0)
        if seeds is not None:
            results = sweeps.run_seeds(request, numbers(seeds, "--seeds"), out, console)
        else:
            results = [sweeps.run_one(request, seed or 0, out, console)]
    report.print_table(report.table_rows([result.to_json() for result in results]), console)
    source = results[0].guarantee.about_the_source()
    if source is not None:
        say(source)
    for left_out in results[0].facts.get("not_covered", ()):
        warn(left_out)
    say(f"results in {out}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("demo"),
    threads: Annotated[
        int | None, typer.Option(help="Threads of torch; default: all cores, or OMP_NUM_THREADS.")
    ] = None,
) -> None:
    """Every learner on a small embedded stream: a table, and report.html."""
    use_cores(threads)
    from l2dp import report, sweeps

    console = Console()
    page, rows = sweeps.demo(out, console)
    report.print_table(rows, console)
    say(f"open {page}")


@app.command("plan")
def plan_command(
    records: Annotated[int, typer.Option(help="Training records of the task.")],
    classes: Annotated[int, typer.Option(help="Its classes.")],
    features: Annotated[int, typer.Option(help="Numbers in one input, or what a feature map makes of it.")],
    epsilon: Annotated[float, typer.Option(help="Privacy budget.")],
    delta: Annotated[float | None, typer.Option(help="The δ that goes with it; 0: pure ε. Default: 1e-5.")] = None,
    unit: Annotated[str, typer.Option(help="Who is protected: record or user.")] = "record",
    per_user: Annotated[int | None, typer.Option(help="With --unit user: the most records of one user.")] = None,
    seed: Annotated[int, typer.Option(help="Of the synthetic data; never of privacy noise.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="The same facts as JSON.")] = False,
) -> None:
    """What to expect of private-replay before anything is spent.

    Shows how large the noise is beside the signal, and the accuracy on synthetic data of the size you name (and on the
    embedded digits, if they have its shape). Then the smallest task at this ε and the smallest ε for this task that
    reach 90 % of the accuracy without noise. Nothing of yours is read and nothing is spent. Accuracies are estimates on
    synthetic data, not guarantees. Takes about ten seconds, longer for large tasks.
    """
    use_cores(None)
    from l2dp import planning

    question = planning.Question(records, classes, features, epsilon, delta, unit, per_user, seed)
    with Console(stderr=True).status("simulating"):
        outlook = planning.plan(question)
    if as_json:
        print(json.dumps(outlook.to_json(), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        planning.show(outlook, Console())


app.command("experiment")(experiment.experiment)


@app.command("list")
def list_command() -> None:
    """Benchmarks, learners with their options, which datasets are here, and experiments."""
    from l2dp import sweeps
    from l2dp.experiments import declared

    say(sweeps.overview())
    named = "".join(f"\n  {name:28s} {declared.load(name).title}" for name in declared.names())
    say(f"\nexperiments (l2dp experiment list){named}")


home.register(app)
pages.register(app)
app.command("audit")(audit.audit)


def main(arguments: list[str] | None = None) -> None:
    """The program. Whatever a user can cause ends in one line and an exit code."""
    try:
        code: Any = app(args=arguments, standalone_mode=False)
    except L2dpError as error:
        warn(" ".join(str(error).split()))
        code = error.exit_code
    except _UsageError as error:
        if "NoArgsIsHelp" in type(error).__name__:
            print(error.format_message())
        else:
            warn(f"{' '.join(error.format_message().split())} (see l2dp --help)")
        code = 2
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    # Typer turns an interrupt into this code without a word.
    if code == INTERRUPTED:
        warn("interrupted; run the same command again to continue")
    sys.exit(code if isinstance(code, int) else 0)
