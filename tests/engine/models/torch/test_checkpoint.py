"""Checkpoints in all their forms are opened by what they describe: no torch, and nothing of them is run."""

from __future__ import annotations

import importlib
import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import safetensors.torch  # noqa: E402
from torch import nn  # noqa: E402

from explorer.base.errors import BadModel, ExplorerError, Misuse  # noqa: E402
from explorer.engine.models.open_model import open_model  # noqa: E402
from explorer.engine.models.opened_model import OpenOptions  # noqa: E402
from explorer.engine.models.registry import recognize  # noqa: E402
from explorer.facts import TileSpec  # noqa: E402
from explorer.facts.roofline import Machine  # noqa: E402
from explorer.session import Session  # noqa: E402
from tests.engine.formats.torch_replay.torch_nets import Small, Transformer, rewritten  # noqa: E402
from tests.fresh import DRAWS_OR_COMPUTES, loaded, tops  # noqa: E402

ROOT = Path(__file__).parents[4]


def _zip(value: Any, path: Path) -> None:
    torch.save(value, path)


def _legacy(value: Any, path: Path) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=False)


def _plain(protocol: int) -> Callable[[Any, Path], None]:
    return lambda value, path: path.write_bytes(pickle.dumps(value, protocol))


FORMS: dict[str, Callable[[Any, Path], None]] = {
    "zip": _zip,
    "legacy": _legacy,
    **{f"pickle {protocol}": _plain(protocol) for protocol in (3, 4, 5)},
}


def contents(path: str) -> Any:
    """What a checkpoint says of its tensors."""
    return open_model(path, OpenOptions()).contents


def saved(value: Any, path: Path, form: str = "zip") -> str:
    FORMS[form](value, path)
    return str(path)


def rows(path: str, **options: Any) -> dict[str, Any]:
    return {layer.path: layer for layer in Session(path, **options).analysis().layers}


def values(path: str) -> dict[str, np.ndarray[Any, Any]]:
    """Every tensor's numbers, as `weights` reads them from the file."""
    numbers, _ = recognize(path).open(path, _options()).tensors()
    return {n.name: np.concatenate([*n.slabs()] or [np.zeros(0)]).reshape(n.shape) for n in numbers}


def _options() -> Any:

    return OpenOptions()


# -- a state_dict


