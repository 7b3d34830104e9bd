"""Every leaf of a checkpoint is copied, becomes metadata, or is named as not understood."""

from __future__ import annotations

import argparse
import io
import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from explorer import BadModel, Session
from explorer.facts.conversion import Conversion

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")
np = pytest.importorskip("numpy")

from safetensors import safe_open  # noqa: E402
from torch import nn  # noqa: E402

Convert = Callable[..., Conversion]


class Halves(torch.Tensor):
    """A tensor that is kept as two of half its rows."""

    def __new__(cls, upper: Any, lower: Any, label: str) -> Any:
        shape = upper.shape[0] + lower.shape[0], *upper.shape[1:]
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=upper.dtype)
        made.upper, made.lower, made.label = upper, lower, label
        return made

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["upper", "lower"], self.label

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, label: Any, size: Any, stride: Any) -> Any:
        return cls(inner["upper"], inner["lower"], label)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(func)


class Carried(torch.Tensor):
    """A tensor with numbers of its own and an attribute that is one."""


class Holder:
    """An object of somebody's, with a tensor in it."""

    def __init__(self) -> None:
        self.mean = torch.arange(3.0)
        self.count = 7


def halves() -> Any:
    return Halves(torch.arange(6.0).reshape(2, 3), torch.full((1, 3), 9.0), "left")


def quantized() -> Any:
    scales, zeros = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and still in files
        return torch.quantize_per_channel(torch.randn(3, 4), scales, zeros, 0, torch.qint8)


def carried() -> Any:
    made = torch.ones(4).as_subclass(Carried)
    made.table = torch.arange(5.0)
    return made


def ragged() -> Any:
    return torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)


def masked() -> Any:
    from torch.masked import masked_tensor

    return masked_tensor(torch.arange(4.0).reshape(2, 2), torch.tensor([[True, False], [True, True]]))


KEPT_APART: dict[str, tuple[Callable[[], Any], dict[str, int], int]] = {
    "halves": (halves, {"t.upper": 24, "t.lower": 12}, 9),
    "parameter": (lambda: nn.Parameter(halves()), {"t.upper": 24, "t.lower": 12}, 9),
    "quantized": (quantized, {"t": 12, "t.scales": 24, "t.zero_points": 24}, 12),
    "carried": (carried, {"t": 16, "t.table": 20}, 4),
    "ragged": (ragged, {"t.values": 80, "t.offsets": 24}, 20),
    "masked": (masked, {"t._masked_data": 16, "t._masked_mask": 4}, 4),
}


def converted_metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        return dict(file.metadata())


