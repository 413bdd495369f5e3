"""Pages of a home and of its releases: the dashboard, the statement that is signed, the server that shows both."""

import base64
import contextlib
import hashlib
import http.client
import json
import math
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import homes
from browser import chromium
from l2dp import cli
from l2dp.audit import settings as audited
from l2dp.commands.report import _page, home_page
from l2dp.report.server import Server, is_loopback
from l2dp.report.statement import success


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A real home with three tasks, one of them with a hostile name, test accuracies, two releases and an audit."""
    folder = tmp_path_factory.mktemp("home")
    home = homes.home(folder, epsilon=1.0)
    test = homes.table(folder, 99)
    for number, task in enumerate(("2026-09", "2026-10", "<b>2026-11")):
        home.learn(homes.table(folder, number), task)
        home.evaluate(test, public=number == 2)
    home.release(folder / "first", "2026-10")
    home.release(folder / "newest")
    audit = {
        "learner": "private-replay", "level": "quick", "verdict": "holds so far", "seconds": 1.0, "version": "0.1.0",
        "findings": [
            finding("worst case <i>", "holds so far", 0.71, 1.9),
            finding("rank", "not applicable", None, None),
        ],
        "targets": [target.to_json() for target in audited.from_home(home.path)],
    }  # fmt: skip
    (home.path / "audits" / "one").mkdir(parents=True)
    (home.path / "audits" / "one" / "audit.json").write_text(json.dumps(audit))
    return home


def finding(attack, verdict, bound, ceiling):
    stated = {"status": "proved", "epsilon": 1.0, "delta": 0.0, "unit": "record", "adjacency": "add-remove"}
    return {
        "attack": attack, "threat_model": "knows everything else", "variant": "as declared", "stated": stated,
        "verdict": verdict, "trials": 4000, "lower_bound": bound, "ceiling": ceiling, "p_value": None,
    }  # fmt: skip


def fingerprint(folder):
    """Of every file of a home but the side files of its database, which reading may make."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(("-wal", "-shm", ".lock"))
    }


