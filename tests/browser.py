"""A real headless Chromium for tests, over its DevTools protocol: open, press, look, and what it complained of."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0"),
    "--hide-scrollbars",
)
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}


class Browser:
    """One tab. `complaints` are console errors and exceptions, `requests` every address it asked for."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.count = 0
        self.session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.loaded = 0
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        self.count += 1
        sent = {"id": self.count, "method": method, "params": parameters}
        self.socket.send(json.dumps(sent | ({"sessionId": self.session} if self.session else {})))
        while True:
            heard = json.loads(self.socket.recv(timeout=300))
            if heard.get("id") == self.count:
                assert "error" not in heard, heard
                return heard["result"]
            self._note(heard)

    def _note(self, heard: dict[str, Any]) -> None:
        told = heard.get("params", {})
        match heard.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(told["args"])[:500])
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.complaints.append(json.dumps(told["entry"])[:500])
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])
            case "Page.loadEventFired":
                self.loaded += 1

    def open(self, address: str) -> float:
        """Opens a page, waits until it is loaded and painted, and says how many seconds that took."""
        before, started = self.loaded, time.perf_counter()
        self.call("Page.navigate", url=address)
        while self.loaded == before:
            self._note(json.loads(self.socket.recv(timeout=300)))
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        return time.perf_counter() - started

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str) -> None:
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code="Space" if key == " " else key,
                windowsVirtualKeyCode=KEYS[key],
                **({"text": text} if text and kind == "keyDown" else {}),
            )

    def point(self, x: float, y: float, click: bool = False) -> None:
        for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if click else ())):
            button = "none" if kind == "mouseMoved" else "left"
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=int(click))

    def look(self, width: int, dark: bool, height: int = 900) -> None:
        """Sets the window's width and the reader's theme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])

    def screenshot(self, path: Path, top: int = 0, height: int | None = None) -> bytes:
        """The page from `top` on, all of it or so many pixels, with everything in view drawn."""
        self.run("document.querySelectorAll('section').forEach(part => part.style.contentVisibility = 'visible')")
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        tall = size["height"] - top if height is None else height
        clip = {"x": 0, "y": top, "width": size["width"], "height": tall, "scale": 1}
        made = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        data = base64.b64decode(made["data"])
        path.write_bytes(data)
        return data

    def flaws(self, where: str = "html") -> list[str]:
        """What axe-core finds serious or critical, in the page or in what a selector names."""
        from importlib import resources

        self.run(resources.files("axe_core_python").joinpath("axe.min.js").read_text("utf-8") + ";1")
        found = self.run(f"axe.run({where!r}).then(found => JSON.stringify(found.violations))")
        return [
            f"{flaw['id']}: {flaw['nodes'][0]['html'][:200]} {flaw['nodes'][0]['failureSummary'][:300]}"
            for flaw in json.loads(found)
            if flaw["impact"] in ("serious", "critical")
        ]


def program() -> str | None:
    wanted = os.environ.get("CHROMIUM")
    return wanted or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A new browser with an empty profile; skips the test where there is none."""
    found = program()
    if found is None:
        pytest.skip("no Chromium here: install it, or name it in $CHROMIUM")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        log = Path(profile, "log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [found, *FLAGS, f"--user-data-dir={profile}/data", "about:blank"],
                stdout=subprocess.DEVNULL,
                stderr=output,
            )
        try:
            deadline = time.monotonic() + 60
            while "DevTools listening on " not in (said := log.read_text("utf-8", "replace")):
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.skip(f"Chromium does not start here: {said[-300:]}")
                time.sleep(0.05)
            address = said.partition("DevTools listening on ")[2].split()[0]
            with connect(address, max_size=None, proxy=None) as socket:
                yield Browser(socket)
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
