"""What the model server is told to do; that it does it is seen in test_model_process."""

from __future__ import annotations

import sys

import xllamacpp

from proxy.demo.model_server import CONTEXT_TOKENS, MODEL_PACKAGE, SLOTS, find_model_file, model_parameters


def test_the_model_is_found_without_importing_the_package_around_it() -> None:
    found = find_model_file()
    assert found is not None
    assert found.suffix == ".gguf"
    assert found.exists()
    assert MODEL_PACKAGE not in sys.modules


def test_it_listens_on_loopback_only_and_computes_on_one_thread() -> None:
    found = find_model_file()
    assert found is not None
    parameters = model_parameters(xllamacpp, found)
    assert parameters.hostnames == ["127.0.0.1"]
    assert parameters.port == 0
    assert parameters.cpuparams.n_threads == parameters.cpuparams_batch.n_threads == 1
    assert parameters.n_ctx == SLOTS * CONTEXT_TOKENS
    assert not parameters.cache_prompt
