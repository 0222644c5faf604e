"""`python -m spark_jobs.cli …` is `tidemark …`."""

from spark_jobs.cli import main

main()
