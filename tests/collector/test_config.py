"""Configuration: where values come from, what is refused, and that the shipped file shows the defaults."""

from pathlib import Path

import pytest

from gpusonde.collector.config import CollectorConfig, ConfigError

SHIPPED = Path(__file__).parents[2] / "deploy" / "config" / "collector.toml"


def load(text, tmp_path, **more):
    path = tmp_path / "collector.toml"
    path.write_text(text)
    return CollectorConfig.load(path, **more)


def test_flags_win_over_environment_over_file_over_defaults(tmp_path):
    text = '[store]\nsegment_interval = "10s"\nreserve_bytes = "1GiB"\n[ingest]\nmax_agents = 7\n'
    config = load(
        text,
        tmp_path,
        environment={"GPUSONDE_COLLECTOR_STORE_SEGMENT_INTERVAL": "20s", "GPUSONDE_COLLECTOR_INGEST_MAX_AGENTS": "8"},
        overrides={"ingest.max_agents": "9"},
    )
    assert config.store.segment_interval_s == 20.0
    assert config.store.reserve_bytes == 1 << 30
    assert config.ingest.max_agents == 9
    assert config.ingest.commit_interval_s == 0.1


def test_what_is_printed_reads_back_to_the_same(tmp_path):
    config = CollectorConfig.load(
        overrides={"server.id": 'a "quoted" \\ name', "runs.idle_end": "1500ms", "runs.activity_threshold": "0.1"}
    )
    assert load(config.to_toml(), tmp_path) == config


def test_the_shipped_file_shows_every_option_with_its_default():
    assert CollectorConfig.load(SHIPPED) == CollectorConfig()
    text = SHIPPED.read_text()
    for key in CollectorConfig.options():
        assert f"\n{key.split('.')[1]} = " in text, key


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[store]\nsegment_intervall = 1\n", "unknown key store.segment_intervall; [store] has engine"),
        ("[shop]\n", None),
        ("[shop]\nx = 1\n", "unknown section [shop]; known are server"),
        ("x = 1\n", "x stands outside a section"),
        ("[store]\nsegment_interval = 60\n", "60 has no unit; write for example"),
        ('[store]\nsegment_interval = "60"\n', "'60' has no unit"),
        ('[store]\nsegment_interval = "60 parsecs"\n', "unknown unit"),
        ('[store]\nreserve_bytes = "1Gb"\n', "unknown unit"),
        ("[server]\nid = 5\n", "5 is not text; put it in quotes"),
        ("[ingest]\nmax_agents = 1.5\n", "1.5 is not a whole number"),
        ("[ingest]\nmax_agents = true\n", "True is not a number"),
        ("[ingest]\nmax_agents = 0\n", "ingest.max_agents is out of its range"),
        ('[server]\nlisten = "somewhere"\n', "is no address; write host:port"),
        ('[server]\nlisten = "host:99999"\n', "is no address"),
        ('[server]\nreflection = "maybe"\n', "use loopback, on or off"),
        ('[server]\nlisten = "0.0.0.0:1"\n', "there is no TLS: give security.tls_certificate"),
        (
            '[server]\nlisten = "0.0.0.0:1"\n[security]\nplaintext = "anywhere"\n',
            "nobody could connect to server.listen 0.0.0.0:1",
        ),
        ('[security]\ntls_certificate = "x"\n', "come together"),
        (
            '[store]\nengine = "clickhouse"\n[clickhouse]\nurl = "https://user:hidden@host:8443"\n',
            "clickhouse.url holds a user",
        ),
        ('[security]\ntls_client_ca = "x"\n', "needs security.tls_certificate"),
        ('[security]\ncertificate_role = "agent"\n', "is about client certificates"),
        ('[security]\ncertificate_role = "admin"\n', "use nothing, agent, reader"),
        ('[security]\nanonymous = "yes"\n', "use loopback, never, anywhere"),
        ('[log]\nlevel = "loud"\n', "use debug, info"),
        ("[runs]\nactivity_threshold = 2\n", "is a ratio"),
        ('[runs]\nheld_end = "1s"\n', "is shorter than runs.idle_end"),
        ('[store]\nraw_retention = "10m"\n', "store.raw_retention is shorter than an hour; use 0s"),
        ('[store]\nengine = "sqlite"\n', "use local or clickhouse"),
        ('[store]\nengine = "clickhouse"\n', "clickhouse.url '' is no address; write https://host:8443"),
        (
            '[store]\nengine = "clickhouse"\n[clickhouse]\nurl = "http://h:1"\ndatabase = "a; DROP"\n',
            "'a; DROP' is no name",
        ),
        (
            '[store]\nengine = "clickhouse"\n[clickhouse]\nurl = "http://h:1"\n[server]\nshare_port = true\n',
            "give each a server.id",
        ),
        ('[clickhouse]\ntls_key = "x"\n', "come together"),
        ('[clickhouse]\ninsert_interval = "1m"\n', "clickhouse.insert_interval is out of its range"),
        ("[store]\ncompact_share = 0\n", "store.compact_share is out of its range"),
        ("not toml", "not TOML"),
    ],
)
def test_a_mistake_is_an_error_that_says_where_and_what(tmp_path, text, words):
    if words is None:
        load(text, tmp_path)
        return
    with pytest.raises(ConfigError) as caught:
        load(text, tmp_path)
    assert words in str(caught.value)


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        CollectorConfig.load(tmp_path / "none.toml")


def test_an_unknown_environment_variable_is_an_error():
    with pytest.raises(ConfigError, match="GPUSONDE_COLLECTOR_PORT is no option"):
        CollectorConfig.load(environment={"GPUSONDE_COLLECTOR_PORT": "1"})


def test_the_data_directory_has_a_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert CollectorConfig().directory == tmp_path / ".local/state/gpusonde/collector"
    assert CollectorConfig.load(overrides={"store.directory": "~/x"}).directory == tmp_path / "x"


@pytest.mark.parametrize("content", ["a = " + "9" * 5000, "[log]\nlevel = " + "9" * 5000, "a = " + "[" * 100_000])
def test_a_file_that_pythons_parser_chokes_on_is_refused_by_its_name(tmp_path, content):
    path = tmp_path / "c.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"c\.toml"):
        CollectorConfig.load(path)


@pytest.mark.parametrize(
    "option",
    [
        {"ingest.max_record_bytes": "9" * 5000 + "GiB"},
        {"ingest.commit_interval": "9" * 5000 + "s"},
        {"ingest.max_gpus": "9" * 5000},
        {"log.level": "x" * 1_000_000},
        {"x" * 1_000_000: "1"},
    ],
)
def test_a_value_of_any_size_is_refused_in_few_words(option):
    with pytest.raises(ConfigError) as error:
        CollectorConfig.load(overrides=option)
    assert len(str(error.value)) < 3000
