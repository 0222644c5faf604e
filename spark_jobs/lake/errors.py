"""What goes wrong with a lake, and whether trying again helps."""

import re

# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
_S3_ANSWER = re.compile(r"<Error>.*?<Code>(?P<code>[^<]*)</Code>.*?<Message>(?P<message>[^<]*)</Message>", re.DOTALL)


class TidemarkError(Exception):
    """The base of all errors that Tidemark raises on purpose.

    Attributes:
        exit_code: of the command line: 1 needs a person, 75 (EX_TEMPFAIL) may be tried again as it is.
    """

    exit_code = 1

    @property
    def without_values(self) -> str:
        """What it says, less values of events: for messages that also go to people who may not read the tables."""
        return str(self)


class LakeUnavailableError(TidemarkError):
    """The lake cannot be read or written."""

    exit_code = 75


class SourceUnavailableError(TidemarkError):
    """What a pipeline reads cannot be reached; the lake can."""

    exit_code = 75


class MissingTableError(TidemarkError, LookupError):
    """A table that something reads does not exist yet."""


class CheckpointError(TidemarkError):
    """A checkpoint does not fit the definition that would run on it."""


class ConcurrentDriverError(TidemarkError):
    """Another driver plans batches on the same checkpoint."""


class LedgerError(TidemarkError):
    """Figures that must agree do not."""


class RepeatedTasksError(TidemarkError):
    """Tasks whose output was lost with a worker have run again, and what they read was counted twice."""

    exit_code = 75


def first_line(error: BaseException) -> str:
    """What a library says went wrong, without the stack that follows.

    Of what S3 answers, XML on lines of its own, the code and the message are kept: they tell a missing bucket from an
    expired token.
    """
    text = str(error)
    line = (text.splitlines() or [repr(error)])[0]
    if not (answer := _S3_ANSWER.search(text)):
        return line
    return f"{line.partition('<?xml')[0].rstrip(': ')}: {answer['code']}: {answer['message'].rstrip('.')}"
