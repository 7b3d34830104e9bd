"""A Python program's own nn.Module: analyzed, run and exported without a trace left on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer import Session  # noqa: E402
from explorer.base.errors import ExplorerError, Misuse  # noqa: E402
from explorer.facts import TileSpec  # noqa: E402


class Net(nn.Module):
    """Everything that a session could leave a trace on: flags, statistics, tied weights, a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.a, self.b = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.b.weight = self.a.weight
        self.register_buffer("table", torch.arange(16))
        self.seen: list[Any] = []
        self.last = None

    def forward(self, image: Any) -> Any:
        self.seen.append(tuple(image.shape))
        self.last = self.drop(self.norm(self.conv(image))).mean(1)
        return self.b(self.a(self.last)) + self.table


def state(model: nn.Module) -> Any:
    tensors = model.state_dict(keep_vars=True)
    return (
        {n: (t.data_ptr(), t.device, t.requires_grad, t.clone()) for n, t in tensors.items()},
        {n: m.training for n, m in model.named_modules()},
        [len(getattr(m, kind)) for m in model.modules() for kind in ("_forward_hooks", "_forward_pre_hooks")],
        [sorted(vars(m)) for m in model.modules()],
    )


def same(before: Any, after: Any) -> bool:
    tensors, *rest = before
    others, *others_rest = after
    return rest == others_rest and all(
        a[:3] == b[:3] and torch.equal(a[3], b[3])
        for a, b in zip(tensors.values(), others.values(), strict=True)
    )


def test_the_object_is_analysed_exported_and_run_and_stays_as_it_is(tmp_path: Path) -> None:
    model = Net().train()
    model.norm.eval()
    image = torch.randn(2, 1, 4, 16)
    before = state(model)
    with Session(model, inputs=(image,), workdir=str(tmp_path)) as session:
        totals = session.info().totals
        assert totals.macs == 2 * 4 * 4 * 16 * 9 + 2 * (2 * 4 * 16 * 16)
        assert totals.params == sum(p.numel() for p in model.parameters())
        assert {layer.path: layer.shared_with for layer in session.analysis().layers}["a"] == ("b",)
        assert session.info().model.inputs[0].name == "image"
        assert session.info().model.source == "Net"
        session.save(str(tmp_path / "net.onnx"))
        assert session.verify(0, 0, draws=1).passed
    assert same(before, state(model))
    assert model.seen == []
    assert model.last is None


def test_the_object_stays_as_it_is_when_the_model_fails() -> None:
    class Fails(Net):
        def forward(self, image: Any) -> Any:
            super().forward(image)
            raise ValueError("no luck today")

    model = Fails().train()
    before = state(model)
    with Session(model, inputs=(torch.randn(2, 1, 4, 16),), partial=True) as session:
        rows = {layer.path: layer for layer in session.analysis().layers}
        assert rows["conv"].macs == 2 * 4 * 4 * 16 * 9
        assert any("no luck today" in note for note in session.info().model.notes)
    assert same(before, state(model))


def test_weights_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that fills half of the memory can be looked at."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))

    def refuse(self: Any, *args: Any) -> Any:
        raise AssertionError("a parameter was copied")

    monkeypatch.setattr(torch.Tensor, "clone", refuse)
    monkeypatch.setattr(torch.nn.Parameter, "__deepcopy__", refuse)
    assert Session(model, inputs=torch.zeros(1, 64)).info().totals.macs == 2 * 64 * 64


class Pair(NamedTuple):
    left: Any
    right: Any


class Picky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.mix = nn.Linear(4, 4)

    def forward(self, ids: Any, pair: Any, *, extra: Any = None, power: int = 1) -> Any:
        x = self.embed(ids) + pair["first"] + pair["rest"][0].left
        for _ in range(power):
            x = self.mix(x)
        return {"out": x, "more": [x * extra["scale"] if extra else x, None]}


def picky_inputs() -> dict[str, Any]:
    pair = {"first": torch.randn(2, 3, 4), "rest": [Pair(np.ones((2, 3, 4), np.float32), 7)]}
    return {
        "ids": torch.tensor([[1, 2, 9], [3, 4, 5]]),
        "pair": pair,
        "extra": {"scale": torch.ones(4)},
        "power": 3,
    }


def test_keyword_nested_and_integer_inputs_have_names_and_shapes(tmp_path: Path) -> None:
    with Session(Picky(), inputs=picky_inputs()) as session:
        info = session.info()
        assert [(i.name, i.dtype, i.shape) for i in info.model.inputs] == [
            ("ids", "int64", (2, 3)),
            ("pair.first", "float32", (2, 3, 4)),
            ("pair.rest.0.left", "float32", (2, 3, 4)),
            ("extra.scale", "float32", (4,)),
        ]
        assert [o.name for o in info.model.outputs] == ["output.out", "output.more.0"]
        # a keyword that is no tensor steers the model too
        assert info.totals.macs == 3 * (2 * 3 * 4 * 4)


