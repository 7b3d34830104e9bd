"""A folder that was analyzed before is told again without torch, while all that it rests on is the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from explorer import Session
from explorer.session.cache import analysis_cache
from tests.engine.formats.transformers import folders

pytest.importorskip("transformers")

CONFIG = {
    **folders.LLAMA_3_8B,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own."""
    monkeypatch.delenv("EXPLORER_NO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = folders.folder(tmp_path / "model", CONFIG, folders.llama(2, 64, 96, 128, 32), shards=2)
    settle()
    return path


def settle() -> None:
    """What has just been written may change while it is looked at: nothing is kept of it."""
    time.sleep(0.04)


def told(source: Path, **options: Any) -> tuple[bool, list[Any]]:
    """Whether the model had to be opened for all that is kept of one, and that."""
    with Session(source, **options) as session:
        found = [session.info(), session.analysis(), session.ops(), session.memory(), session.edges()]
        return session.parts.models._original is not None, found


@pytest.mark.slow
def test_the_second_answer_is_the_first_and_of_other_options_another(model: Path) -> None:
    _, fresh = told(model, cache=False)
    assert [told(model), told(model)] == [(True, fresh), (False, fresh)]
    assert repr(told(model)[1]) == repr(fresh)
    for options in (
        {"past": 7},
        {"dims": {"batch": 3}},
        {"input_shapes": {"input_ids": (None, (1, 9))}},
    ):
        anew, other = told(model, **options)
        assert anew
        assert other != fresh
        assert told(model, **options) == (False, other)
    assert told(model) == (False, fresh)
    assert told(model, trust=True)[0]


def _wider(model: Path) -> None:
    (model / "config.json").write_text(json.dumps({**CONFIG, "rms_norm_eps": 1e-6}))


def _same_length(model: Path) -> None:
    """Another tensor in a shard of the same size, put in its place with the times that the other had."""
    shard = model / "model-00001-of-00002.safetensors"
    before, content = shard.stat(), shard.read_bytes()
    assert b"post_attention_layernorm" in content
    shard.write_bytes(content.replace(b"post_attention_layernorm", b"post_attention_layernorn", 1))
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))


def _further(model: Path) -> None:
    folders.sparse(model / "other.safetensors", [("more.weight", "BF16", (4, 4))])


def _gone(model: Path) -> None:
    (model / "model-00002-of-00002.safetensors").unlink()


def _index(model: Path) -> None:
    path = model / "model.safetensors.index.json"
    path.write_text(path.read_text().replace('"metadata": {}', '"metadata": {"total_size": 1}'))


@pytest.mark.slow
@pytest.mark.parametrize("change", [_wider, _same_length, _further, _gone, _index])
def test_what_changed_is_looked_at_anew(model: Path, change: Callable[[Path], None]) -> None:
    told(model)
    assert not told(model)[0]
    change(model)
    settle()
    anew, found = told(model)
    assert anew
    assert found == told(model, cache=False)[1]
    assert told(model) == (False, found)


@pytest.mark.slow
def test_other_packages_and_variables_are_other_answers(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told(model)
    for name in ("_list_version_files", "_list_installed_packages", "_list_variables"):
        real = getattr(analysis_cache, name)
        with monkeypatch.context() as patch:
            patch.setattr(analysis_cache, name, lambda real=real: [*real(), ("another", 1, 2)])
            assert told(model)[0]
    real_code = analysis_cache._list_package_files
    with monkeypatch.context() as patch:
        patch.setattr(
            analysis_cache,
            "_list_package_files",
            lambda package: [*(real_code(package) or ()), ("new.py", 1, 2)],
        )
        assert told(model)[0]
    with monkeypatch.context() as patch:
        patch.setenv("TRANSFORMERS_ANYTHING", "1")
        assert told(model)[0]
    assert not told(model)[0]


@pytest.mark.slow
def test_nothing_is_kept_of_an_adapter_whose_base_may_change(model: Path, tmp_path: Path) -> None:
    config = {
        "base_model_name_or_path": str(model),
        "peft_type": "LORA",
        "r": 4,
        "target_modules": ["q_proj"],
    }
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    tensors = [(f"{name}A.weight", "F32", (4, 64)), (f"{name}B.weight", "F32", (64, 4))]
    folders.sparse(adapter / "adapter_model.safetensors", tensors)
    settle()
    assert [told(adapter)[0], told(adapter)[0]] == [True, True]


@pytest.mark.slow
def test_the_second_time_needs_no_torch_and_reads_no_weights(model: Path) -> None:
    code = (
        "import hashlib, sys; from explorer import Session\n"
        "s = Session(sys.argv[1])\n"
        "found = repr([s.open(), s.analysis(), s.ops(), s.memory()])\n"
        "print(hashlib.sha256(found.encode()).hexdigest())\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    words = [sys.executable, "-c", code, str(model)]
    runs = [subprocess.run(words, capture_output=True, text=True) for _ in range(2)]
    assert [run.stderr.strip() for run in runs] == ["True", "False"]
    assert runs[0].stdout == runs[1].stdout
    opened = Session(model)
    opened.info(), opened.parts.models.open_state(0, None)
    read = opened.parts.models._original.rests_on(opened.info())
    held = {
        name: size
        for one in read
        for name, size in [(os.path.basename(one.path), sum(s for _, s in one.spans))]
    }
    shard = model / "model-00001-of-00002.safetensors"
    assert held[shard.name] == 8 + int.from_bytes(shard.read_bytes()[:8], "little") < shard.stat().st_size
