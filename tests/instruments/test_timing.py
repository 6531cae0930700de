"""Timing: statistics, poison, the queue, what is reported. Ratios and structure only, no absolute times."""

import math
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from oplab import timing
from oplab.timing import Timing, measure


def test_median_and_quartiles():
    timed = Timing((1.0, 2.0, 3.0, 4.0, 100.0), "x")
    assert (timed.median, timed.low, timed.high) == (3.0, 2.0, 4.0)


def test_a_single_sample_has_no_spread():
    timed = Timing((2.0,), "x")
    assert (timed.median, timed.low, timed.high, timed.spread) == (2.0, 2.0, 2.0, 0.0)


def test_notes_make_it_unstable_and_show():
    timed = Timing((1e-3,), "this GPU", ("throttled by heat",))
    assert not timed.stable
    assert "throttled by heat" in repr(timed)
    assert "1 ms" in repr(timed)


def test_noise_is_noticed():
    assert timing._noise_notes([1.0, 1.0, 1.01, 0.99, 1.0]) == ()
    (note,) = timing._noise_notes([1.0, 2.0, 1.0, 2.0, 1.0, 2.0])
    assert "noisy" in note


@pytest.mark.parametrize(
    ("value", "text"), [(2.5, "2.5 s"), (1.9e-4, "190 µs"), (1e-3, "1 ms"), (5e-9, "5 ns"), (0.99999e-3, "1 ms")]
)
def test_readable_seconds(value, text):
    assert timing.seconds(value) == text


def test_measure_orders_short_and_long_work():
    small, large = torch.randn(64, 64), torch.randn(1024, 1024)
    short, long = (measure(lambda a=a: a @ a, device="cpu", budget=0.05) for a in (small, large))
    assert long.median > 10 * short.median
    assert all(sample > 0 for sample in short.samples + long.samples)


def test_measure_uses_all_of_torchs_threads():
    seen = []
    measure(lambda: seen.append(torch.get_num_threads()), device="cpu", budget=0.01)
    assert set(seen) == {torch.get_num_threads()}


def test_errors_of_the_function_pass_through_and_release_the_device():
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 / 0, device="cpu")
    assert _acquired_in_another_thread(), "the lock was not released"


def _acquired_in_another_thread() -> bool:
    done = []

    def take() -> None:
        with timing.device_lock(torch.device("cpu")):
            done.append(True)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(timeout=5)
    return bool(done)


# --- poisoned outputs


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32]
)
def test_poison_is_counted_until_it_is_overwritten(dtype):
    tensor = torch.empty(1000, dtype=dtype)
    timing.poison(tensor)
    assert timing.unwritten(tensor) == 1000
    tensor[:990] = 1
    assert timing.unwritten(tensor) == 10


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_poison_is_nan_but_a_computed_nan_is_not_poison(dtype):
    tensor = torch.empty(10, dtype=dtype)
    timing.poison(tensor)
    assert tensor.isnan().all()
    honest = torch.zeros(10, dtype=dtype) / torch.zeros(10, dtype=dtype)
    assert honest.isnan().all()
    assert timing.unwritten(honest) == 0


def test_an_output_left_partly_unwritten_is_an_error():
    out = torch.empty(1000)
    with pytest.raises(timing.OutputNotWritten, match=r"100 of 1,000"):
        measure(lambda: out[:900].fill_(1.0), device="cpu", output=out)


def test_a_cached_output_is_an_error():
    out = torch.empty(100)
    kept = torch.ones(100)
    with pytest.raises(timing.OutputNotWritten):
        measure(lambda: kept, device="cpu", output=out)


# --- one at a time

HOLD = """
import sys, time, torch
from oplab import timing
with timing.device_lock(torch.device("cpu")):
    print("held", flush=True)
    time.sleep(float(sys.argv[1]))
"""


def _holder(seconds: float) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(seconds)], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "held"
    return process


def test_a_second_process_waits_and_says_so():
    holder = _holder(1.5)
    states = []
    with timing.reporting(states.append):
        measure(lambda: None, device="cpu", budget=0.01)
    assert holder.wait(timeout=10) == 0
    assert any("another notebook or process is measuring" in state for state in states)
    assert states[-1] == "measuring"


def test_a_killed_holder_lets_go():
    holder = _holder(60)
    os.kill(holder.pid, signal.SIGTERM)
    holder.wait(timeout=10)
    start = time.monotonic()
    measure(lambda: None, device="cpu", budget=0.01)
    assert time.monotonic() - start < 10


def test_a_request_can_be_withdrawn_while_it_waits():
    holder = _holder(3)

    def impatient(state: str) -> None:
        if state.startswith("waiting"):
            raise timing.Withdrawn

    with timing.reporting(impatient), pytest.raises(timing.Withdrawn):
        measure(lambda: None, device="cpu")
    assert holder.poll() is None, "withdrawn only after the holder was done"
    holder.kill()
    holder.wait()


def test_the_lock_is_reentrant_in_a_thread():
    with timing.device_lock(torch.device("cpu")), timing.device_lock(torch.device("cpu")):
        pass
    assert _acquired_in_another_thread()


def test_an_interrupt_releases_the_device():
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(interrupted, device="cpu")
    assert _acquired_in_another_thread()


def test_without_a_listener_waiting_is_printed(capsys):
    timing.report("waiting for it")
    timing.report("measuring")
    assert capsys.readouterr().err == "waiting for it\n"


def test_a_number_is_never_nan():
    assert not math.isnan(measure(lambda: None, device="cpu", budget=0.01).median)
