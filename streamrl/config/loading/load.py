"""Reading a configuration: files, overlays and overrides in, a `Config` or every problem at once out.

Nothing heavy is imported and nothing is started. A problem names the file and line, the key, what was given,
what is allowed, and the nearest name that is valid.
"""

from collections.abc import Mapping, Sequence
from os import PathLike, fspath

from streamrl.config.estimates.capacity import check_capacity
from streamrl.config.estimates.model_of import run_facts
from streamrl.config.estimates.sizes import longest_prompt
from streamrl.config.loading.command_line import override_layer, parse_arguments
from streamrl.config.loading.convert import convert
from streamrl.config.loading.layers import Layer, Sources
from streamrl.config.loading.shipped import find_configuration, unknown_name
from streamrl.config.loading.toml_lines import SyntaxProblem, parse_toml
from streamrl.config.problems import ConfigProblems, Problem
from streamrl.config.rules.run import check_rules
from streamrl.config.schema.run import Config

AnyPath = str | PathLike[str]


def load(path: AnyPath, *overlays: AnyPath, overrides: Mapping[str, str] | None = None) -> Config:
    """The configuration in `path`, with `overlays` and then `overrides` (dotted key to text) on top.

    Tables merge key by key, lists are replaced whole, later wins. Raises ConfigProblems (a ConfigError) with
    every problem.
    """
    return _load([path, *overlays], overrides or {}, [])


def load_args(path: AnyPath, rest: Sequence[str] = ()) -> Config:
    """As `load`, with overlays and overrides as the command line spells them: `@ b.toml --learner.steps
    10`."""
    arguments = parse_arguments(rest)
    return _load([path, *arguments.overlays], arguments.overrides, list(arguments.problems))


def _load(paths: Sequence[AnyPath], overrides: Mapping[str, str], problems: list[Problem]) -> Config:
    layers = [layer for path in paths if (layer := _read_layer(fspath(path), problems)) is not None]
    if len(layers) < len(paths):
        raise ConfigProblems(tuple(problems))  # without a file the rest cannot be judged
    layer, spelling = override_layer(overrides)
    sources = Sources([*layers, layer])
    config, found = convert(sources.merged())
    problems += [*spelling, *found, *_between_keys(config, found)]
    if problems:
        raise ConfigProblems(tuple(sources.in_order(map(sources.locate, problems))))
    return config


def _between_keys(config: Config, found: Sequence[Problem]) -> list[Problem]:
    """Problems between keys, but for those that hang on a key that is wrong by itself: its value is a
    stand-in."""
    model, problems = run_facts(config)
    problems += [*check_rules(config), *check_capacity(config, model, longest_prompt(config))]
    wrong = {problem.key for problem in found}
    return [problem for problem in problems if not _hangs_on(problem, wrong)]


def _hangs_on(problem: Problem, wrong: set[str]) -> bool:
    keys = {problem.key, *problem.involves}
    return any(f"{key}.".startswith(f"{bad}.") or bad.startswith(f"{key}.") for key in keys for bad in wrong)


def _read_layer(file: str, problems: list[Problem]) -> Layer | None:
    try:
        tree, lines = parse_toml(find_configuration(file).read_bytes().decode("utf-8-sig"))
    except OSError as error:
        problems.append(Problem(key="", what=f"cannot read it: {error.strerror}{unknown_name(file)}", file=file))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        problems.append(Problem(key="", what="not UTF-8 text", file=file, line=line))
    except SyntaxProblem as error:
        problems.append(Problem(key="", what=error.what, file=file, line=error.line))
    else:
        return Layer(file, tree, lines)
    return None
