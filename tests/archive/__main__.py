"""`python -m tests.archive` writes the archive of the newest form."""

import tempfile
from pathlib import Path

from spark_jobs.lake import Lake
from spark_jobs.spark.session import build_session
from tests import archive

with tempfile.TemporaryDirectory() as folder:
    spark = build_session(Lake(folder))
    spark.conf.set("spark.sql.shuffle.partitions", 1)
    archive.write(spark, Path(folder))
    spark.stop()
