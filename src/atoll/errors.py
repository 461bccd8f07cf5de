"""Everything a user can get wrong, as one small tree of exceptions.

AtollError            one line for a person: what is wrong and what to do; exit code 1
├── ConfigError       the recipe does not say what a run is
│   └── BudgetError   a study's budget does not reach for what is asked
├── DataError         the samples are not there, not readable, or not what the recipe says
├── RunError          the run folder holds something else than what is asked for
│   ├── StaleError    a finished stage was made from other inputs
│   └── CorruptError  a file is not the one that was written
├── CheckpointError   a foreign checkpoint is not what it should be
├── TrainingError     training cannot go on (a loss that is not finite, no space left)
├── StorageError      the object store says no: no bucket, no access, read-only
└── IsolationError    a job reached for data that is not its own
Interrupted           asked to stop; the state is saved; exit code 75: run me again
"""

import errno

EXIT_USER_ERROR = 1
EXIT_RUN_AGAIN = 75
"""EX_TEMPFAIL of sysexits.h: schedulers requeue on it."""


def reason(error: BaseException) -> str:
    """Why something of somebody else's failed, in one line, without advice to load what is not safe."""
    text = str(error).strip() or type(error).__name__
    if "allow_pickle" in text:
        return "it holds Python objects, which are not read: they could run code"
    return text.splitlines()[0]


def is_full(error: OSError) -> bool:
    """Whether a disk has no space left; numpy tells that without the number of the error."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT) or "requested and" in str(error)


def refusal(error: OSError) -> str:
    """Why a place cannot be written to, in a few words."""
    if is_full(error):
        return "no space left"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "it is read-only for you"
    return error.strerror or str(error)


class AtollError(Exception):
    """A mistake with a remedy, told in one line."""


class ConfigError(AtollError):
    """The recipe does not say what a run is."""


class BudgetError(ConfigError):
    """A study's budget does not reach for what is asked."""


class DataError(AtollError):
    """The samples are missing, unreadable or not what the recipe says."""


class RunError(AtollError):
    """The run folder holds something else than what is asked for."""


class StaleError(RunError):
    """A stage was made from other inputs than today's."""


class CorruptError(RunError):
    """A file is not the one that was written."""


class CheckpointError(AtollError):
    """A foreign checkpoint is not what it should be."""


class TrainingError(AtollError):
    """Training cannot go on."""


class StorageError(AtollError):
    """The object store says no."""


class IsolationError(AtollError):
    """A job reached for data that is not its own."""


class Interrupted(Exception):  # noqa: N818 - not an error
    """The job was asked to stop, has saved its state, and can be run again."""
