"""Every kind of error that a user can meet, in one form.

`<op> requires <rule>, got <what>; <what to do>  at file.py:line`, where the line is the
user's. What single ops refuse is in test_ops_errors.py.
"""

import copy
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import staticgrad as sg

FILE = re.escape(Path(__file__).name)
FORM = re.compile(rf"(?s)^.+ requires .+, got .+; .+  at {FILE}:\d+(  in step .*)?$")

ONES = np.ones((4, 3), np.float32)
LABELS = np.zeros(4, np.int64)
OPT = sg.optim.SGD(0.1)


class Model:
    """Graph from which most cases start."""

    def __init__(self):
        with sg.Graph() as self.graph:
            self.x = sg.input("x", ("batch", 3))
            self.y = sg.input("y", ("batch",), dtype="int64")
            self.w = sg.parameter(np.ones((3, 2), np.float32), name="w")
            self.unused = sg.parameter(np.ones(2, np.float32), name="unused")
            self.out = self.x @ self.w
            self.loss = sg.nn.cross_entropy(self.out, self.y)

    def compiled(self, **options):
        return sg.compile(self.loss, inputs=[self.x, self.y], **options)

    def trainer(self, **options):
        return sg.Trainer(self.loss, OPT, **options)

    def fit(self, data=None, **options):
        data = {"x": ONES, "y": LABELS} if data is None else data
        return self.trainer().fit(data, progress=False, **options)

    def fit_fixed(self, data):
        with sg.Graph():
            x = sg.input("x", (4, 3))
            loss = sg.mean(x @ self.w)
        return sg.Trainer(loss, OPT).fit({"x": data}, batch_size=4, progress=False)

    def reopened(self):
        with self.graph, self.graph:
            pass

    def assign(self, value):
        self.w.value = value


def nan_step(m):
    m.trainer().step(x=ONES * np.nan, y=LABELS)


def bound_twice(m):
    m.compiled().bind(ONES, LABELS).repeat(0)