@pytest.fixture
def site(place):
    server = Server("127.0.0.1", 0, lambda path: _page(place, path))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def ask(site, method, path, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", site.server_address[1], timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())


def run(*words):
    with pytest.raises(SystemExit) as left:
        cli.main(list(words))
    return left.value.code


# --- the dashboard ------------------------------------------------------------------------------------------


def test_status_as_a_page(place, tmp_path, capsys):
    assert run("status", str(place.path), "--html", "--out", str(tmp_path / "out" / "home.html")) == 0
    assert "page in" in capsys.readouterr().out
    text = (tmp_path / "out" / "home.html").read_text("utf-8")
    assert text == home_page(place)
    status = place.status()
    assert status["ledger"]["head"]["hash"] in text
    assert "&lt;b&gt;2026-11" in text
    assert "<b>2026-11" not in text
    shown = re.search(r'data-v="([^"]*)"', text).group(1).split("|")
    assert shown == [f"{100 * line['accuracy']:.2f}% of 90" for line in status["accuracy"]]
    told = re.findall(r'<td role="cell" class="n" data-h="accuracy then"[^>]*>([^<]*)', text)
    assert told == [f"{100 * task['accuracy']:.2f}%" for task in reversed(status["tasks"])]
    assert "worst case &lt;i&gt;" in text
    assert ">0.710<" in text
    assert "Not applicable to private-replay: rank." in text


def test_every_epsilon_of_the_dashboard_has_its_status(place):
    text = re.sub(r"<(style|script)>.*?</\1>", "", home_page(place), flags=re.DOTALL)
    phrases = re.findall(r"ε=[\d.]+[^<]*", text)
    assert len(phrases) > 8
    assert all("proved" in phrase for phrase in phrases)


def test_a_home_without_privacy_shows_no_epsilon(tmp_path):
    home = homes.home(tmp_path, insecure_noise_seed=1)
    home.learn(homes.table(tmp_path, 1), "one")
    text = re.sub(r"<(style|script)>.*?</\1>", "", home_page(home), flags=re.DOTALL)
    assert not re.search(r"ε\s?=", text)
    assert "none (no privacy)" in text
    made = home.release(tmp_path / "release")
    page = (tmp_path / "statement.html", str(made.path))
    assert run("statement", page[1], "--out", str(page[0])) == 0
    told = page[0].read_text("utf-8")
    assert "No privacy. Do not sign." in told
    assert "protects nobody" in told
    assert "times in 100" not in told


def test_users_have_a_share_for_each_task(tmp_path):
    home = homes.user_home(tmp_path)
    home.learn(homes.table(tmp_path, 1, users=30), "one")
    home.learn(homes.table(tmp_path, 2, users=50), "two")
    text = home_page(home)
    levels = home.status()["budget"]["levels"]
    for level in levels:
        assert f"{level['blocks']} users" in text
        assert f"{100 * level['of_lifetime']:.1f}%" in text
    assert "A task may spend at most ε=1 (proved) of it." in text
    home.release(tmp_path / "release")
    assert run("statement", str(tmp_path / "release"), "--out", str(tmp_path / "statement.html")) == 0
    told = (tmp_path / "statement.html").read_text("utf-8")
    assert "Each user, with all their records in all tasks" in told
    assert "A task spends at most ε=1 proved of it" in told


# --- the statement ------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.floats(0, 20), st.floats(0, 0.1))
def test_success_is_the_best_that_the_definition_allows(epsilon, delta):
    """Against a search over the corners and edges of the region that (ε, δ) leaves to a test."""
    best = success(epsilon, delta)
    assert 0.5 <= best <= 1.0
    grown = math.exp(epsilon)
    for step in range(201):
        alarms = step / 200
        hits = min(1.0, grown * alarms + delta, 1 - (1 - alarms - delta) / grown)
        assert (hits + 1 - alarms) / 2 <= best + 1e-12
    alarms = (1 - delta) / (1 + grown)
    assert (grown * alarms + delta + 1 - alarms) / 2 == pytest.approx(best, abs=1e-9)


def test_the_statement_says_what_the_release_says(place, tmp_path, capsys):
    release = place.path.parent / "newest"
    audit = place.path / "audits" / "one"
    assert run("statement", str(release), "--audit", str(audit), "--out", str(tmp_path / "statement.html")) == 0
    text = (tmp_path / "statement.html").read_text("utf-8")
    privacy = json.loads((release / "privacy.json").read_text())
    assert privacy["ledger_head"]["hash"] in text
    assert hashlib.sha256((release / "SHA256SUMS").read_bytes()).hexdigest() in text
    assert "ε = 1, δ = 0: proved" in text
    assert all(word.replace("'", "&#x27;") in text for word in privacy["not_covered"])
    # e / (1 + e) is 0.73106, and a bound is rounded up.
    assert "73.2 times in 100" in text
    assert text.count('<path class="gain"') == 74 - 50
    assert "factor of at most 2.72" in text
    assert "&lt;b&gt;2026-11" in text
    assert "1 attacks at the quick level on private-replay: holds so far." in text
    assert "0.710 at 95 % (worst case &lt;i&gt;), against a stated ε=1 proved" in text
    assert "never prove one" in text


def stated(place, tmp_path, release=None, **changed):
    """Exit code and text of a statement with an audit that differs in some keys."""
    kept = json.loads((place.path / "audits" / "one" / "audit.json").read_text())
    (tmp_path / "audit.json").write_text(json.dumps(kept | changed))
    out = tmp_path / "statement.html"
    out.unlink(missing_ok=True)
    folder = place.path.parent / "newest" if release is None else release
    code = run("statement", str(folder), "--audit", str(tmp_path), "--out", str(out))
    return code, out.read_text("utf-8") if out.exists() else ""


def changed_release(source, folder, name, change):
    """A copy of a release with one JSON file changed, and the sums made to fit."""
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / name).write_text(json.dumps(change(json.loads((folder / name).read_text()))))
    sums = [line.split("  ")[1] for line in (folder / "SHA256SUMS").read_text().splitlines()]
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in sums]
    (folder / "SHA256SUMS").write_text("".join(lines))
    return folder


