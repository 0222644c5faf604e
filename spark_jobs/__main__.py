"""`python -m spark_jobs …` is `tidemark …`; also what `spark-submit` runs."""

from spark_jobs.cli import main

main()
