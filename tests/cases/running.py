"""A case run through Tidemark itself."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_jobs.engine.pipeline import PipelineQuery
from spark_jobs.lake import Lake
from spark_jobs.lake.ledger import Totals
from spark_jobs.plan.logical import build
from spark_jobs.spec import Aggregate, Pipeline, Sink, Table, Watermark
from tests import lakes, model
from tests.cases.case import Case, CaseError, key_of
from tests.cases.expectations import differ, explanation
from tests.cases.rules import by_tidemarks_rules, found_by_model

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
    if case.agg not in MEASURES:
        raise CaseError(f"agg: expected one of {sorted(MEASURES)}, got {case.agg!r}")
    verdict, outcome = by_tidemarks_rules(case)
    pipeline = _pipeline(case)
    _feed(spark, lake, case, pipeline)
    _compare(lake, case, pipeline, outcome)
    return explanation(case, verdict)


def _pipeline(case: Case) -> Pipeline:
    return lakes.one_file_a_batch(
        Pipeline(
            name="case",
            source=Table("bronze.case"),
            event_time="t",
            watermark=Watermark(delay=f"{case.delay_ms} ms", grace=f"{case.pipeline_grace_ms} ms"),
            steps=(Aggregate(window=case.window, by=("k",), measures={"n": "count(*)", "value": MEASURES[case.agg]}),),
            sink=Sink("gold.case"),
        )
    )


def _feed(spark: SparkSession, lake: Lake, case: Case, pipeline: Pipeline) -> None:
    values = [event.get("value") for event in case.events]
    encoded = case.agg in ("collect", "count")
    if encoded or any(isinstance(value, str) for value in values):
        value_type = pa.string()
    else:
        value_type = pa.int64() if all(isinstance(value, int | None) for value in values) else pa.float64()
    bronze = lakes.Bronze(lake, "bronze.case", {"k": pa.string(), "v": value_type, "t": lakes.TIMESTAMP}, "t")
    bronze.append([])
    restarts = {entry.get("before_batch"): entry for entry in case.raw.get("restarts") or ()}
    query = PipelineQuery(spark, lake, pipeline)
    handle = query.start()
    try:
        for step in case.steps():
            if step.watermark_ms is not None:
                bronze.heartbeat(step.watermark_ms + case.delay_ms + case.shift_ms)
            else:
                batch = case.events[step.events[0]].get("batch")
                if batch in restarts:
                    handle.stop()
                    if restarts.pop(batch).get("purge_last_commit"):
                        _purge_last_commit(lake, query)
                    query = PipelineQuery(spark, lake, pipeline)
                    handle = query.start()
                    handle.processAllAvailable()
                events = [case.events[index] for index in step.events]
                bronze.append(
                    [
                        {
                            "k": key_of(event),
                            "v": json.dumps(event.get("value")) if encoded else event.get("value"),
                            "t": lakes.at(int(event["ts_ms"]) + case.shift_ms),
                        }
                        for event in events
                    ],
                    ids=[f"e{index}" for index in step.events],
                )
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


def _compare(lake: Lake, case: Case, pipeline: Pipeline, outcome: model.Outcome) -> None:
    """What Tidemark wrote against what its rules say."""
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
    problem = problem or differ(
        "open pairs", Totals.of(row for _, row in ledger).rest(build(pipeline).equations[-1]), still
    )
    if problem is not None:
        raise CaseError(f"Tidemark does not do what its rules say: {problem}")
    lakes.assert_balanced(lake, pipeline)


def _written(case: Case, row: Mapping[str, Any]) -> Any:
    if case.agg == "collect":
        return case.normal([json.loads(item["v"]) for item in row["value"]])
    return row["value"]
