"""Translation of kernel source to LLVM IR, without Numba's front end.

The source of a kernel is Numba source, and Numba can compile it; but of the 70 ms that
this takes, 40 are type inference and lowering of general Python. The kernel language is
small: numbers and addresses, assignments, loops, branches, calls of intrinsics and of
functions that are written in it too. So its syntax tree is walked once, each name keeps
the one type that it has, and the same intrinsics emit the same instructions
(typed.py).

What is not in this language raises Unsupported, and Numba compiles it instead
(native_compile.py). Tests compare both.

Names that are assigned once are values; others live in memory that LLVM turns into
registers. Functions are inlined. A loop's test is at its end, as LLVM wants it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial, reduce
from typing import Any, TypeAlias, cast

import numpy as np
from llvmlite import ir
from numba import types

from staticgrad.compiler.codegen.llvm.conversions import NUMBERS
from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.codegen.llvm.loop_hints import LONG, hints_of, known_steps
from staticgrad.compiler.codegen.llvm.typed import (
    INT,
    LONG_TYPE,
    TypedValue,
    Unsupported,
    binary,
    compare,
    constant,
    converted,
    extreme,
    intrinsic,
    long,
    negative,
    together,
    unliteral,
)
from staticgrad.compiler.host import numba_internals as internals
from staticgrad.compiler.host import processor
from staticgrad.compiler.host.gc_pause import without_collections
from staticgrad.compiler.host.numba_internals import IRModule

Static: TypeAlias = Any
"""A Python object that is known while the source is read: a function, a module."""


@dataclass(slots=True)
class _Scope:
    """Names of one function during its translation.

    `known` are Python objects, `values` the variables assigned once, `slots` the memory
    of those assigned `often`. Results go to `results`, and control to `leave`.
    """

    known: Mapping[str, Static]
    often: frozenset[str]
    values: dict[str, TypedValue] = field(default_factory=dict)
    slots: dict[str, TypedValue] = field(default_factory=dict)
    leave: Any = None
    results: list[TypedValue] | None = None


_NUMBERS = {
    np.float32: types.float32,
    np.float64: types.float64,
    np.int64: types.int64,
    np.uint64: types.uint64,
}
_FUNCTIONS = {np.isfinite: NUMBERS["isfinite"].make()}
_EXTREMES = {min: "<", max: ">"}
_BUILTINS = {"min": min, "max": max}
_WHOLE_REGISTERS = '"prefer-vector-width"="512"'
"""LLVM's default on Intel's servers is 256 bits. Measured on a Sapphire Rapids: exp,
sigmoid, gelu and log1p of 8,192 float32 take 0.75-0.85 of the time."""


def translated(text: str, names: Mapping[str, Static], symbol: str) -> IRModule:
    """Return the IR of the function `kernel` of `text`, whose arguments are int64.

    What stands before it makes functions that it calls (tile_calls.py). Raises
    Unsupported for what the kernel language does not have.
    """
    made, function = _parsed(text)
    nodes = (node for one in made for node in ast.walk(one))
    read = (n.id for n in nodes if isinstance(n, ast.Name) and n.id in names)
    known = {name: names[name] for name in read}
    exec(compile(ast.Module(made, []), "<kernel>", "exec"), known)  # noqa: S102  ours
    module = _module(function, ChainMap(known, cast("Any", names)), symbol)
    unrolls = any(getattr(value, "unrolls", False) for value in known.values())
    return replace(module, unrolls=True) if unrolls else module


def translated_function(function: Callable[..., None], symbol: str) -> IRModule:
    """Return the IR of a Python function that is written in the kernel language."""
    tree, names = _source_of(function)
    return _module(tree, names, symbol)


def _module(
    tree: ast.FunctionDef, names: Mapping[str, Static], symbol: str
) -> IRModule:
    module = ir.Module(symbol)
    module.triple, module.data_layout = internals.module_header()
    count = len(tree.args.args)
    kind = ir.FunctionType(ir.VoidType(), [LONG_TYPE] * count)
    function = ir.Function(module, kind, symbol)
    function.attributes.add("nounwind")
    if processor.vector_bytes() == 64:
        set.add(function.attributes, _WHOLE_REGISTERS)  # llvmlite knows no such name
    entry = function.append_basic_block("entry")
    start = function.append_basic_block("start")
    translator = _Translator(entry, start)
    arguments = [TypedValue(INT, argument) for argument in function.args]
    try:
        with without_collections():
            translator.call(tree, names, arguments)
            translator.b.ret_void()
            ir.IRBuilder(entry).branch(start)
            text = str(module)
    except (AttributeError, LookupError, TypeError, NotImplementedError) as error:
        raise Unsupported(f"{symbol}: {error!r}") from error
    return IRModule(symbol, text, translator.unrolls)


def _parsed(text: str) -> tuple[list[ast.stmt], ast.FunctionDef]:
    """Return the function at the end of source, and what precedes it."""
    *before, function = ast.parse(text).body
    if not isinstance(function, ast.FunctionDef):
        raise Unsupported("not a function")
    return before, function


@cache
def _tree_of(code: Any) -> ast.FunctionDef:
    try:
        return _parsed(textwrap.dedent(inspect.getsource(code)))[1]
    except (OSError, SyntaxError) as error:
        raise Unsupported(f"no source of {code.co_name}") from error


def _source_of(function: Any) -> tuple[ast.FunctionDef, Mapping[str, Static]]:
    """Return the syntax tree of a Python function, and the objects that it names."""
    cells = function.__closure__ or ()
    inner = {
        name: cell.cell_contents
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True)
    }
    known = function.__globals__ | inner
    return _tree_of(function.__code__), known


def _assigned_often(tree: ast.FunctionDef) -> frozenset[str]:
    """Return names with several assignments, with arguments and loop targets."""
    counts = Counter(argument.arg for argument in tree.args.args)
    loops: set[str] = set()
    left: list[ast.stmt] = list(tree.body)
    while left:
        statement = left.pop()
        match statement:
            case ast.Assign(targets=[target]):
                counts.update(_names_in(target))
            case ast.AugAssign(target=target):
                counts.update(_names_in(target))
            case ast.For(target=target):
                # A target alone is a value, new in each loop that has it.
                loops.update(_names_in(target))
        left.extend(getattr(statement, "body", ()))
        left.extend(getattr(statement, "orelse", ()))
    return frozenset(n for n, count in counts.items() if count + (n in loops) > 1)


def _names_in(node: ast.expr) -> list[str]:
    elements = node.elts if isinstance(node, ast.Tuple) else [node]
    return [element.id for element in elements if isinstance(element, ast.Name)]


class _Translator:
    """Translator of nested functions, statements and expressions to one function."""

    def __init__(self, entry: Any, start: Any) -> None:
        self.entry = entry
        self.b = ir.IRBuilder(start)
        self.scope = _Scope({}, frozenset())
        self.unrolls = False

    # Functions

    def call(
        self, tree: ast.FunctionDef, names: Mapping[str, Static], args: list[TypedValue]
    ) -> list[TypedValue] | None:
        """Inline a function's body; return its results."""
        outer = self.scope
        self.scope = _Scope(names, _assigned_often(tree))
        self.scope.leave = self.b.append_basic_block("leave")
        for argument, value in zip(tree.args.args, args, strict=True):
            self._assign(argument.arg, value)
        self._body(tree.body)
        inner, self.scope = self.scope, outer
        if not self.b.block.is_terminated:
            self.b.branch(inner.leave)
        self.b.position_at_end(inner.leave)
        if inner.results is None:
            return None
        return [self._loaded(slot) for slot in inner.results]

    def _body(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if self.b.block.is_terminated:
                return
            self._statement(statement)

    # Statements

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                return
            case ast.Expr(value=ast.Call() as call):
                self._call(call)
            case ast.Assign(targets=[target], value=value):
                self._unpack(target, value)
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                now = self._name(name)
                self._assign(name, binary(self.b, op, now, self._value(value)))
            case ast.For():
                self._for(statement)
            case ast.While(test=test, body=body, orelse=[]):
                self._while(test, body)
            case ast.If():
                self._if(statement)
            case ast.Return(value=value):
                self._return(value)
            case _:
                raise Unsupported(ast.unparse(statement))

    def _unpack(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._assign(target.id, self._value(value))
            return
        if not isinstance(target, ast.Tuple):
            raise Unsupported(ast.unparse(target))
        values = self._several(value)
        for name, one in zip(_names_in(target), values, strict=True):
            self._assign(name, one)

    def _several(self, node: ast.expr) -> list[TypedValue]:
        """Return the values of a tuple, written out or returned by a function."""
        if isinstance(node, ast.Tuple):
            return [self._value(element) for element in node.elts]
        if isinstance(node, ast.Call):
            found = self._call(node)
            if isinstance(found, list):
                return found
        raise Unsupported(ast.unparse(node))

    def _assign(self, name: str, value: TypedValue) -> None:
        value = unliteral(value)
        if name not in self.scope.often:
            self.scope.values[name] = value
            return
        slot = self.scope.slots.get(name)
        if slot is None:
            slot = self.scope.slots[name] = self._slot(value)
        self._keep(value, slot)

    def _slot(self, like: TypedValue) -> TypedValue:
        return TypedValue(like.kind, ir.IRBuilder(self.entry).alloca(like.value.type))

    def _keep(self, value: TypedValue, slot: TypedValue) -> None:
        if value.kind != slot.kind:
            raise Unsupported(f"{value.kind} and {slot.kind} of one name")
        self.b.store(value.value, slot.value)

    def _loaded(self, slot: TypedValue) -> TypedValue:
        return TypedValue(slot.kind, self.b.load(slot.value))

    def _return(self, node: ast.expr | None) -> None:
        if node is not None:
            whole = isinstance(node, ast.Tuple)
            values = self._several(node) if whole else [self._value(node)]
            if self.scope.results is None:
                self.scope.results = [self._slot(value) for value in values]
            for value, slot in zip(values, self.scope.results, strict=True):
                self._keep(value, slot)
        self.b.branch(self.scope.leave)

    def _for(self, node: ast.For) -> None:
        """Translate a loop over a range, tested at its end."""
        match node:
            case ast.For(
                target=ast.Name(id=name),
                iter=ast.Call(func=ast.Name(id="range"), args=bounds, keywords=[]),
                orelse=[],
            ):
                start, stop, step = self._range(bounds)
            case _:
                raise Unsupported(ast.unparse(node))
        b = self.b
        body, after = b.append_basic_block("body"), b.append_basic_block("after")
        before_stop = "<" if step.constant > 0 else ">"
        b.cbranch(b.icmp_signed(before_stop, start, stop), body, after)
        before = b.block
        b.position_at_end(body)
        index = b.phi(LONG_TYPE)
        index.add_incoming(start, before)
        self._assign(name, TypedValue(INT, index))
        self._body(node.body)
        following = b.add(index, step, flags=("nsw",))
        index.add_incoming(following, b.block)
        more = b.icmp_signed(before_stop, following, stop)
        again = b.cbranch(more, body, after)
        steps = known_steps(start, stop)
        self.unrolls |= steps >= LONG
        if hints := hints_of(b.module, steps):
            again.set_metadata("llvm.loop", hints)
        b.position_at_end(after)

    def _range(self, bounds: Sequence[ast.expr]) -> tuple[Value, Value, Value]:
        found = [self._long(bound) for bound in bounds]
        if len(found) == 1:
            found.insert(0, long(0))
        if len(found) == 2:
            found.append(long(1))
        start, stop, step = found
        if not isinstance(step, ir.Constant) or step.constant == 0:
            raise Unsupported("a range with a step of unknown sign")
        return start, stop, step

    def _long(self, node: ast.expr) -> Value:
        found = self._value(node)
        if found.kind != INT:
            raise Unsupported(f"{ast.unparse(node)} is no int64")
        return found.value

    def _while(self, test: ast.expr, body: Sequence[ast.stmt]) -> None:
        b = self.b
        inside, after = b.append_basic_block("while"), b.append_basic_block("after")
        b.cbranch(self._truth(test), inside, after)
        b.position_at_end(inside)
        self._body(body)
        if not b.block.is_terminated:
            b.cbranch(self._truth(test), inside, after)
        b.position_at_end(after)

    def _if(self, node: ast.If) -> None:
        b = self.b
        then, other = b.append_basic_block("then"), b.append_basic_block("else")
        after = b.append_basic_block("after")
        b.cbranch(self._truth(node.test), then, other)
        for block, body in ((then, node.body), (other, node.orelse)):
            b.position_at_end(block)
            self._body(body)
            if not b.block.is_terminated:
                b.branch(after)
        b.position_at_end(after)

    def _truth(self, node: ast.expr) -> Value:
        found = self._value(node)
        if found.kind == types.boolean:
            return found.value
        if found.kind != INT:
            raise Unsupported(f"the truth of {ast.unparse(node)}")
        return self.b.icmp_unsigned("!=", found.value, long(0))

    # Expressions

    def _value(self, node: ast.expr) -> TypedValue:
        """Return the value of an expression, no longer a literal."""
        return unliteral(self._expression(node))

    def _expression(self, node: ast.expr) -> TypedValue:
        match node:
            case ast.Constant(value=value):
                return constant(value)
            case ast.Name(id=name):
                return self._name(name)
            case ast.Attribute():
                return constant(self._static(node))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return negative(self.b, self._expression(operand))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return TypedValue(types.boolean, self.b.not_(self._truth(operand)))
            case ast.BinOp(left=left, op=op, right=right):
                return binary(
                    self.b, op, self._expression(left), self._expression(right)
                )
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return compare(self.b, op, self._value(left), self._value(right))
            case ast.BoolOp(op=op, values=values):
                return self._all_or_any(isinstance(op, ast.And), values)
            case ast.IfExp():
                return self._either(node)
            case ast.Call():
                found = self._call(node)
                if isinstance(found, TypedValue):
                    return found
        raise Unsupported(ast.unparse(node))

    def _name(self, name: str) -> TypedValue:
        if name in self.scope.slots:
            return self._loaded(self.scope.slots[name])
        if name in self.scope.values:
            return self.scope.values[name]
        return constant(self.scope.known[name])

    def _static(self, node: ast.expr) -> Static:
        """Return the Python object of a name, or of an attribute of a module."""
        if isinstance(node, ast.Attribute):
            return getattr(self._static(node.value), node.attr)
        if isinstance(node, ast.Name):
            return self.scope.known.get(node.id) or _BUILTINS[node.id]
        raise Unsupported(ast.unparse(node))

    def _all_or_any(self, both: bool, nodes: Sequence[ast.expr]) -> TypedValue:
        """Evaluate conditions until one of them decides."""
        b, after = self.b, self.b.append_basic_block("decided")
        decided = []
        for node in nodes[:-1]:
            further = b.append_basic_block("further")
            blocks = (further, after) if both else (after, further)
            b.cbranch(self._truth(node), *blocks)
            decided.append(b.block)
            b.position_at_end(further)
        last = self._truth(nodes[-1])
        decided.append(b.block)
        b.branch(after)
        b.position_at_end(after)
        total = b.phi(last.type)
        for block in decided[:-1]:
            total.add_incoming(ir.Constant(last.type, int(not both)), block)
        total.add_incoming(last, decided[-1])
        return TypedValue(types.boolean, total)

    def _either(self, node: ast.IfExp) -> TypedValue:
        b = self.b
        then, other = b.append_basic_block("then"), b.append_basic_block("else")
        after = b.append_basic_block("after")
        b.cbranch(self._truth(node.test), then, other)
        found = []
        for block, value in ((then, node.body), (other, node.orelse)):
            b.position_at_end(block)
            found.append((self._value(value), b.block))
        kind = together(found[0][0], found[1][0])
        results = []
        for result, block in found:
            b.position_at_end(block)
            results.append((converted(b, result, kind).value, block))
            b.branch(after)
        b.position_at_end(after)
        merged = b.phi(results[0][0].type)
        for value, block in results:
            merged.add_incoming(value, block)
        return TypedValue(kind, merged)

    # Calls

    def _call(self, node: ast.Call) -> TypedValue | list[TypedValue] | None:
        function = self._static(node.func)
        args = [self._argument(argument) for argument in node.args]
        if node.keywords:
            raise Unsupported(ast.unparse(node))
        if function in _NUMBERS:
            return converted(self.b, unliteral(args[0]), _NUMBERS[function])
        if function in _EXTREMES:
            pick = partial(extreme, self.b, _EXTREMES[function])
            return reduce(pick, map(unliteral, args))
        definition = internals.definition_of(_FUNCTIONS.get(function, function))
        if definition is not None:
            return intrinsic(self.b, *definition, args)
        tree, names = _source_of(getattr(function, "py_func", function))
        found = self.call(tree, names, [unliteral(argument) for argument in args])
        return found[0] if found is not None and len(found) == 1 else found

    def _argument(self, node: ast.expr) -> TypedValue:
        """Return an argument; a tuple becomes an array, or a structure if mixed."""
        if not isinstance(node, ast.Tuple):
            return self._expression(node)
        found = [unliteral(self._expression(element)) for element in node.elts]
        kinds, values = [one.kind for one in found], [one.value for one in found]
        form: Any = ir.LiteralStructType([value.type for value in values])
        if len(set(kinds)) == 1:
            form = ir.ArrayType(values[0].type, len(values))
        total = ir.Constant(form, ir.Undefined)
        for place, value in enumerate(values):
            total = self.b.insert_value(total, value, place)
        return TypedValue(types.Tuple(kinds), total)
