# SPDX-License-Identifier: Apache-2.0
"""What may pass: the routes that a client's SuperNode calls, and the headers it needs.

Flower's SuperLink has its fleet, control and runtime interfaces on one port, and asks for no key on
the last two. Nothing is known here of Flower's code, so nothing that it adds later is let through
by itself; tests hold this list against the routes that Flower has.
"""

# Without register-node and unregister-node: only the operator says who is a client.
CALLS = (
    "activate-node",
    "confirm-message-received",
    "deactivate-node",
    "get-fab",
    "get-run",
    "pull-messages",
    "pull-object",
    "push-messages",
    "push-object",
    "send-node-heartbeat",
)
METHOD = "POST"
PATHS = frozenset(f"/v1/fleet/{call}" for call in CALLS)
CHECK = "/v1/federation/check"  # answered by the gate itself: who asks, and what is served

# How a SuperNode proves itself: its public key, a time, and its signature under that time.
PUBLIC_KEY, TIMESTAMP, SIGNATURE = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"

# All other headers end here, on either way.
REQUEST_HEADERS = frozenset(
    {
        *(PUBLIC_KEY, TIMESTAMP, SIGNATURE),
        *(b"content-type", b"content-length", b"accept"),
        *(b"flwr-package-name", b"flwr-package-version", b"flwr-component-name"),
    }
)
RESPONSE_HEADERS = frozenset(
    {b"content-type", b"content-length", b"flwr-version-incompatibility-message"}
)
