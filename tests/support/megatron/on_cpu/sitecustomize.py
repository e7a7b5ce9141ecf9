"""For PYTHONPATH, which a run's processes inherit: megatron-core computes on the CPU in all of them.

Python imports this in each process as it starts. It does nothing before a learner looks whether megatron-core is there
and a GPU: the thread that does is the one that computes.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

WAY_IN = "streamrl.learner.megatron.installed"
SHIM = Path(__file__).resolve().parents[1] / "cpu_shim.py"


class _Finder(MetaPathFinder):
    """Stands before the others until the way in is asked for."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != WAY_IN:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _WithShim(spec.loader)
        return spec


class _WithShim(Loader):
    """Imports it, and then has megatron-core compute on the CPU."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        spec = importlib.util.spec_from_file_location("megatron_cpu_shim", SHIM)
        assert spec is not None
        assert spec.loader is not None
        shim = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(shim)
        shim.make_cuda_cpu()


sys.meta_path.insert(0, _Finder())
