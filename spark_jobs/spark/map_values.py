"""Values of a map state, many in one go.

Spark's client in Python waits for the answer to each question before it asks the next one, and both sides sleep in
between; that takes longer than what is asked. Here some questions are under way at a time. Internal: pinned by a test.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import MapState

_QUESTIONS, _BYTES = 64, 32_768
"""How many are under way at most, and how large they are together: less than the buffers of a socket and of its file
take, so that no side waits for the other one to read."""

_HEAD, _VERSION = struct.Struct("!ii"), 0
"""Before each message: the version of the protocol, and how long it is."""


class MapValues:
    """The values of a map state.

    Args:
        state: with keys and values of one column each.
    """

    def __init__(self, state: MapState) -> None:
        client = cast("Any", state)._mapStateClient
        self._name = cast("Any", state)._stateName
        self._api, self._keys, self._values = (
            client._stateful_processor_api_client,
            client.user_key_schema,
            client.value_schema,
        )

    def get(self, keys: Iterable[str]) -> Iterator[Any]:
        """The value of each key, in their order; None: it has none."""
        from pyspark.sql.streaming.proto import StateMessage_pb2 as proto

        calls = ({"getValue": proto.GetValue(userKey=self._packed(self._keys, key))} for key in keys)
        for answer in self._answers(calls):
            yield self._api._deserialize_from_bytes(answer)[0] if answer else None

    def put(self, values: Iterable[tuple[str, Any]]) -> None:
        """Keeps a value of each key; None: none any more."""
        from pyspark.sql.streaming.proto import StateMessage_pb2 as proto

        def calls() -> Iterator[dict[str, Any]]:
            for key, value in values:
                packed = self._packed(self._keys, key)
                if value is None:
                    yield {"removeKey": proto.RemoveKey(userKey=packed)}
                else:
                    yield {"updateValue": proto.UpdateValue(userKey=packed, value=self._packed(self._values, value))}

        for _ in self._answers(calls()):
            pass

    def _packed(self, schema: Any, value: Any) -> bytes:
        return self._api._serialize_to_bytes(schema, (value,))  # type: ignore[no-any-return]

    def _answers(self, calls: Iterable[dict[str, Any]]) -> Iterator[bytes]:
        from pyspark.sql.streaming.proto import StateMessage_pb2 as proto

        asked, size = list[bytes](), 0
        for call in calls:
            variable = proto.StateVariableRequest(mapStateCall=proto.MapStateCall(stateName=self._name, **call))
            message = proto.StateRequest(stateVariableRequest=variable).SerializeToString()
            if asked and (len(asked) == _QUESTIONS or size + len(message) > _BYTES):
                yield from self._asked(asked)
                asked, size = [], 0
            asked.append(message)
            size += len(message)
        yield from self._asked(asked)

    def _asked(self, messages: Sequence[bytes]) -> list[bytes]:
        stream = self._api.sockfile
        for message in messages:
            stream.write(_HEAD.pack(_VERSION, len(message)))
            stream.write(message)
        stream.flush()
        return [self._answer() for _ in messages]

    def _answer(self) -> bytes:
        status, said, value = self._api._receive_proto_message()
        # Spark answers nothing after a question that failed: whoever waited for the others would wait for ever.
        if status != 0:
            raise PySparkRuntimeError(f"state {self._name}: {said}")
        return cast("bytes", value)
