# SPDX-License-Identifier: Apache-2.0
"""The kernels of a round on an NVIDIA card, from the compiler alone: no card is needed.

    python benchmarks/kernels.py benchmarks/workloads.py --task emnist stackoverflow
        [--precision bf16 tf32] [--lanes 5] [--most 10] [--hlo FOLDER]

Needs `pip install "jax[cuda13]"`: XLA compiles for the card that CARD describes. For each loop of
the program it lists the kernels with the bytes they move, and what they would take at least: by the
memory, by the arithmetic, or by the start of a kernel. These are estimates: kernels are not timed
when the compiler chooses them, and a real round is longer (docs/performance.md says how much).
"""

import argparse
import math
import os
import re
import statistics
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
# There is no card on which kernels could be timed.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_autotune_level=0"

import jax
import jax.numpy as jnp
import numpy as np
import rounds
from jax.experimental import topologies
from jax.sharding import (
    AbstractDevice,
    AbstractMesh,
    Mesh,
    NamedSharding,
    PartitionSpec,
    use_abstract_mesh,
)

from agnosticfl.core import compiling
from agnosticfl.core.contribution import Broadcast
from agnosticfl.core.precision import PRECISIONS, in_precision
from agnosticfl.engines import lanes
from agnosticfl.engines.helpers.losses import num_loss_batches

CARD = """
gpu_device_info {
  threads_per_block_limit: 1024  threads_per_warp: 32
  shared_memory_per_block: 49152  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448  threads_per_core_limit: 2048
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000  l2_cache_size: 62914560  device_memory_size: 150000000000
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  cuda_compute_capability { major: 9 }
  driver_version: "13.0.0"  runtime_version: "13.0.0"  compile_time_toolkit_version: "13.0.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 13 }
device_description_str: "NVIDIA H200"
"""
BYTES_PER_S = 4.3e12  # what its memory really gives
FLOPS_PER_S = {"float32": 45e12, "tf32": 250e12, "bf16": 500e12}  # of batched products, about
KERNEL_S = 2e-6  # a short kernel in a loop that the card runs by itself
ROUNDS = 8  # whose steps are counted

WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s64": 8, "u64": 8, "f64": 8}
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional"}
SLICES = {"dynamic-slice", "gather", "slice"}
UPDATES = {"dynamic-update-slice", "scatter"}
LINE = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*)$")
SHAPE = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")


class Instruction(NamedTuple):
    """A line of a program."""

    name: str
    shape: str
    kind: str
    inside: str  # its operands
    rest: str  # what follows them: the computations it calls, dimensions


class Kernel(NamedTuple):
    """What a loop starts once per turn."""

    name: str
    source: str  # where in the Python program it comes from
    moved: float  # bytes
    flops: float


Program = dict[str, list[Instruction]]  # by computation


def main() -> None:
    options = _options()
    workloads = rounds.load(options.workloads)
    # What looks for the kind of device, while programs are traced, shall find a card.
    jax.default_backend = lambda: "gpu"
    compiling.on_nvidia = compiling.on_hopper = lambda: True
    for task in options.task:
        for precision in options.precision:
            work, width, cohorts = engine_of(
                workloads.make(task, options.seed), options.lanes, precision
            )
            text = compiled_for_card(work, width.narrow, cohorts[0], precision)
            title = f"{task}, {width.lanes} lanes, {precision}"
            if options.hlo:
                Path(options.hlo).mkdir(parents=True, exist_ok=True)
                Path(options.hlo, f"{title}.txt").write_text(text, encoding="utf-8")
            steps = statistics.mean(int(c.layout.steps) for c in cohorts)
            batches = statistics.mean(int(num_loss_batches(c.cohort)) for c in cohorts)
            print(  # noqa: T201
                f"\n{title}: per round {steps:.1f} steps, {batches:.1f} batches of the loss pass"
            )
            show(loops(parsed(text)), precision, options.most)


