"""AdminService over a real server: who streams, and sending them elsewhere."""

import grpc
import pytest
from support.running_collector import ThreadCollector
from support.wire_agent import WireStream, batch, hello, inventory

from gpusonde.admin.v1 import admin_pb2, admin_pb2_grpc
from gpusonde.collector.client import CollectorError, FleetClient
from gpusonde.collector.security.identity import Role
from gpusonde.collector.security.tokens import token_entry
from gpusonde.service.tls import ClientSecurity


@pytest.fixture
def admin(tmp_path):
    (tmp_path / "token").write_text("of-the-admin")
    return ClientSecurity(token_file=str(tmp_path / "token"))


@pytest.fixture
def collector(tmp_path):
    (tmp_path / "tokens.toml").write_text(token_entry("of-the-admin", Role.ADMIN))
    with ThreadCollector(tmp_path / "data", security__tokens_file=str(tmp_path / "tokens.toml")) as running:
        yield running


def test_open_streams_are_listed_by_name(collector, admin):
    with (
        WireStream(collector.target, hello("b")) as one,
        WireStream(collector.target, hello("a")) as two,
        FleetClient(collector.target, security=admin) as client,
    ):
        one.greet()
        one.send(inventory(), batch(2)).wait_acked(2)
        two.greet()
        first, second = client.list_agents()
        assert (first.agent_id, second.agent_id) == ("a", "b")
        assert (second.host_name, second.identity, second.durable_sequence) == ("host-1", "anonymous", 2)
        assert second.peer.startswith("ipv4:127.0.0.1:")
        assert not second.throttled


def test_pages_go_on_where_the_one_before_ended(collector, admin):
    with WireStream(collector.target, hello("a")) as one, WireStream(collector.target, hello("b")) as two:
        one.greet()
        two.greet()
        with grpc.insecure_channel(collector.target) as channel:
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            metadata = admin.load(collector.target).metadata
            page = stub.ListAgents(admin_pb2.ListAgentsRequest(page_size=1), metadata=metadata)
            assert ([a.agent_id for a in page.agents], page.next_page_token) == (["a"], "a")
            page = stub.ListAgents(admin_pb2.ListAgentsRequest(page_size=1, page_token="a"), metadata=metadata)
            assert ([a.agent_id for a in page.agents], page.next_page_token) == (["b"], "")


def test_a_drained_agent_has_its_acks_and_knows_where_to_go(collector, admin):
    with WireStream(collector.target, hello("a")) as stream, WireStream(collector.target, hello("b")) as other:
        stream.greet()
        other.greet()
        stream.send(inventory(), batch(2)).wait_acked(1)
        with FleetClient(collector.target, security=admin) as client:
            assert client.drain(["a", "gone"], "refuge.example:7433") == (["a"], ["gone"])
        assert stream.end() == ("OK", "")
        assert stream.drain.preferred_target == "refuge.example:7433"
        assert stream.acked == 2
        other.send(inventory(), batch(2)).wait_acked(2)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (admin_pb2.DrainAgentsRequest(), "name up to"),
        (admin_pb2.DrainAgentsRequest(all_agents=True, agent_ids=["a"]), "but not both"),
        (admin_pb2.DrainAgentsRequest(agent_ids=["a b"]), "agent_ids[0]"),
        (admin_pb2.DrainAgentsRequest(all_agents=True, preferred_target="x\ny"), "write host:port"),
        (admin_pb2.DrainAgentsRequest(all_agents=True, preferred_target="x" * 300), "write host:port"),
    ],
)
def test_unclear_orders_are_refused(collector, admin, request_, words):
    with grpc.insecure_channel(collector.target) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        with pytest.raises(grpc.RpcError) as error:
            stub.DrainAgents(request_, metadata=admin.load(collector.target).metadata)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert words in error.value.details()


def test_callers_without_proof_give_no_orders_on_loopback_either(collector):
    with FleetClient(collector.target) as client:
        for order in (client.list_agents, lambda: client.drain(None)):
            with pytest.raises(CollectorError, match="is no admin") as error:
                order()
            assert error.value.code == "PERMISSION_DENIED"
