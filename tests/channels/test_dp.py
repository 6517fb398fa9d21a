# SPDX-License-Identifier: Apache-2.0
"""Differential privacy: what is clipped, noised, counted and refused."""

import functools
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from agnosticfl import agnostic_fedavg, fedavg
from agnosticfl.channels.dp import NOT_PRIVATE, Privacy, RunFacts, differential_privacy
from agnosticfl.channels.dp.clipping import (
    FIXED_SHARES,
    MARGIN,
    SHARES,
    ClipBounds,
    Follow,
    Segments,
    estimate,
    private,
    unit_vector,
)
from agnosticfl.channels.dp.noise import (
    Scale,
    independent,
    released,
    scale_for,
    to_whole_numbers,
    units_for,
)
from agnosticfl.core import tree
from agnosticfl.core.channel import message_shapes
from agnosticfl.core.contribution import ClientSum, contribution_shapes
from agnosticfl.core.state import Window
from agnosticfl.engines import padded_engine
from agnosticfl.errors import BadInput
from agnosticfl.privacy import accounting
from agnosticfl.privacy.accounting import Budget, Charge, known_cohorts, off_lattice
from agnosticfl.privacy.entropy import Secrets, secret_of_a_test
from agnosticfl.privacy.noise_source import noise_source
from agnosticfl.report import write_report
from agnosticfl.runs.build import build, build_channel
from agnosticfl.runs.config import from_table
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve, title
from agnosticfl.runs.run import Stopped, run
from tests.helpers.problems import federated, linear, random_federated

dp_accounting = pytest.importorskip("dp_accounting")

BOUNDS = ClipBounds(*map(jnp.float32, (20.0, 30.0, 10.0)))  # ‖n Δ‖, ‖L‖, n
ROOTS = Segments(*(math.sqrt(share) for share in SHARES))
FINE = Scale(2**20, 1, 1)
KEY = jax.random.key(0)


def nothing(total: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """A sum that gets no noise."""
    del sigma
    return np.asarray(total, np.float32)


def noise_of_a_test(shares: int = 1) -> Any:
    return independent(noise_source(Secrets(secret_of_a_test(0))), shares)


def contribution(
    update: list[float], beta: float, loss: list[float], count: list[float]
) -> ClientSum:
    arrays = (jnp.array(update), jnp.float32(beta), jnp.array(loss), jnp.array(count))
    return ClientSum({"w": arrays[0]}, *arrays[1:], jnp.zeros(()))


# The vector.


def test_shares_are_of_a_vector_of_norm_one():
    for shares in (SHARES, FIXED_SHARES):
        assert sum(shares) == pytest.approx(1)


NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)


@given(
    update=st.lists(NUMBERS, min_size=3, max_size=3),
    beta=st.floats(0, 2.0**60, width=32, allow_subnormal=False),
    loss=st.lists(NUMBERS, min_size=2, max_size=2),
    count=st.lists(st.floats(0, 2.0**30, width=32, allow_subnormal=False), min_size=2, max_size=2),
)
def test_no_client_adds_more_than_norm_one_or_its_share_of_any_segment(
    update: list[float], beta: float, loss: list[float], count: list[float]
):
    vector = unit_vector(BOUNDS, ROOTS, contribution(update, beta, loss, count))
    exact = [np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in jax.tree.leaves(part)])
             for part in vector]  # fmt: skip
    for segment, share in zip(exact, ROOTS, strict=True):
        assert np.linalg.norm(segment) <= share
    assert np.linalg.norm(np.concatenate(exact)) <= 1


