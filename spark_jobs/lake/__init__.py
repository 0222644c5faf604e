"""The lake without a JVM: its paths, its tables and their history, the ledger's arithmetic, small control objects."""

from spark_jobs.lake.location import Lake

__all__ = ["Lake"]
