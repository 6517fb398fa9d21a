# SPDX-License-Identifier: Apache-2.0
"""What a search found, as a table and a plot; and the search itself from Python, in one call."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agnosticfl.core.federated import Splits
from agnosticfl.core.model import Model
from agnosticfl.core.signature import showing
from agnosticfl.files import write_whole
from agnosticfl.report.comparison import Cell
from agnosticfl.report.drawing import COLOURS, STYLE, WIDTH, save
from agnosticfl.report.grid import DASH, Entry, Grid, grid, markdown, number, places, plain
from agnosticfl.report.panels import Plot
from agnosticfl.report.spots import MARKERS
from agnosticfl.report.study import task_keywords
from agnosticfl.runs import tune as tuning
from agnosticfl.runs.axes import Setting, in_words, is_number
from agnosticfl.runs.config import Table, as_text
from agnosticfl.runs.planning import WORST
from agnosticfl.runs.resolve import GIVEN
from agnosticfl.runs.trials import Tried
from agnosticfl.runs.tune import METHODS_BY_DEFAULT, Found, Watch, in_sentences, short
from agnosticfl.runs.tuned_task import merged


def tune(
    task: str,
    out: Path | str,
    *,
    algorithms: Sequence[str] = METHODS_BY_DEFAULT,
    keys: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 3,
    looks: int = 5,
    budget: int = 12,
    target: str | None = None,
    rounds: int | None = None,
    sets: Sequence[str] = (),
    score: str = WORST,
) -> dict[str, Table]:
    """Searches settings of a task on held-out clients; the grid grows until its best is inside.

    `out` gets a run folder for each trial, `table.md`, `plots/` and `TASK.toml`, the task with
    what was found. The same call goes on where an interrupted one ended. Returns method -> its
    settings, as `[algorithms.NAME]` in a task has them.

    Args:
      task: its name or its TOML file.
      algorithms: names of methods.
      keys: key -> the values of the first grid, or none for values around the task's own; default
        the clients' rate.
      seeds: of every setting, from 0 on.
      looks: how many of a trial's last looks at held-out clients are averaged.
      budget: the most settings, the same for every method.
      target: the domain of FedAvg (target-only), if that is among them.
      rounds: of a trial, if not as many as the task says.
      sets: `key=value` that change the task.
      score: `worst`, the worst domain's metric, or `excess`, the largest loss of a domain over the
        reference that the task has for excess-risk.
    """
    found = tuning.tune(
        task,
        Path(out),
        algorithms=algorithms,
        keys=keys,
        seeds=seeds,
        looks=looks,
        budget=budget,
        target=target,
        rounds=rounds,
        sets=sets,
        score=score,
        watch=Watch(say=_warn),
    )
    write_search(found, Path(out), seeds, looks)
    return {each.algorithm: each.settings for each in found}


@showing(task_keywords())
def tune_study(
    model: Model,
    data: Splits,
    out: Path | str,
    *,
    algorithms: Mapping[str, Mapping[str, Any]] = {"fedavg": {}, "afa": {}},
    keys: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 3,
    looks: int = 5,
    budget: int = 12,
    target: str | None = None,
    **settings: Any,
) -> dict[str, Table]:
    """The same search as `tune`, for a model and data of one's own.

    What it returns can be given to `study` as its `algorithms`.

    Args:
      algorithms: name -> settings that only this one should use, as `[algorithms.NAME]` in a task.

    `keys`, `seeds`, `looks`, `budget` and `target` are as for `tune`. The other keywords are the
    keys of a task (docs/tasks.md), as for `study`.
    """
    out = Path(out)
    methods = {name: dict(own) for name, own in algorithms.items()}
    task = {"task": out.name, "data": GIVEN, "model": GIVEN, **settings, "algorithms": methods}
    found = tuning.tune(
        task,
        out,
        algorithms=list(methods),
        keys=keys,
        seeds=seeds,
        looks=looks,
        budget=budget,
        target=target,
        load=lambda _: (model, data),
        watch=Watch(say=_warn),
    )
    write_search(found, out, seeds, looks)
    return {each.algorithm: merged(methods[each.algorithm], each.settings) for each in found}


def _warn(text: str) -> None:
    """What the search cannot see: Python's way to say it. The rest is in the table."""
    if text.startswith("warning: "):
        warnings.warn(text.removeprefix("warning: "), stacklevel=2)


def write_search(found: Sequence[Found], out: Path, seeds: int, looks: int) -> None:
    """`table.md` and `plots/`."""
    parts = [
        "\n".join([markdown(search_table(each, seeds, looks)), *in_sentences(each, seeds), ""])
        for each in found
    ]
    write_whole(out / "table.md", "\n".join(parts))
    save(search_plot(found, seeds), out / "plots")


