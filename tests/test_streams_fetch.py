"""Downloads against a real server on this machine that breaks off, lies, dawdles and recovers."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import resource
import socket
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from l2dp.errors import BadInput, L2dpError
from l2dp.streams import fetch
from l2dp.streams.fetch import Archive, Content, Home, locate

PLAIN = np.random.default_rng(0).integers(0, 256, 200_000, np.uint8).tobytes()
PACKED = gzip.compress(PLAIN, mtime=0)
BINS = {"train.bin": PLAIN[:5000], "test.bin": PLAIN[5000:8000]}


class Server:
    """Answers each request with the next act of its script, and well once the script is over."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.script: list[Callable[[Exchange], None]] = []
        self.asked: list[str | None] = []
        self.sent = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                Exchange(self, outer).answer()

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.http.server_port}"


class Exchange:
    """One request and the ways to answer it."""

    def __init__(self, handler: BaseHTTPRequestHandler, server: Server) -> None:
        self.handler, self.server = handler, server
        self.content = server.files[handler.path]
        asked = handler.headers.get("Range")
        server.asked.append(asked)
        self.start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0

    def answer(self) -> None:
        act = self.server.script.pop(0) if self.server.script else good
        with suppress(BrokenPipeError, ConnectionResetError):
            act(self)

    def head(self, status: int, **headers: object) -> None:
        self.handler.send_response(status)
        for name, value in headers.items():
            self.handler.send_header(name.replace("_", "-"), str(value))
        self.handler.end_headers()

    def send(self, body: bytes) -> None:
        self.handler.wfile.write(body)
        self.server.sent += len(body)

    def head_honestly(self) -> bytes:
        """The right header for what was asked; gives the body that should follow."""
        total = len(self.content)
        rest = self.content[self.start :]
        if self.start:
            self.head(206, Content_Length=len(rest), Content_Range=f"bytes {self.start}-{total - 1}/{total}")
        else:
            self.head(200, Content_Length=total)
        return rest


def good(e: Exchange) -> None:
    e.send(e.head_honestly())


