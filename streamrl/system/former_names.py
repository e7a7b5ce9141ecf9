"""The names `services` and `buffers`, by which a checkout's packages were imported before they were `streamrl.services`
and `streamrl.buffers`: they go on for one release, with a notice.

They are names that others use too. Whoever has a package of that name beside a checkout gets his own.
"""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).relative_to(Path(__file__).parents[2])


def give_way(name: str) -> None:
    """Have the name, under which a package of the checkout is being imported, stand for what it means: a package of the
    user's that lies behind the checkout on the path, else `streamrl.<name>`, whose modules it finds as well."""
    # Of another checkout they would stand for the same, and give way to this one.
    elsewhere = [entry for entry in sys.path if not (Path(entry or ".") / HERE).is_file()]
    if spec := PathFinder.find_spec(name, elsewhere):
        sys.modules[name] = module_from_spec(spec)
        if spec.loader is not None:
            spec.loader.exec_module(sys.modules[name])
        return
    warnings.warn(
        f"the package `{name}` is `streamrl.{name}` now; its old name goes in the next release",
        FutureWarning,
        stacklevel=2,
    )
    sys.meta_path.insert(0, FormerNames(name))
    sys.modules[name] = importlib.import_module(f"streamrl.{name}")


class FormerNames(MetaPathFinder):
    """Finds each module below `name` as the one that it is below `streamrl`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{self._name}."):
            return None
        return ModuleSpec(fullname, _SameModule(f"streamrl.{fullname}"))


class _SameModule(Loader):
    """Gives the module of another name as it is."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # It ran under its own name, and keeps what it says of itself.
        module.__spec__ = self._spec
