"""Examples of gradients, hooks and loops beside PyTorch, from the same start.

Same initial values, same data in the same order; what is compared are losses step by
step, gradients and trained values. Tolerances stand at each comparison: float32 sums in
another order differ by about 1e-6, and training multiplies that.
"""

import control_flow
import derivatives
import hooks_and_functions
import memory
import missing_gradient
import numpy as np
import pytest
import regression
import sinc
import swell
import vanishing
from torch_peers import (
    QUIET,
    STEPS,
    F,
    carried,
    cut,
    descended,
    leaves,
    linear,
    near,
    torch,
    twins,
    values,
)

import staticgrad as sg

# ---- regression, vanishing, swell ----------------------------------------------------


def test_regression():
    parameters, loss, _ = regression.build()
    x, y = regression.make_data(100)
    peer = twins(parameters)
    trainer = sg.Trainer(loss, sg.optim.SGD(regression.RATE))
    history = trainer.fit({"x": x, "y": y}, epochs=200, **QUIET)
    losses = descended(
        torch.optim.SGD(peer.values(), regression.RATE),
        lambda x, y: F.mse_loss(linear(peer, "2.", F.relu(linear(peer, "0.", x))), y),
        cut({"x": x, "y": y}, 100, epochs=200),
    )
    near(history["loss"], losses, rtol=1e-3)
    near(values(parameters), peer, rtol=1e-3, atol=1e-4)


def sigmoid_chain(peer, residual, x):
    h = x
    for number in range(vanishing.LAYERS):
        new = torch.sigmoid(linear(peer, f"layer{number:02}.", h))
        h = h + new / vanishing.LAYERS if residual else new
    return linear(peer, "out.", h)[:, 0]


@pytest.mark.parametrize("residual", [False, True])
def test_vanishing(residual):
    loss = vanishing.network(residual)
    data = vanishing.data()
    peer = twins(leaves(loss))
    report = sg.gradient_report(loss, data)

    def misfit(x, y):
        return F.mse_loss(sigmoid_chain(peer, residual, x), y.float())

    misfit(**next(cut(data, 64))).backward()
    for name, norm in report.norms.items():
        grads = [p.grad for n, p in peer.items() if n.startswith(f"{name}.")]
        near(norm, torch.cat([g.ravel() for g in grads]).norm(), rtol=1e-3, atol=0)
    history = sg.Trainer(loss, sg.optim.SGD(0.05)).fit(data, epochs=100, **QUIET)
    optimizer = torch.optim.SGD(peer.values(), 0.05)
    near(history["loss"], descended(optimizer, misfit, cut(data, 64, 100)), rtol=1e-3)


def test_exploding_and_collapsing():
    data = vanishing.data()
    x = torch.tensor(data["x"])
    report = sg.gradient_report(vanishing.exploding(), {"x": abs(data["x"])})
    width, layers = vanishing.WIDTH, vanishing.LAYERS
    weights = [torch.full((width, width), 0.5, requires_grad=True)] * layers
    weights = [w.detach().clone().requires_grad_() for w in weights]
    h = abs(x)
    for w in weights:
        h = F.relu(h @ w)
    h.mean().backward()
    norms = [w.grad.double().norm() for w in weights]
    near(list(report.norms.values()), norms, rtol=1e-4)
    loss, y, matrix = vanishing.collapsing()
    chain = list(twins(leaves(loss)).values())
    found, product = sg.compile([y, matrix])(data["x"])
    near(product, chain[2] @ chain[1] @ chain[0], rtol=1e-3)
    near(found, x @ (chain[2] @ chain[1] @ chain[0]).T, rtol=1e-3, atol=1e-5)


def test_swell():
    x, y = swell.repeated_squares(20)
    z = torch.tensor(1.0001, requires_grad=True)
    power = z
    for _ in range(20):
        power = power * power
    power.backward()
    found = sg.compile([y, sg.grad(y, x)])()
    assert np.isfinite(found[1]) == bool(torch.isfinite(z.grad))
    near(found, [power.item(), z.grad.item()], rtol=1e-4)
    wrt, loss = swell.deep_network(30)
    h = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    grads = sg.compile(sg.grad(loss, wrt))(h)
    peer = [torch.tensor(p.value, requires_grad=True) for p in wrt]
    h = torch.tensor(h)
    for weight, bias in zip(peer[::2], peer[1::2], strict=True):
        h = torch.tanh(F.linear(h, weight, bias))
    (h * h).mean().backward()
    for found, p in zip(grads, peer, strict=True):
        near(found, p.grad, rtol=1e-3, atol=1e-9)


