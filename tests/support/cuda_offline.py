"""Devices that only compile: every kernel, for every compute capability."""

from cuda_devices import EmulatedDevice

from staticgrad.compiler.cuda.cuda_compile import (
    compile_kernel,
    figures_of,
    linked,
    ptx_of,
)

CAPABILITIES = ((7, 5), (8, 0), (9, 0))
MOST_SHARED_BYTES = 48 << 10


def require_good(source, code, figures):
    """Check the rules of every kernel."""
    assert code[:4] == b"\x7fELF"
    assert figures["spill_bytes"] == 0, (source.text, figures)
    assert figures["shared_bytes"] <= MOST_SHARED_BYTES, (source.text, figures)
    assert source.doubles or not figures["float64_instructions"], source.text


class Offline(EmulatedDevice):
    """Compiles what it is to load as the target does, for each capability."""

    name = "offline"

    def __init__(self, capabilities=CAPABILITIES):
        super().__init__()
        self.capabilities = capabilities
        self.seen = {}

    def load(self, source):
        key = (source.canonical, source.kinds)
        if key not in self.seen:
            self.seen[key] = list(self.figures(source))
        return source

    def figures(self, source):
        for capability in self.capabilities:
            image = compile_kernel(source, capability)
            require_good(source, image.code, image.figures)
            yield image.figures


class Assembled(Offline):
    """Compiles once, for the oldest capability, and assembles that for each."""

    def figures(self, source):
        ptx, entry = ptx_of(source, self.capabilities[0], "kernel")
        for capability in self.capabilities:
            code, log = linked(ptx, entry, capability)
            figures = figures_of(ptx, log)
            require_good(source, code, figures)
            yield figures
