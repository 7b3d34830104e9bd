"""A folder of Hugging Face's opens as one model; what it claims and does not hold is said by name."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from explorer.base.errors import BadModel, Misuse
from explorer.engine.formats.format import SourceProbe
from explorer.engine.formats.weights import huggingface
from explorer.engine.models.registry import recognize
from explorer.facts.serving.spec import ServingSpec
from explorer.session import Session

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 12,
    "hidden_size": 8,
    "vocab_size": 32,
    "torch_dtype": "float32",
    "rope_scaling": {"type": "linear", "factor": 2.0},
    "id2label": {str(i): "x" for i in range(1000)},
}


def weights() -> dict[str, np.ndarray]:
    found = {"model.embed_tokens.weight": np.ones((32, 8), np.float32)}
    for layer in range(12):
        found[f"model.layers.{layer}.mlp.weight"] = np.full((8, 8), layer, np.float32)
    return found | {"lm_head.weight": np.zeros((32, 8), np.float32)}


def folder(path: Path, shards: int = 3, config: Any = CONFIG) -> Path:
    """A folder of shards by safetensors' own writer, and the index that goes with it."""
    path.mkdir(exist_ok=True)
    found = weights()
    total = sum(a.nbytes for a in found.values())
    places = {name: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(found)}
    for file in set(places.values()):
        save_file({n: found[n] for n in found if places[n] == file}, path / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "config.json").write_text(json.dumps(config))
    return path


def notes(path: Path) -> str:
    return "\n".join(huggingface.read_contents(str(path)).notes)


def edited(path: Path, change: Any) -> None:
    file = path / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    change(index)
    file.write_text(json.dumps(index))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return folder(tmp_path / "model")


@pytest.mark.parametrize("name", ["", "model.safetensors.index.json"])
def test_shards_open_as_one_model_from_the_folder_and_from_the_index(model: Path, name: str) -> None:
    with Session(model / name) as session:
        info = session.info()
        layers = session.analysis().layers
        found = session.weights(["model.layers.7.*"]).tensors
    assert info.model.format == "huggingface"
    assert info.totals.params == sum(a.size for a in weights().values())
    assert info.totals.weight_bytes == 4 * info.totals.params
    assert info.model.file_bytes == sum(f.stat().st_size for f in model.glob("*.safetensors"))
    assert {x.path for x in layers if not x.group} == set(weights())
    assert next(x for x in layers if x.path == "model.layers.0").repeat == 12
    assert [(t.minimum, t.maximum) for t in found] == [(7, 7)]


def test_what_config_says_is_shown(model: Path) -> None:
    found = dict(huggingface.read_contents(str(model)).facts)
    assert found["num_hidden_layers"] == "12"
    assert found["rope_scaling.factor"] == "2.0"
    assert found["id2label"] == "1,000 entries"
    assert huggingface.read_contents(str(model)).producer == "LlamaForCausalLM"
    outline = recognize(str(model)).outline
    assert outline is not None
    assert ("hidden_size", "8") in outline(str(model)).facts
    assert sum(row.kind == "tensor" for row in outline(str(model)).rows) == 14


def test_a_whole_model_has_nothing_to_be_said_against_it(model: Path) -> None:
    assert notes(model) == ""


def test_a_missing_shard_is_named_and_the_figures_are_said_to_be_of_the_rest(model: Path) -> None:
    (model / "model-00002-of-00003.safetensors").unlink()
    said = notes(model)
    assert "1 of 3 files is missing" in said
    assert "model-00002-of-00003.safetensors" in said
    assert "those of the files that are here" in said
    with Session(model) as session:
        assert session.info().totals.params < sum(a.size for a in weights().values())


def test_missing_and_surplus_tensors_are_named(model: Path) -> None:
    first = "model-00001-of-00003.safetensors"
    edited(model, lambda index: index["weight_map"].update({"model.gone.weight": first}))
    edited(model, lambda index: index["weight_map"].pop("lm_head.weight"))
    said = notes(model)
    assert "in no file: model.gone.weight" in said
    assert "in a file but not in the index: lm_head.weight" in said