def test_an_audit_of_the_same_settings_speaks_for_the_release(place, tmp_path):
    code, text = stated(place, tmp_path)
    assert code == 0
    assert "not for this release" not in text


def test_an_audit_of_other_settings_says_so(place, tmp_path):
    (one,) = audited.from_home(place.path)
    user = one.having(protects="user", per_user=3)
    code, text = stated(place, tmp_path, targets=[user.to_json()])
    assert code == 0
    assert "protects user instead of record" in text
    assert "not for this release" in text
    _, text = stated(place, tmp_path, targets=[one.to_json() | {"epsilon": 4}])
    assert "ε 4.0 instead of 1.0" in text
    assert "not for this release" not in stated(place, tmp_path, targets=[one.to_json() | {"epsilon": 1}])[1]
    assert "It attacked nothing" in stated(place, tmp_path, targets=[])[1]
    # Of several settings the release's own is enough.
    assert "not for this release" not in stated(place, tmp_path, targets=[user.to_json(), one.to_json()])[1]


def test_only_attacks_on_the_settings_of_the_release_count(place, tmp_path, capsys):
    mine, skipped = finding("worst case", "holds so far", 0.5, 2.0), finding("rank", "not applicable", None, None)
    other = finding("restarts", "refuted", 3.0, 4.0) | {"variant": "another"}
    code, text = stated(place, tmp_path, findings=[mine, other], verdict="refuted")
    assert code == 0
    assert "1 attacks at the quick level on private-replay: holds so far." in text
    assert "Other settings of this learner were refuted in the same audit." in text
    for findings in ([], [skipped], [other], [mine | {"stated": mine["stated"] | {"epsilon": 2.0}}]):
        assert "It tried no attack on the settings of this release" in stated(place, tmp_path, findings=findings)[1]
    capsys.readouterr()
    assert stated(place, tmp_path, findings=[finding("worst case", "refuted", 3.0, 4.0)]) == (2, "")
    assert "there is nothing to sign" in capsys.readouterr().err


GARBAGE = [[1], [{}], 3, [{"learner": "private-replay", "variant": "", "epsilon": "x", "delta": 0, "options": {}}]]
GARBAGE += [[{"learner": "private-replay", "variant": "", "epsilon": 10**400, "delta": 0, "options": {}}]]


def test_an_audit_of_another_learner_or_of_nothing_known_is_refused(place, tmp_path, capsys):
    code, text = stated(place, tmp_path, learner="naive-gaussian")
    assert (code, text) == (2, "")
    assert "the audit is of naive-gaussian, the release was made by private-replay" in capsys.readouterr().err
    for targets in GARBAGE:
        assert stated(place, tmp_path, targets=targets) == (2, "")
        assert "the audit cannot be compared" in capsys.readouterr().err


def test_the_name_of_a_learner_in_an_audit_is_never_run(place, tmp_path):
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass X: pass\n")
    (one,) = audited.from_home(place.path)
    code, text = stated(place, tmp_path, targets=[one.to_json() | {"learner": f"{tmp_path / 'evil.py'}:X"}])
    assert code == 0
    assert "not for this release" in text
    assert not (tmp_path / "ran").exists()


