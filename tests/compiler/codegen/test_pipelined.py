"""Do loops in two stages compute what they did, and stay whole where they must?"""

import ctypes
import re

import numpy as np
import pytest
from handwritten import N, kernel

from staticgrad.compiler.codegen import call_kernel as calling
from staticgrad.compiler.codegen import native_compile
from staticgrad.compiler.codegen.call_kernel import BoundKernel
from staticgrad.compiler.codegen.kernel_source import NativeKernel
from staticgrad.compiler.codegen.llvm import translate
from staticgrad.compiler.codegen.llvm.software_pipelining import MOST_PASSED, pipelined
from staticgrad.compiler.codegen.loops.loop_source import kernel_source
from staticgrad.compiler.codegen.text_emitter import canonical
from staticgrad.compiler.host import numba_internals as internals
from staticgrad.compiler.host import processor
from staticgrad.compiler.kernel_ir.kernels import Access, Compute, Load, Loop, Store
from staticgrad.ir.expression import parse
from staticgrad.ir.types import FLOAT32, FLOAT64

LANES, LINKS = 16, 100
CHAIN = [f"  %v{k + 1} = fmul <16 x float> %v{k}, %scale" for k in range(LINKS)]
TEXT = """
declare <16 x float> @stranger(<16 x float>)

define void @f(ptr %x, ptr %y, ptr %z, i64 %count) {
start:
  %scale = load <16 x float>, ptr %z, align 4
  br label %loop

loop:                                             ; preds = %loop, %start
  %0 = phi i64 [ 0, %start ], [ %next, %loop ]
  %place = getelementptr float, ptr %x, i64 %0
  %other = getelementptr float, ptr %y, i64 %0
  %v0 = load <16 x float>, ptr %place, align 4, !alias.scope !0
CHAIN
  store <16 x float> %v100, ptr %place, align 4
  %next = add nuw nsw i64 %0, 16
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %after

after:                                            ; preds = %loop
  ret void
}

!0 = !{!1}
!1 = distinct !{!1, !2}
!2 = distinct !{!2}
!3 = !{!1, !4}
!4 = distinct !{!4, !2}
"""
IN_PLACE = TEXT.replace("CHAIN", "\n".join(CHAIN))
STORE = "store <16 x float> %v100, ptr %place, align 4"


def changed(*pairs):
    text = IN_PLACE
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


ELSEWHERE = changed((STORE, STORE.replace("%place", "%other") + ", !noalias !3"))
SUMMED = changed(
    ("  %place =", "  %sum = phi <16 x float> [ zeroinitializer, %start ], "
     "[ %more.sum, %loop ]\n  %place ="),
    ("  store", "  %more.sum = fadd <16 x float> %sum, %v100\n  store"),
    ("  ret void", "  store <16 x float> %more.sum, ptr %z, align 4\n  ret void"),
)  # fmt: skip
ON_EXIT = SUMMED.replace(
    "  store <16 x float> %more.sum",
    "  %found = phi <16 x float> [ %more.sum, %loop ]\n  store <16 x float> %found",
)


def followed(text):
    """`text` with a second loop, whose sum begins with that of the first."""
    before, loop, after = re.split(r"^(?=loop:|after:)", text, flags=re.MULTILINE)
    own = re.sub(r"%(?!x|y|z|scale|count|start|loop|after)(?=[\w.])", "%b", loop)
    own = own.replace("%loop", "%again").replace("loop:", "again:")
    own = own.replace("%start", "%loop").replace("zeroinitializer", "%more.sum")
    first = before + loop.replace("label %after", "label %again")
    return first + own + after.replace("%more.sum", "%bmore.sum")


FOLLOWED = followed(SUMMED)
TURNED = IN_PLACE.replace("slt", "sge").replace(
    "label %loop, label %after", "label %after, label %loop"
)
MADE = {"in place": IN_PLACE, "elsewhere": ELSEWHERE, "summed": SUMMED,
        "on exit": ON_EXIT, "followed": FOLLOWED, "turned": TURNED}  # fmt: skip
