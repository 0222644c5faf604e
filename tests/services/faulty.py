"""Stores that misbehave: a proxy that loses requests or answers, and a store that ignores conditions."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LossyProxy:
    """Forwards TCP connections to a server and cuts some of those that carry a PUT.

    Attributes:
        endpoint: Where it listens.
        lost: How many PUT requests or answers it has lost so far.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._answers_to_lose = 0
        self._requests_to_lose = 0
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, *, answers: int = 0, requests: int = 0) -> None:
        """Lose the answers to the next PUTs, or those PUTs themselves; forget what was asked before."""
        with self._lock:
            self._answers_to_lose, self._requests_to_lose, self.lost = answers, requests, 0

    def close(self) -> None:
        """Stop listening."""
        # Without it, the thread that waits in accept would keep the socket open.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                doomed = threading.Event()
                for pump in (self._requests, self._answers):
                    threading.Thread(target=pump, args=(client, server, doomed), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        with suppress(OSError):
            while chunk := client.recv(1 << 16):
                # The client waits for an answer before it sends its next request: a chunk holds one at most.
                if chunk.startswith(b"PUT "):
                    with self._lock:
                        if self._requests_to_lose:
                            self._requests_to_lose -= 1
                            self.lost += 1
                            break
                        if self._answers_to_lose:
                            self._answers_to_lose -= 1
                            doomed.set()
                server.sendall(chunk)
        _cut(client, server)

    def _answers(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        with suppress(OSError):
            while chunk := server.recv(1 << 16):
                # "100 Continue" only asks for the body; the server acts on the request after it.
                if doomed.is_set() and not (chunk.startswith(b"HTTP/1.1 100") and chunk.endswith(b"\r\n\r\n")):
                    with self._lock:
                        self.lost += 1
                    break
                client.sendall(chunk)
        _cut(client, server)


@contextmanager
def start_lossy_proxy(target: str) -> Iterator[LossyProxy]:
    """Run a proxy before a server for the length of a ``with`` block."""
    proxy = LossyProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()


class _Forgetful(BaseHTTPRequestHandler):
    """Just enough of S3 to write, look up and delete objects; ``If-None-Match`` means nothing to it."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, dict[str, str]]

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.objects[self.path] = {
            name: value for name, value in self.headers.items() if name.lower().startswith("x-amz-meta-")
        }
        self._answer(200, {"ETag": '"1"'})

    def do_HEAD(self) -> None:
        found = self.objects.get(self.path)
        self._answer(404 if found is None else 200, {"ETag": '"1"', **(found or {})})

    def do_DELETE(self) -> None:
        self.objects.pop(self.path, None)
        self._answer(204, {})

    def do_GET(self) -> None:
        body = b'<?xml version="1.0"?><ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>'
        self._answer(200, {"Content-Type": "application/xml"}, body)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Last-Modified", self.date_time_string())
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def start_forgetful_store() -> Iterator[str]:
    """Run a store that lets every conditional PUT overwrite; yields its endpoint."""
    handler = type("Handler", (_Forgetful,), {"objects": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _cut(*sockets: socket.socket) -> None:
    for end in sockets:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
