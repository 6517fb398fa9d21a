# SPDX-License-Identifier: Apache-2.0
"""Image, units, compose file and manifests are what their programs take, and fit the program."""

import configparser
import fnmatch
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import time
import tomllib
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agnosticfl.deploy.keys import make_server_keys
from tests.helpers.deploy_page import (
    DOCS,
    PACKAGING,
    ROOT,
    compose_commands,
    containers,
    manifest_commands,
    manifests,
    parsed,
    unit_commands,
)

HADOLINT = Path(sys.executable).with_name("hadolint")
UNITS = sorted((PACKAGING / "systemd").glob("*.service"))
MOST_EXPOSED = 30  # of 100, by `systemd-analyze security`: it calls up to 40 or so OK
PORT = parsed("agnosticfl deploy server app --keys k --out o")["port"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions() -> list[tuple[str, str]]:
    """Those of the Dockerfile, each in one line, of the image itself."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines if line]


def of_image(name: str) -> str:
    """The one instruction of that name in the last stage."""
    found = instructions()
    last = max(place for place, (word, _) in enumerate(found) if word == "FROM")
    (value,) = (value for word, value in found[last:] if word == name)
    return value


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is not installed")
def test_the_dockerfile_passes_its_linter():
    done = subprocess.run(
        [HADOLINT, ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_is_what_the_program_needs():
    assert of_image("EXPOSE") == str(PORT)
    assert json.loads(of_image("VOLUME")) == [of_image("WORKDIR")] == ["/srv"]
    assert of_image("USER") == "10001:10001"  # a number: a cluster can see that it is not root
    assert json.loads(of_image("ENTRYPOINT"))[-1] in PROJECT["scripts"]
    health = json.loads(of_image("HEALTHCHECK").partition("CMD ")[2])
    state = parsed("agnosticfl deploy server app --keys k --out o")["state"]
    assert health[:2] == ["python", "-m"]
    assert importlib.util.find_spec(health[2]) is not None
    assert health[3:] == [str(state)]
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", (ROOT / "Dockerfile").read_text())
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    bases = [value.split()[0] for word, value in instructions() if word == "FROM"]
    assert len(set(bases)) == 1
    (minor,) = re.findall(r"^python:3\.(\d+)-slim", bases[0])
    assert f"Programming Language :: Python :: 3.{minor}" in PROJECT["classifiers"]


def test_the_builder_gets_what_is_copied_and_nothing_secret():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    let_in = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {
        word
        for name, value in instructions()
        if name == "COPY" and "--from" not in value
        for word in value.split()[:-1]
    }
    assert copied == let_in
    assert all((ROOT / name).exists() for name in copied)
    assert not any(fnmatch.fnmatch(name, rule) for name in ("keys", "runs") for rule in let_in)


def engine() -> str:
    """A program that builds and starts containers here; empty if there is none."""
    for path in filter(None, map(shutil.which, ("docker", "podman"))):
        if subprocess.run([path, "version"], capture_output=True, check=False).returncode == 0:
            return path
    return ""


class Engine:
    """A program that builds and starts containers, and all that was made with it."""

    def __init__(self, program: str):
        self.program, self.mark = program, f"agnosticfl-test-{uuid.uuid4().hex[:8]}"
        self.image = f"{self.mark}:latest"

    def said(self, *words: str | Path) -> str:
        """What a command says that must succeed."""
        done = self.ran(*words)
        assert done.returncode == 0, f"{words}: {done.stdout} {done.stderr}"
        return done.stdout + done.stderr

    def ran(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        line = [self.program, *words]
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=1200)

    def words(self, *more: str) -> list[str]:
        """The beginning of a command that runs the image with a volume, with as little else."""
        locked = ["--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--network=none"]
        return ["run", *locked, *more, f"--volume={self.mark}:/srv", self.image, "deploy"]

    def healthy(self) -> bool:
        """As the image's own check has it."""
        check = json.loads(of_image("HEALTHCHECK").partition("CMD ")[2])
        return self.ran("exec", self.mark, *check).returncode == 0

    def close(self) -> None:
        for words in (("rm", "--force"), ("volume", "rm"), ("rmi", "--force")):
            self.ran(*words, self.mark)


@pytest.fixture
def container() -> Generator[Engine]:
    program = engine()
    if not program:
        pytest.skip("no container engine runs here")
    made = Engine(program)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.slow
def test_the_image_is_built_and_a_server_is_well_in_it(container: Engine):
    """By a user without rights, who writes to the volume only; asked to end, it does."""
    base = next(value.split()[0] for word, value in instructions() if word == "FROM")
    base = f"docker.io/library/{base}"
    if all(container.ran(*words, base).returncode for words in (("image", "inspect"), ("pull",))):
        pytest.skip(f"{base} is not here, and cannot be had from here")
    container.said("build", "--tag", container.image, ROOT)
    assert "Run a federation" in container.said(*container.words("--rm"), "--help")
    keys = ("keys", "server", "keys", "--host", "fl.example.org")
    assert "keys/ca.pem" in container.said(*container.words("--rm"), *keys)
    container.said(*container.words("--rm"), "init", "app", "toy", "--clients", "3")
    server = ("server", "app", "--keys", "keys", "--out", "runs/live", "--resume")
    container.said(*container.words("--detach", f"--name={container.mark}"), *server)
    until = time.monotonic() + 180
    while not container.healthy():
        assert time.monotonic() < until, container.said("logs", container.mark)
        time.sleep(1)
    container.said("stop", "--time=60", container.mark)
    status = container.said("inspect", "--format={{.State.ExitCode}}", container.mark)
    assert status.strip() == "130", container.said("logs", container.mark)


def unit(path: Path) -> configparser.ConfigParser:
    made = configparser.ConfigParser(strict=False, interpolation=None)
    made.optionxform = str  # type: ignore[assignment]
    made.read_string(path.read_text())
    return made


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_has_a_user_and_a_folder_of_its_own(path: Path):
    """Named like the unit; all that it is told of is there. Bad input does not start it again."""
    made = unit(path)["Service"]
    assert made["User"] == made["StateDirectory"] == path.stem
    assert made["WorkingDirectory"] == f"/var/lib/{path.stem}"
    assert made["RestartPreventExitStatus"] == "2"
    (line,) = (line for line in unit_commands() if path.stem.rpartition("-")[2] in line.split()[:3])
    named = [value for value in parsed(line).values() if isinstance(value, Path)]
    assert len(named) >= 6
    assert not any(path.is_absolute() for path in named)
    # What would keep the compiler of models from working, or a client from its accelerator.
    assert not {"MemoryDenyWriteExecute", "PrivateDevices"} & set(made)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_takes_a_unit_and_finds_it_safe(path: Path, tmp_path: Path):
    """All but the path of the program, which must exist and is another one here."""
    program = tmp_path / "agnosticfl"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    made = tmp_path / path.name
    made.write_text(path.read_text().replace("/opt/agnosticfl/bin/agnosticfl", str(program)))
    words = ["systemd-analyze", "verify", "--man=no", str(made)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    said = [line for line in done.stderr.splitlines() if made.name in line]
    assert (done.returncode, said) == (0, []), done.stderr
    words = ["systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSED}"]
    done = subprocess.run([*words, str(made)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_compose_file_has_the_form_of_such_files():
    services = yaml.safe_load((PACKAGING / "compose.yaml").read_text())["services"]
    assert set(services) == {"server", "client"}
    known = {"image", "command", "ports", "volumes", "restart", "depends_on", "stop_grace_period"}
    known |= {"read_only", "tmpfs", "cap_drop", "security_opt"}
    assert all(set(service) <= known for service in services.values())
    assert services["server"]["ports"] == [f"{PORT}:{PORT}"]
    (client,) = (parsed(line) for line in compose_commands() if " client " in line)
    assert client["server"] == f"server:{PORT}"


def test_the_manifests_are_of_their_kinds():
    """By the schemas of Kubernetes, in which no field may be misspelt; the gateway has its own."""
    validate = pytest.importorskip("kubernetes_validate")
    kinds: list[str] = []
    for manifest in manifests():
        kinds.append(manifest["kind"])
        if not manifest["apiVersion"].startswith("gateway.networking.k8s.io/"):
            validate.validate(manifest, "1.33", strict=True)
    assert sorted(kinds) == [
        *("Gateway", "Job", "NetworkPolicy", "PersistentVolumeClaim"),
        *("Service", "StatefulSet", "TLSRoute"),
    ]


def mounted(container: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Where a container has something mounted, and what it is."""
    volumes = {volume["name"]: volume for volume in container["pod"]["volumes"]}
    return {
        mount["mountPath"]: volumes.get(mount["name"], {}) for mount in container["volumeMounts"]
    }


def paths(line: str) -> Iterator[Path]:
    """The files and folders that a command names, from the image's folder."""
    for value in parsed(line).values():
        if isinstance(value, Path):
            yield Path(of_image("WORKDIR")) / value


@pytest.mark.parametrize("container", containers(), ids=lambda one: one["name"])
def test_a_pod_has_what_its_command_names(container: dict[str, Any]):
    """Every path is on something mounted, of this user; the rest of the image is read-only."""
    (line,) = (line for line in manifest_commands() if f"deploy {container['name']} " in line)
    places = mounted(container)
    named = list(paths(line))
    assert len(named) >= 6
    for path in named:
        assert any(path.is_relative_to(place) for place in places), path
    assert of_image("WORKDIR") in places
    user = container["pod"]["securityContext"]
    assert f"{user['runAsUser']}:{user['runAsGroup']}" == of_image("USER")
    for one in (container, *container["pod"]["initContainers"]):
        assert one["securityContext"]["readOnlyRootFilesystem"] is True
        assert one["image"] == "agnosticfl:latest"
    health = json.loads(of_image("HEALTHCHECK").partition("CMD ")[2])
    probes = [container.get(name, {}) for name in ("livenessProbe", "readinessProbe")]
    assert [probe["exec"]["command"] for probe in probes if "exec" in probe] == [health]


def test_ports_and_names_are_the_same_everywhere():
    """Of container, service and gateway, and of what the client is told."""
    by_kind = {manifest["kind"]: manifest for manifest in manifests()}
    (server,) = (one for one in containers() if one["name"] == "server")
    (client,) = (parsed(line) for line in manifest_commands() if "deploy client" in line)
    assert [port["containerPort"] for port in server["ports"]] == [PORT]
    (port,) = by_kind["Service"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (PORT, server["ports"][0]["name"])
    labels = by_kind["Job"]["spec"]["template"]["metadata"]["labels"]
    assert by_kind["Service"]["spec"]["selector"] == labels
    (rule,) = by_kind["TLSRoute"]["spec"]["rules"]
    name = by_kind["Service"]["metadata"]["name"]
    assert rule["backendRefs"] == [{"name": name, "port": PORT}]
    (listener,) = by_kind["Gateway"]["spec"]["listeners"]
    assert listener["tls"] == {"mode": "Passthrough"}
    host = client["server"].rpartition(":")[0]
    assert [listener["hostname"]] == by_kind["TLSRoute"]["spec"]["hostnames"] == [host]
    assert client["server"] == f"{host}:{PORT}"
    (egress,) = by_kind["NetworkPolicy"]["spec"]["egress"]
    assert {one["port"] for one in egress["ports"]} == {53, PORT}


def test_the_secrets_are_the_files_that_the_program_wants(tmp_path: Path):
    """As the page makes them; the authority's key stays away from the cluster."""
    made = dict(re.findall(r"^kubectl create secret generic (\S+) (.*)$", DOCS, re.MULTILINE))
    files = {name: re.findall(r"--from-file=(\S+)", words) for name, words in made.items()}
    named = [
        volume["secret"]["secretName"]
        for one in containers()
        for volume in one["pod"]["volumes"]
        if "secret" in volume
    ]
    assert sorted(named) == sorted(files) == ["agnosticfl-client-keys", "agnosticfl-server-keys"]
    make_server_keys(tmp_path / "keys", ["fl.example.org"])
    assert all((tmp_path / file).is_file() for file in files["agnosticfl-server-keys"])
    wanted = {"ca.pem", "server.pem", "server.key", "server.sign"}
    assert {Path(file).name for file in files["agnosticfl-server-keys"]} == wanted
    (client,) = (parsed(line) for line in manifest_commands() if "deploy client" in line)
    key = client["key"].name
    assert files["agnosticfl-client-keys"] == [key, Path(key).with_suffix(".sign").name]


def test_the_page_names_every_file():
    files = [file.relative_to(ROOT) for file in PACKAGING.rglob("*") if file.is_file()]
    assert [str(file) for file in files if str(file) not in DOCS] == []
    assert "`Dockerfile`" in DOCS
