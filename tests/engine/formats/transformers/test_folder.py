"""A Hugging Face folder answers like a module: figures by its configuration, bytes by its files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.modules.module import register_module_module_registration_hook

from explorer.base.errors import BadModel, Misuse
from explorer.engine.formats.transformers import module as transformers_module
from explorer.engine.models.listing import read_model_file
from explorer.engine.models.torch import transformers
from explorer.facts import TileSpec
from explorer.facts.quantize import QuantizeSpec
from explorer.facts.serving.spec import ServingSpec
from explorer.report.present.shell.list import describe_stored
from explorer.session import Session
from tests.engine.formats.transformers import folders

pytest.importorskip("transformers")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("config", "tensors", "params"),
    [
        (folders.LLAMA_3_8B, lambda: folders.llama(), 8_030_261_248),
        (folders.LLAMA_2_7B, lambda: folders.llama(inner=11008, rows=32000, kv=4096), 6_738_415_616),
        (folders.MIXTRAL_8X7B, folders.mixtral, 46_702_792_704),
    ],
    ids=["Llama 3 8B", "Llama 2 7B", "Mixtral 8x7B"],
)
def test_known_shapes_have_their_figures(tmp_path: Path, config: Any, tensors: Any, params: int) -> None:
    path = folders.folder(tmp_path / "model", config, tensors(), shards=3)
    with Session(path) as session:
        info = session.info()
        layers = session.analysis().layers
    assert info.totals.params == params
    assert info.totals.weight_bytes == 2 * params
    assert info.totals.coverage == 1
    assert not [
        note for note in info.model.notes if "in no file" in note or "of the files not in the module" in note
    ]
    assert sum(layer.macs or 0 for layer in layers if not layer.group) == info.totals.macs


def test_a_folder_is_built_once_for_its_tree(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**folders.LLAMA_3_8B, "num_hidden_layers": 3}))
    built: list[str] = []
    hook = register_module_module_registration_hook(lambda module, name, child: built.append(name))
    try:
        with Session(str(tmp_path), cache=False) as session:
            layers = session.analysis().layers
            assert built.count("embed_tokens") == 1
            assert {"model.layers.2.mlp.up_proj", "lm_head"} <= {layer.path for layer in layers}
            # what wants no values of small tensors has a model without any
            assert session.training().forward_macs == session.info().totals.macs
    finally:
        hook.remove()


@pytest.mark.slow
def test_macs_of_llama_3_8b_are_those_of_its_products(tmp_path: Path) -> None:
    path = folders.folder(tmp_path / "model", folders.LLAMA_3_8B, folders.llama())
    with Session(path, input_shapes={"input_ids": (None, (1, 256))}) as session:
        macs = session.info().totals.macs
    # weights for each token, and each token with each of the context: queries with keys, weights with values
    assert macs == 256 * 7_504_658_432 + 256 * 256 * 262_144


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers 1,000,000,000"),
        ({"vocab_size": 10**18}, "vocab_size 1,000,000,000,000,000,000"),
        ({"text_config": {"num_layers": 10**6}}, "text_config.num_layers 1,000,000"),
    ],
)
def test_sizes_that_no_model_has_are_refused(tmp_path: Path, change: Any, said: str) -> None:
    config = {**folders.LLAMA_3_8B, **change}
    path = folders.folder(tmp_path / "model", config, folders.llama(layers=1))
    with pytest.raises(BadModel, match=said), Session(path) as session:
        session.info()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model_type": "nobodys"}, "knows no architecture 'nobodys'"),
        (
            {"model_type": "nobodys", "auto_map": {"AutoModel": "modeling_nobodys.Nobody"}},
            "modeling_nobodys.py",
        ),
        ({"intermediate_size": 9}, "model.layers.0.mlp.gate_proj.weight"),
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
    ],
)
def test_what_cannot_be_built_or_contradicts_is_unknown_with_its_reason(
    tmp_path: Path, change: Any, why: str
) -> None:
    config = {**folders.LLAMA_3_8B, "num_hidden_layers": 2, **change}
    path = folders.folder(tmp_path / "model", config, folders.llama(layers=2))
    with Session(path) as session:
        info = session.info()
    assert info.totals.macs is None
    assert info.totals.weight_bytes == sum(2 * _count(shape) for _, _, shape in folders.llama(layers=2))
    assert why in info.model.notes[0]


def _count(shape: tuple[int, ...]) -> int:
    found = 1
    for n in shape:
        found *= n
    return found


def small(**more: Any) -> dict[str, Any]:
    """A Llama of two layers and a width of 64."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 32}
    return {**folders.LLAMA_3_8B, **sizes, "num_attention_heads": 4, "num_key_value_heads": 2, **more}


