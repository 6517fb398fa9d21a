# SPDX-License-Identifier: Apache-2.0
"""Clients that train with PyTorch (extra `torch`): give a module and a loss for each example.

```python
create = lambda: torch.nn.Linear(2, 2)
loss = lambda module, e: F.cross_entropy(module(e["x"]), e["y"].long(), reduction="none")

app = client_app(folder, torch_client(create, loss))     # client_app.py
app = server_app(folder, torch_model(create, loss))      # server_app.py
```

The parameters have the names that the module gives them, so a module of another framework with the
same names and shapes can take part in the same federation.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from agnosticfl.channels.in_numpy import usable
from agnosticfl.core import tree
from agnosticfl.core.contribution import ClientSum
from agnosticfl.core.lazy_jax import Array, jax, jnp
from agnosticfl.core.metrics import Outputs
from agnosticfl.core.model import Examples, Model, Params, label, no_metrics, with_forward
from agnosticfl.core.random import example_order, random_bits
from agnosticfl.deploy.node.contribute import Call, Contribute
from agnosticfl.errors import check, choose, require
from agnosticfl.runs.config import Table

Module: TypeAlias = Any  # torch.nn.Module; this file can be read without PyTorch
Create: TypeAlias = Callable[[], Module]
# (module, name -> tensor [n, ...]) -> tensor [n]; the module is in training or evaluation mode.
Loss: TypeAlias = Callable[[Module, Mapping[str, Any]], Any]
Forward: TypeAlias = Loss  # the same, but what comes out is what the module says, [n, ...]
Optimizer: TypeAlias = Callable[[Iterable[Any]], Any]  # parameters -> torch.optim.Optimizer

LOSS_BATCH = 256  # examples whose losses are computed at a time


def torch_client(
    create: Create, per_example_loss: Loss, optimizer: Optimizer | None = None
) -> Contribute:
    """A client that answers with procedure CLIENT of Algorithm 1, in PyTorch.

    Args:
      create: builds the module; its parameters are w.
      per_example_loss: `(module, examples) -> [n]`.
      optimizer: makes one for the parameters; by default what the task's `client_optimizer` says,
        if that is SGD or Adam.
    """
    torch = require("torch", "torch_client", "torch")

    def contribute(call: Call) -> ClientSum:
        module = load(create(), call.params)
        p, config = call.data.num_domains, call.config
        domain, alpha = torch.tensor(call.data.domain).long(), torch.tensor(call.alpha)
        size = len(domain)
        examples = {name: torch.tensor(array) for name, array in call.data.examples.items()}

        def losses(rows: Any) -> Any:
            return per_example_loss(module, {name: x[rows] for name, x in examples.items()})

        count = torch.bincount(domain, minlength=p).float()  # N^k
        beta = alpha @ count  # β^k
        loss = torch.zeros(p)  # L^k, with dropout off
        module.eval()
        with torch.no_grad():
            for rows in torch.arange(size).split(LOSS_BATCH):
                loss.index_add_(0, domain[rows], losses(rows).float())
        module.train()
        torch.manual_seed(int(random_bits(call.seed, call.round, call.client)) % 2**63)
        steps = (optimizer or named_optimizer(config.client_optimizer))(module.parameters())
        number, length = np.array([call.client]), np.array([size])
        order = torch.tensor(example_order(call.seed, call.round, number, length, size)[0])
        batches = config.epochs * list(order.split(config.batch_size)) if size else []
        for rows in batches[: config.local_steps]:
            weight = alpha[domain[rows]]
            divisor = {
                "client": beta,
                "unbiased": beta * len(rows) / size,
                "batch": weight.sum(),
            }[config.normalisation]
            if not divisor > tree.SMALLEST:
                continue
            steps.zero_grad()
            (weight / divisor @ losses(rows)).backward()
            steps.step()
        sums: Any = [np.asarray(x.numpy()) for x in (beta, loss, count)]
        trained = named_arrays(module)
        delta = {n: np.asarray(sums[0] * (call.params[n] - w)) for n, w in trained.items()}
        return usable(ClientSum(delta, *sums, np.zeros((), np.float32)))  # type: ignore[arg-type]

    return contribute


def torch_model(
    create: Create,
    per_example_loss: Loss,
    seed: int = 0,
    *,
    forward: Forward | None = None,
    outputs: Outputs = "labels",
    wanted: Callable[[Examples], Array] = label,
    metrics: Sequence[str] = (),
) -> Model:
    """The same module as a model that the server can start from, and who evaluates it.

    Args:
      seed: of w_0.
      forward: `(module, examples) -> outputs`, what the module says, in evaluation mode.
      outputs: what forward gives: `"labels"`, logits [n, K]; `"values"`, numbers [n]; `"tokens"`,
        logits [n, T, K + 4].
      wanted: `examples -> array`, what the outputs are compared with; default the feature `y`.
      metrics: names of metrics, measured from what forward gives.
    """
    torch = require("torch", "torch_model", "torch")
    torch.manual_seed(seed)
    first = named_arrays(create())

    def init(key: Any) -> Params:
        del key  # w_0 is the module's own
        return {name: array.copy() for name, array in first.items()}

    def loss(params: Params, examples: Examples, key: Any) -> Any:
        check(key is None, "a PyTorch model is trained by its clients, not by this program")
        return _evaluated(create, per_example_loss)(params, examples)

    model = Model(init, loss, no_metrics, eager=True)
    said = forward and _evaluated(create, forward)
    return with_forward(model, said, outputs, wanted, metrics)


def _evaluated(create: Create, function: Forward) -> Callable[[Params, Examples], Any]:
    """`function` of a module in evaluation mode; within a program of JAX, as that can call it."""
    torch = require("torch", "torch_model", "torch")

    def call(params: Any, examples: Any) -> np.ndarray:
        module = load(create(), {name: np.asarray(array) for name, array in params.items()})
        tensors = {name: torch.tensor(np.asarray(array)) for name, array in examples.items()}
        with torch.no_grad():
            return function(module.eval(), tensors).float().numpy()

    def called(params: Params, examples: Examples) -> Any:
        if not _traced([*params.values(), *examples.values()]):
            return call(params, examples)
        # JAX must know the shape before: that of one example full of zeros, with as many rows.
        rows = len(next(iter(examples.values())))
        one = {name: np.zeros((1, *a.shape[1:]), a.dtype) for name, a in examples.items()}
        zeros = {name: np.zeros(a.shape, a.dtype) for name, a in params.items()}
        result = jax.ShapeDtypeStruct((rows, *call(zeros, one).shape[1:]), jnp.float32)
        return jax.pure_callback(call, result, params, dict(examples))

    return called


def _traced(arrays: Iterable[Any]) -> bool:
    """Whether JAX is just finding out what a program does."""
    if "jax" not in sys.modules:
        return False
    from jax.core import Tracer

    return any(isinstance(array, Tracer) for array in arrays)


def named_arrays(module: Module) -> dict[str, np.ndarray]:
    """A module's parameters by name, copied."""
    return {name: p.detach().numpy().copy() for name, p in module.named_parameters()}


def load(module: Module, params: Mapping[str, np.ndarray]) -> Module:
    """`module` with these parameters."""
    torch = require("torch", "torch_client", "torch")
    own = dict(module.named_parameters())
    shapes = {name: tuple(p.shape) for name, p in own.items()}
    check(not list(module.buffers()), "the module has buffers; only parameters are federated")
    sent = {name: array.shape for name, array in params.items()}
    check(shapes == sent, f"the module's parameters are {shapes}, but the server's are {sent}")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(torch.tensor(params[name]))
    return module


def named_optimizer(table: Table) -> Optimizer:
    """The optimizer of a task, with Optax's names, if PyTorch has the same one."""
    torch = require("torch", "torch_client", "torch")
    name, options = table["name"], {k: v for k, v in table.items() if k != "name"}
    names = {"learning_rate": "lr", "momentum": "momentum", "nesterov": "nesterov", "eps": "eps"}
    choose(name, ("sgd", "adam"), "client optimizer for PyTorch")
    for option in options:
        choose(option, names, f"option of the client optimizer {name!r} for PyTorch")
    renamed = {names[option]: value for option, value in options.items()}
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name]
    return lambda parameters: make(parameters, **renamed)
