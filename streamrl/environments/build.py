"""From `[environment]` to what makes the object of an episode."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any, Final

from streamrl.config.known import PYTHON_TOOL
from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.environments.calculator import calculator
from streamrl.environments.python_tool import python_tool
from streamrl.environments.schemas import tool_schemas
from streamrl.errors import ConfigError
from streamrl.plugin import resolve

TOOLS: Final = "tools"
_ADAPTERS: Final = "streamrl.environments.adapters"
BUILT_IN: Final[Mapping[str, str]] = {
    TOOLS: "streamrl.environments.tool_environment:ToolEnvironment",
    "gymnasium": f"{_ADAPTERS}.gymnasium:GymnasiumEnvironment",
    "nemo_gym": f"{_ADAPTERS}.nemo_gym:NemoGymEnvironment",
    "openenv": f"{_ADAPTERS}.openenv:OpenEnvironment",
    "reasoning_gym": f"{_ADAPTERS}.reasoning_gym:ReasoningGymEnvironment",
    "word_chain": "streamrl.environments.word_chain:WordChain",
    "verifiers": f"{_ADAPTERS}.verifiers:VerifiersEnvironment",
}
"""Each is imported when it is asked for."""
BUILT_IN_TOOLS: Final[Mapping[str, Callable[..., Any]]] = {"calculator": calculator}
_MADE_WITH_SANDBOX: Final[Mapping[str, Callable[[SandboxConfig], Callable[..., Any]]]] = {PYTHON_TOOL: python_tool}
_USUAL_SANDBOX: Final = SandboxConfig()


def environment_factory(
    name: str, options: Mapping[str, Any], tools: Sequence[str], sandbox: SandboxConfig = _USUAL_SANDBOX
) -> Callable[[], Any]:
    """A function that makes an environment for each episode.

    tools: names of built-in tools, or `module:function`, for the environment `tools`. sandbox: where the tool `python`
    runs programs; it is tried out when the tool is asked for. Raises ConfigError for what cannot be had, and for a
    class that does not take the options or is no environment; one is made to see.
    """
    found = resolve(name, kind="environment", built_in=BUILT_IN)
    make = resolve(found, kind="environment", built_in={}) if isinstance(found, str) else found
    if not callable(make):
        raise ConfigError(f"environment {name!r} is a {type(make).__name__}, not a class")
    given = dict(options)
    if name == TOOLS:
        given["tools"] = [find_tool(one, sandbox) for one in tools]

    def factory() -> Any:
        return make(**given)

    _check_options(make, name, given)
    _check(factory, name, given)
    return factory


def _check_options(make: Callable[..., Any], name: str, given: Mapping[str, Any]) -> None:
    """Refuse an option that the class does not take, and a call without one that it needs."""
    try:
        parameters = list(signature(make).parameters.values())
    except (TypeError, ValueError):
        return  # of a class in another language, which says for itself what it does not take
    names = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    takes = f"it takes {', '.join(names) or 'none'}"
    for option in () if takes_any else given:
        if option not in names:
            near = difflib.get_close_matches(option, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"environment.options: environment {name!r} takes no option {option!r}; {takes}{hint}")
    needed = [one.name for one in parameters if one.name in names and one.default is one.empty]
    lacking = [option for option in needed if option not in given]
    if lacking:
        what = f"environment {name!r} cannot be made without {', '.join(map(repr, lacking))}; {takes}"
        raise ConfigError(f"environment.options: {what}")


def _check(factory: Callable[[], Any], name: str, options: Mapping[str, Any]) -> None:
    try:
        made = factory()
    except ConfigError:
        raise
    except Exception as error:  # a user's constructor may raise anything
        shown = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise ConfigError(f"environment {name!r}: {name}({shown}) raised {type(error).__name__}: {error}") from error
    missing = [method for method in ("reset", "step") if not callable(getattr(made, method, None))]
    if missing:
        raise ConfigError(
            f"environment {name!r}: a {type(made).__name__} is no environment, it lacks {' and '.join(missing)}; "
            "see streamrl.environments.Environment"
        )
    for method, given in (("reset", "the row"), ("step", "the message of the model")):
        _check_call(getattr(made, method), f"environment {name!r}: {method}", given)
    try:
        tool_schemas(getattr(made, "tools", None))
    except ConfigError as error:
        raise ConfigError(f"environment {name!r}: {error}") from error


def _check_call(method: Callable[..., Any], what: str, given: str) -> None:
    """Refuse a method that cannot be called with one value."""
    try:
        takes = signature(method)
    except (TypeError, ValueError):
        return  # of a class in another language
    try:
        takes.bind({})
    except TypeError as error:
        raise ConfigError(f"{what}{takes} is called with one value, {given}: {error}") from error


def find_tool(name: str, sandbox: SandboxConfig = _USUAL_SANDBOX) -> Callable[..., Any]:
    """The function that a model calls: a built-in one, or `module:function`. Raises ConfigError."""
    if name in _MADE_WITH_SANDBOX:
        return _MADE_WITH_SANDBOX[name](sandbox)
    found = resolve(name, kind="tool", built_in=BUILT_IN_TOOLS)
    if not callable(found):
        raise ConfigError(f"tool {name!r} is a {type(found).__name__}, not a function")
    return found
