"""Pages: `l2dp report` over runs, `l2dp statement` for a release, `l2dp serve` for a home."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from l2dp.commands.common import say, warn
from l2dp.errors import BadInput


def register(app: typer.Typer) -> None:
    for command in (report, statement, serve):
        app.command()(command)


def report(
    places: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Folders of runs, experiments and audits; or result files.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    form: Annotated[
        str | None, typer.Option("--format", help="html, md, pdf or csv; default: the ending of --out.")
    ] = None,
    title: Annotated[str, typer.Option(help="The report's title.")] = "l2dp report",
    baseline: Annotated[
        str | None, typer.Option(help="Part of the name of the method that p values compare with.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="A folder for every figure as SVG and PDF and every table as LaTeX and CSV.")
    ] = None,
) -> None:
    """One self-contained page over any number of runs: tables, curves, significance, accuracy against ε.

    Finds every result, outcome of an experiment and audit below the folders. Runs that differ in their seed alone are
    taken together. The page needs no network; --format writes the same as Markdown, PDF or CSV.
    """
    from l2dp import report as reports

    written = reports.write_report(places, out, form, title, baseline, figures)
    for note in written.notes:
        say(note)
    say(f"report in {out}")
    if figures is not None:
        say(f"figures and tables in {figures}")


def statement(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="The folder of a release.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("statement.html"),
    audit: Annotated[
        Path | None, typer.Option(help="An audit of the learner that made it: audit.json, or its folder.")
    ] = None,
) -> None:
    """The privacy statement of a release on one printable page, for people who sign such statements."""
    from l2dp.durable import make_folder, write_bytes

    made = _statement(release, None if audit is None else _audit(audit))
    make_folder(out.parent)
    write_bytes(out, made.encode())
    say(f"statement in {out}")


def serve(
    home: Annotated[Path, typer.Argument(metavar="HOME", help="The folder of the home.")],
    host: Annotated[str, typer.Option(help="The address to listen on; default: this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0: any that is free.")] = 8765,
) -> None:
    """The page of a home in a browser: tasks, budget, accuracy, releases with their statements. Read-only."""
    from l2dp import store
    from l2dp.report.server import Server, is_loopback

    place = store.open_home(home)
    server = Server(host, port, lambda path: _page(place, path))
    if not is_loopback(host):
        warn(f"everybody who reaches {host} can read the page of this home; there is no password")
    with server:
        say(f"{server.address} shows {home}; stop with Ctrl-C")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("stopped")


def home_page(place: Any, linked: bool = False) -> str:
    """The page of a home; with links to the statements of its releases where a server has them."""
    from l2dp.report import dashboard, page

    kept = sorted(place.path.glob("audits/**/audit.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    audits = [(str(path.relative_to(place.path)), _audit(path)) for path in kept]
    link = (lambda number: f"statement/{number + 1}") if linked else None
    return page.html(dashboard.document(place.status(), audits, link))


def _page(place: Any, path: str) -> tuple[str, bytes] | None:
    html = "text/html; charset=utf-8"
    if path == "/":
        return html, home_page(place, linked=True).encode()
    if path == "/status.json":
        return "application/json", json.dumps(place.status(), ensure_ascii=False, indent=1).encode()
    number = path.removeprefix("/statement/")
    if number != path and number.isascii() and number.isdecimal() and len(number) < 10:
        releases = place.status()["releases"]
        if 1 <= int(number) <= len(releases):
            return html, _statement(Path(releases[int(number) - 1]["out"]), None).encode()
    return None


def _statement(folder: Path, audit: dict[str, Any] | None) -> str:
    from l2dp.audit.releases import speaks_for
    from l2dp.durable import sha256
    from l2dp.report import statement as page
    from l2dp.store.release import MODEL, PRIVACY, SUMS, Release

    # Reading it checks every file against the list of hashes: what was changed is not signed.
    found = Release(folder)
    digests = {name: sha256(folder / name) for name in (SUMS, PRIVACY, MODEL)}
    audited = None if audit is None else page.Audited(*speaks_for(audit, found.about, found.privacy))
    return page.html(found.about, found.privacy, digests, audited)


def _audit(path: Path) -> dict[str, Any]:
    from l2dp.durable import read_json
    from l2dp.report.audits import is_audit

    file = path / "audit.json" if path.is_dir() else path
    found = read_json(file)
    if not (isinstance(found, dict) and is_audit(found)):
        raise BadInput(f"{file} is not an audit; make one with `l2dp audit LEARNER --out {path}`")
    return found
