# SPDX-License-Identifier: Apache-2.0
"""Whether a seed gives the same bits again: two runs, and one that was killed and goes on.

    python benchmarks/same_bits.py [MODEL…] [--rounds 60] [--precision tf32] [--json OUT]

Each built-in model trains on synthetic examples, in processes of their own that share one memory of
compiled programs: twice from start to end, and once killed (`kill -9`) after a third of its rounds,
with a checkpoint on the disc, and resumed. All that they wrote is compared bit by bit: every record
but for its times, the last model, what it said of the test examples. Status 1 if anything differs.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agnosticfl.core.federated import Splits, from_arrays

CLIENTS, EXAMPLES, FEATURES, CLASSES, WORDS, LENGTH = 60, 20, 16, 10, 2000, 20
LANES = 5  # given, so that no time goes into finding how many are fastest
TIMES = ("seconds", "time")
PATIENCE = 60.0  # seconds until a checkpoint is there

# Model -> the kind of its examples, its options, its rate.
MODELS: dict[str, tuple[str, dict[str, Any], float]] = {
    "point": ("one number", {}, 0.05),
    "logistic": ("points", {"features": FEATURES, "classes": CLASSES}, 0.1),
    "mlp": ("points", {"features": FEATURES, "classes": CLASSES, "hidden": [256, 256]}, 0.1),
    "linear": ("values", {"features": FEATURES}, 0.01),
    "cnn": ("images", {"classes": CLASSES}, 0.03),
    "lstm": ("sentences", {"words": WORDS, "embedding": 64, "hidden": 650}, 0.3),
    "cifg": ("sentences", {"words": WORDS, "embedding": 64, "hidden": 256}, 0.3),
    "hazard": ("survival", {"features": FEATURES, "edges": [0.5, 1.0, 2.0]}, 0.1),
    "cox": ("risk sets", {"features": FEATURES}, 0.1),
}


def main() -> None:
    options = _options()
    if options.inner:
        inner(options)
        return
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models or MODELS:
            for precision in options.precision:
                found.append(compared(Path(folder), model, precision, options.rounds))
                print(json.dumps(found[-1]), flush=True)  # noqa: T201
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(one["differs"] for one in found))


def compared(folder: Path, model: str, precision: str, rounds: int) -> dict[str, Any]:
    """What the second run, and the one that was killed, have other than the first."""

    def played(name: str, *more: str, status: int = 0) -> Path:
        out = folder / f"{model}-{precision}-{name}"
        words = [sys.executable, str(Path(__file__).resolve()), model, "--inner", str(out)]
        words += ["--rounds", str(rounds), "--precision", precision, *more]
        place = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        own = {"AGNOSTICFL_CACHE": str(folder / "cache"), "PYTHONPATH": place}
        done = subprocess.run(words, env=os.environ | own, check=False)
        if done.returncode != status:
            sys.exit(f"{name} run of {model} ended with status {done.returncode}, not {status}")
        return out

    first, second = played("first"), played("second")
    killed = played("killed", "--kill-at", str(max(rounds // 3, 1)), status=-signal.SIGKILL)
    played("killed", "--resume")
    others = {"second": second, "killed and resumed": killed}
    return {
        "model": model,
        "precision": precision,
        "rounds": rounds,
        "device": json.loads((first / "summary.json").read_text())["environment"]["device"],
        "engine": json.loads((first / "engine.json").read_text()),
        "differs": {name: why for name, out in others.items() if (why := difference(first, out))},
    }


def difference(one: Path, other: Path) -> str | None:
    """The first thing that two run folders do not have in common; None if they are the same."""
    for mine, yours in zip(records(one), records(other), strict=True):
        for key, value in mine.items():
            if yours.get(key) != value:
                return f"round {mine['round']}: {key} is {value} and {yours.get(key)}"
    for name in ("models/last.safetensors", "predictions/test-last.npz"):
        if digest(one / name) != digest(other / name):
            return f"{name} differs"
    return None


def records(folder: Path) -> list[dict[str, Any]]:
    """All that a run wrote down, except how long it took."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- one run --------------------------------------------------------------------------------------


