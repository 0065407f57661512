"""Which of several collectors an agent goes to, when it leaves one and when it comes back."""

import asyncio
import logging
import random
import socket
import threading
import time
from collections import Counter

import pytest
from support.freezing_proxy import FreezingProxy
from support.scripted_collector import Script, ScriptedCollector
from support.uplink_rig import Rig

from gpusonde.agent.config import AgentConfig, ConfigError
from gpusonde.agent.uplink.addresses import Address, Addresses, look_up

FOUR = tuple(f"10.0.0.{i}:7433" for i in range(1, 5))
AGENTS = [f"host-{i}" for i in range(1000)]


def chosen(agent_id, collectors, found=None):
    addresses = Addresses(agent_id, collectors, look_up if found is None else lambda _: found)
    asyncio.run(addresses.refresh())
    return addresses.choose().target


def test_agents_spread_evenly_and_only_those_of_a_collector_that_goes_move():
    before = {agent: chosen(agent, FOUR) for agent in AGENTS}
    assert all(200 < count < 300 for count in Counter(before.values()).values())
    after = {agent: chosen(agent, FOUR[1:]) for agent in AGENTS}
    assert all(after[agent] == before[agent] for agent in AGENTS if before[agent] != FOUR[0])
    moved = Counter(after[agent] for agent in AGENTS if before[agent] == FOUR[0])
    assert all(count > 50 for count in moved.values())
    # The order in which they are listed says nothing.
    assert all(chosen(agent, FOUR[::-1]) == before[agent] for agent in AGENTS[:50])


