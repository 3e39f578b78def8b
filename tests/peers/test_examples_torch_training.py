"""Examples of training loops and of sampling beside PyTorch, from the same start.

Same initial values, same data in the same order; what is compared are losses step by
step, gradients and trained values. Tolerances stand at each comparison: float32 sums in
another order differ by about 1e-6, and training multiplies that.
"""

import maml
import mixed_precision
import numpy as np
import sampling
import training_features
import wgan_gp
from torch_peers import (
    QUIET,
    STEPS,
    F,
    carried,
    cut,
    descended,
    linear,
    near,
    torch,
    twins,
)

import staticgrad as sg


def falling(steps, warmup):
    """Warm-up and cosine as a factor, for LambdaLR."""

    def factor(t):
        if t < warmup:
            return t / warmup
        return 0.5 * (1 + np.cos(np.pi * min((t - warmup) / (steps - warmup), 1)))

    return factor


# ---- training_features ---------------------------------------------------------------


def line():
    """The start of ``training_features.regression``, and its loss."""
    w, b = torch.zeros(3, requires_grad=True), torch.zeros((), requires_grad=True)
    return [w, b], lambda x, y: ((x @ w + b - y) ** 2).mean()


def test_accumulation_and_its_tail():
    trainer, w = training_features.regression(sg.optim.Adam(0.1), accumulate=4)
    trainer.fit(training_features.DATA, epochs=6, batch_size=7, **QUIET)
    peer, loss_of = line()
    optimizer = torch.optim.Adam(peer, 0.1)
    for _ in range(6):
        parts = list(cut(training_features.DATA, 7))
        for group in (parts[:4], parts[4:8], parts[8:]):
            optimizer.zero_grad()
            for part in group:
                (loss_of(**part) / len(group)).backward()
            optimizer.step()
    near(w.value, peer[0], rtol=1e-4, atol=1e-5)


def test_clipping():
    trainer, w = training_features.recurrence(1.0)
    data = {"x": np.ones(8, np.float32)}
    history = trainer.fit(data, epochs=60, **QUIET)
    peer = torch.tensor(1.5, requires_grad=True)

    def loss_of(x):
        h = x
        for _ in range(12):
            h = h * peer
        return ((h - x) ** 2).mean()

    optimizer = torch.optim.SGD([peer], 0.01)
    losses = descended(optimizer, loss_of, cut(data, 8, 60), clip=1.0)
    near(history["loss"], losses, rtol=2e-3, atol=1e-5)
    near(w.value, peer, rtol=1e-4)


def test_a_step_with_nan_is_skipped():
    x = training_features.X.copy()
    x[33, 1] = np.nan
    data = {"x": x, "y": training_features.Y}
    options = {"on_nonfinite": "skip"}
    trainer, w = training_features.regression(sg.optim.SGD(0.1), **options)
    trainer.fit(data, epochs=5, batch_size=10, **QUIET)
    peer, loss_of = line()
    optimizer = torch.optim.SGD(peer, 0.1)
    batches = [b for b in cut(data, 10, 5) if torch.isfinite(loss_of(**b))]
    assert len(batches) == 30
    descended(optimizer, loss_of, batches)
    near(w.value, peer[0], rtol=1e-4)


def test_schedules():
    trainer, w = training_features.regression(training_features.warming_up(70))
    history = trainer.fit(training_features.DATA, epochs=10, batch_size=10, **QUIET)
    peer, loss_of = line()
    optimizer = torch.optim.SGD(peer, 0.3, momentum=0.8)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, falling(70, 17))
    descended(optimizer, loss_of, cut(training_features.DATA, 10, 10), rate.step)
    near(w.value, peer[0], rtol=1e-4, atol=1e-5)
    assert history["learning_rate"].shape == (10,)


