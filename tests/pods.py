"""Pods of Kubernetes' manifests on hosts of ``tests.hosts``: what a manifest says is run.

A pod is a process in a network namespace of its own with a root of its own: this machine's folders
and the volumes of the manifest, where it mounts them. Its images are what is installed here. Pods
know one another by name, as behind a headless Service. Needs root, as the hosts do.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.hosts import Host

# What the kubelet puts into env for these fields.
LIMITS = {"limits.cpu": "2"}


class Pod:
    """Pod ``number`` of a StatefulSet, on a host.

    folder : what its volumes hold is below it. given : the folder of each claim, and the files of
    each Secret and ConfigMap, by their names. names : addresses by host name.
    user : whom it runs as; what the manifest says if None. Its output is ``folder``/NAME/log.out.
    """

    def __init__(
        self, stateful_set: Mapping[str, Any], number: int, host: Host, folder: Path,
        given: Mapping[str, Path | Mapping[str, bytes]], names: Mapping[str, str],
        user: int | None = None,
    ) -> None:  # fmt: skip
        spec = stateful_set["spec"]
        self.spec = spec["template"]["spec"]
        self.name = f"{stateful_set['metadata']['name']}-{number}"
        self.host, self.folder = host, folder / self.name
        security = self.spec["securityContext"]
        self.user = security["runAsUser"] if user is None else user
        self.group = security["fsGroup"] if user is None else user
        self.volumes = {v["metadata"]["name"]: self._own(v["metadata"]["name"])
                        for v in spec.get("volumeClaimTemplates", [])}  # fmt: skip
        for volume in self.spec.get("volumes", []):
            self.volumes[volume["name"]] = self._volume(volume, given)
        lines = ["127.0.0.1 localhost", *(f"{at} {name}" for name, at in names.items())]
        self.hosts_file = self.folder / "hosts"
        self.hosts_file.write_text("\n".join(lines) + "\n")

    def _own(self, name: str) -> Path:
        path = self.folder / "volumes" / name
        path.mkdir(parents=True)
        path.chmod(0o770)
        os.chown(path, self.user, self.group)
        return path

    def _volume(self, volume: Mapping[str, Any], given: Mapping[str, Any]) -> Path:
        if "emptyDir" in volume:
            return self._own(volume["name"])
        if "persistentVolumeClaim" in volume:
            found: Path = given[volume["persistentVolumeClaim"]["claimName"]]
            os.chown(found, self.user, self.group)
            return found
        kind = "secret" if "secret" in volume else "configMap"
        source = volume[kind]
        path = self._own(volume["name"])
        for name, data in given[source["secretName" if kind == "secret" else "name"]].items():
            # As the kubelet does: a link to a file of root's, which the pod's group may read.
            real = path / "..data" / name
            real.parent.mkdir(exist_ok=True)
            real.write_bytes(data)
            real.chmod(source.get("defaultMode", 0o644))
            os.chown(real, 0, self.group)
            (path / name).symlink_to(Path("..data") / name)
        return path

    def environment(self, container: Mapping[str, Any]) -> dict[str, str]:
        """What a container has: the image's, then the manifest's."""
        found = {"PATH": os.environ["PATH"], "HOSTNAME": self.name}
        for variable in container.get("env", []):
            source = variable.get("valueFrom", {})
            if "fieldRef" in source:
                value = self.host.address  # status.podIP is the only one that is used
            elif "resourceFieldRef" in source:
                value = LIMITS[source["resourceFieldRef"]["resource"]]
            else:
                value = variable["value"]
            found[variable["name"]] = value
        return found

    def words(
        self, container: Mapping[str, Any], image: list[str], more: Mapping[str, str]
    ) -> list[str]:
        """A command line for ``host.start``: one process from here to the container's own."""
        root = self.folder / f"root-{container['name']}"
        root.mkdir()
        script = [f"hostname {self.name}", f"mount -t tmpfs none {root}"]
        for path in sorted(Path("/").iterdir()):
            there = f"{root}{path}"
            if path.is_symlink():
                script.append(f"ln -s {os.readlink(path)} {there}")
            elif stat.S_ISDIR(path.lstat().st_mode):
                script.append(f"mkdir {there} && mount --rbind {path} {there}")
        for mount in container["volumeMounts"]:
            there = f"{root}{mount['mountPath']}"
            script += [f"mkdir -p {there}", f"mount --bind {self.volumes[mount['name']]} {there}"]
            if mount.get("readOnly"):
                script.append(f"mount -o remount,bind,ro {there}")
        script.append(f"mount --bind {self.hosts_file} {root}/etc/hosts")
        known = self.environment(container)
        words = [*container.get("command", image), *container.get("args", [])]
        for name, value in known.items():
            words = [word.replace(f"$({name})", value) for word in words]
        chroot = ["chroot", f"--userspec={self.user}:{self.group}", str(root), "env", "-i"]
        variables = [f"{k}={v}" for k, v in (known | more).items()]
        script.append("exec " + shlex.join([*chroot, *variables, *words]))
        unshare = ["unshare", "--uts", "--mount", "--propagation", "private"]
        return [*unshare, "sh", "-ec", "\n".join(script)]

    def start(
        self, image: list[str], *, args: list[str] | None = None, **more: str
    ) -> subprocess.Popen[Any]:
        """Its init containers to their end, then its container.
        image : the entry point of its image. more : variables that the image has. args : others.
        """
        for container in self.spec.get("initContainers", []):
            self.host.run(*self.words(container, image, more), check=True)
        [container] = self.spec["containers"]
        if args is not None:
            container = container | {"args": args}
        with (self.folder / "log.out").open("ab") as out:
            return self.host.start(*self.words(container, image, more), stdout=out, stderr=out,
                                   stdin=subprocess.DEVNULL)  # fmt: skip


def has_bash() -> bool:
    return shutil.which("bash") is not None and shutil.which("unshare") is not None
