"""A device that only compiles: every kernel for every compute capability."""

from cuda_devices import EmulatedDevice

from staticgrad.compiler.cuda.compile import compile_kernel

CAPABILITIES = ((7, 5), (8, 0), (9, 0))
MOST_SHARED_BYTES = 48 << 10


class OfflineDevice(EmulatedDevice):
    """Compiles what it is to load and asserts what every kernel has to keep to."""

    name = "offline"

    def __init__(self, capabilities=CAPABILITIES):
        super().__init__()
        self.capabilities = capabilities
        self.images = {}

    def load(self, source):
        for capability in self.capabilities:
            key = (source.canonical, source.kinds, capability)
            if key in self.images:
                continue
            image = compile_kernel(source, capability)
            self.images[key] = image
            figures = image.figures
            assert image.code[:4] == b"\x7fELF"
            assert figures["spill_bytes"] == 0, (source.text, figures)
            assert figures["shared_bytes"] <= MOST_SHARED_BYTES, source.text
            double = source.doubles or not figures["float64_instructions"]
            assert double, source.text
        return source
