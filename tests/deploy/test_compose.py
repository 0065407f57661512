"""The Compose file as far as it can be checked without a container engine."""

import re
from pathlib import Path

import pytest
import yaml

from gpusonde.agent import AgentConfig
from gpusonde.collector import CollectorConfig

FOLDER = Path(__file__).parents[2] / "deploy" / "compose"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
DAEMONS = {"collector": CollectorConfig, "agent": AgentConfig}


def daemon_of(name):
    return DAEMONS.get(name.rpartition("-")[0])


def config_of(name):
    service = SERVICES[name]
    config = daemon_of(name)
    environment = {k: str(v) for k, v in service["environment"].items() if k.startswith(config.environment_prefix)}
    assert environment.keys() == service["environment"].keys()
    return config.load(environment=environment)


@pytest.mark.parametrize("name", [name for name in SERVICES if daemon_of(name)])
def test_what_the_daemons_are_told_is_what_they_take(name):
    config = config_of(name)
    if isinstance(config, CollectorConfig):
        assert config.store.engine == "clickhouse"
        assert config.server.id == name
        assert config.clickhouse.password_file == SERVICES[name]["configs"][0]["target"]
    else:
        mounts = dict(volume.split(":")[:2][::-1] for volume in SERVICES[name]["volumes"])
        folder, _, file = config.source.trace.rpartition("/")
        assert (FOLDER / mounts[folder] / file).is_file()
        collectors = {config_of(each).server.listen for each in SERVICES if each.startswith("collector")}
        assert config.uplink.collector in collectors


def test_daemons_in_one_network_have_ports_of_their_own():
    names = [name for name in SERVICES if daemon_of(name)]
    assert {SERVICES[name].get("network_mode", "service:collector-1") for name in names} == {"service:collector-1"}
    ports = [config_of(name).metrics.listen.rpartition(":")[2] for name in names]
    ports += [config_of(name).server.listen.rpartition(":")[2] for name in names if name.startswith("collector")]
    assert len(set(ports)) == len(ports)


def test_prometheus_asks_every_daemon_and_nobody_else():
    scrape = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    asked = {job["job_name"]: set(job["static_configs"][0]["targets"]) for job in scrape}
    for kind in DAEMONS:
        names = [name for name in SERVICES if name.startswith(f"{kind}-")]
        ports = {config_of(name).metrics.listen.rpartition(":")[2] for name in names}
        assert asked[f"gpusonde-{kind}"] == {f"collector-1:{port}" for port in ports}


def test_the_second_collector_is_asked_for_its_health_where_it_listens():
    check = SERVICES["collector-2"]["healthcheck"]["test"][-1]
    assert config_of("collector-2").metrics.listen.rpartition(":")[2] in check
    compile(check, "health check", "exec")


def test_everything_that_is_mounted_built_or_waited_for_is_there():
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (FOLDER / source).exists(), f"{name} mounts {source}"
            else:
                assert source in COMPOSE["volumes"], f"{name} mounts {source}"
        for other in service.get("depends_on", ()):
            assert other in SERVICES
        if build := service.get("build"):
            assert (FOLDER / build["context"] / build["dockerfile"]).is_file()
        for config in service.get("configs", ()):
            assert config["source"] in COMPOSE["configs"]


def test_images_are_ours_or_of_a_release_and_ports_are_on_loopback():
    built = {service["image"] for service in SERVICES.values() if "build" in service}
    for service in SERVICES.values():
        assert service["image"] in built or re.search(r":v?\d+\.\d+", service["image"])
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_database_and_collectors_share_user_database_and_password():
    database = SERVICES["clickhouse"]["environment"]
    config = config_of("collector-1")
    assert (database["CLICKHOUSE_USER"], database["CLICKHOUSE_DB"]) == (
        config.clickhouse.user, config.clickhouse.database,
    )  # fmt: skip
    assert database["CLICKHOUSE_PASSWORD"] == COMPOSE["configs"]["clickhouse_password"]["content"]
