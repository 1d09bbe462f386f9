"""`tidegate cache warm`: the file, the key, where it is sent, what is printed and the exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_upstream import FakeUpstream, json_reply
from gateway import ROOT, eventually, free_port

from proxy.commands import main

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "sk-warm"
STORED, KNOWN, BYPASSED = (
    json_reply({"choices": []}, headers=[("Cache-Status", f"tidegate; {verdict}")])
    for verdict in ("fwd=miss; stored", "hit; ttl=5", "fwd=bypass; detail=not-deterministic")
)
REFUSED = json_reply({"error": {"message": "n must be at most 4.", "type": "t", "param": "n", "code": None}}, 400)


@pytest.fixture(scope="module")
def server() -> FakeUpstream:
    return FakeUpstream().start()


@pytest.fixture
def gateway(server: FakeUpstream, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeUpstream]:
    """Return a scripted server in the gateway's place, for which the environment holds a key."""
    monkeypatch.setenv("TIDEGATE_API_KEY", KEY)
    server.reset()
    yield server
    server.reset()


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps({"prompt": str(number)}) + "\n\n" for number in range(4)))
    return path


def words(gateway: FakeUpstream, file: Path | str, *more: str) -> list[str]:
    return ["cache", "warm", str(file), "--url", gateway.url, "--concurrency", "1", *more]


def test_what_became_of_the_requests_is_told(
    gateway: FakeUpstream, requests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.script(STORED, KNOWN, BYPASSED, REFUSED)
    assert main(words(gateway, requests)) == 1
    assert capsys.readouterr() == (
        """\
answered     4 of 4
stored       1
there before 1
bypassed     1: not-deterministic 1
failed       1
  line 7: 400: n must be at most 4.
""",
        "",
    )
    assert {each.header("Authorization") for each in gateway.log} == {f"Bearer {KEY}"}
    assert {each.target for each in gateway.log} == {"/v1/completions"}


def test_all_of_it_as_json_and_status_0(
    gateway: FakeUpstream, requests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.default = STORED
    assert main(words(gateway, requests, "--json", "--path", "/v1/chat/completions")) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["requests"], told["done"], told["stored"], told["stopped"]) == (4, 4, 4, None)
    assert {each.target for each in gateway.log} == {"/v1/chat/completions"}


TWO = b'{"prompt": "a"}\n{"prompt": "b"}'


def test_requests_come_from_standard_input_too(gateway: FakeUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.default = STORED
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(TWO)))
    assert main(words(gateway, "-")) == 0
    assert [each.body for each in gateway.log] == [b'{"prompt": "a"}', b'{"prompt": "b"}']


def test_and_from_a_pipe_that_has_a_name(gateway: FakeUpstream, tmp_path: Path) -> None:
    gateway.default = STORED
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["/bin/sh", "-c", f"printf '{TWO.decode()}' > {pipe}"]):
        assert main(words(gateway, pipe)) == 0
    assert [each.body for each in gateway.log] == [b'{"prompt": "a"}', b'{"prompt": "b"}']


def test_the_key_may_stand_in_a_file(gateway: FakeUpstream, requests: Path, tmp_path: Path) -> None:
    gateway.default = STORED
    (tmp_path / "key").write_text("sk-file\n")
    assert main(words(gateway, requests, "--api-key", f"file:{tmp_path / 'key'}")) == 0
    assert gateway.log[0].header("Authorization") == "Bearer sk-file"


def test_without_a_url_it_goes_where_the_configuration_listens(
    gateway: FakeUpstream, requests: Path, tmp_path: Path
) -> None:
    gateway.default = STORED
    config = tmp_path / "t.yaml"
    config.write_text(json.dumps({"listen": f"0.0.0.0:{gateway.port}"}))
    assert main(["cache", "warm", str(requests), "--config", str(config)]) == 0
    assert len(gateway.log) == 4


@pytest.mark.parametrize(
    ("file", "more", "expected"),
    [
        pytest.param(None, ["--api-key", "env:NOT_SET"], "--api-key: the environment variable NOT_SET is", id="no key"),
        pytest.param(None, ["--api-key", "two words"], "--api-key: no key: it must hold printable", id="no such key"),
        pytest.param("/nowhere", [], "/nowhere cannot be read: no such file or directory; give a file", id="no file"),
        pytest.param("/", [], "/ cannot be read: is a directory; give a file with one JSON request", id="a folder"),
        pytest.param("/dev/null", [], "/dev/null has no request; give a file with one JSON request a line", id="empty"),
        pytest.param(
            None, ["--url", f"http://127.0.0.1:{free_port()}"], "no gateway answers at http://127", id="no gateway"
        ),
    ],
)
def test_what_cannot_be_sent_is_one_line_and_status_2(
    gateway: FakeUpstream,
    requests: Path,
    file: str | None,
    more: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(words(gateway, file or requests, *more)) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"tidegate cache warm: {expected}")
    assert (told.err.count("\n"), told.out, gateway.log) == (1, "", [])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param(None, "there is no ./tidegate.yaml; say where the gateway serves with --url", id="no file"),
        pytest.param(
            {"listen": "127.0.0.1:0"}, "listen takes any free port; say which it is with --url", id="any port"
        ),
    ],
)
@pytest.mark.usefixtures("gateway")
def test_where_it_is_to_be_sent_has_to_be_known(
    settings: dict[str, Any] | None,
    expected: str,
    requests: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if settings is not None:
        Path("tidegate.yaml").write_text(json.dumps(settings))
    assert main(["cache", "warm", str(requests)]) == 2
    assert capsys.readouterr().err.startswith(f"tidegate cache warm: {expected}")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param(["--url", "localhost:8080"], "argument --url: 'localhost:8080' is no address; write", id="no url"),
        pytest.param(["--concurrency", "0"], "argument --concurrency: '0' is no number from 1 to 256", id="nobody"),
        pytest.param(["--concurrency", "257"], "argument --concurrency: '257' is no number from 1", id="too many"),
        pytest.param(["--path", "v1/completions"], "argument --path: 'v1/completions' is no path; write", id="no path"),
    ],
)
def test_misuse_is_one_line_and_status_2(
    more: list[str], expected: str, requests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["cache", "warm", str(requests), *more])
    told = capsys.readouterr().err
    assert (ended.value.code, told.count("\n")) == (2, 1)
    assert told.startswith(f"tidegate cache warm: {expected}")


def test_a_gateway_that_goes_away_ends_it_with_what_was_done(
    gateway: FakeUpstream, requests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.script(STORED, json_reply({"error": {"message": "Unknown key."}}, 401))
    assert main(words(gateway, requests, "--json")) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["done"], told["stored"]) == (1, 1)
    assert told["stopped"] == "the gateway does not take the API key (401: Unknown key.)"


def test_ctrl_c_tells_how_far_it_came(gateway: FakeUpstream, requests: Path) -> None:
    gateway.script(STORED, STORED, [("hold", 30), *STORED])
    running = subprocess.Popen(
        [sys.executable, "-m", "proxy", *words(gateway, requests)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert eventually(lambda: len(gateway.log) == 3)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=20)
    assert (running.returncode, err) == (130, "")
    assert out.splitlines()[:2] == ["answered     2 of 4; interrupted", "stored       2"]
    assert eventually(lambda: gateway.log[2].aborted_at is not None)
