"""The settings of a YAML file, a TOML file, or command lines of Hydra in a shell script, with their lines. Pure.

Nothing is run: of a shell, assignments of words, their use, and whole-number arithmetic are followed, and what else a
value takes makes it unread.
"""

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import yaml

from streamrl.config.loading.toml_lines import SyntaxProblem, parse_toml
from streamrl.config.migration.table import Setting, Unread

MOST_SETTINGS: Final = 5000

_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")
"""What Hydra takes for a number and YAML 1.1 for text: 1e-6."""
_OVERRIDE = re.compile(r"(?:\+{1,2})?([A-Za-z_][\w@-]*(?:[./][\w@-]+)+)=(.*)", re.DOTALL)
"""A key of Hydra has a dot in it."""
_ASSIGNMENT = re.compile(r"(?:export\s+|local\s+|readonly\s+|declare\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^{}]*))?\}|\$(\w+)")
_ARITHMETIC = re.compile(r"\$\(\(((?:[^()]|\([^()]*\))*)\)\)")
_REFERENCE = re.compile(r"\$\{(oc\.select:)?\s*([\w.]+)\s*(?:,(.*))?\}", re.DOTALL)
_OPERATORS: Final[Mapping[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
}


def yaml_settings(text: str, file: str = "") -> list[Setting]:
    """Every leaf of a YAML file, by its dotted name. References to other keys (`${...}`) are followed. Raises
    SyntaxProblem."""
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise SyntaxProblem("aliases of YAML are not read; write the values out", 0)
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise SyntaxProblem("a file of settings is a mapping", 1)
        found = list(_leaves(loader, root, "", file))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = str(getattr(error, "problem", None) or error)
        raise SyntaxProblem(f"not valid YAML: {what}", mark.line + 1 if mark else 0) from None
    except RecursionError:
        raise SyntaxProblem("nested too deeply", 0) from None
    return _resolved(found)


def toml_settings(text: str, file: str = "") -> list[Setting]:
    """Every leaf of a TOML file, by its dotted name; a list of tables is a leaf. Raises SyntaxProblem."""
    tree, lines = parse_toml(text)
    return list(_flat(tree, "", lines, file))


def shell_settings(text: str, file: str = "", home: str = "~") -> list[Setting]:
    """The overrides of Hydra (`key.path=value`) in a shell script; of one that is given twice the later one. home: what
    $HOME stands for. Raises SyntaxProblem."""
    variables = {"HOME": home}
    found: dict[str, Setting] = {}
    for line, words in _commands(text):
        for place, word in enumerate(words):
            if override := _OVERRIDE.fullmatch(word.partition("=(")[2] if "=(" in word.partition(".")[0] else word):
                name, value = override[1].replace("/", "."), _expanded(override[2], variables)
                found[name] = Setting(name, _value(value), line, file)
            elif (assigned := _ASSIGNMENT.fullmatch(word)) and _begins(words[:place]):
                value = _expanded(assigned[2], variables)
                variables.pop(assigned[1], None)
                if isinstance(value, str):
                    variables[assigned[1]] = value
    return list(found.values())


def _begins(before: list[str]) -> bool:
    """Whether a word after these is still an assignment, and no argument of a command."""
    return all(word in ("export", "local", "readonly", "declare") or _ASSIGNMENT.fullmatch(word) for word in before)


def _commands(text: str) -> Iterator[tuple[int, list[str]]]:
    """The words of each line with its number; a quote that goes over lines makes one of them."""
    pending, first = "", 0
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        first = first if pending else number
        pending = f"{pending}\n{line}" if pending else line
        stripped = pending.rstrip()
        words = _words(stripped[:-1] if stripped.endswith("\\") else stripped)
        if words is not None:
            yield first, words
            pending = ""
    if pending:
        raise SyntaxProblem("a quote is not closed", first)


def _words(line: str) -> list[str] | None:
    """None where a quote is open. Arithmetic and defaults stay in one word."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\x00{len(kept) - 1}\x00"

    try:
        words = shlex.split(_ARITHMETIC.sub(keep, line), comments=True)
    except ValueError:
        return None
    return [re.sub(r"\x00(\d+)\x00", lambda found: kept[int(found[1])], word) for word in words]


def _expanded(text: str, variables: Mapping[str, str]) -> str | Unread:
    """The text with the variables that are known; unread where it takes more of a shell than that."""
    unknown: list[str] = []

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        if name in variables:
            return variables[name]
        if found[2] is not None:
            return found[2]
        unknown.append(name)
        return found[0]

    def result(found: re.Match[str]) -> str:
        number = _arithmetic(re.sub(r"[A-Za-z_]\w*", lambda name: variables.get(name[0], name[0]), found[1]))
        if number is None:
            unknown.append(found[1])
        return str(number)

    for _ in range(4):  # a default may itself be a variable
        text = _ARITHMETIC.sub(result, _VARIABLE.sub(value, text))
    return Unread(text) if unknown or "$(" in text or "`" in text else text


def _arithmetic(text: str) -> int | None:
    """The value of whole numbers with + - * /; None for anything else."""
    try:
        return _number(ast.parse(text.replace("$", "").strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and (compute := _OPERATORS.get(type(node.op))):
        return compute(_number(node.left), _number(node.right))
    raise ValueError("no arithmetic of whole numbers")


def _value(text: str | Unread) -> Any:
    """A value of Hydra's command line: a word, a number, a list."""
    if isinstance(text, Unread):
        return text
    try:
        loaded = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return _numbers(loaded) if isinstance(loaded, list | str | int | float | bool | dict | None) else text


def _numbers(value: Any) -> Any:
    if isinstance(value, str) and _FLOAT.fullmatch(value):
        return float(value)
    return [_numbers(item) for item in value] if isinstance(value, list) else value


def _leaves(loader: yaml.SafeLoader, node: yaml.MappingNode, prefix: str, file: str) -> Iterator[Setting]:
    for key_node, value_node in node.value:
        key = str(loader.construct_object(key_node, deep=True))
        name = f"{prefix}.{key}" if prefix else key
        if key == "_target_":
            continue  # Hydra's own: the class that it makes of the mapping
        if isinstance(value_node, yaml.MappingNode) and value_node.value:
            yield from _leaves(loader, value_node, name, file)
        else:
            value = loader.construct_object(value_node, deep=True)
            yield Setting(name, _numbers(value), key_node.start_mark.line + 1, file)


def _resolved(settings: list[Setting]) -> list[Setting]:
    """With the values of other keys in the place of references to them; what refers to nothing here is not said."""
    if len(settings) > MOST_SETTINGS:
        raise SyntaxProblem(f"more than {MOST_SETTINGS} settings", settings[MOST_SETTINGS].line)
    values = {setting.name: setting.value for setting in settings}
    resolved = []
    for setting in settings:
        value = setting.value
        for _ in range(8):  # references to references
            if not (isinstance(value, str) and "${" in value):
                break
            value = _referred(value, values)
        if not (isinstance(value, str) and "${" in value) and value is not _NOTHING:
            resolved.append(Setting(setting.name, value, setting.line, setting.file))
    return resolved


_NOTHING: Final = object()


def _referred(text: str, values: Mapping[str, Any]) -> Any:
    whole = _REFERENCE.fullmatch(text.strip())
    if whole is not None:
        default = _NOTHING if whole[3] is None else _value(whole[3].strip())
        return values.get(whole[2], default)
    return _REFERENCE.sub(lambda found: str(values.get(found[2], found[3] or "")), text)


def _flat(tree: Mapping[str, Any], prefix: str, lines: Mapping[str, int], file: str) -> Iterator[Setting]:
    for key, value in tree.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, Mapping) and value:
            yield from _flat(value, name, lines, file)
        else:
            yield Setting(name, value, _line(name, lines), file)


def _line(name: str, lines: Mapping[str, int]) -> int:
    """Of the key, else of the table around it."""
    while name not in lines and "." in name:
        name = name.rpartition(".")[0]
    return lines.get(name, 0)
