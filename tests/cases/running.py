"""A case run through Tidemark itself."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import Totals
from spark_jobs.plan.logical import build
from spark_jobs.spec import Aggregate, Deduplicate, Join, Pipeline, Sink, Table, Watermark, Where
from spark_jobs.spec.steps import Step
from tests.cases.case import Case, key_of
from tests.cases.errors import CaseError
from tests.cases.expectations import differ, explanation
from tests.cases.rows import check_rows, wanted_rows
from tests.cases.rules import by_tidemarks_rules, found_by_model
from tests.support import lakes, model

MEASURES = {
    "count": "count(*)",
    "sum": "sum(v)",
    "max": "max(v)",
    "min": "min(v)",
    "collect": "array_sort(collect_list(struct(_ingest_seq AS seq, v AS v)))",
}


def run_case(spark: SparkSession, lake: Lake, case: Case) -> list[str]:
    """Runs a case and compares all that can be told.

    Returns:
        The names of the differences that the case shows.

    Raises:
        CaseError: if Tidemark does not do what its rules say, or they do not explain what the case expects.
    """
    case.prepare()
    if case.refused:
        assert_refused()
        return ["join without an end"]
    if case.windowed and case.agg not in MEASURES:
        raise CaseError(f"agg: expected one of {sorted(MEASURES)}, got {case.agg!r}")
    if not case.windowed:
        check_rows(case)
    if case.kind == "join" and None in case.reach:
        assert_refused()
    verdict, outcome = by_tidemarks_rules(case)
    pipeline = _pipeline(case)
    _feed(spark, lake, case, pipeline)
    if isinstance(outcome, model.JudgedEvents):
        problem = _difference_of_rows(lake, case, pipeline, outcome)
    else:
        problem = _difference_of_windows(lake, case, pipeline, outcome)
    if problem is not None:
        raise CaseError(f"Tidemark does not do what its rules say: {problem}")
    lakes.assert_balanced(lake, pipeline)
    return explanation(case, verdict)


def assert_refused() -> None:
    """A join without `within`, or `keep`, has no definition.

    Raises:
        CaseError: if it has.
    """
    try:
        Join(Table("bronze.other"), on=("k",), event_time="u")
    except ValueError as error:
        if "one of them is required" in str(error):
            return
        raise
    raise CaseError("Tidemark does not do what its rules say: it takes a join that keeps all for ever")


def _pipeline(case: Case) -> Pipeline:
    return lakes.one_file_a_batch(
        Pipeline(
            name="case",
            source=Table("bronze.case"),
            event_time="t",
            watermark=Watermark(delay=f"{case.delay_ms} ms", grace=f"{case.pipeline_grace_ms} ms"),
            steps=tuple(_steps(case)),
            sink=Sink("gold.case"),
        )
    )


def _steps(case: Case) -> Iterator[Step]:
    if case.windowed:
        measures = {"n": "count(*)", "value": MEASURES[case.agg]}
        yield Aggregate(window=case.window, by=("k",), measures=measures)
    elif case.kind == "dedup":
        yield Deduplicate(*_columns_of_dedup(case), within=f"{case.size_ms} ms")
    else:
        yield Join(
            Table("bronze.other"),
            on=("k",),
            event_time="u",
            within=f"{case.within_ms} ms",
            before=f"{case.before_ms} ms",
            how=case.how,
            delay=f"{case.delays_ms[1]} ms",
        )
        if case.narrower:
            apart, (lowest, highest) = "unix_millis(u) - unix_millis(t)", case.reach
            bounds = ((">=", lowest), ("<=", highest))
            yield Where(" AND ".join(f"{apart} {sign} {bound}" for sign, bound in bounds if bound is not None))


def _columns_of_dedup(case: Case) -> list[str]:
    return ["t" if name == "ts_ms" else f"d{number}" for number, name in enumerate(case.dedup_keys)]


def _tables(lake: Lake, case: Case) -> list[lakes.Bronze]:
    """The streams of a case, by number."""
    columns = {"k": pa.string(), "v": _value_type(case), "t": lakes.TIMESTAMP}
    if case.kind == "dedup":
        columns |= {name: pa.string() for name in _columns_of_dedup(case) if name != "t"}
    tables = [lakes.Bronze(lake, "bronze.case", columns, "t")]
    if case.kind == "join":
        other = {"k": pa.string(), "w": pa.string(), "u": lakes.TIMESTAMP}
        tables.append(lakes.Bronze(lake, "bronze.other", other, "u"))
    return tables


def _encoded(case: Case) -> bool:
    """Whether values are fed as text: where nothing computes with them."""
    return not case.windowed or case.agg in ("collect", "count")


def _value_type(case: Case) -> pa.DataType:
    values = [event.get("value") for event in case.events]
    if _encoded(case) or any(isinstance(value, str) for value in values):
        return pa.string()
    return pa.int64() if all(isinstance(value, int | None) for value in values) else pa.float64()


def _row(case: Case, index: int) -> dict[str, Any]:
    event = case.events[index]
    value = json.dumps(event.get("value")) if _encoded(case) else event.get("value")
    at = lakes.at(int(event["ts_ms"]) + case.shift_ms)
    if case.side(index):
        return {"k": case.key(index), "w": value, "u": at}
    if case.kind == "dedup":
        names = zip(_columns_of_dedup(case), case.dedup_keys, strict=True)
        keys = {column: json.dumps(case.named(index, name), sort_keys=True) for column, name in names if column != "t"}
        return {"k": key_of(event), "v": value, "t": at, **keys}
    return {"k": case.key(index), "v": value, "t": at}


def _feed(spark: SparkSession, lake: Lake, case: Case, pipeline: Pipeline) -> None:
    tables = _tables(lake, case)
    for table in tables:
        table.append([])
    restarts = {entry.get("before_batch"): entry for entry in case.raw.get("restarts") or ()}
    query = PipelineQuery(spark, lake, pipeline)
    handle = query.start()
    try:
        for step in case.steps():
            if step.watermark_ms is not None:
                for side in step.sides:
                    tables[side].heartbeat(step.watermark_ms + case.delays_ms[side] + case.shift_ms)
            else:
                batch = case.events[step.events[0]].get("batch")
                if batch in restarts:
                    handle.stop()
                    if restarts.pop(batch).get("purge_last_commit"):
                        _purge_last_commit(lake, query)
                    query = PipelineQuery(spark, lake, pipeline)
                    handle = query.start()
                    handle.processAllAvailable()
                by_side = {side: [i for i in step.events if case.side(i) == side] for side in case.sides}
                together = all(by_side.values()) and len(by_side) > 1
                if together:
                    # Two tables are not written at once: a query that runs could find one without the other.
                    handle.stop()
                for side, events in by_side.items():
                    if events:
                        tables[side].append([_row(case, i) for i in events], ids=[f"e{i}" for i in events])
                if together:
                    query = PipelineQuery(spark, lake, pipeline)
                    handle = query.start()
            handle.processAllAvailable()
    except StreamingQueryException as error:
        raise query.error or error from None
    finally:
        handle.stop()


def _purge_last_commit(lake: Lake, query: PipelineQuery) -> None:
    """As if the driver had died between a batch's last commit and Spark's own log of it."""
    commits = Path(lake.path(query.epoch.folder, "commits"))
    newest = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink(missing_ok=True)


def _difference_of_rows(lake: Lake, case: Case, pipeline: Pipeline, outcome: model.JudgedEvents) -> str | None:
    """In what the rows that Tidemark wrote are not those that its rules say."""
    batches = wanted_rows(case, outcome)
    ruled = sorted(row.members for batch in batches for row in batch)
    names = ("_event_id", "_other_event_id") if case.kind == "join" else ("_event_id",)
    written = [[row[name] for name in names] for row in lakes.rows(lake, "gold.case")]
    numbers = sorted(tuple(-1 if name is None else int(name[1:]) for name in row) for row in written)
    ledger = lakes.ledger(lake, pipeline)
    late = sorted(row["_event_id"] for row in lakes.rows(lake, "gold.case__late"))
    # The empty file that makes the table may be a batch of its own; it holds nothing and moves nothing.
    rows = [row["rows"] for _, row in ledger if row["rows"]]
    return (
        differ("rows", numbers, ruled)
        or differ("late rows", late, sorted(outcome.of("late")))
        or differ("rows of each batch that wrote some", rows, [len(batch) for batch in batches if batch])
        or differ("duplicates", sum(row["duplicate"] for _, row in ledger), len(outcome.of("duplicate")))
    )


def _difference_of_windows(lake: Lake, case: Case, pipeline: Pipeline, outcome: model.Outcome) -> str | None:
    """In what the windows that Tidemark wrote are not those that its rules say."""
    written = {
        (row["k"], lakes.ms(row["window_start"]), lakes.ms(row["window_end"])): (row["n"], _written(case, row))
        for row in lakes.rows(lake, "gold.case")
    }
    ruled = {
        (row.key, row.window_start_ms, row.window_end_ms): (
            row.count,
            case.value(found_by_model(case, row).members),
        )
        for row in outcome.closed
    }
    problem = differ("rows", written, ruled)
    kept = [
        model.LatePair(-1, row["_event_id"], lakes.ms(w["window_start"]), lakes.ms(w["window_end"]))
        for row in lakes.rows(lake, "gold.case__late")
        for w in row["missed_windows"]
    ]
    problem = problem or differ(
        "late rows", sorted(kept), sorted(pair._replace(batch_id=-1) for pair in outcome.late_pairs)
    )
    ledger = lakes.ledger(lake, pipeline)
    # The empty file that makes the table may be a batch of its own; it holds nothing and moves nothing.
    results = [row["pairs_result"] for _, row in ledger if row["pairs_result"]]
    emitted = [sum(row.count for row in batch.closed) for batch in outcome.batches if batch.closed]
    problem = problem or differ("pairs of each batch that closed windows", results, emitted)
    still = sum(row.count for row in outcome.open)
    return problem or differ(
        "open pairs", Totals.of(row for _, row in ledger).rest(build(pipeline).equations[-1]), still
    )


def _written(case: Case, row: Mapping[str, Any]) -> Any:
    if case.agg == "collect":
        return case.normal([json.loads(item["v"]) for item in row["value"]])
    return row["value"]
