"""What `explain(passes=True)` tells of the stages of the compiler."""

import numpy as np

import staticgrad as sg
from staticgrad.compiler.compile import SCHEDULE_PASSES


def stages_of(f):
    """The lines of `explain` about stages, by the names of those."""
    lines = f.explain(passes=True).splitlines()
    own = lines[lines.index("passes that changed the graph, each verified after it:") :]
    return {line.split(":")[0].strip(): line for line in own}


def test_explain_tells_what_each_stage_changed():
    with sg.Graph():
        x = sg.input("x", ("n",))
        y = sg.sum(sg.log(1 + sg.exp(sg.tanh(x))) * sg.exp(x[::-1]))
    f = sg.compile(y, memory_budget="1MB")
    assert "passes" not in f.explain()
    found = stages_of(f)
    assert "softplus 0 -> 1" in found["stabilise"]
    assert "; after folding, which" in found["stabilise"]
    assert "channels_last" not in found  # it changed nothing
    names = ["arranged", *(stage.run.__name__ for stage in SCHEDULE_PASSES)]
    assert list(found)[-len(names) + 1 :] == [n for n in names if n != "within"]
    f(np.ones(1000))
    found = stages_of(f)
    assert list(found)[-len(names) :] == names
    assert "within: nothing; " in found["within"]
    assert " bytes; " in found["in_place"]
    assert "verified" not in stages_of(sg.compile(y, verify=False))
    assert "no stages" in sg.compile(y, target="reference").explain(passes=True)


def test_what_explain_goes_through_again_is_what_runs():
    with sg.Graph():
        x = sg.input("x", (3,))
        y = sg.sum(sg.exp(x) @ sg.parameter(np.ones((3, 3))))
    f = sg.compile(y)
    root = f.target.code.root
    assert f._changes((), None)[-1].after.kernels == root.kernels
    f.tap(y, lambda _: None)
    tapped = f.target.code.root
    assert len(tapped.kernels) > len(root.kernels)
    assert f"arranged: {len(tapped.kernels)} kernels" in stages_of(f)["arranged"]
