# SPDX-License-Identifier: Apache-2.0
"""What users may rely on: the public names, and the code in the README."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import agnosticfl

ROOT = Path(__file__).parents[1]


def test_public_names_are_these_and_no_others():
    assert agnosticfl.__all__ == [
        "Algorithm",
        "BadInput",
        "ClientSum",
        "DomainStats",
        "FederatedData",
        "Mean",
        "Model",
        "RoundInfo",
        "ServerState",
        "Splits",
        "WeightRule",
        "agnostic_fedavg",
        "evaluator",
        "exponentiated_gradient",
        "fedavg",
        "fedavg_target",
        "fixed",
        "from_arrays",
        "from_equinox",
        "from_functions",
        "from_linen",
        "from_nnx",
        "full_evaluator",
        "models",
        "proportional",
        "some_clients",
        "split_frame",
        "study",
        "weights",
        "worst_domain",
    ]


@pytest.mark.parametrize("name", agnosticfl.__all__)
def test_every_public_name_is_there_and_documented(name: str):
    assert getattr(agnosticfl, name).__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        agnosticfl.nonsense  # noqa: B018


def test_the_program_starts_without_loading_jax():
    code = "import sys, agnosticfl.cli; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_readme_s_python_runs():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "worst" in done.stdout


def test_every_import_in_the_docs_works():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    statement = re.compile(r"^(?:from|import) agnosticfl[^\n(]*(?:\([^)]*\))?", re.MULTILINE)
    imports = [found for page in pages for found in statement.findall(page.read_text())]
    assert len(imports) > 5
    for found in imports:
        exec(found, {})
