"""Shapes: of small networks (a to g), of residual ones (h to l), of pools."""

from dataclasses import dataclass

import numpy as np

PASSES = ("forward", "input", "weight")
POOL_PASSES = ("pool", "pool + gradient")


@dataclass(frozen=True)
class Case:
    """A batch of images and the kernels that slide over it; without kernels a pool."""

    name: str
    batch: int
    channels: int
    size: int
    filters: int = 0
    window: int = 2
    stride: int = 1
    padding: int = 0
    groups: int = 1

    def __str__(self) -> str:
        image = f"{self.batch}x{self.channels}x{self.size}x{self.size}"
        if not self.filters:
            return f"{image} 2x2"
        text = f"{image} {self.filters}@{self.window}x{self.window}"
        text += f" s{self.stride}" if self.stride > 1 else ""
        text += f" p{self.padding}" if self.padding else ""
        return text + (" depthwise" if self.groups > 1 else "")

    @property
    def made(self) -> int:
        """Rows and columns of the result."""
        if not self.filters:
            return self.size // 2
        return (self.size + 2 * self.padding - self.window) // self.stride + 1

    @property
    def flops(self) -> int:
        """Of the direct computation, taps in the margin included."""
        taps = self.window**2 * (self.channels // self.groups)
        return 2 * self.batch * self.made**2 * self.filters * taps

    @property
    def passes(self) -> tuple[str, ...]:
        """Name of the measured quantity."""
        return PASSES if self.filters else POOL_PASSES

    def arrays(self) -> dict[str, np.ndarray]:
        """Image, kernels, gradient of the result: float32, channels first."""
        draw = np.random.default_rng(0).standard_normal
        image = (self.batch, self.channels, self.size, self.size)
        kernels = (self.filters, self.channels // self.groups, *[self.window] * 2)
        made = (self.batch, self.filters or self.channels, self.made, self.made)
        shapes = {"x": image, "w": kernels, "g": made}
        return {name: draw(shape).astype(np.float32) for name, shape in shapes.items()}


CASES = {
    case.name: case
    for case in (
        Case("a", 64, 1, 28, 8, 5),
        Case("b", 64, 8, 12, 16, 5),
        Case("c", 32, 16, 32, 32, 3, padding=1),
        Case("d", 16, 64, 16, 64, 3, padding=1),
        Case("e", 8, 128, 8, 256, 1),
        Case("f", 32, 3, 32, 32, 3, stride=2),
        Case("g", 16, 64, 16, 64, 3, padding=1, groups=64),
        Case("h", 4, 256, 14, 256, 3, padding=1),
        Case("i", 1, 64, 56, 64, 3, padding=1),
        Case("j", 1, 3, 224, 64, 7, stride=2, padding=3),
        Case("k", 4, 256, 14, 64, 1),
        Case("l", 4, 128, 28, 128, 3, stride=2, padding=1),
        Case("pool1", 64, 8, 24),
        Case("pool2", 32, 32, 32),
    )
}