def test_a_contribution_by_hand():
    # Of 20 examples with a mean α of 1/4, 10 are too many: N, β and L are halved, L to 25 of 30.
    # ‖β Δ‖ = 10 is ‖n Δ‖ = 40 of 20, so half of it is left.
    own = contribution([6.0, 8.0], 5.0, [30.0, 40.0], [12.0, 8.0])
    vector = unit_vector(BOUNDS, ROOTS, own)
    a = [MARGIN * math.sqrt(share) for share in SHARES]
    np.testing.assert_allclose(vector.update["w"], [a[0] * 3 / 20, a[0] * 4 / 20], rtol=1e-6)
    np.testing.assert_allclose(vector.beta, a[1] * 2.5 / 10, rtol=1e-6)
    np.testing.assert_allclose(vector.loss, [a[2] * 15 / 30, a[2] * 20 / 30], rtol=1e-6)
    np.testing.assert_allclose(vector.count, [a[3] * 0.6, a[3] * 0.4], rtol=1e-6)
    np.testing.assert_allclose(vector.within, np.array([-1, 1, -1]) * a[4] / 2, rtol=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 0.3, 1e-6])
def test_what_is_within_its_bounds_does_not_depend_on_alpha(alpha: float):
    """β^k Δ^k and β^k are α times n_k Δ^k and n_k, and so is what is sent of them."""
    whole, part = (
        unit_vector(BOUNDS, ROOTS, contribution([30.0 * a, 0.0], 8.0 * a, [9.0, 1.0], [5.0, 3.0]))
        for a in (1.0, alpha)
    )
    np.testing.assert_allclose(part.update["w"], alpha * whole.update["w"], rtol=1e-5)
    np.testing.assert_allclose(part.beta, alpha * whole.beta, rtol=1e-5)
    for name in ("loss", "count", "within"):
        np.testing.assert_array_equal(getattr(part, name), getattr(whole, name))


def test_what_is_within_its_bounds_comes_back():
    channel = private(BOUNDS, FINE, 1, None, nothing)
    own = contribution([0.3, -0.2], 0.4, [20.0, 3.0], [2.0, 7.0])
    sums, _, report = channel.decode(channel.init(), channel.encode(channel.init(), own, KEY), KEY)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4), sums, own)
    assert report == {}


@given(st.lists(NUMBERS, min_size=9, max_size=9), st.floats(1e-3, 1e3))
def test_no_noise_makes_anything_negative_or_not_finite(numbers: list[float], noise: float):
    x = jnp.array(numbers)
    noised = Segments({"w": x[:2]}, x[2], x[3:5], x[5:7], jnp.zeros(3))
    sums = estimate(BOUNDS, jnp.float32(noise), ROOTS, noised)
    assert tree.all_finite(sums)
    assert sums.beta > 0
    assert jnp.all(sums.domain_count >= 0)
    assert jnp.all(sums.domain_loss >= 0)
    assert jnp.all((sums.domain_count == 0) <= (sums.domain_loss == 0))


def test_bounds_follow_the_quantile():
    """Norms of updates are 2^−4 … 2^4, evenly in the logarithm: their median is 1."""
    clients = 41
    first = ClipBounds(20.0, 30.0, 10.0)
    channel = private(first, FINE, clients, Follow(0.5, 1), noise_of_a_test())
    norms = 2.0 ** np.linspace(-4, 4, clients)
    # Those of every other client have a tenth of the weight.
    alpha = np.where(np.arange(clients) % 2, 0.1, 1.0).astype(np.float32)
    many = jax.vmap(lambda x, a: contribution([0.0, 0.0], 0.0, [1.0, 1.0], [1.0, 1.0])._replace(
        weighted_delta={"w": jnp.stack([a * x, 0 * x])}, beta=2 * a,
    ))(jnp.array(norms, jnp.float32), alpha)  # fmt: skip

    @jax.jit
    def step(state: Any, key: Any) -> Any:
        messages = jax.vmap(channel.encode, (None, 0, None))(state, many, key)
        total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), messages)
        return channel.decode(state, total, key).channel_state, None

    state, _ = jax.lax.scan(step, channel.init(), jax.random.split(KEY, 150))
    assert 2**-0.5 < state.bounds.update < 2**0.5
    assert state.bounds.count < 3.0  # all are within; the bound comes down to what is needed


# The noise.


