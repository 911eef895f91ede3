"""VJF, variational joint filtering (Zhao and Park 2020): one network recognises the state, another moves it.

    x_t = x_{t-1} + W phi(x_{t-1}, c_t) + B c_t + v_t,    y_t = g(x_t) + e_t,    q(x_t) = N(mean, diag)

One step of Adam per sample on the filtering bound

    E_q(x_t)[ log p(y_t | x_t) ]  -  KL[ q(x_t) || p(x_t | y_{1:t-1}) ]

for recognition network, noises, centres and widths together; W and B in closed form by recursive
least squares, as in the authors' released code. Where paper and code leave a choice:

- p(x_t | y_{1:t-1}) is the Gaussian with the moments of q(x_{t-1}) sent through f: tighter than the
  paper's average over q(x_{t-1}), equal to log p(y_t | y_{1:t-1}) if q is exact, and Q is not inflated;
- the network reads y_t as its difference from the prediction, and tells what y_t says of x_t as a
  Gaussian factor (Lambda, eta); q(x_t) is its product with the prediction. A missing sample then is
  a prediction. It starts as the least-squares inverse of the emission;
- least squares weighs a sample by what the network knows of it, so that a state which was only
  predicted does not confirm W;
- phi is normalised, so that a weight is the step near its centre; centres are placed where the
  stream goes, closest ones make room when there are none left and widths grow, and both are learned;
- no linear term A x: forecasts explode.
"""

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from gpssm.filters.augmented import with_past
from gpssm.numerics.linalg import symmetric_root
from gpssm.numerics.networks import MLP
from gpssm.online import paths
from gpssm.online.base import Info, OnlineStateSpace, host
from gpssm.online.outliers import judge
from gpssm.online.vjf import inference
from gpssm.online.vjf.inference import Learned, Recognition, Scales, Site, VJFState, Weights, features, prior
from gpssm.plumbing.catalogue import saved

NDArray = np.ndarray

_WIDTH = 0.25  # of a basis function at first, in spreads of the warm-up
_FOLLOW = 0.05  # where R cannot be told from Q yet, the state follows the outputs: share of the guess to start with
_FORGET = 1e-4  # share of the prior that comes back with every sample
_BEYOND = 1.0  # spreads of the warm-up around all centres: no forecast goes farther
_RAISED = 2.0  # that the logarithm of Q grows at most by when the system has changed


