# `make check` is what CI runs.
bin := .venv/bin
python := $(bin)/python

.PHONY: check test lint format bench lock

check: test lint

test:
	./test

lint:
	$(python) -m ruff format --check .
	$(python) -m ruff check .
	$(python) -m mypy
	$(python) $(bin)/lint-imports
	promtool check config --syntax-only deploy/prometheus.yml
	promtool check rules deploy/alerts.yml
	$(python) -m check_jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	$(bin)/hadolint deploy/Dockerfile
	shellcheck run test .ci/run deploy/environment.sh deploy/lock/update
	rm -rf build && $(python) -m hatchling build -t wheel -d build >/dev/null && rm -rf build

format:
	$(python) -m ruff format .
	$(python) -m ruff check --fix .

bench:
	$(python) tests/benchmarks/bench_decide.py
	$(python) tests/benchmarks/bench_path.py
	$(python) tests/benchmarks/bench_cache.py
	$(python) tests/benchmarks/bench_streams.py
	$(python) tests/benchmarks/many_streams.py
	$(python) tests/benchmarks/bench_failover.py
	$(python) tests/benchmarks/bench_outage.py
	$(python) tests/benchmarks/bench_limits.py
	$(python) tests/benchmarks/bench_refusals.py
	$(python) tests/benchmarks/storm.py

lock:
	deploy/lock/update
