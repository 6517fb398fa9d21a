# SPDX-License-Identifier: Apache-2.0
"""The house: which room may import which, and what a name may be."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import agnosticfl

SOURCE = Path(agnosticfl.__file__).parent
TESTS = Path(__file__).parent

# A room may import those on the levels below its own, and nothing else.
LEVELS = (
    ("errors", "files", "spans"),
    ("options",),
    ("registry",),
    ("privacy",),
    ("core",),
    ("weights", "channels", "engines", "models", "data", "secagg"),
    ("methods",),
    ("runs",),
    ("report", "deploy"),
    ("export",),
    ("cli",),
)
LEVEL = {room: number for number, rooms in enumerate(LEVELS) for room in rooms}


def imports(file: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, at its top or in a function, with the line."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def room_of(module: str) -> str | None:
    """The room of `agnosticfl.room.…`; None for anything else."""
    first, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    return room if first == "agnosticfl" and room in LEVEL else None


def files() -> list[Path]:
    return [f for f in sorted(SOURCE.rglob("*.py")) if f.parent != SOURCE or f.stem in LEVEL]


def test_every_file_is_in_a_room():
    rooms = {f.relative_to(SOURCE).parts[0].removesuffix(".py") for f in files()}
    assert rooms == set(LEVEL)
    loose = {f.name for f in SOURCE.glob("*.py")} - {f"{room}.py" for room in LEVEL}
    assert loose == {"__init__.py", "__main__.py"}


def test_imports_between_rooms_go_down_only():
    upward: list[str] = []
    for file in files():
        own = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        for module, line in imports(file):
            other = room_of(module)
            if other is not None and other != own and LEVEL[other] >= LEVEL[own]:
                upward.append(f"{file.relative_to(SOURCE)}:{line} imports {module}")
    assert upward == []


def test_modules_do_not_import_each_other_in_a_circle():
    modules = {
        ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): file
        for file in files()
    }
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for name, file in modules.items():
        for imported, _ in imports(file):
            # A name of a module, or the module itself.
            target = imported if imported in modules else imported.rpartition(".")[0]
            if target in modules and target != name:
                graph[name].add(target)
    # A package and its own files are one place.
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in graph[name]:
                if not name.startswith(f"{other}."):
                    visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize(
    ("modules", "without"),
    [
        ("agnosticfl", ("jax", "pyarrow", "flax", "flwr", "numpy")),
        (
            "agnosticfl.core.algorithm1, agnosticfl.methods.afa, agnosticfl.methods.drfa",
            ("pyarrow", "flax", "orbax", "flwr", "matplotlib"),
        ),
        ("agnosticfl.runs.config", ("jax", "pyarrow")),
        ("agnosticfl.deploy.flower.client_app", ("jax",)),
        ("agnosticfl.cli.commands", ("jax", "flwr", "pyarrow")),
        ("agnosticfl.report.painter", ("jax", "pyarrow")),
        (
            "agnosticfl.cli.console, agnosticfl.report, agnosticfl.runs.compare",
            ("flax", "matplotlib", "orbax", "tensorboard", "pyarrow", "flwr", "scipy"),
        ),
    ],
)
def test_modules_load_without_libraries_that_they_do_not_need(
    modules: str, without: tuple[str, ...]
):
    code = f"import sys, {modules}; print([m for m in {without!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_only_one_place_imports_flower():
    by_name = 'import_module("flwr'
    users = {
        file.relative_to(SOURCE).parts[:2]
        for file in files()
        if any(module.partition(".")[0] == "flwr" for module, _ in imports(file))
        or by_name in file.read_text()
    }
    assert users == {("deploy", "flower")}


def test_no_name_is_a_module_and_something_else():
    """`package.name` is the submodule of that name, whatever was imported before."""
    names = [m.name for m in pkgutil.walk_packages([str(SOURCE)], "agnosticfl.")]
    for name in names:
        if name.endswith("__main__"):
            continue
        package, _, last = name.rpartition(".")
        module = importlib.import_module(name)
        assert getattr(importlib.import_module(package), last) is module, name


def test_a_public_name_is_the_same_thing_at_every_access():
    code = (
        "import agnosticfl as afl\n"
        "first = {name: getattr(afl, name) for name in afl.__all__}\n"
        "second = {name: getattr(afl, name) for name in afl.__all__}\n"
        "assert first == second\n"
        "assert callable(afl.study)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tests_mirror_the_rooms_and_share_helpers_only():
    folders = {path.name for path in TESTS.iterdir() if (path / "__init__.py").exists()}
    assert folders - {"helpers", "outside"} <= set(LEVEL)
    for file in TESTS.rglob("*.py"):
        for module, line in imports(file):
            parts = module.split(".")
            if parts[0] == "tests":
                place = f"{file.relative_to(TESTS)}:{line}"
                assert not any(part.startswith("test_") for part in parts[:-1]), place
