"""The manifests of examples/kubernetes against the part of Kubernetes' API that they use.

Written by hand from the API reference (v1, apps/v1, policy/v1, networking.k8s.io/v1): a field that
is not here is a misspelling, or is to be added. What names what, is there.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

FOLDER = Path(__file__).parents[1] / "examples" / "kubernetes"

# "!" after a name: it must be there. A type, a set of values, a folder of fields, [of each],
# or {"*": of any name}.
LABELS = {"*": str}
SELECTOR = {"matchLabels!": LABELS}
META = {"name!": str, "namespace!": str, "labels": LABELS}
CLAIM = {
    "accessModes!": [{"ReadWriteOnce", "ReadWriteMany"}],
    "resources!": {"requests!": {"storage!": str}},
}
AMOUNTS = {"cpu": str, "memory": str}
SOURCE = {
    "fieldRef": {"fieldPath!": {"status.podIP"}},
    "resourceFieldRef": {"resource!": {"limits.cpu"}},
}
CONTAINER = {
    "name!": str, "image!": str, "command": [str], "args": [str],
    "env": [{"name!": str, "value": str, "valueFrom": SOURCE}],
    "ports": [{"name!": str, "containerPort!": int}],
    "readinessProbe": {"tcpSocket!": {"port!": int}, "periodSeconds": int},
    "resources": {"limits": AMOUNTS, "requests": AMOUNTS},
    "securityContext": {
        "allowPrivilegeEscalation": bool, "capabilities": {"drop": [str]},
        "seccompProfile": {"type!": {"RuntimeDefault"}},
    },
    "volumeMounts": [{"name!": str, "mountPath!": str, "readOnly": bool}],
}  # fmt: skip
VOLUME = {
    "name!": str, "secret": {"secretName!": str, "defaultMode": int},
    "configMap": {"name!": str},
    "emptyDir": {"medium": {"Memory"}, "sizeLimit": str},
    "persistentVolumeClaim": {"claimName!": str},
}  # fmt: skip
TERM = {"topologyKey!": str, "labelSelector!": SELECTOR}
POD = {
    "terminationGracePeriodSeconds": int, "automountServiceAccountToken": bool,
    "securityContext": {"runAsUser": int, "runAsNonRoot": bool, "fsGroup": int},
    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight!": int, "podAffinityTerm!": TERM}]}},
    "initContainers": [CONTAINER], "containers!": [CONTAINER], "volumes": [VOLUME],
}  # fmt: skip
SPECS: dict[tuple[str, str], Any] = {
    ("v1", "PersistentVolumeClaim"): CLAIM,
    ("v1", "ConfigMap"): {"data!": {"*": str}},
    ("v1", "Service"): {
        "clusterIP": {"None"}, "publishNotReadyAddresses": bool, "selector!": LABELS,
        "ports": [{"name!": str, "port!": int}],
    },
    ("apps/v1", "StatefulSet"): {
        "serviceName!": str, "replicas": int, "podManagementPolicy": {"Parallel", "OrderedReady"},
        "selector!": SELECTOR,
        "template!": {"metadata!": {"labels!": LABELS}, "spec!": POD},
        "volumeClaimTemplates": [{"metadata!": {"name!": str}, "spec!": CLAIM}],
    },
    ("policy/v1", "PodDisruptionBudget"): {"maxUnavailable!": int, "selector!": SELECTOR},
    ("networking.k8s.io/v1", "NetworkPolicy"): {
        "podSelector!": SELECTOR, "policyTypes!": [{"Ingress", "Egress"}],
        "ingress": [{"from!": [{"podSelector!": SELECTOR}]}],
    },
}  # fmt: skip


def faults(found: Any, wanted: Any, where: str) -> list[str]:
    """What of ``found`` is not as the schema has it."""
    if isinstance(wanted, list):
        if not isinstance(found, list):
            return [f"{where} is no list"]
        return [x for n, one in enumerate(found) for x in faults(one, wanted[0], f"{where}[{n}]")]
    if isinstance(wanted, set):
        return [] if found in wanted else [f"{where} is {found!r}, none of {sorted(wanted)}"]
    if isinstance(wanted, type):
        return [] if type(found) is wanted else [f"{where} is {found!r}, no {wanted.__name__}"]
    if not isinstance(found, dict):
        return [f"{where} has no fields"]
    if "*" in wanted:
        return [x for k, one in found.items() for x in faults(one, wanted["*"], f"{where}.{k}")]
    known = {name.rstrip("!"): one for name, one in wanted.items()}
    missing = [name[:-1] for name in wanted if name.endswith("!") and name[:-1] not in found]
    return [
        *(f"{where}.{name} is missing" for name in missing),
        *(f"{where}.{name} is unknown" for name in found if name not in known),
        *(x for k, v in found.items() if k in known for x in faults(v, known[k], f"{where}.{k}")),
    ]


def judged(document: Any) -> list[str]:
    kind = (document.get("apiVersion"), document.get("kind"))
    if kind not in SPECS:
        return [f"{kind} is no kind that is known here"]
    body = SPECS[kind] if document["kind"] == "ConfigMap" else {"spec!": SPECS[kind]}
    whole = {"apiVersion!": str, "kind!": str, "metadata!": META, **body}
    return faults(document, whole, "/".join(kind))


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


@pytest.mark.parametrize("name", ["worker.yaml", "zookeeper.yaml"])
def test_a_manifest_is_as_the_api_has_it(name):
    assert [fault for document in documents(name) for fault in judged(document)] == []


@pytest.mark.parametrize("name", ["worker.yaml", "zookeeper.yaml"])
def test_what_a_manifest_names_is_there(name):
    found = documents(name)
    services = {d["metadata"]["name"] for d in found if d["kind"] == "Service"}
    claims = {d["metadata"]["name"] for d in found if d["kind"] == "PersistentVolumeClaim"}
    maps = {d["metadata"]["name"] for d in found if d["kind"] == "ConfigMap"}
    told = (FOLDER / "README.md").read_text()
    for spec in (d["spec"] for d in found if d["kind"] == "StatefulSet"):
        pod = spec["template"]["spec"]
        volumes = {v["name"] for v in pod.get("volumes", [])}
        volumes |= {v["metadata"]["name"] for v in spec.get("volumeClaimTemplates", [])}
        for container in (*pod.get("initContainers", []), *pod["containers"]):
            assert {m["name"] for m in container["volumeMounts"]} <= volumes
        wanted = [v["persistentVolumeClaim"]["claimName"] for v in pod.get("volumes", [])
                  if "persistentVolumeClaim" in v]  # fmt: skip
        assert set(wanted) <= claims and spec["serviceName"] in services
        assert {v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v} <= maps
        for secret in (v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v):
            assert f"create secret generic {secret} " in told
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()


def test_the_worker_s_command_is_one_that_horn_has():
    from horn.cli.worker import command

    (spec,) = (d["spec"] for d in documents("worker.yaml") if d["kind"] == "StatefulSet")
    words = spec["template"]["spec"]["containers"][0]["args"]
    options = {name for parameter in command.params for name in parameter.opts}
    assert words[0] == "worker" and {w for w in words if w.startswith("--")} <= options


def test_the_schema_sees_what_is_wrong():
    (worker,) = (d for d in documents("worker.yaml") if d["kind"] == "StatefulSet")
    wrong = copy.deepcopy(worker)
    wrong["spec"]["replica"] = wrong["spec"].pop("replicas")
    del wrong["spec"]["selector"]
    wrong["spec"]["template"]["spec"]["containers"][0]["env"][0] = {"name": "A", "value": 5}
    assert [fault.split("StatefulSet.")[1] for fault in judged(wrong)] == [
        "spec.selector is missing",
        "spec.replica is unknown",
        "spec.template.spec.containers[0].env[0].value is 5, no str",
    ]
