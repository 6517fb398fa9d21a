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
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library of a package that a plugin of JAX needs, and no other plugin."""
    (tmp_path / "standin" / "plugin").mkdir(parents=True)
    file = tmp_path / "standin" / "package" / "lib" / NAME
    file.parent.mkdir(parents=True)
    real = importlib.util.find_spec("msgspec._core")
    assert real is not None
    assert real.origin is not None
    shutil.copy(real.origin, file)
    absent = ("standin.package", "libabsent.so")
    libraries = {
        "standin.plugin": (("standin.package", NAME), ("standin.other", NAME)),
        "standin.none": (absent,),
        "none.plugin": (absent,),
    }
    monkeypatch.setattr(driver, "LIBRARIES", libraries)
    monkeypatch.setattr(driver, "DRIVER", "libabsent.so.1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "standin", raising=False)
    return file


@pytest.mark.skipif(not LOADED.exists(), reason="a system that does not tell what is loaded")
@pytest.mark.parametrize(("platforms", "loads"), [("cpu", False), ("cuda,cpu", True), ("", True)])
def test_it_loads_what_jax_will_load(
    library: Path, platforms: str, loads: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    driver.wake_driver()
    assert (str(library) in LOADED.read_text()) == loads


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
