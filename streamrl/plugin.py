"""Things that a user picks by name: a built-in one, or `module:attribute` of their own code.

Guarantees that every way to fail ends in one `ConfigError` that says what was asked for, why it could not be
had, and what there is. It imports what the user named and nothing else; it does not touch `sys.path`, and it
does not know what the attribute is good for."""

import difflib
import importlib
import traceback
from collections.abc import Mapping
from types import ModuleType

from streamrl.errors import ConfigError

_MOST_NAMES = 8
_PLACES = "it must be installed, in a folder on PYTHONPATH, or in the folder in which streamrl is called"


def resolve(name: str, *, kind: str, built_in: Mapping[str, object]) -> object:
    """The object behind `name`: an entry of `built_in`, else the attribute that `module:attribute` names.

    `kind` is the word for it in messages, for instance "reward". Raises ConfigError.
    """
    if name in built_in:
        return built_in[name]
    if ":" not in name:
        raise _unknown(name, kind, built_in)
    module_name, _, attribute = name.partition(":")
    if not (module_name and attribute.isidentifier()):
        raise ConfigError(f"{kind} {name!r} is not of the form `module:name`")
    return _attribute_of(_import(module_name, name, kind), attribute, name, kind)


def _import(module_name: str, name: str, kind: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        # A user's module may raise anything while it is imported; all of it is one thing to the user.
        raise ConfigError(
            f"{kind} {name!r}: importing {module_name!r} failed with {type(error).__name__}: {error}; "
            f"{_way_out(error, module_name)}"
        ) from error


def _way_out(error: BaseException, module_name: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        if f"{module_name}.".startswith(f"{error.name}."):
            return _PLACES
        return f"{_place_of(error)} asks for it: install {error.name!r} where streamrl is installed, or mend the import"
    if isinstance(error, SyntaxError):
        return "mend the file"
    return f"{_place_of(error)} raised it; the module must import without errors"


def _place_of(error: BaseException) -> str:
    """The line that raised, without those of Python's own import."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "the module"


def _attribute_of(module: ModuleType, attribute: str, name: str, kind: str) -> object:
    if hasattr(module, attribute):
        return getattr(module, attribute)
    public = [key for key in vars(module) if not key.startswith("_")]
    own = [key for key in public if getattr(vars(module)[key], "__module__", None) == module.__name__]
    near = difflib.get_close_matches(attribute, public, n=1)
    names = ", ".join((own or public)[:_MOST_NAMES]) or "nothing public"
    hint = f"; did you mean {near[0]!r}?" if near else f"; it has {names}"
    file = getattr(module, "__file__", None)
    # Another module of that name, which comes first on the path, may have been found.
    where = f" (it is {file})" if file else ""
    raise ConfigError(f"{kind} {name!r}: the module has no {attribute!r}{hint}{where}")


def _unknown(name: str, kind: str, built_in: Mapping[str, object]) -> ConfigError:
    near = difflib.get_close_matches(name, built_in, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ConfigError(
        f"unknown {kind} {name!r}: {hint}built in: {', '.join(built_in)}; one of your own is written `module:name`"
    )