def small_tensors() -> folders.Tensors:
    return folders.llama(layers=2, width=64, inner=96, rows=32, kv=32)


def test_a_file_of_weights_is_built_by_the_config_beside_it(tmp_path: Path) -> None:
    path = folders.folder(tmp_path / "model", small(), small_tensors())
    with Session(path) as folder, Session(path / "model.safetensors") as file:
        of_folder, of_file = folder.info(), file.info()
    assert of_file.model.format == "safetensors"
    assert of_file.totals == of_folder.totals
    assert of_file.totals.macs


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt"])
def test_a_checkpoint_is_built_by_the_config_beside_it(tmp_path: Path, name: str) -> None:
    path = folders.folder(tmp_path / "model", small(), small_tensors())
    held = {key: torch.zeros(shape, dtype=torch.bfloat16) for key, _, shape in small_tensors()}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text((path / "config.json").read_text())
    torch.save(held, tmp_path / "other" / name)
    with Session(path) as folder, Session(tmp_path / "other" / name) as file:
        of_folder, of_file = folder.info(), file.info()
    assert of_file.model.format == "checkpoint"
    assert of_file.totals == of_folder.totals
    assert of_file.totals.macs


@pytest.mark.slow
def test_values_are_those_of_the_file_that_is_named_whatever_lies_beside_it(tmp_path: Path) -> None:
    path = folders.folder(tmp_path / "model", small(), small_tensors())
    held = {key: torch.ones(shape, dtype=torch.bfloat16) for key, _, shape in small_tensors()}
    torch.save(held, path / "other.pt")
    for name, value in (("other.pt", 1), ("model.safetensors", 0), ("", 0)):
        with Session(path / name) as session:
            rows = session.activations().tensors
        embedded = next(row for row in rows if row.tensor.name == "model.embed_tokens")
        assert (embedded.minimum, embedded.maximum) == (value, value)


def test_a_checkpoint_of_other_sizes_than_the_config_beside_it_is_unknown(tmp_path: Path) -> None:
    path = folders.folder(tmp_path / "model", small(intermediate_size=80), [])
    held = {key: torch.zeros(shape) for key, _, shape in small_tensors()}
    torch.save(held, path / "weights.pt")
    with Session(path / "weights.pt") as session:
        info = session.info()
    assert info.totals.macs is None
    assert "gate_proj.weight is [96, 64], by the configuration [80, 64]" in info.model.notes[0]
    assert info.totals.weight_bytes == sum(4 * _count(shape) for *_, shape in small_tensors())


def test_missing_unexpected_and_tied_tensors_are_named(tmp_path: Path) -> None:
    lacking = "model.layers.1.mlp.up_proj.weight"
    held = [t for t in small_tensors() if t[0] not in (lacking, "lm_head.weight")]
    held.append(("model.layers.0.stray.weight", "BF16", (3,)))
    path = folders.folder(tmp_path / "model", small(tie_word_embeddings=True), held)
    with Session(path) as session:
        info = session.info()
        rows = {layer.path: layer for layer in session.analysis().layers}
    notes = "\n".join(info.model.notes)
    assert (
        f"1 parameter of the module in no file, counted as the configuration declares them: {lacking}"
        in notes
    )
    assert "1 tensor of the files not in the module and not counted: model.layers.0.stray.weight" in notes
    assert "uses model.embed_tokens.weight" in notes
    assert rows["lm_head"].macs == 128 * 64 * 32
    assert info.totals.params == sum(_count(shape) for _, _, shape in small_tensors()) - 64 * 32