def engine_of(workload: Any, number: int | None, precision: str) -> tuple[Any, Any, list[Any]]:
    """A client's work, how many lanes there are, and the cohorts of the first rounds."""
    found: list[Any] = []

    def build(work: Any, data: Any, sampler: Any, seed: int) -> Any:
        made = lanes.lanes_engine(work, data, sampler, seed, lanes=number)
        found.extend((work, made))
        return made

    with patch.object(rounds.ENGINES, "get", return_value=build):
        rounds.make_algorithm(workload, rounds.MODELS[workload.name](), "lanes", precision)
    work, made = found
    width = lanes.Width(made.choices["lanes"], made.choices["narrow"])
    return work, width, [made.cohort(t) for t in range(1, ROUNDS + 1)]


def compiled_for_card(work: Any, narrow: int, cohort: Any, precision: str) -> str:
    """The program of both passes over a cohort, as the compiler leaves it."""
    card = topologies.get_topology_desc(platform="cuda", target_config=CARD, topology="1x1x1")
    on_card = NamedSharding(Mesh(np.array(card.devices), ("card",)), PartitionSpec())
    params = jax.eval_shape(work.model.init, jax.random.key(0))
    alpha = jnp.ones(work.num_domains)
    shapes = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=on_card),
        (Broadcast(params, alpha, work.channel.init()), cohort),
    )
    program = jax.jit(in_precision(lanes.sum_over(work, narrow), precision))
    # Pallas asks elsewhere than the compiler which card it is.
    kind = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=kind)):
        return program.lower(*shapes).compile().as_text() or ""


def parsed(text: str) -> Program:
    """The computations of a program in the compiler's text."""
    program: Program = {}
    current: list[Instruction] = []
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            name = line.removeprefix("ENTRY ").split(" ")[0].lstrip("%")
            current = program.setdefault(name, [])
        elif found := LINE.match(line):
            name, shape, kind, rest = found.groups()
            inside, _, after = rest.partition(")")
            current.append(Instruction(name, shape, kind, inside, after))
    return program


def loops(program: Program) -> dict[str, list[Kernel]]:
    """The kernels of each loop and of each branch, but not those of others inside it."""
    found: dict[str, list[Kernel]] = {}
    for computation in program.values():
        for each in computation:
            branches = re.search(r"branch_computations=\{([^}]*)\}", each.rest)
            listed = re.findall(r"%([\w.-]+)", branches.group(1)) if branches else []
            roles = [called(each, f"{role}_computation") for role in ("true", "false")]
            for name in [called(each, "body"), *listed, *roles]:
                if name and each.kind in {"while", "conditional"}:
                    own = program[name]
                    shapes = {i.name: i.shape for i in own}
                    each_of = [kernel(i, shapes, program.get(called(i, "calls"), [])) for i in own]
                    title = f"{each.kind} {source(each)} ({name})"
                    found[title] = [k for k in each_of if k is not None]
    return found


def kernel(each: Instruction, shapes: dict[str, str], inner: list[Instruction]) -> Kernel | None:
    """What an instruction moves and computes; None if it is no kernel."""
    if each.kind in FREE:
        return None
    operands = names(each)
    if not inner:
        sliced = each.kind in SLICES
        read = 0 if sliced else sum(size(shapes.get(name, "")) for name in operands)
        products = [(each, shapes)]
        return Kernel(each.name, source(each), read + size(each.shape), _flops(products))
    own = {i.name: i.shape for i in inner}
    parameters = {int(i.inside): i.name for i in inner if i.kind == "parameter"}
    read = sum(bytes_read(parameters[n], own, inner) for n in range(len(operands)))
    written = size(each.shape)
    for i in inner:
        if i.kind in UPDATES:  # in place: the update alone is written
            written -= size(i.shape) - size(own[update(i)])
    return Kernel(each.name, source(each), read + written, _flops([(i, own) for i in inner]))