@pytest.mark.parametrize("name", KEPT_APART)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_tensor_that_is_kept_as_others_is_shown_and_written_as_those(
    convert: Convert, tmp_path: Path, name: str, zipped: bool
) -> None:
    make, sizes, numbers = KEPT_APART[name]
    torch.save({"t": make(), "w": torch.ones(2)}, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    with Session(str(tmp_path / "a.pt")) as session:
        totals = session.info().totals
        assert totals.params == numbers + 2
        assert totals.weight_bytes >= sum(sizes.values()) + 8
    fact = convert("a.pt", "a.safetensors")
    assert fact.passed
    made = safetensors_torch.load_file(tmp_path / "a.safetensors")
    assert {key: made[key].nbytes for key in sizes} == sizes
    about = json.loads(converted_metadata(tmp_path / "a.safetensors")["t"])
    assert set(about) == {"class", "dtype", "shape", "inner", "attributes"}
    assert any("the code that loads them must rebuild them" in note for note in fact.notes)


def test_attributes_of_a_subclass_become_metadata(convert: Convert, tmp_path: Path) -> None:
    torch.save({"t": halves()}, tmp_path / "a.pt")
    convert("a.pt", "a.safetensors")
    about = json.loads(converted_metadata(tmp_path / "a.safetensors")["t"])
    assert about["class"].endswith("test_checkpoint_leaves.Halves")
    assert (about["shape"], about["inner"]) == ([3, 3], ["upper", "lower"])
    assert about["attributes"]["label"] == "left"
    convert("a.safetensors", "back.pt")
    assert torch.equal(torch.load(tmp_path / "back.pt")["t.lower"], torch.full((1, 3), 9.0))


def test_two_names_of_one_subclass_tensor_are_two_names(convert: Convert, tmp_path: Path) -> None:
    tensor = halves()
    torch.save({"a": tensor, "b": tensor}, tmp_path / "a.pt")
    fact = convert("a.pt", "a.bin")
    assert fact.passed
    made = torch.load(tmp_path / "a.bin")
    assert {"a.upper", "b.upper", "a.lower", "b.lower"} == set(made)
    assert made["a.upper"].data_ptr() == made["b.upper"].data_ptr()


def test_values_among_tensors_become_metadata(convert: Convert, tmp_path: Path) -> None:
    state = {
        "w": torch.ones(2),
        "epoch": 3,
        "best": "w",
        "loss": np.float64(0.25),
        "options": argparse.Namespace(lr=0.5),
        "extra": io.BytesIO(b"\x01\x02"),
        "labels": np.array(["cat", "horse"]),
        "keys": {1: "one"},
        "nothing": None,
    }
    torch.save(state, tmp_path / "a.pt")
    assert convert("a.pt", "a.safetensors").passed
    said = converted_metadata(tmp_path / "a.safetensors")
    assert set(state) - {"w"} <= set(said)
    assert (said["epoch"], said["loss"], said["best"], said["nothing"]) == ("3", "0.25", '"w"', "null")
    assert json.loads(said["options"]) == {"class": "argparse.Namespace", "state": {"lr": 0.5}}
    assert "0102" in said["extra"]
    assert json.loads(said["keys"]) == {"dict": [[1, "one"]]}


def test_tensors_inside_objects_and_lists_are_written(convert: Convert, tmp_path: Path) -> None:
    module = nn.Linear(2, 2)
    module.caches = [torch.ones(4), {"k": torch.zeros(2)}]
    module.holder = Holder()
    torch.save(module, tmp_path / "a.pt")
    fact = convert("a.pt", "a.safetensors")
    assert fact.passed
    made = safetensors_torch.load_file(tmp_path / "a.safetensors")
    assert set(made) == {"weight", "bias", "caches.0", "caches.1.k", "holder.mean"}
    assert any("not written: the code and the settings of torch.nn" in note for note in fact.notes)


def bare_storage(path: Path) -> None:
    torch.save({"w": torch.ones(2), "raw": torch.ones(5).untyped_storage()}, path)


def bare_storage_in_a_plain_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"w": torch.ones(2), "raw": torch.ones(5).untyped_storage()}))


@pytest.mark.parametrize("save", [bare_storage, bare_storage_in_a_plain_pickle])
@pytest.mark.parametrize("output", ["a.safetensors", "b.bin"])
def test_what_is_not_understood_is_named_and_nothing_is_written(
    convert: Convert, tmp_path: Path, save: Callable[[Path], None], output: str
) -> None:
    save(tmp_path / "a.pt")
    fact = convert("a.pt", output)
    assert (fact.passed, fact.verdict_kind, fact.output) == (False, "different", "")
    assert fact.unknown == (("raw", "a storage without a tensor"),)
    assert fact.stored is not None
    assert "'raw': it is not understood" in fact.stored.verdict
    fact = convert("a.pt", output, verify=False)
    assert (fact.passed, fact.output) == (False, output)


def test_a_storage_that_no_tensor_of_the_walk_is_of_is_named(convert: Convert, tmp_path: Path) -> None:
    """A tensor in a state that no maker of tensors takes: the walk does not see it, its storage is there."""

    class Restored:
        def __reduce__(self) -> Any:
            return torch._utils._rebuild_tensor_v2, RAW[:6], {"hidden": torch.full((3,), 5.0)}

    RAW = torch.ones(2).__reduce_ex__(2)[1]
    torch.save({"w": torch.zeros(2), "r": Restored()}, tmp_path / "a.pt")
    fact = convert("a.pt", "a.safetensors")
    assert not fact.passed
    ((name, why),) = fact.unknown
    assert name.startswith("storage ")
    assert "12 B of float32" in why