def test_a_name_of_several_hosts_is_several_collectors_and_one_of_both_families_is_one(monkeypatch):
    hosts = {
        "four.example": ["10.0.0.1", "10.0.0.2", "10.0.0.2", "2001:db8::1"],
        "one.example": ["10.0.0.9", "2001:db8::9"],
        "six.example": ["2001:db8::1", "2001:db8::2"],
    }

    def getaddrinfo(host, port, **_):
        families = [socket.AF_INET6 if ":" in one else socket.AF_INET for one in hosts[host]]
        return [(family, 1, 6, "", (one, port)) for family, one in zip(families, hosts[host], strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    # Each is spoken to by its number, and has to have the certificate of the name.
    assert look_up(["four.example:7433"]) == [
        Address("10.0.0.1:7433", "four.example"),
        Address("10.0.0.2:7433", "four.example"),
    ]
    assert look_up(["one.example:7433", "10.0.0.5:1"]) == [Address("one.example:7433"), Address("10.0.0.5:1")]
    assert [address.target for address in look_up(["six.example:1"])] == ["[2001:db8::1]:1", "[2001:db8::2]:1"]


def test_srv_records_spread_by_weight_and_by_priority(monkeypatch):
    pytest.importorskip("dns", reason="SRV records need dnspython")
    import dns.resolver
    from support.dns_server import DnsServer

    name = "_gpusonde._tcp.example"
    with DnsServer({name: ["10 1 7433 a.example.", "10 3 7433 b.example.", "20 9 7434 spare.example."]}) as server:
        monkeypatch.setattr(dns.resolver, "get_default_resolver", server.resolver)
        found = look_up([name])
        with pytest.raises(OSError, match=r"_other\._tcp\.example"):
            look_up(["_other._tcp.example"])
    assert {address.target for address in found} == {"a.example:7433", "b.example:7433", "spare.example:7434"}
    count = Counter(chosen(agent, (name,), found) for agent in AGENTS)
    assert count["spare.example:7434"] == 0
    assert 200 < count["a.example:7433"] < 300
    addresses = Addresses("host-1", (name,), lambda _: found)
    asyncio.run(addresses.refresh())
    assert addresses.fail(addresses.choose())
    assert addresses.fail(addresses.choose())
    assert addresses.choose().target == "spare.example:7434"
    # Once each has failed, all of them are tried again, from the first.
    assert not addresses.fail(addresses.choose())
    assert addresses.choose() == addresses.home


def test_a_name_that_cannot_be_looked_up_any_more_keeps_its_collectors(caplog):
    answers = [[Address(target) for target in FOUR]]

    def look_up_once(_):
        if not answers:
            raise OSError("no name server")
        return answers.pop()

    addresses = Addresses("host-1", ("_gpusonde._tcp.example",), look_up_once)
    assert addresses.choose() is None
    asyncio.run(addresses.refresh())
    before = addresses.choose()
    assert before.target in FOUR
    for _ in range(2):
        asyncio.run(addresses.refresh())
    assert addresses.choose() == before
    assert caplog.text.count("no name server") == 1


@pytest.mark.parametrize("text", ["a:1,", ",", " , a:1"])
def test_a_list_with_an_empty_part_is_refused(text):
    with pytest.raises(ConfigError, match=r"uplink\.collector"):
        AgentConfig.load(overrides={"uplink.collector": text})


def test_a_token_goes_to_no_other_host_of_a_list_in_plain_text():
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1:7433"):
        AgentConfig.load(overrides={"uplink.collector": "127.0.0.1:7433, 10.0.0.1:7433", "uplink.token_file": "t"})


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path / "spool")
    yield rig
    rig.spool.close()


@pytest.fixture
def pair(rig):
    """Two collectors with one memory, that which the agent wants most first."""
    stored, changed = {}, threading.Condition()
    with (
        ScriptedCollector(stored=stored, changed=changed) as one,
        ScriptedCollector(stored=stored, changed=changed) as two,
    ):
        home = chosen(rig.spool.agent_id, (one.target, two.target))
        yield (one, two) if home == one.target else (two, one)


def test_an_agent_whose_collector_dies_goes_on_at_another_and_comes_back_when_it_serves_again(rig, pair, caplog):
    caplog.set_level(logging.INFO)
    home, other = pair
    both = f"{other.target}, {home.target}"
    rig.fill(20)
    steps = iter("abc")
    step = [next(steps)]
    began = [0.0]

    def during():
        if step[0] == "a" and rig.counters.acked_sequence == 20:
            assert (len(home.hellos), len(other.hellos)) == (1, 0)
            home.stop()
            began[0] = time.monotonic()
            rig.fill(20)
            step[0] = next(steps)
        elif step[0] == "b" and rig.counters.acked_sequence == 40:
            assert len(other.hellos) == 1
            assert time.monotonic() - began[0] < 30.0
            home.start()
            step[0] = next(steps)
        elif step[0] == "c" and len(home.hellos) == 2 and rig.spool.last_sequence == 40:
            rig.fill(10)

    rig.run(both, until=lambda: rig.counters.acked_sequence == 50, during=during, return_check_s=0.05)
    assert [record.sequence for record in home.records()] == list(range(1, 51))
    assert home.duplicates == other.duplicates == 0
    assert home.gaps == other.gaps == []
    assert f"going to {other.target}" in caplog.text
    assert f"leaving {other.target}" in caplog.text


def test_an_agent_does_not_go_back_to_a_collector_that_comes_and_goes(rig, pair):
    home, other = pair
    chance = random.Random(5)
    home.stop()
    rig.fill(5)
    ups = [0]

    def flap():
        if not other.hellos:
            return
        # Never up for as long as three looks take.
        home.start()
        time.sleep(chance.uniform(0.02, 0.1))
        home.stop()
        ups[0] += 1

    rig.run(
        f"{home.target}, {other.target}",
        until=lambda: ups[0] >= 40,
        during=flap,
        return_check_s=1.0,
        connect_timeout_s=0.2,
    )
    assert len(home.hellos) == 0
    assert len(other.hellos) == 1


def test_a_host_that_swallows_everything_is_left_before_the_time_for_hello_is_over(rig, pair):
    home, other = pair
    with FreezingProxy(home.target) as proxy:
        proxy.freeze()
        targets = (proxy.target, other.target)
        other_first = chosen(rig.spool.agent_id, targets) == other.target
        rig.fill(5)
        began = time.monotonic()
        # A first failure elsewhere, where the order would not begin with the frozen one.
        other.scripts = [Script(die_after=1)] if other_first else []
        rig.run(f"{proxy.target}, {other.target}", connect_timeout_s=0.3, hello_timeout_s=200.0)
    assert time.monotonic() - began < 60.0
    assert [record.sequence for record in other.records()] == [1, 2, 3, 4, 5]


def test_a_refusal_that_only_a_person_can_lift_moves_nobody(rig, pair):
    import grpc

    home, other = pair
    home.scripts = [Script(refuse=grpc.StatusCode.ALREADY_EXISTS)] * 3
    rig.fill(3)
    rig.run(f"{home.target}, {other.target}")
    assert len(home.hellos) == 4
    assert other.hellos == []
