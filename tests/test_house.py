"""The house rules that no linter knows: where things may be said, and what must have a test or a word in the docs."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.metrics import DECLARED

ROOT = Path(__file__).parent.parent
SOURCES = sorted(p for top in ("policies", "proxy") for p in (ROOT / top).rglob("*.py"))
SCRIPTS = sorted((ROOT / "proxy/store/scripts").glob("*.lua"))


VALUES_ONLY = {
    "policies/catalog.py",
    "policies/policy.py",
    "policies/requests/asked.py",
    "proxy/commands/parsers.py",
    "proxy/exchange.py",
}
"""Modules that declare values and do nothing; whoever uses them is tested."""


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def names_in(path: Path) -> set[str]:
    """Every name and attribute that a module says."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {n.id if isinstance(n, ast.Name) else n.attr for n in nodes if isinstance(n, ast.Name | ast.Attribute)}


@pytest.mark.parametrize(
    ("name", "home"),
    [
        pytest.param("ClientSession", "proxy/upstreams/", id="upstreams are spoken to from one folder"),
        pytest.param("environ", "proxy/config_file.py", id="the environment is read in one file"),
        pytest.param("getenv", "proxy/config_file.py", id="the environment is read in one file, however spelled"),
    ],
)
def test_a_thing_is_said_in_its_home_only(name: str, home: str) -> None:
    strangers = [relative(p) for p in SOURCES if name in names_in(p) and not relative(p).startswith(home)]
    assert strangers == []


def test_every_module_says_what_lives_there() -> None:
    silent = [relative(p) for p in SOURCES if not ast.get_docstring(ast.parse(p.read_text("utf-8")))]
    assert silent == []


def test_every_module_has_its_tests_where_one_looks_for_them() -> None:
    tested = {relative(p).removeprefix("tests/").replace("test_", "") for p in (ROOT / "tests").rglob("test_*.py")}
    untested = {relative(p) for p in SOURCES if p.name not in {"__init__.py", "__main__.py"}} - tested
    assert untested == VALUES_ONLY


def test_no_file_is_called_after_nothing() -> None:
    vague = {"utils", "helpers", "common", "misc", "util", "helper"}
    assert [relative(p) for p in SOURCES if p.stem in vague] == []


def test_tests_have_no_packages_that_would_hide_the_real_ones() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_every_script_says_what_it_promises_takes_and_touches(script: Path) -> None:
    head = script.read_text("utf-8").split("\n\nlocal", 1)[0]
    assert head.startswith("--")
    assert [word for word in ("KEYS", "ARGV", "Returns") if word.lower() not in head.lower()] == []


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_every_metric_stands_in_the_documentation_as_it_is(name: str) -> None:
    family = DECLARED[name]
    labels = ", ".join(f"`{label}`" for label in family.label_names)
    row = f"| `tidegate_{name}` | {family.kind} | {labels} | {family.help} |"
    assert row in (ROOT / "deploy/METRICS.md").read_text("utf-8").splitlines()


def test_dashboard_and_alerts_speak_of_metrics_that_exist() -> None:
    texts = [(ROOT / p).read_text("utf-8") for p in ("deploy/alerts.yml", "deploy/grafana/dashboards/tidegate.json")]
    said = {re.sub(r"_(bucket|count|sum)$", "", m) for m in re.findall(r"tidegate_(\w+)", " ".join(texts))}
    assert said - set(DECLARED) == set()


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        pytest.param("policies/limits.py", "import asyncio", "policies decides", id="the core gets an event loop"),
        pytest.param("policies/usage.py", "import time", "policies decides", id="the core gets a clock"),
        pytest.param("policies/routing.py", "import random", "policies decides", id="the core throws dice"),
        pytest.param("policies/charges.py", "import proxy.errors", "policies decides", id="the core imports the shell"),
        pytest.param("proxy/wire/sse.py", "import asyncio", "proxy.wire is", id="a format gets an event loop"),
        pytest.param("proxy/handler.py", "import redis", "redis is said", id="the handler speaks redis"),
        pytest.param("proxy/relay.py", "import aiohttp", "aiohttp is said", id="the relay speaks aiohttp"),
    ],
)
def test_contracts_fail_on_a_planted_import(tmp_path: Path, module: str, line: str, contract: str) -> None:
    for name in ("policies", "proxy"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    planted = tmp_path / module
    planted.write_text(planted.read_text("utf-8") + f"\n{line}\n", "utf-8")
    program = "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stdout + run.stderr
    assert [row for row in run.stdout.splitlines() if row.startswith(contract) and " BROKEN" in row] != []
