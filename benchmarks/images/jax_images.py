"""JAX: jitted calls on arrays that are there, in both layouts."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.images.cases import Case

ORDERS = {"first": (0, 1, 2, 3), "last": (0, 2, 3, 1)}
KERNELS = {"first": ("NCHW", "OIHW"), "last": ("NHWC", "HWIO")}


def ways(case: Case, what: str, threads: int) -> dict:
    """Both layouts; the number of threads is that of the process."""
    return {layout: _way(case, what, layout) for layout in ORDERS}


def _way(case: Case, what: str, layout: str) -> tuple:
    order, (images, kernels) = ORDERS[layout], KERNELS[layout]
    arrays = case.arrays()
    x, g = (jnp.asarray(arrays[name].transpose(order)) for name in "xg")
    of_kernels = (2, 3, 1, 0) if layout == "last" else (0, 1, 2, 3)
    w = jnp.asarray(arrays["w"].transpose(of_kernels))

    def conv(x, w):
        return jax.lax.conv_general_dilated(
            x, w, (case.stride,) * 2, [(case.padding,) * 2] * 2,
            dimension_numbers=(images, kernels, images),
            feature_group_count=case.groups,
        )  # fmt: skip

    def pool(x):
        window = [2 if axis >= 2 else 1 for axis in order]
        return jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, tuple(window), tuple(window), "VALID"
        )

    def pool_both(x, g):
        y, back = jax.vjp(pool, x)
        return y, back(g)[0]

    functions = {
        "forward": (lambda x, w: (conv(x, w),), (x, w)),
        "input": (
            lambda g, w: jax.linear_transpose(lambda x: conv(x, w), x)(g),
            (g, w),
        ),
        "weight": (
            lambda x, g: jax.linear_transpose(lambda w: conv(x, w), w)(g),
            (x, g),
        ),
        "pool": (lambda x: (pool(x),), (x,)),
        "pool + gradient": (pool_both, (x, g)),
    }
    function, given = functions[what]
    jitted = jax.jit(function)

    def run_many(count: int) -> None:
        for _ in range(count):
            found = jitted(*given)
        jax.block_until_ready(found)

    def result() -> list[np.ndarray]:
        back = of_kernels if what == "weight" else order
        inverse = np.argsort(back)
        return [np.asarray(y).transpose(inverse) for y in jitted(*given)]

    return run_many, result
