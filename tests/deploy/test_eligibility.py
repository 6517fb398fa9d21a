# SPDX-License-Identifier: Apache-2.0
"""When a client joins, on machines made of files."""

import os
from pathlib import Path

import pytest

from agnosticfl.deploy.node.eligibility import conditions, read
from agnosticfl.errors import BadInput

ROUTE = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def laptop(root: Path, load: float = 0.0, online: str = "1", device: str = "") -> Path:
    supply = "sys/class/power_supply"
    return machine(
        root,
        {
            "proc/loadavg": f"{load * (os.cpu_count() or 1)} 0.1 0.1 1/100 1\n",
            "proc/net/route": f"{ROUTE}if0 00000000 0102A8C0 0003 0 0 0 00000000 0 0 0\n",
            "sys/class/net/if0/uevent": f"{device}INTERFACE=if0\n",
            f"{supply}/AC/type": "Mains\n",
            f"{supply}/AC/online": f"{online}\n",
            f"{supply}/BAT0/type": "Battery\n",
            f"{supply}/BAT0/status": "Charging\n" if online == "1" else "Discharging\n",
            f"{supply}/mouse/type": "Battery\n",
            f"{supply}/mouse/scope": "Device\n",
            f"{supply}/mouse/status": "Discharging\n",
        },
    )


ALL = ("idle", "charging", "unmetered")


def test_a_laptop_at_rest_on_mains_and_cable_joins(tmp_path: Path):
    assert conditions(ALL, 1, laptop(tmp_path))(5) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"load": 0.9}, "not idle (load 0.90, charging yes, metered no)"),
        ({"online": "0"}, "not charging (load 0.00, charging no, metered no)"),
        ({"device": "DEVTYPE=wwan\n"}, "not unmetered (load 0.00, charging yes, metered yes)"),
    ],
)
def test_one_condition_that_does_not_hold_is_enough(tmp_path: Path, change: dict, reason: str):
    assert conditions(ALL, 1, laptop(tmp_path, **change))(5) == reason


def test_a_server_without_a_battery_is_on_mains(tmp_path: Path):
    (tmp_path / "sys/class/power_supply").mkdir(parents=True)
    assert read(tmp_path).charging is True


def test_what_a_machine_does_not_say_is_no(tmp_path: Path):
    assert read(tmp_path) == (None, None, None)
    assert conditions(ALL, 1, tmp_path)(5) == (
        "not idle, not charging, not unmetered (load ?, charging ?, metered ?)"
    )
    assert conditions((), 1, tmp_path)(5) is None


def test_too_few_examples_do_not_join(tmp_path: Path):
    assert conditions((), 10, tmp_path)(9) == "it has 9 examples, and 10 are needed"


def test_a_condition_that_does_not_exist_is_refused():
    with pytest.raises(BadInput, match="unknown condition 'charged'; did you mean 'charging'"):
        conditions(["charged"])


def test_this_machine_can_be_read():
    assert read().load is not None
