"""What the killed drivers run: the shop's pipelines with pinned batch boundaries (one file a batch), at full speed."""

from datetime import timedelta

from spark_jobs.pipelines import registry
from spark_jobs.spec import Definition


def _one_file_a_batch(definition: Definition) -> Definition:
    # The landing folder is shared by all lakes of a test; it is named by the environment of the driver.
    source = definition.source.model_copy(update={"max_files_per_trigger": 1})
    return definition.model_copy(update={"source": source, "trigger_interval": timedelta(0)})


ingest_sales = _one_file_a_batch(registry()["ingest_sales"])
top_products = _one_file_a_batch(registry()["top_products"])
top_products_live = _one_file_a_batch(registry()["top_products_live"])
shop_totals = _one_file_a_batch(registry()["shop_totals"])
