"""Who may do what: certificates, tokens, roles and identities over a real server."""

from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from support.certificates import Authority, tls_settings
from support.running_collector import ThreadCollector
from support.uplink_rig import Rig
from support.wire_agent import StreamEnded, WireStream, batch, hello, inventory, wait_until

from gpusonde.collector.client import Client, CollectorError
from gpusonde.collector.security.identity import Role
from gpusonde.collector.security.tokens import token_entry
from gpusonde.errors import TlsError
from gpusonde.service.tls import ClientSecurity


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls_collector(authority, tmp_path_factory):
    with ThreadCollector(tmp_path_factory.mktemp("collector") / "data", **tls_settings(authority)) as running:
        yield running


def with_certificate(authority, role, name):
    certificate, key = authority.client(role, name)
    return ClientSecurity(str(authority.ca), str(certificate), str(key))


def with_token(directory, token, authority=None):
    file = directory / f"{token}.token"
    file.write_text(token + "\n")
    return ClientSecurity(ca=str(authority.ca) if authority else "", token_file=str(file))


def end_of(target, greeting, security):
    with WireStream(target, greeting, security=security) as stream:
        try:
            stream.greet()
        except StreamEnded as ended:
            return ended.code, ended.details
        return "OK", ""


def test_an_agent_streams_under_the_name_in_its_certificate_and_no_other(tls_collector, authority):
    agent = with_certificate(authority, "agent", "agent-1")
    with WireStream(tls_collector.target, hello("agent-1"), security=agent) as stream:
        stream.greet()
        stream.send(inventory(), batch(2)).wait_acked(2)
    code, text = end_of(tls_collector.target, hello("agent-2"), agent)
    assert code == "PERMISSION_DENIED"
    assert text == "certificate agent/agent-1 may not stream as agent agent-2"


@pytest.mark.parametrize(
    ("role", "may_stream", "may_read"), [("agent", True, False), ("reader", False, True), ("admin", False, True)]
)
def test_each_role_may_do_what_it_is_for(tls_collector, authority, role, may_stream, may_read):
    security = with_certificate(authority, role, "someone")
    code, text = end_of(tls_collector.target, hello("someone"), security)
    assert code == ("OK" if may_stream else "PERMISSION_DENIED")
    assert may_stream or "is no agent" in text
    with Client(tls_collector.target, security=security) as client:
        if may_read:
            client.list_runs()
        else:
            with pytest.raises(CollectorError, match="is no reader") as error:
                client.list_runs()
            assert error.value.code == "PERMISSION_DENIED"


def test_a_certificate_without_our_uri_is_refused_unless_the_operator_says_its_role(authority, tmp_path):
    certificate, key = authority.issue("host", common_name="host-9", hosts=["host-9.example"])
    security = ClientSecurity(str(authority.ca), str(certificate), str(key))
    with ThreadCollector(tmp_path / "a", **tls_settings(authority)) as collector:
        code, text = end_of(collector.target, hello("host-9"), security)
        assert (code, "gpusonde://ROLE/NAME" in text) == ("UNAUTHENTICATED", True)
    with ThreadCollector(tmp_path / "b", **tls_settings(authority, security__certificate_role="agent")) as collector:
        assert end_of(collector.target, hello("host-9"), security)[0] == "OK"
        assert end_of(collector.target, hello("host-8"), security)[0] == "PERMISSION_DENIED"


@pytest.mark.parametrize(
    "uri",
    ["gpusonde://god/x", "gpusonde://agent/", "gpusonde://agent/a/b", "gpusonde://agent/..%2fx", "gpusonde:agent/x",
     ["gpusonde://agent/a", "gpusonde://admin/a"]],
)  # fmt: skip
def test_a_uri_that_is_not_exactly_ours_names_nobody(tls_collector, authority, uri):
    certificate, key = authority.issue("odd", uri=uri)
    security = ClientSecurity(str(authority.ca), str(certificate), str(key))
    assert end_of(tls_collector.target, hello("a"), security)[0] == "UNAUTHENTICATED"


