"""What stopped a pipeline, in words that tell a person what to do."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain

from obstore.exceptions import BaseError

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.checkpoints.spark_log import newest_batch, query_id
from spark_jobs.lake.errors import (
    ConcurrentDriverError,
    LakeUnavailableError,
    MissingTableError,
    SourceUnavailableError,
    TidemarkError,
    first_line,
)
from spark_jobs.lake.store.health import store_is_full, trouble
from spark_jobs.plan.personal import mentioned, personal_with
from spark_jobs.plan.processing import ProcessorError
from spark_jobs.spec import Definition
from spark_jobs.spec.personal import concealed

# Spark tells a driver that lost the race for a log entry in one of these ways.
_FENCED = (
    "CONCURRENT_STREAM_LOG_UPDATE",
    "Multiple streaming queries are concurrently using",
    "Multiple streaming jobs detected",  # the log of the file source, which stands before that of offsets
    "FileAlreadyExistsException",
    "_LEGACY_ERROR_TEMP_2207",
)

# And in one of these ways where the other one began the checkpoint in the midst of its look at an empty one. Where no
# other driver has, they tell of a checkpoint that lost files.
_BEGUN_BY_ANOTHER = ("STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY", "STREAMING_CHECKPOINT_MISSING_METADATA_FILE")

_FULL = ("No space left on device", "Disk quota exceeded")
_SKEWED = "RequestTimeTooSkewed"
# The last three are what `deltalake` says, which has one class of errors for all that it meets.
_UNREACHABLE = (
    "Connection refused",
    "UnknownHostException",
    "InvalidAccessKeyId",
    "AccessDenied",
    "ExpiredToken",
    _SKEWED,
    "Generic S3 error",
    "lacked the necessary privileges",
    "lacked valid authentication credentials",
)

_OF_PROCESSOR = re.compile(rf"^(?:\w+\.)*({ProcessorError.__name__}: .+)$", re.MULTILINE)
_ADVICE = re.compile(r" *If necessary,? set \S+ to \S+ to bypass this error[^.]*\.")
_WHOLE = "Every batch that was committed is whole; the one that it was in runs again at the next start."


class StoppedError(TidemarkError):
    """A pipeline stopped for a reason that Tidemark does not know: Spark's own."""


# Of what a value is never a part: files, networks, memory, names in a plan.
_WITHOUT_VALUES = re.compile(
    r"(IO|OS|File|Path|Disk|Timeout|Interrupted|Connect|Socket|Host|Network|Http|AWS|S3|Access|Permission|Credential"
    r"|Kafka|Topic|Memory|Py4J|Analysis|Concurrent|Commit|StateStore|Class|Executor|Cancel)\w*$"
)

_KIND = re.compile(r"[\w.$]*(Exception|Error|Failure)\w*")


@dataclass(frozen=True)
class Words:
    """What may be said of an error.

    Attributes:
        personal: columns of what a pipeline reads and writes whose values no message quotes; empty: there are none.
        columns: that an error may be told by.
    """

    personal: Collection[str] = ()
    columns: Collection[str] = ()

    @staticmethod
    def about(*definitions: Definition, beside: Collection[Definition] = ()) -> "Words":
        """Of the errors of pipelines.

        Args:
            definitions: of the pipelines.
            beside: others that run with them: what they read may be declared personal there only.
        """
        known = personal_with(*definitions, *beside)
        return Words(
            frozenset(chain.from_iterable(map(known.touching, definitions))),
            frozenset(chain.from_iterable(map(mentioned, definitions))),
        )

    def of(self, error: BaseException) -> str | None:
        """What stands for the words of an error that may quote a value; None: it may be shown as it is.

        Spark quotes the value that it could not cast or compute with, among whatever else an error of the data says.
        """
        if not self.personal:
            return None
        cause, text = root_cause(error).partition(": ")[0], str(error)
        # Py4J's own kind tells nothing: what it met in Java may stand there alone, without a cause.
        from_java = "Caused by: " in text or text.startswith("An error occurred while calling")
        named = from_java and _KIND.fullmatch(cause) is not None
        kind = cause if named else type(error).__name__
        return concealed(kind, str(error), self.columns) if may_quote_values(kind) else None