# ---- missing_gradient, hooks_and_functions -------------------------------------------


def test_missing_gradient():
    w, v = torch.tensor([2.0, 3.0]), torch.tensor([0.4, 1.6])
    w.requires_grad_()
    v.requires_grad_()
    h = w * 3
    rounded = v + (v.round() - v).detach()
    wanted = {
        "intermediate": torch.autograd.grad((h * h).sum(), h),
        "no_grad": torch.autograd.grad((w.detach() * v).sum(), v),
        "non-scalar": torch.autograd.grad(w * w, w, torch.ones(2)),
        "rounded": torch.autograd.grad((rounded**2).sum(), v),
    }
    mine = sg.parameter([2.0, 3.0], name="w"), sg.parameter([0.4, 1.6], name="v")
    near(
        sg.compile(missing_gradient.remedies(*mine))(),
        {name: gradient for name, (gradient,) in wanted.items()},
    )


class Softsign(torch.autograd.Function):
    """The same forward and backward as in the example."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tensor(hooks_and_functions.softsign.py_func(x.numpy(), 2.0))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 / (1 + x.abs()) ** 2


class Smoothed(torch.autograd.Function):
    """The example's compiled functions, called by PyTorch."""

    @staticmethod
    def forward(ctx, x):
        y = torch.tensor(hooks_and_functions.smoothed(x.numpy()))
        ctx.save_for_backward(y, x)
        return y

    @staticmethod
    def backward(ctx, g):
        y, x = ctx.saved_tensors
        arrays = (t.numpy() for t in (g, y, x))
        return torch.tensor(hooks_and_functions.smoothed_backward(*arrays))


def test_own_functions():
    start = hooks_and_functions.X[0]
    x = sg.parameter(start, name="x")
    mine = (
        hooks_and_functions.softsign_op(x, scale=2.0),
        hooks_and_functions.smoothed_op(x),
        hooks_and_functions.exp_op(x),
    )
    found = sg.compile([sg.grad(sg.sum(y**3), x) for y in mine])()
    for gradient, function in zip(
        found, (Softsign.apply, Smoothed.apply, torch.exp), strict=True
    ):
        z = torch.tensor(start, requires_grad=True)
        (function(z) ** 3).sum().backward()
        near(gradient, z.grad, rtol=1e-12)


def test_hooks_on_tensors():
    def gradient(function, *hooks):
        x = torch.tensor([1.0, -2.0], requires_grad=True)
        y = x * 1
        for hook in hooks:
            y.register_hook(hook)
        function(y).sum().backward()
        return x.grad

    seen = []
    wanted = {
        "replaced": gradient(
            lambda y: y * y, seen.append, lambda g: 10 * g, lambda g: g.clamp(-5, 5)
        ),
        "bounded": gradient(lambda y: 3 * y, lambda g: g.clamp(max=0.1)),
        "reversed": gradient(lambda y: 3 * y, lambda g: -g),
        "finite": gradient(torch.sqrt, torch.nan_to_num),
    }
    x = sg.parameter([1.0, -2.0], name="x")
    changed = sg.compile(hooks_and_functions.changed_gradients(x))()
    near(changed, {**wanted, "seen": seen[0]})


def test_hooks_on_modules():
    model, loss, features, coming_back = hooks_and_functions.hooked_network()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)).astype(np.float32)
    data = {"x": x, "y": np.sin(x[:, 0])}
    nn = torch.nn
    peer = carried(model, nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    wanted = {"means": [], "norms": []}
    peer[0].register_forward_hook(
        lambda module, args, result: wanted["means"].append(result.mean().item())
    )
    peer[0].register_full_backward_hook(
        lambda module, ins, outs: wanted["norms"].append(outs[0].norm().item())
    )
    trainer = sg.Trainer(loss, sg.optim.Adam(1e-2))
    with sg.taps():
        means = trainer.tap(sg.mean(features), record=20)
        norms = trainer.tap(sg.linalg.norm(coming_back), record=20)
        watch = trainer.watch_gradients()
        history = trainer.fit(data, epochs=5, batch_size=50, **STEPS)
    losses = descended(
        torch.optim.Adam(peer.parameters(), 1e-2),
        lambda x, y: F.mse_loss(peer(x.requires_grad_())[:, 0], y),
        cut(data, 50, 5),
    )
    near(history["loss"], losses, rtol=1e-4)
    near(means.values, wanted["means"], rtol=1e-3, atol=1e-5)
    near(norms.values, wanted["norms"], rtol=1e-3)
    near(watch["2.bias"]["norm"][-1], peer[2].bias.grad.norm(), rtol=1e-3)


def test_a_penalty_on_gradients_is_derived_again():
    critic, loss = hooks_and_functions.slopes_of_one()
    nn = torch.nn
    peer = carried(critic, nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)))
    data = {"x": np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)}
    history = sg.Trainer(loss, sg.optim.Adam(2e-2)).fit(data, epochs=100, **QUIET)

    def penalty(x):
        x.requires_grad_()
        (slope,) = torch.autograd.grad(peer(x).sum(), x, create_graph=True)
        return ((slope.square().sum(1).sqrt() - 1) ** 2).mean()

    trained = [p for n, p in peer.named_parameters() if n != "2.bias"]
    losses = descended(torch.optim.Adam(trained, 2e-2), penalty, cut(data, 64, 100))
    near(history["loss"], losses, rtol=2e-3, atol=1e-5)


