"""Where programs are compiled and run, how often, and what they draw."""

import gc
import os
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gpssm.numerics.draws import draw
from gpssm.plumbing import threads
from gpssm.plumbing.compilation import AHEAD, CompileClock, bucket, jit

TEST_CORES = {int(core) for core in os.environ["GPSSM_TEST_CORES"].split(",")}


def run_on(cores: set[int], code: str) -> str:
    """What a process that may use these cores prints; it compiles everything as a user's does."""
    code = f"import os\nos.sched_setaffinity(0, {cores})\n{code}"
    own = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, env=own)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin")
def test_the_library_computes_on_one_core_of_several_and_gives_them_back() -> None:
    """The hidden states make it run a skeleton, whose factorisations never ended on two cores."""
    code = """
import numpy as np, gpssm
from gpssm.plumbing.threads import named
rng = np.random.default_rng(0)
u = rng.normal(size=(80, 1)); y = np.zeros((80, 1))
for t in range(1, 80): y[t] = 0.8 * y[t - 1] + np.tanh(u[t - 1])
gpssm.EnVI(3, 8, schedule=gpssm.Schedule(max_steps=20, chunk=10)).fit(y, u)
print(len(named("tf_XLAEigen")), len(os.sched_getaffinity(0)))
"""
    assert run_on(TEST_CORES, code) == f"1 {len(TEST_CORES)}"


@pytest.mark.skipif(len(TEST_CORES) < 2, reason="one core is all there is")
def test_whoever_computes_stays_on_one_core_and_compiles_on_all() -> None:
    code = """
from gpssm.plumbing import threads
with threads.one_core():
    first = len(os.sched_getaffinity(0))
    with threads.one_core(), threads.all_cores():
        second = len(os.sched_getaffinity(0))
    third = threads._start().get()
print(first, second, third, len(os.sched_getaffinity(0)), os.environ.get("PJRT_NPROC"))
"""
    assert run_on(TEST_CORES, code) == f"1 {len(TEST_CORES)} 1 {len(TEST_CORES)} None"


def test_a_failure_and_calls_at_once_leave_everything_as_it_was() -> None:
    """Affinity if JAX does not start; and threads of the BLAS, which belong to all threads."""
    code = """
import threading
from unittest import mock
from gpssm.plumbing import threads
with mock.patch.object(threads, "_start", side_effect=RuntimeError):
    try:
        with threads.one_core(): pass
    except RuntimeError:
        failed = len(os.sched_getaffinity(0))
import scipy.linalg
blas, entered, left, found = threads._start(), threading.Event(), threading.Event(), []
before = blas.get()
def first():
    with threads.one_core():
        entered.set(); second_in.wait()
    left.set()
second_in = threading.Event()
def second():
    entered.wait()
    with threads.one_core():
        second_in.set(); left.wait(); found.append(blas.get())
both = [threading.Thread(target=f) for f in (first, second)]
for t in both: t.start()
for t in both: t.join()
print(failed, found[0], blas.get() == before)
"""
    assert run_on(TEST_CORES, code) == f"{len(TEST_CORES)} 1 True"


def test_a_process_may_end_while_it_compiles_ahead() -> None:
    code = """
import jax.numpy as jnp, numpy as np
from gpssm.plumbing.compilation import jit
def slow(x):
    for i in range(100): x = jnp.linalg.cholesky(x @ x.T + (i + 1) * jnp.eye(len(x))) + jnp.sin(x)
    return x
jit(slow, hot=True).ahead(np.ones((30, 30), np.float32))
print("ended")
"""
    assert run_on(TEST_CORES, code) == "ended"


def test_a_pinned_process_stays_where_it_is() -> None:
    before = os.sched_getaffinity(0)
    with threads.one_core():
        assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before


def test_a_program_is_compiled_once_for_every_kind_of_arguments() -> None:
    double = jit(lambda x, *, times: times * x, static_argnames=("times",))
    clock = CompileClock()
    with jax.enable_x64(True):
        for value in (1.0, 2.0):
            np.testing.assert_array_equal(double(np.full(3, value), times=2), np.full(3, 2 * value))
        assert clock.count == 1
        np.testing.assert_array_equal(double(np.ones(3), times=3), np.full(3, 3.0))
        np.testing.assert_array_equal(double(np.ones(4), times=3), np.full(4, 3.0))
    assert clock.count == 3


def test_what_was_compiled_ahead_is_not_compiled_again() -> None:
    slow = jit(lambda x: jnp.sin(x) + 1.0)
    clock = CompileClock()
    with jax.enable_x64(True):
        slow.ahead(np.zeros(5))
        np.testing.assert_allclose(slow(np.zeros(5)), 1.0)  # waits if it is not ready yet
    assert clock.count == 1
    for thread in threading.enumerate():
        if thread.name == AHEAD:
            thread.join(60)
    assert all(thread.name != AHEAD for thread in threading.enumerate())


@pytest.mark.parametrize("collects", [True, False])
def test_compiling_leaves_the_garbage_collector_as_it_was(collects: bool) -> None:
    def failing(x: jax.Array) -> jax.Array:
        seen.append(gc.isenabled())
        raise ValueError("not traced")

    seen: list[bool] = []
    try:
        if not collects:
            gc.disable()
        threads = [threading.Thread(target=jit(lambda x, n=n: x * n), args=(np.zeros(3),)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        with pytest.raises(ValueError, match="not traced"):
            jit(failing)(np.zeros(3))
        assert gc.isenabled() == collects and seen == [False]
    finally:
        gc.enable()


def test_inside_another_program_it_is_part_of_it() -> None:
    inner = jit(lambda x: x + 1.0)
    assert float(jax.jit(lambda x: 2.0 * inner(x))(1.0)) == 4.0


@given(st.integers(1, 10**7))
def test_buckets_are_few_and_hardly_larger(size: int) -> None:
    filled = bucket(size)
    assert size <= filled <= max(4, 1.34 * size) and bucket(filled) == filled


def test_there_are_three_buckets_in_an_octave() -> None:
    assert {bucket(size) for size in range(513, 1025)} == {640, 768, 1024}


def test_draws_of_one_stream_are_normal_uniform_and_independent() -> None:
    """Oracle: Kolmogorov and Smirnov's test of SciPy, at a seed that is not chosen."""
    a, b, c = draw(jax.random.key(0), [(100, 30), (2000,)], [(2500,)], dtype=jnp.float64)
    assert (a.shape, b.shape, c.shape) == ((100, 30), (2000,), (2500,))
    for values, name in ((np.ravel(a), "norm"), (np.ravel(b), "norm"), (np.ravel(c), "uniform")):
        assert stats.kstest(values, name).pvalue > 1e-3
    assert abs(np.corrcoef(np.ravel(a)[:2000], b)[0, 1]) < 0.1
    assert float(c.min()) >= 0.0 and float(c.max()) <= 1.0


def test_nothing_to_draw() -> None:
    (empty,) = draw(jax.random.key(0), [(0, 3)], dtype=jnp.float32)
    assert empty.shape == (0, 3)
