"""The file of tokens: what it may hold, how it is reloaded, what it never says."""

import contextlib
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusonde.collector.security.identity import Role
from gpusonde.collector.security.tokens import TokenFile, digest_token, new_token, parse_tokens, token_entry
from gpusonde.errors import TlsError


def test_tokens_are_long_and_different():
    made = {new_token() for _ in range(100)}
    assert len(made) == 100
    assert min(map(len, made)) >= 43


def test_an_entry_names_role_and_agents_and_holds_a_digest_only(tmp_path):
    token = new_token()
    entry = token_entry(token, Role.AGENT, "host-*", "rack 3")
    assert token not in entry
    (identity,) = parse_tokens(entry.encode(), "f").values()
    assert identity.name == "token rack 3"
    assert identity.may_stream_as("host-17")
    assert not identity.may_stream_as("other-17")
    assert not identity.may(Role.READER)
    assert not identity.may(Role.ADMIN)


@pytest.mark.parametrize(
    ("role", "rights"),
    [("agent", {Role.AGENT}), ("reader", {Role.READER}), ("admin", {Role.ADMIN, Role.READER})],
)
def test_roles_allow_what_they_are_for(role, rights):
    (identity,) = parse_tokens(token_entry("x", Role(role)).encode(), "f").values()
    assert {known for known in Role if identity.may(known)} == rights


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("token = 3", "something else than"),
        ("[other]", "something else than"),
        ("[[token]]\ndigest = 'abc'\nrole = 'agent'", "64 hexadecimal"),
        (token_entry("x", Role.READER) + '\nagent_id = "a"', "agent_id is for the role agent"),
        (token_entry("x", Role.AGENT) + '\nagent_id = "a b"', "agent_id is for the role agent"),
        (token_entry("x", Role.AGENT).replace("agent", "god"), "role is not"),
        (token_entry("x", Role.AGENT) + "\nsecret = 'hush-hush'", "unknown keys"),
        (token_entry("x", Role.AGENT) + "\n" + token_entry("x", Role.READER), "earlier one"),
        ("[[token]]\ndigest = [\nrole", "is not TOML"),
        ("token = 'hush-hush", "is not TOML"),
    ],
)
def test_bad_files_are_refused_without_their_content(text, problem):
    with pytest.raises(TlsError, match=problem) as error:
        parse_tokens(text.encode(), "tokens.toml")
    assert "tokens.toml" in str(error.value)
    assert "hush-hush" not in str(error.value)


@given(st.one_of(st.binary(max_size=200), st.text(alphabet='[]token digest="role#\n=ab{},', max_size=120)))
def test_any_content_is_taken_or_refused(content):
    data = content if isinstance(content, bytes) else content.encode()
    with contextlib.suppress(TlsError):
        assert isinstance(parse_tokens(data, "f"), dict)


def test_a_changed_file_is_read_again_and_a_bad_one_changes_nothing(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path, now = tmp_path / "tokens.toml", [0.0]
    path.write_text(token_entry("first", Role.READER))
    tokens = TokenFile(str(path), clock=lambda: now[0])
    tokens.load()
    first = tokens.find("first")
    assert first
    assert tokens.find("second") is None
    path.write_text("nonsense = [")
    now[0] += 5
    assert tokens.find("first") == first
    now[0] += 5
    assert tokens.still_holds(first)
    assert caplog.text.count("the tokens in use stay") == 1
    path.write_text(token_entry("second", Role.READER))
    now[0] += 5
    assert tokens.find("first") is None
    assert not tokens.still_holds(first)
    assert tokens.find("second").token_digest == digest_token("second")


@pytest.mark.parametrize("content", [b"a = " + b"9" * 5000, b"a = " + b"[" * 100_000, b"\xff", b"[[token]]\na = 1e999"])
def test_what_the_parser_chokes_on_is_no_tokens_file_either(content):
    with pytest.raises(TlsError):
        parse_tokens(content, "f")
