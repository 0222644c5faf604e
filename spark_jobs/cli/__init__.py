"""The `tidemark` command: one module per noun, each thin; the verbs live in the packages below."""

from spark_jobs.cli.application import app, main, run_reporting_errors

__all__ = ["app", "main", "run_reporting_errors"]