@pytest.mark.parametrize("form", FORMS)
def test_a_state_dict_opens_in_every_form_with_its_very_values(form: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = Small().state_dict()
    path = saved(state, tmp_path / "m.pt", form)
    found = contents(path)
    assert [(t.name, t.dtype, t.shape) for t in found.tensors] == [
        (name, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in state.items()
    ]
    assert sum(t.nbytes for t in found.tensors) == sum(t.nbytes for t in state.values())
    for name, array in values(path).items():
        assert np.array_equal(array, state[name].numpy()), name


@pytest.mark.parametrize("protocol", [2])
def test_values_that_a_pickle_holds_as_text_are_said_to_be_unread(protocol: int, tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(pickle.dumps(Small().state_dict(), protocol))
    weights = Session(str(tmp_path / "m.bin")).weights()
    assert len(weights.tensors) == len(Small().state_dict())
    assert any("not read" in note for note in weights.notes)
    assert weights.duplicates == ()


def test_the_tree_comes_from_the_names_and_says_what_is_not_known(tmp_path: Path) -> None:
    model = Small()
    found = Session(saved(model.state_dict(), tmp_path / "m.pt")).analysis()
    layers = {layer.path: layer for layer in found.layers}
    assert layers["conv"].group
    assert layers["conv.weight"].params == model.conv.weight.numel()
    assert layers["conv.weight"].status == "unknown"
    assert found.info.totals.macs is None
    assert found.info.totals.coverage == 0
    assert found.info.totals.params == sum(t.numel() for t in model.state_dict().values())
    assert any("buffers by their names" in note for note in found.info.model.notes)


DTYPES = """
    bool uint8 int8 int16 int32 int64 uint16 uint32 float16 bfloat16 float32 float64 complex64 float8_e4m3fn
    float8_e5m2
""".split()  # noqa: SIM905


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("form", ["zip", "legacy"])
def test_every_type_of_element_is_read_as_torch_reads_it(name: str, form: str, tmp_path: Path) -> None:
    kind = getattr(torch, name)
    tensor = (torch.arange(24).reshape(4, 6) % 7 - (name[0] != "u" and name != "bool") * 3).to(kind)
    path = saved({"x": tensor}, tmp_path / "m.pt", form)
    (found,) = contents(path).tensors
    assert (found.dtype, found.nbytes) == (name, tensor.nbytes)
    array = values(path)["x"]
    wide = np.complex128 if name.startswith("complex") else np.float64
    assert np.array_equal(
        array.astype(wide), tensor.to(torch.complex128 if wide is np.complex128 else torch.float64).numpy()
    )


def test_strides_are_kept_and_the_numbers_come_in_order(tmp_path: Path) -> None:
    base = torch.arange(60.0).reshape(5, 12)
    state = {"turned": base.t(), "part": base[1:4, ::3], "base": base}
    path = saved(state, tmp_path / "m.pt")
    for name, array in values(path).items():
        assert np.array_equal(array, state[name].numpy()), name
    outline = {row.path: row.note for row in recognize(path).outline(path).rows if row.kind == "tensor"}
    assert "strides (1, 12)" in outline["turned"]
    assert "strides (12, 3)" in outline["part"]
    assert "in the storage of turned" in outline["part"]


def test_a_tied_tensor_counts_once_and_says_with_whom(tmp_path: Path) -> None:
    model = Transformer()
    path = saved(model.state_dict(), tmp_path / "m.pt")
    found = Session(path).analysis()
    every = [t.numel() for t in model.state_dict().values()]
    assert found.info.totals.params == sum(every) - model.embed.weight.numel()
    layers = {layer.path: layer for layer in found.layers}
    assert layers["head.weight"].shared_with == ("embed.weight",)
    assert Session(path).weights().tied == (("embed.weight", "head.weight"),)


def test_a_tensor_that_repeats_its_elements_takes_what_is_stored(tmp_path: Path) -> None:
    path = saved({"wide": torch.zeros(1).expand(1 << 40), "w": torch.ones(3)}, tmp_path / "m.pt")
    found = {t.name: t for t in contents(path).tensors}
    assert (found["wide"].shape, found["wide"].nbytes) == ((1 << 40,), 4)
    assert "overlap" in found["wide"].unread
    assert len(Session(path).weights().tensors) == 2


def test_tensors_without_values_are_described(tmp_path: Path) -> None:
    path = saved({"meta": torch.empty(3, 4, device="meta")}, tmp_path / "m.pt")
    found = {t.name: t for t in contents(path).tensors}
    assert (found["meta"].shape, found["meta"].unread) == ((3, 4), "it is on the meta device")


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda x: x.to_sparse(), ["values", "indices"]),
        (lambda x: x.to_sparse_csr(), ["values", "compressed_indices", "plain_indices"]),
        (lambda x: x.to_sparse_bsr((2, 3)), ["values", "compressed_indices", "plain_indices"]),
    ],
)
def test_a_sparse_tensor_has_the_numbers_of_its_shape_and_the_bytes_of_its_parts(
    make: Callable[[Any], Any], names: list[str], tmp_path: Path
) -> None:
    sparse = make(torch.diag(torch.arange(1.0, 7.0)))
    parts = [
        sparse._values() if sparse.layout is torch.sparse_coo else sparse.values(),
        *([sparse._indices()] if sparse.layout is torch.sparse_coo else
          [sparse.crow_indices(), sparse.col_indices()]),
    ]  # fmt: skip
    path = saved({"w": sparse}, tmp_path / "m.pt")
    with Session(path) as session:
        totals = session.info().totals
        fact = session.convert(str(tmp_path / "m.safetensors"))
    assert (totals.params, totals.weight_bytes) == (36, sum(part.nbytes for part in parts))
    assert any(str(sparse.layout).removeprefix("torch.") in note for note in fact.notes)
    written = safetensors.torch.load_file(tmp_path / "m.safetensors")
    assert sorted(written) == sorted(f"w.{name}" for name in names)
    assert all(torch.equal(written[f"w.{name}"], part) for name, part in zip(names, parts, strict=True))


