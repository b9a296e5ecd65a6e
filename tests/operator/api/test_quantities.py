"""CPUs as Kubernetes writes them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from rrq_operator.api.field_types import Quantity
from rrq_operator.api.spec import parse_cpus


def test_cpus_are_read_as_kubernetes_reads_them() -> None:
    written: dict[int | str, float] = {
        2: 2.0,
        "2": 2.0,
        "1.5": 1.5,
        ".5": 0.5,
        "5.": 5.0,
        "500m": 0.5,
        "250000u": 0.25,
        "2000000000n": 2.0,
        "2e1": 20.0,
        "1E+1": 10.0,
        "1500e-3": 1.5,
    }
    assert {quantity: parse_cpus(quantity) for quantity in written} == written
    for quantity in written:
        assert TypeAdapter(Quantity).validate_python(quantity) == quantity


@pytest.mark.parametrize(
    "quantity",
    ["", "two", "nan", "-1", -1, "1_000", " 2", "2\n", "m", "2x", "2k", "2Gi", "1E", "1e999", "9" * 400],
)
def test_what_is_no_number_of_cpus_is_refused_with_an_example(quantity: int | str) -> None:
    with pytest.raises(ValueError, match=r'is not understood\. Write CPUs as 2, "1\.5" or "500m"\.'):
        parse_cpus(quantity)


@given(st.integers(0, 10**6))
@settings(max_examples=50)
def test_thousandths_are_the_same_number_as_a_fraction(thousandths: int) -> None:
    assert parse_cpus(f"{thousandths}m") == parse_cpus(f"{thousandths // 1000}.{thousandths % 1000:03}")