@pytest.mark.sampled(1)
@pytest.mark.parametrize("base", ["model", "../model", "nobody/nothing"])
def test_an_adapter_counts_as_its_base_with_a_share_of_its_own(tmp_path: Path, base: str) -> None:
    model = folders.folder(tmp_path / "model", small(), small_tensors())
    at = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    config = {"peft_type": "LORA", "base_model_name_or_path": base, "r": 4}
    path = folders.folder(
        tmp_path / "adapter", config, [(f"{at}A.weight", "F32", (4, 64)), (f"{at}B.weight", "F32", (64, 4))]
    )
    (path / "config.json").rename(path / "adapter_config.json")
    (path / "model.safetensors").rename(path / "adapter_model.safetensors")
    with Session(path) as session, Session(model) as whole:
        info, wanted = session.info(), whole.info()
    if base == "nobody/nothing":
        assert info.totals.macs is None
        assert "its base 'nobody/nothing' is not on this machine" in info.model.notes[0]
        return
    assert info.totals == wanted.totals
    assert any("rank 4" in note and "512 parameters" in note for note in info.model.notes)
    assert any("it adds 512 parameters" in note for note in info.model.notes)


_AT = "base_model.model.model.layers.0."
_LORA = [(f"{_AT}self_attn.q_proj.lora_{x}.weight", "F32", s) for x, s in (("A", (4, 64)), ("B", (64, 4)))]
ADAPTERS: Mapping[str, tuple[dict[str, object], folders.Tensors, tuple[str, ...]]] = {
    "DoRA": (
        {"peft_type": "LORA", "r": 4, "use_dora": True},
        [*_LORA, (f"{_AT}self_attn.q_proj.lora_magnitude_vector", "F32", (64,))],
        ("rank 4", "it adds 576 parameters to read and 512 MACs"),
    ),
    "IA3": (
        {"peft_type": "IA3"},
        [(f"{_AT}self_attn.v_proj.ia3_l", "F32", (32, 1)), (f"{_AT}mlp.down_proj.ia3_l", "F32", (1, 96))],
        ("adapter (IA3) on", "it adds 128 parameters to read and 0 MACs"),
    ),
    "modules_to_save": (
        {"peft_type": "LORA", "r": 4, "modules_to_save": ["norm"]},
        [*_LORA, ("base_model.model.model.norm.weight", "F32", (64,))],
        (
            "it adds 512 parameters to read and as many MACs",
            "64 of its parameters replace parameters of the base",
        ),
    ),
    "another base's": (
        {"peft_type": "IA3"},
        [(f"{_AT}self_attn.v_proj.ia3_l", "F32", (33, 1))],
        ("this adapter does not fit its base",),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ADAPTERS)
def test_what_an_adapter_adds_and_replaces_is_told_by_its_kind(tmp_path: Path, kind: str) -> None:
    config, tensors, said = ADAPTERS[kind]
    folders.folder(tmp_path / "model", small(), small_tensors())
    path = folders.folder(tmp_path / "adapter", {**config, "base_model_name_or_path": "model"}, tensors)
    (path / "config.json").rename(path / "adapter_config.json")
    (path / "model.safetensors").rename(path / "adapter_model.safetensors")
    with Session(path) as session:
        notes = session.info().model.notes
    for words in said:
        assert any(words in note for note in notes)
    assert not any("belong to no layer" in note for note in notes)


@pytest.mark.slow
def test_a_model_that_sees_reads_a_text_where_nobody_says_more_and_a_picture_with_it(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 2}
    sight = {"model_type": "clip_vision_model", **sizes, "image_size": 56, "patch_size": 14}
    text = {"model_type": "llama", **sizes, "vocab_size": 300, "max_position_embeddings": 100}
    said = {"model_type": "llava", "vision_config": sight, "text_config": text, "image_token_index": 299}
    path = tmp_path / "sees"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**said, "dtype": "float32"}))
    with Session(path) as session:
        info = session.info()
    assert [(one.name, one.shape) for one in info.model.inputs] == [("input_ids", (1, 100))]
    both = {"input_ids": (None, (1, 40)), "pixel_values": (None, (1, 3, 56, 56))}
    with Session(path, input_shapes=both) as session:
        seen = session.info()
    # both layers over the text; of the picture a layer at least over its 16 patches and a place for the whole
    text_macs, sight_macs = 2 * (4 * 64 * 64 + 3 * 64 * 96), 4 * 64 * 64 + 2 * 64 * 96
    assert (seen.totals.macs or 0) > 40 * text_macs + 17 * sight_macs
    assert seen.totals.coverage == 1


