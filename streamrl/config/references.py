"""References to code of the user's own, `module:name`: what is one, and what was meant by a name that is none. Pure."""

import re

_REFERENCE = re.compile(r"(?!.*\.py:)[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_FILE = re.compile(r"(?P<file>[^:]+)\.py(::?(?P<name>[A-Za-z_]\w*))?")
_DOTTED = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)\.(?P<name>[A-Za-z_]\w*)")


def is_reference(name: str) -> bool:
    return _REFERENCE.fullmatch(name) is not None


def meant_reference(name: str, usual: str) -> str:
    """The reference that somebody means who names a file, or a name in a module by dots; "" for another name. usual:
    what is meant where only a file is named.

    Example:
        >>> meant_reference("rewards/short.py:score", "reward"), meant_reference("rewards.short.score", "reward")
        ('rewards.short:score', 'rewards.short:score')
        >>> meant_reference("/home/me/short.py", "reward"), meant_reference("exact-match", "reward")
        ('short:reward', '')
    """
    if found := _FILE.fullmatch(name):
        file = found["file"].removeprefix("./")
        # Only what lies below the folder of the call is a module of a package there.
        module = file.rpartition("/")[2] if file.startswith(("/", "~", "..")) else file.replace("/", ".")
        meant = f"{module}:{found['name'] or usual}"
    else:
        dotted = _DOTTED.fullmatch(name)
        meant = f"{dotted['module']}:{dotted['name']}" if dotted else ""
    return meant if is_reference(meant) else ""
