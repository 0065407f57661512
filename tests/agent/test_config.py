"""The configuration: where settings come from, and what is wrong with them."""

from pathlib import Path

import pytest

from gpusonde.agent import AgentConfig, ConfigError
from gpusonde.service.config import QuantityError, format_duration, format_size, parse_duration_s, parse_size_bytes


def write(tmp_path, text):
    path = tmp_path / "agent.toml"
    path.write_text(text)
    return path


def test_flags_win_over_environment_over_file_over_defaults(tmp_path):
    path = write(tmp_path, '[source]\ninterval = "200ms"\nslow_interval = "20s"\n[uplink]\ncollector = "file:1"\n')
    config = AgentConfig.load(
        path,
        environment={
            "GPUSONDE_AGENT_SOURCE_SLOW_INTERVAL": "30s",
            "GPUSONDE_AGENT_UPLINK_COLLECTOR": "env:1",
            "HOME": "x",
        },
        overrides={"uplink.collector": "flag:1"},
    )
    assert config.source.interval_s == 0.2
    assert config.source.slow_interval_s == 30.0
    assert config.uplink.collector == "flag:1"
    assert config.spool.max_bytes == 1 << 30


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('[source]\nintervall = "1s"', "unknown key source.intervall"),
        ('[sauce]\ninterval = "1s"', r"unknown section \[sauce\]"),
        ('interval = "1s"', "outside a section"),
        ("[source]\ninterval = 3", "has no unit"),
        ('[source]\ninterval = "3"', "has no unit"),
        ('[source]\ninterval = "3 parsecs"', "unknown unit 'parsecs'"),
        ('[source]\ninterval = "fast"', "is not a duration"),
        ('[source]\ninterval = "10ms"', "too short"),
        ('[source]\nslow_interval = "10ms"', "shorter than"),
        ("[source]\nread_budget = 25", "no share of a core"),
        ('[source]\nidle_interval = "5s"', "seen too late"),
        ('[source]\nidle_after = "10ms"', "shorter than 1s"),
        ('[source]\nkind = "magic"', "use auto, dcgm, nvml or replay"),
        ('[source]\ndcgm_address = "localhost"', "use HOST:PORT, unix:///PATH or embedded"),
        ('[source]\nkind = "replay"', "names no file"),
        ("[source]\nspeed = 0", "not positive"),
        ('[source]\nspeed = "quick"', "not a number"),
        ("[source]\nspeed = true", "not a number"),
        ('[source]\nkeep_time = "perhaps"', "neither true nor false"),
        ("[spool]\nmax_bytes = 1000000000", "has no unit"),
        ('[spool]\nmax_bytes = "10KiB"', "too small"),
        ('[spool]\ncommit_interval = "1m"', "between 10ms and 10s"),
        ("[spool]\ndirectory = 7", "put it in quotes"),
        ('[jobs]\nslurm_index = "cuda"', "use nvml or device"),
        ('[jobs]\npoll_interval = "2m"', "between 1s and 30s"),
        ("[jobs]\ncgroups = 2", "neither true nor false"),
        ('[uplink]\ncompression = "rar"', "use zstd or none"),
        ('[uplink]\nbatch_interval = "1ms"', "between 100ms and 1m"),
        ("[uplink]\nmax_unacked_records = 1.5", "not a whole number"),
        ("[uplink]\nmax_unacked_records = 0", "between 1 and 10000"),
        ('[uplink]\ncollector = ""', "host:port"),
        ('[log]\nlevel = "loud"', "debug, info, warning"),
        ('[agent]\nid = "a b"', "beginning with a letter or digit"),
        ('[agent]\nid = "a\\nb"', "beginning with a letter or digit"),
        ("[source\n", "not TOML"),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_the_remedy(tmp_path, text, what):
    with pytest.raises(ConfigError, match=what) as caught:
        AgentConfig.load(write(tmp_path, text))
    if "unknown" in what or "unit" in what:
        assert "agent.toml" in str(caught.value)


def test_a_file_that_is_no_text_is_refused_with_its_name(tmp_path):
    path = tmp_path / "agent.toml"
    path.write_bytes(b'[agent]\nid = "\x9c"\n')
    with pytest.raises(ConfigError, match="save the file as UTF-8") as caught:
        AgentConfig.load(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('[source]\nintervall = "1s"', "source.intervall"),
        ("[source]\ninterval = 3", "source.interval"),
        ('[sauce]\ninterval = "1s"', "sauce"),
        ('interval = "1s"', "interval"),
    ],
)
def test_an_error_keeps_file_and_field(tmp_path, text, field):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        AgentConfig.load(path)
    assert (caught.value.path, caught.value.field) == (str(path), field)


def test_a_misspelt_environment_variable_is_an_error():
    with pytest.raises(ConfigError, match="GPUSONDE_AGENT_SPEED is no option"):
        AgentConfig.load(environment={"GPUSONDE_AGENT_SPEED": "2"})


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        AgentConfig.load(tmp_path / "nowhere.toml")


def test_the_printed_configuration_is_a_file_that_says_the_same(tmp_path):
    config = AgentConfig.load(
        overrides={
            "source.kind": "replay",
            "source.trace": 'C:\\odd "name"\twith a tab.csv',
            "source.speed": "12.5",
            "source.keep_time": "true",
            "source.interval": "150ms",
            "source.slow_interval": "2.5m",
            "spool.max_bytes": "1536MiB",
        }
    )
    assert AgentConfig.load(write(tmp_path, config.to_toml())) == config
    assert AgentConfig.load(write(tmp_path, AgentConfig().to_toml())) == AgentConfig()


def test_every_option_has_a_line_of_help():
    assert all(AgentConfig.options().values())
    assert "source.interval" in AgentConfig.options()
    assert "spool.max_bytes" in AgentConfig.options()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("100ms", 0.1), ("10s", 10.0), ("1.5h", 5400.0), ("5m", 300.0), ("2d", 172800.0), ("250us", 2.5e-4)],
)
def test_durations(text, seconds):
    assert parse_duration_s(text) == pytest.approx(seconds)
    assert parse_duration_s(format_duration(seconds)) == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize(("text", "size"), [("1GiB", 1 << 30), ("64 MiB", 64 << 20), ("5GB", 5 * 10**9), ("7B", 7)])
def test_sizes(text, size):
    assert parse_size_bytes(text) == size
    assert parse_size_bytes(format_size(size)) == size


@pytest.mark.parametrize("text", ["", "-1s", "1e3s", "nan s", "1,5s"])
def test_nonsense_is_no_duration(text):
    with pytest.raises(QuantityError):
        parse_duration_s(text)


def test_the_shipped_file_shows_every_option_with_its_default():
    path = Path(__file__).parents[2] / "deploy" / "config" / "agent.toml"
    assert AgentConfig.load(path) == AgentConfig()
    text = path.read_text()
    for option in AgentConfig.options():
        assert f"\n{option.partition('.')[2]} = " in text


def test_the_spool_has_a_place_in_the_home_of_whoever_runs_the_agent(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert AgentConfig().spool.path == tmp_path / ".local" / "state" / "gpusonde" / "spool"
    assert AgentConfig.load(overrides={"spool.directory": "~/s"}).spool.path == tmp_path / "s"
