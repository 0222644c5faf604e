"""Values of a map state, asked for some at a time, of a server that speaks the protocol of Spark's."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.map_state_client import MapStateClient
from pyspark.sql.streaming.proto import StateMessage_pb2 as proto
from pyspark.sql.streaming.stateful_processor import MapState
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient
from pyspark.sql.types import StringType, StructField, StructType

from spark_jobs.spark.map_values import MapValues

TEXT = StructType([StructField("text", StringType())])
LONG = "x" * 100_000


def serve(listener: socket.socket, kept: dict[bytes, bytes]) -> None:
    """Answers one question after the other, of a dictionary; to remove a key twice fails.

    As Spark's server it answers nothing after that, and does not hang up.
    """
    connection, _ = listener.accept()
    failed = False
    with connection, connection.makefile("rb") as questions:
        while head := questions.read(8):
            version, size = struct.unpack("!ii", head)
            assert version == 0
            if failed:
                questions.read(size)
                continue
            call = proto.StateRequest.FromString(questions.read(size)).stateVariableRequest.mapStateCall
            answer = proto.StateResponse()
            match call.WhichOneof("method"):
                case "getValue":
                    answer.value = kept.get(call.getValue.userKey, b"")
                case "updateValue":
                    kept[call.updateValue.userKey] = call.updateValue.value
                case "removeKey" if kept.pop(call.removeKey.userKey, None) is None:
                    answer.statusCode, answer.errorMessage, failed = 1, "no such key", True
            text = answer.SerializeToString()
            connection.sendall(struct.pack("!i", len(text)) + text)


@pytest.fixture
def values(tmp_path: Path) -> Iterator[MapValues]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "server"))
        listener.listen()
        server = threading.Thread(target=serve, args=(listener, {}), daemon=True)
        server.start()
        client = StatefulProcessorApiClient(str(tmp_path / "server"), TEXT)
        client._client_socket.settimeout(10)
        yield MapValues(MapState(MapStateClient(client, TEXT, TEXT), "keys"))
        client.sockfile.close()
        client._client_socket.close()
        server.join(10)


def test_values_of_any_size_and_number_are_kept_and_found(values: MapValues) -> None:
    # Neither side reads while it writes: were too many under way, both would wait for ever.
    expected = {f"key {number}": LONG if number % 3 == 0 else f"€ {number}" for number in range(500)}
    expected |= {LONG: "of a long key", LONG + "2": LONG}
    values.put(expected.items())
    values.put((key, None) for key in [*expected][:70])
    kept = {key: expected[key] for key in [*expected][70:]}
    assert list(values.get(expected)) == [kept.get(key) for key in expected]
    assert list(values.get([])) == []


def test_a_question_that_fails_is_told_though_no_answer_follows_it(values: MapValues) -> None:
    with pytest.raises(PySparkRuntimeError, match="state keys: no such key"):
        values.put([("a", "1"), ("none", None), ("b", "2")])
