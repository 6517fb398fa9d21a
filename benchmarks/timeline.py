# SPDX-License-Identifier: Apache-2.0
"""From the command to the answer: where the seconds of `agnosticfl run` or `compare` go.

    python benchmarks/timeline.py [--repeats 3] [--empty] [--json OUT] -- compare toy --seeds 3

Each time the command runs in a process of its own, in an empty folder, with full caches: one run
before the first fills them. With --empty the caches are emptied before each. Every instant of the
main thread counts for the innermost span that it is in; what other threads do meanwhile stands
beside it, and so do the processor seconds of the process, which a busy machine does not stretch.
Tracing, compiling and loading what was compiled are told by JAX itself, imports by Python. Programs
that take long to compile are named.
"""

import argparse
import builtins
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

# The order of the table; spans with other names come after these.
ORDER = (
    "starting Python",
    "imports",
    "starting the device",
    "opening",
    "finding the lanes",
    "building",
    "tracing",
    "lowering",
    "compiling",
    "loading compiled",
    "evaluation ahead",
    "compiling ahead",
    "waiting for programs",
    "first call",
    "rounds",
    "looks",
    "records",
    "best model",
    "checkpoints",
    "waiting for the writer",
    "final evaluation",
    "models and predictions",
    "report",
    "plots",
    "other",
    "ending",
)
JAX = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling",
}
LOADING = "/jax/compilation_cache/cache_retrieval_time_sec"  # part of a compilation that is spared
MAIN = "MainThread"
LONG = 0.5  # seconds of a compilation that is named
Noted: TypeAlias = tuple[str, float, float, str, str]  # name, start, end, thread, program


def main() -> None:
    options = _options()
    if options.inner:
        inner(Path(options.inner), options.command)
        return
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        if not options.empty:
            timed(options.command, Path(folder), cache)
        found: list[dict[str, Any]] = []
        for _ in range(options.repeats):
            if options.empty:
                shutil.rmtree(cache, ignore_errors=True)
            found.append(timed(options.command, Path(folder), cache))
    print(table(found, " ".join(options.command), options.empty))  # noqa: T201
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def timed(command: Sequence[str], folder: Path, cache: Path) -> dict[str, Any]:
    """Runs the command once: seconds on the clock, of the processor, and of each span."""
    spans, place = folder / "spans.json", folder / "place"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    words = [sys.executable, str(Path(__file__).resolve()), "--inner", str(spans), "--", *command]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.time()
    done = subprocess.run(
        words,
        cwd=place,
        env=os.environ | {"AGNOSTICFL_CACHE": str(cache)},
        check=False,
        capture_output=True,
        text=True,
    )
    end, after = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr}")
    told = json.loads(spans.read_text(encoding="utf-8"))
    main_thread = self_seconds((s for s in told["spans"] if s[3] == MAIN), told["begun"], end)
    # Between the last span and the end of the process Python and JAX put things away.
    main_thread["starting Python"] = told["begun"] - start
    main_thread["ending"] = end - told["ended"]
    main_thread["other"] = main_thread.pop("", 0.0) - main_thread["ending"]
    others = defaultdict[str, float](float)
    for thread in {s[3] for s in told["spans"]} - {MAIN}:
        own = self_seconds((s for s in told["spans"] if s[3] == thread), told["begun"], end)
        for name, seconds in own.items():
            others[name] += seconds if name else 0.0
    return {
        "wall_s": end - start,
        "cpu_s": (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime),
        "main_thread_s": main_thread,
        "other_threads_s": dict(others),
        "compiling_s": compilations(told["spans"]),
        "load": os.getloadavg()[0],
    }


def compilations(spans: Iterable[Sequence[Any]]) -> dict[str, float]:
    """Program and thread -> seconds that it took to compile."""
    total = defaultdict[str, float](float)
    for name, start, end, thread, program in spans:
        if name == "compiling":
            total[f"{program}, {'main thread' if thread == MAIN else thread}"] += end - start
    return dict(total)


