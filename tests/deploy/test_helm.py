"""The chart, where something renders it here: the objects of kustomize, with what values set."""

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from gpusonde.agent import AgentConfig
from gpusonde.collector import CollectorConfig

CHART = Path(__file__).parents[2] / "deploy" / "kubernetes"
HAS_LIBRARY = importlib.util.find_spec("helm_python") is not None

needs_helm = pytest.mark.skipif(
    not HAS_LIBRARY and shutil.which("helm") is None, reason="neither helm nor helm-python-sdk is here"
)


def render(tmp_path, values, namespace="gpusonde"):
    """Render with the library of Helm 4, else with the command."""
    if HAS_LIBRARY:
        from helm_python.chart import Chart

        with Chart.load(str(CHART)) as chart:
            chart.validate_schema(values)
            text = "\n---\n".join(chart.render(values=values, name="gpusonde", namespace=namespace).values())
    else:
        (tmp_path / "values.yaml").write_text(json.dumps(values))
        command = ["helm", "template", "gpusonde", str(CHART), "-n", namespace, "-f", str(tmp_path / "values.yaml")]
        text = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout
    return {(d["kind"], d["metadata"]["name"]): d for d in yaml.safe_load_all(text) if d}


def container(objects, kind, name):
    (found,) = objects[kind, name]["spec"]["template"]["spec"]["containers"]
    return found


def environment(objects, kind, name):
    return {entry["name"]: entry.get("value") for entry in container(objects, kind, name).get("env", [])}


def test_version_and_secrets_are_those_of_the_images_and_of_the_manifests():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    tags = {image["newTag"] for image in yaml.safe_load((CHART / "base" / "kustomization.yaml").read_text())["images"]}
    assert tags == {chart["appVersion"]}
    manifests = "".join(path.read_text() for path in (CHART / "base").glob("*.yaml"))
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert [name for name in values["secrets"].values() if name not in manifests] == []


@needs_helm
def test_without_values_it_is_what_kustomize_makes(tmp_path):
    objects = render(tmp_path, {})
    expected = {}
    for path in (CHART / "base").glob("*.yaml"):
        for found in yaml.safe_load_all(path.read_text()):
            if found["kind"] not in ("Kustomization", "Namespace"):
                expected[found["kind"], found["metadata"]["name"]] = found
    configs = {key for key in objects if key[0] == "ConfigMap"}
    assert configs == {("ConfigMap", "gpusonde-agent"), ("ConfigMap", "gpusonde-collector")}
    assert set(objects) - configs == set(expected)
    for daemon in ("agent", "collector"):
        data = objects["ConfigMap", f"gpusonde-{daemon}"]["data"][f"{daemon}.toml"]
        assert data.strip() == (CHART / "base" / f"{daemon}.toml").read_text().strip()
    for key, wanted in expected.items():
        found = objects[key]
        assert found["metadata"]["namespace"] == "gpusonde"
        if key[0] in ("DaemonSet", "StatefulSet"):
            (its,) = wanted["spec"]["template"]["spec"]["containers"]
            its["image"] += ":0.1.0"
            assert len(found["spec"]["template"]["metadata"]["annotations"].pop("gpusonde/config")) == 64
        assert found.get("spec") == wanted.get("spec")


@needs_helm
def test_values_set_options_images_storage_and_what_a_cluster_asks_of_pods(tmp_path):
    values = {
        "image": {"registry": "registry.example.org/gpu/", "tag": "1.2"},
        "agent": {
            "config": {"source": {"interval": "200ms", "dcgm_address": ""}, "jobs": {"cgroups": False}},
            "pod": {"nodeSelector": {"gpu": "true"}, "imagePullSecrets": [{"name": "pull"}]},
            "container": {"resources": {"limits": {"memory": "300Mi"}}},
        },
        "collector": {
            "storage": {"size": "1Ti", "className": "fast"},
            "config": {"store": {"raw_max_bytes": "500GiB"}},
        },
        "secrets": {"tls": "our-tls"},
        "networkPolicy": False,
        "certManager": True,
        "monitoring": True,
    }
    objects = render(tmp_path, values, namespace="watch")
    assert {d["metadata"]["namespace"] for d in objects.values()} == {"watch"}
    assert not [key for key in objects if key[0] == "NetworkPolicy"]
    assert {"Certificate", "Issuer", "ServiceMonitor", "PodMonitor"} <= {key[0] for key in objects}
    agent = container(objects, "DaemonSet", "gpusonde-agent")
    assert agent["image"] == "registry.example.org/gpu/gpusonde-agent:1.2"
    assert agent["resources"]["limits"] == {"cpu": "500m", "memory": "300Mi"}
    pod = objects["DaemonSet", "gpusonde-agent"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"]["gpu"] == "true"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    said = {name: value for name, value in environment(objects, "DaemonSet", "gpusonde-agent").items() if value}
    given = {k: v for k, v in said.items() if k.startswith("GPUSONDE_") and "$(" not in v}
    text = tmp_path / "agent.toml"
    text.write_text(objects["ConfigMap", "gpusonde-agent"]["data"]["agent.toml"])
    config = AgentConfig.load(text, environment=given)
    assert (config.source.interval_s, config.jobs.cgroups) == (0.2, False)
    assert config.uplink.collector == "gpusonde-collector.watch.svc:7433"
    names = [entry["name"] for entry in agent["env"]]
    assert len(names) == len(set(names))
    (claim,) = objects["StatefulSet", "gpusonde-collector"]["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"]["requests"]["storage"] == "1Ti"
    text.write_text(objects["ConfigMap", "gpusonde-collector"]["data"]["collector.toml"])
    given = environment(objects, "StatefulSet", "gpusonde-collector")
    assert CollectorConfig.load(text, environment=given).store.raw_max_bytes == 500 << 30
    volumes = str(objects["StatefulSet", "gpusonde-collector"]["spec"]["template"]["spec"]["volumes"])
    assert "our-tls" in volumes
    assert objects["Certificate", "gpusonde-collector"]["spec"]["secretName"] == "our-tls"
    assert "gpusonde-collector.watch.svc" in objects["Certificate", "gpusonde-collector"]["spec"]["dnsNames"]


@needs_helm
def test_a_receiver_outside_is_let_through_beside_what_the_daemons_call_anyway(tmp_path):
    receiver = {"to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}], "ports": [{"port": 4317}]}
    before = render(tmp_path, {})["NetworkPolicy", "gpusonde-agent"]["spec"]["egress"]
    objects = render(tmp_path, {"collector": {"egress": [receiver]}, "agent": {"egress": [receiver]}})
    assert objects["NetworkPolicy", "gpusonde-collector"]["spec"]["egress"] == [receiver]
    assert objects["NetworkPolicy", "gpusonde-agent"]["spec"]["egress"] == [*before, receiver]


def test_a_misspelt_value_is_refused(tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.validate(yaml.safe_load((CHART / "values.yaml").read_text()), schema)
    for wrong in (
        {"network_policy": True},
        {"agent": {"configuration": {}}},
        {"agent": {"config": {"source": "200ms"}}},
        {"collector": {"egress": "192.0.2.7/32"}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
