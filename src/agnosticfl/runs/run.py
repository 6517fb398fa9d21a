# SPDX-License-Identifier: Apache-2.0
"""A run: task + method + seed -> a run folder that survives a crash.

config.json    the resolved configuration      metrics.jsonl  one line per round
engine.json    what the engine chose           tensorboard/   the same, as events
checkpoints/   the server state                models/        the last model, the best one, the mean
predictions/   what they said, example by example              domains.json   their names
about.json     what a model in use must know of its data
summary.json   what came out; there only when the run is complete
privacy.json   what a differentially private run has spent, charged ahead of the rounds
"""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from agnosticfl.channels import dp
from agnosticfl.core import tree
from agnosticfl.core.evaluate import Evaluation
from agnosticfl.core.ledger import Bytes, added
from agnosticfl.core.model import Params
from agnosticfl.core.state import ServerState
from agnosticfl.engines.helpers.shards import here
from agnosticfl.engines.helpers.tuning import Tuner
from agnosticfl.errors import check
from agnosticfl.files import read_json, write_json
from agnosticfl.runs import checkpoint, kept_models, processes
from agnosticfl.runs.about import facts_of, write_facts
from agnosticfl.runs.ahead import Wait, compile_first_round
from agnosticfl.runs.build import Built, build
from agnosticfl.runs.config import Config
from agnosticfl.runs.folder import (
    check_folder,
    found_before,
    locked,
    open_folder,
    saying_full_disk,
)
from agnosticfl.runs.lookout import Looking, Lookout, check_looks, make_lookout
from agnosticfl.runs.playing import numbers, play, small_params
from agnosticfl.runs.predictions import write_predictions
from agnosticfl.runs.records import (
    METRICS,
    Record,
    RecordBook,
    as_record,
    asked_in,
    read_records,
    scalars,
)
from agnosticfl.runs.spending import Spending
from agnosticfl.runs.summary import (
    absence,
    as_summary,
    compile_evaluations,
    divergence,
    stalled,
    summarise,
    weights_kept,
)
from agnosticfl.runs.summary import measured as unguarded
from agnosticfl.runs.trackers import tracker
from agnosticfl.runs.writing import Writer
from agnosticfl.spans import span

WARNINGS = ("diverged", "often_absent", "stalled", "weights_kept")  # lines of a summary, or None


class Stopped(Exception):
    """The run was asked to stop; its state is in a checkpoint."""


def run(
    config: Config,
    out: Path,
    *,
    make_built: Callable[[Config, int | None, Tuner | None], Built] = build,
    resume: bool = False,
    overwrite: bool = False,
    track: Sequence[str] = (),
    on_round: Callable[[Record], Any] = lambda _: None,
    say: Callable[[str], Any] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
    tuner: Tuner | None = None,
) -> dict[str, Any]:
    """Runs `config` in the folder `out` and returns its summary.

    Args:
      make_built: builds what `config` is about.
      resume: go on from the newest checkpoint in `out`, if there is one. The result has the same
        bits as a run that was never interrupted; but a private run draws its noise anew.
      overwrite: replace the run that is in `out`.
      track: names of `trackers` to which the numbers go too.
      on_round: gets the record of each round (and, on a resume, nothing of earlier rounds).
      say: gets messages for the user.
      should_stop: asked after each round; if true, the state is saved and `Stopped` raised.
      tuner: finds the number of lanes where the configuration does not say; a rule if None.

    Of several processes (see `processes`) all call it with the same configuration, and the first
    one alone uses the folder.
    """
    check(
        config.dp is None or not track,
        f"dp: --track {' '.join(track)} writes down when each round ended, which tells how many"
        f" examples its clients have; leave it out: {METRICS} and tensorboard/ in the run folder"
        " have the same numbers without times",
    )
    starts = [tracker(name) for name in track]
    with contextlib.ExitStack() as stack:
        stack.enter_context(saying_full_disk(out))
        stack.enter_context(locked(out))
        found = processes.from_first(lambda: found_before(out) if resume else {})
        built = make_built(config, found.get("lanes"), tuner)
        check_looks(built)
        if processes.from_first(lambda: check_folder(built, out, resume, overwrite)):
            say(f"{out} is complete already")
            return processes.from_first(lambda: read_json(out / "summary.json"))
        stack.callback(wait := compile_first_round(built))  # one that is refused leaves no thread
        state = built.algorithm.init()
        processes.from_first(lambda: open_folder(built, out, resume, overwrite, say))
        devices = built.algorithm.choices.get("devices")
        if found and found.get("devices") != devices:
            before = found.get("devices")
            say(f"this run had {before} devices and now has {devices}: rounding differs")
        state = _restore(out, state, say) if resume else state
        return _play_to_the_end(built, out, state, starts, on_round, say, should_stop, wait)


