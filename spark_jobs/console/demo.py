"""The demonstration behind `make run`: a simulated shop, its pipelines, and what became of every event."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from rich.console import Console

from spark_jobs.console import reports
from spark_jobs.console.live import Progress, tell_set_aside
from spark_jobs.console.running import report_failures, session
from spark_jobs.engine.driver import Driver
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting import audit
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import epoch_ledger
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.store.s3 import s3_store
from spark_jobs.lake.tables import opening as tables
from spark_jobs.lake.tables import query
from spark_jobs.pipelines import registry, resolve
from spark_jobs.plan import logical as plan
from spark_jobs.plan.tables import beside
from spark_jobs.simulator import Disorder, Shop, simulate_files
from spark_jobs.spec import Pipeline

PIPELINES = ("ingest_sales", "top_products", "top_products_live", "shop_totals")

# An hour of the shop passes in 20 seconds, so that hourly windows close while one watches.
SPEED = 180.0
EVENTS_PER_S = 200.0
DISORDER = Disorder(
    late=0.01, late_after="10 minutes", late_by="3 hours", duplicates=0.01, malformed=0.005, future=0.002
)

_TOP = """
SELECT window_start::TIMESTAMP AS hour, rank, product_id, units, revenue FROM gold.top_products
WHERE window_start IN (SELECT DISTINCT window_start FROM gold.top_products ORDER BY 1 DESC LIMIT 2) AND rank <= 5
ORDER BY window_start, rank
"""
_SET_ASIDE = beside("bronze.sales", "quarantine")
_QUARANTINE = f"SELECT reason, count(*) AS rows FROM {_SET_ASIDE} GROUP BY reason ORDER BY rows DESC"


def demonstrate(out: Console, err: Console, lake: Lake, *, seconds: float, stop: threading.Event) -> int:
    """Runs the shop and its pipelines live, then shows results, late events and the ledger.

    Returns:
        The exit code: 0 where every pipeline ran and every ledger balances.
    """
    definitions = resolve(PIPELINES)
    out.print(f"The lake is {lake.uri}. A simulated shop sells on, one hour every {3600 / SPEED:.0f} seconds.")
    landing = lake.path("landing").replace("s3a://", "s3://", 1)
    shop = Shop(
        seed=1, streams=("sales",), start=_opening_time(lake), speed=SPEED, rate=EVENTS_PER_S, disorder=DISORDER
    )
    shop_closed = threading.Event()
    simulator = threading.Thread(
        target=simulate_files,
        args=(shop,),
        kwargs={"out": landing, "stop": shop_closed, "open_s3": s3_store},
        daemon=True,
    )
    simulator.start()
    began = time.monotonic()
    out.print("Starting Spark …")
    with session(lake, err, streams=True) as spark:
        out.print(f"Running {', '.join(PIPELINES)} for {seconds:.0f} seconds; Ctrl-C ends sooner.")
        readers = [definition for definition in registry().values() if isinstance(definition, Pipeline)]
        driver = Driver(spark, lake, definitions, readers=readers)
        with Progress(out) as progress:
            driver.on_tick = _until(time.monotonic() + seconds, stop, progress.tick, _FirstWindow(out, lake, began))
            outcomes = driver.run_continuously(stop)
        shop_closed.set()
        simulator.join()
        tell_set_aside(out, driver)
        code = report_failures(err, outcomes)
    out.print()
    balanced = _show(out, lake)
    _how_to_go_on(out)
    return code or (0 if balanced else 1)


def _opening_time(lake: Lake) -> datetime:
    """Two days ago, or where an earlier demonstration on this lake stopped."""
    try:
        newest = tables.newest(tables.open_table(lake, "bronze.sales"), "sold_at", beside="_ingest_seq")
    except MissingTableError:
        newest = None
    if isinstance(newest, datetime):
        return newest.replace(tzinfo=newest.tzinfo or UTC)
    return (datetime.now(UTC) - timedelta(days=2)).replace(minute=0, second=0, microsecond=0)


def _until(deadline: float, stop: threading.Event, *ticks: Callable[[Driver], None]) -> Callable[[Driver], None]:
    def tick(driver: Driver) -> None:
        for each in ticks:
            each(driver)
        if time.monotonic() >= deadline:
            stop.set()

    return tick


class _FirstWindow:
    """Says when the first hour is closed."""

    def __init__(self, out: Console, lake: Lake, began: float) -> None:
        self._out = out
        self._began = began
        self._told = False

    def __call__(self, driver: Driver) -> None:
        query = driver.queries.get("top_products")
        row = query.latest if query else None
        if not self._told and row is not None and row["rows"]:
            self._told = True
            self._out.print(f"First closed hour {time.monotonic() - self._began:.0f} s after the start.")


def _show(out: Console, lake: Lake) -> bool:
    """Results, late events, quarantine and ledgers; whether all of them balance."""
    columns, rows = query.run(lake, _TOP)
    out.print(reports.rows_table(columns, rows, title="Top products of the last closed hours (gold.top_products)"))
    out.print()
    top_products = registry()["top_products"]
    if isinstance(top_products, Pipeline):
        reports.print_late(out, lake, top_products, 5)
        out.print()
    columns, rows = query.run(lake, _QUARANTINE)
    out.print(reports.rows_table(columns, rows, title=f"Set aside at ingest ({_SET_ASIDE})"))
    balanced = True
    for name in PIPELINES:
        epoch = current_epoch(lake, name)
        if epoch is None:
            continue
        definition = registry()[name]
        ledger = epoch_ledger(lake, definition.sink.table, name, epoch.number, plan.build(definition).equations)
        checks = audit.checks(lake, definition, epoch.number, ledger)
        balanced = balanced and all(holds for holds, _ in checks)
        out.print()
        reports.print_ledger(out, name, epoch.number, ledger, plan.build(definition).equations, checks, last=3)
    return balanced


def _how_to_go_on(out: Console) -> None:
    out.print(
        "\nGo on:\n"
        "  make run                                     the shop sells on where it stopped\n"
        f"  .venv/bin/{command('tables'):<35}what is in the lake\n"
        f"  .venv/bin/{command('ledger', 'top_products'):<35}what became of every event\n"
        f"  .venv/bin/{command('late', 'top_products'):<35}what came too late, and for which hours\n"
        f"  .venv/bin/{command('sql', 'SELECT * FROM gold.shop_totals')}\n"
        "  README.md                                    a pipeline of your own in five minutes",
        highlight=False,
        soft_wrap=True,
    )