@pytest.mark.parametrize(
    ("method", "settings"), [("gptq", {"bits": 4, "group_size": 64}), ("awq", {"bits": 4, "group_size": 32})]
)
def test_no_note_says_that_a_model_has_more_parameters_than_were_counted(
    tmp_path: Path, method: str, settings: dict[str, int]
) -> None:
    def packed() -> folders.Tensors:
        for name, kind, shape in small_tensors():
            if ".mlp." not in name:
                yield name, kind, shape
                continue
            rows, columns = shape
            groups = columns // settings["group_size"]
            front = name.removesuffix(".weight")
            gptq = method == "gptq"
            yield f"{front}.qweight", "I32", (columns // 8, rows) if gptq else (columns, rows // 8)
            yield f"{front}.qzeros", "I32", (groups, rows // 8)
            yield f"{front}.scales", "F16", (groups, rows)

    config = small(quantization_config={"quant_method": method, **settings})
    path = folders.folder(tmp_path / "model", config, packed())
    with Session(path) as session:
        info = session.info()
    assert info.totals.params == sum(_count(shape) for _, _, shape in small_tensors())
    assert not [note for note in info.model.notes if "has more" in note]
    assert [note for note in info.model.notes if "several quantized weights in each integer" in note]


def test_quantized_weights_have_the_bytes_of_their_file(tmp_path: Path) -> None:
    def packed() -> folders.Tensors:
        for name, kind, shape in small_tensors():
            if ".mlp." not in name and ".self_attn." not in name:
                yield name, kind, shape
                continue
            rows, columns = shape
            front = name.removesuffix(".weight")
            yield f"{front}.qweight", "I32", (columns // 8, rows)
            yield f"{front}.qzeros", "I32", (1, rows // 8)
            yield f"{front}.scales", "F16", (1, rows)
            yield f"{front}.g_idx", "I32", (columns,)

    config = small(quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 64})
    path = folders.folder(tmp_path / "model", config, packed())
    with Session(path) as session:
        info = session.info()
        row = next(x for x in session.analysis().layers if x.path == "model.layers.0.mlp.gate_proj")
    assert row.weights[0].dtype == "int4"
    assert row.params == 64 * 96
    assert row.weight_bytes == 64 * 96 // 2 + 96 // 2 + 2 * 96 + 4 * 64 == row.weight_bytes_read
    assert row.macs == 128 * 64 * 96
    assert info.totals.params == sum(_count(shape) for _, _, shape in small_tensors())
    assert info.totals.coverage == 1


def test_a_row_of_the_chooser_tells_architecture_and_longest_text(tmp_path: Path) -> None:
    path = folders.folder(tmp_path / "model", small(), small_tensors())
    found = read_model_file(str(path))
    assert found is not None
    assert (found.architecture, found.context) == ("LlamaForCausalLM", 8192)
    assert describe_stored(found) == "LlamaForCausalLM, 8,192 tokens: bfloat16"


def test_without_transformers_tensors_are_shown_and_the_command_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers, "find_spec", lambda name: None if name == "transformers" else object())
    path = folders.folder(tmp_path / "model", small(), small_tensors())
    with Session(path) as session:
        info = session.info()
    assert info.totals.macs is None
    assert info.totals.params == sum(_count(shape) for _, _, shape in small_tensors())
    assert "pip install 'explorer-nn[transformers]'" in info.model.notes[0]


OWN = """
import os
from transformers import PretrainedConfig, PreTrainedModel
from torch import nn
open(os.path.join(os.environ["HF_HOME"], "ran"), "w").close()
class OwnConfig(PretrainedConfig):
    model_type = "own"
class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
        self.post_init()
    def forward(self, input_ids):
        return self.head(self.embed(input_ids))
"""


@pytest.mark.parametrize("trust", [False, True])
def test_code_of_the_folder_runs_when_it_is_trusted_and_never_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trust: bool
) -> None:
    classes = {"AutoConfig": "modeling_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}
    config = {"model_type": "own", "architectures": ["OwnModel"], "auto_map": classes}
    tensors = [("embed.weight", "F32", (16, 8)), ("head.weight", "F32", (16, 8)), ("head.bias", "F32", (16,))]
    path = folders.folder(tmp_path / "own", config, tensors)
    (path / "modeling_own.py").write_text(OWN)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    with Session(path, trust=trust) as session:
        info = session.info()
    assert (tmp_path / "ran").exists() == trust
    assert info.totals.macs == (128 * 8 * 16 if trust else None)
    assert trust or "its own code (modeling_own.py) runs with --trust alone" in info.model.notes[0]


def test_what_a_missing_shard_holds_is_counted_as_the_configuration_has_it(tmp_path: Path) -> None:
    path = folders.folder(tmp_path / "model", small(), small_tensors(), shards=5)
    with Session(path) as session:
        wanted = session.info().totals
    (path / "model-00002-of-00005.safetensors").unlink()
    with Session(path) as session:
        info = session.info()
    assert (info.totals.params, info.totals.macs) == (wanted.params, wanted.macs)
    notes = "\n".join(info.model.notes)
    assert notes.count("1 of 5 files is missing") == 1
    assert "parameters of the module in no file, counted as the configuration declares them" in notes
    assert "those of the files that are here" not in notes


@pytest.mark.slow
def test_serving_names_the_shard_that_is_missing(tmp_path: Path) -> None:
    path = folders.folder(tmp_path / "model", small(), small_tensors(), shards=5)
    (path / "model-00002-of-00005.safetensors").unlink()
    with Session(path) as session:
        notes = session.serving(ServingSpec(8, (16,), (1,))).notes
    assert any("files is missing" in n and "model-00002-of-00005.safetensors" in n for n in notes)


def _read_by_now() -> int:
    """Bytes that this process has read of files."""
    said = Path("/proc/self/io").read_text().split()
    return int(said[said.index("rchar:") + 1])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="nobody counts what is read here")
def test_no_byte_of_a_weight_is_read_to_open_to_serve_and_to_plan(tmp_path: Path) -> None:
    config = {**folders.LLAMA_3_8B, "num_hidden_layers": 1}
    path = folders.folder(tmp_path / "model", config, folders.llama(1), shards=3)

    def ask(session: Session) -> tuple[Any, ...]:
        serving = session.serving(ServingSpec(prompt=24, contexts=(64,)))
        return serving, session.plan(TileSpec((64, 64, 64))), session.memory()

    with Session(path, cache=False) as session:
        wanted = ask(session)  # what is imported and compiled is read, too
    before = _read_by_now()
    with Session(path, cache=False) as session:
        totals = session.info().totals
        for shard in path.glob("*.safetensors"):
            # nothing is left behind the header that anybody could read, or map
            with open(shard, "rb") as file:
                header = int.from_bytes(file.read(8), "little")
            os.truncate(shard, 8 + header)
        found = ask(session)
    assert totals.weight_bytes == 2 * totals.params > 2**31
    assert _read_by_now() - before < 2**22
    assert found == wanted


def test_what_no_format_is_given_to_is_said_before_its_weights_are_read(tmp_path: Path) -> None:
    path = folders.folder(tmp_path / "model", small(), small_tensors())
    with Session(path) as session:
        session.info()
        os.truncate(path / "model.safetensors", 0)
        assert session.quantize_choice(QuantizeSpec(weight="int8")).totals.bitops.after
        with pytest.raises(Misuse, match="its weights are bfloat16, but only float32 weights can be"):
            session.quantize_module(QuantizeSpec(weight="int8"))


def test_infinities_are_read_as_transformers_writes_them(tmp_path: Path) -> None:
    """JSON has none: `time_step_limit` of Mamba's is [0.0, {"__float__": "Infinity"}]."""
    config = {
        "model_type": "mamba2",
        "architectures": ["Mamba2ForCausalLM"],
        "hidden_size": 32,
        "num_heads": 4,
        "head_dim": 16,
        "num_hidden_layers": 1,
        "vocab_size": 64,
        "state_size": 16,
        "n_groups": 1,
        "time_step_limit": [0.0, {"__float__": "Infinity"}],
    }
    module = transformers_module.create_module("here", config, dtype="float32").meta()
    own = [(name, "F32", tuple(tensor.shape)) for name, tensor in module.state_dict().items()]
    with Session(folders.folder(tmp_path / "model", config, own)) as session:
        assert session.info().totals.macs


def test_what_cannot_be_built_is_not_served_and_says_why(tmp_path: Path) -> None:
    tensors = folders.llama(2, 64, 96, 128, 32)
    path = folders.folder(tmp_path / "model", {**folders.LLAMA_3_8B, "model_type": "nosuch"}, tensors)
    with Session(path) as session, pytest.raises(Misuse, match="knows no architecture 'nosuch'"):
        session.serving(ServingSpec())


def test_a_configuration_without_weights_is_built_as_it_says(tmp_path: Path) -> None:
    path = folders.folder(tmp_path / "model", small(dtype="bfloat16"), small_tensors())
    with Session(path) as session:
        wanted = session.info().totals
    (path / "model.safetensors").unlink()
    with Session(path) as session:
        info, served = session.info(), session.serving(ServingSpec(prompt=16, contexts=(32,)))
        with pytest.raises(BadModel, match="no weights are in this folder"):
            session.activations()
    assert info.totals == wanted
    assert served.weight_bytes == wanted.weight_bytes
    for notes in (info.model.notes, served.notes):
        assert "parameters and bytes are those of the configuration, in bfloat16" in notes
    row = read_model_file(str(path))
    assert row is not None
    assert (row.format, row.params, row.note) == ("huggingface", None, "")
    assert describe_stored(row) == "LlamaForCausalLM, 8,192 tokens"


def test_a_configuration_without_weights_says_what_packed_weights_would_change(tmp_path: Path) -> None:
    how = {"quant_method": "awq", "bits": 4}
    config = small(dtype=None, torch_dtype=None, quantization_config=how)
    path = folders.folder(tmp_path / "model", config, [])
    (path / "model.safetensors").unlink()
    with Session(path) as session:
        notes = "\n".join(session.info().model.notes)
    assert "in float32, because it names no type, not packed as 'awq' would" in notes


@pytest.mark.parametrize("beside", ["onnx/model.onnx", "flax_model.msgpack", "tf_model.h5"])
def test_a_configuration_beside_other_weights_is_no_model_itself(tmp_path: Path, beside: str) -> None:
    path = folders.folder(tmp_path / "model", small(), [])
    (path / "model.safetensors").unlink()
    other = path / beside
    other.parent.mkdir(exist_ok=True)
    other.write_bytes(b"?")
    row = read_model_file(str(path))
    assert row is not None
    assert row.format == "folder"


@pytest.mark.parametrize("lacks", ["architecture", "transformers"])
def test_a_configuration_of_which_no_module_is_built_is_refused_and_never_counted_as_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    path = folders.folder(tmp_path / "model", small(model_type="nosuch"), [])
    (path / "model.safetensors").unlink()
    says = "no weights are in this folder, and no module can be built: .*knows no architecture 'nosuch'"
    if lacks == "transformers":
        monkeypatch.setattr(transformers, "find_spec", lambda name: None if name == lacks else object())
        says = "its module needs transformers: install with pip install 'explorer-nn"
    with Session(path) as session, pytest.raises(BadModel, match=says):
        session.info()