# ---- control_flow, sinc --------------------------------------------------------------


@pytest.mark.parametrize("value", [4.0, -1.0])
def test_branches(value):
    x, w = sg.input("x", ()), sg.parameter(2.0, name="w")
    y = control_flow.piecewise(x, w)
    z = torch.tensor(value, requires_grad=True)
    v = torch.tensor(2.0, requires_grad=True)
    peer = v * torch.sqrt(z) if value > 0 else torch.log(-z)
    wanted = torch.autograd.grad(peer, [z, v], allow_unused=True)
    found = sg.compile([y, *sg.grad(y, [x, w])])(x=value)
    near(found, [peer.item(), *(0.0 if g is None else g.item() for g in wanted)])


def torch_track(length, steps):
    angle, speed = torch.tensor(1.0).double(), torch.tensor(0.0).double()
    angles = []
    for _ in range(steps):
        speed = speed - 0.002 * 9.81 / length * torch.sin(angle)
        angle = angle + 0.002 * speed
        angles.append(angle)
    return torch.stack(angles)


def test_pendulum():
    length, loss, few = control_flow.misfit(200)
    peer = torch.tensor(1.6, dtype=torch.float64, requires_grad=True)
    target = torch_track(torch.tensor(1.3).double(), 200)
    wanted = F.mse_loss(torch_track(peer, 200), target)
    wanted.backward()
    found = sg.compile([loss, sg.grad(loss, length), sg.grad(few, length)])()
    near(found, [wanted.item(), peer.grad.item(), peer.grad.item()], rtol=1e-6)
    history = sg.Trainer(loss, sg.optim.Adam(0.02)).fit({}, epochs=15, **QUIET)
    losses = descended(
        torch.optim.Adam([peer], 0.02),
        lambda: F.mse_loss(torch_track(peer, 200), target),
        [{}] * 15,
    )
    near(history["loss"], losses, rtol=1e-5, atol=1e-12)


def test_root():
    a = sg.input("a", (), "float64")
    x = control_flow.solved(a)
    b = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    z, moved = torch.tensor(1.0).double(), torch.tensor(1.0)
    z = b
    while moved > 1e-13:
        new = z - (z**3 + z - b) / (3 * z**2 + 1)
        z, moved = new, abs(new - z)
    z.backward()
    near(sg.compile([x, sg.grad(x, a)])(3.0), [z.item(), b.grad.item()], rtol=1e-9)


def test_rows():
    x, n = sg.input("x", ("rows",)), sg.input("n", ("rows",), "int64")
    y = sg.vmap(control_flow.grown)(x, n)
    start, counts = np.float32([1, 1, 3]), [0, 3, 5]
    z = torch.tensor(start, requires_grad=True)
    doubled = [v * 2**count for v, count in zip(z, counts, strict=True)]
    peer = torch.stack([torch.tensor(10.0) if v > 10 else v for v in doubled])
    peer.sum().backward()
    found, slope = sg.compile([y, sg.grad(sg.sum(y), x)], inputs=[x, n])(start, counts)
    near(found, peer)
    near(slope, z.grad)


def test_lstm():
    model, head, loss = control_flow.remembering()
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(512, 8, 1)).astype(np.float32)}
    data["y"] = data["x"][:, 0, 0]
    lstm = carried(model, torch.nn.LSTM(1, 12, batch_first=True))
    last = carried(head, torch.nn.Linear(12, 1))
    history = sg.Trainer(loss, sg.optim.Adam(0.02)).fit(
        data, epochs=3, batch_size=64, **STEPS
    )
    optimizer = torch.optim.Adam([*lstm.parameters(), *last.parameters()], 0.02)
    losses = descended(
        optimizer,
        lambda x, y: F.mse_loss(last(lstm(x)[0][:, -1])[:, 0], y),
        cut(data, 64, 3),
    )
    near(history["loss"], losses, rtol=1e-3)


