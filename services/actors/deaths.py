"""What an error from an actor says: its own error, the death of its process, or of one that it called."""

import ray

from streamrl.errors import ComponentError, ProcessDiedError, StreamRLError

DIED = (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError, ray.exceptions.OutOfMemoryError)
"""A call met a dead process, or one that is cut off from us; the last is of one that Ray ended, since its node ran out
of memory."""
_GUESSES = "Some common causes include"
"""So begins what Ray says of every process that is gone."""


def cause_of(error: BaseException) -> BaseException:
    """The error that a part raised, without Ray's envelope."""
    if isinstance(error, ray.exceptions.RayTaskError):
        inner = error.cause
        return inner if isinstance(inner, BaseException) else error
    return error


def process_died(error: BaseException) -> bool:
    """Whether the part that was called is dead, or cut off from us: not one that it called in its turn, whose death it
    only passes on."""
    if not isinstance(error, DIED) or isinstance(error, ray.exceptions.RayTaskError):
        return False
    return not _could_not_be_made(error)


def death_in(error: BaseException) -> BaseException | None:
    """Ray's own error where a process died, that of the part that was called or of one that it needs; None for any
    other error. Of an error of ours that was raised from Ray's, that one."""
    if isinstance(error, ProcessDiedError) and error.__cause__ is not None:
        error = error.__cause__
    cause = cause_of(error)
    return cause if isinstance(cause, DIED) and not _could_not_be_made(cause) else None


def node_is_gone(error: BaseException) -> bool:
    """Whether a part that Ray starts again for as long as its node is up cannot be had any more."""
    gone = ray.exceptions.RayActorError | ray.exceptions.ActorUnschedulableError
    return isinstance(error, gone) and not isinstance(error, ray.exceptions.RayTaskError)


def explain_death(component: str, error: BaseException) -> StreamRLError:
    """One typed error for whatever ended a part: its own, the death of its process, or of one that it called."""
    cause = cause_of(error)
    if isinstance(cause, StreamRLError):
        return cause
    if _could_not_be_made(cause):
        return ComponentError(f"{component}: it could not be made: {str(cause).strip().splitlines()[-1]}")
    if isinstance(cause, (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError)):
        who = "its process" if process_died(error) else "the process of a part that it needs"
        return ProcessDiedError(f"{component}: {who} died: {ray_error_text(cause)}")
    if isinstance(cause, ray.exceptions.RaySystemError | ray.exceptions.RpcError):
        return ProcessDiedError(f"{component}: Ray itself failed: {ray_error_text(cause)}")
    return ComponentError(f"{component}: {type(cause).__name__}: {cause}")


def lacked_memory(error: BaseException) -> bool:
    """Whether Ray itself ended the process, since its node ran out of memory."""
    return isinstance(error, ray.exceptions.OutOfMemoryError)


def ray_error_text(error: BaseException) -> str:
    """Ray's message on one line, without what it says of memory in general and of its own logs."""
    text = str(error)
    if lacked_memory(error):
        # What follows is a table of the node's processes and advice.
        text = "; ".join(text.splitlines()[:2])
    return " ".join(text.partition(_GUESSES)[0].split())[:400]


def trace_of(error: BaseException) -> str:
    """The text of an error with the remote traceback, where there is one: of ours that was raised from Ray's, that
    one's."""
    cause = error.__cause__
    return str(cause if isinstance(cause, ray.exceptions.RayError) else error)


def _could_not_be_made(error: BaseException) -> bool:
    return isinstance(error, ray.exceptions.RayActorError) and error.actor_init_failed