def breaks_off(e: Exchange) -> None:
    body = e.head_honestly()
    e.send(body[: len(body) // 2])


def resets(e: Exchange) -> None:
    body = e.head_honestly()
    e.send(body[: len(body) // 2])
    e.handler.wfile.flush()
    # Lingering for no time at all makes the kernel send a reset instead of a goodbye.
    e.handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    e.handler.connection.close()


def hangs_up(e: Exchange) -> None:
    e.handler.connection.shutdown(socket.SHUT_RDWR)


def stops_sending(e: Exchange) -> None:
    e.send(e.head_honestly()[:100])
    e.handler.wfile.flush()
    time.sleep(1.0)


def drips(e: Exchange) -> None:
    body = e.head_honestly()
    for i in range(120):
        e.send(body[i : i + 1])
        time.sleep(0.025)


def trickles(e: Exchange) -> None:
    body = e.head_honestly()
    for i in range(0, len(body), 10_000):
        e.send(body[i : i + 10_000])
        time.sleep(0.03)


def ignores_range(e: Exchange) -> None:
    e.head(200, Content_Length=len(e.content))
    e.send(e.content)


def wrong_part(e: Exchange) -> None:
    total = len(e.content)
    length = total - e.start
    e.head(206, Content_Length=length, Content_Range=f"bytes 0-{length - 1}/{total}")
    e.send(e.content[:length])


def no_part_named(e: Exchange) -> None:
    e.head(206, Content_Length=len(e.content) - e.start)
    e.send(e.content[: len(e.content) - e.start])


def wrong_content(e: Exchange) -> None:
    e.send(bytes(len(e.head_honestly())))


def login_page(e: Exchange) -> None:
    body = b"<html>Please log in to this network</html>"
    e.head(200, Content_Length=len(body))
    e.send(body)


def absurd_length(e: Exchange) -> None:
    e.head(200, Content_Length="9" * 5000)


def unsized(e: Exchange) -> None:
    e.head(200)
    e.send(e.content)


def endless(e: Exchange) -> None:
    e.head(200)
    for _ in range(1000):
        e.send(bytes(10_000))


def bad_chunks(e: Exchange) -> None:
    e.head(200, Transfer_Encoding="chunked")
    e.send(b"fff0\r\n" + e.content[:1000])


def not_http(e: Exchange) -> None:
    e.send(b"SSH-2.0-OpenSSH_9.2\r\n")


def says(status: int) -> Callable[[Exchange], None]:
    return lambda e: e.head(status, Content_Length=0)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.http.shutdown()
    made.http.server_close()
    thread.join()


def tarred(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for info, body in members:
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def good_members() -> list[tuple[tarfile.TarInfo, bytes]]:
    return [(member(f"set/{name}"), body) for name, body in BINS.items()]


def content(body: bytes, kind: str = "sha256") -> Content:
    return Content(len(body), f"{kind}:{hashlib.new(kind, body).hexdigest()}")


def publish(server: Server, monkeypatch: pytest.MonkeyPatch, tar: bytes | None = None) -> None:
    """Let `mnist` be one gzipped file and `cifar10` one tar.gz, both on the test's server."""
    archive = tarred(good_members()) if tar is None else tar
    server.files = {"/numbers.gz": PACKED, "/set.tar.gz": archive}

    def offer(path: str, holds: dict[str, Content]) -> tuple[Archive]:
        body = server.files[path]
        return (Archive(server.base + path, len(body), hashlib.md5(body).hexdigest(), holds),)

    bins = {name: content(body, "md5") for name, body in BINS.items()} | {"names.txt": Content(50, None)}
    homes = {
        "mnist": Home("MNIST", "mnist", "the files", offer("/numbers.gz", {"numbers": content(PLAIN)}), ("", ".gz")),
        "cifar10": Home("CIFAR-10", "set", "the files", offer("/set.tar.gz", bins)),
    }
    monkeypatch.setattr(fetch, "HOMES", homes)


@pytest.fixture
def cache(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    publish(server, monkeypatch)
    monkeypatch.setattr(fetch, "TIMEOUT", 2.0)
    monkeypatch.setattr(fetch, "WAITS", (0.01, 0.02, 0.03))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    for name in ("L2DP_DATA", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache" / "l2dp"


def held(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()} - {".lock"}


def check_whole(folder: Path) -> None:
    assert (folder / "numbers").read_bytes() == PLAIN
    assert held(folder) == {"numbers"}


def refusal(name: str = "mnist") -> str:
    with pytest.raises(BadInput) as caught:
        locate(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_downloads_once(server: Server, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert locate("mnist") == cache / "mnist"
    check_whole(cache / "mnist")
    assert re.fullmatch(r"downloading http\S+ \(0\.2 MB\) to \S+\n", capsys.readouterr().err)
    locate("mnist")
    assert len(server.asked) == 1
    assert capsys.readouterr().err == ""


def test_shows_a_bar_on_a_terminal(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    check_whole(locate("mnist"))
    shown = capsys.readouterr().err
    assert "numbers.gz" in shown
    assert "200.1/200.1" in shown


@pytest.mark.parametrize(
    "script",
    [
        [breaks_off],
        [resets],
        [hangs_up],
        [trickles],
        [unsized],
        [bad_chunks],
        [not_http],
        [says(404)],
        [says(500), says(503), says(429)],
        [login_page],
        [absurd_length],
        [says(204)],
        [breaks_off, ignores_range],
        [breaks_off, wrong_part],
        [breaks_off, no_part_named],
        [breaks_off, says(416)],
        [breaks_off, breaks_off, breaks_off],
    ],
    ids=lambda script: "-".join(getattr(act, "__name__", "act") for act in script),
)
def test_survives_what_networks_do(server: Server, cache: Path, script: list[Callable[[Exchange], None]]) -> None:
    server.script = list(script)
    check_whole(locate("mnist"))
    assert server.script == []


@pytest.mark.parametrize("act", [stops_sending, drips])
def test_leaves_a_stalled_connection(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Exchange], None]
) -> None:
    monkeypatch.setattr(fetch, "TIMEOUT", 0.3)
    server.script = [act]
    check_whole(locate("mnist"))
    assert server.asked[1] is not None
    assert int(server.asked[1].strip("bytes=-")) <= 100


def test_resumes_where_it_stopped(server: Server, cache: Path) -> None:
    server.script = [breaks_off]
    check_whole(locate("mnist"))
    assert server.asked == [None, f"bytes={len(PACKED) // 2}-"]
    assert server.sent == len(PACKED)


def test_resumes_in_the_next_run(server: Server, cache: Path) -> None:
    server.script = [breaks_off, says(500), says(500), says(500)]
    assert "500 Internal Server Error, 4 times" in refusal()
    assert held(cache / "mnist") == {"numbers.gz.part"}
    check_whole(locate("mnist"))
    assert server.sent == len(PACKED)


def test_a_part_that_is_whole_or_too_long(server: Server, cache: Path) -> None:
    (cache / "mnist").mkdir(parents=True)
    part = cache / "mnist" / "numbers.gz.part"
    part.write_bytes(PACKED)
    check_whole(locate("mnist"))
    assert server.asked == []
    (cache / "mnist" / "numbers").unlink()
    part.write_bytes(PACKED + b"more")
    check_whole(locate("mnist"))
    assert server.asked == [None]


def test_gives_up_after_a_few_tries(server: Server, cache: Path) -> None:
    server.script = [says(404)] * 10
    message = refusal()
    assert "404 Not Found, 4 times" in message
    assert "$L2DP_DATA (not set)" in message
    assert f"put the files into {cache / 'mnist'}" in message
    assert len(server.asked) == 4


@pytest.mark.parametrize("act", [wrong_content, endless])
def test_deletes_wrong_content(server: Server, cache: Path, act: Callable[[Exchange], None]) -> None:
    server.script = [act]
    assert "wrong checksum and was deleted" in refusal()
    assert held(cache / "mnist") == set()
    check_whole(locate("mnist"))


def test_deletes_a_part_that_was_continued_wrongly(server: Server, cache: Path) -> None:
    server.script = [breaks_off, wrong_content]
    assert "wrong checksum" in refusal()
    assert held(cache / "mnist") == set()


def test_another_content_under_the_right_archive_checksum(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fetch.HOMES["mnist"]
    (offered,) = home.archives
    for expected, says_why in [
        (Content(len(PLAIN), "sha256:" + "0" * 64), "numbers has a wrong checksum"),
        (Content(len(PLAIN) - 1, "sha256:" + "0" * 64), "numbers is larger than it should be"),
    ]:
        archive = Archive(offered.url, offered.size, offered.md5, {"numbers": expected})
        changed = Home(home.title, home.folder, home.by_hand, (archive,))
        monkeypatch.setitem(fetch.HOMES, "mnist", changed)
        assert says_why in refusal()
        assert held(cache / "mnist") == set()


def test_two_at_once(server: Server, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.script = [trickles]
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(locate, ["mnist", "mnist"]))
    assert folders[0] == folders[1]
    check_whole(folders[0])
    assert server.sent == len(PACKED)
    assert "waiting for another process" in capsys.readouterr().err


def test_no_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unresolved(*_: object, **__: object) -> None:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(fetch, "WAITS", (60.0,))
    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    assert "Temporary failure in name resolution" in refusal()


def test_nobody_listens(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fetch.HOMES["mnist"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/numbers.gz"
        archive = Archive(url, 10, "", home.archives[0].holds)
        monkeypatch.setitem(fetch.HOMES, "mnist", Home("MNIST", "mnist", "the files", (archive,)))
        assert "Connection refused, 4 times" in refusal()


def test_disk_full_keeps_what_came(server: Server, cache: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(L2dpError, match=r"MNIST could not be written to .*: File too large") as caught:
            locate("mnist")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(caught.value)
    assert (cache / "mnist" / "numbers.gz.part").stat().st_size == 100_000
    check_whole(locate("mnist"))
    assert server.asked == [None, "bytes=100000-"]


def test_cache_that_cannot_be_made(cache: Path) -> None:
    cache.parent.write_text("a file is in the way")
    with pytest.raises(L2dpError, match="could not be written"):
        locate("mnist")


def test_given_data_come_first(server: Server, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("L2DP_DATA", str(tmp_path / "given"))
    assert "which is not a folder" in refusal()
    (tmp_path / "given" / "mnist").mkdir(parents=True)
    server.script = [says(404)] * 4
    assert f"{tmp_path / 'given' / 'mnist'} lacks numbers)" in refusal()
    (tmp_path / "given" / "mnist" / "numbers.gz").write_bytes(b"mine")
    asked = len(server.asked)
    assert locate("mnist") == tmp_path / "given" / "mnist"
    server.script = [says(404)] * 4
    assert f"{tmp_path / 'given'} has no set/" in refusal("cifar10")
    assert len(server.asked) == asked + 4


def test_cache_follows_the_environment(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for relative in ("relative", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert locate("mnist") == tmp_path / "home" / ".cache" / "l2dp" / "mnist"


def test_no_home_for_a_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert "set L2DP_DATA or XDG_CACHE_HOME" in refusal()


def test_tar(cache: Path) -> None:
    folder = locate("cifar10")
    assert held(folder) == set(BINS)
    for name, body in BINS.items():
        assert (folder / name).read_bytes() == body


def test_tar_gives_only_what_is_expected(
    server: Server, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = [
        (member("../../../escaped.txt"), b"x"),
        (member(str(tmp_path / "absolute.txt")), b"x"),
        (member("set/extra.bin"), b"x"),
        (member("set", tarfile.DIRTYPE), b""),
        (member("set/link", tarfile.SYMTYPE, "/etc"), b""),
        (member("set/link/through.txt"), b"x"),
        (member("set/device", tarfile.CHRTYPE), b""),
        (member("set/names.txt"), b"a\nb\n"),
        *good_members(),
        (member("set/train.bin"), b"a second one with the same name"),
    ]
    publish(server, monkeypatch, tarred(evil))
    folder = locate("cifar10")
    assert held(folder) == {*BINS, "names.txt"}
    assert (folder / "train.bin").read_bytes() == BINS["train.bin"]
    every = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert every == {f"cache/l2dp/set/{name}" for name in (*BINS, "names.txt", ".lock")}


@pytest.mark.parametrize(
    ("members", "says_why"),
    [
        ([], "lacks train.bin, test.bin"),
        ([(member("set/train.bin"), BINS["train.bin"])], "lacks test.bin"),
        ([(member("set/train.bin", tarfile.SYMTYPE, "/etc/passwd"), b"")], "lacks train.bin"),
        ([(member("set/train.bin", tarfile.LNKTYPE, "set/test.bin"), b"")], "lacks train.bin"),
        ([(member("set/train.bin"), BINS["train.bin"] + b"x")], "train.bin is larger"),
        ([(member("set/train.bin"), BINS["train.bin"][:-1] + b"x")], "train.bin has a wrong checksum"),
        ([(member("set/names.txt"), b"x" * 51)], "names.txt is larger"),
        ([(member("set/bomb"), bytes(3 << 20)), *good_members()], "more than it should"),
    ],
)
def test_tar_that_is_wrong(
    server: Server,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    members: list[tuple[tarfile.TarInfo, bytes]],
    says_why: str,
) -> None:
    publish(server, monkeypatch, tarred(members))
    assert says_why in refusal("cifar10")
    assert not held(cache / "set") - {"train.bin"}


@pytest.mark.parametrize(
    "body",
    [b"not gzip at all", PACKED, tarred(good_members())[:-100], gzip.compress(b"x" * 5000)],
    ids=["text", "not-a-tar", "cut-off", "text-inside"],
)
def test_tar_that_is_none(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    publish(server, monkeypatch, body)
    assert "is corrupt" in refusal("cifar10")
    assert not held(cache / "set") - set(BINS)


def test_the_checksums_are_those_of_the_real_files() -> None:
    root = os.environ.get("L2DP_DATA")
    if not root:
        pytest.skip("needs $L2DP_DATA")
    seen = 0
    for home in fetch.HOMES.values():
        for archive in home.archives:
            for name, expected in archive.holds.items():
                for path in (Path(root, home.folder, name), Path(root, home.folder, f"{name}.gz")):
                    if expected.checksum and path.is_file():
                        body = path.read_bytes()
                        body = gzip.decompress(body) if path.suffix == ".gz" else body
                        kind, _, digest = expected.checksum.partition(":")
                        assert (len(body), hashlib.new(kind, body).hexdigest()) == (expected.limit, digest)
                        seen += 1
    if not seen:
        pytest.skip("$L2DP_DATA holds none of the public sets")
