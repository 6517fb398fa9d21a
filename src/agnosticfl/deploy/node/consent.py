# SPDX-License-Identifier: Apache-2.0
"""What a client lets itself be asked in a secure round: which α it takes.

The sum of updates is Σ_k β^k Δ^k with β^k = Σ_i α_i N^k_i. An α that leaves weight to one client
alone makes that sum this client's own update, although it is a sum over all of them.
"""

from collections.abc import Collection, Sequence

import numpy as np

from agnosticfl.errors import check
from agnosticfl.secagg.messages import Refused

LEAST = 0.01  # a domain with less of the largest α than that has no weight to speak of
ROUNDING = 1e-5


def weighty(alpha: np.ndarray, domains: Sequence[str], least: float) -> tuple[str, ...]:
    """The domains that have weight in a round; `Refused` if the task does not allow this α.

    Args:
      least: the task's `secure.least_alpha`.
    """
    _check_numbers(alpha, domains)
    if not abs(float(alpha.max()) - 1) < ROUNDING:
        raise Refused(f"the largest α is {alpha.max():.6g}, not 1")
    lowest = int(alpha.argmin())
    if alpha[lowest] < least * (1 - ROUNDING):
        raise Refused(
            f"α of domain {domains[lowest]!r} is {alpha[lowest]:.6g};"
            f" the task allows no less than {least} of the largest"
        )
    heavy = alpha >= max(least, LEAST) * (1 - ROUNDING)
    return tuple(name for name, has_weight in zip(domains, heavy, strict=True) if has_weight)


def any_weight(alpha: np.ndarray, domains: Sequence[str]) -> tuple[str, ...]:
    """The same where noise covers each client: any α will do, and all domains count."""
    _check_numbers(alpha, domains)
    return tuple(domains)


def _check_numbers(alpha: np.ndarray, domains: Sequence[str]) -> None:
    usual = (np.dtype("<f4"), (len(domains),))
    if (alpha.dtype, alpha.shape) != usual or not np.isfinite(alpha).all():
        raise Refused(f"α is not {len(domains)} finite numbers of 32 bits, one for each domain")


def check_stated(held: Collection[str], stated: Collection[str]) -> None:
    """Refuses to work on examples of a domain that the roster does not say this client holds."""
    unknown = sorted(set(held) - set(stated))
    check(
        not unknown,
        f"this client has examples of domain {', '.join(map(repr, unknown))}; its entry in the"
        f" roster states {', '.join(map(repr, stated))}",
    )
