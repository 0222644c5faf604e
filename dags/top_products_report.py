"""A sample of what follows a stream: each time gold.top_products has a new version, the newest closed hour."""

from airflow.sdk import dag, task
from tidemark_dags.assets import table_asset
from tidemark_dags.tasks import log, reporting_errors, this_lake

DOC = """
A sample: a DAG that runs when `gold.top_products` has a new version, because its `schedule` is that table's asset.
`report` logs the best-selling products of the newest hour. Each row is final: the sink of `top_products` is `append`,
so an hour appears once, when no event can change it any more.

Copy it to let something of your own follow a table: `schedule=[table_asset("gold.…")]`.
"""

_NEWEST_HOUR = """
SELECT window_start::TIMESTAMP AS hour, rank, product_id, units, revenue
FROM gold.top_products WHERE window_start = (SELECT max(window_start) FROM gold.top_products)
ORDER BY rank
"""


@dag(
    dag_display_name="Top products report (sample)",
    description="The best-selling products of the newest closed hour; runs when gold.top_products has a new version.",
    doc_md=DOC,
    schedule=[table_asset("gold.top_products")],
    catchup=False,
    max_active_runs=1,
    tags=["tidemark", "sample"],
    default_args={"retries": 0},
)
def top_products_report() -> None:
    """One task."""

    @task(show_return_value_in_logs=False)
    def report() -> None:
        """Logs the newest closed hour."""
        from spark_jobs.lake.tables import query

        with reporting_errors():
            _, rows = query.run(this_lake(), _NEWEST_HOUR)
        if not rows:
            log("No hour is closed yet.")
            return
        log(f"Top products of the hour from {rows[0][0]} UTC; all of them final")
        for _, rank, product, units, revenue in rows:
            log(f"{rank:>4}  {product}  {units:>7,} units  {revenue:>12,}")

    report()


top_products_report()
