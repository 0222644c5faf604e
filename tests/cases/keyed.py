"""Cases of sliding windows and of timers, run by `Sliding` and by a processor: held against the rules and the case."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.lake import Lake
from spark_jobs.spec import Pipeline, Process, Processor, Sink, Sliding, Table, Timers, Watermark
from tests.cases.errors import CaseError
from tests.support import lakes

KEYED = ("sliding", "timer")
"""The kinds of case that this module runs."""

MEASURES = {"count": "count(*)", "sum": "sum(v)", "max": "max(v)", "min": "min(v)"}
_FAR_MS = 1_000_000_000
_AGGREGATES = {"count": len, "sum": sum, "max": max, "min": min}


class GreatestTime(Processor):
    """The greatest event second of a key with each event; -1 when none has come for so long, which forgets the key."""

    output: ClassVar = {"value": "BIGINT"}
    state: ClassVar = {"greatest": "TIMESTAMP"}

    def on_event(self, key: Mapping, event: Mapping, state: dict, timers: Timers) -> Iterator[Mapping]:
        state["greatest"] = max(event["t"], state["greatest"] or event["t"])
        timers.set("quiet", state["greatest"] + timedelta(milliseconds=event["after_ms"]))
        yield {"value": int(state["greatest"].timestamp()) - 1_000_000}

    def on_timer(self, key: Mapping, name: str, at: datetime, state: dict, timers: Timers) -> Iterator[Mapping]:
        yield {"value": -1}
        state.clear()


def run_keyed_case(spark: SparkSession, lake: Lake, raw: Mapping[str, Any]) -> list[str]:
    """Runs a case and compares all that can be told.

    Returns:
        The names of the differences that the case shows.

    Raises:
        CaseError: if Tidemark does not do what its rules say, or they do not explain what the case expects.
    """
    events = sorted(raw["events"], key=lambda event: event["arrival_order"])
    batches = _batches(raw, events)
    delay_ms, late = int(raw["params"].get("grace_ms") or 0), set[int]()
    closed: int | None = None
    for batch in batches:
        late |= {event["arrival_order"] for event in batch if closed is not None and event["ts_ms"] <= closed}
        newest = max(event["ts_ms"] for event in batch) - delay_ms
        closed = newest if closed is None else max(closed, newest)
    pipeline = _pipeline(raw, delay_ms)
    rows = _run(spark, lake, raw, pipeline, batches)
    kept = {int(row["_event_id"][1:]) for row in lakes.rows(lake, "gold.case__late")}
    if kept != late:
        raise CaseError(f"Tidemark does not do what its rules say: late are {sorted(kept)}, not {sorted(late)}")
    lakes.assert_balanced(lake, pipeline)
    compare = _compare_sliding if raw["kind"] == "sliding" else _compare_timer
    return compare(raw, events, late, closed or 0, rows)


def _batches(raw: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    if not raw["params"].get("watermark_model", "").startswith("per_batch"):
        return [[event] for event in events]
    found: dict[Any, list[Mapping[str, Any]]] = {}
    for event in events:
        found.setdefault(event["batch"], []).append(event)
    return list(found.values())


def _pipeline(raw: Mapping[str, Any], delay_ms: int) -> Pipeline:
    params = raw["params"]
    if raw["kind"] == "sliding":
        inclusive = "both inclusive" in params["bounds"]
        size_ms = params["size_ms"] + (1 if inclusive else 0)
        step: Sliding | Process = Sliding(f"{size_ms} ms", by=("k",), measures={"value": MEASURES[params["agg"]]})
    else:
        step = Process(GreatestTime, by=("k",), order="arrival")
    return lakes.one_file_a_batch(
        Pipeline(
            name="case",
            source=Table("bronze.case"),
            event_time="t",
            watermark=Watermark(delay=f"{delay_ms} ms"),
            steps=(step,),
            sink=Sink("gold.case"),
        )
    )


def _run(
    spark: SparkSession, lake: Lake, raw: Mapping[str, Any], pipeline: Pipeline, batches: Sequence[Any]
) -> list[dict[str, Any]]:
    """Feeds one batch after the other; what each has given, with the number of its batch."""
    columns = {"k": pa.string(), "v": pa.int64(), "after_ms": pa.int64(), "t": lakes.TIMESTAMP}
    bronze, rows = lakes.Bronze(lake, "bronze.case", columns, "t"), list[dict[str, Any]]()
    bronze.append([])
    found = re.search(r"\+ (\d+)", str(raw["params"].get("timer")))
    query = PipelineQuery(spark, lake, pipeline)
    handle = query.start()
    try:
        for number, batch in enumerate(batches, start=1):
            bronze.append(
                [
                    {
                        "k": event["key"],
                        "v": event["value"] if isinstance(event["value"], int) else None,
                        "after_ms": int(found[1]) if found else None,
                        "t": lakes.at(_FAR_MS + event["ts_ms"]),
                    }
                    for event in batch
                ],
                ids=[f"e{event['arrival_order']}" for event in batch],
            )
            handle.processAllAvailable()
            known = {(row["k"], row["t"], row.get("_event_id"), row.get("__row")) for row in rows}
            rows += [
                {**row, "batch": batch[0].get("batch", number)}
                for row in lakes.rows(lake, "gold.case")
                if (row["k"], row["t"], row.get("_event_id"), row.get("__row")) not in known
            ]
    finally:
        handle.stop()
    return rows


def _compare_sliding(
    raw: Mapping[str, Any], events: Sequence[Any], late: set[int], closed: int, rows: Sequence[Mapping[str, Any]]
) -> list[str]:
    size_ms, aggregate = raw["params"]["size_ms"], _AGGREGATES[raw["params"]["agg"]]

    def windows(members: Sequence[Any]) -> dict[tuple[str, int], int]:
        found = {}
        for key, at_ms in {(one["key"], one["ts_ms"]) for one in members}:
            inside = [e for e in members if e["key"] == key and at_ms - size_ms <= e["ts_ms"] <= at_ms]
            found[key, at_ms] = aggregate([e["value"] for e in inside])
        return found

    on_time = [event for event in events if event["arrival_order"] not in late]
    ruled = {place: value for place, value in windows(on_time).items() if place[1] <= closed}
    written = {(row["k"], lakes.ms(row["t"]) - _FAR_MS): row["value"] for row in rows}
    if written != ruled or len(rows) != sum(event["ts_ms"] <= closed for event in on_time):
        raise CaseError(f"Tidemark does not do what its rules say: {written}, not {ruled}")
    expected = {(each["key"], each["end_ms"]): each["value"] for each in raw["expected"]}
    times = {(event["key"], event["ts_ms"]) for event in events}
    differences = []
    if expected.keys() - times:
        differences.append("a window after each event")
    at_events = {place: value for place, value in expected.items() if place in times}
    if late and at_events == {place: windows(events)[place] for place in at_events}:
        differences.append("an event judged by its windows")
    elif at_events != ruled:
        raise CaseError(f"no difference explains {at_events}; Tidemark has {ruled}")
    return differences


def _compare_timer(
    raw: Mapping[str, Any], events: Sequence[Any], late: set[int], closed: int, rows: Sequence[Mapping[str, Any]]
) -> list[str]:
    if {event["arrival_order"] for event in raw["expected_late"]} != late:
        raise CaseError(f"late are {sorted(late)}, by the case {raw['expected_late']}")
    last = {(row["k"], row["batch"], row["value"] == -1): row for row in rows}
    found = sorted((key, batch, row["value"]) for (key, batch, _), row in last.items())
    wanted = sorted((each["key"], each["batch"], each["value"]) for each in raw["expected"])
    if found != wanted:
        raise CaseError(f"expected {wanted}, found {found}")
    fired = sorted(lakes.ms(row["t"]) - _FAR_MS for row in rows if row["value"] == -1)
    if fired != sorted(each["timer_ts_ms"] for each in raw["expected"] if each["value"] == -1):
        raise CaseError(f"timers have fired at {fired}")
    return ["a row for each event"] if len(rows) > len(last) else []
