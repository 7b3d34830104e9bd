"""`--weights-file`: weights of a user's file in a module, whatever a trainer called them."""

import pickle
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from explorer.base.errors import ExplorerError, Misuse
from explorer.cli.main import main
from explorer.session import Session

CODE = """
import torch
from torch import nn

class Whole(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)

def net():
    return nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), torch.zeros(2, 6)

def whole():
    return Whole(net()[0]), torch.zeros(2, 6)

def lazy():
    return nn.Sequential(nn.LazyBatchNorm1d(), nn.LazyLinear(3)), torch.zeros(2, 6)

KEPT = net()[0]
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "nets_of_a_test.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("nets_of_a_test", None)


def _trained() -> dict[str, torch.Tensor]:
    torch.manual_seed(11)
    state = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)).state_dict()
    return {n: torch.randn(t.shape) if t.is_floating_point() else t + 7 for n, t in state.items()}


def _values(name: str, file: str) -> tuple[dict[str, float], tuple[str, ...]]:
    with Session(f"nets_of_a_test:{name}", weights_file=file) as session:
        found = session.weights()
    return {t.tensor.name: t.mean for t in found.tensors}, found.notes


def _agrees(means: dict[str, float], state: dict[str, torch.Tensor], front: str = "") -> None:
    assert means.keys() == {front + name for name in state}
    for name, tensor in state.items():
        assert means[front + name] == pytest.approx(tensor.double().mean().item(), rel=1e-5), name


@pytest.mark.parametrize(
    ("front", "said"),
    [
        ("", ""),
        ("module.", "'module.' removed"),
        ("_orig_mod.", "'_orig_mod.' removed"),
        ("model.", "'model.' removed"),
        ("model._orig_mod.module.", "'model.module.' and '_orig_mod.' removed"),
    ],
)
def test_words_in_front_of_the_names_are_found_and_said(here, front, said):
    state = _trained()
    torch.save({front + name: tensor for name, tensor in state.items()}, "it.pt")
    save_file({front + name: tensor for name, tensor in state.items()}, "it.safetensors")
    for file in ("it.pt", "it.safetensors"):
        means, notes = _values("net", file)
        _agrees(means, state)
        assert said in notes[0]
        assert file in notes[0]
        assert ("removed" in notes[0]) == bool(said)


def test_of_a_trainers_checkpoint_the_model_is_taken_and_no_averaged_copy(here):
    state = _trained()
    kept = {
        "ema": {f"net.{n}": t * 0 for n, t in state.items()},
        "epoch": 3,
        "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": []}],
        "state_dict": {f"net.{n}": t for n, t in state.items()},
    }
    torch.save(kept, "last.ckpt")
    means, notes = _values("net", "last.ckpt")
    _agrees(means, state)
    assert "'state_dict.net.' removed" in notes[0]
    assert any("the prefix ema.net. matches as many tensors" in note for note in notes)


def test_a_module_around_the_one_that_was_saved_takes_it_too(here):
    state = _trained()
    torch.save(state, "it.pt")
    means, notes = _values("whole", "it.pt")
    _agrees(means, state, "inner.")
    assert "'inner.' added before" in notes[0]


def test_layers_that_wait_for_their_shape_take_it_from_the_file(here):
    state = _trained()
    torch.save(state, "it.pt")
    means, _ = _values("lazy", "it.pt")
    _agrees(means, state)


def test_types_are_converted_as_torch_does_and_that_is_said(here):
    state = _trained()
    torch.save({n: t.bfloat16() if t.is_floating_point() else t for n, t in state.items()}, "half.pt")
    means, notes = _values("net", "half.pt")
    _agrees(means, {n: t.bfloat16().float() if t.is_floating_point() else t for n, t in state.items()})
    assert any("6 tensors of bfloat16 there were converted" in note for note in notes)


def test_what_is_missing_and_what_is_too_much_is_listed(here, capsys):
    state = _trained()
    del state["1.bias"]
    torch.save({**state, "head.weight": torch.ones(2)}, "part.pt")
    assert main(["info", "nets_of_a_test:net", "--weights-file", "part.pt"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "not in part.pt, and left as the callable made them: 1.bias" in out
    assert "in part.pt but not in the model: head.weight" in out


def test_a_run_is_one_of_the_trained_model(here):
    state = _trained()
    torch.save(state, "it.pt")
    np.save("x.npy", np.ones((2, 6), np.float32))
    with Session("nets_of_a_test:net", weights_file="it.pt") as session:
        found = session.activations(["1"], input="x.npy")
    trained = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)).eval()
    trained.load_state_dict(state)
    with torch.no_grad():
        expected = trained(torch.ones(2, 6))
    # a variance may be drawn below zero: NaN in both
    figures = found.tensors[0]
    assert figures.nan == int(expected.isnan().sum())
    finite = expected[expected.isfinite()]
    assert figures.mean is None or figures.mean == pytest.approx(finite.double().mean().item(), rel=1e-5)
    assert any("weights of it.pt" in note for note in found.notes)


def test_a_module_that_exists_already_stays_as_it_is(here):
    module = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    torch.save(_trained(), "it.pt")
    with Session(module, inputs=torch.zeros(2, 6), weights_file="it.pt") as session:
        session.weights()
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    _agrees(_values("KEPT", "it.pt")[0], _trained())


class _Runs:
    def __reduce__(self):
        return open, ("it_ran", "w")


def test_nothing_in_the_file_runs(here):
    state = _trained()
    with open("bad.pt", "wb") as file:
        pickle.dump({"it": _Runs()}, file)
    torch.save({**state, "hook": _Runs()}, "hook.pt")
    with pytest.raises(ExplorerError):
        _values("net", "bad.pt")
    _agrees(_values("net", "hook.pt")[0], state)
    assert not (here / "it_ran").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"1.weight": torch.zeros(3, 7)}, "'1.weight' is [3, 7] there and [3, 6] in the model"),
        ({"1.weight": torch.zeros(3)}, "'1.weight' is [3] there"),
        (
            {"1.weight": torch.zeros(3, 6, dtype=torch.complex64)},
            "'1.weight' is complex64 there and float32 in the model",
        ),
        (None, "none of its tensors is in the model: 'other' in the file"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(here, capsys, change, says):
    torch.save({"other": torch.ones(1)} if change is None else {**_trained(), **change}, "it.pt")
    assert main(["weights", "nets_of_a_test:net", "--weights-file", "it.pt"]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_weights_go_with_a_module_only_and_come_from_one_place(here, sample, capsys):
    torch.save(_trained(), "it.pt")
    assert main(["info", str(sample("lenet")), "--weights-file", "it.pt"]) == 2
    assert "brings its own weights" in capsys.readouterr().err
    with pytest.raises(Misuse, match="leave out one of them"):
        Session("resnet18", weights="DEFAULT", weights_file="it.pt").info()
    with pytest.raises(Misuse, match="not a file of weights"):
        Session("nets_of_a_test:net", weights_file=str(sample("lenet"))).info()


def test_an_analysis_that_was_kept_is_not_told_for_other_weights(here, capsys):
    assert main(["info", "squeezenet1_1"]) == 0
    torch.save(_trained(), "it.pt")
    capsys.readouterr()
    assert main(["info", "squeezenet1_1", "--weights-file", "it.pt"]) == 2
    assert "only 2 of its 7 tensors are in the model" in capsys.readouterr().err
