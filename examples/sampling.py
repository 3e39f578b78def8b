"""Training with sampling: a policy gradient, a relaxed choice, and two adversaries.

REINFORCE on a bandit, whose exact gradient is known; a straight-through Gumbel choice;
a generator against a discriminator, two losses over disjoint parameters in one trainer.
Run: ``python examples/sampling.py [--short]``.
"""

import argparse

import numpy as np

import staticgrad as sg

REWARDS = np.float32([0.1, 0.2, 0.9, 0.3])


def bandit():
    """A policy over four arms: its logits, what to descend, and what is meant."""
    with sg.Graph(seed=0):
        logits = sg.parameter(np.zeros(4, np.float32), name="logits")
        reward = sg.constant(REWARDS)
        uniform = sg.input("uniform", ("batch",))
        p = sg.nn.softmax(logits)
        arm = sg.sum(
            (sg.cumsum(p)[None, :-1] < uniform[:, None]).astype("int64"), axis=1
        )
        log_p = sg.take(sg.nn.log_softmax(logits), arm)
        gained = sg.take(reward, arm)
        surrogate = -sg.mean(sg.stop_gradient(gained - sg.mean(gained)) * log_p)
        exact = -sg.sum(p * reward)
    return logits, p, surrogate, exact


def policy_gradient(steps):
    """E[reward * grad log p] is the gradient of E[reward], and finds the best arm."""
    logits, p, surrogate, exact = bandit()
    draws = np.random.default_rng(0).random(100_000).astype(np.float32)
    estimate, true = sg.compile([sg.grad(surrogate, logits), sg.grad(exact, logits)])(
        uniform=draws
    )
    print("policy gradient", estimate.round(3), "exact", true.round(3))
    np.testing.assert_allclose(estimate, true, atol=5e-3)
    trainer = sg.Trainer(surrogate, optimizer=sg.optim.Adam(0.1))
    for number in range(steps):
        trainer.step(uniform=draws[number * 100 : (number + 1) * 100])
    found = sg.compile(p, inputs=[])()
    print("probabilities of the arms", found.round(3))
    assert found.argmax() == REWARDS.argmax()
    assert found.max() > 0.8


def gumbel_choice():
    """Logits, and the loss of arms that are chosen by the largest of noisy logits."""
    with sg.Graph(seed=0):
        logits = sg.parameter(np.zeros(4, np.float32), name="logits")
        noise = sg.input("noise", ("batch", 4))
        soft = sg.nn.softmax((logits + noise) / 0.5, axis=-1)
        hard = sg.one_hot(sg.argmax(soft, axis=-1), 4).astype("float32")
        choice = sg.straight_through(hard, soft)
        return logits, -sg.mean(sg.sum(choice * REWARDS, axis=-1))


def relaxed_choice():
    """A hard choice forward, the gradient of the soft one backward."""
    logits, loss = gumbel_choice()
    trainer = sg.Trainer(loss, optimizer=sg.optim.Adam(0.05))
    uniform = np.random.default_rng(1).random((6400, 4))
    data = {"noise": (-np.log(-np.log(uniform))).astype(np.float32)}
    trainer.fit(data, epochs=3, batch_size=64, progress=False)
    print("relaxed choice    ", logits.value.round(2))
    assert logits.value.argmax() == REWARDS.argmax()


def duel():
    """A generator and its critic, their losses, and what the generator makes.

    The critic's slopes at real data are kept small (Mescheder et al., Which training
    methods for GANs do actually converge?, 2018): a gradient inside of a loss.
    """
    with sg.Graph(seed=0):
        real = sg.input("real", ("batch", 1))
        noise = sg.input("noise", ("batch", 1))
        generator = sg.nn.Linear(1, 1)
        critic = sg.nn.Sequential(
            sg.nn.Linear(1, 32), sg.nn.Tanh(), sg.nn.Linear(32, 1)
        )
        fake = generator(noise)
        slope = sg.grad(sg.sum(critic(real)), real)
        d_loss = sg.mean(sg.softplus(-critic(real)) + sg.softplus(critic(fake)))
        d_loss = d_loss + 0.1 * sg.mean(slope * slope)
        g_loss = sg.mean(sg.softplus(-critic(fake)))
    return generator, critic, g_loss, d_loss, fake


def adversaries(steps):
    """A generator learns mean and spread of a normal distribution from its critic."""
    generator, critic, g_loss, d_loss, fake = duel()
    fast, slow = (sg.optim.Adam(rate, betas=(0.5, 0.9)) for rate in (1e-2, 2e-3))
    trainer = sg.Trainer(
        [(d_loss, fast, critic.parameters()), (g_loss, slow, generator.parameters())]
    )
    rng = np.random.default_rng(0)
    data = {
        "real": rng.normal(2.0, 0.5, size=(64 * steps, 1)).astype(np.float32),
        "noise": rng.normal(size=(64 * steps, 1)).astype(np.float32),
    }
    history = trainer.fit(data, batch_size=64, progress=False, record="step")
    names = ", ".join(f"{k} {v[-100:].mean():.3f}" for k, v in history.items())
    made = sg.compile(fake)(data["noise"][-4096:])
    print(f"adversaries: {names}; made {made.mean():.2f} +- {made.std():.2f}")
    assert abs(made.mean() - 2.0) < 0.1
    assert 0.4 < made.std() < 0.6


def main():
    """All three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer steps")
    options = parser.parse_args()
    policy_gradient(200)
    relaxed_choice()
    adversaries(1500 if options.short else 4000)


if __name__ == "__main__":
    main()
