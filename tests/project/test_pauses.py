"""What tests put in place of ``time.sleep`` reaches no thread that has nothing to do with them."""

from __future__ import annotations

import threading
import time

from support.pauses import sleep_by


def test_a_thread_that_was_there_sleeps_on(monkeypatch):
    ended, slept, rounds = threading.Event(), [], []

    def poll() -> None:
        while not ended.is_set():
            rounds.append(time.monotonic())
            time.sleep(0.05)

    poller = threading.Thread(target=poll)
    poller.start()
    sleep_by(monkeypatch, slept.append)
    before, began = len(rounds), time.monotonic()
    time.sleep(60)
    newer = threading.Thread(target=time.sleep, args=(30,))
    newer.start()
    newer.join()
    ended.wait(0.5)
    ended.set()
    poller.join()
    assert slept == [60, 30]
    assert len(rounds) - before <= (time.monotonic() - began) / 0.05 + 1