def bytes_read(name: str, shapes: dict[str, str], inner: list[Instruction]) -> float:
    """What a kernel reads of an array: all of it, or the slices that are taken of it."""
    whole = size(shapes[name])
    read = 0.0
    for user in inner:
        operands = names(user)
        if name not in operands:
            continue
        if user.kind in SLICES and operands[0] == name:
            read += size(user.shape)
        elif user.kind in UPDATES and operands[0] == name:
            continue
        elif math.prod(extents(user.shape)) == math.prod(extents(shapes[name])):
            # Number by number: as much as is taken of the result.
            share = bytes_read(user.name, shapes, inner) / max(size(user.shape), 1)
            read += whole * (share or 1)  # nobody takes of what the kernel gives back
        else:
            return whole
    return min(read, whole)


def update(each: Instruction) -> str:
    """What is written into a larger array."""
    return names(each)[1 if each.kind == "dynamic-update-slice" else 2]


def _flops(products: list[tuple[Instruction, dict[str, str]]]) -> float:
    total = 0.0
    for each, shapes in products:
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]+)\}", each.rest)
        if each.kind == "dot" and contracted:
            left = extents(shapes[names(each)[0]])
            length = math.prod(left[int(d)] for d in contracted.group(1).split(","))
            total += 2 * length * math.prod(extents(each.shape))
        elif each.kind == "custom-call" and "gemm" in each.rest:
            left = extents(shapes[names(each)[0]])
            dims = re.search(r'"lhs_contracting_dimensions":\["(\d+)"', each.rest)
            length = left[int(dims.group(1))] if dims else left[-1]
            total += 2 * length * math.prod(extents(each.shape))
    return total


def names(each: Instruction) -> list[str]:
    return re.findall(r"%([\w.-]+)", each.inside)


def called(each: Instruction, role: str) -> str:
    found = re.search(rf"\b{role}=%?([\w.-]+)", each.rest)
    return found.group(1) if found else ""


def source(each: Instruction) -> str:
    found = re.search(r'op_name="([^"]*)"', each.rest)
    return found.group(1).split("/", 1)[-1] if found else ""


def extents(shape: str) -> list[int]:
    """The lengths of the first array of a shape."""
    found = SHAPE.search(shape)
    return [int(n) for n in found.group(2).split(",") if n] if found else []


def size(shape: str) -> float:
    """Bytes of an array, or of all arrays of a tuple."""
    return sum(
        WIDTHS.get(kind, 4) * math.prod(int(n) for n in lengths.split(",") if n)
        for kind, lengths in SHAPE.findall(shape)
    )


def seconds(each: Kernel, precision: str) -> float:
    """What a kernel takes at least."""
    return max(KERNEL_S, each.moved / BYTES_PER_S, each.flops / FLOPS_PER_S[precision])


def show(found: dict[str, list[Kernel]], precision: str, most: int) -> None:
    """A table for each loop and branch, the longest first."""
    totals = {name: sum(seconds(k, precision) for k in own) for name, own in found.items()}
    for name in sorted(totals, key=lambda name: -totals[name]):
        own = sorted(found[name], key=lambda k: -seconds(k, precision))
        if totals[name] < 20e-6:
            continue
        moved = sum(k.moved for k in own)
        print(  # noqa: T201
            f"{name[-100:]}: {len(own)} kernels, {moved / 1e6:.0f} MB, "
            f"{sum(k.flops for k in own) / 1e9:.1f} GFLOP, {1e6 * totals[name]:.0f} µs per turn"
        )
        for k in own[:most]:
            print(  # noqa: T201
                f"  {1e6 * seconds(k, precision):6.1f} µs {k.moved / 1e6:7.1f} MB "
                f"{k.flops / 1e9:6.2f} GFLOP  {k.name[:44]:44} {k.source[-70:]}"
            )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workloads", help="a file with make(task, seed)")
    parser.add_argument("--task", nargs="+", default=["emnist"], choices=list(rounds.MODELS))
    parser.add_argument("--lanes", type=int, help="of the device; as a run has them if not given")
    parser.add_argument("--precision", nargs="+", default=["bf16"], choices=list(PRECISIONS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=10, help="kernels listed of a loop")
    parser.add_argument("--hlo", help="folder for the compiler's text")
    return parser.parse_args()


if __name__ == "__main__":
    main()
