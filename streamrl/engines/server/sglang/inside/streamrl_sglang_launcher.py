"""Runs SGLang's server behind a Unix socket, with all of its files in one folder.

SGLang listens on a port only, where every user of the machine reaches routes that load weights, one of them through
pickle; and what its processes tell each other of their load stays in /dev/shm when they are killed. Neither has an
option. Nor has it one to follow grammars while it sends token ids straight to who asked for them; and what it keeps of
routes on a CPU it would show to a GPU's driver. This file runs in the server's environment and imports nothing of
streamrl.
"""

import os
import sys
import tempfile
from typing import Any

import torch
import uvicorn
from sglang.srt.constrained import grammar_manager
from sglang.srt.managers import load_snapshot
from sglang.srt.mem_cache.pool_host.common import ALLOC_MEMORY_FUNCS

SOCKET = "SGLANG_UNIX_SOCKET"


class SocketConfig(uvicorn.Config):
    """Listens on the socket, whatever host and port it is given."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **{**options, "uds": os.environ[SOCKET]})  # type: ignore[arg-type]


class FrozenServer(uvicorn.Server):
    """Leaves what was loaded to no collection of garbage. SGLang would, by way of the port; without it every second
    batch of 512 requests waits 0.7 s for one."""

    async def startup(self, *args: object, **options: object) -> None:
        from sglang.srt.entrypoints import http_server

        await super().startup(*args, **options)  # type: ignore[arg-type]
        await http_server._global_state.tokenizer_manager.freeze_gc()


class GrammarManager(grammar_manager.GrammarManager):
    """Reads the model's tokenizer with the first grammar. SGLang reads none where tokens are all that is sent, and then
    follows no grammar."""

    def process_req_with_grammar(self, req: Any) -> bool:
        asked = req.sampling_params
        if self.grammar_backend is None and any((asked.json_schema, asked.regex, asked.ebnf)):
            self.grammar_backend = self._made()
        return super().process_req_with_grammar(req)

    def _made(self) -> Any:
        from sglang.srt.runtime_context import get_serving
        from transformers import AutoTokenizer

        model = self.scheduler.model_config
        tokenizer = AutoTokenizer.from_pretrained(get_serving().tokenizer_path)
        return grammar_manager.create_grammar_backend(
            self.server_args, tokenizer, model.vocab_size, model.hf_eos_token_id
        )


def host_memory(dims: tuple[int, ...], dtype: torch.dtype, **_: object) -> torch.Tensor:
    """Of a CPU, where no copy to another device is to be fast."""
    return torch.empty(dims, dtype=dtype)


def shm_path_for(_: str) -> str:
    """Where load is told: one server's files are in a folder of its own."""
    return os.path.join(tempfile.gettempdir(), "load")


def nothing(_: object) -> None:
    """In place of what SGLang asks itself for over the port, where nobody answers."""


def main() -> None:
    from sglang.launch_server import run_server
    from sglang.srt.entrypoints import http_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    uvicorn.Config = SocketConfig  # type: ignore[misc]
    uvicorn.Server = FrozenServer  # type: ignore[misc]
    http_server._freeze_gc_after_server_warmup = nothing
    load_plugins()
    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


# Its processes start by importing this file again, under another name: they need it as well.
load_snapshot.shm_path_for = shm_path_for
grammar_manager.GrammarManager = GrammarManager  # type: ignore[misc]
ALLOC_MEMORY_FUNCS["cpu"] = host_memory

if __name__ == "__main__":
    main()
