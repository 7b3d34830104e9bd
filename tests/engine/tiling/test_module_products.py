"""Plans of modules that are not exported: matmuls of a run on shapes, decode steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from explorer.base.errors import Misuse
from explorer.facts import TileSpec
from explorer.facts.split.split import SplitSpec
from explorer.facts.sweep import SweepSpec
from explorer.session import Session
from tests.engine.formats.transformers import folders

pytest.importorskip("transformers")

SPEC = TileSpec((64, 64, 64))
ATTENTION = "model.layers.0.self_attn.scaled_dot_product_attention"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Llama 3 8B with two of its layers, as sparse files: 3 GB of weights without a byte of them."""
    path = tmp_path_factory.mktemp("traced") / "llama"
    return str(folders.folder(path, {**folders.LLAMA_3_8B, "num_hidden_layers": 2}, folders.llama(2)))


def test_a_decode_step_has_as_many_rows_as_the_batch_has_sequences(llama: str) -> None:
    with Session(llama, past=100, dims={"batch": 4}) as session:
        plan, totals = session.plan(SPEC), session.info().totals
        with pytest.raises(Misuse, match="can be planned and swept, but not written"):
            session.tile(SPEC)
        with pytest.raises(Misuse, match="can be planned and swept, but not written"):
            session.sweep(SweepSpec(((64, 64, 64),)), verify=True)
        (row,) = session.sweep(SweepSpec(((64, 64, 64),))).rows
    sites = {site.name: site for site in plan.sites}
    sizes = {name: (site.batch, site.M, site.K, site.N) for name, site in sites.items()}
    assert sizes["model.layers.0.self_attn.k_proj"] == (1, 4, 4096, 1024)
    assert sizes["model.layers.1.mlp.down_proj"] == (1, 4, 14336, 4096)
    assert sizes["lm_head"] == (1, 4, 4096, 128256)
    # 32 heads of 128 of 4 sequences, over 100 tokens and the new one
    assert sizes[f"{ATTENTION}/scores"] == (128, 1, 128, 101)
    assert sizes[f"{ATTENTION}/context"] == (128, 1, 101, 128)
    assert sites["lm_head"].utilisation == 4 / 64
    assert sites["lm_head"].weight == "lm_head.weight"
    assert len(sites) == 2 * 9 + 1
    assert (row.sites, row.macs, row.products) == (len(sites), plan.macs, plan.products)
    assert plan.macs == plan.macs_total == totals.macs
    assert not plan.skipped


def test_a_whole_pass_of_many_weights_is_planned_from_its_rows(
    llama: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("explorer.session.parts.models._MAX_EXPORT_BYTES", 1 << 30)
    with Session(llama, input_shapes={"input_ids": (None, (2, 48))}) as session:
        plan, totals = session.plan(SPEC), session.info().totals
    sites = {site.name: (site.batch, site.M, site.K, site.N) for site in plan.sites}
    assert sites["model.layers.0.self_attn.q_proj"] == (1, 96, 4096, 4096)
    assert sites[f"{ATTENTION}/scores"] == (64, 48, 128, 48)
    assert plan.macs == plan.macs_total == totals.macs


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("gpt2", {"n_embd": 32, "n_head": 4, "n_layer": 1, "vocab_size": 96}),
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
        ("mamba", {"state_size": 8}),
    ],
)
def test_what_is_planned_and_what_is_left_are_the_macs_of_the_step(kind: str, sizes: dict[str, Any]) -> None:
    import transformers

    common = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 96}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.AutoConfig.for_model(
        kind, **({} if kind == "gpt2" else {**common, **heads}), **sizes
    )
    with Session(transformers.AutoModelForCausalLM.from_config(config), past=7, dims={"batch": 3}) as session:
        plan, totals = session.plan(SPEC), session.info().totals
    left = sum(skip.macs or 0 for skip in plan.skipped)
    assert plan.macs is not None
    assert plan.macs + left == plan.macs_total == totals.macs
    if kind == "mixtral":
        # 3 tokens at 2 of 4 experts: two experts have two of the rows, two have one
        experts = {s.name.rpartition("/")[2]: (s.batch, s.M) for s in plan.sites if "grouped_mm/" in s.name}
        assert experts == {"fuller": (2, 2), "others": (2, 1)}
    if kind != "mamba":
        assert not plan.skipped


@pytest.mark.slow
def test_a_small_folder_of_experts_is_planned_swept_and_cut_without_an_export(tmp_path: Path) -> None:
    config = {**folders.MIXTRAL_8X7B, "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96}
    config |= {"vocab_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4}
    path = folders.folder(tmp_path / "experts", config, [])
    tensors = {"model.embed_tokens.weight": torch.zeros(32, 64), "lm_head.weight": torch.zeros(32, 64)}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    tensors |= {name: torch.zeros(weight.shape) for name, weight in model.state_dict().items()}
    torch.save(tensors, path / "weights.pt")
    spec = SweepSpec(((16, 16, 16),))
    with Session(path / "weights.pt") as session:
        totals, plan = session.info().totals, session.plan(TileSpec((16, 16, 16)))
        again, stages = session.sweep(spec, output=str(tmp_path / "s.db")), session.split(SplitSpec(2)).stages
        draft = session.split_draft(SplitSpec(2))
        moved = session.split_draft(SplitSpec(2), [draft.places[0] - 1])
    with Session(path / "weights.pt", input_shapes={"input_ids": (None, (1, 8))}) as session:
        (other,) = session.sweep(spec, output=str(tmp_path / "s.db")).rows
    assert plan.macs == totals.macs == sum(stage.macs or 0 for stage in stages)
    assert draft.split.stages == stages
    assert sum(stage.macs or 0 for stage in moved.split.stages) == totals.macs
    (row,) = again.rows
    assert row.products == plan.products
    # a shorter text is not what is kept of a longer one
    assert other.products is not None
    assert other.products < plan.products