def search_table(found: Found, seeds: int, looks: int) -> Grid:
    """Every setting of one method, with what it came to."""
    over = f"mean (standard error) of {seeds} seeds" if seeds > 1 else "one seed"
    caption = (
        f"{found.title}: held-out {found.metric} of the worst domain, {over},"
        f" each the mean of the last {looks} looks"
    )
    decimals = places(m.mean for m in found.result.measured if m.mean is not None)
    names = [" with ".join(found.keys), found.metric, "worst domain", "gap", "trials", ""]
    rows = [_row(found, measured, decimals) for measured in found.result.measured]
    return grid(caption, names, rows)


def _row(found: Found, measured: Tried, decimals: int) -> list[Entry]:
    best = measured is found.result.best
    mark = "chosen" if best else "not told apart" if measured in found.result.equals else ""
    if measured.mean is None or measured.gap is None:
        value, gap = Entry("no score" if found.noised else "diverged"), Entry(DASH)
    else:
        value = number(Cell(measured.mean, measured.error, []), decimals)
        gap = Entry(plain(measured.gap, decimals), measured.gap)
    words = Entry(measured.domain or DASH), gap, Entry(str(len(measured.outcomes))), Entry(mark)
    entries = [Entry(short(measured.setting)), value, *words]
    return [entry._replace(bold=best) for entry in entries]


def search_plot(found: Sequence[Found], seeds: int) -> Plot:
    """The score over the first key, a line for each method (and each value of other keys)."""
    keys = list(dict.fromkeys(each.keys[0] for each in found))
    number_of_lines = sum(len(_lines(each)) for each in found)
    with mpl.rc_context(STYLE):
        height = 0.4 + 2.8 * len(keys) + 0.2 * ((number_of_lines + 1) // 2)
        figure = Figure((WIDTH, height), layout="constrained")
        panels = dict(zip(keys, figure.subplots(len(keys), squeeze=False)[:, 0], strict=True))
        count = 0
        for each in found:
            for label, own in _lines(each).items():
                _draw(panels[each.keys[0]], each, label, own, count)
                count += 1
        for key, axes in panels.items():
            axes.set_xlabel(key)
            axes.set_ylabel(f"{found[0].metric} of the worst domain")
        figure.legend(loc="outside upper left", ncols=2)
    bars = " (bars: standard errors)" if seeds > 1 else ""
    caption = f"Held-out {found[0].metric} of the worst domain{bars}; a ring is what was chosen"
    return Plot("tune", f"{caption}, a cross what diverged", lambda: figure)


def _lines(found: Found) -> dict[str, list[Tried]]:
    """Label -> the settings of one line, which differ in the first key alone."""
    lines: dict[str, list[Tried]] = {}
    for measured in found.result.measured:
        others = in_words(found.keys[1:], measured.setting[1:])
        label = f"{found.title}, {others}" if others else found.title
        lines.setdefault(label, []).append(measured)
    return lines


def _draw(axes: Axes, found: Found, label: str, own: Sequence[Tried], count: int) -> None:
    """One line; what is no number stands side by side."""
    place = _places(axes, [m.setting for m in found.result.measured])
    color, marker = COLOURS[count % len(COLOURS)], MARKERS[count % len(MARKERS)]
    sound = [m for m in own if m.mean is not None]
    x, y = [place(m.setting) for m in sound], [m.mean for m in sound]
    errors: Any = [m.error or 0.0 for m in sound]
    style: Any = {"color": color, "marker": marker, "markersize": 5, "capsize": 2}
    axes.errorbar(x, y, yerr=errors, label=label, **style)  # pyright: ignore[reportArgumentType]
    lost = [place(m.setting) for m in own if m.mean is None]
    bottom = axes.get_xaxis_transform()
    axes.scatter(lost, [0.03] * len(lost), color=color, marker="x", transform=bottom)
    best = found.result.best
    if best is not None and best in own:
        ring: Any = {"facecolors": "none", "edgecolors": color, "linewidths": 1.5, "zorder": 3}
        axes.scatter([place(best.setting)], [best.mean or 0.0], s=140, **ring)


def _places(axes: Axes, settings: Sequence[Setting]) -> Any:
    """Where a setting lies on the axis of its first value: logarithmic, if that can be."""
    values = list(dict.fromkeys(setting[0] for setting in settings))
    if all(map(is_number, values)):
        if min(values) > 0:
            axes.set_xscale("log")
        return lambda setting: setting[0]
    axes.set_xticks(range(len(values)), [as_text(value) for value in values])
    return lambda setting: values.index(setting[0])
