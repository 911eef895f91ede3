"""Named parameters: what they are called, how they are selected, how they move between spaces."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.gp import RBF, Linear, Matern32, SparseGP
from gpssm.models.emission import LinearEmission
from gpssm.models.gpssm import GPSSM, InitialState, Transition
from gpssm.models.noise import DiagonalNoise, FullNoise
from gpssm.numerics.parameters import free_values, match, parameter, parameters, with_free_values, with_values


def factor(*shape):
    """A random lower triangular matrix with a positive diagonal, or a batch of them."""
    rng = np.random.default_rng(sum(shape))
    lower = np.tril(rng.normal(size=shape), -1)
    return lower + rng.uniform(0.3, 2.0, size=shape) * np.eye(shape[-1])


def model(full=True):
    rng = np.random.default_rng(0)
    kernel = RBF(rng.uniform(0.5, 2.0, (2, 3)), np.array([0.7, 1.3])) + Matern32(np.ones((2, 3)), np.array([0.1, 0.2]))
    gp = SparseGP(kernel, rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 4)), factor(2, 4, 4))
    return GPSSM(
        Transition(Linear(rng.normal(size=(2, 3)), rng.normal(size=2)), gp),
        FullNoise(factor(2, 2)) if full else DiagonalNoise(np.array([0.2, 3.0])),
        LinearEmission(rng.normal(size=(1, 2)), rng.normal(size=1)),
        DiagonalNoise(np.array([0.01])),
        InitialState(rng.normal(size=(2, 2)), factor(2, 2, 2), np.zeros(2), np.eye(2)),
    )


NAMES = [
    "transition.mean.weight",
    "transition.mean.bias",
    "transition.gp.kernel.left.lengthscale",
    "transition.gp.kernel.left.variance",
    "transition.gp.kernel.right.lengthscale",
    "transition.gp.kernel.right.variance",
    "transition.gp.inducing_inputs",
    "transition.gp.q_mean",
    "transition.gp.q_chol",
    "process_noise.chol",
    "emission.weight",
    "emission.bias",
    "obs_noise.variance",
    "initial_state.mean",
    "initial_state.chol",
]


def values(module):
    return {p.name: np.asarray(p.value) for p in parameters(module)}


def test_names_are_the_paths_of_the_fields():
    assert [p.name for p in parameters(model())] == NAMES
    assert "process_noise.variance" in values(model(full=False))
    assert "initial_state.prior_mean" not in values(model()), "a field that is not learnable"


def test_items_of_a_tuple_are_numbered():
    assert [p.name for p in parameters((RBF(), [Matern32()]))] == [
        "0.lengthscale",
        "0.variance",
        "1.0.lengthscale",
        "1.0.variance",
    ]


def test_every_parameter_knows_its_constraint():
    constraints = {p.name: p.constraint for p in parameters(model())}
    assert {n for n, c in constraints.items() if c == "cholesky"} == {
        "transition.gp.q_chol",
        "process_noise.chol",
        "initial_state.chol",
    }
    assert {n.rsplit(".", 1)[1] for n, c in constraints.items() if c == "positive"} == {"lengthscale", "variance"}


def test_an_unknown_constraint_is_refused():
    with pytest.raises(ValueError, match=r"constraint: 'negative'.*positive"):
        parameter("negative")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("obs_noise.variance", ["obs_noise.variance"]),
        ("obs_noise", ["obs_noise.variance"]),
        ("lengthscale", [n for n in NAMES if n.endswith("lengthscale")]),
        ("variance", [n for n in NAMES if n.endswith("variance")]),
        ("transition.gp.kernel", [n for n in NAMES if ".kernel." in n]),
        ("transition", [n for n in NAMES if n.startswith("transition")]),
        ("kernel", [n for n in NAMES if ".kernel." in n]),
        ("kernel.left", [n for n in NAMES if ".left." in n]),
        ("gp.q_mean", ["transition.gp.q_mean"]),
        ("mean", ["transition.mean.weight", "transition.mean.bias", "initial_state.mean"]),
    ],
)
def test_a_pattern_selects_by_whole_words(pattern, expected):
    """Oracle: the list of names, filtered by hand."""
    assert match(NAMES, [pattern]) == set(expected)


def test_several_patterns_select_the_union():
    assert match(NAMES, ["bias", "obs_noise"]) == {"transition.mean.bias", "emission.bias", "obs_noise.variance"}
    assert match(NAMES, []) == set()


@pytest.mark.parametrize("pattern", ["noise", "lengthscales", "kernel.variance", "obs_noise.", "", "q"])
def test_an_unknown_name_is_told_what_there_is(pattern):
    """Part of a word is not a name."""
    with pytest.raises(ValueError, match="fixed: ") as error:
        match(NAMES, ["obs_noise", pattern])
    assert repr(pattern) in str(error.value)
    for name in NAMES:
        assert name in str(error.value)


@pytest.mark.parametrize("full", [True, False])
def test_round_trip_through_unconstrained_values(full):
    """Oracle: the model that was translated."""
    original = model(full)
    names = list(values(original))
    free = free_values(original, names)
    assert set(free) == set(names)
    back = values(with_free_values(original, free))
    for name, value in values(original).items():
        np.testing.assert_allclose(back[name], value, rtol=1e-12, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("full", [True, False])
def test_any_unconstrained_values_are_legal(full):
    """Variances positive, factors lower triangular with a positive diagonal, whatever the optimiser does."""
    original = model(full)
    rng = np.random.default_rng(1)
    free = {n: jnp.asarray(rng.normal(scale=5.0, size=v.shape)) for n, v in values(original).items()}
    moved = with_free_values(original, free)
    for p in parameters(moved):
        value = np.asarray(p.value)
        assert np.isfinite(value).all()
        if p.constraint == "positive":
            assert (value > 0).all(), p.name
        elif p.constraint == "cholesky":
            assert (np.triu(value, 1) == 0).all(), p.name
            assert (np.diagonal(value, axis1=-2, axis2=-1) > 0).all(), p.name
    again = free_values(moved, free)
    for p in parameters(original):
        unused = np.triu(np.ones(p.value.shape), 1) if p.constraint == "cholesky" else 0.0
        np.testing.assert_allclose(np.asarray(again[p.name]), np.where(unused, 0.0, free[p.name]), atol=1e-9)


def test_only_named_parameters_change():
    original = model()
    free = free_values(original, ["obs_noise.variance"])
    assert list(free) == ["obs_noise.variance"]
    changed = values(with_free_values(original, jax.tree.map(lambda x: x + 1.0, free)))
    before = values(original)
    np.testing.assert_allclose(changed.pop("obs_noise.variance"), np.e * before.pop("obs_noise.variance"), rtol=1e-12)
    for name, value in before.items():
        np.testing.assert_array_equal(changed[name], value)


def test_a_kernel_used_twice_has_two_sets_of_parameters():
    shared = RBF(1.0, 2.0)
    changed = with_values(shared + shared, {"left.variance": np.asarray(5.0)})
    assert float(changed.left.variance) == 5.0
    assert float(changed.right.variance) == 2.0


def test_gradients_flow_through_the_constraints():
    """Oracle: d(variance)/d(log variance) is the variance."""
    original = model()
    free = free_values(original, ["obs_noise.variance"])
    slope = jax.grad(lambda f: jnp.sum(with_free_values(original, f).obs_noise.variance))(free)
    np.testing.assert_allclose(slope["obs_noise.variance"], original.obs_noise.variance, rtol=1e-12)


def test_numbers_become_arrays_and_jax_arrays_stay():
    kernel = RBF(2, [3])
    assert isinstance(kernel.lengthscale, np.ndarray)
    assert kernel.lengthscale.dtype == float
    assert kernel.variance.shape == (1,)
    traced = jnp.asarray(1.5)
    assert RBF(traced).lengthscale is traced
    assert all(eqx.is_array(leaf) or isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(model()))