def test_two_optimisers_in_turns():
    trainer, critic, shift, data = training_features.in_turns()
    data = {name: value.astype(np.float32) for name, value in data.items()}
    nn = torch.nn
    peer = carried(critic, nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)))
    moved = torch.zeros(1, requires_grad=True)
    history = trainer.fit(data, batch_size=64, epochs=4, **STEPS)
    of_critic = torch.optim.Adam(peer.parameters(), 0.02)
    of_shift = torch.optim.Adam([moved], 0.02, betas=(0.5, 0.9))
    bce = F.binary_cross_entropy_with_logits
    losses = []
    for batch in cut(data, 64, 4):
        real, made = batch["real"], batch["noise"] + moved
        ones, zeros = torch.ones_like(real), torch.zeros_like(real)
        of_critic.zero_grad()
        first_loss = bce(peer(real), ones) + bce(peer(made.detach()), zeros)
        first_loss.backward()
        of_critic.step()
        of_shift.zero_grad()
        second_loss = bce(peer(made), ones)
        second_loss.backward()
        of_shift.step()
        losses.append((first_loss.item(), second_loss.item()))
    found = [history["critic_loss"], history["generator_loss"]]
    near(np.transpose(found), losses, rtol=1e-3)
    near(shift.value, moved, rtol=1e-3, atol=1e-4)


def test_two_losses():
    step, w = training_features.balanced()
    told = step(training_features.X)
    peer = torch.ones(3, requires_grad=True)
    out = torch.tensor(training_features.X) @ peer
    large, small = (out**2).mean(), 1e-3 * ((out - 1) ** 2).mean()
    (one,) = torch.autograd.grad(large, peer, retain_graph=True)
    (two,) = torch.autograd.grad(small, peer)
    ratio = one.norm() / two.norm()
    near(told["norms"], [one.norm().item(), two.norm().item()])
    near(w.value, peer - 0.05 * (one + ratio * two), atol=1e-5)


# ---- mixed_precision -----------------------------------------------------------------


def test_a_network_on_spirals():
    trainer, parameters = mixed_precision.trainer_of("float32", 10)
    points, arm = mixed_precision.spirals(1024)
    peer = twins(parameters)
    data = {"x": points, "y": arm}
    history = trainer.fit(data, epochs=6, batch_size=128, **STEPS)

    def loss_of(x, y):
        h = x
        for number in (0, 2, 4):
            h = torch.tanh(linear(peer, f"{number}.", h))
        return F.cross_entropy(linear(peer, "6.", h), y)

    optimizer = torch.optim.Adam(peer.values(), 0.01)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, falling(80, 20))
    batches = cut(data, 128, 6)
    losses = descended(optimizer, loss_of, batches, rate.step, clip=1.0)
    near(history["loss"], losses, rtol=1e-3)
    for name in ("bfloat16", "float16"):  # two steps at the rate 0 and one more
        trainer, parameters = mixed_precision.trainer_of(name, 10)
        peer = twins(parameters)
        found = trainer.fit(data, batch_size=128, steps=3, epochs=1, **STEPS)["loss"]
        with torch.autocast("cpu", dtype=getattr(torch, name)):
            wanted = [loss_of(**batch).item() for batch in list(cut(data, 128))[:2]]
        near(found[:2], wanted, rtol=1e-2)


def test_overflows_and_lost_gradients():
    scales, skipped = mixed_precision.overflow()
    w = torch.tensor(0.0, requires_grad=True)
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.Adam([w], 0.1)
    wanted = []
    for value in (1.0, 3e38, 1.0, 1.0):
        wanted.append(scaler.get_scale())
        optimizer.zero_grad()
        scaler.scale(w * value).backward()
        scaler.step(optimizer)
        scaler.update()
    near(scales, wanted, rtol=0)
    assert [float(a > b) for a, b in zip(scales, [*scales[1:], 0])][:3] == [0, 1, 0]
    assert skipped.tolist() == [0, 1, 0, 0]
    for scale in (1.0, 65536.0):
        w = torch.ones((1, 1), requires_grad=True)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = (torch.ones((4, 1)) @ w).float().mean() * 1e-8
        (loss * scale).backward()
        step = 1e7 * w.grad.item() / scale
        option = None if scale == 1 else scale
        near(mixed_precision.lost_gradient(option), step, rtol=1e-2)