def test_numbers_that_are_still_to_be_conjugated_take_the_bytes_of_their_storage(tmp_path: Path) -> None:
    path = saved({"c": torch.ones(3, 2, dtype=torch.complex64).conj()}, tmp_path / "m.pt")
    with Session(path) as session:
        totals = session.info().totals
    assert (totals.params, totals.weight_bytes) == (6, 48)


def test_values_in_the_other_byte_order_are_said_to_be_unread(tmp_path: Path) -> None:
    source = saved({"w": torch.ones(3)}, tmp_path / "little.pt")
    path = rewritten(source, tmp_path / "big.pt", {"byteorder": b"big"})
    weights = Session(path).weights()
    assert weights.tensors[0].mean is None
    assert any("byte order is not that of this machine" in note for note in weights.notes)


def test_parameters_and_arrays_of_numpy_are_tensors_too(tmp_path: Path) -> None:
    array = np.arange(200, dtype=np.float32).reshape(20, 10)
    path = saved({"p": nn.Parameter(torch.ones(2, 3)), "a": array}, tmp_path / "m.pt")
    found = {t.name: t for t in contents(path).tensors}
    assert found["p"].trainable is True
    assert (found["a"].dtype, found["a"].shape) == ("float32", (20, 10))
    # torch's own pickles hold bytes as text, later protocols as they are
    assert "stores as text" in found["a"].unread
    later = saved({"p": torch.ones(2), "a": array}, tmp_path / "later.pt", "pickle 4")
    assert np.array_equal(values(later)["a"], array)


# -- a dictionary of many things


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = Small()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.125)
    model(torch.zeros(2, 1, 8, 8)).sum().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 7,
        "note": "a\x1b[31m",
    }
    return saved(state, tmp_path_factory.mktemp("checkpoint") / "last.ckpt")


def test_an_optimizer_s_moments_are_no_parameters(training: str) -> None:
    found = Session(training).analysis()
    state = Small().state_dict()
    assert found.info.totals.params == sum(t.numel() for t in state.values())
    layers = {layer.path: layer for layer in found.layers}
    moment = layers["optimizer.state.0.exp_avg"]
    assert (moment.params, moment.attributes["role"]) == (0, "optimizer state")
    assert moment.attributes["bytes"] == 4 * state["conv.weight"].numel()
    assert layers["model.conv.weight"].params == state["conv.weight"].numel()


def test_what_lies_beside_the_tensors_is_said(training: str) -> None:
    facts = dict(recognize(training).outline(training).facts)
    assert facts["epoch"] == "7"
    assert facts["optimizer.param_groups.0.lr"] == "0.125"
    assert "not counted as parameters" in facts["optimizer state"]


def test_an_averaged_copy_is_no_second_model_but_alone_it_is_one(tmp_path: Path) -> None:
    state = Small().state_dict()
    whole = sum(t.numel() for t in state.values())
    copy = {name: t.clone() for name, t in state.items()}
    both = saved({"state_dict": state, "ema_state_dict": copy}, tmp_path / "both.pt")
    alone = saved({"ema_state_dict": copy}, tmp_path / "alone.pt")
    assert Session(both).info().totals.params == whole
    assert Session(alone).info().totals.params == whole