def self_seconds(spans: Iterable[Sequence[Any]], begun: float, end: float) -> dict[str, float]:
    """Name -> the seconds for which it was the innermost span; "" for those in none.

    Args:
      spans: (name, start, end, …) of one thread, which lie within each other or apart.
    """
    marks = sorted(
        [(s[1], 1, -s[2], s[0]) for s in spans], key=lambda mark: (mark[0], mark[2])
    )  # of two that start together the longer one is the outer
    total = defaultdict[str, float](float)
    stack: list[tuple[float, str]] = [(end, "")]  # when it ends, what it is called
    now = begun

    def until(moment: float) -> None:
        nonlocal now
        while len(stack) > 1 and stack[-1][0] <= moment:
            ends, name = stack.pop()
            total[name] += max(ends - now, 0.0)
            now = max(now, ends)
        total[stack[-1][1]] += max(moment - now, 0.0)
        now = max(now, moment)

    for start, _, negative_end, name in marks:
        until(start)
        stack.append((-negative_end, name))
    until(end)
    return dict(total)


def table(found: Sequence[Mapping[str, Any]], command: str, empty: bool) -> str:
    """Markdown: the median of each span over the repeats."""

    def median(get: Callable[[Mapping[str, Any]], float]) -> float:
        return statistics.median(map(get, found))

    names = dict.fromkeys(
        [*ORDER, *(n for one in found for n in (*one["main_thread_s"], *one["other_threads_s"]))]
    )
    caches = "empty" if empty else "full"
    lines = [
        f"| `{command}`, {caches} caches | s, main thread | s, other threads |",
        "|---|---:|---:|",
    ]
    for name in names:
        own = median(lambda one, n=name: one["main_thread_s"].get(n, 0.0))
        beside = median(lambda one, n=name: one["other_threads_s"].get(n, 0.0))
        if max(own, beside) >= 0.005:
            lines.append(f"| {name} | {own:.2f} | {f'{beside:.2f}' if beside >= 0.005 else ''} |")
    wall, cpu = median(lambda one: one["wall_s"]), median(lambda one: one["cpu_s"])
    load = max(one["load"] for one in found)
    lines.append(
        f"| **on the clock** (median of {len(found)}, load {load:.1f}) | **{wall:.2f}** | |"
    )
    lines.append(f"| processor seconds | {cpu:.2f} | |")
    for name in dict.fromkeys(n for one in found for n in one["compiling_s"]):
        seconds = median(lambda one, n=name: one["compiling_s"].get(n, 0.0))
        if seconds >= LONG:
            lines.append(f"| compiling of {name} | {seconds:.2f} | |")
    return "\n".join(lines)


# --- the process that is timed --------------------------------------------------------------------


def inner(out: Path, command: Sequence[str]) -> None:
    """The command itself, with somebody who listens."""
    begun, spans = time.time(), list[Noted]()
    _time_imports(spans)
    from agnosticfl.cli import script as program
    from agnosticfl.spans import Span, listen

    def note(span: Span) -> None:
        spans.append((span.name, span.start, span.end, span.thread, ""))

    listen(note)
    sys.argv = ["agnosticfl", *command]
    try:
        program()
    finally:
        told = {"begun": begun, "ended": time.time(), "spans": spans}
        out.write_text(json.dumps(told), encoding="utf-8")


def _time_imports(spans: list[Noted]) -> None:
    """Notes the outermost imports of each thread: those within them are theirs."""
    usual, within, heard = builtins.__import__, threading.local(), list[bool]()

    def listen_to_jax() -> None:
        if not heard and hasattr(sys.modules.get("jax"), "monitoring"):
            heard.append(True)
            _listen_to_jax(spans)

    def timed_import(name: str, *rest: Any, **others: Any) -> Any:
        if getattr(within, "one", False):
            return usual(name, *rest, **others)
        within.one, start = True, time.time()
        try:
            return usual(name, *rest, **others)
        finally:
            within.one, end = False, time.time()
            if end - start > 1e-4:  # the others were there
                spans.append(("imports", start, end, threading.current_thread().name, ""))
                listen_to_jax()

    builtins.__import__ = timed_import


def _listen_to_jax(spans: list[Noted]) -> None:
    import jax

    def note(name: str, start: float, end: float, program: str = "") -> None:
        spans.append((name, start, end, threading.current_thread().name, program))

    def on_span(event: str, start_time: float, end_time: float, **kwargs: str | int) -> None:
        if event in JAX:
            note(JAX[event], start_time, end_time, str(kwargs.get("fun_name", "")))

    def on_duration(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del kwargs
        if event == LOADING:
            now = time.time()
            note("loading compiled", now - duration_secs, now)

    jax.monitoring.register_event_time_span_listener(on_span)
    jax.monitoring.register_event_duration_secs_listener(on_duration)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--empty", action="store_true", help="empty the caches before each")
    parser.add_argument("--json")
    parser.add_argument("--inner", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="run or compare, and more")
    return parser.parse_args()


if __name__ == "__main__":
    main()