# ---- sampling ------------------------------------------------------------------------


def test_policy_gradient():
    logits, _, surrogate, exact = sampling.bandit()
    rewards = torch.tensor(sampling.REWARDS)
    peer = torch.zeros(4, requires_grad=True)
    draws = np.random.default_rng(0).random(4000).astype(np.float32)

    def loss_of(uniform):
        below = peer.softmax(0).cumsum(0)[None, :-1] < uniform[:, None]
        arm = below.sum(1)
        gained = rewards[arm]
        return -((gained - gained.mean()) * peer.log_softmax(0)[arm]).mean()

    loss_of(torch.tensor(draws)).backward()
    (wanted,) = torch.autograd.grad(-(peer.softmax(0) * rewards).sum(), peer)
    estimate = sg.compile(sg.grad(surrogate, logits))(uniform=draws)
    near(estimate, peer.grad, atol=1e-5)
    near(sg.compile(sg.grad(exact, logits), inputs=[])(), wanted, atol=1e-6)
    trainer = sg.Trainer(surrogate, sg.optim.Adam(0.1))
    history = trainer.fit({"uniform": draws}, batch_size=100, **STEPS)
    losses = descended(
        torch.optim.Adam([peer], 0.1), loss_of, cut({"uniform": draws}, 100)
    )
    near(history["loss"], losses, rtol=1e-3, atol=1e-5)
    near(logits.value, peer, rtol=1e-3)


def test_relaxed_choice():
    logits, loss = sampling.gumbel_choice()
    uniform = np.random.default_rng(1).random((3200, 4))
    data = {"noise": (-np.log(-np.log(uniform))).astype(np.float32)}
    peer = torch.zeros(4, requires_grad=True)

    def loss_of(noise):
        soft = ((peer + noise) / 0.5).softmax(-1)
        hard = F.one_hot(soft.argmax(-1), 4).float()
        choice = soft + (hard - soft).detach()
        return -(choice * torch.tensor(sampling.REWARDS)).sum(-1).mean()

    trainer = sg.Trainer(loss, sg.optim.Adam(0.05))
    history = trainer.fit(data, batch_size=64, **STEPS)
    losses = descended(torch.optim.Adam([peer], 0.05), loss_of, cut(data, 64))
    near(history["loss"], losses, rtol=1e-4)
    near(logits.value, peer, rtol=1e-3)


def test_adversaries():
    generator, critic, g_loss, d_loss, _ = sampling.duel()
    nn = torch.nn
    makes = carried(generator, nn.Linear(1, 1))
    judge = carried(
        critic, nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    )
    rng = np.random.default_rng(0)
    data = {
        "real": rng.normal(2.0, 0.5, size=(6400, 1)).astype(np.float32),
        "noise": rng.normal(size=(6400, 1)).astype(np.float32),
    }
    trainer = sg.Trainer(
        [
            (d_loss, sg.optim.Adam(1e-2, betas=(0.5, 0.9)), critic.parameters()),
            (g_loss, sg.optim.Adam(2e-3, betas=(0.5, 0.9)), generator.parameters()),
        ]
    )
    history = trainer.fit(data, batch_size=64, **STEPS)
    fast = torch.optim.Adam(judge.parameters(), 1e-2, betas=(0.5, 0.9))
    slow = torch.optim.Adam(makes.parameters(), 2e-3, betas=(0.5, 0.9))
    losses = []
    for batch in cut(data, 64):
        real = batch["real"].requires_grad_()
        fake = makes(batch["noise"]).detach()
        (slope,) = torch.autograd.grad(judge(real).sum(), real, create_graph=True)
        first_loss = (F.softplus(-judge(real)) + F.softplus(judge(fake))).mean()
        first_loss = first_loss + 0.1 * (slope**2).mean()
        fast.zero_grad()
        first_loss.backward()
        fast.step()
        slow.zero_grad()
        second_loss = F.softplus(-judge(makes(batch["noise"]))).mean()
        second_loss.backward()
        slow.step()
        losses.append((first_loss.item(), second_loss.item()))
    near(np.transpose([history["loss_1"], history["loss_2"]]), losses, rtol=1e-3)


