"""The watchdog speaks while every part moves, and only then."""

import asyncio

import pytest

from gpusonde.service.health import Heartbeat, Watchdog, watchdog_s


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_part_has_not_moved_when_it_is_later_than_it_said():
    clock = Clock()
    heart = Heartbeat("the sampler", 15.0, clock=clock)
    clock.now = 15.0
    assert heart.check() is None
    clock.now = 15.5
    assert heart.check() == "the sampler has not moved for 16 s"
    heart.beat(pause_s=60.0)
    clock.now += 60 + 15
    assert heart.check() is None
    clock.now += 1
    assert heart.check() is not None


def test_a_part_that_has_ended_owes_no_beat():
    clock = Clock()
    heart = Heartbeat("the sampler", clock=clock)
    heart.disarm()
    clock.now = 1e6
    assert heart.check() is None


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_time_is_what_systemd_says_to_this_process(environment, seconds):
    assert watchdog_s(environment, 7) == seconds


def test_no_ping_while_something_is_wrong_and_systemd_is_told_what(caplog):
    said, trouble = [], [None]
    watchdog = Watchdog(30.0, lambda: trouble[0], lambda: "works", tell=lambda *states: said.append(states))
    watchdog.ping()
    trouble[0] = "the sampler has not moved for 16 s"
    watchdog.ping()
    watchdog.ping()
    trouble[0] = None
    watchdog.ping()
    assert said == [
        ("WATCHDOG=1", "STATUS=works"),
        ("STATUS=the sampler has not moved for 16 s",),
        ("STATUS=the sampler has not moved for 16 s",),
        ("WATCHDOG=1", "STATUS=works"),
    ]
    assert len([r for r in caplog.records if "will restart the service" in r.message]) == 1


def test_pings_come_twice_in_the_time():
    said = []

    async def watch():
        task = asyncio.ensure_future(
            Watchdog(0.2, lambda: None, lambda: "", tell=lambda *states: said.append(loop.time())).run()
        )
        while len(said) < 3:
            await asyncio.sleep(0.01)
        task.cancel()

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(watch(), 60))
    finally:
        loop.close()
    assert said[2] - said[0] >= 0.2


def test_nobody_is_pinged_where_nobody_watches():
    asyncio.run(asyncio.wait_for(Watchdog(None, lambda: None, lambda: "", tell=lambda *_: 1 / 0).run(), 60))
