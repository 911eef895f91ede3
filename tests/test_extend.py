"""What docs/extend.md shows is run as it stands: its files as modules of the package, its lines in the lists."""

import ast
import importlib
import re
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import gpssm
from gpssm.datasets import kink
from gpssm.errors import InvalidInput
from gpssm.experiments import EXPERIMENTS
from gpssm.experiments import Entry as ExperimentEntry
from gpssm.experiments.base import Group, Task
from gpssm.filters import FILTERS
from gpssm.gp import kernels
from gpssm.methods import registry
from gpssm.models import LIKELIHOODS
from gpssm.plumbing import catalogue

TEXT = (Path(__file__).parents[1] / "docs" / "extend.md").read_text()
SHORT = gpssm.Schedule(max_steps=4, chunk=2)

# The code, and the indented line after it, by the path of the file.
SHOWN = {
    path: (code, re.sub(r"\s*#.*\n", "", line).strip())
    for path, code, line in re.findall(
        r"^```python (\S+)\n(.*?)^```\n\n((?: {4}[^\n]*\n)+)", TEXT, re.DOTALL | re.MULTILINE
    )
}

Add = Callable[[str], Any]


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """Adds the file of that path to the package; returns what the line after it says, evaluated."""
    added: list[str] = []

    def add(path: str) -> Any:
        code, line = SHOWN[path]
        module = types.ModuleType("gpssm." + path.removesuffix(".py").replace("/", "."))
        exists = module.__name__ in sys.modules
        if not exists:  # what belongs in a file that there is only has its name
            monkeypatch.setitem(sys.modules, module.__name__, module)
        before = set(catalogue._SAVED)
        exec(compile(code, path, "exec"), module.__dict__)
        for name in set(catalogue._SAVED) - before:
            if name.startswith(module.__name__ + "."):
                added.append(name)
        scope = vars(sys.modules[module.__name__]) | vars(module) if exists else {}
        entries = {"Entry": ExperimentEntry if "experiments" in path else registry.Entry}
        return eval(f"{{{line}}}" if line.endswith(",") else line, scope | entries)

    yield add
    for name in added:
        del catalogue._SAVED[name]


@pytest.fixture(scope="module")
def fitted() -> gpssm.Posterior:
    return gpssm.EnVI(1, 5, schedule=SHORT).fit(kink(60, seed=0).outputs)


def enter(monkeypatch: pytest.MonkeyPatch, registered: dict[str, Any], line: dict[str, Any]) -> str:
    ((name, entry),) = line.items()
    assert name not in registered
    monkeypatch.setitem(registered, name, entry)
    return name


def test_everything_that_is_shown_is_run_here() -> None:
    assert len(SHOWN) == TEXT.count("```python") == len(re.findall(r"^\| \[", TEXT, re.MULTILINE))
    used = {node.value for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.Constant)}
    assert used >= SHOWN.keys()


def test_kernel(add: Add, monkeypatch: pytest.MonkeyPatch, fitted: gpssm.Posterior, tmp_path: Path) -> None:
    """Oracle: its formula."""
    kinds = add("gp/kernels.py")
    monkeypatch.setitem(kernels.KERNELS, "Cauchy", kinds[-1])
    assert [kind.__name__ for kind in kinds] == list(kernels.KERNELS)
    kernel, x = kinds[-1]([0.5, 2.0], 3.0), jnp.asarray(np.random.default_rng(0).normal(size=(30, 2)))
    gram = np.asarray(kernel(x, x))
    squares = np.sum(((x[:, None] - x) / np.array([0.5, 2.0])) ** 2, axis=2)
    np.testing.assert_allclose(gram, 3.0 / (1.0 + squares), rtol=1e-6)
    assert np.linalg.eigvalsh(gram).min() > 0.0
    assert gpssm.EnVI(1, kernel=kernel).kernel is gpssm.OEnVI(1, kernel=kernel).kernel is kernel
    own = eqx.tree_at(lambda m: m.transition.gp.kernel, fitted.model, kinds[-1](np.ones((1, 1)), np.ones(1)))
    model = replace(fitted, model=own)
    model.save(tmp_path / "model.gpssm")
    loaded = gpssm.load(tmp_path / "model.gpssm")
    assert type(loaded.model.transition.gp.kernel) is kinds[-1]
    np.testing.assert_array_equal(loaded.transition([[0.3]]), model.transition([[0.3]]))