def may_quote_values(kind: str) -> bool:
    """Whether a value of an event may stand in the words of an error.

    Args:
        kind: its class.
    """
    return _WITHOUT_VALUES.search(kind) is None


def explained(
    error: BaseException, *, pipeline: str, lake: Lake, checkpoint: str, words: Words | None = None
) -> TidemarkError:
    """An error as one of Tidemark's, with its first and its last cause instead of stack traces.

    Args:
        error: what ended the query.
        pipeline: its name.
        lake: where it wrote.
        checkpoint: its checkpoint, relative to the lake.
        words: what may be said of it; None: all.
    """
    # A table that is missing because the whole lake is gone is told as the latter.
    if isinstance(error, TidemarkError) and not (isinstance(error, MissingTableError) and trouble(lake)):
        return error
    text = str(error)
    if _has(text, _FENCED) or (_has(text, _BEGUN_BY_ANOTHER) and _is_whole(lake, pipeline)):
        return ConcurrentDriverError(
            f"pipeline `{pipeline}`: another driver runs on its checkpoint {lake.path(checkpoint)} and planned the "
            "next batch first. This driver has stopped; the other one continues. Nothing was written twice."
        )
    without = (words or Words()).of(error)
    cause = without or root_cause(error)
    reason = "no space is left on its disk, or on that of Spark's temporary files" if _has(text, _FULL) else None
    if reason is None and lake.on_s3 and store_is_full(text):
        reason = "no space is left in its store"
    if reason is None and _SKEWED in text:
        reason = "the clock of this machine is too far from that of the store, which refuses what it is asked"
    reason = reason or trouble(lake)
    unreachable = _has(text, _UNREACHABLE) or isinstance(error, BaseError)
    if reason is None and unreachable and lake.on_s3:
        reason = "it, or what the pipeline reads, cannot be reached"
    if reason is None and unreachable:
        return SourceUnavailableError(
            f"pipeline `{pipeline}`: what it reads cannot be reached ({cause}). {_WHOLE} Check its "
            "address, the credentials and the permissions, then run the same command again."
        )
    if reason is not None:
        return LakeUnavailableError(
            f"pipeline `{pipeline}`: the lake {lake.uri}: {reason} ({cause}). {_WHOLE} Fix that, then run "
            "the same command again."
        )
    if without is not None:
        return StoppedError(f"pipeline `{pipeline}`: {without}. {_WHOLE}")
    headline = f"{type(error).__name__}: {_headline(error)}"
    because = "" if cause in headline else f" Cause: {cause}."
    return StoppedError(f"pipeline `{pipeline}`: {headline}.{because} {_WHOLE}")


def _is_whole(lake: Lake, pipeline: str) -> bool:
    """Whether the checkpoint that just seemed incomplete has both its query's id and a planned batch."""
    try:
        epoch = current_epoch(lake, pipeline)
        if epoch is None or query_id(lake, epoch.folder) is None:
            return False
        return newest_batch(lake, epoch.folder, "offsets") is not None
    except Exception:  # noqa: BLE001 (what stopped the pipeline is told all the same)
        return False


def root_cause(error: BaseException) -> str:
    """The innermost cause that an error names: Java's last `Caused by`, without packages, or its first line.

    Spark advises to switch its checks off, which makes nulls of what cannot be computed: not here.
    """
    return _ADVICE.sub("", _innermost(error)).rstrip(". ")


def _innermost(error: BaseException) -> str:
    # A traceback of Spark's Python worker: what a processor says of itself stands in its last line.
    if (found := _OF_PROCESSOR.search(str(error))) is not None:
        return found[1].rstrip(". ")
    causes = [line.partition("Caused by: ")[2] for line in str(error).splitlines() if "Caused by: " in line]
    if not causes:
        return _headline(error)
    kind, _, said = causes[-1].partition(": ")
    name = kind.rsplit(".", 1)[-1]
    return (f"{name}: {said}" if said else name).rstrip(". ")


def _headline(error: BaseException) -> str:
    lines = str(error).splitlines()
    # Py4J says first which of its objects failed, which helps nobody.
    if len(lines) > 1 and "An error occurred while calling" in lines[0]:
        return lines[1].removeprefix(": ").rstrip(". ")
    return first_line(error).rstrip(". ")


def _has(text: str, marks: tuple[str, ...]) -> bool:
    return any(mark in text for mark in marks)
