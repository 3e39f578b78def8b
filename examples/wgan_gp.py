"""A Wasserstein GAN with a gradient penalty (WGAN-GP) learns a tilted normal cloud.

The critic is held to slopes of length 1 by a loss of its own gradient at points between
made and real ones, so a gradient is differentiated again. Five steps of the critic, in
one native call, go before each step of the generator; each has its optimiser and its
parameters. Source: Gulrajani et al., Improved training of Wasserstein GANs (2017).
Run: ``python examples/wgan_gp.py [--short]``.
"""

import argparse

import numpy as np

import staticgrad as sg

BATCH = 128
CRITIC_STEPS = 5
PENALTY = 1.0
MEAN = np.array([1.0, -0.5])
SPREAD = np.array([[0.8, 0.0], [0.5, 0.4]])  # Cholesky factor of the covariance


def network(inputs, width, outputs):
    """Two hidden layers."""
    return sg.nn.Sequential(
        sg.nn.Linear(inputs, width), sg.nn.LeakyReLU(0.2), sg.nn.Linear(width, width),
        sg.nn.LeakyReLU(0.2), sg.nn.Linear(width, outputs),
    )  # fmt: skip


def build():
    """Generator and critic, their losses, and what the generator makes."""
    with sg.Graph(seed=1):
        real = sg.input("real", ("batch", 2))
        noise = sg.input("noise", ("batch", 2))
        mix = sg.input("mix", ("batch", 1))
        generator, critic = network(2, 32, 2), network(2, 32, 1)
        made = generator(noise)
        between = mix * real + (1 - mix) * made
        slope = sg.grad(sg.sum(critic(between)), between)
        length = sg.sqrt(sg.sum(slope * slope, axis=1))
        distance = sg.mean(critic(real)) - sg.mean(critic(made))
        of_critic = PENALTY * sg.mean((length - 1) ** 2) - distance
        of_generator = -sg.mean(critic(made))
    return generator, critic, of_generator, of_critic, made


def trainers(generator, critic, of_generator, of_critic, rounds):
    """One for each side; the other side's parameters stay as they are."""
    makes = sg.optim.Adam(sg.optim.cosine(2e-3, steps=rounds), betas=(0.0, 0.9))
    judges = sg.optim.Adam(4e-3, betas=(0.0, 0.9))
    return (
        sg.Trainer(of_generator, makes, generator.parameters()),
        sg.Trainer(of_critic, judges, critic.parameters()),
    )


def draw(rng, samples):
    """Real points, noise, and places between real and made."""
    return {
        "real": MEAN + rng.normal(size=(samples, 2)) @ SPREAD.T,
        "noise": rng.normal(size=(samples, 2)),
        "mix": rng.uniform(size=(samples, 1)),
    }


def main():
    """Train in turns; compare mean and covariance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer steps")
    rounds = 500 if parser.parse_args().short else 2000
    *networks_and_losses, made = build()
    makes, judges = trainers(*networks_and_losses, rounds)
    rng = np.random.default_rng(0)
    for number in range(rounds):
        data = draw(rng, CRITIC_STEPS * BATCH)
        history = judges.fit(data, batch_size=BATCH, shuffle=False, progress=False)
        makes.step(noise=rng.normal(size=(BATCH, 2)))
        if number % (rounds // 5) == 0:
            print(f"round {number:5}: loss of the critic {history['loss'][0]:.3f}")
    points = sg.compile(made)(noise=rng.normal(size=(5000, 2)))
    mean, covariance = points.mean(axis=0), np.cov(points.T)
    print(f"mean {mean.round(2)}, wanted {MEAN}")
    print(f"covariance {covariance.round(2).tolist()}, "
          f"wanted {(SPREAD @ SPREAD.T).round(2).tolist()}")  # fmt: skip
    assert np.abs(mean - MEAN).max() < 0.15
    assert np.abs(covariance - SPREAD @ SPREAD.T).max() < 0.2


if __name__ == "__main__":
    main()