KEPT = {
    "short": changed(("\n".join(CHAIN[:50]) + "\n", ""), ("%v50,", "%v0,")),
    "nothing known of y": changed((STORE, STORE.replace("%place", "%other"))),
    "other scopes": changed(
        (STORE, STORE.replace("%place", "%other") + ", !noalias !5"),
        ("!3 = ", "!5 = !{!4}\n!3 = "),
    ),
    "stores where the next step loads": changed(
        ("  %v0 =", "  %ahead = add i64 %0, 16\n"
         "  %following = getelementptr float, ptr %x, i64 %ahead\n  %v0 ="),
        (STORE, STORE.replace("%place", "%following")),
    ),
    "one place for all steps": changed(("ptr %place,", "ptr %x,")),
    "an early value is used behind": changed(
        ("  ret void", "  store <16 x float> %v9, ptr %z, align 4\n  ret void")
    ),
    "the counter is used behind": changed(
        ("  ret void", "  store i64 %next, ptr %z, align 4\n  ret void")
    ),
    "a stranger": changed(
        (CHAIN[3], "  %v4 = call <16 x float> @stranger(<16 x float> %v3)")
    ),
    "a chain from step to step": changed(
        ("  %place =", "  %last = phi <16 x float> [ zeroinitializer, %start ], "
         "[ %v9, %loop ]\n  %place ="),
        (CHAIN[50], "  %v51 = fadd <16 x float> %last, %v50"),
    ),
    "volatile": changed(("%v0 = load", "%v0 = load volatile")),
    "bits of a mask pass": changed(
        (CHAIN[9], CHAIN[9] + "\n  %less = fcmp olt <16 x float> %v9, %scale"
         "\n  %bits = bitcast <16 x i1> %less to i16"),
        *((CHAIN[k - 1],
           f"  %any{k} = icmp ne i16 %bits, {k}\n  %v{k} = select i1 %any{k}, "
           f"<16 x float> %v{k - 1}, <16 x float> %scale") for k in (20, 98)),
    ),
    "two functions": IN_PLACE + "\ndefine void @g() {\n  ret void\n}\n",
    "half registers": changed(("<16 x", "<8 x"), ("i64 %0, 16", "i64 %0, 8")),
    "too much passes": changed(
        (CHAIN[90], "\n".join(
            [f"  %a{k + 1} = fadd <16 x float> %{'a' if k else 'v'}{k or 90}, %v{k}"
             for k in range(MOST_PASSED + 1)]
            + [f"  %v91 = fmul <16 x float> %a{MOST_PASSED + 1}, %scale"])),
    ),
}  # fmt: skip


def run(text, steps):
    """The arrays that the function of `text`, without further passes, leaves."""
    module = internals.IRModule("f", "", rewrite=lambda _: text)
    linked = internals.load_object_code(internals.compile_module(module))
    draw = np.random.default_rng(steps)
    x = draw.uniform(0.5, 2, (steps + 1) * LANES).astype("f4")
    y, z = np.zeros_like(x), np.full(LANES, 1.01, "f4")
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)
    function(linked.address)(x.ctypes.data, y.ctypes.data, z.ctypes.data, steps * LANES)
    return x, y, z


@pytest.mark.parametrize("text", MADE.values(), ids=MADE)
def test_two_stages_compute_the_same(text):
    made = pipelined(text)
    assert "loop.first:" in made
    if processor.vector_bytes() == 64:
        for steps in (1, 2, 3, 10):
            for one, other in zip(run(text, steps), run(made, steps), strict=True):
                assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
def test_what_stays_whole(text):
    assert pipelined(text) == text


def long_kernel(dtype):
    """The hidden state of an LSTM from x and y, written in place of x."""
    calls = (
        ("sigmoid({0})", 0), ("sigmoid({0})", 1), ("tanh({0})", 1),
        ("tanh({0} * {1} + {2} * {3})", 0, 3, 2, 4), ("{0} * {1}", 2, 5),
    )  # fmt: skip
    body = (
        *(Load(k, Access(k, (1,)), dtype) for k in (0, 1)),
        *(
            Compute(2 + k, parse(call), of, dtype)
            for k, (call, *of) in enumerate(calls)
        ),
        Store(Access(0, (1,)), 6),
    )
    return kernel((N,), [("update", dtype), ("read", dtype)], (Loop(0, body),))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_the_bits_of_a_long_kernel_stay(monkeypatch, dtype):
    made = long_kernel(dtype)
    text, ways, changes = canonical(kernel_source(made).text), [], []

    def watched(given):
        changes.append(pipelined(given) != given)
        return pipelined(given)

    for number, rewrite in enumerate((watched, lambda given: given)):
        monkeypatch.setattr(translate, "pipelined", rewrite)
        address = native_compile.compiled(text, f"{number:024}").address
        ways.append(NativeKernel(made, address, (), False, 0.0))
    for length in (1, 16, 31, 32, 48, 1000):
        x, y = np.random.default_rng(length).normal(size=(2, length)).astype(dtype)
        found = []
        for way in ways:
            monkeypatch.setattr(calling, "native", lambda _kernels, way=way: [way])
            found.append(x.copy())
            BoundKernel(made, [found[-1], y], {"n": length}).run()
        assert found[0].tobytes() == found[1].tobytes()
        gates = 1 / (1 + np.exp(-np.stack([x, y])))
        exact = gates[0] * np.tanh(x * gates[1] + gates[0] * np.tanh(y))
        np.testing.assert_allclose(found[0], exact, rtol=1e-5, atol=1e-6)
    assert changes == [True] * (processor.vector_bytes() == 64)