def test_a_parameter_or_a_layer_may_be_called_anything(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ema = nn.Linear(2, 3)
            self.scaler = nn.Parameter(torch.ones(4))

    globals()["Own"], Own.__qualname__ = Own, "Own"
    try:
        for number, value in enumerate((Own(), Own().state_dict(), {"scaler": torch.ones(13)})):
            assert Session(saved(value, tmp_path / f"{number}.pt")).info().totals.params == 13
    finally:
        del globals()["Own"]


def test_the_same_dictionary_twice_is_walked_once(tmp_path: Path) -> None:
    inner: Any = {"w": torch.ones(2)}
    for _ in range(60):
        inner = {"a": inner, "b": inner}
    with pytest.raises(BadModel, match="nested deeper"):
        contents(saved({"x": _deep({"w": torch.ones(1)}, 100)}, tmp_path / "deep.pt"))
    assert len(contents(saved(inner, tmp_path / "laughs.pt")).tensors) == 1


def test_a_few_bytes_cannot_name_a_tensor_a_million_times(tmp_path: Path) -> None:
    tensor = torch.ones(2)
    with pytest.raises(BadModel, match="more than 10,000 names"):
        contents(saved({"w": [tensor] * 20_000}, tmp_path / "often.pt"))
    with pytest.raises(BadModel, match="more than 10,000 names"):
        contents(saved({"w": tensor, "x": [{"a": 1}] * 1 + [[[1]]] * 20_000}, tmp_path / "lists.pt"))


def test_long_names_do_not_grow_with_depth(tmp_path: Path) -> None:
    value: Any = {"w": torch.ones(2), "v": torch.ones(2)}
    for _ in range(50):
        value = {"k" * 100_000: value}
    found = contents(saved(value, tmp_path / "long.pt"))
    assert [len(t.name) < 600 for t in found.tensors] == [True, True]
    assert found.tensors[0].name.endswith("w")


def _deep(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = {"a": value}
    return value


# -- a whole module


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle 4"])
def test_a_pickled_module_shows_its_own_tree_with_classes_and_settings(form: str, tmp_path: Path) -> None:
    model = Small()
    path = saved(model, tmp_path / "whole.pt", form)
    layers = rows(path)
    assert [p for p in layers if "." not in p] == [name for name, _ in model.named_children()]
    assert layers["conv"].kind == "Conv2d"
    assert layers["conv"].attributes["kernel_size"] == (3, 3)
    assert layers["drop"].kind == "Dropout"
    assert layers["norm"].attributes["buffers"] == ["running_mean", "running_var", "num_batches_tracked"]
    info = Session(path).info()
    assert info.totals.params == sum(p.numel() for p in model.parameters())
    assert info.totals.trainable_params == info.totals.params
    assert "class" not in info.model.notes
    assert any("tests.engine.formats.torch_replay.torch_nets.Small" in note for note in info.model.notes)


def test_a_module_in_a_dictionary_is_found(tmp_path: Path) -> None:
    model = Small()
    path = saved({"epoch": 3, "net": {"generator": model}}, tmp_path / "gan.pt")
    layers = rows(path)
    assert layers["net.generator"].kind == "Small"
    assert layers["net.generator.out"].params == 51
    trusted = Session(path, trust=True, input_shapes={"image": ("float32", (2, 1, 8, 8))}).info()
    assert trusted.totals.macs == Session(model, inputs=torch.zeros(2, 1, 8, 8)).info().totals.macs


SNIPPET = """
import sys
sys.modules["torch"] = None
import json
from explorer.session import Session
found = Session(sys.argv[1]).analysis()
own = [name for name in sys.modules if "my_classes" in name]
print(json.dumps([found.info.totals.params, len(found.layers), own]))
"""


def test_no_torch_and_no_class_of_the_file_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's own package is not there when the file is opened, and torch cannot be imported."""
    (tmp_path / "my_classes.py").write_text(
        textwrap.dedent("""
        from torch import nn
        class Own(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(3, 4)
                self.width = 4
            def __setstate__(self, state):
                raise SystemExit("the file's code was run")
        """)
    )
    path = tmp_path / "own.pt"
    monkeypatch.syspath_prepend(tmp_path)
    torch.save(importlib.import_module("my_classes").Own(), path)
    monkeypatch.delitem(sys.modules, "my_classes")
    there = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(
        [sys.executable, "-c", SNIPPET, str(path)], check=True, capture_output=True, text=True, env=there
    )
    assert json.loads(said.stdout) == [16, 1, []]


def test_with_trust_a_module_is_loaded_and_analysed_like_any_other(tmp_path: Path) -> None:
    model = Small()
    for form in ("zip", "legacy"):
        path = saved(model, tmp_path / f"{form}.pt", form)
        shapes = {"image": ("float32", (2, 1, 8, 8))}
        info = Session(path, trust=True, input_shapes=shapes).info()
        assert info.totals.macs == Session(model, inputs=torch.zeros(2, 1, 8, 8)).info().totals.macs
        assert info.model.format == "checkpoint"


def test_a_class_that_cannot_be_imported_is_named_in_one_line(tmp_path: Path) -> None:
    path = saved(Small(), tmp_path / "m.pt")
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith("data.pkl"))
        content = archive.read(name)
    other = content.replace(
        b"tests.engine.formats.torch_replay.torch_nets", b"tests.engine.formats.torch_gone"
    )
    gone = rewritten(path, tmp_path / "gone.pt", {"data.pkl": other})
    assert rows(gone)["conv"].kind == "Conv2d"
    with pytest.raises(
        BadModel, match=r"cannot be imported here .*torch_gone.*Small must be importable"
    ) as error:
        Session(gone, trust=True).info()
    assert "\n" not in str(error.value)


# -- what would run


class Evil:
    """Pickles as a call."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@pytest.mark.parametrize("form", FORMS)
def test_code_in_a_checkpoint_is_listed_and_never_run(form: str, tmp_path: Path) -> None:
    state = {"w": torch.ones(2), "x": Evil(f"touch {tmp_path / 'ran'}")}
    path = saved(state, tmp_path / "evil.pt", form)
    outline = recognize(path).outline(path)
    assert [row.path for row in outline.rows if row.kind == "tensor"] == ["w"]
    notes = [text for key, text in outline.facts if key == "note"]
    assert any("would run posix.system (called 1 times)" in note for note in notes)
    Session(path).weights()
    assert not (tmp_path / "ran").exists()


def test_a_pickle_that_is_nothing_but_a_call_says_what_it_would_call(tmp_path: Path) -> None:
    path = saved(Evil(f"touch {tmp_path / 'ran'}"), tmp_path / "evil.pt")
    with pytest.raises(BadModel, match=r"no tensors and no module \(its pickle asks for posix.system"):
        Session(path).info()
    # trust is for modules: there is none in it
    with pytest.raises(BadModel, match="no tensors"):
        Session(path, trust=True).info()
    assert not (tmp_path / "ran").exists()


# -- broken and hostile files


def _state(path: Path) -> str:
    return saved({"w": torch.arange(100.0), "v": torch.ones(3)}, path)


def _pickled(path: Path, change: Callable[[bytes], bytes]) -> str:
    source = _state(path.with_suffix(".good"))
    with zipfile.ZipFile(source) as archive:
        content = archive.read(next(n for n in archive.namelist() if n.endswith("/data.pkl")))
    changed = change(content)
    assert changed != content
    return rewritten(source, path, {"data.pkl": changed})


def _cut_legacy(path: Path) -> str:
    _legacy({"w": torch.ones(1000)}, path)
    path.write_bytes(path.read_bytes()[:-100])
    return str(path)


def _tar(path: Path) -> str:
    with tarfile.open(path, "w") as archive:
        for name in ("sys_info", "pickle", "storages"):
            info = tarfile.TarInfo(name)
            info.size = 4
            archive.addfile(info, io.BytesIO(b"abcd"))
    return str(path)


def _bytes(content: bytes) -> Callable[[Path], str]:
    def write(path: Path) -> str:
        path.write_bytes(content)
        return str(path)

    return write


MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."

HOSTILE: dict[str, tuple[Callable[[Path], str], str]] = {
    "a tensor larger than its storage": (
        lambda p: _pickled(p, lambda c: c.replace(b"K\x64\x85", b"K\xff\x85")),
        "larger than its storage",
    ),
    "a negative stride": (
        lambda p: _pickled(p, lambda c: c.replace(b"K\x01\x85", b"J\xff\xff\xff\xff\x85")),
        "not counts",
    ),
    "a size of half a number": (
        lambda p: _pickled(p, lambda c: c.replace(b"K\x64\x85", b"G?\xf0\0\0\0\0\0\0\x85")),
        "not counts",
    ),
    "a storage that claims more than the file": (
        lambda p: _pickled(p, lambda c: c.replace(b"K\x64", b"J\0\0\0\x7f")),
        "fewer bytes than its tensor",
    ),
    "a storage that is not there": (
        lambda p: rewritten(_state(p.with_suffix(".good")), p, {"data/0": None}),
        "lacks the storage '0'",
    ),
    "a storage that is shorter": (
        lambda p: rewritten(_state(p.with_suffix(".good")), p, {"data/0": bytes(8)}),
        "fewer bytes than its tensor",
    ),
    "no pickle": (lambda p: rewritten(_state(p.with_suffix(".good")), p, {"data.pkl": b""}), "cut off"),
    "a pickle of nothing": (
        lambda p: rewritten(_state(p.with_suffix(".good")), p, {"data.pkl": pickle.dumps([1, 2], 2)}),
        "no tensors and no module",
    ),
    "a packed pickle of many megabytes": (
        lambda p: rewritten(_state(p.with_suffix(".good")), p, {"data.pkl": b"]" * (9 << 20)}, packed=True),
        "bytes unpacked",
    ),
    "an old file cut off": (_cut_legacy, "cut off"),
    "the magic number alone": (_bytes(MAGIC), "cut off"),
    "an old file of other protocol": (
        _bytes(MAGIC + b"\x80\x02M\xe8\x03.\x80\x02}.\x80\x02}.\x80\x02]."),
        "its layout is not that of torch",
    ),
    "an archive of tar": (_tar, "torch before 0.2"),
    "text": (_bytes(b"weights will follow"), "not a file that torch wrote"),
    "an empty file": (_bytes(b""), "empty"),
    "a pickle of numbers": (_bytes(pickle.dumps({"a": 1}, 4)), "no tensors"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_broken_checkpoint_is_one_line_that_says_what_it_is(case: str, tmp_path: Path) -> None:
    make, expected = HOSTILE[case]
    path = make(tmp_path / "broken.pt")
    for look in (lambda: Session(path).weights(), lambda: list(recognize(path).outline(path).rows)):
        with pytest.raises(ExplorerError, match=expected) as error:
            look()
        assert "\n" not in str(error.value)
        assert "broken.pt" in str(error.value)


def test_names_are_those_of_the_file_and_no_two_are_alike(
    tmp_path: Path,
) -> None:
    state = OrderedDict([("a\x1b[2J", torch.ones(1)), (1, torch.ones(2)), ("1", torch.ones(3))])
    found = contents(saved(state, tmp_path / "m.pt"))
    assert [t.name for t in found.tensors] == ["a\x1b[2J", "1", "1#2"]


def test_what_needs_the_model_to_run_says_why_it_cannot(tmp_path: Path) -> None:
    weights = Session(saved(Small().state_dict(), tmp_path / "weights.pt"))
    with pytest.raises(Misuse, match=r"tensors and no graph.*nothing can be tiled"):
        weights.plan(TileSpec())
    whole = Session(saved(Small(), tmp_path / "whole.pt"))
    with pytest.raises(Misuse, match=r"code was not run.*--trust"):
        whole.plan(TileSpec())
    for ask in (whole.memory, lambda: whole.roofline(Machine("x", 1.0, 1.0))):
        with pytest.raises(Misuse, match=r"code was not run.*--trust"):
            ask()


# -- the instant look


@pytest.mark.parametrize("form", ["zip", "legacy"])
def test_an_outline_needs_nothing_that_is_slow_to_import(form: str, tmp_path: Path) -> None:
    model = Small()
    path = saved(model, tmp_path / "whole.pt", form)
    assert not tops(loaded("outline", path)) & DRAWS_OR_COMPUTES
    rows = list(recognize(path).outline(path).rows)
    assert len(rows) == len(model.state_dict()) + len(list(model.modules()))
