"""Losses of tanh networks with a mean squared error, for each library."""

from benchmarks.workloads.perceptron import affine, network


def ours(sg, p, d):
    """staticgrad."""
    error = network(p, d["x"], affine, sg.tanh) - d["y"]
    return sg.mean(error * error)


def torch(torch, p, d):
    """PyTorch; addmm is its fused affine map."""
    out = network(p, d["x"], torch.addmm, torch.tanh)
    return torch.nn.functional.mse_loss(out, d["y"])


def jax(jax, p, d):
    """JAX."""
    error = network(p, d["x"], affine, jax.numpy.tanh) - d["y"]
    return jax.numpy.mean(error * error)


def pytensor(pt, p, d):
    """PyTensor."""
    error = network(p, d["x"], affine, pt.tanh) - d["y"]
    return pt.mean(error * error)


LOSSES = {"ours": ours, "torch": torch, "jax": jax, "pytensor": pytensor}
