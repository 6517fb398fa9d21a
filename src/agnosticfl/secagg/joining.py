# SPDX-License-Identifier: Apache-2.0
"""The server's question who takes part in a round, and what it makes of the answers."""

from typing import NamedTuple

from agnosticfl.secagg import derivation as keys
from agnosticfl.secagg import primitives
from agnosticfl.secagg.agreement import Agreement, agreed
from agnosticfl.secagg.messages import Join, Joined, Refused, parse
from agnosticfl.secagg.primitives import CryptoError, Ed25519PrivateKey


class Joining(NamedTuple):
    """A client that takes part."""

    place: int  # in the roster
    drawn: bytes  # its commitment to a number of the draw


def question(agreement: Agreement, key: Ed25519PrivateKey, number: int) -> Join:
    """What clients are asked before a round: who takes part, and whether all is as agreed."""
    terms = tuple(sorted(agreement.terms.items()))
    asked = Join(agreement.run, number, agreed(agreement), terms, b"")
    return asked._replace(signature=key.sign(keys.signed_by_server(asked)))


def joining(agreement: Agreement, asked: Join, reply: bytes) -> Joining:
    """The client that answers `asked`; `Refused` if it is not a client's answer."""
    answer = parse(reply, Joined)
    if answer.round != keys.join_name(asked):
        raise Refused("it answers another question")
    if answer.sender >= len(agreement.roster):
        raise Refused(f"it says that it is client {answer.sender}, who is not in the roster")
    try:
        key = agreement.roster[answer.sender]
        primitives.check_signature(key, answer.signature, keys.signed_join(answer))
    except CryptoError as error:
        raise Refused(f"it says that it is client {answer.sender}, but {error}") from None
    return Joining(answer.sender, answer.commitment)
