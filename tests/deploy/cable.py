# SPDX-License-Identifier: Apache-2.0
"""A cable between two network namespaces that delays frames and loses some, as a bad line does.

    python cable.py PID DEVICE PID DEVICE SECONDS SHARE SEED

makes a network device in the namespace of each of two processes, and carries frames between them
until its standard input ends. Each takes SECONDS; of all frames, SHARE is lost. The kernel has
`netem` for that, but not every kernel, so it is done here. Frames to a device that is down are
lost, too: that is how a cable is cut.
"""

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time
from pathlib import Path

TUNSETIFF, TAP, PLAIN = 0x400454CA, 0x0002, 0x1000  # linux/if_tun.h
LARGEST = 2048  # bytes of a frame


def enter(pid: str) -> None:
    """Goes into the network namespace of a process."""
    with Path(f"/proc/{pid}/ns/net").open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"the network of process {pid} cannot be entered")


def device(pid: str, name: str) -> int:
    """A new network device there; what is written to its end here arrives there."""
    enter(pid)
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP | PLAIN))
    return end


def carry(ends: tuple[int, int], seconds: float, share: float, chance: random.Random) -> None:
    """Carries frames until the standard input ends."""
    other, stop = {ends[0]: ends[1], ends[1]: ends[0]}, sys.stdin.fileno()
    under_way: list[tuple[float, int, int, bytes]] = []  # when due, its number, where to, what
    number = 0
    while True:
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            _, _, end, frame = heapq.heappop(under_way)
            with contextlib.suppress(OSError):  # the device is down
                os.write(end, frame)
        patience = under_way[0][0] - now if under_way else None
        for end in select.select([*ends, stop], [], [], patience)[0]:
            if end == stop:
                return
            with contextlib.suppress(OSError):
                frame = os.read(end, LARGEST)
                if chance.random() >= share:
                    number += 1
                    heapq.heappush(
                        under_way, (time.monotonic() + seconds, number, other[end], frame)
                    )


def main() -> None:
    one, one_name, two, two_name, seconds, share, seed = sys.argv[1:]
    ends = device(one, one_name), device(two, two_name)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    carry(ends, float(seconds), float(share), random.Random(int(seed)))


if __name__ == "__main__":
    main()
