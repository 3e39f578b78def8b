"""Examples on the handwritten digits beside PyTorch, from the same start.

Same initial values, same data in the same order; what is compared are losses step by
step, gradients and trained values. Tolerances stand at each comparison: float32 sums in
another order differ by about 1e-6, and training multiplies that.
"""

import digits
import digits_attention
import digits_cnn
import digits_explained
import teaching
from torch_peers import (
    STEPS,
    F,
    carried,
    cut,
    descended,
    first,
    leaves,
    linear,
    near,
    torch,
    twins,
)

import staticgrad as sg

# ---- digits --------------------------------------------------------------------------


def test_digits_with_the_same_dropout_masks():
    graph, logits, loss, _ = digits.build()
    train, held_out = digits.load()
    peer = twins(graph.parameters)
    nodes = sg.ir.graph.topological([loss])
    (dropped,) = (n.outputs[0] for n in nodes if n.op.name == "by_mode")
    trainer = sg.Trainer(loss, sg.optim.Adam(2e-3))
    masks = []
    trainer.tap(dropped, lambda h: masks.append(torch.tensor(h != 0) / 0.7))
    data = first(train, 20 * digits.BATCH)
    history = trainer.fit(data, batch_size=digits.BATCH, **STEPS)

    def score(x, mask=1.0):
        hidden = F.relu(linear(peer, "0.", x)) * mask
        return linear(peer, "5.", F.relu(linear(peer, "3.", hidden)))

    optimizer = torch.optim.Adam(peer.values(), 2e-3)
    order = iter(masks)
    losses = descended(
        optimizer,
        lambda x, y: F.cross_entropy(score(x, next(order)), y),
        cut(data, digits.BATCH),
    )
    assert not bool((masks[0] == masks[1]).all())
    near(history["loss"], losses, rtol=1e-4)
    x = held_out["x"]
    near(sg.compile(logits)(x), score(torch.tensor(x)), rtol=1e-3, atol=1e-3)


def torch_cnn():
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 10),
    )


def test_digits_cnn():
    logits, loss, _, model = digits_cnn.build()
    train, held_out = digits_cnn.load()
    peer = carried(model, torch_cnn())
    data = first(train, 12 * digits_cnn.BATCH)
    trainer = sg.Trainer(loss, sg.optim.Adam(2e-3))
    history = trainer.fit(data, batch_size=digits_cnn.BATCH, **STEPS)
    optimizer = torch.optim.Adam(peer.parameters(), 2e-3)
    losses = descended(
        optimizer,
        lambda x, y: F.cross_entropy(peer(x), y),
        cut(data, digits_cnn.BATCH),
    )
    near(history["loss"], losses, rtol=1e-3)
    near(model[1].running_mean.value, peer[1].running_mean, rtol=1e-3, atol=1e-4)
    near(model[1].running_var.value, peer[1].running_var, rtol=1e-3)
    peer.eval()
    x = held_out["x"]
    near(sg.compile(logits)(x), peer(torch.tensor(x)), rtol=1e-2, atol=1e-2)


# ---- teaching ------------------------------------------------------------------------


def chain(peer, x):
    """Linear layers with relu between them, as ``teaching.network``."""
    weights = list(peer.values())
    h = x
    for number, (weight, bias) in enumerate(zip(weights[::2], weights[1::2])):
        h = F.linear(F.relu(h) if number else h, weight, bias)
    return h


def test_distillation_and_pruning():
    train, _ = digits.load()
    data = first(train, 640)
    x, y = teaching.images()
    trunk, head, features, answers = teaching.large_network(x)
    loss = sg.nn.cross_entropy(answers, y)
    weights, saliency = teaching.saliency(trunk, head, loss)
    wide, top = twins(trunk.parameters()), twins(head.parameters())

    def teach(x):
        seen = F.relu(chain(wide, x))
        return seen, chain(top, seen)

    F.cross_entropy(
        teach(torch.tensor(data["x"]))[1], torch.tensor(data["y"])
    ).backward()
    found = sg.compile(saliency)(**data)
    for name, gradient in found.items():
        p = top[name[5:]] if name.startswith("head.") else wide[name]
        near(gradient, (p * p.grad).abs(), rtol=1e-3, atol=1e-7)
    history = sg.Trainer(loss, sg.optim.Adam(2e-3)).fit(data, batch_size=64, **STEPS)
    losses = descended(
        torch.optim.Adam([*wide.values(), *top.values()], 2e-3),
        lambda x, y: F.cross_entropy(teach(x)[1], y),
        cut(data, 64),
    )
    near(history["loss"], losses, rtol=1e-3)

    loss, _, modules = teaching.small_network(x, y, features, answers)
    small, small_head, align = (twins(m.parameters()) for m in modules)
    own = [m.parameters() for m in modules]

    def learn(x, y):
        seen = F.relu(chain(small, x))
        student = chain(small_head, seen)
        with torch.no_grad():
            teacher_seen, teacher = teach(x)
        soft = -((teacher / 4).softmax(-1) * (student / 4).log_softmax(-1)).sum(-1)
        imitated = F.mse_loss(linear(align, "", seen), teacher_seen)
        return F.cross_entropy(student, y) + 16 * soft.mean() + imitated

    history = sg.Trainer(loss, sg.optim.Adam(8e-3), own).fit(
        data, batch_size=64, **STEPS
    )
    trained = [p for part in (small, small_head, align) for p in part.values()]
    losses = descended(torch.optim.Adam(trained, 8e-3), learn, cut(data, 64))
    near(history["loss"], losses, rtol=1e-3)


