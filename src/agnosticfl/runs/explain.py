# SPDX-License-Identifier: Apache-2.0
"""What every key of a task is, has and means: `agnosticfl show`, and the end of docs/tasks.md."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agnosticfl.core.metrics import Metric
from agnosticfl.options import NEEDED, Option, options_of, wanted
from agnosticfl.registry import (
    ENGINES,
    LOSS_TRANSFORMS,
    METHODS,
    METRICS,
    WEIGHT_RULES,
    WEIGHT_TRANSFORMS,
    Registry,
)
from agnosticfl.runs.config import FOUND, Config, as_text, config_keys
from agnosticfl.runs.optimizers import BEFORE_STEP, optimizer_names, optimizer_options
from agnosticfl.runs.resolve import (
    NAMED,
    NOT_OF_A_TASK,
    TABLES,
    Layer,
    find_method,
    layers_of,
    resolve,
    special_options,
)
from agnosticfl.runs.tasks import parse_set

# Key of a task -> what its table can name.
ROOMS: Mapping[str, Registry] = {
    **NAMED,
    "weight_rule": WEIGHT_RULES,
    "weight_rule.before": LOSS_TRANSFORMS,
    "weight_rule.after": WEIGHT_TRANSFORMS,
}


class Row(NamedTuple):
    """One key of a task."""

    key: str
    value: str
    origin: str
    meaning: str


def task_rows(
    task: str,
    algorithm: str = "afa",
    target: str | None = None,
    seed: int = 0,
    rounds: int | None = None,
    sets: Sequence[str] = (),
) -> list[Row]:
    """Every key of a task with its value, where that comes from, and what it means."""
    layers = layers_of(task, algorithm, target, seed, rounds, sets)
    config = resolve(task, algorithm, target, seed, rounds, sets)
    changed = {parse_set(text)[0] for text in sets}
    rows: list[Row] = []
    for key, option in config_keys().items():
        value = getattr(config, key)
        if key in FOUND:
            continue
        if not isinstance(value, dict):
            rows.append(Row(key, _shown(value), _origin(layers, key, changed), option.meaning))
            continue
        rows.append(Row(key, "", "", option.meaning))
        rows += _table_rows(config, key, layers, changed)
    return rows


def task_lines(*arguments: Any) -> Iterator[str]:
    """The same, as text."""
    rows = task_rows(*arguments)
    wide = max(len(row.key) for row in rows)
    for row in rows:
        value = f" = {row.value}  ({row.origin})" if row.origin else ""
        yield f"{row.key:{wide}}{value}"
        yield f"{'':{wide}}   {row.meaning}"


def _table_rows(
    config: Config, key: str, layers: Sequence[Layer], changed: set[str]
) -> Iterator[Row]:
    """The options of one table: those that are given, and the defaults of the others."""
    table: dict[str, Any] = getattr(config, key)
    known = table_options(config, key)
    for name in [*table, *(name for name in known if name not in table)]:
        option = known.get(name, Option(name, Any, NEEDED, ""))
        given = name in table
        if not given and (option.default is NEEDED or option.kind is Any):
            continue
        value = table[name] if given else option.default
        origin = _origin(layers, f"{key}.{name}", changed) if given else "default"
        yield Row(f"{key}.{name}", _shown(value), origin, option.meaning)


def table_options(config: Config, key: str) -> dict[str, Option]:
    """What the table of a key may hold, for what it names in this configuration."""
    table: dict[str, Any] = getattr(config, key)
    name = Option("name", str, NEEDED, "`agnosticfl show --keys` lists what there is")
    if key in ("client_optimizer", "server_optimizer"):
        own = optimizer_options(table["name"], key)
        before = BEFORE_STEP if key == "client_optimizer" else {}
        extra = {
            k: options_of(make)["strength"]._replace(name=k)
            for k, make in before.items()
            if k in table
        }
        return {"name": name, **own, **extra}
    if key == "weight_rule":
        lists = {k: Option(k, list, [], f"what is done {k} the rule") for k in ("before", "after")}
        return {"name": name, **options_of(WEIGHT_RULES.get(table["name"])), **lists}
    if key in NAMED:
        return {"name": name, **options_of(NAMED[key].get(table["name"]))}
    return special_options(config).get(key, {})


def _origin(layers: Sequence[Layer], dotted: str, changed: set[str]) -> str:
    """The strongest layer that says something of a key."""
    key, _, name = dotted.partition(".")
    found = "default"
    for layer in layers:
        table = layer.table.get(key)
        if key not in layer.table or (name and not (isinstance(table, dict) and name in table)):
            continue
        found = layer.origin
        if layer.origin == "task" and changed & {dotted, key}:
            found = "--set"
        own = layer.origin.strip("[]")
        if f"{own}.{dotted}" in changed:
            found = "--set"
    return found


def _shown(value: Any) -> str:
    """A value as a reader of a task knows it; TOML has no null."""
    if value is None:
        return "left out"
    return as_text(list(value) if isinstance(value, tuple) else value)


# --- all keys there are ---------------------------------------------------------------------------


def key_lines() -> Iterator[str]:
    """Every key of a task, then everything that a key can name, with its options."""
    for option in _settable():
        yield f"{option.name}: {wanted(option.kind)}{_default(option)}"
        yield f"    {option.meaning}"
    yield ""
    yield "what `client_optimizer` and `server_optimizer` can name, of Optax:"
    yield f"  {', '.join(optimizer_names())}"
    for heading, entries in named_things():
        yield ""
        yield f"{heading}:"
        for name, meaning, options in entries:
            yield f"  {name}: {meaning}"
            for option in options:
                yield f"    {option.name}: {wanted(option.kind)}{_default(option)}"
                if option.meaning:
                    yield f"        {option.meaning}"


def keys_as_markdown() -> str:
    """The same as the tables of docs/tasks.md."""
    lines = ["| key | what it must be | default | meaning |", "|---|---|---|---|"]
    lines += [_markdown_row(option) for option in _settable()]
    for heading, entries in named_things():
        lines += ["", f"## {heading[0].upper()}{heading[1:]}", ""]
        for name, meaning, options in entries:
            lines.append(f"- **`{name}`**: {_escaped(meaning)}")
            lines += [f"    - {_escaped(_with_meaning(option))}" for option in options]
    return "\n".join(lines) + "\n"


def named_things() -> Iterator[tuple[str, list[tuple[str, str, list[Option]]]]]:
    """Heading -> name, meaning and options of each thing that a key can name."""
    for key, registry in ROOMS.items():
        yield f"what `{key}` can name", [_entry(registry, name) for name in registry.names()]
    for key, function, skipped in TABLES:
        yield (
            f"what `{key}` holds",
            [
                (option.name, _with_meaning(option).partition(" ")[2], [])
                for option in options_of(function, skipped).values()
            ],
        )
    yield (
        "what `engine` can name",
        [(name, _first_line(ENGINES.get(name)), []) for name in ENGINES.names()],
    )
    yield (
        "what `metric` can name, and `metrics` of a model",
        [
            ("loss", "the mean loss per example, of every model; lower is better", []),
            *((name, _metric(METRICS.get(name)), []) for name in METRICS.names()),
        ],
    )
    yield (
        "what `--algorithm` can name",
        [
            (name, f"{entry.title} ({entry.paper}). {_first_line(entry.make)}", _own_options(name))
            for name in METHODS.names()
            if (entry := find_method(name))
        ],
    )


def _metric(entry: Metric) -> str:
    better = "higher" if entry.reading.higher_is_better else "lower"
    return f"{_first_line(entry.function).removesuffix('.')}; {better} is better"


def _own_options(method: str) -> list[Option]:
    """What `[options]` may hold for a method."""
    given = ("target", "learning_rate")  # that a task has under keys of its own
    return [o for name, o in find_method(method).options.items() if name not in given]


def _entry(registry: Registry, name: str) -> tuple[str, str, list[Option]]:
    thing = registry.get(name)
    return name, _first_line(thing), list(options_of(thing).values())


def _settable() -> list[Option]:
    return [o for o in config_keys().values() if o.name not in NOT_OF_A_TASK]


def _default(option: Option) -> str:
    return "" if option.default in (NEEDED, None) else f" (default {_shown(option.default)})"


def _with_meaning(option: Option) -> str:
    """An option in one line of Markdown."""
    default = "" if option.default in (NEEDED, None) else f", default {_shown(option.default)}"
    meaning = option.meaning.removesuffix(".")
    return f"`{option.name}` ({wanted(option.kind)}{default})" + (f": {meaning}" if meaning else "")


def _first_line(thing: Any) -> str:
    return " ".join((thing.__doc__ or "").strip().partition("\n\n")[0].split())


def _markdown_row(option: Option) -> str:
    default = "must be given" if option.default is NEEDED else f"`{_shown(option.default)}`"
    default = default.replace("`left out`", "left out")
    cells = (f"`{option.name}`", wanted(option.kind), default, option.meaning)
    return "| " + " | ".join(map(_escaped, cells)) + " |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