def test_strangers_do_not_get_past_the_handshake(tls_collector, authority, tmp_path):
    strangers = Authority(tmp_path / "strangers", "another authority")
    certificate, key = strangers.client("admin", "mallory")
    expired = authority.client("admin", "late", valid_s=-60.0)
    for security in (
        ClientSecurity(str(authority.ca)),
        ClientSecurity(str(authority.ca), str(certificate), str(key)),
        ClientSecurity(str(authority.ca), *map(str, expired)),
    ):
        with Client(tls_collector.target, timeout_s=30, security=security) as client:
            with pytest.raises(CollectorError) as error:
                client.list_runs()
            assert error.value.code == "UNAVAILABLE"
    with Client(tls_collector.target, timeout_s=30) as client, pytest.raises(CollectorError, match="give --tls-ca"):
        client.list_runs()


def test_a_client_does_not_talk_to_a_server_with_another_name_or_authority(tls_collector, authority, tmp_path):
    reader = with_certificate(authority, "reader", "r")
    port = tls_collector.target.rpartition(":")[2]
    with Client(f"127.0.0.1:{port}", security=reader) as client:
        client.list_runs()
    wrong_name = ClientSecurity(reader.ca, reader.certificate, reader.key, server_name="other.example")
    other = Authority(tmp_path / "other", "another authority")
    wrong_authority = ClientSecurity(str(other.ca), reader.certificate, reader.key)
    for security, says in (
        (wrong_name, "is for 127.0.0.1, localhost, not for other.example"),
        (wrong_authority, "give with --tls-ca the authority"),
    ):
        with Client(tls_collector.target, timeout_s=30, security=security) as client:
            with pytest.raises(CollectorError, match=says) as error:
                client.list_runs()
            assert error.value.code == "UNAVAILABLE"
    right_name = ClientSecurity(reader.ca, reader.certificate, reader.key, server_name="localhost")
    with Client(tls_collector.target, security=right_name) as client:
        client.list_runs()


def test_an_agent_delivers_only_to_a_collector_of_the_name_that_it_expects(tls_collector, authority, tmp_path, caplog):
    rig = Rig(tmp_path / "spool", agent_id="expecting")
    rig.fill(1)
    agent = with_certificate(authority, "agent", "expecting")
    expecting = replace(agent, server_name="collector.example")
    # What is in the way is found out after the failure is counted.
    rig.run(tls_collector.target, until=lambda: "uplink.server_name" in caplog.text, security=expecting)
    assert rig.counters.connection_failures
    assert rig.counters.acked_sequence == 0
    assert "is for 127.0.0.1, localhost, not for collector.example" in caplog.text
    rig.run(tls_collector.target, security=replace(agent, server_name="localhost"))
    assert rig.counters.acked_sequence == rig.spool.last_sequence == 1
    rig.spool.close()


def test_tokens_over_tls_take_the_place_of_certificates(authority, tmp_path):
    tokens = tmp_path / "tokens.toml"
    entries = [
        token_entry("of-agents", Role.AGENT, "host-*"), token_entry("of-reader", Role.READER),
        token_entry("of-admin", Role.ADMIN),
    ]  # fmt: skip
    tokens.write_text("\n".join(entries))
    settings = tls_settings(authority, security__tokens_file=str(tokens), security__anonymous="never")
    settings["security__tls_client_ca"] = ""
    with ThreadCollector(tmp_path / "data", **settings) as collector:
        agents = with_token(tmp_path, "of-agents", authority)
        assert end_of(collector.target, hello("host-1"), agents)[0] == "OK"
        assert end_of(collector.target, hello("elsewhere"), agents)[0] == "PERMISSION_DENIED"
        assert end_of(collector.target, hello("host-1"), with_token(tmp_path, "of-reader", authority))[0] == (
            "PERMISSION_DENIED"
        )
        for token in ("of-reader", "of-admin"):
            with Client(collector.target, security=with_token(tmp_path, token, authority)) as client:
                client.list_runs()
        for security in (ClientSecurity(str(authority.ca)), with_token(tmp_path, "of-nobody", authority)):
            with Client(collector.target, security=security) as client:
                with pytest.raises(CollectorError) as error:
                    client.list_runs()
                assert error.value.code == "UNAUTHENTICATED"


