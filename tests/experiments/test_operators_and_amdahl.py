"""The roofline explorer's experiment, and Amdahl's law on a profile."""

import math

import pytest
from oplab.experiments import LIVE_CPU, OPERATORS
from oplab.experiments import result as status
from oplab.experiments.operators import MENU
from oplab.profiler import recorded
from oplab.widgets import explore
from oplab.widgets.amdahl import SPEEDUPS, whole_gain
from oplab.widgets.counters import counted_table


@pytest.mark.parametrize("name", list(MENU))
def test_every_operator_is_placed(name):
    result = OPERATORS.run(source=LIVE_CPU, operator=name, size=64, batch=8)
    assert result.ok, result.reason
    assert result.baseline_seconds > 0
    assert result.nbytes > 0
    assert [key for key in result.resources if key.endswith("_bound")]


def test_intensity_of_linear_grows_with_the_batch():
    low, high = (OPERATORS.run(source=LIVE_CPU, operator="linear", size=256, batch=b) for b in (1, 64))
    assert high.flops / high.nbytes > 20 * low.flops / low.nbytes


def test_bad_values_are_lines():
    assert OPERATORS.run(source=LIVE_CPU, operator="wish").status == status.INVALID
    assert OPERATORS.run(source=LIVE_CPU, size=0).status == status.INVALID


def test_the_explorer_keeps_a_trail():
    explorer = explore.roofline()
    explorer.source.value = explorer.source.options[-1][1]
    explorer.set(size=64)
    explorer.wait(120)
    before = bytes(explorer.images[0].value)
    explorer.set(operator="matmul")
    assert explorer.wait(120).ok
    assert bytes(explorer.images[0].value) != before
    assert len(explorer.seen(size=64)) >= 2
    assert "FLOP per byte" in explorer.reason.value
    assert "-bound" in explorer.headline.value
    assert not explorer.errors
    assert "NVIDIA H200" in explorer._repr_mimebundle_()["text/plain"]


# --- Amdahl


def test_the_claim_of_the_lecture():
    assert 1 - 1 / whole_gain(1.0, 1.3) == pytest.approx(0.23, abs=0.005)  # not even a share of 100% gives 25%
    assert 1 - 1 / whole_gain(0.83, 1 / 0.7) == pytest.approx(0.25, abs=0.002)  # 30% less time needs 83%


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("factor", SPEEDUPS)
def test_gain_is_bounded(share, factor):
    if share == 1.0 and math.isinf(factor):
        return
    gain = whole_gain(share, factor)
    assert 1.0 <= gain <= factor
    if share < 1:
        assert gain <= 1 / (1 - share) + 1e-12


def test_the_explorer_turns_and_speaks():
    explorer = explore.amdahl()
    first, picture = explorer.line.value, bytes(explorer.image.value)
    explorer.speedup.value = float("inf")
    assert explorer.line.value != first
    assert bytes(explorer.image.value) != picture
    explorer.operator.value = list(explorer.shares)[-1]
    assert not explorer.errors
    assert sum(explorer.shares.values()) <= 1.0 + 1e-9
    bundle = explorer._repr_mimebundle_()
    assert "image/png" in bundle
    assert "of the time saved" in bundle["text/plain"]


def test_an_error_is_shown_in_the_explorer():
    explorer = explore.amdahl(recorded.load("resnet50"))
    explorer.shares = {}
    explorer.speedup.value = 2.0
    assert "KeyError" in explorer.line.value
    assert explorer.errors


def test_counters_table_names_what_moved():
    table = counted_table()
    assert len(table) >= 24
    assert "clone" not in list(table.operator)  # the copy engine's work has no kernel