SHAPE, DTYPE, GRAPH = sg.ShapeError, sg.DTypeError, sg.GraphError
CASES = {
    # building
    "broadcast": (SHAPE, lambda m: m.w + np.ones(5, np.float32)),
    "matmul": (SHAPE, lambda m: m.w @ m.w),
    "static index": (sg.IndexOutOfRange, lambda m: m.w[7]),
    "input name": (GRAPH, lambda m: sg.input("not a name", ())),
    "input dtype": (DTYPE, lambda m: sg.input("x", (), dtype="complex64")),
    "input shape": (SHAPE, lambda m: sg.input("x", (-3,))),
    "parameter": (DTYPE, lambda m: sg.parameter("text")),
    "constant": (DTYPE, lambda m: sg.constant(m.w)),
    "reopened": (GRAPH, lambda m: m.reopened()),
    "size is data": (SHAPE, lambda m: sg.zeros(sg.argmax(m.x))),
    "shape is data": (SHAPE, lambda m: sg.broadcast_to(m.loss, (m.y[0], 2))),
    "arange is data": (SHAPE, lambda m: sg.arange(m.y[0])),
    "linspace is data": (SHAPE, lambda m: sg.linspace(0, 1, m.y[0])),
    "scan is data": (
        SHAPE,
        lambda m: sg.scan(lambda c, _: (c, c), 0.0, length=m.y[0]),
    ),
    "size as number": (TypeError, lambda m: range(m.x.shape[0])),
    "seed": (DTYPE, lambda m: sg.random.key(m.loss)),
    "seeds": (SHAPE, lambda m: sg.random.key(m.y)),
    "format": (TypeError, lambda m: f"{m.loss:.3f}"),
    "copy": (TypeError, lambda m: copy.deepcopy(m.compiled())),
    "vectorize": (TypeError, lambda m: np.vectorize(abs)(m.w)),
    "update outside": (GRAPH, lambda m: sg.update(m.w, m.w)),
    "if": (GRAPH, lambda m: bool(m.loss)),
    "asarray": (TypeError, lambda m: np.asarray(m.w)),
    "item": (TypeError, lambda m: m.w.__setitem__(0, 1)),
    "accuracy": (SHAPE, lambda m: sg.metrics.accuracy(m.out, m.w)),
    "assign shape": (SHAPE, lambda m: m.assign(np.ones(3))),
    "assign dtype": (DTYPE, lambda m: m.assign(np.ones((3, 2), complex))),
    "assign rows": (SHAPE, lambda m: m.assign([[1.0], [1.0, 2.0]])),
    # differentiating
    "grad of vector": (SHAPE, lambda m: sg.grad(m.out, m.w)),
    "grad of integer": (DTYPE, lambda m: sg.grad(m.y, m.w)),
    "grad unused": (GRAPH, lambda m: sg.grad(m.loss, m.unused)),
    "grad wrt integer": (DTYPE, lambda m: sg.grad(m.loss, m.y)),
    "grad wrt module": (GRAPH, lambda m: sg.grad(m.loss, sg.nn.Tanh())),
    "grad wrt name": (GRAPH, lambda m: sg.grad(m.loss, "w")),
    "grad function": (GRAPH, lambda m: sg.grad(lambda x: x, m.w)),
    # compiling
    "missing input": (GRAPH, lambda m: sg.compile(m.loss, inputs=[m.x])),
    "output": (GRAPH, lambda m: sg.compile(3.0)),
    "output function": (GRAPH, lambda m: sg.compile(lambda x: x + 1)),
    "pickle": (TypeError, lambda m: pickle.dumps(m.compiled())),
    "unknown size": (GRAPH, lambda m: sg.compile(sg.zeros((sg.Size.symbol("n"),)))),
    "sizes": (GRAPH, lambda m: m.compiled(sizes={"z": 1})),
    "pairs": (GRAPH, lambda m: m.compiled(updates=[3])),
    # calling
    "too many": (GRAPH, lambda m: m.compiled()(ONES, LABELS, LABELS)),
    "missing": (GRAPH, lambda m: m.compiled()(ONES)),
    "unknown": (GRAPH, lambda m: m.compiled()(ONES, LABELS, z=1)),
    "twice": (GRAPH, lambda m: m.compiled()(ONES, LABELS, x=ONES)),
    "rank": (SHAPE, lambda m: m.compiled()(ONES[0], LABELS)),
    "shape": (SHAPE, lambda m: m.compiled()(ONES[:, :2], LABELS)),
    "sizes differ": (SHAPE, lambda m: m.compiled()(ONES, LABELS[:2])),
    "ragged": (SHAPE, lambda m: m.compiled()([[1], [2, 3]], LABELS)),
    "dtype": (DTYPE, lambda m: m.compiled()(ONES, LABELS * 1.0)),
    "bound dtype": (DTYPE, lambda m: m.compiled().bind(ONES * 1j, LABELS)),
    "bound layout": (GRAPH, lambda m: m.compiled().bind(ONES[:, ::-1], LABELS)),
    "repeat": (ValueError, bound_twice),
    "memory": (GRAPH, lambda m: m.compiled().memory),
    "reference": (GRAPH, lambda m: m.compiled(target="reference").frame({})),
    "label": (sg.IndexOutOfRange, lambda m: m.compiled()(ONES, LABELS + 2)),
    "not finite": (sg.NonFiniteError, nan_step),
    "threads": (ValueError, lambda m: sg.set_num_threads(0)),
    "threads type": (TypeError, lambda m: sg.set_num_threads(1.5)),
    # training
    "betas": (GRAPH, lambda m: sg.optim.Adam(1e-3, betas=(1.0, 0.9))),
    "rate": (GRAPH, lambda m: sg.optim.SGD(-1.0)),
    "nesterov": (GRAPH, lambda m: sg.optim.SGD(0.1, nesterov=True)),
    "gradient": (GRAPH, lambda m: OPT.updates([1.0], [m.w])),
    "loss": (SHAPE, lambda m: sg.Trainer(m.out, OPT)),
    "metric of validation": (GRAPH, lambda m: m.trainer(metrics={"val_loss": m.loss})),
    "metric of a step": (
        GRAPH,
        lambda m: m.trainer(
            metrics={"clipped": m.loss}, clip=sg.optim.clip_by_global_norm(1.0)
        ),
    ),
    "metrics": (GRAPH, lambda m: m.trainer(metrics=[m.loss])),
    "data names": (GRAPH, lambda m: m.fit({"x": ONES})),
    "update shape": (SHAPE, lambda m: m.compiled(updates=[(m.w, m.w[0])])),
    "update dtype": (DTYPE, lambda m: m.compiled(updates=[(m.w, m.w.astype("f8"))])),
    "gradients": (GRAPH, lambda m: OPT.updates({"a": m.loss}, {"b": m.w})),
    "data class": (GRAPH, lambda m: m.fit([ONES, LABELS])),
    "data that is not cut": (SHAPE, lambda m: m.fit_fixed(np.ones((8, 3)))),
    "data one by one": (GRAPH, lambda m: m.fit(iter([{"x": ONES, "y": LABELS}]))),
    "data lengths": (GRAPH, lambda m: m.fit({"x": ONES, "y": LABELS[:2]})),
    "data rank": (SHAPE, lambda m: m.fit({"x": ONES[0], "y": LABELS})),
    "no data": (ValueError, lambda m: m.fit({"x": ONES[:0], "y": LABELS[:0]})),
    "batch size": (GRAPH, lambda m: m.fit(batch_size=0)),
    "batch axis": (GRAPH, lambda m: m.fit(batch_axis=5)),
    "epochs": (GRAPH, lambda m: m.fit(epochs=-1)),
    "record": (GRAPH, lambda m: m.fit(record="all")),
    "stopping": (GRAPH, lambda m: m.fit(early_stopping=0)),
    "fit label": (sg.IndexOutOfRange, lambda m: m.fit({"x": ONES, "y": LABELS + 2})),
    "fit nan": (sg.NonFiniteError, lambda m: m.fit({"x": ONES * np.nan, "y": LABELS})),
}


@pytest.mark.parametrize("name", CASES)
def test_a_message_has_op_rule_what_advice_and_line(name):
    error, use = CASES[name]
    with pytest.raises(error) as caught:
        use(Model())
    assert FORM.match(str(caught.value)), str(caught.value)


def test_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(b"nothing")
    with pytest.raises(GRAPH) as caught:
        Model().trainer().load(path)
    assert FORM.match(str(caught.value)), str(caught.value)
