"""A step of descent for the rows of a table that a batch takes."""

import numpy as np

import staticgrad as sg

WIDTH, BATCH, RATE = 64, 256, 0.1


def functions(rows: int, libraries: dict) -> dict:
    """Calls that each take a step: ours, JAX's dense, and by hand; PyTorch's."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(rows, WIDTH)).astype(np.float32)
    index = rng.integers(0, rows, BATCH)
    target = rng.normal(size=(BATCH, WIDTH)).astype(np.float32)
    found = {"ours": _ours(table, index, target)}
    if "torch" in libraries:
        found["torch"] = _torch(libraries["torch"], table, index, target)
    if "jax" in libraries:
        jax = libraries["jax"]
        found["jax"] = _jax(jax, table, index, target, by_hand=False)
        found["jax by hand"] = _jax(jax, table, index, target, by_hand=True)
    return found


def _ours(table: np.ndarray, index: np.ndarray, target: np.ndarray):
    with sg.Graph():
        t = sg.parameter(table.copy(), name="table")
        i = sg.input("i", index.shape, "int64")
        y = sg.input("y", target.shape)
        loss = sg.mean((t[i] - y) ** 2)
        updates = [(t, t - RATE * sg.grad(loss, t))]
        f = sg.compile(loss, inputs=[i, y], updates=updates, mode="train")
    return f.bind(i=index, y=target)


def _torch(torch, table: np.ndarray, index: np.ndarray, target: np.ndarray):
    t = torch.nn.Embedding.from_pretrained(
        torch.from_numpy(table.copy()), freeze=False, sparse=True
    )
    optimizer = torch.optim.SGD(t.parameters(), RATE)
    i, y = torch.from_numpy(index), torch.from_numpy(target)

    def step() -> None:
        optimizer.zero_grad()
        ((t(i) - y) ** 2).mean().backward()
        optimizer.step()

    return step


def _jax(jax, table: np.ndarray, index: np.ndarray, target: np.ndarray, by_hand: bool):
    def loss_of_rows(rows, y):
        return ((rows - y) ** 2).mean()

    def step(t, i, y):
        if by_hand:
            loss, g = jax.value_and_grad(loss_of_rows)(t[i], y)
            return loss, t.at[i].add(-RATE * g)
        loss, g = jax.value_and_grad(lambda t: loss_of_rows(t[i], y))(t)
        return loss, t - RATE * g

    compiled = jax.jit(step, donate_argnums=0)
    state = [jax.device_put(table)]
    i, y = jax.device_put(index), jax.device_put(target)

    def run() -> None:
        loss, state[0] = compiled(state[0], i, y)
        loss.block_until_ready()

    return run
