"""A web server and a mail server that notifiers can tell, for the length of a ``with`` block."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from spark_jobs.console.laptop.ports import free_port


@dataclass
class Receiver:
    """What was posted, and where to.

    Attributes:
        address: Its URL.
        received: (path, JSON) of each call, in order.
    """

    address: str = ""
    received: list[tuple[str, Any]] = field(default_factory=list)

    def of(self, pipeline: str) -> list[tuple[str, str, str]]:
        """(path, kind, state) of each call about a pipeline."""
        return [(path, body["kind"], body["state"]) for path, body in self.received if body["pipeline"] == pipeline]


@contextmanager
def listening() -> Iterator[Receiver]:
    """Listens on a free loopback port."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.received.append((self.path, json.loads(body)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class Mailbox:
    """A mail server's only mailbox.

    Attributes:
        connection: Airflow's connection to the server, as JSON.
        received: each mail, in order.
    """

    connection: str = ""
    received: list[EmailMessage] = field(default_factory=list)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        """Takes a mail (aiosmtpd calls it by this name)."""
        assert isinstance(envelope.content, bytes)
        self.received.append(message_from_bytes(envelope.content, policy=policy.default))
        return "250 OK"


@contextmanager
def mailbox() -> Iterator[Mailbox]:
    """A mail server on a free loopback port."""
    found = Mailbox()
    controller = Controller(found, hostname="127.0.0.1", port=free_port())
    found.connection = json.dumps(
        {
            "conn_type": "smtp",
            "host": "127.0.0.1",
            "port": controller.port,
            "extra": {"disable_ssl": True, "disable_tls": True, "from_email": "tidemark@example.com"},
        }
    )
    controller.start()
    try:
        yield found
    finally:
        controller.stop()