@saved
@dataclass(frozen=True)
class VJF(OnlineStateSpace):
    """Variational joint filtering. `VJF(state_dim).start()` is ready to learn.

    Args:
        num_inducing: number of radial basis functions, shared by all state dimensions.
        hidden: units of the hidden layer of the recognition network.

    >>> import gpssm
    >>> gpssm.VJF(1, obs_noise=0.01).start()  # of known observation noise, a variance
    <VJF stream: 0 sample(s), 1 state(s)>
    """

    num_inducing: int = 40
    _: KW_ONLY
    hidden: int = 20
    name: str = "VJF"

    counts: ClassVar = {"num_inducing": 1, "hidden": 1}

    def initial_state(self, outputs: NDArray, inputs: NDArray) -> VJFState:
        """Nothing but the units of the first samples is known."""
        units = self.units(outputs, inputs)
        dx, dy, dc = self.state_dim, outputs.shape[1], inputs.shape[1]
        k, num, d = len(units.steps), self.num_inducing, dx + dc
        step = np.sqrt(units.steps) / units.scale[:k]
        # The network starts as the least-squares inverse of the emission, from innovations in standard deviations.
        slope = units.emission.matrix
        if slope is None:
            slope = jax.jacobian(lambda x: units.emission(x[None])[0])(jnp.asarray(units.shift[:dx]))
        output = np.sqrt(units.obs_noise)
        gain = (np.linalg.pinv(np.asarray(slope)) * output)[:k] / units.scale[:k, None]
        site = np.linalg.norm(gain, axis=1)
        shown = site > 1e-6 * np.max(site)
        site = np.where(shown, site, step)
        # A state that no output shows starts as a weak memory of innovations, as a velocity would.
        gain = np.where(shown[:, None], gain / site[:, None], dy**-0.5)
        network = MLP.start(jax.random.key(0), (dy + dx + k + dc, self.hidden, 2 * k), last=0.1)
        learned = Learned(
            Recognition(jax.tree.map(host.asarray, network), host.asarray(gain), host.where(shown, 0.0, -2.0)),
            host.log(0.25 * step**2),
            host.log(units.obs_noise * (_FOLLOW if self.obs_noise is None and dy <= k else 1.0)),
            host.zeros((num, d)),
            host.full(d, np.log(_WIDTH)),
        )
        still = host.zeros(sum(host.size(leaf) for leaf in jax.tree.leaves(learned)))
        scales = Scales(*(host.asarray(part) for part in (units.shift, units.scale, step, output, site)))
        return VJFState(
            mean=host.zeros(dx),
            # Where the state was before the first sample is not known; one that no output shows may start anywhere.
            var=host.where(shown, 100.0, 1.0)[np.arange(dx) % k],
            weights=Weights(host.zeros((k, num + dc)), prior(jnp.asarray(step), num + dc)),
            used=host.zeros(num),
            learned=learned,
            adam=(still, still),
            count=host.zeros(()),
            rejected=host.zeros(()),
            scales=scales,
            emission=jax.tree.map(host.asarray, units.emission),
            learn_obs_noise=self.obs_noise is None,
        )

    @staticmethod
    def step(key: Array, state: VJFState, y: Array, c: Array) -> tuple[VJFState, Info]:
        """One sample. Deterministic: moments are taken by cubature, `key` is not used."""
        dx = len(state.mean)
        scales = state.scales
        c = (c - scales.shift[dx:]) / scales.scale[dx:]
        state = inference.place(state, c)
        seen = ~jnp.isnan(y)
        predicted = inference.predict(state, state.learned, c)
        score, distance = inference.log_score(predicted, jnp.exp(state.learned.obs_noise), y)

        verdict = judge(distance, jnp.sum(seen), state.rejected)
        free = predicted._replace(cov=predicted.cov * verdict.freedom)
        site = inference.recognise(state, state.learned, free, y, c)
        trusted = Site(*(part / verdict.doubt for part in site))
        mean, var = inference.product(free.mean, free.cov, trusted)
        weights = inference.least_squares(state.weights, predicted, site)
        before = prior(scales.step, weights.mean.shape[1])
        weights = weights._replace(cov=weights.cov + _FORGET * (before - weights.cov))
        weights = jax.tree.map(lambda new, old: jnp.where(verdict.usual, new, old), weights, state.weights)

        gradient = jax.grad(lambda learned: inference.bound(state, learned, y, c))(state.learned)
        learned, adam = inference.climb(state, gradient, verdict)
        # Where the system has changed, f is wrong: what is wrong with it is noise until it is learned.
        raised = learned.process_noise + verdict.raised(_RAISED)
        learned = inference.bounded(state, learned._replace(process_noise=raised))
        new = replace(
            state,
            mean=mean,
            var=var,
            weights=weights,
            learned=learned,
            adam=adam,
            count=state.count + jnp.where(verdict.seen, 1.0, 0.0),
            rejected=jnp.where(verdict.seen, verdict.rejected, state.rejected),
        )
        output_var = jnp.diagonal(predicted.output_cov) + jnp.exp(state.learned.obs_noise)
        scale = scales.scale[:dx]
        info = Info(
            scales.shift[:dx] + scale * mean, jnp.diag(scale**2 * var), predicted.output, jnp.sqrt(output_var), score
        )
        return new, info

    @staticmethod
    def paths(key: Array, state: VJFState, inputs: Array, num_paths: int) -> tuple[Array, Array]:
        """Each path has its own draw of the state and of W."""
        dx, k, dtype, scales = len(state.mean), len(state.scales.step), inputs.dtype, state.scales
        key_start, key_w, *keys = jax.random.split(key, 5)
        eps = jax.random.normal(key_w, (num_paths, *state.weights.mean.shape), dtype)
        weights = state.weights.mean + jnp.einsum("dfg,ndg->ndf", symmetric_root(state.weights.cov), eps)
        start = state.mean + jnp.sqrt(state.var) * jax.random.normal(key_start, (num_paths, dx), dtype)
        std = jnp.exp(0.5 * state.learned.process_noise)
        # Beyond all centres f is a constant step for ever: paths stay where the stream has been.
        used, centres = state.used[:, None] > 0, state.learned.centres[:, :k]
        low = jnp.minimum(jnp.min(jnp.where(used, centres, jnp.inf), axis=0), state.mean[:k]) - _BEYOND
        high = jnp.maximum(jnp.max(jnp.where(used, centres, -jnp.inf), axis=0), state.mean[:k]) + _BEYOND
        low, high = (edge[np.arange(dx) % k] for edge in (low, high))  # of centres, the past is in differences

        def move(x: Array, c: Array, key: Array) -> Array:
            x = jnp.clip(x, low, high)
            noise = std * jax.random.normal(key, (num_paths, k), dtype)
            h = features(state, state.learned, x, c)
            return with_past(x[:, :k] + jnp.einsum("nf,ndf->nd", h, weights) + noise, x)

        c, obs_noise = (inputs - scales.shift[dx:]) / scales.scale[dx:], jnp.exp(state.learned.obs_noise)
        states, outputs = paths.sample(keys, start, c, move, partial(inference.emit, state), obs_noise, (low, high))
        return scales.shift[:dx] + scales.scale[:dx] * states, outputs

    @staticmethod
    def transition(state: VJFState, x: Array) -> tuple[Array, Array]:
        """f with W integrated out."""
        dx, k, scales = len(state.mean), len(state.scales.step), state.scales
        z = (x - scales.shift) / scales.scale
        h = jax.vmap(lambda row: features(state, state.learned, row[None, :dx], row[dx:])[0])(z)
        mean, var = h @ state.weights.mean.T, jnp.einsum("nf,dfg,ng->nd", h, state.weights.cov, h)
        return x[:, :k] + scales.scale[:k] * mean, scales.scale[:k] ** 2 * var

    @staticmethod
    def process_noise(state: VJFState) -> Array:
        """Variances (k,) as learned so far."""
        log_noise = state.learned.process_noise
        return state.scales.scale[: len(log_noise)] ** 2 * jnp.exp(log_noise)
