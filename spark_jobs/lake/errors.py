"""What goes wrong with a lake, and whether trying again helps."""

import re

from spark_jobs.spec.errors import TidemarkError as TidemarkError  # the root of those below

# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
_S3_ANSWER = re.compile(r"<Error>.*?<Code>(?P<code>[^<]*)</Code>.*?<Message>(?P<message>[^<]*)</Message>", re.DOTALL)

# `deltalake` puts each cause on a line of its own, behind an arrow in red.
_CAUSED_BY = re.compile(r"\s*\n\s*(?:\x1b\[\d+m)?↳(?:\x1b\[0m)?\s*")


class LakeUnavailableError(TidemarkError):
    """The lake cannot be read or written."""

    exit_code = 75


class SourceUnavailableError(TidemarkError):
    """What a pipeline reads cannot be reached; the lake can."""

    exit_code = 75


class MissingTableError(TidemarkError, LookupError):
    """A table that something reads does not exist yet."""


class UnsupportedTableError(LakeUnavailableError):
    """A table needs of its readers or writers what Tidemark, `deltalake` or DuckDB do not implement."""

    exit_code = 1  # to try again does not help


class CheckpointError(TidemarkError):
    """A checkpoint does not fit the definition that would run on it."""


class ConcurrentDriverError(TidemarkError):
    """Another driver plans batches on the same checkpoint."""


class ConflictError(TidemarkError):
    """Another writer changed the same files again and again."""

    exit_code = 75


class LedgerError(TidemarkError):
    """Figures that must agree do not."""


class RepeatedTasksError(TidemarkError):
    """Tasks whose output was lost with a worker have run again, and what they read was counted twice."""

    exit_code = 75


class BootstrapUnfinishedError(TidemarkError):
    """The history of a pipeline is still to be computed in batch."""


class CutNotReachedError(TidemarkError):
    """A stream could still count events of windows whose history is to be computed in batch."""

    exit_code = 75


def first_line(error: BaseException) -> str:
    """What a library says went wrong, without the stack that follows.

    Of what S3 answers, XML on lines of its own, the code and the message are kept: they tell a missing bucket from an
    expired token. Causes on lines of their own are, too.
    """
    text = _CAUSED_BY.sub(": ", str(error))
    line = (text.splitlines() or [repr(error)])[0]
    if not (answer := _S3_ANSWER.search(text)):
        return line
    return f"{line.partition('<?xml')[0].rstrip(': ')}: {answer['code']}: {answer['message'].rstrip('.')}"
