"""Models saved by version 0.1.0, in format 3, and what that version went on to compute from them.

`format_3.zip` has one file per kind of model, and the numbers: for a stream the estimates of the five samples after it
was saved, for a fitted model the states that it filtered from the end of the recording.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import gpssm
from gpssm.filters import ensemble
from gpssm.plumbing import catalogue

ARCHIVE = Path(__file__).with_name("format_3.zip")
with zipfile.ZipFile(ARCHIVE) as archive:
    NAMES = sorted(name.removesuffix(".gpssm") for name in archive.namelist() if name.endswith(".gpssm"))


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    with zipfile.ZipFile(ARCHIVE) as archive:
        return dict(np.load(io.BytesIO(archive.read("expected.npz"))))


def stored(name: str) -> bytes:
    with zipfile.ZipFile(ARCHIVE) as archive:
        return archive.read(f"{name}.gpssm")


def filtered(model: Any, outputs: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Means of the states; those of an ensemble with the draws of version 0.1.0, which made them for all samples."""
    if not isinstance(model, gpssm.Posterior):
        return np.asarray(model.filter(outputs, inputs, seed=1).mean)
    own, scaling = model.model, model.scaling
    with jax.enable_x64(True):
        key_x0, key = jax.random.split(jax.random.key(1))
        shape = (model.settings.num_members, own.state_dim)
        first = own.initial_state.prior_members(jax.random.normal(key_x0, shape, model._dtype))
        trace = ensemble.run(
            own.transition.marginal(),
            ensemble.Observing.of(own, model.settings.taper),
            first,
            jax.numpy.asarray(scaling.standardise_outputs(outputs), model._dtype),
            jax.numpy.asarray(scaling.standardise_inputs(inputs), model._dtype),
            key,
            model.settings.options,
        )
        return np.asarray(scaling.states(np.asarray(trace.mean, float)))


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_format_3_goes_on_as_it_did(tmp_path: Path, expected: dict[str, np.ndarray], name: str) -> None:
    path = tmp_path / "model.gpssm"
    path.write_bytes(stored(name))
    model, outputs, inputs = gpssm.load(path), expected["outputs"], expected["inputs"]
    model.save(path)
    for loaded in (model, gpssm.load(path)):  # and once more from a file of the present format
        if isinstance(loaded, gpssm.Stream):
            first = int(expected[f"{name}.at"])
            rows = [
                np.r_[e.state_mean, e.predicted_mean, e.predicted_std, e.log_score]
                for e in (loaded.learn_one(outputs[t], inputs[t]) for t in range(first, first + 5))
            ]
            np.testing.assert_allclose(rows, expected[name], rtol=1e-7, atol=1e-9)
        else:
            np.testing.assert_allclose(
                filtered(loaded, outputs[50:], inputs[50:]), expected[name], rtol=1e-7, atol=1e-9
            )


@pytest.mark.parametrize("name", ["EnVI", "OEnVI_20", "LinearGaussian"])
def test_a_model_of_format_2_is_the_same(tmp_path: Path, name: str) -> None:
    """It differs from format 3 in its header alone."""
    path = tmp_path / "model.gpssm"
    path.write_bytes(stored(name))
    new = gpssm.load(path)
    _, line, payload = stored(name).split(b"\n", 2)
    header = {"format": "gpssm-model", "version": 2, "sha256": hashlib.sha256(payload).hexdigest()} | json.loads(line)
    path.write_bytes(json.dumps(header).encode() + b"\n" + payload)
    old = gpssm.load(path)
    texts = []
    for model in (old, new):
        model.save(path)
        texts.append(path.read_bytes())
    assert texts[0] == texts[1]


def classes(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "class" in node:
            yield node["class"]
        for inner in node.values():
            yield from classes(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from classes(inner)


def test_every_former_name_is_of_a_class_that_joined() -> None:
    assert all(catalogue.find(f"gpssm.{name}") is not None for name in catalogue.FORMER.values())
    seen = {name for model in NAMES for name in classes(json.loads(stored(model).split(b"\n", 2)[1]))}
    assert seen <= catalogue.FORMER.keys()


def test_classes_of_one_name_in_two_modules_are_two() -> None:
    """Bare names would have taken the second for the first."""
    from gpssm.gp.means import Linear

    class Other(Linear):
        pass

    Other.__name__, Other.__qualname__ = "Linear", "Linear"
    catalogue.saved(Other)
    assert catalogue.find("gpssm.gp.means.Linear") is Linear
    assert catalogue.find(f"{__name__}.Linear") is Other
