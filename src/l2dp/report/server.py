"""Pages of a home over HTTP, for the machine it runs on: read-only, and deaf to whatever it does not know.

There is no file behind an address: a request names one of a few pages or gets 404. Methods other than GET and HEAD,
requests that are no HTTP, slow and huge ones end in an error for whoever sent them and in nothing else. Bound to
the loopback address, it answers only under a loopback name, so that a web page elsewhere cannot reach it by giving its
own name to this address.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from l2dp.errors import BadInput, L2dpError
from l2dp.report import words

Answer = tuple[str, bytes]
"""A content type and a body."""

SLOWEST = 10.0
"""Seconds that a client may take to say what it wants."""
MOST_AT_ONCE = 32


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Server(ThreadingHTTPServer):
    """Serves what `answer` gives for a path; None is 404."""

    daemon_threads = True
    request_queue_size = MOST_AT_ONCE

    def __init__(self, host: str, port: int, answer: Callable[[str], Answer | None]) -> None:
        self.answer = answer
        self.local = is_loopback(host)
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise BadInput(f"cannot listen on {host}, port {port}: {reason}; choose another --host or --port") from None

    @property
    def address(self) -> str:
        host, port = self.server_address[:2]
        shown = host.decode() if isinstance(host, bytes | bytearray) else str(host)
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that breaks off is no news."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "l2dp"
    sys_version = ""
    timeout = SLOWEST

    def do_GET(self) -> None:
        self._reply(body=True)

    def do_HEAD(self) -> None:
        self._reply(body=False)

    def _reply(self, body: bool) -> None:
        name = re.sub(r":\d*$", "", self.headers.get("Host", ""))
        if self.server.local and name and not is_loopback(name):
            self.send_error(HTTPStatus.FORBIDDEN, "this server answers on its own machine only")
            return
        try:
            found = self.server.answer(self.path.partition("?")[0].partition("#")[0])
        except L2dpError as error:
            told = words.clean(str(error)).encode()
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", told, body)
            return
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._send(HTTPStatus.OK, *found, body)

    def _send(self, code: HTTPStatus, kind: str, data: bytes, body: bool) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def end_headers(self) -> None:
        # A page says what it may load by itself; these hold for every answer, errors too.
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing: names of tasks in addresses are nobody's business on a terminal."""
