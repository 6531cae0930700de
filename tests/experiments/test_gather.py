"""GATHER on this computer's processor, its costs by hand, and its explorer."""

import pytest
import torch
from oplab.experiments import GATHER, LIVE_CPU, RECORDED
from oplab.experiments import gather as module
from oplab.experiments import result as status
from oplab.kernels import gather
from oplab.widgets import explore

SMALL = 1 << 16  # elements of the table


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(module, "ELEMENTS", {"cuda": SMALL, "cpu": SMALL})
    module._index.cache_clear()


def test_lines_by_hand():
    every = torch.arange(16)
    assert gather.fetched_bytes(every, N=4, element_size=4, line=64) == 16 * 16  # four rows to a line, each once
    assert gather.fetched_bytes(torch.tensor([0, 4, 8]), N=4, element_size=4, line=64) == 3 * 64
    assert gather.fetched_bytes(torch.tensor([5, 5, 5]), N=4, element_size=4, line=64) == 64
    # Rows of 24 bytes: row 2 is bytes 48 to 71 and lies across a border; row 3 shares its second line.
    assert gather.fetched_bytes(torch.tensor([2]), N=6, element_size=4, line=64) == 128
    assert gather.fetched_bytes(torch.tensor([3, 2]), N=6, element_size=4, line=64) == 128
    assert gather.fetched_bytes(torch.tensor([0]), N=1000, element_size=4, line=32) == 4000
    assert gather.fetched_bytes(torch.empty(0, dtype=torch.long), N=6, element_size=4, line=64) == 0


def test_compulsory_bytes_by_hand():
    # 3 different rows of 8 fp32 elements, picked 10 times: 96 read, 80 of index, 320 written.
    assert gather.compulsory_bytes(3, 10, 8, 4) == 96 + 80 + 320


def test_lines_against_a_list_of_addresses():
    for _ in range(50):
        N, item, line = (int(torch.randint(1, 40, ())), 4, 64)
        index = torch.randint(30, (20,))
        touched = {byte // line for row in index.tolist() for byte in range(row * N * item, (row + 1) * N * item)}
        assert gather.fetched_bytes(index, N, item, line) == len(touched) * line
        each = [{b // line for b in range(row * N * item, (row + 1) * N * item)} for row in index.tolist()]
        assert gather.worst_bytes(index, N, item, line) == sum(map(len, each)) * line


@pytest.mark.parametrize("order", module.ORDERS)
def test_every_order_runs_and_counts(small, order):
    result = GATHER.run(source=LIVE_CPU, order=order, columns=16)
    assert result.ok, result.reason
    assert result.relative_error == 0
    rows = SMALL // 16
    few = order == "few rows"
    assert result.resources["rows"] == rows
    assert result.resources["unique_rows"] <= (round(module.FEW * rows) if few else rows)
    assert result.resources["fetched_bytes"] >= result.resources["wanted_bytes"]
    assert result.nbytes == result.resources["wanted_bytes"] + rows * (8 + 64)


def test_orders_are_what_they_are_called():
    module._index.cache_clear()
    index = {order: module._index(1000, order) for order in module.ORDERS}
    assert torch.equal(index["in order"], torch.arange(1000))
    assert torch.equal(index["sorted"], index["random"].sort().values)
    assert not torch.equal(index["sorted"], index["random"])
    assert index["few rows"].unique().numel() <= 10
    assert all(((picks >= 0) & (picks < 1000)).all() for picks in index.values())


def test_picking_at_random_is_slower_than_in_order():
    """Past every cache, 16-byte rows: a line of 64 bytes for each pick. Ratios only, with a wide margin."""
    in_order, random = (GATHER.run(source=LIVE_CPU, columns=4, order=order) for order in ("in order", "random"))
    assert random.resources["wanted_bytes"] < in_order.resources["wanted_bytes"]  # some rows are never picked
    assert random.seconds > 1.5 * in_order.seconds


def test_triton_on_a_cpu_and_widths_that_mean_nothing():
    assert "'torch'" in GATHER.run(source=LIVE_CPU, way="triton").reason
    assert GATHER.run(source=LIVE_CPU, columns=0).status == status.INVALID
    assert GATHER.run(source=RECORDED, order="backwards").status == status.INVALID


def test_the_compiler_sees_the_kernel():
    pytest.importorskip("triton")
    from oplab.compiler.targets import find

    made, blocks = GATHER.compiled({"columns": 1024, "dtype": "bf16", "way": "triton"}, RECORDED, find("H200"))
    assert blocks == (module.ELEMENTS["cuda"] // 1024) // 2
    assert "16 B" in made.load_widths
    assert GATHER.compiled({"columns": 1024, "dtype": "bf16", "way": "torch"}, RECORDED, find("H200")) is None


def test_the_explorer(small):
    explorer = explore.gather()
    explorer.source.value = (LIVE_CPU, "")
    for order in module.ORDERS:
        explorer.set(order=order)
        assert explorer.wait().ok
    assert "rows are picked" in explorer.reason.value
    assert "GB/s" in explorer.headline.value
    assert len(explorer.seen(columns=64)) == 4
    assert all(bytes(image.value[:4]) == b"\x89PNG" for image in explorer.images)
    assert not explorer.errors