def _play_to_the_end(
    built: Built,
    out: Path,
    state: ServerState,
    starts: Sequence[Any],
    on_round: Callable[[Record], Any],
    say: Callable[[str], Any],
    should_stop: Callable[[], bool],
    wait: Wait,
) -> dict[str, Any]:
    """Plays the rounds that are left, and returns the summary.

    Args:
      wait: until the first round is compiled.
    """
    config, domains, first = built.config, built.data.train.domains, processes.is_first()
    spending = Spending(built, out, state)
    built = spending.counting(built)
    state, ready = spending.state, _compile_evaluations_ahead(built, spending.state.params)
    look = make_lookout(built, spending, say, ready)
    with contextlib.ExitStack() as stack:
        stack.callback(ready)  # a run that is stopped leaves no thread behind
        sinks = [stack.enter_context(start(config, out, say)) for start in starts if first]
        writer = Writer(out, RecordBook(out, domains, int(state.round))) if first else None
        stack.callback(lambda: writer and writer.close())
        write = writer.keep if writer else kept_models.write_at_once
        how = built.readings[config.metric]
        keep = kept_models.best_keeper(out, config.metric, how, write, _not_private(built))
        spending.charge(_next_checkpoint(config, int(state.round)))
        _warn_if_not_private(built, say)
        wait()
        try:
            with processes.noticing_losses():
                for latest, record in _rounds(built, look, keep, state):
                    state = latest
                    t = record["round"]
                    if writer:
                        writer.record(record)
                        for sink in sinks:
                            sink(t, scalars(record, domains))
                    on_round(record)
                    done, stop = t == config.rounds, processes.any_of_them(should_stop())
                    if writer and (done or stop or t % config.checkpoint_every == 0):
                        writer.save(state, t)
                        if built.privacy is not None:  # what is charged next relies on it
                            writer.wait()
                        spending.charge(t if stop else _next_checkpoint(config, t))
                    if stop and not done:
                        raise Stopped(f"stopped after round {t} of {config.rounds}")
        except processes.Lost as lost:
            if writer:
                writer.save(state, int(state.round))
                writer.wait()
            again = "start all processes again with --resume to go on"
            raise processes.Lost(f"{lost} after round {int(state.round)}; {again}") from lost
        if writer:
            writer.wait_for_records()
        ready()
        with span("models and predictions"):
            summary = processes.from_first(lambda: _finish(built, out, state, spending))
        for name in WARNINGS:
            if summary[name] is not None:
                say(f"warning: {summary[name]}")
        _warn_if_not_private(built, say)
        for sink in sinks:
            sink(config.rounds, scalars({built.judged_by: summary[built.judged_by]}, domains))
    if first:
        write_json(out / "summary.json", summary)
    return summary