def torch_sinc(x):
    zero = x == 0
    return torch.where(zero, 1.0, torch.sin(x) / torch.where(zero, 1.0, x))


def test_sinc():
    at = np.float64([0.0, 0.5, -3.0])
    x, z = sg.parameter(at, name="x"), torch.tensor(at, requires_grad=True)
    slope = sg.compile(sg.grad(sg.sum(sinc.sinc(x)), x))()
    torch_sinc(z).sum().backward()
    near(slope, z.grad, rtol=1e-12)
    low, high, loss = sinc.layer()
    data = sinc.filtered_noise()
    peer = [torch.tensor(p.value, requires_grad=True) for p in (low, high)]
    history = sg.Trainer(loss, sg.optim.Adam(2e-3)).fit(data, epochs=60, **QUIET)
    time = torch.arange(sinc.TAPS) - (sinc.TAPS - 1) // 2
    window = torch.tensor(np.hamming(sinc.TAPS), dtype=torch.float32)

    def loss_of(x, y):
        passes = [2 * f * torch_sinc(2 * np.pi * f * time) for f in peer]
        taps = (passes[1] - passes[0]) * window
        return F.mse_loss(F.conv1d(x[:, None], taps.flip(0)[None, None])[:, 0], y)

    losses = descended(torch.optim.Adam(peer, 2e-3), loss_of, cut(data, 32, 60))
    near(history["loss"], losses, rtol=1e-3)
    near([low.value, high.value], [p.item() for p in peer], rtol=1e-4)


# ---- derivatives, memory -------------------------------------------------------------


def test_derivatives():
    autograd = torch.autograd.functional
    at, one = torch.tensor([2.0, 3.0]), torch.tensor([1.0, 0.0])
    x = sg.input("x", (2,))

    def y(v):
        return torch.stack([v[0] ** 2, v[1] * v[0]])

    near(
        sg.compile(derivatives.directions(x))(at.numpy()),
        {
            "jacobian": autograd.jacobian(y, at),
            "forward": autograd.jvp(y, at, one)[1],
            "reverse": autograd.vjp(y, at, one.flip(0))[1],
            "seeded": autograd.vjp(y, at, one.flip(0))[1],
        },
    )
    hessian = autograd.hessian(lambda v: (v**3).sum(), at)
    near(
        sg.compile(derivatives.orders(x))(at.numpy()),
        {"first": 3 * at**2, "second": hessian.sum(0), "hessian": hessian},
    )
    w, b = torch.tensor(1.0, requires_grad=True), torch.tensor(0.0, requires_grad=True)
    optimizer = torch.optim.SGD([w, b], 0.01)
    descended(optimizer, lambda: (w * 2 + b - 10) ** 2, [{}])
    found = sg.compile(derivatives.first_steps())()
    near([found["dL/dw"], found["dL/db"]], [w.grad.item(), b.grad.item()])
    near([found["new w"], found["new b"]], [w.item(), b.item()])
    z = torch.tensor([0.5, -1.0], requires_grad=True)
    (torch.tanh(z) + torch.tanh(z) * torch.exp(z)).sum().backward()
    near(sg.compile(derivatives.shared(x))(z.detach().numpy())[0], z.grad)


def test_recomputing_leaves_the_gradients():
    data = np.random.default_rng(0).normal(size=(memory.SAMPLES, memory.WIDTH))
    data = data.astype(np.float32)
    with sg.Graph(seed=0):
        x = sg.input("x", (memory.SAMPLES, memory.WIDTH))
        parameters, loss = memory.network(x, dropout=0.0)
    peer = [torch.tensor(p.value, requires_grad=True) for p in parameters]
    h = torch.tensor(data)
    for weight, bias in zip(peer[::2], peer[1::2], strict=True):
        h = torch.tanh(F.linear(h, weight, bias))
    (h * h).mean().backward()
    for options in ({}, {"checkpointed": True}, {"budget": "900KB"}):
        _, grads = memory.gradients(**options, dropout=0.0)(data)
        for found, p in zip(grads, peer, strict=True):
            near(found, p.grad, rtol=1e-3, atol=1e-7)