def test_a_wrong_total_is_said(model: Path) -> None:
    edited(model, lambda index: index["metadata"].update({"total_size": 5.0}))
    assert "the index says 5.0 bytes" in notes(model)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"num_hidden_layers": 13},
            "config.json declares 13 layers, model.layers has 12; missing: model.layers.12",
        ),
        ({"num_hidden_layers": 11}, "more than that: model.layers.11"),
        ({"vocab_size": 31}, "model.embed_tokens.weight is [32, 8]"),
        ({"torch_dtype": "bfloat16"}, "config.json says bfloat16, the tensors are float32"),
        ({"tie_word_embeddings": True}, "both are counted"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized (gptq, 4 bits)"),
    ],
)
def test_what_config_says_and_the_tensors_contradict_is_said(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    assert said in notes(folder(tmp_path / "m", config=CONFIG | change))


@pytest.mark.parametrize(("kind", "rows"), [("mllama", 8), ("mllama_text_model", 8), ("moshi", 1)])
def test_rows_that_an_architecture_adds_to_its_vocabulary_contradict_nothing(
    tmp_path: Path, kind: str, rows: int
) -> None:
    config = CONFIG | {"model_type": kind, "vocab_size": 32 - rows}
    assert notes(folder(tmp_path / "m", config=config)) == ""
    config["vocab_size"] = 32
    said = (
        f"a vocabulary of 32 (and {rows} special rows) and a width of 8; model.embed_tokens.weight is [32, 8]"
    )
    assert said in notes(folder(tmp_path / "m", config=config))


def test_packed_weights_are_counted_by_their_bits_beside_what_is_stored(tmp_path: Path) -> None:
    save_file({"q.qweight": np.zeros((8, 16), np.int32)}, tmp_path / "model.safetensors")
    config = {"quantization_config": {"quant_method": "awq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "128 integers stand for 1,024 weights" in notes(tmp_path)


def test_a_head_that_is_tied_and_not_stored_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.mkdir()
    found = weights()
    del found["lm_head.weight"]
    save_file(found, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG | {"tie_word_embeddings": True}))
    assert "the head is not stored, it uses model.embed_tokens.weight" in notes(path)


def test_parts_without_an_index_are_taken_for_one_model_and_it_is_said(model: Path) -> None:
    (model / "model.safetensors.index.json").unlink()
    with Session(model) as session:
        assert session.info().totals.params == sum(a.size for a in weights().values())
    assert "no index: 3 of 3 parts" in notes(model)


def test_a_single_file_of_another_name_is_found_by_its_config(tmp_path: Path) -> None:
    save_file(weights(), tmp_path / "unet.fp16.safetensors")
    assert "huggingface" not in _kinds(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert _kinds(tmp_path) == ["huggingface"]
    assert len(huggingface.read_contents(str(tmp_path)).tensors) == 14


def _kinds(path: Path) -> list[str]:
    format = huggingface.FORMAT
    return [format.name] if format.recognize(SourceProbe(str(path))) else []


def test_other_weights_beside_the_model_are_named(model: Path) -> None:
    save_file({"x": np.zeros(2, np.float32)}, model / "model.fp16.safetensors")
    assert "model.fp16.safetensors" in notes(model)


def test_a_broken_config_is_a_note_and_the_weights_open(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    for text in ("{", "[]", "[" * 100_000, '{"a":' * 100_000):
        (path / "config.json").write_text(text)
        assert "config.json is not a JSON object" in notes(path)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b'{"model_type":\n "lla', "it is cut off in line 2"),
        (b'{"model_type": "llama",\n', "it is cut off in line 1"),
        (b'{"model_type": llama}', "line 1, column 16: Expecting value"),
        (b"[1]", "it is a list"),
        (b"null", "it is null"),
        (b"12", "it is a number"),
        (b'{"model_type": "\xff"}', "its byte 16 is not UTF-8"),
    ],
)
def test_what_is_wrong_with_a_config_is_said_by_every_way_to_the_model(
    tmp_path: Path, text: bytes, wrong: str
) -> None:
    path = folder(tmp_path / "m")
    save_file({"x": np.zeros(2, np.float32)}, path / "model.safetensors")
    (path / "config.json").write_bytes(text)
    said = f"config.json is not a JSON object: {wrong}"
    for name in ("", "model.safetensors.index.json", "model.safetensors"):
        with Session(path / name) as session:
            info = session.info()
            assert sum(said in note for note in info.model.notes) == 1
            assert info.totals.params
            with pytest.raises(Misuse, match=re.escape(said)):
                session.serving(ServingSpec())
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_bytes(text)
    with pytest.raises(BadModel, match=re.escape(f"no model is in it: {said}")):
        Session(bare).open()


def test_a_folder_without_a_model_says_that_its_config_names_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(BadModel, match=r"no model is in it: config\.json names no model_type"):
        Session(tmp_path).open()


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 10**18},
        {"num_hidden_layers": -3},
        {"architectures": "x", "vocab_size": 10**400, "hidden_size": -1},
        {"architectures": [{"a": [1]}] * 9, "quantization_config": {"bits": True, "quant_method": [[]]}},
        {"text_config": [], "dtype": 5, "tie_word_embeddings": "yes"},
    ],
)
def test_settings_that_nobody_would_write_do_no_harm(tmp_path: Path, change: dict[str, Any]) -> None:
    path = folder(tmp_path / "m", config=CONFIG | change)
    assert len(huggingface.read_contents(str(path)).tensors) == 14


