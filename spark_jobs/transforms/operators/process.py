"""Rows that a processor gives."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.plan.columns import EVENTS, FATE, HEARTBEAT, INGEST_TIME, PLACE, ROW
from spark_jobs.plan.operators import step_of
from spark_jobs.spark.columns import column, columns_of
from spark_jobs.spark.processors import JSON_OPTIONS, processed, processed_in_batch
from spark_jobs.spec import Process
from spark_jobs.transforms.events import WITHHELD, with_row_steps
from spark_jobs.transforms.operators.base import Transform
from spark_jobs.transforms.operators.ordered import place_of


class ProcessTransform(Transform):
    """`Process`."""

    def kept(self, *sides: DataFrame) -> tuple[DataFrame, ...]:
        """The events, but for what only the stream needs of them."""
        return tuple(events.drop(PLACE, HEARTBEAT) for events in sides)

    def results(self, *sides: DataFrame) -> DataFrame:
        """One row for each that the processor gives."""
        (events,) = sides
        pipeline = self.operator.pipeline
        step, time = step_of(pipeline, Process), str(pipeline.event_time)
        events = events.drop(PLACE, HEARTBEAT)
        columns = {field.name: field.dataType.simpleString() for field in events.schema}
        time_us, seq = place_of(events, time, self.operator.sides[0])
        at_us = time_us.alias("at_us")
        if step.clock == "processing_time":
            at_us = F.unix_micros(INGEST_TIME).alias("at_us")
        arrived = events.select(
            at_us,
            seq.alias("seq"),
            F.unix_micros(column(time)).alias("time_us"),
            F.to_json(F.struct(*columns_of(step.by)), JSON_OPTIONS).alias("key"),
            F.to_json(F.struct(*columns_of(events.columns)), JSON_OPTIONS).alias("event"),
        )
        run = processed if events.isStreaming else processed_in_batch
        given = run(arrived, step, columns)
        keys = ", ".join(f"`{name}` {columns[name]}" for name in step.by)
        output = ", ".join(f"`{name}` {sql_type}" for name, sql_type in step.output.items())
        parts = given.select(
            F.from_json("key", keys, JSON_OPTIONS).alias("key"),
            F.timestamp_micros("at_us").alias(time),
            F.from_json("row", output, JSON_OPTIONS).alias("row"),
            F.col("number").alias(ROW),
            F.col("events").alias(EVENTS),
        )
        rows = parts.select(
            *(F.col("key").getField(name).alias(name) for name in step.by),
            column(time),
            *(F.col("row").getField(name).alias(name) for name in step.output),
            ROW,
            EVENTS,
        )
        found = with_row_steps(rows, pipeline.result_steps, removed=WITHHELD)
        last = (ROW, EVENTS, FATE)
        return found.select(*columns_of((*(name for name in found.columns if name not in last), *last)))
