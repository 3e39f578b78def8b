"""A layer of band-pass filters: sinc functions whose frequencies are learned.

The derivative of sin(x) / x is 0 / 0 at x = 0 if it is written down naively; what
``sg.where`` masks out has the gradient 0 here. The layer finds the band of a filtered
noise again. Source: Ravanelli and Bengio, Speaker recognition
from raw waveform with SincNet (2018). Run: ``python examples/sinc.py [--short]``.
"""

import argparse

import numpy as np

import staticgrad as sg
from staticgrad.testing import gradcheck

TAPS = 65
BAND = (0.08, 0.2)  # of the sampling rate: what the noise was filtered with


def sinc(x):
    """``sin(x) / x``, 1 at 0 with the derivative 0, written with where."""
    is_zero = x == 0
    return sg.where(is_zero, 1.0, sg.sin(x) / sg.where(is_zero, 1.0, x))


def band_pass(low, high, dtype="float32"):
    """The impulse response of a filter between two frequencies, windowed."""
    time = sg.arange(TAPS, dtype=dtype) - (TAPS - 1) // 2
    window = np.hamming(TAPS).astype(dtype)

    def low_pass(frequency):
        return 2 * frequency * sinc(2 * np.pi * frequency * time)

    return (low_pass(high) - low_pass(low)) * window


def check_zero():
    """The derivative at 0 is 0, and that of everything else what it should be."""
    x = sg.parameter(np.float64([0.0, 0.5, -3.0]), name="x")
    slope = sg.grad(sg.sum(sinc(x)), x)
    second = sg.grad(sg.sum(slope), x)
    value, first, _ = sg.compile([sinc(x), slope, second])()
    at = np.float64([0.5, -3.0])
    assert value[0] == 1
    assert first[0] == 0
    np.testing.assert_allclose(first[1:], np.cos(at) / at - np.sin(at) / at**2)
    assert gradcheck(sinc, np.float64([0.5, -3.0]))
    assert gradcheck(lambda f: band_pass(f[0], f[1], "float64"), np.float64([0.1, 0.3]))
    print("the derivative of sinc at 0 is", first[0])


def filtered_noise():
    """Noise, and what a filter of BAND lets pass."""
    signal = np.random.default_rng(0).normal(size=(32, 256)).astype(np.float32)
    truth = sg.compile(band_pass(*map(sg.constant, np.float32(BAND))))()
    wanted = np.stack([np.convolve(row, truth, "valid") for row in signal])
    return {"x": signal, "y": wanted.astype(np.float32)}


def layer():
    """Two frequencies, and how far their filter is from what passed."""
    with sg.Graph():
        x = sg.input("x", ("batch", 256))
        y = sg.input("y", ("batch", 256 - TAPS + 1))
        low = sg.parameter(np.float32(0.12), name="low")
        high = sg.parameter(np.float32(0.3), name="high")
        taps = band_pass(low, high)[::-1]  # conv1d does not turn its kernel round
        passed = sg.nn.conv1d(x[:, None], taps[None, None])[:, 0]
        return low, high, sg.mean((passed - y) ** 2)


def learn(steps):
    """Frequencies from a wrong start, by descent on filtered noise."""
    low, high, loss = layer()
    trainer = sg.Trainer(loss, optimizer=sg.optim.Adam(2e-3))
    history = trainer.fit(filtered_noise(), epochs=steps, progress=False)
    found = float(low.value), float(high.value)
    print(f"loss {history['loss'][0]:.4f} -> {history['loss'][-1]:.6f}, "
          f"band {found[0]:.4f} to {found[1]:.4f}")  # fmt: skip
    return found


def main():
    """The derivative at 0, then a layer that learns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer steps")
    options = parser.parse_args()
    check_zero()
    found = learn(150 if options.short else 400)
    np.testing.assert_allclose(found, BAND, atol=0.02 if options.short else 0.002)


if __name__ == "__main__":
    main()
