"""The commands of a lifelong home: parse, call, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from l2dp.commands.common import say, use_cores, warn, words
from l2dp.errors import BadInput

HomePath = Annotated[Path, typer.Argument(metavar="HOME", help="The folder of the home.")]
LabelColumn = Annotated[str | None, typer.Option(help="The column of labels, if not the one declared at init.")]
Wait = Annotated[float, typer.Option(help="Seconds to wait for another process that works in the home.")]
AsJson = Annotated[bool, typer.Option("--json", help="The same facts as JSON.")]
OwnLearner = Annotated[
    str | None, typer.Option(help="Of a release with a learner that is not l2dp's: file.py:Class, which is run.")
]
Shown = Annotated[
    list[Path] | None, typer.Option("--release", help="A release of this home; a home older than it refuses.")
]

labels = typer.Typer(no_args_is_help=True, help="The labels of a home.")


def register(app: typer.Typer) -> None:
    for command in (init, learn, release, predict, evaluate, status, verify, exclude, abandon):
        app.command()(command)
    app.add_typer(labels, name="labels")


def init(
    home: HomePath,
    epsilon: Annotated[float, typer.Option(help="ε for the lifetime of a unit.")],
    labels: Annotated[Path, typer.Option(help="Text file with the names of all labels, one a line.")],
    delta: Annotated[float | None, typer.Option(help="δ; 0: pure ε. Default: 1e-5.")] = None,
    features: Annotated[int | None, typer.Option(help="Numbers in one input, in a table one column each.")] = None,
    shape: Annotated[str | None, typer.Option(help="Shape of one input instead: 3x32x32.")] = None,
    columns: Annotated[
        Path | None,
        typer.Option(help="Text file of the input columns, one a line: `name` or `name,low,high`."),
    ] = None,
    range_: Annotated[
        str | None, typer.Option("--range", help="Range of all values: LOW,HIGH. Default: -1,1, for --shape 0,255.")
    ] = None,
    label_column: Annotated[str, typer.Option(help="The column of labels.")] = "label",
    unit: Annotated[str, typer.Option(help="Who is protected: record or user.")] = "record",
    unit_column: Annotated[str | None, typer.Option(help="With --unit user: the column of user ids.")] = None,
    per_task_epsilon: Annotated[
        float | None, typer.Option(help="With --unit user: what one task may spend of a user's ε.")
    ] = None,
    per_user: Annotated[int, typer.Option(help="With --unit user: the most rows of a user that count in a task.")] = 1,
    task_size: Annotated[int, typer.Option(help="About how many records a task has. Public.")] = 1000,
    learner: Annotated[str, typer.Option(help="The learner.")] = "private-replay",
    model: Annotated[str | None, typer.Option(help="experts (a head for every task) or fixed (one network).")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="A learner's option, name=value; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of initial weights; never of privacy noise.")] = 0,
    ledger: Annotated[str | None, typer.Option(help="postgresql://… for a ledger that several machines share.")] = None,
    fingerprint_key: Annotated[
        Path | None, typer.Option(help="With a shared --ledger: the file secrets/fingerprints of the first home.")
    ] = None,
    encrypt: Annotated[bool, typer.Option("--encrypt", help="Encrypt the keys of the home at rest.")] = False,
    insecure_noise_seed: Annotated[
        int | None, typer.Option(help="INSECURE: repeatable privacy noise, for tests. The guarantee becomes `none`.")
    ] = None,
) -> None:
    """Makes a home: what is declared here holds for its lifetime, labels alone can be added."""
    from l2dp import store
    from l2dp.streams.schema import declared_columns, read_labels

    if insecure_noise_seed is not None:
        warn("INSECURE NOISE: --insecure-noise-seed repeats the privacy noise; this home protects nobody")
    chosen = words(option or []) | ({"head": model} if model is not None else {})
    low, high = _range(range_)
    names: tuple[str, ...] | None = None
    if columns is not None:
        names, low, high = declared_columns(columns, low, high)
    made = store.init(
        home,
        epsilon=epsilon,
        delta=delta,
        labels=read_labels(labels),
        features=features,
        shape=None if shape is None else _shape(shape),
        columns=names,
        low=low,
        high=high,
        label_column=label_column,
        unit=unit,  # type: ignore[arg-type]  # checked there
        unit_column=unit_column,
        per_task_epsilon=per_task_epsilon,
        per_user=per_user,
        task_size=task_size,
        learner=learner,
        options=chosen,
        seed=seed,
        ledger=ledger,
        fingerprint_key=fingerprint_key,
        encrypt=encrypt,
        insecure_noise_seed=insecure_noise_seed,
    )
    say(f"{made.path} is a home: {made.declared.guarantee} for every {unit}, {len(made.declared.labels)} labels")


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.lower().split("x"))
    except ValueError:
        raise BadInput(f"--shape {text!r}: write it as 3x32x32") from None


def _range(text: str | None) -> tuple[Any, Any]:
    if text is None:
        return None, None
    try:
        low, high = (float(word) for word in text.split(","))
    except ValueError:
        raise BadInput(f"--range {text!r}: write it as LOW,HIGH") from None
    return low, high


def learn(
    home: HomePath,
    data: Annotated[
        Path, typer.Argument(help="A CSV, Parquet, Arrow or NPZ file, or a folder of images or of `l2dp har ingest`.")
    ],
    task: Annotated[str, typer.Option(help="The name of the task: 2026-11, say.")],
    label_column: LabelColumn = None,
    classes: Annotated[str | None, typer.Option(help="Labels that the task declares, a,b,c; default: all.")] = None,
    size: Annotated[int | None, typer.Option(help="About how many records the task has, if not as declared.")] = None,
    on_overlap: Annotated[str, typer.Option(help="Records learned before: refuse the task, or drop them.")] = "refuse",
    release: Shown = None,
    wait: Wait = 0.0,
    threads: Annotated[int | None, typer.Option(help="Threads of torch; default: all cores.")] = None,
) -> None:
    """Learns one more task; given again after a crash, continues where it stopped."""
    use_cores(threads)
    from l2dp import store

    place = store.open_home(home)
    console = Console(stderr=True)
    with console.status(f"learning {task}"):
        found = place.learn(
            data,
            task,
            label_column=label_column,
            classes=None if classes is None else [label.strip() for label in classes.split(",")],
            size=size,
            on_overlap=on_overlap,  # type: ignore[arg-type]  # checked there
            releases=release or (),
            wait=wait,
        )
    if found.before:
        say(f"task {task} was learned before from the same data; nothing was done or charged")
        return
    for count, why in (
        (found.copies, "copies of other rows"),
        (found.overlapping, "records of other tasks"),
        (found.excluded, "rows of excluded units"),
    ):
        if count:
            say(f"left out: {count} {why}")
    if not found.declared_size / 3 <= found.records <= found.declared_size * 3:
        warn(f"the task has {found.records} records and declares about {found.declared_size}; use --size")
    say(f"learned {task}: {place.declared.guarantee} for every {place.declared.unit}, over the lifetime")


def release(
    home: HomePath,
    out: Annotated[Path, typer.Option(help="Folder for the release.")],
    task: Annotated[str | None, typer.Option(help="The model after this task; default: the newest.")] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="An ONNX graph too, for programs without Python.")] = False,
) -> None:
    """Writes the model with its privacy statement, card, labels and loader. Costs nothing."""
    from l2dp import store

    place = store.open_home(home)
    made = place.release(out, task, onnx=onnx)
    say(f"{out}: the model after task {made.about['task']}, {place.declared.guarantee}")


def predict(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="The folder of a release.")],
    data: Annotated[Path, typer.Argument(help="A table without labels; a column of labels is ignored.")],
    out: Annotated[Path, typer.Option(help="Where to write: .parquet, .csv, .arrow or .npz.")],
    learner: OwnLearner = None,
) -> None:
    """Labels the rows of a table with a release. Needs no home."""
    from l2dp.store.predictions import write_predictions
    from l2dp.store.release import Release

    count = write_predictions(Release(release, learner), data, out)
    say(f"{out}: {count} predictions")


def evaluate(
    model: Annotated[Path, typer.Argument(metavar="HOME|RELEASE", help="A home, or the folder of a release.")],
    data: Annotated[Path, typer.Argument(help="A labelled table that nobody learned from.")],
    label_column: LabelColumn = None,
    public: Annotated[bool, typer.Option("--public", help="The data is public: cards may tell it.")] = False,
    as_json: AsJson = False,
    learner: OwnLearner = None,
) -> None:
    """Accuracy on a labelled table. Without noise: it is for you, and in a card only with --public."""
    from l2dp import store
    from l2dp.store.release import Release, is_release

    if is_release(model):
        if public:
            raise BadInput("--public goes with a home: the card of a release is written already")
        found = Release(model, learner).evaluate(data, label_column)
    elif learner is not None:
        raise BadInput("--learner goes with a release: a home knows its own")
    else:
        found = store.open_home(model).evaluate(data, public, label_column)
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    say(f"accuracy {found['accuracy']:.1%} on {found['records']} records")
    for label, part in found["labels"].items():
        say(f"  {label:20s} {part:.1%}")


def status(
    home: HomePath,
    as_json: AsJson = False,
    html: Annotated[bool, typer.Option("--html", help="Write a page for a browser instead.")] = False,
    out: Annotated[Path, typer.Option(help="With --html: the file to write.")] = Path("status.html"),
) -> None:
    """Tasks, releases, what every block has spent, accuracies."""
    from l2dp import store

    place = store.open_home(home)
    if html:
        from l2dp.commands.report import home_page
        from l2dp.durable import make_folder, write_bytes

        make_folder(out.parent)
        write_bytes(out, home_page(place).encode())
        say(f"page in {out}")
        return
    found = place.status()
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        from l2dp.store.shown import show

        show(found, Console())


def verify(home: HomePath, release: Shown = None) -> None:
    """Checks ledger, state, keys, fingerprints and releases; says what is wrong (exit 1)."""
    from l2dp import store

    found = store.open_home(home).verify(release or ())
    for fault in found:
        warn(" ".join(fault.split()))
    if found:
        raise typer.Exit(1)
    say(f"{home} is as it was written")


def exclude(
    home: HomePath,
    user: Annotated[list[str] | None, typer.Option("--user", help="A user to leave out of all future tasks.")] = None,
    records: Annotated[Path | None, typer.Option(help="A table of records to leave out of all future tasks.")] = None,
    wait: Wait = 0.0,
) -> None:
    """Leaves a person out of all future tasks. Past releases keep what they hold, within their ε."""
    from l2dp import store

    place = store.open_home(home)
    count = place.exclude(user or (), records, wait)
    say(
        f"{count} newly excluded from all future tasks; what was learned before cannot be taken back, "
        f"and its guarantee stays: {place.declared.guarantee}"
    )


def abandon(home: HomePath, task: Annotated[str, typer.Option(help="The unfinished task.")], wait: Wait = 0.0) -> None:
    """Gives an unfinished task up whose data is lost. Its units stay charged, unless nothing was read yet."""
    from l2dp import store

    charged = store.open_home(home).abandon(task, wait)
    cost = "its units stay charged" if charged else "none of it was read, and it cost nothing"
    say(f"task {task} is given up; {cost}")


@labels.command("add")
def labels_add(
    home: HomePath, names: Annotated[list[str], typer.Argument(metavar="LABEL…", help="New labels.")], wait: Wait = 0.0
) -> None:
    """Declares more labels; those of the past keep their places."""
    from l2dp import store

    place = store.open_home(home)
    place.add_labels(names, wait)
    say(f"{home} has {len(place.declared.labels)} labels")
