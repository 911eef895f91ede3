"""CPU seconds of one fit with hidden states, after compilation: `python benchmarks/fit.py`.

Two tanks in a row that drain through holes, the level of the second one measured: 1250 and 2000 samples, defaults.
What is timed is everything that `EnVI("auto").fit` does, less what the compiler took, in a process pinned to one core.
"""

from gpssm.parallel import runtime

runtime.prepare()

import time

import numpy as np

import gpssm


def tanks(length: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Level of the second tank (T, 1) and the pump's voltage (T, 1)."""
    rng = np.random.default_rng(seed)
    voltage = np.repeat(rng.uniform(0.5, 4.0, length // 20 + 1), 20)[:length]
    levels, upper, lower = [], 2.0, 2.0
    for u in voltage:
        upper = max(upper + 0.15 * u - 0.25 * np.sqrt(upper), 0.0)
        lower = max(lower + 0.25 * np.sqrt(upper) - 0.3 * np.sqrt(lower), 0.0)
        levels.append(lower + 0.05 * rng.standard_normal())
    return np.asarray(levels)[:, None], voltage[:, None]


def main() -> None:
    for length, limit in ((1250, 20), (2000, 40)):
        outputs, inputs = tanks(length + 500)
        clock = time.process_time()
        fitted = gpssm.EnVI("auto").fit(outputs[:length], inputs[:length], seed=0)
        seconds = time.process_time() - clock - fitted.history.compile_seconds
        error = np.sqrt(np.mean((fitted.forecast(500, inputs[length:]).mean - outputs[length:]) ** 2))
        compiled = fitted.history.compile_seconds
        print(
            f"{length} samples, {fitted.state_dim} states: {seconds:.1f} s of CPU (at most {limit}), "
            f"{compiled:.1f} s of compilation; free run of 500 samples: {error / outputs.std():.3f} of the spread"
        )


if __name__ == "__main__":
    main()
