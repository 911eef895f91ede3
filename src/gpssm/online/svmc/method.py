"""SVMC: streaming variational Monte Carlo (Zhao, Nassar, Jordan, Bugallo and Park 2022).

    x_t = x_{t-1} + W h(s_t) + r_t + v_t,   s_t = [x_{t-1}, c_t],   y_t = g(x_t) + e_t     (`gp.basis`)

Particles hold x_t and, in closed form, what their own path has taught them of f: given a path the
rows of W are independent Gaussians, updated by one step of Bayesian linear regression and
integrated out where the next state is weighed. The next state comes from a proposal r(x_t | x_{t-1},
y_t) with a network in it, which climbs the filtering bound log sum_i w_i, one step a sample.

What the paper leaves open, or was chosen otherwise:

- The network moves and stretches the Gaussian p(x_t | x_{t-1}, y_t) of a linearised g, in its own
  coordinates, and starts at no change. Behind a linear g nothing is left for it to learn. Its gradient is
  the doubly reparameterised one (Tucker et al. 2019), which does not fade with many particles.
- Ancestors are drawn systematically, when fewer than half of the particles count, and with the sample
  known: the same Gaussian tells how well each particle has predicted it (Pitt and Shephard 1999).
- What the authors give by hand is learned. Q and R climb the log-density of the samples, whose gradient
  goes through time: the derivatives of x and of the weight are carried by every particle. Length scales and
  amplitude climb the same with the past as it is.
- Inducing inputs are placed where the stream goes, as by OEnVI. f has a linear part.
- The weights diffuse, as in the paper, but hardly, unless the system is seen to change.
- A sample that is missing teaches nothing of f. An outlier is trusted less; several in a row are a jump.
"""

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.filters.augmented import with_past
from gpssm.filters.ensemble import with_inputs
from gpssm.filters.particle import systematic, weighted_moments
from gpssm.gp.basis import Basis
from gpssm.models.emission import LinearEmission
from gpssm.numerics.linalg import symmetric_root
from gpssm.numerics.networks import MLP
from gpssm.online import paths
from gpssm.online.base import Info, OnlineStateSpace, host, running_spread
from gpssm.online.outliers import judge
from gpssm.online.svmc import adaptation, filtering
from gpssm.online.svmc.filtering import Adapted, KernelParameters, Moved, NoiseParameters, Particles, SVMCState
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.precision import double_precision

NDArray = np.ndarray

# Start values in units of the states' spread (length scale) and of the mean square of their steps (variances).
_LENGTHSCALE, _AMPLITUDE, _PROCESS_NOISE = 1.0, 4.0, 0.05
_HIDDEN = 16  # units of the network
_FAR = 10.0  # standard deviations of all states so far: no forecast goes farther
_RESAMPLE = 0.5  # share of the particles that must count
_LARGEST = 1e4  # multiple of the distance of an outlier that counts
_STEEP = 100.0  # that the derivative of a log-weight is at most


