"""Whatever is given to the command line: one clear line, exit code 2, nothing written, nothing lost.

Every case runs in a folder that holds files of a user's; afterwards the folder is what it was.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from explorer.cli.main import main

Sample = Callable[[str], Path]


@pytest.fixture
def folder(tmp_path: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: two models, and a result that somebody made earlier."""
    shutil.copy(sample("lenet"), tmp_path / "lenet.onnx")
    shutil.copy(sample("bert_tiny"), tmp_path / "bert.onnx")
    (tmp_path / "earlier.onnx").write_bytes(b"somebody's result")
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))
    }


class Complaint:
    """Runs a command that must be refused, and hands back the line that it printed."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capfd = folder, capfd

    def __call__(self, *words: str) -> str:
        before = contents(self.folder)
        self.capfd.readouterr()
        code = main(words)
        out, err = self.capfd.readouterr()
        assert contents(self.folder) == before
        assert out == ""
        lines = err.splitlines()
        assert len(lines) == 1, err
        assert lines[0].startswith("explorer: ")
        assert "internal error" not in lines[0]
        assert "Traceback" not in lines[0]
        assert lines[0].isprintable()
        assert code == 2
        return lines[0]


@pytest.fixture
def complaint(folder: Path, capfd: pytest.CaptureFixture[str]) -> Complaint:
    return Complaint(folder, capfd)


def verbs(model: str) -> list[tuple[str, ...]]:
    return [
        ("info", model),
        ("layers", model, "--json"),
        ("ops", model),
        ("tile", model, "-o", "out.onnx"),
        ("verify", model, "lenet.onnx"),
        ("diff", "lenet.onnx", model),
    ]


# what is opened


@pytest.mark.sampled(8)
@pytest.mark.parametrize("verb", range(6))
@pytest.mark.parametrize(
    "model", ["missing.onnx", "nowhere/missing.onnx", "results", "empty.onnx", "text.onnx"]
)
def test_what_is_no_model_is_named(folder: Path, complaint: Complaint, model: str, verb: int) -> None:
    (folder / "empty.onnx").touch()
    (folder / "text.onnx").write_text("This is a text file.\nIt was named .onnx by mistake.\n" * 20)
    assert model in complaint(*verbs(model)[verb])


def test_the_screen_refuses_them_before_it_opens(complaint: Complaint) -> None:
    assert "missing.onnx" in complaint("missing.onnx")
    assert "is a directory" in complaint("results")


def test_a_missing_file_brings_up_the_one_that_was_meant(complaint: Complaint) -> None:
    assert "lenet.onnx" in complaint("lenett.onnx")


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file(folder: Path, complaint: Complaint, share: float) -> None:
    whole = (folder / "lenet.onnx").read_bytes()
    (folder / "cut.onnx").write_bytes(whole[: int(len(whole) * share)])
    for words in verbs("cut.onnx"):
        assert "cut.onnx" in complaint(*words)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(20))
def test_a_random_file(folder: Path, complaint: Complaint, seed: int) -> None:
    rng = random.Random(seed)
    (folder / "random.onnx").write_bytes(rng.randbytes(rng.choice([1, 7, 100, 5000])))
    assert "random.onnx" in complaint("info", "random.onnx")
    assert "random.onnx" in complaint("tile", "random.onnx", "-o", "out.onnx")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_file_is_refused_or_read_but_never_a_crash(
    folder: Path, capfd: pytest.CaptureFixture[str], sample: Sample, seed: int
) -> None:
    rng = random.Random(seed)
    data = bytearray(sample("jsc_tiny").read_bytes())
    for _ in range(rng.choice([1, 3, 10])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    (folder / "damaged.onnx").write_bytes(data)
    code = main(["info", "damaged.onnx"])
    err = capfd.readouterr().err
    assert code in (0, 2)
    assert "internal error" not in err
    assert len(err.splitlines()) <= 1


# names


def test_a_wrong_name_of_a_model(complaint: Complaint) -> None:
    pytest.importorskip("torchvision")
    assert "did you mean 'alexnet'?" in complaint("info", "alexnett")
    assert "did you mean 'resnet18'?" in complaint("tile", "resnet_18", "-o", "out.onnx")
    for name in ("lenet.onx", "lenet", "lenett"):
        assert "did you mean 'lenet.onnx'?" in complaint("layers", name)


def test_a_wrong_name_of_a_callable(folder: Path, complaint: Complaint) -> None:
    pytest.importorskip("torch")
    (folder / "mynets.py").write_text(
        "def make():\n    return 5\ndef broken():\n    raise KeyError('weights')\n"
    )
    assert "no_such_package" in complaint("info", "no_such_package:make")
    assert "did you mean 'make'?" in complaint("info", "mynets:mak")
    assert "mynets:make" in complaint("info", "mynets:make")
    assert "FILE.py:callable or package.module:callable" in complaint("info", "mynets:")
    assert "weights" in complaint("info", "mynets:broken")


def test_a_wrong_name_of_a_site(complaint: Complaint) -> None:
    line = complaint("tile", "lenet.onnx", "-o", "out.onnx", "--site", "/fc1/Gem")
    assert "did you mean '/fc1/Gemm'?" in line


def test_a_wrong_name_of_a_dimension(complaint: Complaint) -> None:
    assert "did you mean 'batch'?" in complaint("info", "bert.onnx", "--dim", "bacth=8")
    assert "did you mean 'sequence'?" in complaint("info", "bert.onnx", "--dim", "sequenze=8")
    complaint("info", "lenet.onnx", "--dim", "batch=8")


@pytest.mark.parametrize("dim", ["batch", "batch=", "batch=0", "batch=-3", "batch=many", "=8"])
def test_a_size_that_is_none(complaint: Complaint, dim: str) -> None:
    assert "--dim" in complaint("info", "bert.onnx", "--dim", dim)


def test_a_wrong_input(complaint: Complaint) -> None:
    assert "did you mean 'input'?" in complaint("info", "lenet.onnx", "--input-shape", "imput:1,1,28,28")
    for text in ("input", "input:", "input:1,x", "input:f31:1x1x28x28", "input:-1"):
        assert "--input-shape" in complaint("info", "lenet.onnx", "--input-shape", text), text


def test_a_wrong_verb_or_option(complaint: Complaint) -> None:
    assert "did you mean 'tile'?" in complaint("tyle", "lenet.onnx")
    assert "did you mean '--edges'?" in complaint("tile", "lenet.onnx", "--edge", "padded")
    # the dashes alone make no option similar
    assert "did you mean" not in complaint("profile", "lenet.onnx", "--runs", "9")
    assert "did you mean 'padded'?" in complaint("tile", "lenet.onnx", "--edges", "paded")
    assert "did you mean 'scan'?" in complaint("tile", "lenet.onnx", "--form", "scam")


# what is asked


@pytest.mark.parametrize(
    "tile",
    [
        "0",
        "-1",
        "64x0x64",
        "64x-64x64",
        "64x64",
        "64x64x64x64",
        "big",
        "",
        "x",
        "6.5",
        "64x64xbig",
        "1e3",
        "²",
    ],
)
def test_a_tile_that_is_none(complaint: Complaint, tile: str) -> None:
    assert "--tile" in complaint("tile", "lenet.onnx", "-o", "out.onnx", "--tile", tile)


@pytest.mark.parametrize("option", [("--draws", "0"), ("--draws", "some"), ("--seed", "-1"), ("--seed", "x")])
def test_a_count_that_is_none(complaint: Complaint, option: tuple[str, str]) -> None:
    assert option[0] in complaint("verify", "lenet.onnx", "lenet.onnx", *option)


@pytest.mark.parametrize("verb", ["verify", "blame"])
def test_two_models_that_take_other_inputs_are_not_held_against_each_other(
    complaint: Complaint, verb: str
) -> None:
    said = complaint(verb, "lenet.onnx", "bert.onnx")
    assert said.startswith("explorer: bert.onnx: the two cannot be run on the same inputs: ")


NETS = """
from torch import nn
def flat(): return nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 5))
def image(): return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(5))
def norm(): return nn.Sequential(nn.BatchNorm2d(9), nn.Flatten(), nn.LazyLinear(5))
"""


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        ("flat", "takes 16 in its last axis"),
        ("image", "takes an input with 3 axes or more"),
        ("norm", "takes an input with 4 axes"),
    ],
)
def test_samples_of_another_width_are_told_in_words_of_ours(
    folder: Path, complaint: Complaint, net: str, expected: str
) -> None:
    pytest.importorskip("torch")
    (folder / "nets.py").write_text(NETS)
    np.savez(folder / "w.npz", input=np.zeros((4, 9), np.float32), y=np.zeros(4, int))
    np.savez(folder / "x.npz", input=np.zeros((4, 9), np.float32))
    for words in [
        ("evaluate", f"nets.py:{net}", "--data", "w.npz"),
        ("activations", f"nets.py:{net}", "--input", "x.npz"),
        ("profile", f"nets.py:{net}", "--input", "x.npz"),
    ]:
        said = complaint(*words)
        assert "layer '0' (" in said
        assert f"{expected}, and the input that came to it is [" in said
        assert "Error" not in said
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)


# where to


@pytest.mark.parametrize("form", ["lenet.onnx", "./lenet.onnx", "results/../lenet.onnx"])
def test_an_output_that_is_the_input(complaint: Complaint, form: str) -> None:
    assert "lenet.onnx" in complaint("tile", "lenet.onnx", "-o", form)
    assert "lenet.onnx" in complaint("tile", "lenet.onnx", "-o", form, "--force")


def test_an_output_that_is_the_input_by_another_name(folder: Path, complaint: Complaint) -> None:
    (folder / "link.onnx").symlink_to("lenet.onnx")
    os.link(folder / "lenet.onnx", folder / "hard.onnx")
    for other in ("link.onnx", "hard.onnx"):
        assert other in complaint("tile", "lenet.onnx", "-o", other, "--force")
        assert "lenet.onnx" in complaint("tile", other, "-o", "lenet.onnx", "--force")


def test_an_output_that_exists_is_kept(complaint: Complaint) -> None:
    assert "--force" in complaint("tile", "lenet.onnx", "-o", "earlier.onnx")


@pytest.mark.parametrize(
    "output", ["results", "results/", ".", "nowhere/out.onnx", "earlier.onnx/out.onnx", ""]
)
def test_an_output_that_cannot_be(complaint: Complaint, output: str) -> None:
    complaint("tile", "lenet.onnx", "-o", output)


@pytest.mark.parametrize("name", ["out.tflite", "out.pb", "out"])
def test_an_output_that_says_another_kind_of_file_than_is_written(complaint: Complaint, name: str) -> None:
    for words in [
        ("tile", "lenet.onnx", "-o", name),
        ("tile", "lenet.onnx", "-o", name, "--quantize", "int8"),
        ("quantize", "lenet.onnx", "-o", name, "--to", "int8"),
        ("rebatch", "lenet.onnx", "4", "-o", name),
    ]:
        said = complaint(*words)
        assert said.startswith(f"explorer: {name}: ")
        assert ".onnx" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_folder_without_permission(folder: Path, complaint: Complaint) -> None:
    (folder / "results").chmod(0o500)
    try:
        assert "results/out.onnx" in complaint("tile", "lenet.onnx", "-o", "results/out.onnx")
    finally:
        (folder / "results").chmod(0o700)


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="no /proc here")
def test_an_output_on_a_file_system_that_takes_none(complaint: Complaint) -> None:
    assert "/proc/out.onnx" in complaint("tile", "lenet.onnx", "-o", "/proc/out.onnx")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the quota is used up"),
        (errno.EFBIG, os.strerror(errno.EFBIG)),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_a_disk_that_takes_no_more_while_writing(
    complaint: Complaint, monkeypatch: pytest.MonkeyPatch, reason: int, said: str
) -> None:
    write = os.pwrite

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if offset + len(data) > 100_000:
            raise OSError(reason, os.strerror(reason))
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    assert said in complaint("tile", "lenet.onnx", "-o", "out.onnx")
    assert said in complaint("tile", "lenet.onnx", "-o", "earlier.onnx", "--force")


def test_a_write_that_the_system_cuts_short_for_real(folder: Path) -> None:
    before = contents(folder)
    done = subprocess.run(
        [sys.executable, "-m", "explorer", "tile", "lenet.onnx", "-o", "earlier.onnx", "--force"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "earlier.onnx" in done.stderr
    assert contents(folder) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_an_answer_that_cannot_be_printed(folder: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "explorer", "info", "lenet.onnx"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


# graphs


def saved(
    folder: Path,
    nodes: list[onnx.NodeProto],
    *,
    opsets: tuple[tuple[str, int], ...] = (("", 17),),
    outputs: tuple[str, ...] = ("y",),
) -> str:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in outputs],
        [helper.make_tensor("w", TensorProto.FLOAT, [4, 4], [1.0] * 16)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*o) for o in opsets], ir_version=8)
    (folder / "graph.onnx").write_bytes(model.SerializeToString())
    return "graph.onnx"


def node(op: str, inputs: list[str], outputs: list[str], domain: str = "") -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, name=f"{op}_{outputs[0]}", domain=domain)


BROKEN_GRAPHS: dict[str, list[onnx.NodeProto]] = {
    "a cycle": [
        node("Add", ["x", "b"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("MatMul", ["b", "w"], ["y"]),
    ],
    "a node that feeds itself": [node("Add", ["x", "y"], ["y"])],
    "a duplicate output": [node("Relu", ["x"], ["y"]), node("MatMul", ["x", "w"], ["y"])],
    "an output that hides a weight": [node("Relu", ["x"], ["w"]), node("MatMul", ["x", "w"], ["y"])],
    "a value from nowhere": [node("MatMul", ["x", "nobody"], ["y"])],
    "a domain that is not imported": [
        node("Twist", ["x"], ["a"], "com.example"),
        node("MatMul", ["a", "w"], ["y"]),
    ],
    "an output that nobody makes": [node("Relu", ["x"], ["z"])],
}


@pytest.mark.parametrize("case", BROKEN_GRAPHS)
def test_a_graph_that_cannot_run(folder: Path, complaint: Complaint, case: str) -> None:
    model = saved(folder, BROKEN_GRAPHS[case])
    for words in verbs(model):
        assert "graph.onnx" in complaint(*words)


def test_an_operator_of_a_domain_that_nobody_knows(
    folder: Path, complaint: Complaint, capfd: pytest.CaptureFixture[str]
) -> None:
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Twist", ["a"], ["y"], "com.example")]
    model = saved(folder, nodes, opsets=(("", 17), ("com.example", 1)))
    # it can be looked at, and what is unknown is said
    assert main(["layers", model]) == 0
    assert "?" in capfd.readouterr().out
    # it cannot be run, hence not proved
    assert "com.example" in complaint("tile", model, "-o", "out.onnx")


def external(folder: Path, location: str) -> str:
    shutil.rmtree(folder / "results")
    (folder / "results").mkdir()
    model = onnx.load(folder / "lenet.onnx")
    onnx.save(model, folder / "results/ext.onnx", save_as_external_data=True, location="ext.bin")
    raw = onnx.load(folder / "results/ext.onnx", load_external_data=False)
    for tensor in raw.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    (folder / "results/ext.onnx").write_bytes(raw.SerializeToString())
    return "results/ext.onnx"


def test_external_data_that_is_missing(folder: Path, complaint: Complaint) -> None:
    model = external(folder, "gone.bin")
    assert "gone.bin" in complaint("tile", model, "-o", "out.onnx")


def test_external_data_that_is_too_short(folder: Path, complaint: Complaint) -> None:
    model = external(folder, "ext.bin")
    (folder / "results/ext.bin").write_bytes(b"\0" * 100)
    assert "ext.bin" in complaint("tile", model, "-o", "out.onnx")


@pytest.mark.parametrize(
    "location", ["../earlier.onnx", "{folder}/earlier.onnx", "../results/../earlier.onnx"]
)
def test_external_data_outside_the_folder(folder: Path, complaint: Complaint, location: str) -> None:
    model = external(folder, location.format(folder=folder))
    for words in verbs(model)[:4]:
        assert "outside" in complaint(*words)


def test_external_data_outside_the_folder_through_a_link(folder: Path, complaint: Complaint) -> None:
    model = external(folder, "link.bin")
    (folder / "results/link.bin").symlink_to(folder / "earlier.onnx")
    assert "outside" in complaint("tile", model, "-o", "out.onnx")


# without the extra


def test_torch_absent(complaint: Complaint, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] in ("torch", "torchvision", "torchinfo")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("torch", "torchvision", "torchinfo"):
        monkeypatch.setitem(sys.modules, name, None)
    for words in (("info", "alexnet"), ("tile", "alexnet", "-o", "out.onnx"), ("info", "mynets:make")):
        line = complaint(*words)
        assert "pip install" in line
        assert "[torch]" in line


def test_onnx_work_is_complete_without_torch(folder: Path) -> None:
    """In a process of its own, where torch cannot be imported at all."""
    absent = "import sys\nfor n in ('torch','torchvision','torchinfo'): sys.modules[n] = None\n"
    code = absent + "from explorer.cli.main import main; sys.exit(any(main(x.split()) for x in sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    commands = (
        "info lenet.onnx",
        "tile lenet.onnx -o tiled.onnx --draws 1",
        "verify lenet.onnx tiled.onnx --draws 1",
        "rebatch lenet.onnx 2 -o two.onnx",
        "extract lenet.onnx --layer conv2 -o part.onnx",
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *commands], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert {"tiled.onnx", "two.onnx", "part.onnx"} <= set(os.listdir(folder))


@pytest.mark.slow
def test_each_verb_that_needs_torch_says_what_to_type_without_it(folder: Path) -> None:
    (folder / "net.py").write_text("def net(): ...\n")
    absent = "import sys\nfor n in ('torch','torchvision','transformers'): sys.modules[n] = None\n"
    code = absent + "from explorer.cli.main import main; print([main(x.split()) for x in sys.argv[1:]])"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    commands = (
        *("info alexnet", "serving gpt2", "train net.py:net --data x.npz", "profile alexnet --train"),
        *("extract lenet.onnx --layer conv2 -o part.pt2", "split alexnet -n 2 --to torch -o stages"),
        *("sweep net.py:net --train lr=1e-3 --data x.npz", "convert lenet.onnx -o lenet.pt2"),
        *("tile alexnet --to torch -o tiled.pt2", "quantize alexnet --to int8 -o int8.pt2"),
    )
    words = [sys.executable, "-c", code, *commands]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.stdout == f"{[2] * len(commands)}\n"
    said = done.stderr.splitlines()
    assert ["pip install 'explorer-nn[" in line for line in said] == [True] * len(commands), said


# what a model says about itself


def test_escape_sequences_in_a_model_never_reach_the_terminal(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e"
    model = onnx.load(folder / "lenet.onnx")
    model.graph.node[0].name = f"/conv{evil}/Conv"
    model.producer_name = evil
    (folder / "evil.onnx").write_bytes(model.SerializeToString())
    for words in verbs("evil.onnx")[:4]:
        main(words)
        out, err = capfd.readouterr()
        assert not set("\x1b\x07\u202e") & set(out + err)


def test_a_name_with_escape_sequences_in_a_complaint(complaint: Complaint) -> None:
    complaint("info", "no\x1b[2Jsuch\nfile.onnx")


def test_half_a_character_in_an_index_is_a_line(folder: Path, complaint: Complaint) -> None:
    (folder / "hf").mkdir()
    (folder / "hf" / "config.json").write_text("{}")
    index = folder / "hf" / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"\\ud800x": "\\udc00.safetensors"}}')
    for words in (("info", "hf"), ("outline", "hf"), ("outline", str(index)), ("formats", "hf")):
        assert r"\udc00.safetensors' is outside the model's folder" in complaint(*words)


def test_half_a_character_in_a_name_is_a_line_where_it_cannot_be_written(
    folder: Path, complaint: Complaint
) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"a\ud800": torch.zeros(2)}, "half.pth")
    assert "half of a character" in complaint("convert", "half.pth", "-o", "made.safetensors")
    assert main(["info", "half.pth", "--quiet"]) == 0


def test_an_archive_with_more_than_arrays_is_a_line(folder: Path, complaint: Complaint) -> None:
    with zipfile.ZipFile("input.npz", "w") as archive:
        archive.writestr("abc", b"no array")
    assert "'abc' in it is not an array" in complaint("activations", "lenet.onnx", "--input", "input.npz")


def test_an_input_of_2_62_rows_is_a_line(
    folder: Path, complaint: Complaint, capfd: pytest.CaptureFixture[str]
) -> None:
    value, shape = helper.make_tensor_value_info, [2**62, 8]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g", [value("x", 1, shape)], [value("y", 1, shape)]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "big.onnx")
    for words in (
        ("info", "big.onnx", "--observe"),
        ("activations", "big.onnx"),
        ("verify", "big.onnx", "big.onnx"),
        ("blame", "big.onnx", "big.onnx"),
    ):
        assert "larger than any memory" in complaint(*words)
    assert main(["plot", "big.onnx", "-o", "big.svg"]) == 0
    assert "EiB" in Path("big.svg").read_text()


def test_without_torch_an_onnx_file_says_what_to_type(
    folder: Path, complaint: Complaint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "explorer.engine.convert.onnx_to_torch", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    for ending in (".pt", ".pt2"):
        said = complaint("convert", "lenet.onnx", "-o", f"made{ending}")
        assert "pip install 'explorer-nn[torch]'" in said
    for more in ((), ("-o", "made.pt2")):
        assert "only layers of an nn.Module can be replaced" in complaint(
            "tile", "lenet.onnx", "--to", "torch", *more
        )
