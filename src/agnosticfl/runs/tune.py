# SPDX-License-Identifier: Apache-2.0
"""A search for settings on held-out clients, the same for every method, in a folder of its own.

tune.json     what is searched               trials/      a run folder for each setting and seed
trials.json   what came out                  TASK.toml    the task with what was found
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agnosticfl.engines.helpers.tuning import Tuner
from agnosticfl.errors import check, choose
from agnosticfl.files import read_json, write_json, write_whole
from agnosticfl.runs.axes import Setting, checked_keys, grid_of, in_list, in_words
from agnosticfl.runs.config import Config, Table, as_text, first_difference
from agnosticfl.runs.planning import (
    SCORES,
    WORST,
    Plan,
    Search,
    check_settings,
    is_allowed,
    plans_of,
)
from agnosticfl.runs.records import Record, read_records
from agnosticfl.runs.resolve import title
from agnosticfl.runs.run import run
from agnosticfl.runs.search import Searched, search
from agnosticfl.runs.tasks import parse_set, put_dotted, task_table, task_text
from agnosticfl.runs.trials import (
    Load,
    Trial,
    Tried,
    hidden_among,
    hidden_in,
    judged_alike,
    loading,
    sharing,
    trial_folder,
    undefined_in,
)
from agnosticfl.runs.tuned_task import tuned_file, tuned_task

METHODS_BY_DEFAULT = ("fedavg", "afa")
RATE = "client_optimizer.learning_rate"
SEARCH = "tune.json"
NOTHING_SEEN = "nothing is chosen, since noise hides every domain in some trial"


class Found(NamedTuple):
    """What a search found for one method."""

    algorithm: str
    title: str
    keys: list[str]
    metric: str
    result: Searched
    hidden: Mapping[str, Mapping[Setting, Sequence[int]]]  # by noise: domain -> setting -> seeds
    noised: bool = False  # what held-out clients say

    @property
    def settings(self) -> Table:
        """The best, as `[algorithms.NAME]` in a task has it; nothing if all diverged."""
        own: Table = {}
        if self.result.best is not None:
            for key, value in zip(self.keys, self.result.best.setting, strict=True):
                put_dotted(own, key, value)
        return own


def _nothing(*_: Any) -> None: ...


class Watch(NamedTuple):
    """Who is told how far a search is, and may stop it."""

    # (configuration, its setting in words, trials done, trials known of so far) before a trial
    on_trial: Callable[[Config, str, int, int], Any] = _nothing
    on_round: Callable[[Record], Any] = _nothing
    say: Callable[[str], Any] = _nothing
    should_stop: Callable[[], bool] = lambda: False
    tuner: Tuner | None = None


SILENT = Watch()


def tune(
    task: str | Table,
    out: Path,
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
    load: Load | None = None,
    watch: Watch = SILENT,
) -> list[Found]:
    """Searches in the folder `out`, and goes on there if a search was interrupted.

    Args:
      task: its name, its file, or what such a file holds.
      keys: key -> the values of the first grid, or none for values around the task's own; default
        the clients' rate.
      seeds: of every setting, from 0 on.
      looks: how many of the last ones are averaged.
      budget: the most settings, the same for every method.
      target: the domain of FedAvg (target-only), by which it is judged.
      score: `worst`, the worst domain's metric, or `excess`, the largest loss of a domain over its
        reference.
      load: model and data of a configuration, if not as it names them.
    """
    check(seeds >= 1, f"number of seeds is {seeds}; it must be at least 1")
    check(looks >= 1, f"number of looks is {looks}; it must be at least 1")
    check(bool(algorithms), "no algorithm was given to tune")
    choose(score, SCORES, "--score")
    table = {**task_table(task), "task": task} if isinstance(task, str) else dict(task)
    for key, value in map(parse_set, sets):
        put_dotted(table, key, value)
    wanted = checked_keys({RATE: ()} if keys is None else keys)
    names = tuple(dict.fromkeys(algorithms))
    asked = Search(table, names, wanted, seeds, looks, budget, target, rounds, score)
    load = load or loading()
    check_settings(asked, sets)
    plans = plans_of(asked, load, watch.say)
    _open(out, asked)
    counts = [len(grid_of(plan.axes)) * seeds for plan in plans]  # trials of each, as far as known
    found = [
        _found(asked, plan, _trying(asked, plan, out, load, watch, counts, number))
        for number, plan in enumerate(plans)
    ]
    write_json(out / "trials.json", [_as_json(each) for each in found])
    if isinstance(task, str):
        own = {each.algorithm: each.settings for each in found}
        notes = {each.algorithm: _notes(each, asked) for each in found}
        del table["task"]
        write_whole(tuned_file(out, task), tuned_task(task_text(task), table, own, notes))
    return found


def _found(
    asked: Search, plan: Plan, run_trials: Callable[[Sequence[Setting]], dict[Setting, list[Trial]]]
) -> Found:
    trials: dict[Setting, list[Trial]] = {}

    def measure(settings: Sequence[Setting]) -> dict[Setting, Tried]:
        trials.update(run_trials(settings))
        return judged_alike(trials, plan.metric, asked.looks, plan.references)

    def nothing_seen() -> bool:
        hidden = hidden_among(trials).keys()
        return all(hidden >= set(trial.domains) for own in trials.values() for trial in own)

    def allowed(setting: Setting) -> bool:
        if nothing_seen():  # which no further trial changes
            return False
        return is_allowed(asked, plan.algorithm, dict(zip(plan.keys, setting, strict=True)))

    result = search(plan.axes, measure, allowed, asked.budget, plan.higher)
    if nothing_seen():
        ended = f"{NOTHING_SEEN} ({len(trials)} of {asked.budget} settings)"
        result = result._replace(ended=ended)
    name = title(asked.config(plan.algorithm, {}))
    hidden = hidden_among(trials)
    return Found(plan.algorithm, name, plan.keys, plan.metric, result, hidden, plan.noised)


def in_sentences(found: Found, seeds: int) -> list[str]:
    """What a search found, why it ended, and what cannot be told apart."""
    best, equals = found.result.best, found.result.equals
    lines = [f"{found.title}: {found.result.ended}.", *_left_out(found)]
    if best is None:
        return lines
    chosen = in_words(found.keys, best.setting)
    if seeds == 1:
        lines.append(f"Chosen: {chosen}, by one seed, with which no two can be told apart.")
    elif equals:
        others = ", ".join(short(m.setting) for m in equals)
        lines.append(
            f"Chosen: {chosen}, the best mean. {seeds} seeds cannot tell it from {others} (95 %)."
        )
    else:
        lines.append(f"Chosen: {chosen}; {seeds} seeds tell it from all others (95 %).")
    return lines


def _left_out(found: Found) -> list[str]:
    """One line about the domains that noise hides, and in which trials, if there are any."""
    trials = sum(len(tried.outcomes) for tried in found.result.measured)

    def told(where: Mapping[Setting, Sequence[int]]) -> str:
        if sum(map(len, where.values())) == trials:
            return "every trial"
        return ", ".join(
            f"{short(setting)} (seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))})"
            for setting, seeds in where.items()
        )

    named = "; ".join(f"{domain!r} in {told(where)}" for domain, where in found.hidden.items())
    return [f"No trial is judged by a domain that noise hides in any: {named}."] if named else []


def short(setting: Setting) -> str:
    """A setting by its values alone."""
    return " with ".join(map(as_text, setting))


def _open(out: Path, asked: Search) -> None:
    """Begins a search in a folder, or makes sure that the one in it is the same or a part of it."""
    check(not out.exists() or out.is_dir(), f"{out} is not a folder")
    new = msgspec.to_builtins(asked._asdict())
    if (out / SEARCH).exists():
        difference = _not_extended(read_json(out / SEARCH), new)
        check(
            difference is None,
            f"{out} holds another search: {difference}; choose another --out",
        )
    else:
        taken = out.exists() and any(path.suffix != ".tmp" for path in out.iterdir())
        check(not taken, f"{out} exists and holds no search; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / SEARCH, new)


def _not_extended(old: Table, new: Table) -> str | None:
    """One line about what is not the same as before, or more; looks may be counted anew."""
    old = {"score": WORST, **old}  # which an older version did not write down
    same = ("task", "target", "rounds", "score")
    difference = first_difference(*({key: each[key] for key in same} for each in (old, new)))
    if difference is not None:
        return difference
    if list(old["keys"]) != list(new["keys"]):
        return f"keys were {', '.join(old['keys'])} and are now {', '.join(new['keys'])}"
    fewer = [key for key, values in old["keys"].items() if not _within(values, new["keys"][key])]
    if fewer:
        began, now = (in_list(each["keys"][fewer[0]]) or "no values" for each in (old, new))
        return f"{fewer[0]} began with {began}, and now with {now}"
    gone = [name for name in old["algorithms"] if name not in new["algorithms"]]
    if gone:
        return f"{gone[0]} is no longer among the algorithms"
    less = [key for key in ("seeds", "budget") if new[key] < old[key]]
    return f"{less[0]} was {old[less[0]]} and is now {new[less[0]]}" if less else None


def _within(old: Sequence[Any], new: Sequence[Any]) -> bool:
    """Whether the old values are among the new ones; values around the task's own are not."""
    return bool(old) == bool(new) and all(value in new for value in old)


