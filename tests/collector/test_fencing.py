"""What a new stream waits for, and what a failed commit takes with it: the orders that real timing rarely shows."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from support.store_records import Feed
from support.wire_agent import hello

from gpusonde.collector import LocalStore
from gpusonde.collector.config import IngestConfig, StoreConfig
from gpusonde.collector.ingest.admission import AgentPace
from gpusonde.collector.ingest.agents import Agents
from gpusonde.collector.ingest.committer import Committer
from gpusonde.collector.ingest.session import AgentSession
from gpusonde.collector.storage.model import SpoolStanding
from gpusonde.errors import RequestError, StoreFullError


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as one:
        yield one


@pytest.fixture
def store(tmp_path):
    opened = LocalStore(tmp_path / "data", StoreConfig(reserve_bytes=0))
    opened.open()
    yield opened
    opened.close()


async def spin(times=50):
    for _ in range(times):
        await asyncio.sleep(0)


def test_a_new_stream_is_admitted_only_when_nothing_of_the_older_one_is_under_way(store, executor):
    async def scene():
        agents = Agents(store.samples, executor, IngestConfig(max_agents=10), lambda: 0.0)
        old = await agents.admit(hello())
        store.samples.append(Feed().batches(1, 3))
        for sequence in (1, 2, 3):
            old.note_taken(sequence)
        old.committed(1)
        old.committed(2)
        entering = asyncio.ensure_future(agents.admit(hello()))
        await spin()
        assert not entering.done()
        assert old.stop.code is grpc.StatusCode.ABORTED
        old.committed(3)
        new = await entering
        assert new.durable_sequence == 3

    asyncio.run(scene())


def test_agents_that_come_while_the_store_is_busy_are_registered_together(store, executor):
    free, groups = threading.Event(), []

    class Slow:
        def register_agents(self, agents):
            groups.append(len(agents))
            free.wait(60)
            return store.samples.register_agents(agents)

    async def scene():
        agents = Agents(Slow(), executor, IngestConfig(max_agents=100), lambda: 0.0)
        entering = [asyncio.ensure_future(agents.admit(hello("agent-0")))]
        await spin()
        entering += [asyncio.ensure_future(agents.admit(hello(f"agent-{i}"))) for i in range(1, 40)]
        await spin()
        leaving = entering.pop(7)
        leaving.cancel()
        await spin()
        free.set()
        sessions = await asyncio.gather(*entering)
        assert [session.durable_sequence for session in sessions] == [0] * 39

    asyncio.run(scene())
    assert groups == [1, 39]


def test_a_store_that_fails_refuses_every_agent_of_a_group_and_takes_the_next(store, executor):
    failing = [StoreFullError("full")]

    class Failing:
        def register_agents(self, agents):
            if failing:
                raise failing.pop()
            return store.samples.register_agents(agents)

    async def scene():
        agents = Agents(Failing(), executor, IngestConfig(max_agents=100), lambda: 0.0)
        with pytest.raises(StoreFullError):
            await agents.admit(hello("agent-1"))
        assert (await agents.admit(hello("agent-1"))).durable_sequence == 0

    asyncio.run(scene())


def test_the_end_of_an_older_stream_does_not_free_the_agent_from_its_pending_records(store, executor):
    async def scene():
        agents = Agents(store.samples, executor, IngestConfig(max_agents=10), lambda: 0.0)
        old = await agents.admit(hello())
        old.note_taken(1)
        agents.close(old)
        entering = asyncio.ensure_future(agents.admit(hello()))
        await spin()
        assert not entering.done()
        old.failed(StoreFullError("full"))
        assert (await entering).durable_sequence == 0

    asyncio.run(scene())


def test_a_gone_agents_id_opens_after_the_hold_time_for_a_host_whose_clock_was_set_back(store, executor):
    now_s = [0.0]

    async def scene():
        agents = Agents(store.samples, executor, IngestConfig(max_agents=10), lambda: now_s[0])
        agents.close(await agents.admit(hello(start=2_000)))
        earlier = hello(start=1_000, instance="instance-2")
        now_s[0] = 59.0
        with pytest.raises(RequestError, match="started later"):
            await agents.admit(earlier)
        now_s[0] = 60.0
        await agents.admit(earlier)

    asyncio.run(scene())


class SlowStore:
    """Appends when it is told to, or fails."""

    def __init__(self):
        self.groups = []
        self.entered, self.go = threading.Event(), threading.Event()
        self.error = None

    def append(self, records):
        self.groups.append([incoming.entry.sequence for incoming in records])
        self.entered.set()
        assert self.go.wait(60)
        if self.error:
            raise self.error
        return 0


def test_a_failed_commit_fails_what_was_queued_behind_it_too(executor):
    async def scene():
        store, failures = SlowStore(), []
        store.error = StoreFullError("full")
        committer = Committer(store, executor, 0.0, failures.append)
        running = asyncio.ensure_future(committer.run())
        session = AgentSession("agent-1", "spool-1", SpoolStanding(0, None), 1, AgentPace(IngestConfig()))
        records = Feed().batches(1, 4)
        for incoming in records[:2]:
            session.note_taken(incoming.entry.sequence)
            committer.submit(session, incoming)
        await asyncio.get_running_loop().run_in_executor(None, store.entered.wait)
        for incoming in records[2:]:
            session.note_taken(incoming.entry.sequence)
            committer.submit(session, incoming)
        store.go.set()
        await session.settled()
        committer.close()
        await running
        assert store.groups == [[1, 2]]
        assert session.durable_sequence == 0
        assert session.stop.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(failures) == 1

    asyncio.run(scene())


def test_records_that_arrive_together_share_a_commit_and_closing_waits_for_the_rest(executor):
    async def scene():
        store = SlowStore()
        store.go.set()
        committer = Committer(store, executor, 0.05, lambda error: None)
        running = asyncio.ensure_future(committer.run())
        session = AgentSession("agent-1", "spool-1", SpoolStanding(0, None), 1, AgentPace(IngestConfig()))
        for incoming in Feed().batches(1, 5):
            session.note_taken(incoming.entry.sequence)
            committer.submit(session, incoming)
            await asyncio.sleep(0)
        committer.close()
        await running
        assert store.groups == [[1, 2, 3, 4, 5]]
        assert (session.durable_sequence, session.pending) == (5, 0)

    asyncio.run(scene())