def test_older_and_damaged_releases(place, tmp_path, capsys):
    def without(*names):
        return lambda found: {key: value for key, value in found.items() if key not in names}

    newest = place.path.parent / "newest"
    older = changed_release(newest, tmp_path / "older", "release.json", without("settings"))
    assert "not for this release" not in stated(place, tmp_path, older)[1]  # of a record it is all there was
    user = changed_release(older, tmp_path / "user", "privacy.json", lambda found: found | {"unit": "user"})
    assert "does not hold all its settings" in stated(place, tmp_path, user)[1]
    damaged = [
        ("release.json", without("budget")),
        ("release.json", lambda found: found | {"settings": 3}),
        ("privacy.json", without("audit")),
        ("privacy.json", without("epsilon")),
    ]
    for number, (name, change) in enumerate(damaged):
        folder = changed_release(newest, tmp_path / f"damaged-{number}", name, change)
        assert stated(place, tmp_path, folder) == (2, "")
        assert "the release cannot be compared" in capsys.readouterr().err


def test_the_command_in_a_release_audits_its_settings(place):
    command = json.loads((place.path.parent / "newest" / "privacy.json").read_text())["audit"]["command"]
    assert command.startswith("l2dp audit private-replay --epsilon 1.0 --delta 0.0 ")
    words = dict(word.split("=", 1) for word in shlex.split(command)[7:] if word != "-o")
    (target,) = audited.targets("private-replay", 1.0, 0.0, words)
    (declared,) = audited.from_home(place.path)
    assert target.make().config() == declared.make().config()


def test_a_changed_release_gets_no_statement(place, tmp_path, capsys):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in (place.path.parent / "newest").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    privacy = json.loads((copy / "privacy.json").read_text())
    (copy / "privacy.json").write_text(json.dumps(privacy | {"epsilon": 0.01}))
    assert run("statement", str(copy), "--out", str(tmp_path / "statement.html")) == 2
    assert "was changed" in capsys.readouterr().err
    assert run("statement", str(tmp_path), "--out", str(tmp_path / "statement.html")) == 2
    assert not (tmp_path / "statement.html").exists()


# --- the server ---------------------------------------------------------------------------------------------


def test_the_server_shows_the_home_and_changes_nothing(place, site):
    before = fingerprint(place.path)
    code, text, headers = ask(site, "GET", "/")
    assert code == 200
    assert text == home_page(place, linked=True)
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    code, text, _ = ask(site, "GET", "/status.json")
    assert (code, json.loads(text)) == (200, place.status())
    for number, task in ((1, "2026-10"), (2, "&lt;b&gt;2026-11")):
        code, text, _ = ask(site, "GET", f"/statement/{number}")
        assert code == 200
        assert f"Model after task <b>{task}</b>" in text
    assert ask(site, "HEAD", "/")[:2] == (200, "")
    assert fingerprint(place.path) == before


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get"])
def test_other_methods_are_refused(place, site, method):
    before = fingerprint(place.path)
    assert ask(site, method, "/")[0] == 501
    assert fingerprint(place.path) == before


@pytest.mark.parametrize(
    "path",
    [
        *("/x", "/../home.json", "/%2e%2e/secrets", "/secrets", "//etc/passwd", "/status.json/", "*"),
        *("/statement/", "/statement/0", "/statement/3", "/statement/-1", "/statement/1e9", "/statement/%D9%A3"),
        "/statement/99999999999999999999",
    ],
)
def test_there_is_no_file_behind_an_address(site, path):
    assert ask(site, "GET", path)[0] == 404


def test_a_strange_name_for_this_machine_is_refused(site):
    port = site.server_address[1]
    assert ask(site, "GET", "/", {"Host": f"evil.example:{port}"})[0] == 403
    assert ask(site, "GET", "/", {"Host": "127.0.0.1.evil.example"})[0] == 403
    for name in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
        assert ask(site, "GET", "/status.json", {"Host": name})[0] == 200


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00" * 5000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 500 + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \xff\xfe\r\nContent-Length: -1\r\n\r\n",
        "GET /\u202e HTTP/1.1\r\n\r\n".encode(),
        b"",
    ],
    ids=["zeros", "tls", "no path", "version", "headers", "long", "host", "unicode", "nothing"],
)
def test_garbage_is_survived(site, garbage, capsys):
    send(site, garbage)
    assert ask(site, "GET", "/status.json")[0] == 200
    assert capsys.readouterr().err == ""


