"""The root of all errors that Tidemark raises on purpose, and what goes wrong when a definition is written."""


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


class DefinitionError(TidemarkError, ValueError):
    """A pipeline definition that cannot work; the text names the field, the value and the way out."""
