"""Branches and loops inside of a captured graph: the driver's conditional nodes.

A kernel writes a flag whether to continue, a second one passes it to the driver. The
first is ordinary source; the second is PTX, because it calls a function that the driver
resolves when it loads the code. Source: CUDA C++ Programming Guide, conditional graph
nodes.
"""

from __future__ import annotations

from staticgrad.compiler.cuda.source.cuda_loops import CudaSource
from staticgrad.compiler.cuda.source.statement_lines import CODE, SITE, VALUE
from staticgrad.compiler.cuda.source.typed_text import memory_name
from staticgrad.compiler.runtime.vm import LOOP_LIMIT
from staticgrad.ir.types import DType

ENDLESS = 1 << 62
"""The limit of a loop that has none."""

SETTER = "sg_set_condition"
SETTING = f"""
.version 8.3
.target sm_75
.address_size 64

.extern .func cudaGraphSetConditional
(
    .param .b64 handle,
    .param .b32 value
);

.visible .entry {SETTER}(
    .param .u64 condition,
    .param .u64 flag
)
{{
    .reg .b32 %r<2>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [condition];
    ld.param.u64 %rd2, [flag];
    cvta.to.global.u64 %rd3, %rd2;
    ld.global.u32 %r1, [%rd3];
    {{
        .param .b64 first;
        .param .b32 second;
        st.param.b64 [first], %rd1;
        st.param.b32 [second], %r1;
        call.uni cudaGraphSetConditional, (first, second);
    }}
    ret;
}}
"""


def decision_source(dtype: DType) -> CudaSource:
    """Return the kernel that tests ``value[0]`` against `wanted`, into ``flag``.

    A `limit` of at least 0 is that of a loop: it ends after an error, and at that count
    reports LOOP_LIMIT for the limit of that `number`.
    """
    kind = memory_name(dtype)
    text = f"""def kernel(flag, value, wanted, negated, counter, limit, number, status):
    if cuda.grid(1) == 0:
        go = int64(1) if int64(value[0]) == wanted else int64(0)
        go = int64(go ^ negated)
        if limit >= int64(0):
            if status[{CODE}] != 0:
                go = int64(0)
            if (go == int64(1)) & (counter[0] == limit):
                status[{CODE}] = {LOOP_LIMIT}
                status[{SITE}] = number
                status[{VALUE}] = limit
                go = int64(0)
        flag[0] = go
"""
    kinds = ("*int64", f"*{kind}", "int64", "int64", "*int64", "int64", "int64")
    return CudaSource(text, (*kinds, "status"), (), None, False, False)


def increment_source() -> CudaSource:
    """Return the kernel that counts a step of a loop."""
    text = """def kernel(counter):
    if cuda.grid(1) == 0:
        counter[0] = int64(counter[0] + int64(1))
"""
    return CudaSource(text, ("*int64",), (), None, False, False)
