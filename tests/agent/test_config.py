"""The agent's configuration: where settings come from, and what is wrong with them."""

import pytest

from gpusonde.agent import AgentConfig
from gpusonde.errors import ConfigError


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
    ("text", "field", "words"),
    [
        ('[source]\ninterval = "10ms"', "source.interval", "100ms or more"),
        ('[source]\nslow_interval = "10ms"', "source.slow_interval", "shorter than"),
        ("[source]\nread_budget = 25", "source.read_budget", "0.001 to 1"),
        ('[source]\nidle_interval = "5s"', "source.idle_interval", "1s or less"),
        ('[source]\nidle_after = "10ms"', "source.idle_after", "1s or more"),
        ('[source]\nkind = "magic"', "source.kind", "use auto, dcgm, nvml or replay"),
        ('[source]\ndcgm_address = "localhost"', "source.dcgm_address", "use HOST:PORT, unix:///PATH or embedded"),
        ('[source]\nkind = "replay"', "source.kind", "names no file"),
        ("[source]\nspeed = 0", "source.speed", "0.001 or more"),
        ('[spool]\nmax_bytes = "10KiB"', "spool.max_bytes", "1MiB or more"),
        ('[spool]\ncommit_interval = "1m"', "spool.commit_interval", "10ms to 10s"),
        ('[jobs]\nslurm_index = "cuda"', "jobs.slurm_index", "use nvml or device"),
        ('[uplink]\nbatch_interval = "1ms"', "uplink.batch_interval", "100ms to 1m"),
        ('[uplink]\ncollector = ""', "uplink.collector", "host:port"),
        ('[metrics]\nlisten = "here"', "metrics.listen", "write host:port"),
        ('[log]\nlevel = "loud"', "log.level", "debug, info, warning"),
        ('[agent]\nid = "a b"', "agent.id", "beginning with a letter or digit"),
        ('[agent]\nid = "a\\nb"', "agent.id", "beginning with a letter or digit"),
    ],
)
def test_a_value_that_is_not_allowed_is_named_with_its_place_and_the_remedy(tmp_path, text, field, words):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=words) as caught:
        AgentConfig.load(path)
    assert (caught.value.path, caught.value.field) == (str(path), field)


def test_a_misspelt_environment_variable_is_an_error():
    with pytest.raises(ConfigError, match="GPUSONDE_AGENT_SPEED is no option"):
        AgentConfig.load(environment={"GPUSONDE_AGENT_SPEED": "2"})


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


def test_the_spool_has_a_place_in_the_home_of_whoever_runs_the_agent(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert AgentConfig().spool.path == tmp_path / ".local" / "state" / "gpusonde" / "spool"
    assert AgentConfig.load(overrides={"spool.directory": "~/s"}).spool.path == tmp_path / "s"
