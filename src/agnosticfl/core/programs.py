# SPDX-License-Identifier: Apache-2.0
"""Compiled programs that the next process finds without tracing anything.

JAX keeps what was compiled too, but by what tracing and lowering give: to find it, a process must
do both again, a second or more of Python for a network. Here a program is known by what it would be
traced from: the functions and all that they close over (`core.fingerprint`), what it is called
with, and everything else that decides what comes of that (`core.surroundings`). If any of it cannot
be told, the program is traced, as it is when a user's own code was loaded: such code can do
anything. It is also traced if there is anything wrong with a file (`core.kept`).

Two files hold a program. NAME.traced, named after all of that, says which NAME.compiled was made;
that one is named after what was traced, so that another version of this package need not compile
what it did not change. NAME.learned is what else can only be told by a trace, shapes mostly.
"""

import functools
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agnosticfl import registry
from agnosticfl.core import kept
from agnosticfl.core.fingerprint import Unknown, fingerprint, is_traced
from agnosticfl.core.lazy_jax import jax
from agnosticfl.core.surroundings import PACKAGE, settings, source_of, surroundings
from agnosticfl.core.tree import PyTree
from agnosticfl.spans import span

NEW = "/jax/compilation_cache/cache_misses"  # what JAX says of a program that it compiled

# Kernels from outside of XLA that are ready as soon as JAX is. Others are made ready by lowering
# what calls them: LAPACK's would be called at address 0.
READY = {"__gpu$xla.gpu.triton", "cu_threefry2x32_ffi"}

_ADDRESS = re.compile(r"0x[0-9a-f]+")
_CALL = re.compile(r'custom_call\b(?: @"?([^"(]+))?')
_heard = threading.local()
_folder: Path | None = None


def keep_in(folder: Path | None) -> None:
    """Keeps programs there from now on; nowhere if None."""
    global _folder
    _folder = folder


class Program:
    """`jax.jit(function, **options)`, which looks for what was compiled before it traces."""

    def __init__(self, function: Callable[..., Any], **options: Any):
        self._function, self._options = function, options
        self._traced = jax.jit(function, **options)
        self._ready: dict[Any, Callable[..., Any]] = {}
        self._lock = threading.Lock()
        functools.update_wrapper(self, function)

    def made_of(self) -> tuple[Any, ...]:
        """What decides what it does."""
        return self._function, self._options

    def __call__(self, *args: Any) -> Any:
        if _folder is None:
            return self._traced(*args)
        return self._ready_for(*args)(*args)

    def compile(self, *args: Any) -> None:
        """Makes it ready for arguments like these, of which shapes are enough."""
        if self._ready_for(*args) is self._traced:
            self.lower(*args).compile()

    def trace(self, *args: Any) -> Any:
        """As `jax.jit` does it."""
        return self._traced.trace(*args)

    def lower(self, *args: Any) -> Any:
        """The same."""
        return self._traced.lower(*args)

    def _ready_for(self, *args: Any) -> Callable[..., Any]:
        leaves, structure = jax.tree.flatten(args)
        if _folder is None or not all(map(_is_usual, leaves)):
            return self._traced
        forms = (structure, *map(_form, leaves))
        case = (forms, *settings())
        found = self._ready.get(case)
        if found is None:
            with self._lock:
                found = self._ready.get(case) or self._made(_folder, args, forms)
                self._ready[case] = found
        return found

    def _made(self, folder: Path, args: Any, forms: Any) -> Callable[..., Any]:
        key = _key(self.made_of(), forms)
        if key is None:
            return self._traced
        note = folder / f"{key}.traced"
        with span("loading compiled"):
            name, *trees = kept.read(note) or (None,)
            file = folder / f"{name}.compiled"
            found = _loaded(file, trees) if name else None
        if found is None:
            return self._compiled(folder, args, forms, note)
        return self._tried(found, note, file)

    def _tried(self, found: Callable[..., Any], *files: Path) -> Callable[..., Any]:
        """What was loaded, until it turns out that it cannot run: then it is traced after all."""

        def first(*args: Any) -> Any:
            if used[0] is not first:
                return used[0](*args)
            try:
                result, used[0] = jax.block_until_ready(found(*args)), found
            except Exception:  # if it is the arguments' fault it will be said again
                for file in files:
                    file.unlink(missing_ok=True)
                used[0] = self._traced
                result = self._traced(*args)
            return result

        used: list[Callable[..., Any]] = [first]
        return first

    def _compiled(self, folder: Path, args: Any, forms: Any, note: Path) -> Callable[..., Any]:
        """Traces it, and keeps what was compiled for the next process."""
        traced = self._traced.trace(*args)
        lowered = traced.lower()
        # The text of a program does not have those arguments that it does not use; its trace does.
        text = lowered.as_text()
        if not {*_CALL.findall(text)} <= READY:
            return lowered.compile()
        words = (text, _ADDRESS.sub("", str(traced.jaxpr)), str(forms))
        told = settings(but="jax_default_matmul_precision")  # which the text has
        name = fingerprint(words, self._options, [*map(str, told)], surroundings()).hex()
        file, trees = folder / f"{name}.compiled", (lowered.in_tree, lowered.out_tree)
        found = _loaded(file, trees)
        if found is not None:
            kept.write(note, lambda: (name, *trees))
            return self._tried(found, note, file)
        before, found = _compiled_so_far(), lowered.compile()
        # If JAX had it, it cannot be kept again: functions of what was loaded get lost.
        if _compiled_so_far() > before:
            kept.write(file, lambda: _executables().serialize(found)[0])
            kept.write(note, lambda: (name, *trees))
        return found