def inner(options: argparse.Namespace) -> None:
    """Plays a run, with the memory of the command-line program; or a part of it, then is killed."""
    from agnosticfl.engines.helpers.tuning import stopwatch
    from agnosticfl.runs.cache import cache_folder, remember_compilations
    from agnosticfl.runs.resolve import resolve
    from agnosticfl.runs.run import run

    (model,), (precision,), out = options.models, options.precision, Path(options.inner)
    cache = cache_folder()
    assert cache is not None
    remember_compilations(cache)

    def on_round(record: Any) -> None:
        if record["round"] == options.kill_at:
            kill_when_saved(out / "checkpoints")

    config = resolve(task(model, options.rounds, precision), "afa")
    run(
        config, out, resume=options.resume, on_round=on_round, tuner=stopwatch(cache / "lanes.json")
    )


def kill_when_saved(checkpoints: Path) -> None:
    """As `kill -9` of this process, once there is something to go on from."""
    end = time.monotonic() + PATIENCE
    while not list(checkpoints.glob("[0-9]" * 8)) and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


def task(model: str, rounds: int, precision: str) -> dict[str, Any]:
    kind, options, rate = MODELS[model]
    return {
        "task": f"same-bits-{model}",
        "rounds": rounds,
        "clients_per_round": 10,
        "batch_size": 8,
        "lanes": LANES,
        "checkpoint_every": max(rounds // 6, 1),
        "evaluation_every": max(rounds // 4, 1),
        "precision": precision,
        "data": {"name": "same_bits:synthetic", "kind": kind},
        "model": {"name": model, **options},
        "client_optimizer": {"name": "sgd", "learning_rate": rate},
        "server_optimizer": {"name": "adam", "learning_rate": 0.01},
        "weight_rule": {"name": "exponentiated_gradient", "learning_rate": 0.05},
    }


def synthetic(kind: str) -> Splits:
    """Random examples of clients of unequal sizes, three domains in turn; the same every time."""
    return Splits(*(_split(np.random.default_rng([20, n]), kind) for n in range(3)))


def _split(rng: np.random.Generator, kind: str) -> Any:
    sizes = rng.integers(1, 2 * EXAMPLES, CLIENTS)
    owner, n = np.repeat(np.arange(CLIENTS), sizes), int(sizes.sum())
    return from_arrays(_features(rng, kind, n), owner, owner % 3)


def _features(rng: np.random.Generator, kind: str, n: int) -> dict[str, np.ndarray]:
    x = rng.standard_normal((n, FEATURES)).astype(np.float32)
    if kind == "one number":
        return {"x": x[:, 0]}
    if kind == "points":
        return {"x": x, "y": rng.integers(CLASSES, size=n, dtype=np.int32)}
    if kind == "values":
        return {"x": x, "y": x.sum(axis=1)}
    if kind == "images":
        images = rng.uniform(size=(n, 28, 28)).astype(np.float32)
        return {"x": images, "y": rng.integers(CLASSES, size=n, dtype=np.int32)}
    if kind == "sentences":
        return {"tokens": rng.integers(3, WORDS + 3, (n, LENGTH + 1)).astype(np.int16)}
    until = np.stack([rng.exponential(size=n), rng.integers(2, size=n)], axis=1)
    survival = {"x": x, "y": until.astype(np.float32)}
    if kind == "survival":
        return survival
    others = rng.standard_normal((n, 5, FEATURES)).astype(np.float32)
    return {**survival, "at_risk": others, "at_risk_count": np.full(n, 5, np.int32)}


def _options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--precision", nargs="+", default=["float32"])
    parser.add_argument("--json")
    parser.add_argument("--inner", help=argparse.SUPPRESS)
    parser.add_argument("--kill-at", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    for model in options.models:
        if model not in MODELS:
            parser.error(f"unknown model {model!r} (allowed: {', '.join(MODELS)})")
    return options


if __name__ == "__main__":
    main()
