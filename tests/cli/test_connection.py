"""Where commands find the collector: the flag before the environment before the user's profile."""

from __future__ import annotations

import argparse
import os

import pytest

from gpusonde.cli.connection import ClientProfile, client_security, collector_address
from gpusonde.cli.main import build_parser, main


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """The path of the user's profile, whose folder is there."""
    for name in [name for name in os.environ if name.startswith("GPUSONDE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "gpusonde").mkdir()
    return tmp_path / "gpusonde" / "client.toml"


def collector_of(*arguments):
    return collector_address(build_parser().parse_args(["runs", *arguments]))


def test_the_address_comes_from_the_flag_or_the_environment_or_the_profile(profile, monkeypatch):
    assert collector_of() == "127.0.0.1:7433"
    profile.write_text('collector = "of.profile:1"\n')
    assert collector_of() == "of.profile:1"
    monkeypatch.setenv("GPUSONDE_COLLECTOR", "of.environment:2")
    assert collector_of() == "of.environment:2"
    assert collector_of("--collector", "of.flag:3") == "of.flag:3"


def test_commands_that_answer_here_are_not_sent_to_a_collector_by_a_profile(profile):
    profile.write_text('collector = "of.profile:1"\n')
    assert build_parser().parse_args(["predict", "--trace", "t.csv"]).collector is None


def test_files_of_the_profile_lie_beside_it_and_give_way_to_environment_and_flag(profile, tmp_path):
    profile.write_text('tls_ca = "ca.pem"\ntoken_file = "/run/token"\ntls_server_name = "inside"\n')
    given = {"collector": "host:1", "tls_ca": None, "tls_cert": None, "tls_key": None, "token_file": None}
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    found = client_security(argparse.Namespace(**given), environment)
    assert (found.ca, found.token_file) == (str(profile.parent / "ca.pem"), "/run/token")
    assert found.server_name == "inside"
    environment |= {"GPUSONDE_TLS_CA": "other.pem", "GPUSONDE_TLS_SERVER_NAME": "outside"}
    found = client_security(argparse.Namespace(**{**given, "token_file": "mine"}), environment)
    assert (found.ca, found.token_file, found.server_name) == ("other.pem", "mine", "outside")


def test_a_home_without_a_profile_and_no_home_at_all_are_no_error(tmp_path):
    assert ClientProfile.read({"HOME": str(tmp_path)}) == ClientProfile()
    assert ClientProfile.read({}) == ClientProfile()


@pytest.mark.parametrize(
    "command", ["runs", "jobs", "epochs", "idle", "tell", "fleet", "predict", "plan", "monitor", "workload predict"]
)
def test_a_broken_profile_is_in_nobodys_way_to_help(profile, capsys, command):
    profile.write_text("collector = \n")
    with pytest.raises(SystemExit) as left:
        main([*command.split(), "--help"])
    assert left.value.code == 0
    assert "--collector" in capsys.readouterr().out


def test_an_address_of_the_environment_that_is_none_is_named_by_its_variable(profile, monkeypatch, capsys):
    monkeypatch.setenv("GPUSONDE_COLLECTOR", "https://host:1")
    assert main(["runs"]) == 2
    assert "GPUSONDE_COLLECTOR: 'https://host:1' is a URL; write HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('colector = "a:1"\n', "colector: there is no such key; did you mean 'collector'?"),
        ('collector = "a"\n', "collector: 'a' is not HOST:PORT"),
        ("collector = 7\n", "collector: "),
        ("collector = \n", "line 1"),
        ('\ncollector: "a:1"\n', "line 2"),
        ('collector: "a:1"\n', 'write one key to a line, for example collector = "127.0.0.1:7433"'),
    ],
)
def test_a_profile_that_cannot_be_is_named_with_the_key(profile, capsys, text, said):
    profile.write_text(text)
    assert main(["runs"]) == 2
    error = capsys.readouterr().err
    assert f"{profile}: " in error
    assert said in error


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("https://host:7433", "is a URL; write HOST:PORT"),
        ("::1:7433", "an IPv6 host stands in brackets, for example [::1]:7433"),
        ("host", "is not HOST:PORT"),
        ("host:99999", "is not HOST:PORT"),
        ("..:7433", "'..:7433': no host has such a name"),
        (f"{'a' * 64}.example:7433", "1 to 63 characters"),
        ("a..b:7433", "1 to 63 characters"),
        ("\udcff:7433", "no host has such a name"),
    ],
)
def test_addresses_that_are_none_are_refused_with_what_to_write(profile, capsys, address, said):
    assert main(["runs", "--collector", address]) == 2
    assert said in capsys.readouterr().err