def _trying(
    asked: Search,
    plan: Plan,
    out: Path,
    load: Load,
    watch: Watch,
    counts: list[int],
    number: int,
) -> Callable[[Sequence[Setting]], dict[Setting, list[Trial]]]:
    """Runs the trials of some settings; those of one method share what they can."""
    make_built = sharing(load, plan.keys)
    done = 0

    said: set[str] = set()

    def say_once(text: str) -> None:
        if text not in said:
            said.add(text)
            watch.say("warning: " + text)

    def say(text: str) -> None:  # that a trial is there already, or diverged, is in the table
        if "complete already" not in text and not text.startswith("warning: the "):
            watch.say(text)

    def trial(setting: Setting, seed: int) -> Trial:
        nonlocal done
        config = asked.config(plan.algorithm, dict(zip(plan.keys, setting, strict=True)), seed)
        folder = out / trial_folder(config, plan.keys, setting)
        before = sum(counts[:number]) + done
        watch.on_trial(config, in_words(plan.keys, setting), before, sum(counts))
        summary = run(
            config,
            folder,
            make_built=make_built,
            resume=True,
            on_round=watch.on_round,
            say=say,
            should_stop=watch.should_stop,
            tuner=watch.tuner,
        )
        done += 1
        domains = plan.domains[seed]
        records = [record for record in read_records(folder) if "heldout" in record]
        hidden = hidden_in(records, domains, asked.looks) if plan.noised else []
        if plan.references is None:
            seen = [domain for domain in domains if domain not in hidden]
            for domain in undefined_in(records, plan.metric, seen):
                say_once(
                    f"the search does not see {domain!r}: its held-out examples leave"
                    f" {plan.metric} undefined"
                )
        if summary["diverged"] is not None:  # then it is not judged, whatever it sees
            hidden = []
        for domain in hidden:
            say_once(
                f"the search does not see {domain!r} in every trial: it has too few held-out"
                " clients for the noise, and no trial is judged by it"
            )
        return Trial(records, summary, domains, hidden)

    def run_trials(settings: Sequence[Setting]) -> dict[Setting, list[Trial]]:
        counts[number] = done + len(settings) * asked.seeds
        return {s: [trial(s, seed) for seed in range(asked.seeds)] for s in settings}

    return run_trials


