# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's libraries, loaded ahead of JAX: here stand-ins for them."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from agnosticfl.cli import driver

LOADED = Path("/proc/self/maps")
NAME = "libstandin.so"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A driver, and a library of a package that a plugin of JAX needs."""
    (tmp_path / "standin" / "plugin").mkdir(parents=True)
    library = tmp_path / "standin" / "package" / "lib" / NAME
    library.parent.mkdir(parents=True)
    real = importlib.util.find_spec("msgspec._core")
    assert real is not None
    assert real.origin is not None
    made = [library, tmp_path / "libdriver.so"]
    for file in made:
        shutil.copy(real.origin, file)
    needed = (("standin.package", NAME), ("standin.other", NAME))
    monkeypatch.setattr(driver, "LIBRARIES", {"none.plugin": needed, "standin.plugin": needed})
    monkeypatch.setattr(driver, "DRIVER", str(made[1]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "standin", raising=False)
    return list(map(str, made))


@pytest.mark.skipif(not LOADED.exists(), reason="a system that does not tell what is loaded")
@pytest.mark.parametrize(
    ("platforms", "plugin", "loads"),
    [
        ("", True, True),
        ("cuda,cpu", True, True),
        ("cpu", True, False),
        ("", False, False),
    ],
)
def test_it_loads_what_jax_will_load(
    files: list[str], platforms: str, plugin: bool, loads: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    if not plugin:
        monkeypatch.delitem(driver.LIBRARIES, "standin.plugin")
    driver.wake_driver()
    loaded = LOADED.read_text()
    assert [file in loaded for file in files] == [loads, loads]


@pytest.mark.parametrize("plugin", driver.LIBRARIES)
def test_the_plugin_loads_these_files(plugin: str):
    try:
        spec = importlib.util.find_spec(plugin)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        pytest.skip("is not installed")
    text = Path(spec.origin).read_text()
    for package, file in driver.LIBRARIES[plugin]:
        assert f'"{package.removeprefix("nvidia.")}", ["{file}"' in text
