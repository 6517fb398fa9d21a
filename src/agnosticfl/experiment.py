# SPDX-License-Identifier: Apache-2.0
"""A run: task + algorithm + seed -> a run folder that survives a crash.

config.json    the resolved configuration      metrics.jsonl  a line a round
engine.json    what the engine chose           tensorboard/   the same, as events
checkpoints/   the server state                summary.json   what came out; there only when the
                                                              run is complete
privacy.json   what a differentially private run has spent, charged ahead of the rounds
"""

import contextlib
import dataclasses
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np

from agnosticfl import __version__, checkpoint, ledger, privacy, processes, tree
from agnosticfl.build import Parts, build
from agnosticfl.config import Config, first_difference
from agnosticfl.data import FederatedData, domain_counts
from agnosticfl.engine.shards import here
from agnosticfl.engine.tuning import Tuner
from agnosticfl.errors import BadInput, check
from agnosticfl.evaluate import Evaluation, evaluator, full_evaluator, some_clients, worst_domain
from agnosticfl.files import read_json, write_json
from agnosticfl.model import Params
from agnosticfl.rounds import Algorithm, RoundInfo
from agnosticfl.server import ServerState
from agnosticfl.trackers import tracker
from agnosticfl.tracking import Record, Tracker, read_records, scalars

Lookout: TypeAlias = Callable[[int, Params], Record]  # (t, w_t) -> what to add to the record

SMALL = 16  # a model of at most so many numbers is written down whole, every round


class Stopped(Exception):
    """The run was asked to stop; its state is in a checkpoint."""


def run(
    config: Config,
    out: Path,
    *,
    make_parts: Callable[[Config, int | None, Tuner | None], Parts] = build,
    resume: bool = False,
    track: Sequence[str] = (),
    on_round: Callable[[Record], Any] = lambda _: None,
    say: Callable[[str], Any] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
    tuner: Tuner | None = None,
) -> dict[str, Any]:
    """Runs `config` in the folder `out` and returns its summary.

    Args:
      make_parts: builds what `config` is about.
      resume: go on from the newest checkpoint in `out`, if there is one. The result has the same
        bits as a run that was never interrupted.
      track: names of `trackers` to which the numbers go too.
      on_round: gets the record of each round (and, on a resume, nothing of earlier rounds).
      say: gets messages for the user.
      should_stop: asked after each round; if true, the state is saved and `Stopped` raised.
      tuner: finds the number of lanes where the configuration does not say; a rule if None.

    Of several processes (see `processes`) all call it with the same configuration, and the first
    one alone uses the folder.
    """
    starts = [tracker(name) for name in track]
    first = processes.is_first()
    found = processes.from_first(lambda: _found_before(out) if resume else {})
    parts = make_parts(config, found.get("lanes"), tuner)
    look = _lookout(config, parts)
    state = parts.algorithm.init()
    complete = processes.from_first(lambda: _open_folder(config, parts, out, resume))
    devices = parts.algorithm.settings.get("devices")
    if found and found.get("devices") != devices:
        say(f"this run had {found.get('devices')} devices and now has {devices}: rounding differs")
    if complete:
        say(f"{out} is complete already")
        return processes.from_first(lambda: read_json(out / "summary.json"))
    if resume:
        if first:
            state = checkpoint.restore(out / "checkpoints", state, say) or state
        state = processes.arrays_from_first(state)
    charge = _charging(config, parts, out, state)
    domains = parts.data.train.domains
    with contextlib.ExitStack() as stack:
        sinks = [stack.enter_context(start(config, out, say)) for start in starts if first]
        book = Tracker(out, domains, int(state.round), sinks) if first else None
        stack.callback(lambda: book and book.close())
        charge(_next_checkpoint(config, int(state.round)))
        try:
            with processes.noticing_losses():
                for latest, record in _rounds(config, parts, look, state):
                    state = latest
                    if book:
                        book.write(record)
                    on_round(record)
                    done = record["round"] == config.rounds
                    stop = processes.any_of_them(should_stop())
                    if book and (done or stop or record["round"] % config.checkpoint_every == 0):
                        _save(out, book, state)
                        t = record["round"]
                        charge(t if stop else _next_checkpoint(config, t))
                    if stop and not done:
                        raise Stopped(f"stopped after round {record['round']} of {config.rounds}")
        except processes.Lost as lost:
            if book:
                _save(out, book, state)
            again = "start all processes again with --resume to go on"
            raise processes.Lost(f"{lost} after round {int(state.round)}; {again}") from lost
        summary = processes.from_first(lambda: _summary(config, parts, state, read_records(out)))
        if parts.privacy is not None:
            summary["privacy"] = privacy.statement(parts.privacy, state, config.rounds)
        for sink in sinks:
            sink(config.rounds, scalars({"test": summary["test"]}, domains))
    if first:
        write_json(out / "summary.json", summary)
    return summary


