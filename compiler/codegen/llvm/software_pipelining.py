"""Software pipelining: long loops begin a step before the last one has ended.

A body of several functions is a chain of operations that wait for each other, about as
long as a processor looks ahead, so little of the next step runs beside it. Therefore
what LLVM has vectorised as ``for i: first(i); second(i)`` becomes::

    first(0)
    for i from 1: second(i - 1) beside first(i)
    second(last)

Values do not change. This is software pipelining in two stages (M. Lam, "Software
pipelining", PLDI 1988), on the text of LLVM's result, and only where registers have 64
bytes: there are 32 then, enough for what passes from one stage to the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

from staticgrad.compiler.codegen.llvm.instruction_order import PURE, times

LEAST = 80  # instructions: shorter bodies fit the out-of-order window
CUTS = (0.5, 0.45, 0.55, 0.4)  # start of the second stage; the first that fits is taken
MOST_PASSED = 24  # values from stage to stage: more do not stay in registers

_NAME = re.compile(r"%[\w.$-]+")
_NUMBER = re.compile(r"%(\d+)\b|^(\d+)(?=:)", re.MULTILINE)
_COMMENT = re.compile(r" +; preds = .*")
_VECTOR = re.compile(r"<\d+ x \w+>")
_FULL = re.compile(r"<(?:16 x float|8 x double)>")
_BLOCK = re.compile(r"^([\w.$-]+):\n((?:  .+\n)+)", re.MULTILINE)
_BRANCH = re.compile(r"br i1 (%\S+), label %([\w.$-]+), label %([\w.$-]+)(.*)")
_PHI = re.compile(r"\S+ = phi (.+?) \[ (.+?), %(\S+) \], \[ (.+?), %(\S+) \]")
_LINE = re.compile(r"(?:(\S+) = )?(?:tail )?(\w+) (.*)")
_CALLEE = re.compile(r"@(llvm\.\w+)\.")
_SCOPES = re.compile(r"!(alias\.scope|noalias) (!\d+)")
_LIST = re.compile(r"^(!\d+) = (?:distinct )?!\{(.*)\}$", re.MULTILINE)
_SHARED = re.compile(r"volatile|atomic")
_POINTER = re.compile(r"ptr (%[\w.$-]+)")

_ADDRESS = frozenset("getelementptr add sub mul shl or and".split())
_CASTS = frozenset(
    "bitcast sitofp uitofp fptosi fptoui fpext fptrunc zext sext".split()
)
_KNOWN = _ADDRESS | _CASTS | frozenset(
    "phi load store fadd fsub fmul fdiv fneg fcmp icmp select xor lshr ashr".split()
)  # fmt: skip
BEFORE, EARLY, LATE, BEHIND = range(4)
"""Copies of an instruction: before the loop, twice in it, behind it. The names of what
they compute end so."""


class _Unfit(Exception):
    """Loop that cannot be pipelined."""


class _Line(NamedTuple):
    """Instruction: its text, result, operation and operands."""

    text: str
    name: str
    op: str
    uses: tuple[str, ...]

    def type(self) -> str:
        """Return the type of a result that is a vector."""
        made = self.text.rpartition(" to ")[2] if self.op in _CASTS else self.text
        found = _VECTOR.findall(made)
        if not found:
            raise _Unfit
        if self.op in ("icmp", "fcmp"):
            return f"{found[0].split(' x ')[0]} x i1>"
        return str(found[-1] if self.op == "select" else found[0])


class _Phi(NamedTuple):
    """Phi node of a loop: its type, first and following value."""

    type: str
    first: str
    following: str


@dataclass(frozen=True)
class _Loop:
    """Loop of one block; `branch` is its condition, targets and metadata."""

    label: str
    phis: Mapping[str, _Phi]
    body: Sequence[_Line]
    branch: tuple[str, str, str, str]

    @cached_property
    def places(self) -> dict[str, int]:
        """Position of each value's definition."""
        return {line.name: place for place, line in enumerate(self.body) if line.name}

    @cached_property
    def frame(self) -> list[int]:
        """Counters, addresses and condition, which every stage copies."""
        found: list[int] = []
        for place, line in enumerate(self.body):
            scalar = line.op in _ADDRESS and not _VECTOR.search(line.text)
            if line.name == self.branch[0] or scalar:
                found.append(place)
        made = set(found)
        used = {name for place in found for name in self.body[place].uses}
        inner = {self.places[name] for name in used if name in self.places}
        if not inner <= made or used & (self.phis.keys() - self.counters(made)):
            raise _Unfit
        return found

    def counters(self, frame: Iterable[int]) -> set[str]:
        """Return the phis that are made of addresses and counters alone."""
        made = {self.body[place].name for place in frame}
        return {name for name, phi in self.phis.items() if phi.following in made}

    @cached_property
    def waits(self) -> list[set[int]]:
        """Return, for each instruction, those that have to precede it."""
        found: list[set[int]] = []
        loads: set[int] = set()
        stores: set[int] = set()
        for place, line in enumerate(self.body):
            before = {self.places[name] for name in line.uses if name in self.places}
            if line.op == "load":
                before |= stores
                loads.add(place)
            elif line.op == "store":
                before |= stores | loads
                stores.add(place)
            found.append(before)
        return found


