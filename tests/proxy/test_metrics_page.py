from __future__ import annotations

import pytest

from proxy.metrics import Metrics, render
from proxy.metrics_page import read_page


def test_what_was_counted_is_read_back() -> None:
    metrics = Metrics()
    metrics.cache_lookups_total.labels("hit", "none").inc(3)
    metrics.cache_lookups_total.labels("bypass", "off").inc()
    metrics.cache_stores_total.inc(2)
    page = read_page(render(metrics.snapshot()))
    assert page["cache_lookups_total"] == [
        ({"result": "hit", "reason": "none"}, 3),
        ({"result": "bypass", "reason": "off"}, 1),
    ]
    assert page["cache_stores_total"] == [({}, 2)]
    assert page["open_streams"] == [({}, 0)]


@pytest.mark.parametrize("name", ['a "b"', "back\\slash", "two\nlines", "\\n", "} 5", 'x",y="z', "é"])
def test_labels_come_back_whatever_they_are(name: str) -> None:
    metrics = Metrics()
    metrics.spent_usd_total.labels(name, "proj").inc(1.5)
    assert read_page(render(metrics.snapshot()))["spent_usd_total"] == [({"model": name, "project": "proj"}, 1.5)]


def test_what_is_no_sample_of_ours_is_left_out() -> None:
    assert read_page(b"# HELP tidegate_x y\nother_total 1\ntidegate_x many\ntidegate_x\n\xff\ntidegate_y 2\n") == {
        "y": [({}, 2)]
    }