@saved
@dataclass(frozen=True)
class SVMC(OnlineStateSpace):
    """SVMC with everything a user may want to choose. `SVMC(state_dim).start()` is ready to learn.

    Args:
        num_inducing: budget M of inducing inputs, shared by all state dimensions.
        num_particles: number N of particles.

    >>> import gpssm
    >>> gpssm.SVMC(1, num_particles=200).start(seed=1)
    <SVMC stream: 0 sample(s), 1 state(s)>
    """

    num_inducing: int = 40
    _: KW_ONLY
    num_particles: int = 100
    name: str = "SVMC"

    counts: ClassVar = {"num_inducing": 1, "num_particles": 4}

    @double_precision
    def initial_state(self, outputs: NDArray, inputs: NDArray) -> SVMCState:
        """All particles alike; nothing but the units of the first samples is known."""
        units = self.units(outputs, inputs)
        steps, shift, scale = map(host.asarray, (units.steps, units.shift, units.scale))
        num, dx, rows, dy = self.num_particles, self.state_dim, len(steps), outputs.shape[1]
        width = self.num_inducing + len(scale) + 1
        linear = host.where(host.arange(width) < self.num_inducing, 0.0, filtering.LINEAR**2)
        sizes = (dx + inputs.shape[1] + rows, _HIDDEN, 2 * rows)
        learned = Adapted(
            KernelParameters(host.log(_LENGTHSCALE * scale), host.log(_AMPLITUDE * steps)),
            NoiseParameters(host.log(_PROCESS_NOISE * steps), host.log(units.obs_noise)),
            jax.tree.map(host.asarray, MLP.start(jax.random.key(0), sizes, last=0.0)),
        )
        emission = units.emission
        if isinstance(emission, LinearEmission):
            emission = LinearEmission(emission.weight[:, :rows], emission.bias)
        return SVMCState(
            particles=Particles(
                host.tile(shift[:dx], (num, 1)),
                host.full(num, -np.log(num)),
                host.zeros((num, rows, width)),
                host.tile(steps[:, None, None] * host.diag(linear), (num, 1, 1, 1)),
                host.zeros((num, rows + dy, dx)),
                host.zeros((num, rows + dy)),
            ),
            basis=Basis.empty(self.num_inducing, shift, scale),
            learned=learned,
            adam=(jax.tree.map(host.zeros_like, learned), jax.tree.map(host.zeros_like, learned)),
            count=host.zeros(()),
            rejected=host.zeros(()),
            # Where the state was before the first sample is not known.
            loose=100.0 * scale[:rows] ** 2,
            spread=(shift[:dx], scale[:dx] ** 2),
            unit=steps,
            obs_unit=host.asarray(units.obs_noise),
            emission=jax.tree.map(host.asarray, emission),
            learn_obs_noise=self.obs_noise is None,
        )

    @staticmethod
    def step(key: Array, state: SVMCState, y: Float[Array, " dy"], c: Float[Array, " dc"]) -> tuple[SVMCState, Info]:
        """One sample: place an inducing input, predict, choose ancestors, propose, weigh, learn."""
        key_ancestors, key_x = jax.random.split(key)
        seen = ~jnp.isnan(y)
        learns = jnp.any(seen)
        noise = state.learned.noise
        particles, f = filtering.place(state, state.learned.kernel.expand(state.basis), c)
        moved = filtering.move(particles, f, noise, c)
        loosened = moved._replace(variance=moved.variance + state.loose)

        conditioned = filtering.condition(state, loosened, noise.obs, y)
        weight = jax.nn.softmax(particles.log_weight)
        predicted, predicted_cov = weighted_moments(conditioned.expected, weight, conditioned.spread)
        predicted_cov = predicted_cov + jnp.diag(jnp.exp(noise.obs))
        log_score = jnp.where(learns, jax.nn.logsumexp(particles.log_weight + conditioned.log_density), 0.0)

        verdict = judge(_distance(y - predicted, predicted_cov, seen), jnp.sum(seen), state.rejected, _LARGEST)
        log_obs_noise = noise.obs + jnp.log(verdict.doubt)
        free = moved._replace(variance=(moved.variance + jnp.where(learns, state.loose, 0.0)) * verdict.freedom)
        conditioned = filtering.condition(state, free, log_obs_noise, y)
        log_weight = jax.nn.log_softmax(particles.log_weight + conditioned.log_density)
        ancestors, log_weight = _ancestors(key_ancestors, log_weight)
        origin, of = jax.tree.map(lambda leaf: leaf[ancestors], (free, conditioned))
        read = filtering.readable(state, with_inputs(particles.x[ancestors], c), of)
        eps = jax.random.normal(key_x, origin.mean.shape, y.dtype)

        def bound(network: MLP) -> tuple[Array, tuple[Array, Array]]:
            """The bound, through the draws only: that is what makes its gradient the doubly reparameterised one."""
            x, z = filtering.propose(network, read, of, eps)
            misfit = jnp.where(seen, y - state.emission(filtering.heard(state, x)), 0.0) ** 2 / jnp.exp(log_obs_noise)
            target = jnp.sum(misfit, axis=1) + jnp.sum((x - origin.mean) ** 2 / origin.variance, axis=1)
            # Relative to what the choice of the ancestor has counted already; zero behind a linear g.
            log_ratio = 0.5 * (of.distance - target) - filtering.log_proposal(state.learned.proposal, read, z)
            weights = jax.lax.stop_gradient(jax.nn.softmax(log_weight + log_ratio))
            return len(x) * jnp.sum(weights**2 * log_ratio), (x, log_ratio)

        proposal_gradient, (new, log_ratio) = jax.grad(bound, has_aux=True)(state.learned.proposal)
        log_weight, new = jax.nn.log_softmax(log_weight + log_ratio), filtering.heard(state, new)

        noise_gradient, weight_slope = adaptation.noise_gradient(state, particles, loosened, y, verdict.usual)

        def draw(origin: Moved, log_noise: Array) -> Array:
            of = filtering.condition(state, origin, log_noise, y)
            return filtering.propose(state.learned.proposal, read, of, eps)[0]

        slope = adaptation.push(draw, origin, log_obs_noise)
        # Before the first sample there was no past: it is taken to have been the same.
        dx, rows = particles.x.shape[1], new.shape[1]
        first = jnp.any(state.loose > 0) & learns
        x = with_past(new, jnp.where(first, new[:, np.arange(dx) % rows], particles.x[ancestors]))
        x_slope = jax.vmap(with_past, in_axes=1, out_axes=1)(slope, particles.x_slope[ancestors])
        limit = 10.0 * jnp.sqrt(state.spread[1])
        weight, weight_slope = jnp.exp(log_weight), weight_slope[ancestors]

        def kernel_gradient() -> KernelParameters:
            return adaptation.kernel_gradient(state, particles, f.basis, free, y, c)

        learned, adam = adaptation.learn(state, noise_gradient, proposal_gradient, kernel_gradient, verdict)
        state_mean, state_cov = weighted_moments(x, weight)
        spread = running_spread(state.spread, state_mean, state.count, learns)
        updated = replace(
            state,
            particles=Particles(
                x,
                log_weight,
                *filtering.regress(particles, ancestors, origin, new, filtering.prior(state, f), verdict),
                jnp.clip(x_slope, -limit, limit),
                jnp.clip(weight_slope - weight @ weight_slope, -_STEEP, _STEEP),
            ),
            basis=f.basis,
            learned=adaptation.bounded(state, learned, spread[1]),
            adam=adam,
            count=state.count + jnp.where(learns, 1.0, 0.0),
            rejected=verdict.rejected,
            loose=jnp.where(learns, 0.0, state.loose),
            spread=spread,
        )
        return updated, Info(state_mean, state_cov, predicted, jnp.sqrt(jnp.diagonal(predicted_cov)), log_score)

    @staticmethod
    def paths(key: Array, state: SVMCState, inputs: Array, num_paths: int) -> tuple[Array, Array]:
        """Each path follows a particle, with a draw of its W."""
        key_start, key_w, *keys = jax.random.split(key, 5)
        particles, rows, dx, dtype = state.particles, len(state.unit), state.particles.x.shape[1], inputs.dtype
        weight = jax.nn.softmax(particles.log_weight)
        chosen = systematic(weight, jax.random.uniform(key_start, (), weight.dtype), num_paths)
        eps = jax.random.normal(key_w, (num_paths, *particles.mean.shape[1:]), dtype)
        root = symmetric_root(particles.cov)[chosen]
        weights = particles.mean[chosen] + jnp.einsum("nkfg,nkg->nkf", root, eps)
        f, process_noise = state.learned.kernel.expand(state.basis), jnp.exp(state.learned.noise.process)
        # Far from all that was seen the linear part knows nothing, and some draws of it are unstable.
        centre, far = state.spread[0][:rows], _FAR * jnp.sqrt(state.spread[1][:rows])
        low, high = centre - far, centre + far

        def step(x: Array, c: Array, key: Array) -> Array:
            return with_past(jnp.clip(paths.step(f, weights, process_noise, x, c, key), low, high), x)

        past = (0, dx - rows)
        within = jnp.pad(low, past, constant_values=-jnp.inf), jnp.pad(high, past, constant_values=jnp.inf)
        obs_noise = jnp.exp(state.learned.noise.obs)
        return paths.sample(
            keys, particles.x[chosen], inputs, step, lambda x: state.emission(x[:, :rows]), obs_noise, within
        )

    @staticmethod
    def transition(state: SVMCState, x: Array) -> tuple[Array, Array]:
        """f with W integrated out, averaged over the particles."""
        particles, weight = state.particles, jax.nn.softmax(state.particles.log_weight)
        moments = jax.vmap(weighted_moments, in_axes=(1, None, 1))(particles.mean, weight, particles.cov)
        return state.learned.kernel.expand(state.basis).moments(x, *moments)

    @staticmethod
    def process_noise(state: SVMCState) -> Array:
        """Variances (k,) as learned so far."""
        return jnp.exp(state.learned.noise.process)


def _distance(residual: Array, cov: Array, seen: Array) -> Array:
    """Squared Mahalanobis length of what was seen."""
    std = jnp.sqrt(jnp.diagonal(cov))
    both = seen[:, None] & seen
    correlation = jnp.where(both, cov / std[:, None] / std, jnp.eye(len(std), dtype=cov.dtype))
    scaled = jnp.where(seen, residual / std, 0.0)
    return scaled @ jnp.linalg.solve(correlation, scaled)


def _ancestors(key: Array, log_weight: Array) -> tuple[Array, Array]:
    """Drawn again where too few particles count; else everyone is its own."""
    num, weight = len(log_weight), jnp.exp(log_weight)
    again = jnp.sum(weight**2) * num * _RESAMPLE > 1.0
    drawn = systematic(weight, jax.random.uniform(key, (), weight.dtype), num)
    return jnp.where(again, drawn, jnp.arange(num)), jnp.where(again, -jnp.log(1.0 * num), log_weight)