def test_a_wrong_token_is_not_passed_over_where_none_is_needed(collector, tmp_path):
    with Client(collector.target) as client:
        client.list_runs()
    with Client(collector.target, security=with_token(tmp_path, "guess")) as client:
        with pytest.raises(CollectorError) as error:
            client.list_runs()
        assert error.value.code == "UNAUTHENTICATED"


def test_a_withdrawn_token_ends_its_stream(tmp_path, authority):
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(token_entry("of-agents", Role.AGENT))
    with ThreadCollector(tmp_path / "data", security__tokens_file=str(tokens)) as collector:
        security = with_token(tmp_path, "of-agents")
        with WireStream(collector.target, hello(), security=security) as stream:
            stream.greet()
            stream.send(inventory(), batch(2)).wait_acked(2)
            tokens.write_text("")
            tokens.write_text("# nobody\n")
            assert stream.end() == ("UNAUTHENTICATED", "the token was withdrawn")
            assert stream.acked == 2
        assert end_of(collector.target, hello(), security)[0] == "UNAUTHENTICATED"


def test_health_is_answered_to_everybody(authority, tmp_path):
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(token_entry("x", Role.ADMIN))
    settings = {"security__tokens_file": str(tokens), "security__anonymous": "never"}
    with (
        ThreadCollector(tmp_path / "data", **settings) as collector,
        grpc.insecure_channel(collector.target) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        wait_until(lambda: stub.Check(health_pb2.HealthCheckRequest()).status == 1)
        with pytest.raises(grpc.RpcError) as error:
            channel.unary_unary("/gpusonde.query.v1.QueryService/ListRuns")(b"\xff\xff garbage")
        # Nothing of a stranger's request is even decoded.
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("method", ["ListRuns", "ListEpochs", "PredictEpochLatency"])
def test_a_request_that_cannot_be_decoded_is_the_callers_fault(collector, method):
    with grpc.insecure_channel(collector.target) as channel:
        with pytest.raises(grpc.RpcError) as error:
            channel.unary_unary(f"/gpusonde.query.v1.QueryService/{method}")(b"\xff\xff garbage")
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as error:
            list(channel.unary_stream("/gpusonde.query.v1.QueryService/ReadSamples")(b"\xff\xff garbage"))
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(("listen", "served"), [("127.0.0.1:0", True), ("0.0.0.0:0", False)])
def test_reflection_is_off_where_others_can_reach_it_with_tls_too(authority, tmp_path, listen, served):
    settings = tls_settings(authority, server__listen=listen)
    reader = with_certificate(authority, "reader", "r")
    with ThreadCollector(tmp_path / "data", **settings) as collector:
        target = collector.target.replace("0.0.0.0", "127.0.0.1")
        access = reader.load(target)
        with grpc.secure_channel(target, access.credentials) as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            if served:
                names = [
                    s.name for s in next(stub.ServerReflectionInfo(iter([request]))).list_services_response.service
                ]
                assert "gpusonde.query.v1.QueryService" in names
            else:
                with pytest.raises(grpc.RpcError) as error:
                    next(stub.ServerReflectionInfo(iter([request])))
                assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_collector_with_a_bad_certificate_or_tokens_file_does_not_start(authority, tmp_path):
    bad = tmp_path / "bad.pem"
    bad.write_text("nonsense")
    settings = tls_settings(authority, security__tls_client_ca=str(bad))
    with pytest.raises(TlsError, match=r"bad\.pem"):
        ThreadCollector(tmp_path / "a", **settings).__enter__()
    with pytest.raises(TlsError, match=r"bad\.pem"):
        ThreadCollector(tmp_path / "b", security__tokens_file=str(bad)).__enter__()


def test_a_collector_says_at_its_start_which_secrets_every_user_can_read(authority, tmp_path, caplog):
    settings = tls_settings(authority)
    key, tokens = Path(settings["security__tls_key"]), tmp_path / "tokens.toml"
    key.chmod(0o644)
    tokens.write_text(token_entry("of-agents", Role.AGENT))
    tokens.chmod(0o646)
    with ThreadCollector(tmp_path / "data", **settings, security__tokens_file=str(tokens)):
        pass
    key.chmod(0o600)
    assert f"{key} is open to every user of this host (mode 0644)" in caplog.text
    assert f"{tokens} is open to every user of this host (mode 0646)" in caplog.text