def pipelined(text: str) -> str:
    """Pipeline the long loops of one function's optimised LLVM IR in two stages."""
    if text.count("\ndefine ") != 1 or not _FULL.search(text):
        return text
    named = _NUMBER.sub(lambda m: f"%u{m[1]}" if m[1] else f"u{m[2]}", text)
    named, changed = _COMMENT.sub("", named), False
    for label, body in _BLOCK.findall(named):
        if body.count("\n") >= LEAST and _FULL.search(body):
            with suppress(_Unfit):
                named, changed = _rewritten(named, label), True
    return named if changed else text


def _loop_of(block: re.Match[str]) -> _Loop:
    *lines, last = (line.strip() for line in block[2].splitlines())
    branch = _BRANCH.fullmatch(last)
    if branch is None or block[1] not in branch.group(2, 3):
        raise _Unfit
    parsed = [_parsed(line) for line in lines]
    phis = {line.name: _phi(line, block[1]) for line in parsed if line.op == "phi"}
    body = [line for line in parsed if line.op != "phi"]
    return _Loop(block[1], phis, body, (branch[1], branch[2], branch[3], branch[4]))


def _parsed(text: str) -> _Line:
    found = _LINE.fullmatch(text)
    if found is None:
        raise _Unfit
    callee = _CALLEE.search(text)
    pure = found[2] == "call" and callee is not None and callee[1] in PURE
    if (not pure and found[2] not in _KNOWN) or _SHARED.match(found[3]):
        raise _Unfit
    return _Line(text, found[1] or "", found[2], tuple(_NAME.findall(found[3])))


def _phi(line: _Line, label: str) -> _Phi:
    found = _PHI.fullmatch(line.text)
    if found is None or label not in found.group(3, 5):
        raise _Unfit
    kind, one, source, other, _ = found.groups()
    return _Phi(kind, other, one) if source == label else _Phi(kind, one, other)


def _rewritten(text: str, label: str) -> str:
    """Rewrite the loop of that label, as it is in `text`, in two stages."""
    block = _BLOCK.match(text, text.index(f"\n{label}:\n") + 1)
    if block is None:
        raise _Unfit
    loop = _loop_of(block)
    cuts = (_stages_of(loop, cut) for cut in CUTS)
    stages = next((found for found in cuts if len(found.passed) <= MOST_PASSED), None)
    if stages is None:
        raise _Unfit
    _check_memory(text, stages)
    ends = {loop.body[place].name for place in stages.late}
    above, below = text[: block.start()], text[block.end() :]
    made = "\n".join(stages.blocks())
    return _outside(above, loop, ends) + made + "\n" + _outside(below, loop, ends)


def _outside(text: str, loop: _Loop, ends: set[str]) -> str:
    """Redirect the text around the loop to its first block and from its last."""

    def renamed(found: re.Match[str]) -> str:
        name = found[0]
        if name in ends:
            return f"{name}.{BEHIND}"
        if name in loop.places or name in loop.phis:
            raise _Unfit
        return name

    label = re.escape(loop.label)
    text = re.sub(rf"label %{label}(?![\w.$-])", f"label %{loop.label}.first", text)
    text = re.sub(rf", %{label} \]", f", %{loop.label}.last ]", text)
    return _NAME.sub(renamed, text)


