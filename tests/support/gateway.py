"""A gateway as its operator starts it: `python -m proxy run` on free ports, with a configuration written for a test.

Knows the command line, the ready line and the files of `data_dir`; nothing of the gateway's insides.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
ADMIN_KEY = "admin-key-of-the-tests"
PROJECT = "proj_tests"
_READY = re.compile(r"listening on (http://\S+?),? +control plane on (http://\S+)")
_START_SECONDS = 30.0
_STOP_SECONDS = 40.0
_POLL_SECONDS = 0.02

Settings = dict[str, Any]
"""A configuration file's content, or a part of it: whatever YAML can say."""


def sha256(text: str) -> str:
    """Return a key's hash as configurations carry it."""
    return hashlib.sha256(text.encode()).hexdigest()


def key_of(user: str) -> str:
    """Return the API key that `settings` gives a user."""
    return f"user-key-{user}"


def bearer(user: str) -> list[tuple[str, str]]:
    """Return the headers of a user's JSON request."""
    return [("Authorization", f"Bearer {key_of(user)}"), ("Content-Type", "application/json")]


def settings(
    base_url: str,
    *,
    users: Mapping[str, Settings],
    models: Mapping[str, Settings] | None = None,
    key_models: Mapping[str, Sequence[str]] | None = None,
    **more: Any,  # noqa: ANN401  further members of the file
) -> Settings:
    """Write a configuration with one upstream, one project, and for each user a key and a policy of their own.

    `users` are policies by user; `models` their settings by name, `m` alone when absent; `key_models` the models
    that a user's key is held to; `more` are further members of the file, which replace those made here.
    """
    served = {"m": {}} if models is None else models
    return {
        "admin_keys": [{"name": "tests", "sha256": sha256(ADMIN_KEY)}],
        "upstreams": {"only": {"kind": "openai", "base_url": base_url}},
        "models": {
            name: {"deployments": [{"upstream": "only"}], "context_window": 1_000_000, "max_output_tokens": 64, **model}
            for name, model in served.items()
        },
        "policies": {f"policy-{user}": policy for user, policy in users.items()},
        "projects": [{"id": PROJECT}],
        "users": [{"id": user, "policy": f"policy-{user}"} for user in users],
        "keys": [
            {
                "id": f"key-{user}",
                "project": PROJECT,
                "user": user,
                "sha256": sha256(key_of(user)),
                "models": list((key_models or {}).get(user, ["*"])),
            }
            for user in users
        ],
        **more,
    }


def eventually(condition: Callable[[], Any], *, seconds: float = 10.0) -> Any:  # noqa: ANN401  whatever it returns
    """Return the condition's first true value, or its last when the time is over."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
    return found


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that ended and was not yet reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


def children_of(pid: int) -> list[int]:
    """Return the pids of a process's living children."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == pid and is_alive(int(entry.name)):
                found.append(int(entry.name))
    return sorted(found)


def descendants_of(pid: int) -> list[int]:
    """Return the pids of all living processes below one."""
    below = []
    for child in children_of(pid):
        below += [child, *descendants_of(child)]
    return below


def command_line(pid: int) -> list[str]:
    """Return a process's arguments, none when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def free_port() -> int:
    """Return a loopback port that nobody uses just now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


class CommandFailed(Exception):  # noqa: N818  it says what happened
    """The command ended before it was ready; the message is what it printed."""


class Command:
    """One `python -m proxy …` under way; everything it prints goes to files in `folder`.

    After `with`, whatever still runs of it is killed.
    """

    def __init__(self, folder: Path, arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.output_path, self.log_path = folder / "stdout.txt", folder / "stderr.txt"
        self._arguments = [sys.executable, "-m", "proxy", *arguments]
        self._environ = {**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})}
        self.process: subprocess.Popen[bytes]
        self.base_url = self.admin_url = ""
        self._family: set[int] = set()

    def __enter__(self) -> Self:
        """Start it and wait for its ready line. Raises CommandFailed."""
        with self.output_path.open("wb") as output, self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                self._arguments, cwd=self.folder, env=self._environ, stdin=subprocess.DEVNULL, stdout=output, stderr=log
            )
        try:
            self.base_url, self.admin_url = self._wait_until_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End it, and kill it if it does not; none of its processes may outlive it."""
        if self.process.poll() is None:
            self._family |= set(descendants_of(self.pid))
            try:
                self.terminate()
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        eventually(lambda: not any(map(is_alive, self._family)))
        assert not [command_line(pid) for pid in self._family if is_alive(pid)]

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        return self.process.pid

    @property
    def output(self) -> str:
        """Standard output so far."""
        return self.output_path.read_text(errors="replace")

    @property
    def log(self) -> str:
        """Standard error so far."""
        return self.log_path.read_text(errors="replace")

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return [pid for pid in children_of(self.pid) if "proxy.worker" in " ".join(command_line(pid))]

    def terminate(self) -> int:
        """Ask it to end (SIGTERM), wait, and return its exit status."""
        self.process.terminate()
        return self.process.wait(_STOP_SECONDS)

    def kill(self) -> None:
        """Kill the supervisor at once (SIGKILL)."""
        self._family |= set(descendants_of(self.pid))
        self.process.kill()
        self.process.wait()

    def kill_tree(self) -> None:
        """Kill the supervisor and everything below it at once (SIGKILL), as when a machine dies."""
        self.signal_tree(signal.SIGKILL)
        self.process.wait()
        eventually(lambda: not any(map(is_alive, self._family)))

    def signal_tree(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor and everything below it."""
        self._family |= set(descendants_of(self.pid))
        for pid in (self.pid, *self._family):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _wait_until_ready(self) -> tuple[str, str]:
        eventually(lambda: _READY.search(self.output) or self.process.poll() is not None, seconds=_START_SECONDS)
        found = _READY.search(self.output)
        if found is None:
            raise CommandFailed(f"exit status {self.process.poll()}\n{self.output}\n{self.log}")
        return found[1].rstrip("/,."), found[2].rstrip("/,.")


class Gateway(Command):
    """`tidegate run` with a configuration file in `folder` and, unless `settings` say otherwise, free ports."""

    def __init__(self, folder: Path, settings: Settings, environ: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.settings = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0", "data_dir": "data", **settings}
        self.config_path = folder / "tidegate.yaml"
        self.config_path.write_text(json.dumps(self.settings, indent=1))  # YAML holds JSON
        super().__init__(folder, ["run", "--config", str(self.config_path)], environ)

    @property
    def data_dir(self) -> Path:
        """Where the gateway keeps its files."""
        return self.folder / self.settings["data_dir"]

    def records(self) -> list[dict[str, Any]]:
        """Return the usage records that have arrived in the ledger file so far."""
        try:
            text = (self.data_dir / "usage.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def wait_for_records(self, count: int, *, seconds: float = 15.0) -> list[dict[str, Any]]:
        """Return the usage records once there are at least `count` of them, or when the time is over."""
        eventually(lambda: len(self.records()) >= count, seconds=seconds)
        return self.records()