def _save(out: Path, book: Tracker, state: ServerState) -> None:
    book.flush()
    checkpoint.save(out / "checkpoints", state)


def _found_before(out: Path) -> dict[str, Any]:
    """What the engine of an interrupted run had chosen: going on takes the same, for its bits."""
    return read_json(out / "engine.json") if (out / "engine.json").exists() else {}


def _open_folder(config: Config, parts: Parts, out: Path, resume: bool) -> bool:
    """Makes the folder, or makes sure that what is in it belongs to this configuration.

    Returns whether the run in it is complete.
    """
    new = dataclasses.asdict(config)
    if (out / "config.json").exists():
        check(resume, f"{out} holds a run already; go on with --resume or choose another --out")
        difference = first_difference(read_json(out / "config.json"), new)
        check(difference is None, f"{out} holds a run of another configuration: {difference}")
        return (out / "summary.json").exists()
    # A crash before the configuration was there leaves no more than these.
    free = not out.exists() or (out.is_dir() and all(_leftover(path) for path in out.iterdir()))
    check(free, f"{out} exists and holds no run; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "engine.json", dict(parts.algorithm.settings))
    write_json(out / "config.json", new)
    return False


def _leftover(path: Path) -> bool:
    return path.suffix == ".tmp" or path.name == "engine.json"


def _charging(config: Config, parts: Parts, out: Path, state: ServerState) -> Callable[[int], None]:
    """Writes down what a private run has spent; refuses one that would go past its budget.

    Rounds are charged before they run, so that a crash leaves no statement that is too small. Those
    that a resume repeats have the same noise, and cost nothing more.
    """
    if parts.privacy is None:
        return lambda _: None
    private = parts.privacy
    privacy.check_state(private, state, config.rounds)

    def charge(rounds: int) -> None:
        if processes.is_first():
            write_json(out / "privacy.json", privacy.statement(private, state, rounds))

    return charge


def _next_checkpoint(config: Config, t: int) -> int:
    return min(t + config.checkpoint_every - t % config.checkpoint_every, config.rounds)


def _rounds(
    config: Config, parts: Parts, look: Lookout, state: ServerState
) -> Iterator[tuple[ServerState, Record]]:
    cost = parts.algorithm.bytes_per_client(state)
    report = ledger.bytes_per_report(state)
    clients, reporting = parts.algorithm.clients_per_round, parts.algorithm.reporting_clients
    rounds = range(int(state.round) + 1, config.rounds + 1)
    done = played(parts.algorithm, state, rounds)
    for t, (after, info, seconds) in zip(rounds, done, strict=True):
        parts.data.release()
        yield (
            after,
            {
                "round": t,
                **_numbers(info),
                "bytes_down": clients * cost.down + reporting * report.down,
                "bytes_up": clients * cost.up + reporting * report.up,
                "seconds": seconds,
                "time": time.time(),
                **_small_params(after),
                **look(t, here(after.params)),
            },
        )


def _lookout(config: Config, parts: Parts) -> Lookout:
    """What held-out clients say of the model every few rounds."""
    every, heldout = config.evaluation_every, parts.data.heldout
    if every == 0:
        return lambda _t, _params: {}
    if heldout is None:
        raise BadInput(f"evaluation_every is {every}, but the data has no split 'heldout'")
    if not processes.is_first():
        return lambda _t, _params: {}
    clients = some_clients(heldout, config.evaluation_clients, config.seed)
    measure = evaluator(parts.model, heldout, config.evaluation_batch_size, clients)
    return lambda t, params: {"heldout": measure(params)} if t % every == 0 else {}


def played(
    algorithm: Algorithm, state: ServerState, rounds: range
) -> Iterator[tuple[ServerState, RoundInfo, float]]:
    """State, info and seconds of one round after another."""
    if algorithm.block is None:
        return _one_by_one(algorithm, state, rounds, ahead=jax.default_backend() != "cpu")
    return _in_blocks(algorithm.block, state, rounds)


def _one_by_one(
    algorithm: Algorithm, state: ServerState, rounds: range, ahead: bool
) -> Iterator[tuple[ServerState, RoundInfo, float]]:
    """With `ahead`, a round is under way while the one before it is written down.

    An accelerator then never waits for the host. A CPU would only keep a person waiting who asks
    the run to stop.
    """
    under_way, finished = None, time.perf_counter()
    for t in rounds:
        started = finished if ahead else time.perf_counter()
        state, info = under_way or algorithm.round(state, algorithm.cohort(t))
        if ahead and t + 1 in rounds:
            under_way = algorithm.round(state, algorithm.cohort(t + 1))
        info = jax.device_get(info)
        finished = time.perf_counter()
        yield state, info, finished - started


def _in_blocks(
    block: Callable[[ServerState], tuple[ServerState, RoundInfo]], state: ServerState, rounds: range
) -> Iterator[tuple[ServerState, RoundInfo, float]]:
    """A block holds the state after each of its rounds, so a run can stop or save at any of them.

    What the last one does beyond the last round is dropped.
    """
    while int(state.round) + 1 in rounds:
        started = time.perf_counter()
        states, infos = jax.device_get(block(state))
        seconds = (time.perf_counter() - started) / len(states.round)
        for i in range(len(states.round)):
            state = jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), states)
            if int(state.round) in rounds:
                yield state, tree.row(infos, i), seconds