def test_settings_as_deep_as_the_parser_goes_do_no_harm(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    for depth in range(500, 1500, 100):
        (path / "config.json").write_text('{"architectures": ' + "[" * depth + "]" * depth + "}")
        assert len(huggingface.read_contents(str(path)).tensors) == 14
    index = json.loads((path / "model.safetensors.index.json").read_text())
    index["metadata"] = {"total_size": 10**400}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "the index says 1000" in notes(path)


@pytest.mark.parametrize(
    "place", ["../secret.safetensors", "/etc/hostname", "a/b.safetensors", "..", "", "a\0b"]
)
def test_an_index_may_not_name_files_outside_its_folder(model: Path, place: str) -> None:
    shutil.copy(model / "model-00001-of-00003.safetensors", model.parent / "secret.safetensors")
    edited(model, lambda index: index["weight_map"].update({"x": place}))
    with pytest.raises(BadModel, match="is outside the model's folder"):
        huggingface.read_contents(str(model))


def test_a_link_out_of_the_folder_is_not_followed(model: Path) -> None:
    shard = model / "model-00001-of-00003.safetensors"
    shard.rename(model.parent / "elsewhere.safetensors")
    shard.symlink_to(model.parent / "elsewhere.safetensors")
    with pytest.raises(BadModel, match="is outside the model's folder"):
        huggingface.read_contents(str(model))


def test_the_links_of_hugging_faces_cache_are_followed(tmp_path: Path) -> None:
    """models--NAME/snapshots/REVISION is full of links to models--NAME/blobs."""
    whole = folder(tmp_path / "whole")
    blobs, snapshot = tmp_path / "models--a--b/blobs", tmp_path / "models--a--b/snapshots/0123"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(whole.iterdir()):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(os.path.join("../../blobs", str(number)))
    assert len(huggingface.read_contents(str(snapshot)).tensors) == 14


def test_an_index_that_is_a_link_names_what_lies_beside_its_end(tmp_path: Path) -> None:
    """Any download cache: a view full of links into a store."""
    whole = folder(tmp_path / "whole")
    store, view = tmp_path / "store", tmp_path / "view"
    store.mkdir()
    view.mkdir()
    for number, file in enumerate(whole.iterdir()):
        file.rename(store / str(number))
        (view / file.name).symlink_to(os.path.join("../store", str(number)))
    assert len(huggingface.read_contents(str(view / "model.safetensors.index.json")).tensors) == 14
    with pytest.raises(BadModel, match="is outside the model's folder"):
        huggingface.read_contents(str(view))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"weight_map": []}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {}}',
        pytest.param("[" * 1_000_000, id="nested"),
        '{"weight_map": {"a": "gone.safetensors"}}',
    ],
)
def test_an_index_that_is_none_is_refused_in_one_line(model: Path, text: str) -> None:
    (model / "model.safetensors.index.json").write_text(text)
    with pytest.raises(BadModel) as caught:
        huggingface.read_contents(str(model))
    assert str(caught.value).isprintable()