def test_positional_inputs_may_be_nested() -> None:
    given = picky_inputs()
    with Session(Picky(), inputs=(given["ids"], given["pair"])) as session:
        assert [i.name for i in session.info().model.inputs] == ["ids", "pair.first", "pair.rest.0.left"]
        assert session.info().totals.macs == 2 * 3 * 4 * 4


def test_the_shape_of_an_input_can_be_changed_afterwards() -> None:
    inputs = (torch.zeros(1, 1, 4, 16),)
    with Session(Net(), inputs=inputs, dims={"batch": 5}) as five, Session(Net(), inputs=inputs) as one:
        assert five.info().totals.macs == 5 * (one.info().totals.macs or 0)
    with Session(Net(), inputs=inputs, input_shapes={"image": (None, (3, 1, 4, 16))}) as three:
        assert three.info().model.inputs[0].shape == (3, 1, 4, 16)
    with pytest.raises(Misuse, match="image"):
        Session(Net(), inputs=inputs, input_shapes={"imagen": (None, (3, 1, 4, 16))}).info()


def test_every_figure_of_the_object_leaves_no_trace_on_it() -> None:
    model = Net().train()
    before = state(model)
    with Session(model, inputs=(torch.randn(2, 1, 4, 16),)) as session:
        assert session.memory().peak_bytes
        assert session.training().forward_macs == session.info().totals.macs
        assert session.weights().tensors
        assert session.activations().tensors
        assert session.ops()
        assert session.sha256() is None
    assert same(before, state(model))
    assert (model.seen, model.last) == ([], None)


@pytest.mark.slow
def test_a_tiled_object_is_proved_against_the_object_itself() -> None:
    with Session(Picky(), inputs=picky_inputs()) as session:
        result = session.tile(TileSpec((2, 2, 2)))
        assert result.verification is not None
        assert result.verification.passed
        assert [e.name for e in result.verification.torch] == ["output.out", "output.more.0"]
        # an object in memory has no name on a command line
        assert result.command == ""


@pytest.mark.parametrize("wrap", [torch.jit.script, lambda model: torch.jit.trace(model, torch.zeros(2, 8))])
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_object(wrap: Any) -> None:
    model = wrap(nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval())
    with Session(model, inputs=torch.zeros(2, 8)) as session:
        assert (session.info().totals.macs, session.info().totals.params) == (64, 36)
        assert session.info().model.inputs[0].name == "input"


def test_without_inputs_they_are_guessed_as_for_a_name() -> None:
    with Session(nn.Sequential(nn.Linear(8, 2))) as session:
        assert session.info().model.inputs[0].shape == (1, 8)


def test_lengths_keep_their_values() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 5, batch_first=True)

        def forward(self, x: Any, lengths: Any) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]

    inputs = (torch.zeros(2, 7, 3), torch.tensor([3, 7]))
    with Session(Packed(), inputs=inputs) as session:
        assert session.info().totals.macs == (3 + 7) * 3 * 5 * (3 + 5)
        assert {layer.status for layer in session.analysis().layers if layer.macs} == {"exact"}


def test_lazy_layers_stay_lazy() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(7))
    with Session(model, inputs=torch.zeros(1, 3, 6, 6)) as session:
        totals = session.info().totals
        assert totals.macs == 4 * 16 * 27 + 64 * 7
        assert totals.params == 4 * 27 + 4 + 2 * 4 + 64 * 7 + 7
        kinds = [layer.kind for layer in session.analysis().layers]
        assert kinds == ["Conv2d", "BatchNorm2d", "Flatten", "Linear"]
    assert all(isinstance(p, nn.UninitializedParameter) for p in model.parameters())
    assert isinstance(model[3], nn.LazyLinear)


def test_what_cannot_be_copied_is_shared() -> None:
    import threading

    model = nn.Sequential(nn.Linear(4, 4))
    model.lock = threading.Lock()
    with Session(model, inputs=torch.zeros(1, 4)) as session:
        assert session.info().totals.macs == 16
    assert model.training


def test_what_is_no_model_is_said() -> None:
    with pytest.raises(Misuse, match=r"a dict is neither a path, a name nor an nn\.Module"):
        Session({}).info()  # type: ignore[arg-type]
    with pytest.raises(Misuse, match=r"inputs go with an nn\.Module object"):
        Session("alexnet", inputs=(torch.zeros(1),))
    with pytest.raises(ExplorerError, match="brings its own weights"):
        Session(nn.Linear(2, 2), inputs=torch.zeros(1, 2), weights="DEFAULT").info()
