"""The manifests start our programs with options that exist, ask for paths that are answered, and add up."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from deployed import KUBERNETES, ROOT, command, documents

from sglang_omni.serve.front.auth import OPEN_PATHS

SERVERS, ROUTERS = documents("base/servers.yaml"), documents("base/routers.yaml")
SERVER, ROUTER = SERVERS["StatefulSet", "sgl-omni-server"], ROUTERS["Deployment", "sgl-omni-router"]
GPU_SERVER = documents("overlays/gpu/servers.yaml")["StatefulSet", "sgl-omni-server"]
WORKLOADS = [pytest.param(SERVER, "cpu", id="server"), pytest.param(ROUTER, "router", id="router")]
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def container(workload: Any) -> Any:
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    return only


def options(workload: Any, target: str) -> Any:
    return command(target, container(workload)["args"])[1]


def lasts(probe: dict[str, int]) -> int:
    """Seconds until a probe that always fails has its effect."""
    return probe["periodSeconds"] * probe["failureThreshold"]


def test_each_option_exists() -> None:
    assert command("cpu", container(SERVER)["args"])[0] == "serve"
    assert command("cuda", container(GPU_SERVER)["args"])[0] == "serve"
    assert command("router", container(ROUTER)["args"])[0] == "route"


def test_what_leads_in_from_outside_names_the_routers() -> None:
    (port,) = ROUTERS["Service", "sgl-omni"]["spec"]["ports"]
    (rule,) = documents("components/ingress/ingress.yaml")["Ingress", "sgl-omni"]["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": "sgl-omni", "port": {"name": port["name"]}}
    (rule,) = documents("components/gateway/route.yaml")["HTTPRoute", "sgl-omni"]["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "sgl-omni", "port": port["port"]}]


@pytest.mark.parametrize(("workload", "target"), WORKLOADS)
def test_ports_are_those_that_are_listened_on(workload: Any, target: str) -> None:
    (port,) = container(workload)["ports"]
    given = options(workload, target)
    assert port == {"name": "http", "containerPort": given.port}
    assert given.host == "0.0.0.0"


@pytest.mark.parametrize(("workload", "target"), WORKLOADS)
def test_probes_ask_for_paths_that_need_no_key(workload: Any, target: str) -> None:
    paths = {
        container(workload)[probe]["httpGet"]["path"] for probe in PROBES if probe in container(workload)
    }
    if target == "router":
        source = (ROOT / "rust/router/src/front/gate.rs").read_text()
        assert paths == {"/readiness", "/liveness"}
        assert all(f'"{path}"' in source for path in paths)
    else:
        assert paths == {"/health"}
        assert paths <= OPEN_PATHS


@pytest.mark.parametrize(("workload", "target"), WORKLOADS)
def test_requests_have_time_to_end(workload: Any, target: str) -> None:
    """Kubernetes' time to end begins with the sleep; then SIGTERM comes, then what is not done is killed."""
    grace = workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    sleep = container(workload)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert sleep + options(workload, target).drain_timeout + 10 <= grace
    # A name's addresses are looked up every five seconds, and kept by the cluster's DNS for five or so.
    assert sleep >= 2 * 5


def test_a_server_is_not_killed_while_it_loads() -> None:
    """The image's --start-timeout ends a start that takes too long, and says why; a probe says nothing."""
    start = options(SERVER, "cpu").start_timeout
    assert lasts(container(SERVER)["startupProbe"]) > start
    assert lasts(container(SERVER)["livenessProbe"]) >= 600


def test_routers_find_the_servers() -> None:
    service = SERVERS["Service", "sgl-omni-servers"]
    (port,) = service["spec"]["ports"]
    assert service["spec"]["clusterIP"] == "None"
    assert options(ROUTER, "router").worker_dns == [f"{service['metadata']['name']}:{port['port']}"]
    assert SERVER["spec"]["serviceName"] == service["metadata"]["name"]


def test_both_sides_have_the_workers_key() -> None:
    server, router = options(SERVER, "cpu"), options(ROUTER, "router")
    assert str(server.api_key_file) == str(server.admin_api_key_file) == str(router.worker_api_key_file)
    mounted = {mount["mountPath"] for mount in container(SERVER)["volumeMounts"]}
    assert mounted == {"/cache", "/tmp", "/dev/shm", "/keys"}
    (keys,) = (each for each in SERVER["spec"]["template"]["spec"]["volumes"] if each["name"] == "keys")
    assert [item["path"] for item in keys["secret"]["items"]] == ["workers"]


@pytest.mark.parametrize("workload", [SERVER, ROUTER])
def test_containers_may_do_little(workload: Any) -> None:
    pod = workload["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 1000
    assert not pod["automountServiceAccountToken"]
    assert container(workload)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_metrics_that_are_scaled_by_exist() -> None:
    (scaler,) = documents("components/autoscaling/servers.yaml").values()
    text = (ROOT / "docs/observability.md").read_text()
    targets = {
        each["pods"]["metric"]["name"]: each["pods"]["target"]["averageValue"]
        for each in scaler["spec"]["metrics"]
    }
    assert all(f"| `{name}` | gauge |" in text for name in targets)
    places = options(GPU_SERVER, "cuda").max_concurrent_requests
    assert int(targets["sglang_omni_requests_running"]) == places * 3 / 4


def test_of_a_router_its_own_metrics_alone_are_scraped() -> None:
    """Without a key, that is what it gives: those of its servers would count once for each router."""
    monitor = documents("components/monitoring/monitors.yaml")["ServiceMonitor", "sgl-omni-router"]
    assert monitor["spec"]["endpoints"] == [{"port": "http", "path": "/metrics"}]


def test_what_is_put_together_exists() -> None:
    for path in KUBERNETES.rglob("kustomization.yaml"):
        listed = yaml.safe_load(path.read_text())
        named = [*listed.get("resources", []), *listed.get("components", [])]
        named += [each["path"] for each in listed.get("patches", []) if "path" in each]
        assert named
        assert [name for name in named if not (path.parent / name).exists()] == []