def _finish(built: Built, out: Path, state: ServerState, spending: Spending) -> dict[str, Any]:
    """Keeps the last model, measures it and the best one, and says what came out."""

    asked: list[Bytes] = []

    def measured(params: Params, which: str, t: int) -> dict[str, Evaluation]:
        with span("final evaluation"):
            found = unguarded(built, params, which, t)
        asked.extend(result.sent for result in found.values() if result.sent is not None)
        seen = {split: spending.charge_look(split, result, True) for split, result in found.items()}
        return {split: result for split, result in seen.items() if result is not None}

    last, records = here(state.params), read_records(out)
    about = {"round": int(state.round), **_not_private(built)}
    kept_models.write_params(kept_models.file_of(out, "last"), last, about)
    write_facts(out, facts_of(built.data))
    results = measured(last, "last", int(state.round))
    write_predictions(out, "last", built, results)
    summary = summarise(built, state, records, results)
    if state.mean_params is not None:
        mean = here(state.mean_params)
        file = kept_models.file_of(out, "mean")
        kept_models.write_params(file, mean, about)
        results = measured(mean, "mean", int(state.round))
        write_predictions(out, "mean", built, results)
        summary["mean"] = {"round": int(state.round), **as_summary(results)}
    look = kept_models.best_look(out)
    if look is not None:
        best = kept_models.read_params(kept_models.file_of(out, "best")).arrays
        results = measured(tree.from_named(best, last), "best", look.round)
        write_predictions(out, "best", built, results)
        summary["best"] = {**look._asdict(), **as_summary(results)}
    if built.privacy is not None:
        summary["privacy"] = spending.write_statement()
    if asked:
        whole = functools.reduce(added, [*map(asked_in, records), *asked])
        summary["bytes"] |= as_record(whole)
    return {
        **summary,
        "diverged": divergence(summary, records, built.judged_by),
        "often_absent": absence(built.config, records, built.data.train.domains),
        "stalled": stalled(built, records),
        "weights_kept": weights_kept(records),
    }


def _restore(out: Path, state: ServerState, say: Callable[[str], Any]) -> ServerState:
    """Reads the state of the newest whole checkpoint, for all processes."""
    if processes.is_first():
        state = checkpoint.restore(out / "checkpoints", state, say) or state
    return processes.arrays_from_first(state)


def _warn_if_not_private(built: Built, say: Callable[[str], Any]) -> None:
    for warning in _not_private(built).values():
        say(f"warning: {warning}")


def _not_private(built: Built) -> dict[str, str]:
    """What the files of a run with the noise of a test say besides; nothing of any other."""
    test = built.privacy is not None and built.privacy.test_seed is not None
    return {"warning": dp.NOT_PRIVATE} if test else {}


def _next_checkpoint(config: Config, t: int) -> int:
    return min(t + config.checkpoint_every - t % config.checkpoint_every, config.rounds)


def _rounds(
    built: Built, look: Lookout, keep: kept_models.Keep, state: ServerState
) -> Iterator[tuple[ServerState, Record]]:
    """State and record of one round after another.

    A round whose look is still under way comes when the next one is played.
    """
    sent = built.algorithm.bytes_per_round(state)
    rounds = range(int(state.round) + 1, built.config.rounds + 1)
    done = play(built.algorithm, state, rounds)
    waiting: list[Callable[[], tuple[ServerState, Record]]] = []
    for t, (after, info, seconds) in zip(rounds, done, strict=True):
        built.data.release()
        record = {
            "round": t,
            **numbers(info),
            "bytes_down": sent.down,
            "bytes_up": sent.up,
            # How long a round took tells how many examples its clients have.
            "seconds": seconds if built.privacy is None else None,
            "time": time.time() if built.privacy is None else None,
            **({"private": False} if _not_private(built) else {}),
            **small_params(after),
        }
        params = here(after.params)
        with span("looks"):
            looking = look(t, params)
        waiting.append(functools.partial(_finish_look, looking, keep, after, params, record))
        held_back = 1 if looking.under_way and t + 1 in rounds else 0
        while len(waiting) > held_back:
            yield waiting.pop(0)()


def _finish_look(
    looking: Looking, keep: kept_models.Keep, state: ServerState, params: Params, record: Record
) -> tuple[ServerState, Record]:
    """Waits for the look at a round's model, and adds what it says to the record."""
    with span("looks"):
        seen, asked = looking.wait()
        if seen is not None:
            keep(record["round"], params, seen)
    return state, {
        **record,
        **({} if seen is None else {"heldout": seen}),
        **({} if asked is None else as_record(asked)),
    }


def _compile_evaluations_ahead(built: Built, params: Params) -> Callable[[], None]:
    """Lets a thread compile evaluations beside the first round; gives what waits for it."""

    def compile() -> None:
        with contextlib.suppress(Exception), span("evaluation ahead"):  # said where it is needed
            compile_evaluations(built, params)

    if jax.process_count() > 1:
        return lambda: None
    thread = threading.Thread(target=compile, name="agnosticfl-evaluation")
    thread.start()
    return thread.join
