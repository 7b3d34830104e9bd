"""Figures of language models that are known: parameters, MACs a token, bytes of the cache, what follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from explorer import Misuse
from explorer.base.errors import BadModel
from explorer.engine.costs.decode import module_cache
from explorer.engine.serving.serving import compute_serving, create_passes
from explorer.facts.roofline import Machine
from explorer.facts.serving.serving import Serving
from explorer.facts.serving.spec import ServingSpec

LLAMA3_8B: Mapping[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "max_position_embeddings": 8192,
}
LLAMA2_7B = {**LLAMA3_8B, "intermediate_size": 11008, "vocab_size": 32000, "num_key_value_heads": 32}
MIXTRAL_8X7B = {**LLAMA3_8B, "vocab_size": 32000, "sliding_window": None}
TWO_LAYERS = {**LLAMA3_8B, "num_hidden_layers": 2}
CHIP = Machine("chip", 500e12, 2e12)


def serve(
    kind: str, spec: ServingSpec | None = None, machine: Machine | None = None, **config: Any
) -> Serving:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config)).eval()
    spec = spec or ServingSpec(dtype="bf16")
    return compute_serving(create_passes(module_cache.find_own_cache(model), spec), spec, machine)


@pytest.mark.slow
def test_llama_3_8b() -> None:
    found = serve("llama", **LLAMA3_8B)
    assert found.params == found.active == 8_030_261_248
    assert found.decode.weight_macs == 7_504_658_432
    # the new token attends to itself besides those in the cache
    assert found.decode_macs.text == f"262144*context+{7_504_658_432 + 262_144}"
    assert found.decode_macs.checked == (1, 4096, 8192)
    assert found.cache.token_bytes == 131_072
    assert found.cache.bytes.text == "131072*context"
    assert found.cache.passes_weights == found.weight_bytes // 131_072 + 1


class Angles(torch.nn.Module):
    """Rotary angles as a product over one element, or as a multiplication."""

    def __init__(self, plain: torch.nn.Module, *, is_product: bool) -> None:
        super().__init__()
        self.register_buffer("frequencies", plain.get_buffer("inv_freq"), persistent=False)
        self.is_product = is_product

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        columns, rows = (
            self.get_buffer("frequencies").float()[None, :, None],
            position_ids[:, None, :].float(),
        )
        angles = columns.expand(len(rows), -1, 1) @ rows if self.is_product else columns * rows
        both = torch.cat((angles.mT, angles.mT), dim=-1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)


def test_rotary_angles_count_the_same_however_they_are_computed() -> None:
    facts = []
    for is_product in (True, False):
        with torch.device("meta"):
            config = AutoConfig.for_model("llama", **TWO_LAYERS)
            model = AutoModelForCausalLM.from_config(config).eval()
            model.model.rotary_emb = Angles(model.model.rotary_emb, is_product=is_product)
        spec = ServingSpec(dtype="bf16", contexts=(40,), batches=(1, 3))
        facts.append(compute_serving(create_passes(module_cache.find_own_cache(model), spec), spec, None))
    assert facts[0] == facts[1]
    assert facts[0].decode_macs.text == f"16384*context+{facts[0].decode.weight_macs + 16384}"


def grown(first: int, second: int, layers: int) -> int:
    """A figure of so many layers, from those of the first two: each further one adds as much."""
    return first + (layers - 1) * (second - first)


@pytest.mark.slow
def test_llama_2_7b() -> None:
    one, two = (serve("llama", **{**LLAMA2_7B, "num_hidden_layers": layers}) for layers in (1, 2))
    assert grown(one.params, two.params, 32) == 6_738_415_616
    assert grown(one.cache.token_bytes or 0, two.cache.token_bytes or 0, 32) == 524_288


@pytest.mark.slow
def test_mixtral_8x7b_works_with_two_of_its_experts() -> None:
    spec = ServingSpec(batches=(1, 64), dtype="bf16")
    one, found = (
        serve("mixtral", spec, CHIP, **{**MIXTRAL_8X7B, "num_hidden_layers": layers}) for layers in (1, 2)
    )
    assert grown(one.params, found.params, 32) == 46_702_792_704
    assert grown(one.active, found.active, 32) == 12_879_925_248
    assert 32 * one.cache.token_bytes == 131_072
    assert any("choose its experts evenly" in note for note in found.notes)
    _, many = found.times
    assert many.token is not None
    # nearly all experts are read by 64 tokens
    assert many.token * CHIP.bandwidth > 0.98 * (found.weight_bytes - 2 * found.embedding)


@pytest.mark.slow
def test_deepseek_v3_caches_its_latent() -> None:
    # of its 61 layers those above the third are alike
    four, five = (serve("deepseek_v3", num_hidden_layers=layers) for layers in (4, 5))
    assert 61 * five.cache.token_bytes == 5 * 70_272
    assert five.cache.bytes.text == f"{five.cache.token_bytes}*context"
    # the file has 14,848 more: biases of the routers, which the module keeps as buffers
    assert four.params + 57 * (five.params - four.params) == 671_026_419_200 - 58 * 256


MLA = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 128}


@pytest.mark.slow
def test_weights_that_meet_the_whole_cache_in_each_step_are_in_the_times_of_layouts_and_named() -> None:
    more = {"head_dim": 8, "num_hidden_layers": 2, "first_k_dense_replace": 2, "intermediate_size": 96}
    spec = ServingSpec(prompt=20, contexts=(30, 5000), batches=(1,), devices=(1, 2), links=1e9)
    found = serve("deepseek_v3", spec, CHIP, **SMALL, **MLA, **more)
    alone = [one for one in found.layouts if one.devices == 1]
    assert [one.token for one in alone] == pytest.approx([one.token for one in found.times])
    (why,) = [note for note in found.notes if "kv_b_proj with every token of the cache" in note]
    # 4 heads of keys and values of 16, each from a latent of 16, in 2 layers
    assert f"{2 * 4 * 32 * 16 * 30:,} MACs for a context of 30 tokens" in why


@pytest.mark.slow
def test_experts_that_the_code_runs_though_the_router_left_them_out_are_named() -> None:
    sizes = {**SMALL, "num_hidden_layers": 1, "intermediate_size": 32, "intermediate_size_mlp": 96}
    more = {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 1, "moe_layers": [0]}
    found = serve("llama4_text", ServingSpec(prompt=20, contexts=(30,)), **sizes, **more)
    assert found.active == found.params
    (why,) = [note for note in found.notes if "all 4 experts, and its router takes 1" in note]
    assert why.endswith(f"{found.params - 3 * 3 * 64 * 32:,} active parameters")


@pytest.mark.slow
def test_a_window_ends_the_growth_of_its_layers() -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    found = serve(
        "gemma3_text",
        ServingSpec(contexts=(4096,), dtype="bf16"),
        **sizes,
        num_hidden_layers=6,
        layer_types=kinds,
        sliding_window=512,
        vocab_size=128,
        intermediate_size=96,
    )
    a_layer = 2 * 2 * 16 * 2
    assert found.cache.token_bytes == 6 * a_layer
    assert (
        found.cache.bytes.text
        == f"from 1: {6 * a_layer}*context; from 511: {a_layer}*context+{5 * 511 * a_layer}"
    )
    assert {(group.layers, group.window) for group in found.cache.groups} == {(5, 512), (1, None)}
    assert {511} <= set(found.decode_macs.counted + found.decode_macs.checked)
    assert len(found.decode_macs.pieces) == 2


@pytest.mark.slow
def test_states_of_a_recurrence_do_not_grow() -> None:
    found = serve("mamba", hidden_size=64, num_hidden_layers=2, vocab_size=128)
    assert found.cache.token_bytes == 0
    assert found.cache.state_bytes == found.cache.bytes.at(1) == found.cache.bytes.at(100_000)
    assert found.cache.passes_weights is None
    assert len(found.decode_macs.pieces[0].coefficients) == 1
    assert any("token by token" in note for note in found.notes)


@pytest.mark.slow
def test_an_encoder_is_held_and_not_read_by_a_step() -> None:
    small = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 128}
    with torch.device("meta"):
        model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("t5", **small)).eval()
    spec = ServingSpec(prompt=20, contexts=(30,), batches=(1,))
    found = compute_serving(create_passes(module_cache.find_own_cache(model), spec), spec, CHIP)
    encoder = sum(p.numel() for p in model.encoder.block.parameters())
    assert found.active <= found.params - encoder
    assert found.decode.weight_bytes < found.weight_bytes - 4 * encoder
    assert found.times[0].memory > found.weight_bytes


@pytest.mark.slow
def test_a_part_counts_as_active_wherever_a_step_works_with_it() -> None:
    heads = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 128}
    mixed = {"layers_block_type": ["mamba", "hybrid"] * 2, "num_hidden_layers": 4, "num_mem_blocks": 1}
    states = {"n_mamba_heads": 8, "mamba_headdim": 16, "mamba_d_state": 8, "mamba_ngroups": 1}
    wide = {
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "adapter_rank": 8,
        "intermediate_size": 96,
    }
    spec = ServingSpec(20, (30,))
    # the two blocks share all weights, and each runs an adapter that the other leaves out
    found = serve("zamba2", spec, **heads, **mixed, **states, **wide)
    assert found.active == found.params
    kinds = ["sliding_attention", "full_attention"]
    gemma = {"layer_types": kinds, "num_hidden_layers": 2, "num_kv_shared_layers": 0, "laurel_rank": 4}
    small = {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 100, "altup_num_inputs": 2}
    more = {"head_dim": 16, "activation_sparsity_pattern": [0.0] * 2, "intermediate_size": 96}
    # its own code calls methods of a part, and not the part
    found = serve("gemma3n_text", spec, **heads, **gemma, **small, **more)
    assert found.active == found.params


@pytest.mark.slow
def test_what_depends_on_the_text_has_a_sign_and_its_reason() -> None:
    sizes = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8}
    sizes |= {"v_head_dim": 16, "expert_ffn_hidden_size": 32, "ffn_hidden_size": 96, "n_routed_experts": 4}
    sizes |= {"moe_topk": 2, "zero_expert_num": 2, "num_layers": 1, "hidden_size": 64, "vocab_size": 128}
    sizes |= {"head_dim": 8, "num_key_value_heads": 4}
    found = serve("longcat_flash", ServingSpec(20, (30,)), **sizes, num_attention_heads=4)
    assert (found.prefill.sign, found.decode.sign) == ("~ ", "~ ")
    (why,) = [note for note in found.notes if note.startswith("figures with a sign depend on values")]
    assert "are spread evenly" in why


@pytest.mark.slow
def test_states_of_matrices_are_states() -> None:
    sizes = {"hidden_size": 64, "num_blocks": 1, "num_heads": 2, "vocab_size": 128, "qk_dim_factor": 1.0}
    found = serve("xlstm", ServingSpec(20, (30,), kv_dtype="fp8"), **sizes)
    assert found.cache.token_bytes == 0
    assert found.cache.state_bytes == found.cache.bytes.at(1) == found.decode.cache_bytes


@pytest.mark.slow
def test_what_fits_a_memory_fits_and_one_more_does_not() -> None:
    spec = ServingSpec(contexts=(1000,), batches=(1, 4), dtype="int8", kv_dtype="fp8", card=5 * 10**9)
    found = serve("llama", spec, CHIP, **TWO_LAYERS)
    assert found.weight_bytes == found.params
    token = 2 * 2 * 8 * 128
    assert found.cache.token_bytes == token
    assert found.decode.cache_bytes == sum(one.cache_bytes for one in found.layers) == 1000 * token
    room = 5 * 10**9 - found.weight_bytes
    for batch, most in found.longest_context:
        assert most is not None
        assert batch * most * token <= room < batch * (most + 1) * token
    ((context, most),) = found.largest_batch
    assert most is not None
    assert most * context * token <= room < (most + 1) * context * token
    one = found.times[0]
    assert one.fits
    # int8 weights once, the cache, nothing of the table but a row
    least = found.weight_bytes - found.embedding + 1000 * token
    assert one.token == pytest.approx(least / CHIP.bandwidth, rel=1e-3)
    assert one.token_limit == "weights"
    assert one.first_limit == "compute"
    assert one.first_token == pytest.approx(found.prefill.macs / CHIP.peak_macs)


@pytest.mark.slow
def test_layouts_hold_the_whole_and_cut_only_what_divides() -> None:
    spec = ServingSpec(contexts=(1000,), batches=(8,), devices=(4, 3), dtype="bf16", links=1e11)
    found = serve("llama", spec, CHIP, **TWO_LAYERS)
    four = {(one.tensor, one.pipeline, one.expert): one for one in found.layouts if one.devices == 4}
    assert set(four) == {(4, 1, 1), (2, 2, 1)}
    assert not [one for one in found.layouts if one.devices == 3]
    assert any("32 heads do not divide by 3" in note for note in found.notes)
    cut = four[4, 1, 1]
    norms = 5 * 4096 * 2
    assert cut.weight_bytes == pytest.approx((found.weight_bytes - norms) / 4 + norms)
    assert cut.cache_bytes == 8 * 1000 * 2 * 2 * 8 * 128 * 2 // 4
    # two products a layer are summed over the ring, each of 8 tokens of 4,096 numbers
    assert cut.link_bytes == 2 * 2 * 8 * 4096 * 2 * 2 * 3 / 4
    piped = four[2, 2, 1]
    # a stage holds a half, and half of that a device: norms are held whole
    assert piped.weight_bytes == pytest.approx(found.weight_bytes / 4, rel=1e-3)
    assert cut.token is not None
    assert piped.token is not None
    assert cut.token < piped.token


@pytest.mark.slow
def test_each_device_of_a_layout_has_its_own_memory_time_and_links() -> None:
    sizes = {**LLAMA3_8B, "num_hidden_layers": 5}
    spec = ServingSpec(512, (1000,), (1, 8), (1, 2, 4), "bf16", links=1e11)
    found = serve("llama", spec, CHIP, **sizes)
    width, alone = 4096 * 2, {one.batch: one for one in found.times}
    for one in found.layouts:
        assert sum(share.devices for share in one.shares) == one.devices
        assert max(share.weight_bytes + share.cache_bytes for share in one.shares) == (
            one.weight_bytes + one.cache_bytes
        )
        held = sum(share.devices * (share.weight_bytes + share.cache_bytes) for share in one.shares)
        # norms are held by every device of a stage
        assert held >= found.weight_bytes + one.batch * 1000 * found.cache.token_bytes - one.devices
        assert [share.first for share in one.shares[1:]] == [share.last + 1 for share in one.shares[:-1]]
        assert (one.shares[0].first, one.shares[-1].last) == (0, 4)
        busiest = max(share.busy or 0 for share in one.shares)
        assert one.token is not None
        assert one.token >= busiest * (1 - 1e-9)
        if one.devices == 1:
            assert one.token == pytest.approx(alone[one.batch].token, rel=1e-6)
            assert one.first_token == pytest.approx(alone[one.batch].first_token, rel=1e-6)
            assert one.first_limit == alone[one.batch].first_limit
        if one.tensor == one.expert == 1:
            # a stage hands on a row a sequence; the last hands on none
            sent = [share.link_bytes for share in one.shares]
            assert sent == [one.batch * width] * (one.pipeline - 1) + [0]
    for batch in (1, 8):
        first = {(one.tensor, one.pipeline): one.first_token for one in found.layouts if one.batch == batch}
        assert first[1, 1] > first[2, 1] > first[4, 1]
        # stages one behind the other read a single prompt no sooner than one device, but several
        assert (first[1, 2] < first[1, 1]) is (batch == 8)


@pytest.mark.slow
def test_a_prompt_that_is_counted_token_by_token_has_no_time_in_stages() -> None:
    spec = ServingSpec(contexts=(64,), batches=(2,), devices=(2,), links=1e11)
    for links, unknown in ((1e11, False), (None, True)):
        asked = replace(spec, links=links)
        found = serve("mamba", asked, CHIP, hidden_size=64, num_hidden_layers=2, vocab_size=128)
        (one,) = found.layouts
        assert (one.pipeline, one.first_token, one.first_limit) == (2, None, "unknown")
        assert (one.token is None) is unknown
        assert any("need the rate of the links" in note for note in found.notes) is unknown


@pytest.mark.slow
def test_layouts_of_many_contexts_are_those_of_each_alone() -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    kinds = ["sliding_attention", "full_attention"]
    more = {"num_hidden_layers": 2, "layer_types": kinds, "sliding_window": 64, "vocab_size": 128}
    with torch.device("meta"):
        config = AutoConfig.for_model("gemma3_text", **sizes, **more, intermediate_size=96)
        model = AutoModelForCausalLM.from_config(config).eval()
    spec = ServingSpec(prompt=32, contexts=(20, 50, 63, 64, 100, 300, 1001), devices=(2,), links=1e9)
    passes = create_passes(module_cache.find_own_cache(model), spec)
    together = compute_serving(passes, spec, CHIP).layouts
    alone = [compute_serving(passes, replace(spec, contexts=(one,)), CHIP).layouts for one in spec.contexts]
    assert together == tuple(one for layouts in alone for one in layouts)
    for context, found in zip(spec.contexts, alone, strict=True):
        fresh = create_passes(module_cache.find_own_cache(model), spec)
        assert fresh.holders
        fresh.count_attention_macs(context)  # counted there, and not between two others
        assert compute_serving(fresh, replace(spec, contexts=(context,)), CHIP).layouts == found
    assert len({one.cache_bytes for one in together if one.tensor == 2 and one.batch == 1}) == 7


@pytest.mark.slow
def test_other_batches_and_devices_need_no_other_pass() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **TWO_LAYERS)).eval()
    passes = create_passes(module_cache.find_own_cache(model), ServingSpec())
    made: list[int] = []
    passes.on_pass = made.append
    compute_serving(passes, ServingSpec(prompt=64, contexts=(512,)), CHIP)
    before = len(made)
    many = ServingSpec(prompt=64, contexts=(512,), batches=tuple(range(1, 50)), devices=(1, 2, 4, 8))
    found = compute_serving(passes, many, CHIP)
    assert len(made) == before
    assert (len(found.times), len(found.layouts) >= 200) == (49, True)


@pytest.mark.slow
@pytest.mark.slow
def test_a_form_that_was_checked_at_a_longer_context_is_not_checked_at_a_shorter_one() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **TWO_LAYERS)).eval()
    spec = ServingSpec(dtype="bf16", contexts=(9000,))
    passes = create_passes(module_cache.find_own_cache(model), spec)
    longer = compute_serving(passes, spec).decode_macs
    made: list[int] = []
    passes.on_pass = made.append
    shorter = compute_serving(passes, replace(spec, contexts=(700,))).decode_macs
    assert len(made) == 1, "the step that is shown"
    assert shorter == longer
    assert shorter.checked[-1] == 9000
    alone = compute_serving(create_passes(passes.own, spec), replace(spec, contexts=(700,))).decode_macs
    assert (alone.pieces, alone.counted) == (shorter.pieces, shorter.counted)


def test_layouts_at_other_contexts_need_one_step_for_the_rows_that_are_shown() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **TWO_LAYERS)).eval()
    passes = create_passes(module_cache.find_own_cache(model), ServingSpec())
    made: list[int] = []
    compute_serving(passes, ServingSpec(prompt=64, contexts=(512,)), CHIP)
    passes.on_pass = made.append
    compute_serving(
        passes, ServingSpec(prompt=64, contexts=tuple(range(600, 1100)), devices=(1, 2, 4, 8)), CHIP
    )
    assert len(made) == 1


@pytest.mark.slow
def test_code_that_stops_where_its_configuration_does_is_counted_as_far_as_that() -> None:
    sizes = {"d_model": 32, "n_heads": 2, "n_layers": 1, "max_seq_len": 256, "vocab_size": 128}
    found = serve("mpt", **sizes)
    assert (found.spec.prompt, found.spec.contexts, found.times[0].context) == (255, (255,), 255)
    assert found.notes[0].endswith("figures are for a context of 255 tokens instead of 8,192")
    assert found.decode.cache_bytes == 255 * found.cache.token_bytes
    with pytest.raises(BadModel) as refused:
        serve("mpt", ServingSpec(contexts=(50, 300), prompt=10), **sizes)
    assert str(refused.value) == (
        "MptForCausalLM: it does not run on more than the 256 tokens that its configuration was made for;"
        " --prompt 10 --context 50,255"
    )


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"prompt": 0}, "ServingSpec.prompt: 0 cannot be taken; give a whole number of at least 1"),
        ({"batches": ()}, "ServingSpec.batches: () cannot be taken; give values, each a whole number"),
        ({"devices": (10_000,)}, "--devices: 10,000 are too many"),
        ({"dtype": "float7"}, "--dtype: there is no number format 'float7'"),
        ({"kv_dtype": "fp9"}, "--kv-dtype: there is no number format 'fp9'"),
    ],
)
def test_what_cannot_be_is_one_line(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(Misuse) as refused:
        serve("gpt2", ServingSpec(**changed), n_layer=1, n_embd=32, n_head=2, vocab_size=128)
    assert str(refused.value).startswith(says)
