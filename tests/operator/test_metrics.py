"""Nothing is exported of pools that are gone, or that another operator looks after."""

from rrq_operator.metrics import Metrics


def build_metrics() -> Metrics:
    metrics = Metrics()
    for name in ("gone", "here"):
        metrics.set_pool(("test", name), {"due": 1.0})
        metrics.decisions.labels("test", name, "Backlog").inc()
    return metrics


def test_a_pool_that_goes_takes_all_its_series_along() -> None:
    metrics = build_metrics()
    metrics.drop_pool(("test", "gone"))
    metrics.drop_pool(("test", "never there"))
    text = metrics.expose().decode()
    assert 'pool="gone"' not in text
    assert text.count('pool="here"') == 3


def test_the_end_of_a_term_takes_the_series_of_all_pools_along() -> None:
    metrics = build_metrics()
    metrics.drop_pools()
    assert "pool=" not in metrics.expose().decode()
