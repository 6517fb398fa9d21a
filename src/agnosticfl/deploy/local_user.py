# SPDX-License-Identifier: Apache-2.0
"""Whose the other end of a connection within this machine is, as the kernel knows it.

The kernel is asked for the one connection (man 7 sock_diag), which takes some microseconds. Where
it does not answer such questions, as in some containers, its table of all connections is read: that
takes milliseconds where there are thousands, and comes in pieces, between which lines may move.
"""

import ipaddress
import os
import socket
import struct
import sys
from pathlib import Path
from typing import NamedTuple, TypeAlias

TABLES = Path("/proc/net")
LOOKS = 3  # for a connection in a table
ESTABLISHED = 1

# Of the kernel's netlink.h, sock_diag.h and inet_diag.h.
_SOCK_DIAG, _BY_FAMILY, _REQUEST, _ERROR = 4, 20, 1, 2
_HEAD = struct.Struct("=IHHII")  # length, kind, flags, number, port
_QUESTION = struct.Struct("=BBBBI")  # family, protocol, extensions, padding, states
_ENDS = struct.Struct("!HH16s16s")  # ports and addresses, of the end that is asked for first
_ANY = struct.pack("=III", 0, 2**32 - 1, 2**32 - 1)  # interface and cookie
_ANSWER = struct.Struct("=BBBB48sIIIII")  # family, state, …, ends, expires, queues, user, inode
_CODE = struct.Struct("=i")

Place: TypeAlias = tuple[str, int]  # address and port


class End(NamedTuple):
    """One end of a connection."""

    state: int
    user: int


def own(client: Place, server: Place) -> bool:
    """Whether this user has the end `client` of a connection to `server`.

    Elsewhere than on Linux nobody can say, and everybody passes for this user.
    """
    return sys.platform != "linux" or owner(client, server) == os.getuid()


def owner(client: Place, server: Place) -> int | None:
    """Who has it; None if nobody has: of an end that was closed the kernel says it is root's."""
    try:
        end = ask_kernel(client, server)
    except OSError:  # there is none, or such questions are not answered here
        end = find_in_table(client, server)
    return end.user if end is not None and end.state == ESTABLISHED else None


def ask_kernel(client: Place, server: Place) -> End:
    """Asks for the end `client` of a connection to `server`; `OSError` if the kernel is silent."""
    address = ipaddress.ip_address(client[0])
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    here, there = address.packed, ipaddress.ip_address(server[0]).packed
    content = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0, 2**32 - 1)
    content += _ENDS.pack(client[1], server[1], here, there) + _ANY
    head = _HEAD.pack(_HEAD.size + len(content), _BY_FAMILY, _REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.send(head + content)
        answer = kernel.recv(4096, socket.MSG_DONTWAIT)  # it is there when `send` returns
    if _HEAD.unpack_from(answer)[1] == _ERROR:
        (code,) = _CODE.unpack_from(answer, _HEAD.size)
        raise OSError(-code, os.strerror(-code))
    _, state, *_, user, _ = _ANSWER.unpack_from(answer, _HEAD.size)
    return End(state, user)


def find_in_table(client: Place, server: Place) -> End | None:
    """The same by the kernel's table; None if it is not there."""
    ends = f": {_written(*client)} {_written(*server)} "
    name = "tcp6" if ":" in client[0] else "tcp"
    for _ in range(LOOKS):
        table = (TABLES / name).read_text()
        start = table.find(ends)
        if start >= 0:
            words = table[start : table.find("\n", start)].split()
            return End(int(words[3], 16), int(words[7]))
    return None


def _written(host: str, port: int) -> str:
    """An address and a port as the tables have them: the address in words of this machine."""
    packed = ipaddress.ip_address(host).packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
