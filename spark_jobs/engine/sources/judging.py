"""The verdict on each row of a batch, and the one pass that counts them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from spark_jobs.engine.sources.headers import Headers
from spark_jobs.engine.sources.places import BLOCK, ORDER, partition
from spark_jobs.lake.checkpoints.halts import Choice
from spark_jobs.spec import Ingest, RowRule
from spark_jobs.transforms.content import digest_sql
from spark_jobs.transforms.csv_columns import NAME, NO_WIDER, Wider
from spark_jobs.transforms.rows import (
    RAW,
    REASON,
    Faults,
    Parsing,
    broken,
    faults_of,
    judge,
    parse,
    parsing,
    rules_with,
    skipped,
    typed,
    unread,
)
from spark_jobs.transforms.shape import shape_columns


@dataclass(frozen=True)
class Decision:
    """What a person has decided about a batch.

    Attributes:
        choice: None: nothing.
        set_aside: rules that must not be broken; rows that do are set aside this time.
        unread: whether nothing but their text is asked of the rows, all of which are set aside: the rest may fail.
        decision_id: of the row in `ops.decisions`; None: nothing is set aside by it.
    """

    choice: Choice | None = None
    set_aside: tuple[RowRule, ...] = ()
    unread: bool = False
    decision_id: str | None = None

    @property
    def skips(self) -> bool:
        """Whether all rows are set aside."""
        return self.choice == "skip"


@dataclass(frozen=True)
class KeptRows:
    """Judged rows that are kept in memory.

    Attributes:
        rows: with their verdict.
        counted: groups of them.
    """

    rows: DataFrame
    counted: list[Row]

    def finish(self) -> None:
        """Nothing: they are judged already."""

    def close(self) -> None:
        """Lets go of them."""
        self.rows.unpersist()


@dataclass(frozen=True)
class Judge:
    """Judges and counts the rows of a batch, and of others like it: its columns are built once.

    Attributes:
        spark: the session.
        definition: of the ingest.
        decision: about the batch.
        headers: of its files; None: they have none.
        figures: what its source counts beside.
    """

    spark: SparkSession
    definition: Ingest
    decision: Decision = Decision()
    headers: Headers | None = None
    figures: Sequence[Column] = ()

    @property
    def wider(self) -> Wider:
        """The files that have more columns."""
        return self.headers.wider if self.headers is not None else NO_WIDER

    @cached_property
    def counted_of_good(self) -> dict[str, Column]:
        """Figure -> column whose values in good rows are counted for it."""
        watched = (*rules_with(self.definition, "warn"), *rules_with(self.definition, "fail"))
        broken_rules = {
            f"broken_{index}": F.when(F.col(REASON).isNull() & broken(rule), 1) for index, rule in enumerate(watched)
        }
        return {**broken_rules, **shape_columns(self.definition)}

    def kept(self, raw: DataFrame) -> KeptRows:
        """Judges rows and counts them, in one pass that keeps them in memory.

        Args:
            raw: as its source gives them.
        """
        rows = self.judged(raw).persist()
        try:
            return KeptRows(rows, self.counted(rows))
        except BaseException:
            rows.unpersist()
            raise

    def judged(self, raw: DataFrame) -> DataFrame:
        """Typed rows with their verdict and their order, ready to be kept in memory.

        Args:
            raw: as its source gives them; they keep an order that they have.
        """
        if self.decision.unread:
            found = unread(raw, self.definition)
        else:
            rows = typed(raw, self.definition) if self.definition.source.is_parquet else parse(raw, self._parsing)
            found = judge(rows, self._faults)
            found = skipped(found) if self.decision.skips else found
        return found if ORDER in raw.columns else found.withColumn(ORDER, F.monotonically_increasing_id())

    def counted(self, rows: DataFrame) -> list[Row]:
        """The one action that materialises the batch; its figures are the ledger's.

        Args:
            rows: judged.
        """
        return rows.groupBy(*self._groups).agg(*self._counts).collect()

    @cached_property
    def _parsing(self) -> Parsing:
        return parsing(self.spark, self.definition, self.wider)

    @cached_property
    def _faults(self) -> Faults:
        return faults_of(self.definition, set_aside=self.decision.set_aside)

    @cached_property
    def _groups(self) -> list[Column]:
        is_header = self.headers.is_header if self.headers is not None else F.lit(False)
        return [partition().alias("pid"), F.col(NAME), F.col(BLOCK), F.col(REASON), is_header.alias("is_header")]

    @cached_property
    def _counts(self) -> list[Column]:
        return [
            F.count(F.lit(1)).alias("rows"),
            F.min(ORDER).alias("first"),
            *self.figures,
            *(F.expr(sql) for sql in digest_sql(f"xxhash64({NAME}, {RAW})")),
            *([F.min_by(RAW, ORDER).alias("first_line")] if self.headers is not None else []),
            *(F.count(found).alias(name) for name, found in self.counted_of_good.items()),
        ]