@dataclass(frozen=True)
class _Stages:
    """Loop in two stages: places of early and late instructions, and both merged."""

    loop: _Loop
    early: Sequence[int]
    late: Sequence[int]
    merged: Sequence[tuple[int, int]]

    @cached_property
    def passed(self) -> list[_Line]:
        """Results of the early stage that the late stage uses."""
        uses = {name for place in self.late for name in self.loop.body[place].uses}
        lines = (self.loop.body[place] for place in self.early)
        return [line for line in lines if line.name in uses]

    def blocks(self) -> Iterator[str]:
        """Yield the lines of the three blocks."""
        loop, frame = self.loop, self.loop.frame
        condition, yes, no, rest = loop.branch
        last = f"{loop.label}.last"
        targets = [loop.label if to == loop.label else last for to in (yes, no)]
        where = f"label %{targets[0]}, label %{targets[1]}"
        yield f"{loop.label}.first:"
        yield from self._copies((place, BEFORE) for place in (*frame, *self.early))
        yield f"  br i1 {condition}.{BEFORE}, {where}\n\n{loop.label}:"
        for name in loop.counters(frame):
            following = loop.phis[name].following
            yield self._phi(
                name, EARLY, f"{following}.{BEFORE}", f"{following}.{EARLY}"
            )
        yield from self._handed(LATE)
        yield from self._copies(
            (place, copy) for copy in (EARLY, LATE) for place in frame
        )
        yield from self._copies(self.merged)
        yield f"  br i1 {condition}.{EARLY}, {where}{rest}\n\n{last}:"
        yield from self._handed(BEHIND)
        yield from self._copies((place, BEHIND) for place in (*frame, *self.late))
        yield f"  br label %{no if yes == loop.label else yes}"

    def _copies(self, wanted: Iterable[tuple[int, int]]) -> Iterator[str]:
        """Yield copies of instructions; those before the loop use first values."""
        loop = self.loop
        for place, copy in wanted:

            def named(found: re.Match[str], copy: int = copy) -> str:
                name = found[0]
                if copy == BEFORE and name in loop.phis:
                    return loop.phis[name].first
                inside = name in loop.places or name in loop.phis
                return f"{name}.{copy}" if inside else name

            yield "  " + _NAME.sub(named, loop.body[place].text)

    def _handed(self, copy: int) -> Iterator[str]:
        """Yield the phis of the late stage: its counters, sums, early results."""
        counters = self.loop.counters(self.loop.frame)
        for name, phi in self.loop.phis.items():
            again = f"{name}.{EARLY}" if name in counters else f"{phi.following}.{LATE}"
            yield self._phi(name, copy, phi.first, again)
        for line in self.passed:
            before, again = f"{line.name}.{BEFORE}", f"{line.name}.{EARLY}"
            yield self._phi(line.name, copy, before, again, line.type())

    def _phi(
        self, name: str, copy: int, before: str, again: str, kind: str = ""
    ) -> str:
        label = self.loop.label
        kind = kind or self.loop.phis[name].type
        return (
            f"  {name}.{copy} = phi {kind} "
            f"[ {before}, %{label}.first ], [ {again}, %{label} ]"
        )


def _stages_of(loop: _Loop, cut: float) -> _Stages:
    """Cut the longest dependence chain of instructions into two stages."""
    length, middles = _times(loop)
    frame = set(loop.frame)
    sums = loop.phis.keys() - loop.counters(frame)
    work = [place for place in range(len(loop.body)) if place not in frame]
    late: set[int] = set()
    for place in work:
        line = loop.body[place]
        ends = line.op == "store" or not sums.isdisjoint(line.uses)
        follows = not late.isdisjoint(loop.waits[place])
        if ends or follows or middles[place] >= length * cut:
            late.add(place)
    if not {loop.places.get(loop.phis[name].following, -1) for name in sums} <= late:
        raise _Unfit
    order = sorted(work, key=lambda place: middles[place])
    merged = sorted(
        order, key=lambda place: middles[place] - length * cut * (place in late)
    )
    return _Stages(
        loop,
        [place for place in order if place not in late],
        [place for place in order if place in late],
        [(place, LATE if place in late else EARLY) for place in merged],
    )


def _times(loop: _Loop) -> tuple[float, list[float]]:
    """Return the longest chain in cycles, and each instruction's best start on it.

    Halfway between the earliest time at which its operands are there and the latest at
    which nothing waits for it.
    """
    start, left = times([line.op for line in loop.body], loop.waits)
    both = list(zip(start, left, strict=True))
    length = max(begin + rest for begin, rest in both)
    return length, [(begin + length - rest) / 2 for begin, rest in both]


def _check_memory(text: str, stages: _Stages) -> None:
    """Raise unless no other step may store where a load is early."""
    lists = {name: frozenset(given.split(", ")) for name, given in _LIST.findall(text)}
    body, places = stages.loop.body, stages.loop.places

    def moving(text: str) -> str:
        found = _POINTER.search(text)
        return found[1] if found and found[1] in places else text

    loads = [body[place].text for place in stages.early if body[place].op == "load"]
    stores = [body[place].text for place in stages.late if body[place].op == "store"]
    for load, store in product(loads, stores):
        mine = lists.get(dict(_SCOPES.findall(load)).get("alias.scope", ""))
        others = lists.get(dict(_SCOPES.findall(store)).get("noalias", ""))
        apart = mine and others and mine <= others
        if not apart and moving(load) != moving(store):
            raise _Unfit