@functools.lru_cache(64)
def program_of(function: Callable[..., Any]) -> Program:
    """The same one for the same function."""
    return Program(function)


def shapes_of(function: Callable[..., Any], *args: Any) -> PyTree:
    """`jax.eval_shape`, which remembers what came out."""
    return learned(jax.eval_shape, function, *args)


def learned(ask: Callable[..., Any], function: Callable[..., Any], *args: Any) -> Any:
    """`ask(function, *args)`, which traces: the same is asked once, and need not be traced again.

    Args:
      ask: a function of a module; what it gives depends on the shapes of `args` alone.
    """
    leaves, structure = jax.tree.flatten(args)
    is_hashable = getattr(type(function), "__hash__", None) is not None
    if not is_hashable or not all(map(_is_usual, leaves)):
        return ask(function, *args)
    return _learned(ask, function, _folder, structure, *map(_form, leaves), *settings())


@functools.lru_cache(64)
def _learned(
    ask: Callable[..., Any],
    function: Callable[..., Any],
    folder: Path | None,
    structure: Any,
    *case: Any,
) -> Any:
    forms = case[: structure.num_leaves]
    key = None if folder is None else _key((ask, function), (structure, *forms))
    file = None if folder is None or key is None else folder / f"{key}.learned"
    found = None if file is None else kept.read(file)
    if found is None:
        like = [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak) for shape, dtype, weak in forms]
        found = ask(function, *jax.tree.unflatten(structure, like))
        if file is not None:
            kept.write(file, lambda: found)
    return found


def _key(made_of: Any, forms: Any) -> str | None:
    """What tells a program from all others; None if that cannot be told."""
    if registry.has_foreign():
        return None
    try:
        told = (str(forms), [*map(str, settings())], surroundings(), source_of(PACKAGE))
        return fingerprint(made_of, told).hex()
    except Unknown:
        return None


def _is_usual(leaf: Any) -> bool:
    """Whether it is on the one device that is meant, and not a part of something larger."""
    if is_traced(leaf):
        return False
    if isinstance(leaf, jax.Array):
        return leaf.sharding.device_set == _device()
    return True


def _form(leaf: Any) -> tuple[Any, ...]:
    array = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    return tuple(array.shape), array.dtype, array.weak_type


@functools.cache
def _device() -> set[Any]:
    return {jax.local_devices()[0]}


def _executables() -> Any:
    from jax.experimental import serialize_executable  # here: not everybody has JAX

    return serialize_executable


def _loaded(file: Path, trees: Any) -> Callable[..., Any] | None:
    """The program in a file; None if there is none that can be used."""
    content = kept.read(file)
    if content is None:
        return None
    try:
        devices = jax.local_devices()[:1]
        return _executables().deserialize_and_load(content, *trees, execution_devices=devices)
    except Exception:  # made by a version that has the same name
        return None


def _compiled_so_far() -> int:
    """How many programs this thread compiled, and did not find in memory or in JAX's own cache."""
    _listen()
    return getattr(_heard, "compiled", 0)


@functools.cache
def _listen() -> None:
    def notice(event: str, **_: Any) -> None:
        if event == NEW:
            _heard.compiled = getattr(_heard, "compiled", 0) + 1

    jax.monitoring.register_event_listener(notice)
