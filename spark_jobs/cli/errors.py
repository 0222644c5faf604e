"""What the command shows of an error: one of Tidemark's own, or what it foresees of others."""

from obstore.exceptions import BaseError
from pydantic import ValidationError

from spark_jobs.lake.errors import LakeUnavailableError, first_line
from spark_jobs.lake.settings import Retention, S3Settings, Settings
from spark_jobs.lake.store.health import store_is_full
from spark_jobs.spec.errors import TidemarkError

_PREFIXES = {Settings.__name__: "TIDEMARK", Retention.__name__: "TIDEMARK_KEEP", S3Settings.__name__: "AWS"}


class SettingError(TidemarkError):
    """A variable of the environment has a value that cannot be used."""


def shown(error: Exception) -> tuple[TidemarkError, ...]:
    """What a person is told, without a traceback; nothing where nobody has foreseen the error.

    Args:
        error: what ended the command.
    """
    match error:
        case TidemarkError():
            return (error,)
        case ValidationError() if error.title in _PREFIXES:
            return tuple(
                SettingError(
                    f"{_PREFIXES[error.title]}_{str(wrong['loc'][0]).upper()}: "
                    f"{wrong['msg'].removeprefix('Value error, ')}, got {wrong['input']!r}. Nothing was done."
                )
                for wrong in error.errors()
            )
        case BaseError() if store_is_full(str(error)):
            return (
                LakeUnavailableError(
                    f"no space is left in the lake's store: {first_line(error)}. What was written before stays. Make "
                    "room there, then run the same command again."
                ),
            )
        case BaseError():
            return (
                LakeUnavailableError(
                    f"the lake's store cannot be used: {first_line(error)}. What was written before stays. Check its "
                    "address (AWS_ENDPOINT_URL), its region (AWS_REGION), the credentials and their permissions, then "
                    "run the same command again."
                ),
            )
        case OSError():
            return (
                LakeUnavailableError(
                    f"{error}. What was written before stays. Check that the place exists, may be written and has room."
                ),
            )
    return ()
