"""What is told of a library's error: the line that says what is wrong."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from deltalake import DeltaTable

from spark_jobs.lake.errors import first_line


class _Busy(BaseHTTPRequestHandler):
    """A store that has no time for anybody."""

    def do_GET(self) -> None:
        self.send_response(503, "Slow Down")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def busy_store() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Busy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_what_a_store_has_answered_is_told_with_what_was_asked(busy_store: str) -> None:
    options = {
        "AWS_ENDPOINT_URL": busy_store,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "anybody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "max_retries": "0",
    }
    with pytest.raises(OSError, match="Generic S3 error") as raised:
        DeltaTable("s3://bucket/table", storage_options=options)
    told = first_line(raised.value)
    assert told.startswith(
        f"Kernel error -> Generic S3 error: Error performing GET {busy_store}/bucket/table/_delta_log"
    )
    assert told.endswith("503 Service Unavailable")
    assert "\x1b" not in told


def test_the_stack_behind_an_error_is_not_told() -> None:
    assert first_line(RuntimeError("it failed\n\tat java.lang.Thread.run")) == "it failed"