def test_filter(add: Add, monkeypatch: pytest.MonkeyPatch, fitted: gpssm.Posterior) -> None:
    """Oracle: a forecast of the same model, from the same state, which has its own draws of f."""
    name = enter(monkeypatch, FILTERS, add("filters/open_loop.py"))
    monkeypatch.setattr(gpssm.Posterior, "filters", tuple(FILTERS))
    nothing = np.full((4, 1), np.nan)
    states = fitted.filter(nothing, filter=name, state=fitted.end)
    ahead = fitted.forecast(4, num_paths=4000).states
    assert states.log_likelihood == 0.0
    error = ahead.std(axis=0) / np.sqrt(len(states.members))
    assert np.all(np.abs(states.mean - ahead.mean(axis=0)) < 5 * error)
    np.testing.assert_allclose(states.std, ahead.std(axis=0), rtol=0.3)
    assert fitted.filter(nothing, filter=name).members.shape == (fitted.settings.num_members, 1)


def test_likelihood(add: Add, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Oracle: SciPy's density, and gradients where a channel is missing."""
    name = enter(monkeypatch, LIKELIHOODS, add("models/laplace.py"))
    kind = sys.modules["gpssm.models.laplace"].Laplace
    likelihood, y, clean = kind([2.0, 0.5]), jnp.asarray([1.0, jnp.nan]), jnp.asarray([[0.2, 3.0], [4.0, 1.0]])
    np.testing.assert_allclose(likelihood.log_prob(y, clean), stats.laplace.logpdf(1.0, clean[:, 0], 1.0), rtol=1e-6)
    slope = jax.grad(lambda own: jnp.sum(own.log_prob(y, clean)))(jax.tree.map(jnp.asarray, likelihood))
    assert np.isfinite(slope.variance).all()
    draws = likelihood.sample(jax.random.key(0), jnp.zeros((20_000, 2)))
    np.testing.assert_allclose(draws.var(axis=0), likelihood.moments(clean[0], jnp.zeros(2))[1], rtol=0.1)
    model = gpssm.EnVI(1, 5, likelihood=name, schedule=SHORT).fit(kink(40, seed=0).outputs)
    model.save(tmp_path / "model.gpssm")
    loaded = gpssm.load(tmp_path / "model.gpssm")
    assert type(loaded.model.obs_noise) is kind
    y = kink(10, seed=1).outputs
    np.testing.assert_array_equal(loaded.filter(y).mean, model.filter(y).mean)
    assert {row.name: row.unit for row in model.summary().rows}["obs_noise.variance"] == "output^2"


def test_method(add: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    name = enter(monkeypatch, registry.METHODS, add("methods/my_method.py"))
    method = registry.build(name, state_dim=1, num_inducing=5, num_samples=8, schedule=SHORT)
    model = method.fit(kink(40, seed=0).outputs)
    assert np.isfinite(model.history.elbo).all() and set(model.history.terms) == {"likelihood", "KL(u)", "KL(x0)"}
    assert model.forecast(3).mean.shape == (3, 1)
    with pytest.raises(InvalidInput, match="num_samples"):
        registry.build(name, state_dim=1, num_samples=0)


def test_online_method(add: Add, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A random walk with a drift that depends on the input, which it finds."""
    name = enter(monkeypatch, registry.ONLINE, add("online/drift.py"))
    rng = np.random.default_rng(0)
    u = rng.normal(size=(120, 1))
    y = np.cumsum(0.7 * u + 0.1, axis=0) + 0.01 * rng.normal(size=u.shape)
    stream = registry.build_online(name, state_dim=1).start()
    for now in zip(y[:100], u[:100], strict=True):
        stream.learn_one(*now)
    stream.save(tmp_path / "stream.gpssm")
    loaded = gpssm.load(tmp_path / "stream.gpssm")
    for now in zip(y[100:], u[100:], strict=True):
        ours, theirs = stream.learn_one(*now), loaded.learn_one(*now)
        np.testing.assert_array_equal(ours.predicted_mean, theirs.predicted_mean)
        assert abs(ours.predicted_mean - now[0]) < 0.3
    assert stream.forecast(5, np.zeros((5, 1))).mean.shape == (5, 1)


def test_experiment(add: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    name = enter(monkeypatch, EXPERIMENTS, add("experiments/decay.py"))
    found: Any = importlib.import_module(EXPERIMENTS[name].module)
    assert len(found.cells(False)) == 2 * len(found.cells(True)) == 4
    groups = []
    for cell in found.cells(True):
        task = Task(name, cell.method, cell.dataset, cell.setting, 0)
        assert cell.method in found.configuration(task) and found.cost(task) > 0
        groups.append(Group(cell, task.folder, (found.run(task),), ((0, "0.json"),), (), ()))
    (table,) = found.section(groups).tables
    assert [row[1][0].text for row in table.rows] == ["ARX", "LastValue"]
    assert all(0.0 < float(row[2][0].text) < 2.0 for row in table.rows)