def test_numbers_that_are_stored_otherwise_than_they_are_are_refused_by_name(
    convert: Convert, tmp_path: Path
) -> None:
    torch.save({"w": torch.ones(2), "c": torch.tensor([1 + 2j]).conj()}, tmp_path / "a.pt")
    with pytest.raises(BadModel, match="'c' cannot be copied: its numbers are the complex conjugates"):
        convert("a.pt", "a.safetensors")
    torch.save(
        {"i": torch.tensor([1 + 2j]).conj().imag, "m": torch.empty(2, device="meta")}, tmp_path / "b.pt"
    )
    with pytest.raises(BadModel, match=r"'i' cannot be copied: its numbers are the negatives.*; m neither"):
        convert("b.pt", "b.safetensors")


@pytest.mark.parametrize("kind", ["float4_e2m1fn_x2", "bits8", "bits16"])
def test_an_element_type_that_is_not_read_is_not_taken_for_bytes(
    kind: str, convert: Convert, tmp_path: Path
) -> None:
    packed = torch.arange(8, dtype=torch.uint8).view(getattr(torch, kind))
    torch.save({"w": torch.ones(2), "p": packed}, tmp_path / "a.pt")
    with pytest.raises(BadModel, match=f"'p' cannot be copied: {kind} is an unknown type"):
        convert("a.pt", "a.safetensors")
    with Session(str(tmp_path / "a.pt")) as session:
        totals = session.info().totals
    assert (totals.params, totals.weight_bytes) == (2 + packed.numel(), 16)


def test_a_tensor_in_another_file_than_the_index_says_is_named(convert: Convert, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    files = [f"model-0000{at}-of-00002.safetensors" for at in (1, 2)]
    safetensors_torch.save_file({"a": torch.ones(2)}, folder / files[0])
    safetensors_torch.save_file({"a": torch.zeros(2), "b": torch.ones(2)}, folder / files[1])
    index = {"metadata": {}, "weight_map": {"a": files[0], "b": files[1]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    fact = convert(str(folder), "a.safetensors")
    assert not fact.passed
    assert [name for name, _ in fact.unknown] == [f"a in {files[1]}"]


def test_the_optimizer_is_left_behind_and_the_verdict_says_so(convert: Convert, tmp_path: Path) -> None:
    moments = {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 0.1}]}
    torch.save({"model": {"w": torch.ones(2)}, "optimizer": moments}, tmp_path / "a.pt")
    fact = convert("a.pt", "a.safetensors")
    assert fact.stored is not None
    assert fact.stored.verdict.endswith("not compared: 1 tensor outside the model")


def test_a_parameter_named_rng_belongs_to_the_model(convert: Convert, tmp_path: Path) -> None:
    torch.save(
        {"w": torch.ones(2), "rng": torch.ones(3), "rng_state": torch.get_rng_state()}, tmp_path / "a.pt"
    )
    fact = convert("a.pt", "a.safetensors")
    assert set(safetensors_torch.load_file(tmp_path / "a.safetensors")) == {"w", "rng"}
    assert "1 tensor outside the model not written: training state" in fact.notes


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.arange(5, dtype=np.float16), "stores as text"),
        (np.asfortranarray(np.ones((3, 4), np.float32)), "column-major order"),
        (np.arange(6, dtype=">f4"), "another byte order"),
    ],
)
def test_arrays_that_are_not_copied_say_why(
    array: np.ndarray, reason: str, convert: Convert, tmp_path: Path
) -> None:
    torch.save({"w": torch.ones(2), "a": array}, tmp_path / "a.pt")
    with pytest.raises(BadModel, match=f"'a' cannot be copied: it is a numpy array .*{reason}"):
        convert("a.pt", "a.safetensors")