def test_two_tasks_on_one_trunk():
    train, _ = digits.load()
    data = first(train, 320)
    x, y = teaching.images()
    losses, norms, updates, _ = teaching.two_tasks(x, y)
    parameters = leaves(sum(losses.values()))
    peer = list(twins(parameters).values())
    trunk, digit, parity = peer[:2], peer[2:4], peer[4:]
    step = sg.compile({**losses, "norms": norms}, inputs=[x, y], updates=updates)
    optimizer = torch.optim.Adam(peer, 2e-3)
    for batch in cut(data, 64):
        told = step(**{name: t.numpy() for name, t in batch.items()})
        h = F.relu(F.linear(batch["x"], *trunk))
        wanted = {
            "digit": F.cross_entropy(F.linear(h, *digit), batch["y"]),
            "parity": F.cross_entropy(F.linear(h, *parity), batch["y"] % 2),
        }
        shared = {
            name: torch.autograd.grad(loss, trunk, retain_graph=True)
            for name, loss in wanted.items()
        }
        lengths = {
            n: torch.cat([g.ravel() for g in gs]).norm() for n, gs in shared.items()
        }
        optimizer.zero_grad()
        sum(wanted.values()).backward()
        for place, p in enumerate(trunk):
            p.grad = sum(shared[n][place] / (lengths[n] + 1e-6) for n in shared)
        optimizer.step()
        near(told, wanted, rtol=1e-3)
        near(told["norms"], lengths, rtol=1e-3)


# ---- digits_explained, digits_attention ----------------------------------------------


def test_saliency_grad_cam_attack_and_jacobian():
    _, _, _, model = digits_cnn.build()
    _, held_out = digits_cnn.load()
    data = first(held_out, 40)
    peer = carried(model, torch_cnn()).eval()
    x = torch.tensor(data["x"], requires_grad=True)
    y = torch.tensor(data["y"])
    depth = digits_explained.FEATURES + 1
    features = peer[:depth](x)
    logits = peer[depth:](features)
    score = logits.gather(1, y[:, None]).sum()
    slope, votes = torch.autograd.grad(score, [x, features], retain_graph=True)
    (push,) = torch.autograd.grad(F.cross_entropy(logits, y), x)
    found = sg.compile(digits_explained.explained(model))(**data)
    near(found["saliency"], abs(slope)[:, 0], rtol=1e-3, atol=1e-6)
    weight = votes.mean((2, 3), keepdim=True)
    near(found["grad_cam"], F.relu((weight * features).sum(1)), rtol=1e-3, atol=1e-6)
    moved = (x + digits_explained.STRENGTH * push.sign()).clamp(0, 1)
    clear = (abs(push) > 1e-7).numpy()  # the sign of what is nearly 0 may differ
    assert clear.mean() > 0.9
    near(found["adversarial"][clear], moved.detach().numpy()[clear])
    wanted = torch.autograd.functional.jacobian(peer[:depth], x[:1].detach())
    jacobian = sg.compile(digits_explained.feature_jacobian(model))(data["x"][:1])
    near(jacobian, wanted.reshape(32, 8, 8, 8, 8), rtol=1e-3, atol=1e-6)


def read(peer, x):
    """The scores of ``digits_attention.Reader``."""
    h = linear(peer, "embed.", x.reshape(-1, 8, 8)) + peer["places"]
    for number in range(digits_attention.BLOCKS):
        part = {
            name.removeprefix(f"blocks.{number}."): p
            for name, p in peer.items()
            if name.startswith(f"blocks.{number}.")
        }
        seen = normed(part, "norm1.", h)
        seen, _ = F.multi_head_attention_forward(
            *[seen.transpose(0, 1)] * 3,
            digits_attention.FEATURES,
            digits_attention.HEADS,
            part["attention.in_proj_weight"],
            part["attention.in_proj_bias"],
            None,
            None,
            False,
            0.0,
            part["attention.out_proj.weight"],
            part["attention.out_proj.bias"],
        )
        h = h + seen.transpose(0, 1)
        wide = F.gelu(linear(part, "linear1.", normed(part, "norm2.", h)))
        h = h + linear(part, "linear2.", wide)
    return linear(peer, "head.", normed(peer, "norm.", h).mean(1))


def normed(peer, name, x):
    return F.layer_norm(x, x.shape[-1:], peer[f"{name}weight"], peer[f"{name}bias"])


def test_attention():
    model, logits, loss, _ = digits_attention.build()
    train, held_out = digits.load()
    data = first(train, 15 * 32)
    peer = twins(model.parameters())
    trainer = sg.Trainer(loss, sg.optim.AdamW(3e-3))
    history = trainer.fit(data, batch_size=32, **STEPS)
    losses = descended(
        torch.optim.AdamW(peer.values(), 3e-3),
        lambda x, y: F.cross_entropy(read(peer, x), y),
        cut(data, 32),
    )
    near(history["loss"], losses, rtol=1e-3)
    x = held_out["x"]
    near(sg.compile(logits)(x), read(peer, torch.tensor(x)), rtol=1e-2, atol=1e-2)