def _numbers(info: RoundInfo) -> Record:
    heldout: Record = {}
    if info.heldout_loss is not None:
        heldout["heldout_loss"] = _known(info.heldout_loss, info.heldout_count)
    return {
        "domain_weights": info.domain_weights.tolist(),
        "alpha": info.alpha.tolist(),
        "loss": _known(info.mean_domain_loss, info.domain_count),
        "count": info.domain_count.tolist(),
        "beta": float(info.beta),
        "update_norm": float(info.update_norm),
        "left_out": int(info.left_out),
        "step_taken": bool(info.step_taken),
        **heldout,
        **{name: float(value) for name, value in info.channel.items()},
    }


def _known(mean: Any, count: Any) -> list[float | None]:
    """The mean of each domain, None where it was absent."""
    return [x if n > 0 else None for x, n in zip(mean.tolist(), count.tolist(), strict=True)]


def _small_params(state: ServerState) -> Record:
    if tree.size(state.params) > SMALL:
        return {}
    return {"params": [float(v) for leaf in jax.tree.leaves(state.params) for v in np.ravel(leaf)]}


def _summary(
    config: Config, parts: Parts, state: ServerState, records: list[dict[str, Any]]
) -> dict[str, Any]:
    results = _final_results(config, parts, here(state.params))
    domains = {split: result.domains for split, result in results.items()}
    worst = worst_domain(domains["test"], config.metric)
    last = records[-1]
    return {
        "task": config.task,
        "algorithm": config.algorithm,
        "target": config.target,
        "seed": config.seed,
        "rounds": config.rounds,
        "domains": list(parts.data.train.domains),
        "domain_weights": last["domain_weights"],
        **domains,
        "overall": {split: result.overall for split, result in results.items()},
        **_client_spread(results),
        "examples": {
            split: dict(zip(data.domains, domain_counts(data).tolist(), strict=True))
            for split, data in _splits(parts).items()
        },
        "worst_domain": worst.domain,
        "gap": worst.gap,
        "clients_left_out": sum(r["left_out"] for r in records),
        "clients_clipped": sum(r.get("clients_clipped", 0) for r in records),
        "seconds_per_round": statistics.median(r["seconds"] for r in records),
        "bytes": {
            "down_per_round": last["bytes_down"],
            "up_per_round": last["bytes_up"],
            "paper_per_round": _paper_bytes(config, parts, state),
        },
        "num_params": tree.size(state.params),
        **_small_params(state),
        "environment": _environment(),
    }


def _splits(parts: Parts) -> dict[str, FederatedData]:
    splits = {"train": parts.data.train, "heldout": parts.data.heldout, "test": parts.data.test}
    return {name: data for name, data in splits.items() if data is not None}


def _final_results(config: Config, parts: Parts, params: Params) -> dict[str, Evaluation]:
    """What the model is worth on all the clients that it was not trained on."""
    return {
        split: full_evaluator(
            parts.model, data, config.evaluation_batch_size, spread=config.client_spread
        )(params)
        for split, data in _splits(parts).items()
        if split != "train"
    }


def _client_spread(results: dict[str, Evaluation]) -> dict[str, Any]:
    """Split -> metric -> how it differs between clients, if that was asked for."""
    spreads = {
        split: {metric: spread._asdict() for metric, spread in result.clients.items()}
        for split, result in results.items()
        if result.clients is not None
    }
    return {"clients": spreads} if spreads else {}


def _paper_bytes(config: Config, parts: Parts, state: ServerState) -> int | None:
    """By the paper's formula, which is for FedAvg and AFA."""
    agnostic = {"fedavg": False, "fedavg-target": False, "afa": True}.get(config.algorithm)
    if agnostic is None:
        return None
    return ledger.paper_bytes(state, parts.algorithm.clients_per_round, agnostic)


def _environment() -> dict[str, Any]:
    device = jax.devices()[0]
    return {
        "agnosticfl": __version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "device": f"{jax.device_count()} × {device.device_kind}",
        "processes": jax.process_count(),
    }