def test_a_folder_without_weights_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadModel):
        Session(tmp_path).open()


def test_opening_a_hundred_gigabytes_reads_the_headers_and_no_more(tmp_path: Path) -> None:
    """Thirty sparse shards of 4 GiB: what is read and what stays in memory is counted by the system."""
    names = [f"model-{i + 1:05d}-of-00030.safetensors" for i in range(30)]
    places, headers = {}, 0
    for shard, name in enumerate(names):
        entries, size = {}, 1 << 27
        for i in range(32):
            tensor = f"model.layers.{shard * 2 + i // 16}.t{i % 16}.weight"
            entries[tensor] = {
                "dtype": "BF16",
                "shape": [8192, 8192],
                "data_offsets": [i * size, (i + 1) * size],
            }
            places[tensor] = name
        raw = json.dumps(entries).encode()
        (tmp_path / name).write_bytes(len(raw).to_bytes(8, "little") + raw)
        os.truncate(tmp_path / name, 8 + len(raw) + 32 * size)
        headers += 8 + len(raw)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 30 << 32}, "weight_map": places}))
    Session(tmp_path).open()  # what is imported is not the model's
    allowed = 2 * (headers + index.stat().st_size) + (1 << 16)
    before, resident = _counted("/proc/self/io", "rchar"), _counted("/proc/self/status", "VmRSS")
    with Session(tmp_path) as session:
        assert session.open().totals.weight_bytes == 30 << 32
        assert _counted("/proc/self/io", "rchar") - before < allowed
        assert _counted("/proc/self/status", "VmRSS") - resident < 20 << 10
    assert sum(file.stat().st_blocks for file in tmp_path.iterdir()) * 512 < 4 << 20


def _counted(path: str, what: str) -> int:
    with open(path, encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(what))


def test_a_folder_by_hugging_faces_own_writers_opens(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    hub = pytest.importorskip("huggingface_hub")
    found = {name: torch.from_numpy(array) for name, array in weights().items()}
    found["lm_head.weight"] = found["model.embed_tokens.weight"]
    for safe in (True, False):
        path = tmp_path / str(safe)
        path.mkdir()
        hub.save_torch_state_dict(dict(found), path, safe_serialization=safe, max_shard_size="1KB")
        (path / "config.json").write_text(json.dumps(CONFIG | {"tie_word_embeddings": True}))
        with Session(path) as session:
            info = session.info()
            statistics = {t.tensor.name: t for t in session.weights().tensors}
        assert info.totals.params == sum(t.numel() for t in found.values()) - 32 * 8
        assert sum("embed" in n or "lm_head" in n for n in statistics) == 1
        assert statistics["model.layers.7.mlp.weight"].mean == 7
        assert "tied" in notes(path)
        if safe:
            # which of the names it keeps differs between versions
            assert "stored and counted once" in notes(path)
            assert "both are counted" not in notes(path)


def test_a_model_saved_by_transformers_opens(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    module = transformers.LlamaForCausalLM(config)
    module.save_pretrained(tmp_path, max_shard_size="5KB")
    with Session(tmp_path) as session:
        info = session.info()
        paths = {x.path for x in session.analysis().layers if not x.group and x.params}
    assert info.totals.params == module.num_parameters()
    assert paths == {name.removesuffix(".weight") for name in module.state_dict()}
    assert info.totals.coverage == 1
    assert notes(tmp_path) == ""
