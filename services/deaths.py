"""What an error from an actor says: its own error, the death of its process, or of one that it called."""

import ray

from streamrl.errors import ComponentError, ProcessDiedError, StreamRLError


def cause_of(error: BaseException) -> BaseException:
    """The error that a part raised, without Ray's envelope."""
    if isinstance(error, ray.exceptions.RayTaskError):
        inner = error.cause
        return inner if isinstance(inner, BaseException) else error
    return error


def process_died(error: BaseException) -> bool:
    """Whether the part that was called is dead, or cut off from us: not one that it called in its turn, whose death it
    only passes on."""
    dead = ray.exceptions.ActorDiedError | ray.exceptions.ActorUnavailableError
    if not isinstance(error, dead) or isinstance(error, ray.exceptions.RayTaskError):
        return False
    return not error.actor_init_failed


def node_is_gone(error: BaseException) -> bool:
    """Whether a part that Ray starts again for as long as its node is up cannot be had any more."""
    gone = ray.exceptions.RayActorError | ray.exceptions.ActorUnschedulableError
    return isinstance(error, gone) and not isinstance(error, ray.exceptions.RayTaskError)


def explain_death(component: str, error: BaseException) -> StreamRLError:
    """One typed error for whatever ended a part: its own, the death of its process, or of one that it called."""
    cause = cause_of(error)
    if isinstance(cause, StreamRLError):
        return cause
    if isinstance(cause, ray.exceptions.RayActorError) and cause.actor_init_failed:
        return ComponentError(f"{component}: it could not be made: {str(cause).strip().splitlines()[-1]}")
    if isinstance(cause, ray.exceptions.RayActorError):
        who = "its process" if process_died(error) else "the process of a part that it needs"
        return ProcessDiedError(f"{component}: {who} died: {_in_short(cause)}")
    if isinstance(cause, ray.exceptions.RaySystemError | ray.exceptions.RpcError):
        return ProcessDiedError(f"{component}: Ray itself failed: {_in_short(cause)}")
    return ComponentError(f"{component}: {type(cause).__name__}: {cause}")


def trace_of(error: BaseException) -> str:
    """The text of an error with the remote traceback, where there is one: of ours that was raised from Ray's, that
    one's."""
    cause = error.__cause__
    return str(cause if isinstance(cause, ray.exceptions.RayError) else error)


def _in_short(error: BaseException) -> str:
    """Ray's message on one line, without what it says of memory and of its own logs."""
    return " ".join(str(error).split())[:400]
