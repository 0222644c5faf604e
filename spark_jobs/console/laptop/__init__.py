"""Everything on one machine: Airflow, a supervisor and a simulated shop, started and stopped together."""

from spark_jobs.console.laptop.commands import down, status, up

__all__ = ["down", "status", "up"]
