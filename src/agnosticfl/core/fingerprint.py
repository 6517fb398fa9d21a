# SPDX-License-Identifier: Apache-2.0
"""What a function that is about to be traced would do, as bytes, without tracing it.

A function does what its code says, with what it closes over and the modules that it looks into.
Here are the first two: code by the place where it stands, whatever is closed over by its value.
What stands in those modules is told by the versions of their packages (`core.programs`). So a
function has a fingerprint only if all of it comes from packages of which the version is known:
never one with code of a user's or of a plugin's in it, nor anything whose value cannot be seen.
"""

import dataclasses
import enum
import functools
import hashlib
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from agnosticfl.core.lazy_jax import jax, jnp

# Their versions stand in every key of a program, as Python's does.
PACKAGES = frozenset({"agnosticfl", "jax", "jaxlib", "flax", "optax", "chex", "numpy"})
_NUMBERS = (bool, int, float, complex, str, bytes, type(None), type(...), np.generic, np.dtype)


_CACHED = type(functools.lru_cache(lambda: None))


class Unknown(Exception):
    """There is something in a function of which it cannot be told what it does."""


def fingerprint(*things: Any) -> bytes:
    """The same bytes for things that do the same, and others for any others.

    Raises:
      Unknown: if that cannot be told.
    """
    digest, numbers = hashlib.sha256(), itertools.count()
    seen: dict[int, tuple[int, Any]] = {}  # which number a thing has; it is kept, as ids are reused

    def take(thing: Any) -> None:
        if isinstance(thing, _NUMBERS):
            _write(digest.update, type(thing).__name__, repr(thing))
        elif id(thing) in seen:
            _write(digest.update, "again", str(seen[id(thing)][0]))
        else:
            seen[id(thing)] = (next(numbers), thing)
            words, parts = _taken_apart(thing)
            _write(digest.update, *words, str(len(parts)))
            for part in parts:
                take(part)

    for thing in things:
        take(thing)
    return digest.digest()


def is_known(thing: Any) -> bool:
    """Whether it has a fingerprint: then it is made of built-in parts alone."""
    try:
        fingerprint(thing)
    except Unknown:
        return False
    return True


def is_traced(array: Any) -> bool:
    """Whether it stands for a value in a trace that is under way."""
    from jax.core import Tracer

    return isinstance(array, Tracer)


def _write(update: Callable[[bytes], Any], *words: str) -> None:
    for word in words:
        encoded = word.encode(errors="surrogatepass")
        update(len(encoded).to_bytes(8, "little") + encoded)


def _taken_apart(thing: Any) -> tuple[tuple[str, ...], list[Any]]:
    """Words for what a thing is, and its parts."""
    kind: Any = type(thing)
    if isinstance(thing, types.FunctionType):
        return _function(thing)
    if isinstance(thing, functools.partial):
        return ("partial",), [thing.func, thing.args, thing.keywords, vars(thing)]
    if isinstance(thing, types.MethodType):
        return ("method",), [thing.__func__, thing.__self__]
    if isinstance(thing, types.BuiltinFunctionType):
        return ("builtin", _home(thing.__module__), thing.__qualname__), []
    if kind is _CACHED:
        return ("cached",), [thing.__wrapped__]
    if isinstance(thing, types.ModuleType):
        return ("module", _home(thing.__name__)), []
    if isinstance(thing, type):
        return ("class", *_class(thing)), []
    if isinstance(thing, enum.Enum):
        return ("enum", *_class(kind), thing.name), []
    if isinstance(thing, np.ndarray | jax.Array):
        return _array(thing)
    if kind in (tuple, list) or (isinstance(thing, tuple) and hasattr(kind, "_fields")):
        return ("sequence", *_class(kind)), [*thing]
    if isinstance(thing, dict | types.MappingProxyType):
        return _mapping(thing)
    if kind in (set, frozenset):  # which have no order
        return ("set", *_class(kind)), sorted(fingerprint(each) for each in thing)
    return _object(thing)


def _known_by_itself(thing: Any) -> tuple[tuple[str, ...], list[Any]] | None:
    if isinstance(thing, jax.tree_util.PyTreeDef):
        return ("tree", str(thing.num_leaves)), [thing.node_data(), *thing.children()]
    if _is_global(thing):  # what `jax.jit` makes, say
        return ("global", _home(thing.__module__), thing.__qualname__), []
    if hasattr(type(thing), "made_of"):
        return ("made", *_class(type(thing))), [thing.made_of()]
    return None


def _is_global(thing: Any) -> bool:
    """Whether it is what its module calls by its name."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    return isinstance(name, str) and getattr(sys.modules.get(str(module)), name, None) is thing


def _function(function: types.FunctionType) -> tuple[tuple[str, ...], list[Any]]:
    # Not `__module__`, which `functools.wraps` changes: where its code stands.
    home = _home(function.__globals__.get("__name__"))
    try:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # one is still empty
        raise Unknown(function.__qualname__) from None
    own = [cells, function.__defaults__, function.__kwdefaults__]
    return ("function", home, function.__qualname__), [function.__code__, *own]


def _array(array: Any) -> tuple[tuple[str, ...], list[Any]]:
    if is_traced(array):
        raise Unknown("a value that is being traced")
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return ("key", str(jax.random.key_impl(array))), [jax.random.key_data(array)]
    values = np.asarray(array)
    if values.dtype.hasobject:
        raise Unknown("an array of objects")
    weak = str(getattr(array, "weak_type", None))
    return ("array", str(values.dtype), str(values.shape), weak), [values.tobytes()]


def _mapping(mapping: Mapping[Any, Any]) -> tuple[tuple[str, ...], list[Any]]:
    kind = type(mapping)
    if kind not in (dict, types.MappingProxyType):
        raise Unknown(kind.__name__)
    return ("mapping",), [*mapping.keys(), *mapping.values()]


def _object(thing: Any) -> tuple[tuple[str, ...], list[Any]]:
    """Something else: what says it itself, or is nothing beside its attributes."""
    told = _known_by_itself(thing)
    if told is not None:
        return told
    if isinstance(thing, types.CodeType):
        names: Iterable[str] = (*thing.co_names, "", *thing.co_varnames, "", *thing.co_freevars)
        return ("code", *names), [thing.co_code, thing.co_consts]
    kind = type(thing)
    plain = all(one is object or "__slots__" not in vars(one) for one in kind.__mro__)
    if not plain or not inspect.isclass(kind) or not hasattr(thing, "__dict__"):
        raise Unknown(kind.__name__)
    for one in kind.__mro__[:-1]:
        if not one.__flags__ & _HEAP:  # made in C: it may hold what cannot be seen
            raise Unknown(kind.__name__)
    kinds = [word for one in kind.__mro__[:-1] for word in _class(one)]
    fields = [f.name for f in dataclasses.fields(thing)] if dataclasses.is_dataclass(thing) else []
    return ("object", *kinds), [*fields, vars(thing)]


_HEAP = 1 << 9  # of a class's flags: that it was made by Python


def _class(kind: type) -> tuple[str, str]:
    if "<locals>" in kind.__qualname__:  # it may close over anything
        raise Unknown(kind.__qualname__)
    return _home(kind.__module__), kind.__qualname__


@functools.cache
def _home(module: str | None) -> str:
    """The module, if its package is one of those whose version is known."""
    top = (module or "").partition(".")[0]
    if top not in PACKAGES and top not in sys.stdlib_module_names:
        raise Unknown(f"code of {module}")
    return str(module)