# ---- wgan_gp, maml -------------------------------------------------------------------


def test_wgan_gp():
    generator, critic, of_generator, of_critic, _ = wgan_gp.build()
    makes, judges = wgan_gp.trainers(generator, critic, of_generator, of_critic, 20)
    maker, judge = twins(generator.parameters()), twins(critic.parameters())

    def through(weights, x):
        for number in (0, 2):
            x = F.leaky_relu(linear(weights, f"{number}.", x), 0.2)
        return linear(weights, "4.", x)

    def of_judge(real, noise, mix):
        made = through(maker, noise).detach()
        between = (mix * real + (1 - mix) * made).requires_grad_()
        score = through(judge, between).sum()
        (slope,) = torch.autograd.grad(score, between, create_graph=True)
        length = slope.square().sum(1).sqrt()
        distance = through(judge, real).mean() - through(judge, made).mean()
        return wgan_gp.PENALTY * ((length - 1) ** 2).mean() - distance

    fast = torch.optim.Adam(judge.values(), 4e-3, betas=(0.0, 0.9))
    slow = torch.optim.Adam(maker.values(), 2e-3, betas=(0.0, 0.9))
    rate = torch.optim.lr_scheduler.LambdaLR(slow, falling(20, 0))
    rng = np.random.default_rng(0)
    for _ in range(8):  # slopes jump at a leaky relu's kink: errors grow with steps
        data = wgan_gp.draw(rng, wgan_gp.CRITIC_STEPS * wgan_gp.BATCH)
        data = {name: value.astype(np.float32) for name, value in data.items()}
        noise = rng.normal(size=(wgan_gp.BATCH, 2)).astype(np.float32)
        history = judges.fit(data, batch_size=wgan_gp.BATCH, **STEPS)
        told = makes.step(noise=noise)
        losses = descended(fast, of_judge, cut(data, wgan_gp.BATCH))
        near(history["loss"], losses, rtol=5e-3, atol=1e-3)
        (loss,) = descended(
            slow,
            lambda noise: -through(judge, through(maker, noise)).mean(),
            [{"noise": torch.tensor(noise)}],
            rate.step,
        )
        near(told["loss"], loss, rtol=5e-3, atol=1e-3)


def test_maml():
    model, before, after = maml.build()
    data = maml.data(np.random.default_rng(0), 30 * maml.TASKS)
    peer = twins(model.parameters())
    trainer = sg.Trainer(after, sg.optim.Adam(2e-3), metrics={"before": before})
    history = trainer.fit(data, batch_size=maml.TASKS, **STEPS)

    def predicted(weights, x):
        for number in (0, 2):
            x = torch.tanh(linear(weights, f"{number}.", x))
        return linear(weights, "4.", x)

    def outer(x, y, new_x, new_y):
        losses = []
        for task in zip(x, y, new_x, new_y, strict=True):
            known = F.mse_loss(predicted(peer, task[0]), task[1])
            slopes = torch.autograd.grad(known, peer.values(), create_graph=True)
            moved = {
                name: p - maml.RATE * slope
                for (name, p), slope in zip(peer.items(), slopes, strict=True)
            }
            losses.append(F.mse_loss(predicted(moved, task[2]), task[3]))
        return torch.stack(losses).mean()

    batches = cut(data, maml.TASKS)
    losses = descended(torch.optim.Adam(peer.values(), 2e-3), outer, batches)
    near(history["loss"], losses, rtol=1e-3)
    new = {name: torch.tensor(value) for name, value in data.items()}
    wanted = F.mse_loss(predicted(peer, new["new_x"]), new["new_y"])
    near(trainer.evaluate(data)["before"], wanted, rtol=1e-3)