def test_central_noise_is_normal_with_deviation_z_for_every_number():
    like = {"a": jnp.zeros((100, 300), jnp.int32), "b": jnp.zeros(20_000, jnp.int32)}
    scale = scale_for(3.0, 2**18, 1)
    assert scale.noise == 3.0
    noised = released(noise_of_a_test(), like, jnp.int32(scale.sigma), jnp.float32(scale.units))
    draws = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(noised)])
    assert stats.kstest(draws / 3.0, "norm").pvalue > 0.01
    assert abs(np.corrcoef(draws[:20_000], draws[20_000:40_000])[0, 1]) < 0.03


def test_clients_shares_of_noise_add_up_modulo_two_to_the_32():
    clients, z = 8, 2.0
    units = units_for(clients, z)
    assert units == 2 ** math.floor(math.log2(2**22 / 4))
    scale = scale_for(z, units, clients)
    assert z <= scale.noise < 1.001 * z
    message = to_whole_numbers(jnp.full(5000, 0.6), jnp.float32(units))
    assert message.dtype == jnp.int32
    sigma, total = jnp.int32(scale.sigma), clients * message
    noised = released(noise_of_a_test(clients), total, sigma, jnp.float32(units))
    noise = np.asarray(noised) - clients * 0.6
    assert stats.kstest(noise / z, "norm").pvalue > 0.01


@pytest.mark.parametrize(("clients", "noise"), [(4, 0.5), (2000, 1.0), (20, 300.0), (100_000, 5.0)])
def test_whole_numbers_have_room_for_sum_and_noise(clients: int, noise: float):
    units = units_for(clients, noise)
    assert units * (clients + 10 * noise) < 2**31
    assert scale_for(2 * noise, units, 1).noise >= 2 * noise  # as a resumed run may want


def test_every_sum_gets_other_noise_though_the_key_is_the_same():
    """What a round is computed from is public: state, data's sum and the key of (seed, t)."""
    facts = RunFacts(contribution_shapes(linear(), 2), 10, 4, 40)
    channel = differential_privacy(facts, 2.0, 1e-5).channel(facts.like)
    own = contribution([1.0], 0.4, [20.0, 3.0], [6.0, 7.0])
    message = channel.encode(channel.init(), own, KEY)
    decode = jax.jit(channel.decode)
    one, other = (decode(channel.init(), message, KEY).total for _ in range(2))
    assert np.all(one.weighted_delta["w"] != other.weighted_delta["w"])


def test_noise_of_two_runs_of_one_seed_cannot_be_subtracted():
    """With one seed and two ε, (z₂ o₁ − z₁ o₂) / (z₂ − z₁) was the update without noise."""
    noise: list[np.ndarray] = []
    for epsilon in (64, 4):
        facts = RunFacts(contribution_shapes(linear(), 2), 1, 4, 40)
        privacy = differential_privacy(facts, epsilon, 1e-5)
        channel = privacy.channel(facts.like)
        zero = jax.tree.map(lambda leaf: jnp.zeros((500, *leaf.shape), leaf.dtype), facts.like)
        message = jax.vmap(channel.encode, (None, 0, None))(channel.init(), zero, KEY)
        total = jax.vmap(lambda m, channel=channel: channel.decode(channel.init(), m, KEY).total)
        noise.append(np.ravel(total(message).weighted_delta["w"]) / privacy.scale.noise)
    assert abs(np.corrcoef(noise[0], noise[1])[0, 1]) < 0.2


# The accounting.


def sampled_gaussian(rate: float) -> accounting.Accountant:
    """Without the rounding to whole numbers."""
    return accounting.sampled_gaussian(rate, lambda _: 1.0, lambda *_: 0.0)


