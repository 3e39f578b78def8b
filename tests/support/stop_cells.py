"""Stop cells for tests of runs that are stopped and resumed."""

from staticgrad.compiler.runtime.assembler import Cell


class CountingCell(Cell):
    """A stop cell that becomes 1 after some polls of the loop in Python."""

    __slots__ = ("left",)

    def __init__(self, polls):
        super().__init__(0)
        self.left = polls

    @property
    def value(self):
        self.left -= 1
        return int(self.left < 0)
