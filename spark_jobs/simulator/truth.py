"""The truth about each emitted row, for tests to compare with."""

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from spark_jobs.simulator.arrivals import Arrival, ArrivalClass
from spark_jobs.simulator.errors import BadTarget
from spark_jobs.simulator.malformed import MalformedKind
from spark_jobs.simulator.streams import StreamName, iso_ms


class TruthRow(BaseModel):
    """What is true of one emitted row.

    Attributes:
        run: the run that emitted it; `index` counts within a run and stream.
        index: place in the order of arrival, from 0.
        file: name of the file, for Kafka the topic.
        row: place in the file from 0, a CSV header not counted; for Kafka the offset.
        partition: of Kafka; None for files.
        key: the entity id; for Kafka the message's key.
        event_id: id of the event, the same for a row and its copy.
        event_time: the true one, ISO 8601; what the row states differs for `future` and malformed rows.
        arrival_time: when it arrived, in event time.
        arrival: ordered, disordered or late.
        behind_ms: how far its true event time is behind the newest one that had arrived.
        duplicate_of: for a second copy the index of the first.
        malformed: kind of the fault, if any.
        future: states an event time days ahead.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    index: int
    file: str
    row: int
    partition: int | None
    key: str
    event_id: str
    event_time: str
    arrival_time: str
    arrival: ArrivalClass
    behind_ms: int
    duplicate_of: int | None
    malformed: MalformedKind | None
    future: bool


def truth_line(arrival: Arrival, *, run: str, file: str, row: int, partition: int | None = None) -> str:
    """One `TruthRow` as a JSON line, without a line end."""
    event, original = arrival.event, arrival.original
    return json.dumps(
        {
            "run": run,
            "index": arrival.index,
            "file": file,
            "row": row,
            "partition": partition,
            "key": event.key,
            "event_id": event.event_id,
            "event_time": iso_ms(event.event_time_ms),
            "arrival_time": iso_ms(arrival.arrival_ms),
            "arrival": arrival.arrival,
            "behind_ms": arrival.behind_ms,
            "duplicate_of": None if original is None else original.index,
            "malformed": arrival.malformed,
            "future": arrival.future,
        }
    )


def truth_lines(rows: Sequence[str]) -> bytes:
    """Truth rows as they stand in a file."""
    return "".join(f"{row}\n" for row in rows).encode()


def read_truth(folder: str | Path, stream: StreamName) -> list[TruthRow]:
    """All truth rows of a stream, of all runs, in the order in which they were emitted.

    Args:
        folder: the `_truth` folder beside the streams, or the `truth` argument of `simulate_kafka`; local.
        stream: name of the stream.

    Raises:
        BadTarget: if there is no truth of this stream.
    """
    path = Path(folder) / f"{stream}.jsonl"
    if not path.is_file():
        raise BadTarget(f"truth of `{stream}`: expected the file {str(path)!r}, got none; simulate this stream first")
    return [TruthRow.model_validate_json(line) for line in path.read_text().splitlines()]
