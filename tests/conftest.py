"""What all test files share: no deadlines, a real PostgreSQL server, started for the tests and stopped after them."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("l2dp", deadline=None)
settings.load_profile("l2dp")


def _programs() -> Path | None:
    """The folder of the server's programs; distributions keep it off the path."""
    homes = [Path(found).resolve().parent for name in ("initdb", "pg_ctl") if (found := shutil.which(name))]
    homes += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    homes += sorted(Path("/usr").glob("pgsql-*/bin"), reverse=True)
    return next((home for home in homes if (home / "initdb").exists() and (home / "postgres").exists()), None)


def _user() -> dict[str, Any]:
    """The server refuses to run as root: another user does, where there is one."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL does not run as root, and there is no other user")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address of a database on a fresh server of our own, reached by a socket in a temporary folder."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed here (initdb was not found)")
    user = _user()
    # A short path: the name of a socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="l2dp-pg-", dir="/tmp"))
    if user:
        os.chown(folder, user["user"], user["group"])
    how: dict[str, Any] = {"cwd": folder, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C"}, **user}
    data = folder / "data"
    server = None
    try:
        made = subprocess.run(
            [programs / "initdb", "-D", data, "-U", "l2dp", "-A", "trust", "-E", "UTF8", "--no-sync"],
            capture_output=True,
            text=True,
            check=False,
            **how,
        )
        if made.returncode:
            pytest.skip(f"no PostgreSQL server can be made here: {made.stderr.strip().splitlines()[-1]}")
        with (folder / "log").open("w") as log:
            server = subprocess.Popen(
                [programs / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses="],
                stdout=log,
                stderr=log,
                **how,
            )
        ready = [programs / "pg_isready", "-q", "-t", "1", "-h", folder]
        for _ in range(300):
            if server.poll() is not None:
                pytest.skip(f"no PostgreSQL server can be started here: {(folder / 'log').read_text()[-200:]}")
            if subprocess.run(ready, check=False).returncode == 0:
                break
        yield f"postgresql:///postgres?host={folder}&user=l2dp"
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)  # at once: a polite request would wait for whoever is still connected
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture(params=["sqlite", "postgres"])
def new_place(request: pytest.FixtureRequest, tmp_path: Path, numbers: Iterator[int]) -> Callable[[], str]:
    """Makes one empty place for a book after the other: files, then schemas of a server."""
    if request.param == "sqlite":
        return lambda: str(tmp_path / f"ledger-{next(numbers)}.sqlite")
    server: str = request.getfixturevalue("postgres_server")

    def schema() -> str:
        import psycopg

        name = f"book_{next(numbers)}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        return f"{server}&options=-csearch_path%3D{name}"

    return schema


@pytest.fixture
def place(new_place: Callable[[], str]) -> str:
    """Where a book can be made: a file, then a server."""
    return new_place()
