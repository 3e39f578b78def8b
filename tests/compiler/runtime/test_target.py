"""The Target protocol: what each target can do, and how it refuses the rest."""

import numpy as np
import pytest
from cuda_devices import EmulatedDevice

import staticgrad as sg
from staticgrad.compiler.cuda.device import using

CAN = {
    "cpu": {"program_frame", "profile"},
    "cuda": {"call_on_device"},
    "reference": set(),
}
VALUES = [np.ones(3, np.float32)]
ASKED = {
    "program_frame": ({"n": 3},),
    "profile": (VALUES, {"n": 3}, 1),
    "call_on_device": (VALUES, {"n": 3}),
}


def target_of(name):
    x = sg.input("x", ("n",))
    with using(EmulatedDevice()):
        return sg.compile(x * 2, target=name).target


@pytest.mark.parametrize("name", CAN)
@pytest.mark.parametrize("what", ASKED)
def test_what_a_target_cannot_do_is_refused_by_name(name, what):
    ask = getattr(target_of(name), what)
    if what in CAN[name]:
        ask(*ASKED[what])
        return
    with pytest.raises(sg.GraphError, match=f"requires target .*, got '{name}'"):
        ask(*ASKED[what])


@pytest.mark.parametrize("name", CAN)
def test_every_target_calls_binds_explains_and_has_source(name):
    target = target_of(name)
    (found,) = target.call(VALUES, {"n": 3})
    assert found.tolist() == [2, 2, 2]
    runner = target.bind(VALUES, {"n": 3})
    runner.run()
    assert runner.outputs[0].tolist() == [2, 2, 2]
    assert target.explain((), ()).startswith(f"target {name}")
    assert bool(target.source()) == (name != "reference")
    assert (target.plan({"n": 3}) is None) == (name == "reference")
    assert (target.native_loop, target.gpu is target) == (name == "cpu", name == "cuda")