@pytest.mark.parametrize(("noise", "rounds"), [(4.0, 1), (40.0, 100)])
def test_without_sampling_epsilon_is_that_of_the_gaussian_mechanism(noise: float, rounds: int):
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) with μ = 2 √T / z (Balle and Wang 2018)."""
    epsilon = sampled_gaussian(1.0)([Charge(noise, rounds)], 1e-5)
    mu = 2 * math.sqrt(rounds) / noise
    cdf = stats.norm.cdf
    delta = cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=0.01)


def test_with_sampling_epsilon_lies_between_two_known_bounds():
    """Not below that of Poisson sampling, not above the Rényi bound for fixed-size cohorts."""
    rate, noise, rounds, delta = 0.1, 2.0, 200, 1e-5
    epsilon = sampled_gaussian(rate)([Charge(noise, rounds)], delta)
    poisson = dp_accounting.pld.privacy_loss_distribution.from_gaussian_mechanism(
        noise, sensitivity=2.0, sampling_prob=rate
    )
    assert poisson.self_compose(rounds).get_epsilon_for_delta(delta) < epsilon
    renyi = dp_accounting.rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    gaussian = dp_accounting.GaussianDpEvent(noise / 2)
    renyi.compose(dp_accounting.SampledWithoutReplacementDpEvent(100, 10, gaussian), rounds)
    assert epsilon < renyi.get_epsilon(delta)
    assert epsilon < 0.3 * sampled_gaussian(1.0)([Charge(noise, rounds)], delta)


@pytest.mark.parametrize("accountant", [sampled_gaussian(0.1), known_cohorts(lambda _: 1.01)])
def test_the_noise_found_is_just_enough(accountant: accounting.Accountant):
    budget = Budget(3.0, 1e-5, accountant)
    noise = accounting.find_noise(budget, 50)

    def spent(z: float, rounds: int) -> float:
        return accounting.spent(budget, [Charge(z, rounds)])

    assert spent(noise, 50) <= 3.0 < spent(0.99 * noise, 50)
    assert accounting.rounds_within(budget, noise, 50) == 50
    fewer = accounting.rounds_within(budget, 0.8 * noise, 50)
    assert spent(0.8 * noise, fewer) <= 3.0 < spent(0.8 * noise, fewer + 1)
    # Rounds with other noise are composed: half of each kind costs something between the two.
    mixed = accounting.spent(budget, [Charge(noise, 25), Charge(2 * noise, 25)])
    assert spent(2 * noise, 50) < mixed < spent(noise, 50)
    left = accounting.find_noise(budget, 50, before=[Charge(noise, 20)])
    assert left > noise
    assert accounting.spent(budget, [Charge(noise, 20), Charge(left, 50)]) <= 3.0
    with pytest.raises(BadInput, match="50 rounds were charged already and have spent epsilon 3"):
        accounting.find_noise(budget, 1, before=[Charge(0.99 * noise, 50)])


def test_whole_numbers_cost_next_to_nothing():
    """A model of 1.4 million numbers, 1000 rounds, σ = 2^19 units: less than 10⁻⁶ of ε."""
    assert 0 < off_lattice(2**19, 1_400_000 * 1000) < 1e-6
    # The ratio of the two laws' probabilities, number by number.
    sigma, x = 30, np.arange(-150, 151)
    rounded = stats.norm.cdf(x + 0.5, scale=sigma) - stats.norm.cdf(x - 0.5, scale=sigma)
    discrete = np.exp(-(x**2) / (2 * sigma**2)) / np.exp(-(x**2) / (2 * sigma**2)).sum()
    exponent = (1 - x**2 / sigma**2) / (24 * sigma**2)
    np.testing.assert_allclose(np.log(discrete / rounded), exponent, atol=2e-6)


FACTS = RunFacts(contribution_shapes(linear(), 2), 10, 4, 40)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0.0}, "dp: epsilon is 0.0; it must be a number above 0"),
        ({"epsilon": -1}, "epsilon is -1"),
        ({"delta": 0.0}, "dp: delta is 0.0; it must lie between 0 and 1"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"population": 100}, "assumes a population of 100 clients; .* the data has 40"),
        ({"population": 3}, "at least the clients per round, 4"),
        ({"mode": "local"}, "unknown mode of dp 'local'"),
        ({"clip": 0}, "dp: clip is 0; it must be a number above 0"),
        ({"weight": 0.5}, "dp: weight is 0.5; it must be a number of at least 1"),
        ({"quantile": 1.0}, "quantile is 1.0"),
        ({"noise_multiplier": -1}, "noise_multiplier is -1; it must be a number above 0"),
        (
            {"noise_multiplier": 1.0},
            "10 rounds are wanted, but noise multiplier 1 keeps epsilon 2",
        ),
    ],
)
def test_bad_budgets_are_refused(options: Any, message: str):
    with pytest.raises(BadInput, match=message):
        differential_privacy(FACTS, **({"epsilon": 2.0, "delta": 1e-5} | options))


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["sampling.over_selection=1.3"], "uniform cohorts of fixed size only"),
        (["dp.epsilonn=1"], "unknown option of dp 'epsilonn'; did you mean 'epsilon'"),
    ],
)
def test_runs_that_cannot_be_private_are_refused(sets: list[str], message: str):
    with pytest.raises(BadInput, match=message):
        build(resolve("toy", sets=["dp.epsilon=9", "dp.delta=1e-5", *sets]))


def test_cohorts_chosen_by_data_are_refused():
    sets = ["dp.epsilon=9", "dp.delta=1e-5"]
    with pytest.raises(BadInput, match="its cohorts would tell who they are"):
        build(resolve("toy", "fedavg-target", "centre 1", sets=sets))


# Runs.


def private_toy(**options: Any) -> Any:
    sets = ["checkpoint_every=4", "clients_per_round=10", "dp.epsilon=30.0", "dp.delta=1e-5"]
    sets.append("engine=padded")  # a few rounds, not a block of many
    return resolve("toy", rounds=6, sets=[*sets, *(f"{k}={v}" for k, v in options.items())])


def spent_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "privacy.json").read_text())


def test_a_run_says_what_it_spent_and_never_goes_past_it(tmp_path: Path):
    folder, done, charged = tmp_path / "run", list[int](), list[int]()

    def on_round(record: Any) -> None:
        done.append(record["round"])
        charged.append(spent_in(folder)["rounds"])

    with pytest.raises(Stopped):
        run(private_toy(), folder, on_round=on_round, should_stop=lambda: len(done) == 5)
    assert charged == [4, 4, 4, 4, 6]  # ahead of the rounds, a checkpoint's worth at a time
    assert spent_in(folder)["rounds"] == 5
    assert 0 < spent_in(folder)["epsilon"] < 30.0
    summary = run(private_toy(), folder, resume=True)
    assert summary["privacy"] == spent_in(folder)
    assert 29.0 < summary["privacy"]["epsilon"] <= 30.0
    assert summary["privacy"]["delta"] == 1e-5

    # Somebody wants more rounds of the same folder, and edits what stands in the way.
    (folder / "summary.json").unlink()
    more = json.loads((folder / "config.json").read_text()) | {"rounds": 12}
    (folder / "config.json").write_text(json.dumps(more))
    config = from_table(more, "the edited configuration")
    with pytest.raises(BadInput, match="dp: 6 rounds were charged already"):
        run(config, folder, resume=True)
    (folder / "privacy.json").unlink()
    with pytest.raises(BadInput, match="is missing: what 6 rounds of this run have spent"):
        run(config, folder, resume=True)


def test_rounds_that_a_crash_repeats_are_charged_again(tmp_path: Path):
    folder, config = tmp_path / "run", private_toy(checkpoint_every=2)

    def crash(record: Any) -> None:
        if record["round"] == 4:
            raise RuntimeError("a crash before the checkpoint of round 4")

    with pytest.raises(RuntimeError, match="a crash"):
        run(config, folder, on_round=crash)
    first = spent_in(folder)
    assert first["rounds"] == 4
    seen = read_records(folder)[2]
    privacy = run(config, folder, resume=True)["privacy"]
    again = read_records(folder)[2]
    assert seen["round"] == again["round"] == 3
    assert seen["update_norm"] != again["update_norm"]  # drawn anew …
    assert privacy["rounds"] == 8  # … and charged anew: 1 to 4, then 3 to 6
    before, after = privacy["charged"]
    assert before["rounds"] == after["rounds"] == 4
    assert before["noise_multiplier"] < after["noise_multiplier"]
    assert 29.0 < privacy["epsilon"] <= 30.0


def test_noise_from_a_number_is_not_private_and_every_output_says_so(tmp_path: Path):
    said: list[str] = []
    config = private_toy(**{"dp.test_seed": 7})
    summary = run(config, tmp_path / "run", say=said.append)
    run(config, tmp_path / "same")
    losses = [[r["loss"] for r in read_records(tmp_path / name)] for name in ("run", "same")]
    assert losses[0] == losses[1]
    assert summary["privacy"]["private"] is False
    assert summary["privacy"]["warning"] == spent_in(tmp_path / "run")["warning"] == NOT_PRIVATE
    assert said[0] == said[-1] == f"warning: {NOT_PRIVATE}"  # before the first round and at the end
    assert "NOT PRIVATE" in title(config)
    write_report([tmp_path / "run"], tmp_path / "run")
    for page in ("report.html", "table.md", "table.tex"):
        assert "NOT PRIVATE" in (tmp_path / "run" / page).read_text(), page
    assert "NOT PRIVATE" not in title(private_toy())


@pytest.mark.parametrize("make", [agnostic_fedavg, fedavg])
def test_noise_far_above_the_data_leaves_weights_and_model_finite(make: Any):
    data = random_federated(0, clients=10)
    facts = RunFacts(contribution_shapes(linear(), 3), 30, 5, 10)
    privacy = differential_privacy(facts, 0.01, 1e-6)
    algorithm = make(
        linear(), data, clients_per_round=5, batch_size=4, client_optimizer=optax.sgd(0.1),
        channel=privacy.channel, engine=padded_engine,
    )  # fmt: skip
    state = algorithm.init()
    for t in range(1, 31):
        state, info = algorithm.round(state, algorithm.cohort(t))
        assert tree.all_finite((state.params, state.domain_weights, state.window, info.alpha))
        assert jnp.all(state.domain_weights >= 0)
        assert jnp.sum(state.domain_weights) == pytest.approx(1, abs=1e-5)


# Nothing but the noised sum leaves the clients.


def records_of(folder: Path, data_seed: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """All that a run writes down of its rounds if the noised sum is the same whatever the data."""
    source = noise_source(Secrets(secret_of_a_test(0)))

    def constant(total: np.ndarray, sigma: np.ndarray) -> np.ndarray:
        return source(int(sigma), 1, total.size).astype(np.float32)

    monkeypatch.setattr("agnosticfl.channels.dp.independent", lambda *_: constant)
    points = [10 + 7 * data_seed, 30, 20, 25, 35]
    # Who has no point at all is no client, and the number of clients is public.
    config = private_toy(**{"data.points": points, "clients_per_round": 5, "dp.population": 20})
    run(config, folder)
    # How long a round took is not of the clients' data in a simulation.
    return [
        {k: v for k, v in record.items() if k not in ("seconds", "time")}
        for record in read_records(folder)
    ], spent_in(folder)


def test_everything_that_leaves_a_round_is_made_of_the_noised_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one = records_of(tmp_path / "one", 0, monkeypatch)
    other = records_of(tmp_path / "other", 1, monkeypatch)
    assert len(one[0]) == 6
    assert one == other


def test_that_test_sees_a_value_that_was_not_noised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def leaking(*given: Any) -> Any:
        channel = private(*given)

        def decode(state: Any, total: Any, key: Any) -> Any:
            decoded = channel.decode(state, total, key)
            return decoded._replace(
                total=decoded.total._replace(beta=1 + total.beta.astype(jnp.float32))
            )

        return channel._replace(decode=decode)

    monkeypatch.setattr("agnosticfl.channels.dp.private", leaking)
    one = records_of(tmp_path / "one", 0, monkeypatch)
    assert one != records_of(tmp_path / "other", 1, monkeypatch)


# An attack.


def audited_epsilon(
    privacy: Privacy, clients: int, cohort: int, rounds: int, delta: float, trials: int
) -> float:
    """A lower bound on ε, with confidence 0.95, from what an attacker sees of `trials` runs.

    A canary's update points up with all its might, or down; nobody else moves. The attacker looks
    at the noised updates of `rounds` rounds and tells which it was. Clopper and Pearson bound how
    often she is right; (ε, δ) bounds it too: true positives ≤ e^ε · false positives + δ.
    """
    seen = []
    for canary in (1e3, -1e3):
        data = federated([[canary]] + [[0.0]] * (clients - 1), [[0]] * clients, 1)
        algorithm = agnostic_fedavg(
            linear(), data, clients_per_round=cohort, batch_size=1, engine=padded_engine,
            client_optimizer=optax.sgd(1.0), channel=privacy.channel, seed=int(canary > 0),
        )  # fmt: skip
        times = range(trials * rounds)
        cohorts = jax.tree.map(lambda *x: np.stack(x), *(algorithm.cohort(t + 1) for t in times))
        state = algorithm.init()

        def one_round(t: Any, cohort: Any, algorithm: Any = algorithm, state: Any = state) -> Any:
            after, info = algorithm.round(state._replace(round=t), cohort)
            return (state.params["w"] - after.params["w"]) * info.beta  # the noised update

        noised = jax.jit(jax.vmap(one_round))(jnp.arange(len(times), dtype=jnp.int32), cohorts)
        seen.append(np.asarray(noised).reshape(trials, rounds).sum(axis=1))
    up, down = seen
    half = trials // 2
    # She is surest far out; but one in ten must lie there, or chance alone may hide what she knows.
    threshold = np.quantile(np.concatenate([up[:half], down[:half]]), 0.9)
    hits, wrong = (int(np.sum(side[half:] > threshold)) for side in (up, down))  # the other half
    number = trials - half
    true = stats.beta.ppf(0.025, hits, number - hits + 1) if hits else 0.0
    false = stats.beta.ppf(0.975, wrong + 1, number - wrong) if wrong < number else 1.0
    return math.log((true - delta) / false) if true > delta else 0.0


@pytest.mark.parametrize(
    ("cohort", "rounds", "noise"),
    [
        (4, 1, 2.0),
        pytest.param(2, 1, 1.0, marks=pytest.mark.slow),
        pytest.param(4, 3, 4.0, marks=pytest.mark.slow),
    ],
)
def test_an_attacker_finds_no_more_than_is_claimed(cohort: int, rounds: int, noise: float):
    clients, delta = 4, 1e-2
    facts = RunFacts(contribution_shapes(linear(), 1), rounds, cohort, clients)
    privacy = differential_privacy(
        facts, 100.0, delta, noise_multiplier=noise, quantile=0, loss=1e4
    )
    claimed = accounting.spent(privacy.budget, [Charge(noise, rounds)])
    found = audited_epsilon(privacy, clients, cohort, rounds, delta, trials=4000)
    assert 0.5 < found < claimed  # an attack that finds nothing would prove nothing


def test_an_example_counts_for_no_more_than_the_weight_that_is_given():
    """In the first round of the toy, whose domains have the same λ and very different counts."""

    def largest(weight: float) -> float:
        sets = ["dp.epsilon=50", "dp.delta=1e-3", "engine=padded", f"dp.weight={weight}"]
        algorithm = build(resolve("toy", rounds=3, sets=sets)).algorithm
        state = algorithm.init()._replace(
            window=Window(jnp.array([[90.0, 1.0, 1.0, 4.0, 4.0]]), jnp.array([90.0, 1, 1, 4, 4]))
        )
        _, info = algorithm.round(state, algorithm.cohort(1))
        return float(jnp.max(info.alpha)) * 100  # of the mean example it is 1 / 100

    assert largest(3.0) == pytest.approx(3.0, rel=1e-5)
    assert largest(50.0) == pytest.approx(0.2 * 100, rel=1e-5)


def test_under_secure_aggregation_the_clients_add_the_noise():
    sets = ["secure.name=simulate", "dp.epsilon=50", "dp.delta=1e-3", "engine=padded"]
    with pytest.raises(BadInput, match="mode must be 'distributed'"):
        build(resolve("toy", rounds=3, sets=sets))
    config = resolve("toy", rounds=3, sets=[*sets, "dp.mode=distributed"])
    built = build(config)
    shapes = contribution_shapes(built.model, 5)
    message = message_shapes(build_channel(config, built.privacy)(shapes), shapes)
    assert {leaf.dtype for leaf in jax.tree.leaves(message)} == {jnp.dtype("int32")}
