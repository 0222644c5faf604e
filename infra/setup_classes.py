"""Archive the classes that a driver loads, so that the next drivers map them at once instead of loading each.

A driver's JVM loads thousands of classes from hundreds of jars before its first batch. Java's class data sharing keeps
them in one file, parsed and verified. This runs a small shop through a driver that writes the archive when it ends;
drivers use it where it is there (`spark_jobs/spark/session.py`), and Java ignores it where it does not fit: another
Java, other jars.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from spark_jobs.engine.driver import Driver
from spark_jobs.lake import Lake
from spark_jobs.lake.settings import Settings
from spark_jobs.pipelines import resolve
from spark_jobs.simulator import Shop, simulate_files
from spark_jobs.spark.session import build_session
from spark_jobs.spark.settings import CLASS_ARCHIVE, JARS_FOLDER

_PIPELINES = ("ingest_sales", "top_products", "top_products_live", "shop_totals")
_END_WITHIN_S = 180


def is_current() -> bool:
    """Whether there is an archive that is newer than the jars."""
    newest_jar = max((jar.stat().st_mtime for jar in JARS_FOLDER.glob("*.jar")), default=0.0)
    return CLASS_ARCHIVE.exists() and CLASS_ARCHIVE.stat().st_mtime > newest_jar


def archive_classes() -> None:
    """Run the driver and keep its classes; an archive appears whole or not at all."""
    CLASS_ARCHIVE.unlink(missing_ok=True)
    unfinished = CLASS_ARCHIVE.with_suffix(f".{os.getpid()}")
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(folder)
        simulate_files(Shop(streams=("sales",), rate=None), out=f"{folder}/landing", rows=2_000, rows_per_file=1_000)
        spark = build_session(lake, settings=Settings(java_options=f'-XX:ArchiveClassesAtExit="{unfinished}"'))
        java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        Driver(spark, lake, resolve(_PIPELINES)).run_until_caught_up(close=True)
        spark.stop()
        # Java ends when this pipe does, and writes the archive then.
        java.stdin.close()
        try:
            java.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            java.kill()
            java.wait()
            unfinished.unlink(missing_ok=True)
    if unfinished.exists():
        unfinished.rename(CLASS_ARCHIVE)


def main() -> int:
    """The command line."""
    if is_current():
        return 0
    sys.stdout.write(
        f"Archiving Java's classes into {CLASS_ARCHIVE.name} (once, half a minute): drivers start faster …\n"
    )
    sys.stdout.flush()
    # What Java says about classes that cannot be archived helps nobody.
    saved, nowhere = (os.dup(1), os.dup(2)), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        archive_classes()
    finally:
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
    if not CLASS_ARCHIVE.exists():
        sys.stdout.write("Java wrote no archive. Nothing needs it: drivers start as before.\n")
    sys.stdout.flush()
    # Native threads may outlive the interpreter that they call into.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
