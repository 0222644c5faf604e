"""A seeded shop that emits streams of events, in files or in Kafka, as disordered as you like."""

from spark_jobs.simulator.bulk import BULK_DISORDER, bulk_sales
from spark_jobs.simulator.clock import SYSTEM_CLOCK, Clock, SystemClock
from spark_jobs.simulator.disorder import Disorder
from spark_jobs.simulator.errors import BadTarget, DeliveryFailed, SimulatorError
from spark_jobs.simulator.malformed import FileFormat, MalformedKind
from spark_jobs.simulator.progress import Progress
from spark_jobs.simulator.run import simulate_files, simulate_kafka
from spark_jobs.simulator.shop import Shop
from spark_jobs.simulator.streams import DEFAULT_STREAMS, FORMATS, STREAM_NAMES, StreamFormat, StreamName
from spark_jobs.simulator.truth import TruthRow, read_truth

__all__ = [
    "BULK_DISORDER",
    "DEFAULT_STREAMS",
    "FORMATS",
    "STREAM_NAMES",
    "SYSTEM_CLOCK",
    "BadTarget",
    "Clock",
    "DeliveryFailed",
    "Disorder",
    "FileFormat",
    "MalformedKind",
    "Progress",
    "Shop",
    "SimulatorError",
    "StreamFormat",
    "StreamName",
    "SystemClock",
    "TruthRow",
    "bulk_sales",
    "read_truth",
    "simulate_files",
    "simulate_kafka",
]
