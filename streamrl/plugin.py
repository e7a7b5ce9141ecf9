"""Things that a user picks by name: a built-in one, or `module:attribute` of their own code.

Guarantees that every way to fail ends in one `ConfigError` that says what was asked for, why it could not be
had, and what there is. It imports what the user named and nothing else; it does not touch `sys.path`, and it
does not know what the attribute is good for."""

import difflib
import importlib
from collections.abc import Mapping

from streamrl.errors import ConfigError


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


def _import(module_name: str, name: str, kind: str) -> object:
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        # A user's module may raise anything while it is imported; all of it is one thing to the user.
        raise ConfigError(
            f"{kind} {name!r}: importing {module_name!r} failed with {type(error).__name__}: {error}; "
            "the module must be installed or on PYTHONPATH, and import without errors"
        ) from error


def _attribute_of(module: object, attribute: str, name: str, kind: str) -> object:
    if hasattr(module, attribute):
        return getattr(module, attribute)
    public = [key for key in vars(module) if not key.startswith("_")]
    near = difflib.get_close_matches(attribute, public, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(public) or 'nothing public'}"
    raise ConfigError(f"{kind} {name!r}: the module has no {attribute!r}{hint}")


def _unknown(name: str, kind: str, built_in: Mapping[str, object]) -> ConfigError:
    near = difflib.get_close_matches(name, built_in, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ConfigError(
        f"unknown {kind} {name!r}: {hint}built in: {', '.join(built_in)}; one of your own is written `module:name`"
    )
