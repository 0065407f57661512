"""The manifests as far as they can be checked without a cluster: rendered, parsed, and held against each other."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from gpusonde.agent import AgentConfig
from gpusonde.collector import CollectorConfig

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
PARTS = sorted(path.parent.name for path in KUBERNETES.glob("*/kustomization.yaml"))
DAEMONS = ("agent", "collector")


def documents(folder):
    """Every object that a kustomization lists, as it stands in its files."""
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())
    return [d for name in listed["resources"] for d in yaml.safe_load_all((folder / name).read_text())]


@pytest.fixture(scope="module")
def base():
    return documents(KUBERNETES / "base")


def one(base, kind, name):
    (found,) = (d for d in base if d["kind"] == kind and d["metadata"]["name"] == name)
    return found


def workload(base, daemon):
    return one(base, {"agent": "DaemonSet", "collector": "StatefulSet"}[daemon], f"gpusonde-{daemon}")


def pod(base, daemon):
    return workload(base, daemon)["spec"]["template"]["spec"]


def container(base, daemon):
    (found,) = pod(base, daemon)["containers"]
    return found


def test_there_is_a_base_and_what_a_cluster_may_have_besides():
    assert PARTS == ["base", "cert-manager", "monitoring"]


@pytest.mark.parametrize("part", PARTS)
def test_every_object_has_a_kind_a_version_and_a_name_of_its_own(part):
    found = documents(KUBERNETES / part)
    assert all(d["apiVersion"] and d["kind"] and d["metadata"]["name"] for d in found)
    assert len({(d["kind"], d["metadata"]["name"]) for d in found}) == len(found)
    listed = set(yaml.safe_load((KUBERNETES / part / "kustomization.yaml").read_text())["resources"])
    assert {path.name for path in (KUBERNETES / part).glob("*.yaml")} - {"kustomization.yaml"} == listed


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
@pytest.mark.parametrize("part", PARTS)
def test_kustomize_renders_the_same_objects(part):
    done = subprocess.run(
        ["kubectl", "kustomize", str(KUBERNETES / part)], capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    rendered = list(yaml.safe_load_all(done.stdout))
    names = {(d["kind"], d["metadata"]["name"]) for d in rendered if d["kind"] != "ConfigMap"}
    assert names == {(d["kind"], d["metadata"]["name"]) for d in documents(KUBERNETES / part)}
    assert {d["metadata"].get("namespace", "gpusonde") for d in rendered} == {"gpusonde"}
    for daemon in DAEMONS if part == "base" else ():
        (config,) = (
            d for d in rendered if d["kind"] == "ConfigMap" and d["metadata"]["name"].startswith(f"gpusonde-{daemon}-")
        )
        volumes = pod(rendered, daemon)["volumes"]
        assert [v["configMap"]["name"] for v in volumes if v["name"] == "config"] == [config["metadata"]["name"]]


@pytest.mark.parametrize(("daemon", "kind"), [("agent", AgentConfig), ("collector", CollectorConfig)])
def test_the_configuration_is_one_that_the_daemon_takes(base, daemon, kind):
    values = {"spec.nodeName": "node-7", "status.hostIP": "192.0.2.7"}
    environment = {}
    for entry in container(base, daemon).get("env", []):
        text = entry["value"] if "value" in entry else values[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        environment[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda match: environment[match[1]], text)
    config = kind.load(KUBERNETES / "base" / f"{daemon}.toml", environment=environment)
    ports = {port["name"]: port["containerPort"] for port in container(base, daemon)["ports"]}
    assert config.metrics.listen == f"0.0.0.0:{ports['metrics']}"
    if daemon == "agent":
        assert config.agent.id == "node-7"
        assert config.source.dcgm_address == "192.0.2.7:5555"
        assert not config.source.dcgm_embedded
        service = one(base, "Service", config.uplink.collector.split(".")[0])
        assert config.uplink.collector == f"gpusonde-collector.gpusonde.svc:{service['spec']['ports'][0]['port']}"
    else:
        assert config.server.listen == f"0.0.0.0:{ports['grpc']}"


@pytest.mark.parametrize("daemon", DAEMONS)
def test_every_path_of_the_configuration_is_mounted(base, daemon):
    mounts = {mount["mountPath"]: mount for mount in container(base, daemon)["volumeMounts"]}
    volumes = {volume["name"] for volume in pod(base, daemon)["volumes"]}
    volumes |= {c["metadata"]["name"] for c in workload(base, daemon)["spec"].get("volumeClaimTemplates", [])}
    assert {mount["name"] for mount in mounts.values()} == volumes
    paths = re.findall(r'"(/[^"]+)"', (KUBERNETES / "base" / f"{daemon}.toml").read_text())
    assert paths
    for path in paths:
        assert any(path.startswith(f"{mounted}/") for mounted in mounts), path
    assert container(base, daemon)["args"][-1] in mounts


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_pod_may_little(base, daemon):
    spec, its = pod(base, daemon), container(base, daemon)
    security = its["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert not security.get("privileged", False)
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not spec["automountServiceAccountToken"]
    assert not spec["enableServiceLinks"]
    assert "hostNetwork" not in spec
    assert its["resources"]["limits"]["memory"]
    account = one(base, "ServiceAccount", spec["serviceAccountName"])
    assert not account["automountServiceAccountToken"]
    assert not [d for d in base if d["kind"] in ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")]


def test_the_agent_runs_on_every_gpu_node_reads_the_kubelet_and_keeps_its_spool_on_the_host(base):
    spec = pod(base, "agent")
    assert spec["priorityClassName"] == "system-node-critical"
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in spec["tolerations"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    assert set(paths) == {"spool", "pod-resources"}
    mounts = {mount["name"]: mount for mount in container(base, "agent")["volumeMounts"]}
    assert mounts["pod-resources"]["readOnly"]
    assert AgentConfig().jobs.kubelet_socket == f"{mounts['pod-resources']['mountPath']}/kubelet.sock"
    assert paths["pod-resources"] == mounts["pod-resources"]["mountPath"]
    assert "nvidia.com/gpu" not in container(base, "agent")["resources"]["limits"]


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_pod_gets_longer_to_end_than_its_daemon_drains(base, daemon):
    config = {"agent": AgentConfig, "collector": CollectorConfig}[daemon].load(KUBERNETES / "base" / f"{daemon}.toml")
    drains_s = config.uplink.drain_timeout_s if daemon == "agent" else config.server.drain_grace_s
    assert pod(base, daemon)["terminationGracePeriodSeconds"] >= drains_s + 15


@pytest.mark.parametrize("daemon", DAEMONS)
def test_probes_ask_what_the_daemon_answers(base, daemon):
    its = container(base, daemon)
    ports = {port["name"] for port in its["ports"]}
    asked = {name: its[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")}
    assert {name: ask["path"] for name, ask in asked.items()} == {
        "livenessProbe": "/-/healthy",
        "readinessProbe": "/-/ready",
    }
    assert {ask["port"] for ask in asked.values()} <= ports


def test_services_budgets_and_policies_select_the_pods(base):
    labels = {d: workload(base, d)["spec"]["template"]["metadata"]["labels"] for d in DAEMONS}
    for daemon in DAEMONS:
        assert workload(base, daemon)["spec"]["selector"]["matchLabels"].items() <= labels[daemon].items()
        assert one(base, "NetworkPolicy", f"gpusonde-{daemon}")["spec"]["podSelector"]["matchLabels"] == labels[daemon]
    for name in ("gpusonde-collector", "gpusonde-collector-pods"):
        service = one(base, "Service", name)
        assert service["spec"]["selector"].items() <= labels["collector"].items()
        ports = {port["name"] for port in container(base, "collector")["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    assert workload(base, "collector")["spec"]["serviceName"] == "gpusonde-collector-pods"
    budget = one(base, "PodDisruptionBudget", "gpusonde-collector")
    assert budget["spec"]["selector"]["matchLabels"] == labels["collector"]


def test_monitors_select_what_the_base_labels(base):
    monitors = {d["kind"]: d["spec"] for d in documents(KUBERNETES / "monitoring")}
    wanted = monitors["ServiceMonitor"]["selector"]["matchLabels"]
    services = [d for d in base if d["kind"] == "Service" and wanted.items() <= d["metadata"]["labels"].items()]
    assert [service["metadata"]["name"] for service in services] == ["gpusonde-collector-pods"]
    labels = workload(base, "agent")["spec"]["template"]["metadata"]["labels"]
    assert monitors["PodMonitor"]["selector"]["matchLabels"].items() <= labels.items()


def test_the_secrets_are_those_that_the_operator_is_told_to_make(base):
    text = str([pod(base, daemon)["volumes"] for daemon in DAEMONS])
    secrets = set(re.findall(r"'(?:secretName|name)': '(gpusonde-[\w-]*(?:tls|tokens?))'", text))
    assert secrets == {"gpusonde-collector-tls", "gpusonde-collector-tokens", "gpusonde-agent-token"}
    page = (ROOT / "docs" / "operations.md").read_text()
    assert [secret for secret in secrets if secret not in page] == []
    made = [d for d in documents(KUBERNETES / "cert-manager") if d["kind"] == "Certificate"]
    assert "gpusonde-collector-tls" in {certificate["spec"]["secretName"] for certificate in made}
    address = AgentConfig.load(KUBERNETES / "base" / "agent.toml").uplink.collector
    assert any(address.split(":")[0] in certificate["spec"].get("dnsNames", []) for certificate in made)


@pytest.mark.parametrize("daemon", DAEMONS)
def test_the_image_is_one_that_we_know_how_to_build(base, daemon):
    image = container(base, daemon)["image"]
    assert image == f"gpusonde-{daemon}"
    images = yaml.safe_load((KUBERNETES / "base" / "kustomization.yaml").read_text())["images"]
    assert image in {entry["name"] for entry in images}
    assert (ROOT / "deploy" / "docker" / f"{daemon}.Dockerfile").is_file()
