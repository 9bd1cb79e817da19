"""Jobs run in order beside the main thread; their results come back in it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from broker_filter.service.worker import Worker, leave


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(2)
    worker.start()
    yield worker
    worker.close(10)


def drain(worker: Worker) -> None:
    while worker.busy():
        worker.serve(10)


def test_results_come_in_order_and_in_the_thread_that_serves(worker: Worker) -> None:
    seen: list[tuple[int, bool, bool]] = []
    main = threading.current_thread()

    def job(n: int) -> tuple[int, bool]:
        return n, threading.current_thread() is main

    for n in range(5):
        worker.submit(
            lambda n=n: job(n), lambda r: seen.append((*r, threading.current_thread() is main))
        )
    drain(worker)
    assert seen == [(n, False, True) for n in range(5)]


def test_it_is_full_while_too_many_jobs_wait_and_busy_until_all_is_handed_over() -> None:
    worker, gate = Worker(2), threading.Event()
    assert not worker.busy()
    worker.submit(gate.wait)
    worker.submit(gate.wait)
    assert worker.full()
    worker.start()
    gate.set()
    drain(worker)
    assert not worker.full()
    worker.close(10)


def test_an_error_is_raised_where_it_is_served_and_ends_the_work() -> None:
    worker = Worker(2)
    after: list[int] = []
    worker.submit(lambda: 1 // 0)
    worker.submit(lambda: after.append(1))
    worker.start()
    with pytest.raises(ZeroDivisionError):
        worker.serve(10)
    worker.close(10)
    assert after == []


def test_closing_waits_for_the_job_that_runs_and_drops_those_that_wait() -> None:
    worker, begun, gate = Worker(2), threading.Event(), threading.Event()
    done: list[str] = []

    def first() -> None:
        begun.set()
        gate.wait(10)
        done.append("first")

    worker.submit(first)
    worker.submit(lambda: done.append("second"))
    worker.start()
    assert begun.wait(10)
    threading.Timer(0.1, gate.set).start()
    worker.close(10)
    assert done == ["first"]


# The job calls back into Python from native code, as a network's forward pass does.
ABANDONED = """
import sys, threading
import torch
from broker_filter.service.worker import Worker, leave

worker, begun = Worker(1), threading.Event()

def job():
    begun.set()
    a = torch.ones(2000, 2000)
    while True:
        a @ a

worker.submit(job)
worker.start()
begun.wait()
worker.close(0.1)
print("said")
sys.exit(leave(7))
"""


def test_a_job_that_does_not_end_leaves_the_exit_status_as_it_is() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ABANDONED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (7, "said\n"), done.stderr


def test_leaving_with_no_job_just_gives_the_status_back() -> None:
    assert leave(3) == 3