def _notes(found: Found, asked: Search) -> list[str]:
    """What stands above the settings in the task."""
    best = found.result.best
    if best is None or best.mean is None:
        if found.noised:
            return ["agnosticfl tune found nothing.", *in_sentences(found, asked.seeds)]
        return ["agnosticfl tune found nothing: every setting diverged."]
    error = "" if best.error is None else f" (standard error {best.error:.2g})"
    rounds = f", {asked.rounds} rounds" if asked.rounds else ""
    return [
        f"Found by agnosticfl tune: {best.mean:.4g}{error} is the worst domain's held-out",
        f"{found.metric}, mean of {asked.seeds} seeds and the last {asked.looks} looks{rounds}.",
        *in_sentences(found, asked.seeds),
    ]


def _as_json(found: Found) -> Table:
    result = found.result

    def named(setting: Setting) -> Table:
        return dict(zip(found.keys, setting, strict=True))

    hidden = {
        domain: [{"setting": named(setting), "seeds": seeds} for setting, seeds in where.items()]
        for domain, where in found.hidden.items()
    }
    return {
        "algorithm": found.algorithm,
        "metric": found.metric,
        "best": None if result.best is None else named(result.best.setting),
        "cannot_be_told_apart": [named(each.setting) for each in result.equals],
        "inside": result.inside,
        "ended": result.ended,
        **({"hidden": hidden} if found.noised else {}),
        "settings": [
            {
                "setting": named(each.setting),
                "mean": each.mean,
                "standard_error": each.error,
                "seeds": [outcome._asdict() for outcome in each.outcomes],
            }
            for each in result.measured
        ],
    }
