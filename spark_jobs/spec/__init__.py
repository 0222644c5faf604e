"""The vocabulary of a pipeline file: pure, frozen values that import no Spark."""

from spark_jobs.spec.alerts import Alerts
from spark_jobs.spec.contract import Contract
from spark_jobs.spec.errors import DefinitionError
from spark_jobs.spec.expectations import (
    Conservation,
    CustomSql,
    Expectation,
    Fresh,
    OverTime,
    Referential,
    TableExpectation,
    Unique,
    Volume,
)
from spark_jobs.spec.parsing import Parsing
from spark_jobs.spec.pipeline import METADATA_COLUMNS, Definition, Ingest, Pipeline, definition_from_json, is_name
from spark_jobs.spec.processors import Processor, Row, State, Timers
from spark_jobs.spec.rules import Between, Matches, NotNull, OneOf, RowRule, Satisfies, Severity
from spark_jobs.spec.savepoints import Savepoints
from spark_jobs.spec.sinks import Sink
from spark_jobs.spec.sources import Files, Kafka, Results, Table, Union
from spark_jobs.spec.steps import (
    Aggregate,
    AsOf,
    Counting,
    Deduplicate,
    Enrich,
    Join,
    Process,
    Running,
    Select,
    Sliding,
    TopN,
    Where,
)
from spark_jobs.spec.watermark import Late, Watermark
from spark_jobs.spec.windows import Calendar, GridWindow, Hopping, Session, Tumbling, Window

__all__ = [
    "METADATA_COLUMNS",
    "Aggregate",
    "Alerts",
    "AsOf",
    "Between",
    "Calendar",
    "Conservation",
    "Contract",
    "Counting",
    "CustomSql",
    "Deduplicate",
    "Definition",
    "DefinitionError",
    "Enrich",
    "Expectation",
    "Files",
    "Fresh",
    "GridWindow",
    "Hopping",
    "Ingest",
    "Join",
    "Kafka",
    "Late",
    "Matches",
    "NotNull",
    "OneOf",
    "OverTime",
    "Parsing",
    "Pipeline",
    "Process",
    "Processor",
    "Referential",
    "Results",
    "Row",
    "RowRule",
    "Running",
    "Satisfies",
    "Savepoints",
    "Select",
    "Session",
    "Severity",
    "Sink",
    "Sliding",
    "State",
    "Table",
    "TableExpectation",
    "Timers",
    "TopN",
    "Tumbling",
    "Union",
    "Unique",
    "Volume",
    "Watermark",
    "Where",
    "Window",
    "definition_from_json",
    "is_name",
]
