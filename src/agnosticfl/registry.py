# SPDX-License-Identifier: Apache-2.0
"""Doors: everything that a task or the command line can name, and where a name is looked for.

An entry is one line beside the thing itself:

    @MODELS.add("cnn")
    def cnn(classes: int = 62) -> Model: ...

A name is looked for in the files of its room, then among the entry points that installed packages
declare (group `agnosticfl.models` for models, and so on). `"package.module:function"` names
anything that can be imported, a module in the current folder too.
"""

import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from agnosticfl.errors import BadInput, check
from agnosticfl.options import check_options, options_of

F = TypeVar("F")
OWN = __name__.partition(".")[0]

_foreign: list[str] = []  # modules of others that were loaded by a name


class Registry:
    """The named things of one kind.

    Args:
      kind: what such a thing is called in messages.
      room: the package whose files hold the built-in ones, or the module.
    """

    def __init__(self, kind: str, room: str):
        self.kind, self.room = kind, room
        self.group = f"agnosticfl.{kind.replace(' ', '_')}s"  # of entry points
        self._known: dict[str, Any] = {}
        self._complete = False  # whether all files of the room have been imported

    def add(self, name: str) -> Callable[[F], F]:
        """Enters what follows under `name`."""

        def enter(thing: F) -> F:
            if self._known.get(name, thing) is not thing:
                raise ValueError(f"two {self.kind}s are called {name!r}")
            self._known[name] = thing
            return thing

        return enter

    def names(self) -> list[str]:
        """All that can be named without a colon: the built-in ones, then the installed ones."""
        self._import_room()
        own = sorted(self._known)
        return own + sorted(point.name for point in self._points() if point.name not in own)

    def get(self, name: str, what: str = "") -> Any:
        """The thing called `name`, or one line on what there is and where it was looked for.

        Args:
          what: what the name is of, if not of a thing of this kind.
        """
        if ":" in name:
            return imported(name, what or self.kind)
        if name not in self._known:
            self._import_file(name)
        if name not in self._known:
            self._import_room()
        if name in self._known:
            return self._known[name]
        for point in self._points():
            if point.name == name:
                return _loaded(point, what or self.kind)
        raise BadInput(self._unknown(name, what or self.kind))

    def build(self, table: Mapping[str, Any], where: str) -> Any:
        """Calls what `table` names with the table's other keys."""
        self.check(table, where)
        thing, options = self._of(table, where)
        return thing(**options)

    def check(self, table: Mapping[str, Any], where: str) -> None:
        """Says so if `table` names nothing, or has an option that what it names does not take.

        Args:
          where: the key of the task that holds the table.
        """
        thing, options = self._of(table, where)
        check_options(options_of(thing), options, f"{where} {table['name']!r}")

    def _of(self, table: Mapping[str, Any], where: str) -> tuple[Any, dict[str, Any]]:
        name = table.get("name")
        if not isinstance(name, str):
            raise BadInput(f"[{where}] needs a name (allowed: {', '.join(self.names())})")
        return self.get(name, where), {k: v for k, v in table.items() if k != "name"}

    def _unknown(self, name: str, what: str) -> str:
        there = self.names()
        near = difflib.get_close_matches(name, there, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        places = f"looked for in {self.room} and among entry points {self.group!r}"
        one_s_own = "or 'package.module:function' for one's own"
        return f"unknown {what} {name!r}{hint} (allowed: {', '.join(there)}; {one_s_own}; {places})"

    def _points(self) -> Iterator[importlib.metadata.EntryPoint]:
        yield from importlib.metadata.entry_points(group=self.group)

    def _import_file(self, name: str) -> None:
        """A file that is called as its entry, or has its line, is found without its siblings."""
        room = importlib.import_module(self.room)
        modules = [m.name for m in pkgutil.iter_modules(getattr(room, "__path__", ()))]
        called = name.replace("-", "_")
        for module in [called] if called in modules else modules:
            if module == called or f'.add("{name}")' in _source(f"{self.room}.{module}"):
                importlib.import_module(f"{self.room}.{module}")

    def _import_room(self) -> None:
        if self._complete:
            return
        room = importlib.import_module(self.room)
        for found in pkgutil.iter_modules(getattr(room, "__path__", ())):
            if not found.ispkg:
                importlib.import_module(f"{self.room}.{found.name}")
        self._complete = True


def _source(module: str) -> str:
    """The text of a module that need not be loaded; nothing if it has none."""
    loader: Any = getattr(importlib.util.find_spec(module), "loader", None)
    return (loader.get_source(module) if hasattr(loader, "get_source") else None) or ""


def imported(name: str, what: str) -> Any:
    """`package.module:function`; the current folder counts as a place to import from."""
    module, _, path = name.partition(":")
    check(
        all(part.isidentifier() for part in (*module.split("."), *path.split("."))),
        f"{what} {name!r} is not of the form package.module:function",
    )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    _notice(module)
    try:
        there = importlib.import_module(module)
    except ModuleNotFoundError as error:
        places = f"looked for in {here} and where Python finds installed packages"
        raise BadInput(f"{what} {name!r}: no module named {error.name!r} ({places})") from error
    except BadInput:
        raise
    except Exception as error:  # somebody's module may fail in any way
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise BadInput(
            f"{what} {name!r}: importing {module} failed{_line_of(error)} ({reason})"
        ) from error
    # A file that names its own things while it is read, as a method's settings may, has not all.
    reading = getattr(there.__spec__, "_initializing", False)
    try:
        found = functools.reduce(getattr, path.split("."), there)
    except AttributeError as error:
        reason = f"it must stand in {module} above what names it" if reading else error
        raise BadInput(f"{what} {name!r}: {reason}") from error
    # Methods and metrics are records, everything else is a function.
    is_thing = callable(found) or isinstance(found, tuple)
    check(is_thing, f"{what} {name!r} is a {type(found).__name__}; it must be a function")
    return found


def has_foreign() -> bool:
    """Whether code of somebody else was loaded by a name; it can change what all other code does.

    The files of the program's own rooms do not count.
    """
    return bool(_foreign)


def _notice(module: str) -> None:
    if module.partition(".")[0] != OWN:
        _foreign.append(module)


def _line_of(error: Exception) -> str:
    """Which line of somebody's module failed; nothing if it cannot be read at all."""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename not in (__file__, importlib.__file__) and "<frozen" not in frame.filename:
            return f" at {Path(frame.filename).name}, line {frame.lineno}"
    return ""


def _loaded(point: importlib.metadata.EntryPoint, what: str) -> Any:
    _notice(point.module)
    try:
        return point.load()
    except Exception as error:  # somebody's package may fail in any way
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        package = point.dist.name if point.dist else point.value
        raise BadInput(f"{what} {point.name!r} of {package} cannot be loaded ({reason})") from error


MODELS = Registry("model", "agnosticfl.models")
METHODS = Registry("method", "agnosticfl.methods")
WEIGHT_RULES = Registry("weight rule", "agnosticfl.weights")
LOSS_TRANSFORMS = Registry("loss transform", "agnosticfl.weights")  # before a weight rule
WEIGHT_TRANSFORMS = Registry("weight transform", "agnosticfl.weights")  # after it
ENGINES = Registry("engine", "agnosticfl.engines")
SAMPLERS = Registry("sampler", "agnosticfl.core.cohorts")
METRICS = Registry("metric", "agnosticfl.core.metrics")
SOURCES = Registry("source", "agnosticfl.data.sources")
LOADERS = Registry("loader", "agnosticfl.data.loaders")
TRACKERS = Registry("tracker", "agnosticfl.runs.trackers")
