"""Deep copies of modules and leaves; what cannot be pickled says so."""

import copy
import pickle

import numpy as np
import pytest

import staticgrad as sg


class Tied(sg.nn.Module):
    """A layer under two names, a batch norm, a constant, a frozen parameter."""

    def __init__(self):
        self.first = sg.nn.Linear(3, 3)
        self.again = self.first
        self.norm = sg.nn.BatchNorm1d(3)
        self.shift = sg.constant(np.ones(3, np.float32))
        self.scale = sg.parameter(np.ones(3, np.float32), trainable=False)

    def forward(self, x):
        return self.norm(self.again(self.first(x))) * self.scale + self.shift


def test_a_deep_copy_has_leaves_of_its_own_with_equal_values():
    with sg.Graph(seed=0) as graph:
        x = sg.input("x", ("batch", 3))
        net = Tied()
        first = net(x)
        target = copy.deepcopy(net)
        second = target(x)
    assert target.again is target.first
    assert target.shift is net.shift
    assert not target.scale.trainable
    pairs = list(zip(net.parameters().items(), target.parameters().items()))
    for (name, old), (path, new) in pairs:
        assert name == path
        assert old is not new
        assert np.array_equal(old.value, new.value)
        assert graph.parameters[f"{name}_1"] is new
    names = [p.name for p in target.parameters().values()]
    assert names == [f"{name}_1" for name in net.parameters()]
    step = sg.compile(second, updates=graph, mode="train")
    step(x=np.arange(6.0).reshape(2, 3))
    assert not np.array_equal(target.norm.running_mean.value, np.zeros(3))
    net.first.weight.value = np.eye(3)
    assert not np.array_equal(target.first.weight.value, np.eye(3))
    same = sg.compile([first, second])(x=np.ones((2, 3)))
    assert not np.allclose(*same)


def test_a_target_network_behind_stop_gradient_is_not_trained():
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", 3))
        net = sg.nn.Linear(3, 2)
        target = copy.deepcopy(net)
        error = net(x) - 1 - sg.stop_gradient(target(x))
        loss = sg.mean(error**2)
    before = target.weight.value
    trainer = sg.Trainer(loss, sg.optim.SGD(0.1))
    watch = trainer.watch_gradients()
    trainer.fit({"x": np.ones((4, 3))}, epochs=3, progress=False)
    assert np.array_equal(target.weight.value, before)
    assert not np.array_equal(net.weight.value, before)
    of_net = {net.weight.name, net.bias.name}
    assert set(watch.names) == of_net
    report = sg.gradient_report(loss, {"x": np.ones((4, 3))})
    assert set(report.norms) == of_net


def test_a_derivative_that_is_cut_otherwise_is_still_an_error():
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", 3))
        net, other = sg.nn.Linear(3, 2), sg.nn.Linear(3, 2)
        loss = sg.mean(net(x) - sg.rint(other(x)))
    with pytest.raises(sg.GraphError, match="cut by rint"):
        sg.Trainer(loss, sg.optim.SGD(0.1))
    stopped = sg.mean(sg.stop_gradient(net(x)))
    with pytest.raises(sg.GraphError, match="depends on a trainable parameter"):
        sg.Trainer(stopped, sg.optim.SGD(0.1))


def test_tensors_without_storage_are_their_own_copies():
    x = sg.input("x", (3,))
    y = sg.tanh(x)
    assert copy.copy(y) is y
    assert copy.deepcopy([x, y])[1] is y
    count = sg.state(np.int64(4), name="count")
    again = copy.deepcopy(count)
    assert again is not count
    assert again.value == 4
    assert copy.copy(count) is count


def test_a_bound_executable_is_made_in_each_process():
    bound = sg.compile(sg.constant(1.0) + 1).bind()
    for use in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"compile and bind.*test_copies\.py:"):
            use(bound)


@pytest.mark.parametrize("made", [lambda: sg.nn.Linear(3, 2), lambda: sg.ones(3)])
def test_pickling_says_what_to_keep(made):
    with sg.Graph(), pytest.raises(TypeError, match=r"keep arrays.*test_copies\.py:"):
        pickle.dumps(made())


def test_a_format_of_numbers_needs_a_value():
    x = sg.input("x", ())
    assert f"{x}" == str(x)
    with pytest.raises(TypeError, match=r"compile it and call it.*test_copies\.py:"):
        f"{x:.3f}"


@pytest.mark.parametrize(
    ("name", "advice"),
    [("state_dict", "trainer.save"), ("train", "mode="), ("zero_grad", "leave it out")],
)
def test_attributes_of_other_modules_lead_to_ours(name, advice):
    with sg.Graph():
        layer = sg.nn.Linear(3, 2)
    with pytest.raises(AttributeError, match=advice) as caught:
        getattr(layer, name)
    assert "test_copies.py:" in str(caught.value)
    assert not hasattr(layer, "nothing_of_this_name")