@pytest.fixture(scope="module")
def empty_site():
    server = Server("127.0.0.1", 0, lambda path: None)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=300))
def test_any_bytes_are_survived(empty_site, garbage):
    send(empty_site, garbage)
    assert ask(empty_site, "GET", "/")[0] == 404


def send(site, data):
    address = ("127.0.0.1", site.server_address[1])
    with socket.create_connection(address, timeout=30) as raw, contextlib.suppress(OSError):
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(65536):
            pass


def test_idle_and_broken_clients_hold_nobody_up(site):
    idle = [socket.create_connection(("127.0.0.1", site.server_address[1])) for _ in range(20)]
    try:
        idle[0].sendall(b"GET / HTT")
        assert ask(site, "GET", "/status.json")[0] == 200
    finally:
        for connection in idle:
            connection.close()


def test_a_damaged_home_is_an_answer_and_not_an_end(tmp_path):
    home = homes.home(tmp_path)
    server = Server("127.0.0.1", 0, lambda path: _page(home, path))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert ask(server, "GET", "/")[0] == 200
        (home.path / "releases.jsonl").write_text("{broken\n")
        code, text, _ = ask(server, "GET", "/")
        assert code == 500
        assert "damaged" in text
        (home.path / "releases.jsonl").unlink()
        assert ask(server, "GET", "/")[0] == 200
    finally:
        server.shutdown()
        server.server_close()


def test_loopback_is_what_the_standard_says():
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.evil", "", "1.127.0.0"))


def test_the_command_listens_on_this_machine_only(place):
    command = [sys.executable, "-m", "l2dp", "serve", str(place.path), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said = process.stdout.readline()
        address = re.match(r"http://127\.0\.0\.1:(\d+)/ shows ", said)
        assert address, said
        port = int(address.group(1))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", "/")
            assert connection.getresponse().status == 200
        # Bound to 127.0.0.1, it is not on the machine's other addresses: here another one of the loopback net.
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", port), timeout=10)
    finally:
        process.send_signal(signal.SIGINT)
        said, told = process.communicate(timeout=60)
    assert (process.returncode, said, told) == (0, "stopped\n", "")


def test_a_taken_port_and_a_wrong_host_are_one_line(place, site, capsys):
    port = str(site.server_address[1])
    assert run("serve", str(place.path), "--port", port) == 2
    assert run("serve", str(place.path), "--host", "no such host", "--port", "0") == 2
    assert run("serve", str(place.path), "--port", "99999") == 2
    assert run("serve", str(place.path / "nowhere")) == 2
    assert capsys.readouterr().err.count("\n") == 4


# --- in a browser -------------------------------------------------------------------------------------------


def test_pages_of_a_home_in_a_browser(site, tmp_path):
    with chromium() as tab:
        for path in ("", "statement/2"):
            for width, dark in ((1280, False), (390, True)):
                tab.look(width, dark)
                tab.open(site.address + path)
                assert tab.run("document.documentElement.scrollWidth") <= width
                assert tab.flaws() == []
                name = f"home-{path.partition('/')[0] or 'status'}-{width}.png"
                assert len(tab.screenshot(Path(tmp_path, name))) > 10_000
        # One sheet of paper, whatever the reader's theme.
        tab.call("Emulation.setEmulatedMedia", media="print")
        printed = base64.b64decode(tab.call("Page.printToPDF", preferCSSPageSize=True)["data"])
        assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1
        tab.call("Emulation.setEmulatedMedia", media="")
        tab.open(site.address)
        tab.open(tab.run("document.querySelector('#releases a').href"))
        assert tab.run("document.querySelector('h1').textContent") == "Privacy statement"
        assert tab.complaints == []
        assert all(asked.startswith((site.address, "data:")) for asked in tab.requests)
