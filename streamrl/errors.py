"""The errors that streamrl raises on purpose.

    StreamRLError
    +-- ConfigError          the configuration is wrong                       exit code 2
    |   +-- RequestError     a gateway refuses what a client asks for
    +-- ResourceError        memory, disk, port, machine: not enough of it    exit code 3
    +-- ComponentError       a part of the running system failed              exit code 4
    |   +-- DeadlineError    a wait passed its deadline
    |   +-- ProcessDiedError a process of ours ended without a word; starting it again may help
    |   +-- StartAgainError  memory does not have what the disk has; from there the system can go on
    |   +-- FencedError      a replaced part tried to act
    |   +-- BatchDependenceError   a result depends on what shares its batch
    |   +-- NonFiniteError   a number that must be finite is not
    |   +-- DroppedError     a submitted prompt will not be trained
    +-- DataError            bytes on disk or on the wire are not what they claim to be   exit code 4
    +-- RunFolderError       the run folder is in use, of another schema, or finished     exit code 2

Each also inherits the nearest built-in type, and each survives pickling (its `args` rebuild it), since Ray
carries errors between processes.
"""


class StreamRLError(Exception):
    """Root of the tree. `exit_code` is what `streamrl` returns when this error ends a command.

    Example:
        >>> import pickle
        >>> try:
        ...     raise ConfigError("learner.steps is -1; it is at least 1")
        ... except StreamRLError as error:
        ...     print(error, error.exit_code, repr(pickle.loads(pickle.dumps(error))))
        learner.steps is -1; it is at least 1 2 ConfigError('learner.steps is -1; it is at least 1')
    """

    exit_code = 4


class ConfigError(StreamRLError, ValueError):
    """The configuration, or a value that a user gave, is wrong."""

    exit_code = 2


class RequestError(ConfigError):
    """A gateway refuses what a client asks for, and would again. code: the gateway's, which stays what it is.

    Example:
        >>> print(RequestError("temperature is -1; it is at least 0", "invalid_sampling"))
        temperature is -1; it is at least 0 (invalid_sampling)
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message, code)
        self.code = code

    def __str__(self) -> str:
        return f"{self.args[0]} ({self.code})" if self.code else str(self.args[0])


class RunFolderError(StreamRLError, ValueError):
    """The run folder cannot be used as it is: in use, of another schema, or of another configuration."""

    exit_code = 2


class ResourceError(StreamRLError, OSError):
    """The machine has too little of something: memory, disk, a port."""

    exit_code = 3


class ComponentError(StreamRLError, RuntimeError):
    """A part of the running system failed. The message names component, phase and cause."""


class DeadlineError(ComponentError, TimeoutError):
    """A wait passed its deadline. The message names who waited, for what, and how long."""


class ProcessDiedError(ComponentError):
    """The process of a part ended without an error of its own: killed, crashed, or its machine is gone."""


class StartAgainError(ComponentError):
    """A part needs what it has let go from memory and what lies on disk: the system must start again from there."""


class FencedError(ComponentError):
    """A part that was replaced, or lost its epoch, tried to act."""


class BatchDependenceError(ComponentError):
    """On this machine a request's result depends on what shares its batch, whatever multiplies its rows."""


class NonFiniteError(ComponentError):
    """A log-probability, loss, gradient norm or weight is NaN or infinite."""


class DroppedError(ComponentError):
    """A submitted prompt will not be trained. reason: the run's word for why, such as "cancelled".

    Example:
        >>> print(DroppedError("a-1", "cancelled"))
        prompt 'a-1' will not be trained: cancelled
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"prompt {self.key!r} will not be trained: {self.reason}"


class DataError(StreamRLError, ValueError):
    """Bytes on disk or on the wire are damaged, foreign, or of a newer schema."""
