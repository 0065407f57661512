"""Configuration: where values come from, and what is refused."""

import pytest

from gpusonde.collector.config import CollectorConfig
from gpusonde.errors import ConfigError


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[ingest]\nmax_agents = 0\n", "0 is out of its range, 1 to 1000000"),
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
        ('[security]\ncertificate_role = "admin"\n', "use nothing, agent or reader"),
        ('[security]\nanonymous = "yes"\n', "use loopback, never or anywhere"),
        ('[log]\nlevel = "loud"\n', "use debug, info"),
        ("[runs]\nactivity_threshold = 2\n", "0 to 0.99"),
        ('[runs]\nheld_end = "1s"\n', "is shorter than runs.idle_end"),
        ('[store]\nraw_retention = "10m"\n', "0s, or 1h or more"),
        ('[store]\nengine = "sqlite"\n', "use local or clickhouse"),
        ('[store]\nengine = "clickhouse"\n', "clickhouse.url '' is no address; write https://host:8443"),
        *(
            (f'[store]\nengine = "clickhouse"\n[clickhouse]\nurl = "{url}"\n', f"clickhouse.url '{url}' is no address")
            for url in ("http://", "https://:8443", "http://h:port", "http://h:99999", "http://h h", "http://[h")
        ),
        (
            '[store]\nengine = "clickhouse"\n[clickhouse]\nurl = "http://h:1"\ndatabase = "a; DROP"\n',
            "'a; DROP' is no name",
        ),
        ('[clickhouse]\ntls_key = "x"\n', "come together"),
        ('[clickhouse]\ninsert_interval = "1m"\n', "10ms to 10s"),
    ],
)
def test_a_mistake_is_an_error_that_says_where_and_what(tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        load(text, tmp_path)
    assert words in str(caught.value)


def test_the_data_directory_has_a_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert CollectorConfig().directory == tmp_path / ".local/state/gpusonde/collector"
    assert CollectorConfig.load(overrides={"store.directory": "~/x"}).directory == tmp_path / "x"
