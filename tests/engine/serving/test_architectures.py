"""Prompt, step and cache of small models of many architectures: counted as torch's counter sees them run."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
)

from explorer.base.errors import Misuse
from explorer.engine.costs.decode import module_cache, module_step
from explorer.engine.formats.torch_module.cache_tensors import list_cache_tensors
from explorer.engine.serving.serving import compute_serving, create_passes
from explorer.facts.roofline import Machine
from explorer.facts.serving.spec import ServingSpec
from tests.torch_counter import torch_counter

PROMPT = 21
TINY: dict[str, Any] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "decoder_layers", "encoder_layers", "num_layers"), 2),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 64),
    **dict.fromkeys(("intermediate_size", "decoder_ffn_dim", "encoder_ffn_dim", "d_ff"), 96),
    **dict.fromkeys(
        (
            *("num_attention_heads", "n_head", "num_heads"),
            *("decoder_attention_heads", "encoder_attention_heads", "num_experts", "num_local_experts"),
        ),
        4,
    ),
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "vocab_size": 128,
    "head_dim": 16,
    "d_kv": 16,
    "max_position_embeddings": 256,
    "sliding_window": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
DECODERS = (
    *("afmoe", "apertus", "bart", "bitnet", "bloom", "cohere2", "deepseek_v4", "diffllama", "ernie4_5_moe"),
    *("falcon_mamba", "gemma3_text", "glm4_moe", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "granitemoe"),
    *(
        "llama",
        "mamba",
        "minimax",
        "mistral",
        "mixtral",
        "mpt",
        "nemotron_h",
        "olmoe",
        "opt",
        "phi",
        "phimoe",
    ),
    *("qwen2_moe", "qwen3", "qwen3_next", "smollm3", "stablelm", "xglm"),
)
"""One for each way to attend, to place, to route and to remember; others differ from these in names."""


def small(name: str, **changed: Any) -> Any:
    known = AutoConfig.for_model(name)
    said = {**known.to_dict(), **dict.fromkeys(known.attribute_map)}
    over = {key: value for key, value in TINY.items() if key in said}
    if isinstance(said.get("layer_types"), list):
        over["layer_types"] = said["layer_types"][-2:]
    return AutoConfig.for_model(name, **{**over, **changed})


def counted(model: Any, *, gradients: bool = False, **given: Any) -> tuple[int, Any]:
    with torch.set_grad_enabled(gradients), torch_counter() as counter:
        result = model(**given)
    return counter.get_total_flops() // 2, result


def ids(tokens: int, batch: int = 1) -> torch.Tensor:
    return torch.randint(3, 100, (batch, tokens))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", DECODERS)
def test_a_prompt_a_step_and_the_cache_are_what_torch_counts_when_it_runs_them(name: str) -> None:
    transformers.logging.set_verbosity_error()
    config = small(name)
    with torch.device("meta"):
        own = module_cache.find_own_cache(AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval())
    model = AutoModelForCausalLM.from_config(config).eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the counter does not know grouped products
    text, result = counted(model, input_ids=ids(PROMPT), use_cache=True)
    cache = getattr(result, own.name)
    nbytes = sum(one.nbytes for one in list_cache_tensors(cache))
    step, _ = counted(model, **{"input_ids": ids(1), own.name: cache, "use_cache": True})
    given = own.step(PROMPT)
    assert sum(one.nbytes for one in list_cache_tensors(given[own.name])) == nbytes
    behind = module_step.analyze_step_with_cache(own, given, PROMPT, 1).info.totals
    assert (behind.macs, behind.kv_cache_bytes) == (step, nbytes)
    assert module_step.analyze_run(own, own.build_prompt(PROMPT), 1).info.totals.macs == text


@pytest.mark.slow
def test_experts_of_dbrx_are_what_torch_counts_with_gradients_on() -> None:
    heads = {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8}
    experts = {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64}
    sizes = {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 256, "vocab_size": 128}
    config = AutoConfig.for_model("dbrx", **sizes, attn_config=heads, ffn_config=experts, pad_token_id=0)
    with torch.device("meta"):
        own = module_cache.find_own_cache(AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval())
    model = AutoModelForCausalLM.from_config(config).eval()
    text, result = counted(model, gradients=True, input_ids=ids(PROMPT), use_cache=True)
    cache = getattr(result, own.name)
    nbytes = sum(one.nbytes for one in list_cache_tensors(cache))
    step, _ = counted(model, gradients=True, **{"input_ids": ids(1), own.name: cache, "use_cache": True})
    behind = module_step.analyze_step_with_cache(own, own.step(PROMPT), PROMPT, 1).info.totals
    assert (behind.macs, behind.kv_cache_bytes) == (step, nbytes)
    assert module_step.analyze_run(own, own.build_prompt(PROMPT), 1).info.totals.macs == text


@pytest.mark.slow
def test_code_that_keeps_its_cache_to_itself_is_refused_with_what_it_lacks() -> None:
    config = small("recurrent_gemma", num_hidden_layers=3, lru_width=64, num_key_value_heads=1)
    with torch.device("meta"):
        own = module_cache.find_own_cache(AutoModelForCausalLM.from_config(config).eval())
    with pytest.raises(Misuse, match=r"takes a cache but returns none, .*; return the cache from forward"):
        own.step(PROMPT)


def rwkv() -> Any:
    return small("rwkv", attention_hidden_size=64, context_length=64)


@pytest.mark.slow
@pytest.mark.parametrize(("past", "batch"), [(0, 2), (PROMPT, 2), (PROMPT, 3)])
def test_code_that_mixes_sequences_is_counted_as_it_runs_and_what_they_take_apart_is_said(
    past: int, batch: int
) -> None:
    with torch.device("meta"):
        own = module_cache.find_own_cache(AutoModelForCausalLM.from_config(rwkv()).eval())
    model = AutoModelForCausalLM.from_config(rwkv()).eval()
    state = counted(model, input_ids=ids(past, batch), use_cache=True)[1].state if past else None
    step, result = counted(model, input_ids=ids(1, batch), state=state, use_cache=True)
    assert tuple(result.logits.shape[:2]) == (batch, batch)
    # two layers: four products of 64 x 64 and a gate, two of 64 x 96; the head
    alone = 2 * (5 * 64 * 64 + 2 * 64 * 96) + 64 * 128
    assert step == batch * batch * alone
    found = module_step.analyze_step_with_cache(own, own.step(past, batch), past, batch).info
    assert found.totals.macs == step
    assert f"{batch} separate sequences take {batch * alone:,} MACs" in found.model.notes[-1]
    one = module_step.analyze_step_with_cache(own, own.step(past), past, 1).info
    assert one.totals.macs == alone
    # RWKV's first call divides its weights, for its number of layers, and sets a flag; later calls do not,
    # and a state is the result of a first call
    rescaling = "assumed: the model's calls differ from each other, and the call that costs more is counted"
    assert one.model.notes == (() if past else (rescaling,))


@pytest.mark.slow
def test_batches_of_code_that_mixes_sequences_are_told_as_sequences_run_apart() -> None:
    with torch.device("meta"):
        own = module_cache.find_own_cache(AutoModelForCausalLM.from_config(rwkv()).eval())
    spec = ServingSpec(PROMPT, (30,), (1, 2))
    chip = Machine("chip", 1e6, 1e15)
    passes = create_passes(own, spec)
    found = compute_serving(passes, spec, chip)
    blocks, head = 2 * (5 * 64 * 64 + 2 * 64 * 96), 64 * 128
    assert (found.prefill.macs, found.decode.macs) == (blocks * PROMPT + head, blocks + head)
    assert [one.token for one in found.times] == [(blocks + head) / 1e6, 2 * (blocks + head) / 1e6]
    assert [one.first_token for one in found.times] == [
        (blocks * PROMPT + head) / 1e6,
        2 * (blocks * PROMPT + head) / 1e6,
    ]
    ratio = (4 * blocks + 2 * head) / (blocks + head)
    assert any(f"{ratio:.3f} times the work of one" in note for note in found.notes)
    assert (passes.can_predict(1), passes.can_predict(2)) == (True, False)


IN_PIECES: dict[str, dict[str, Any]] = {
    "falcon_h1": {"mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_chunk_size": 8},
    "xlstm": {"hidden_size": 128, "num_blocks": 2, "qk_dim_factor": 1.0, "chunk_size": 64},
    "longcat_flash": {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "zero_expert_num": 0}
    | {"kv_lora_rank": 16, "q_lora_rank": 24, "expert_ffn_hidden_size": 32, "num_key_value_heads": 4}
    | {"head_dim": 8, "ffn_hidden_size": 96, "n_routed_experts": 4, "moe_topk": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "prompt"), [("falcon_h1", 20), ("xlstm", 130), ("longcat_flash", 19)])
def test_a_prompt_that_is_read_in_pieces_is_counted_as_torch_does_wherever_it_ends(
    name: str, prompt: int
) -> None:
    transformers.logging.set_verbosity_error()
    known = AutoConfig.for_model(name)
    said = {**known.to_dict(), **dict.fromkeys(known.attribute_map)}
    over = {key: value for key, value in TINY.items() if key in said}
    if name == "xlstm":
        del over["num_hidden_layers"]
    config = AutoConfig.for_model(name, **{**over, **IN_PIECES[name]})
    model = AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    one = {} if name == "xlstm" else {"logits_to_keep": 1}
    text, _ = counted(model, input_ids=ids(prompt), use_cache=True, **one)
    with torch.device("meta"):
        own = module_cache.find_own_cache(AutoModelForCausalLM.from_config(config).eval())
    spec = ServingSpec(prompt, (30,))
    found = compute_serving(create_passes(own, spec), spec)
    assert (found.prefill.macs, found.prefill.status) == (text, "exact")


TEXT: dict[str, Any] = {key: TINY[key] for key in TINY if key not in ("n_layer", "n_embd", "n_head")} | {
    "num_hidden_layers": 2,
    "vocab_size": 256,
}
PICTURE = {**{key: TINY[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads")}} | {
    "num_hidden_layers": 2,
    "image_size": 56,
    "patch_size": 14,
}
PICTURES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llava": ({"model_type": "clip_vision_model", **PICTURE}, {"model_type": "llama", **TEXT}),
    "gemma3": ({"model_type": "siglip_vision_model", **PICTURE}, {"model_type": "gemma3_text", **TEXT}),
    "idefics3": (PICTURE, {"model_type": "llama", **TEXT}),
    "aya_vision": ({"model_type": "siglip_vision_model", **PICTURE}, {"model_type": "cohere2", **TEXT}),
    "qwen2_vl": (
        {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 2},
        {
            "model_type": "qwen2_vl_text",
            **TEXT,
            "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3], "rope_type": "default"},
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_a_text_of_a_model_that_sees_is_counted_as_torch_does(name: str) -> None:
    transformers.logging.set_verbosity_error()
    picture, text_of = PICTURES[name]
    config = AutoConfig.for_model(name, vision_config=picture, text_config=text_of)
    with torch.device("meta"):
        own = module_cache.find_own_cache(
            AutoModelForImageTextToText.from_config(copy.deepcopy(config)).eval()
        )
    model = AutoModelForImageTextToText.from_config(config).eval()
    text, result = counted(model, input_ids=ids(PROMPT), use_cache=True)
    cache = getattr(result, own.name)
    nbytes = sum(one.nbytes for one in list_cache_tensors(cache))
    step, _ = counted(model, **{"input_ids": ids(1), own.name: cache, "use_cache": True})
    behind = module_step.analyze_step_with_cache(own, own.step(PROMPT), PROMPT, 1).info.totals
    assert (behind.macs, behind.kv_cache_bytes) == (step, nbytes)
    assert module_step.analyze_run(own, own.build_prompt(PROMPT), 1).info.totals.macs == text
    found = compute_serving(
        create_passes(own, ServingSpec(prompt=20, contexts=(30,))), ServingSpec(prompt=20, contexts=(30,))
    )
    seeing = sum(p.numel() for path, p in model.named_parameters() if "vis" in path)
    assert found.active <= found.params - seeing
    assert any(
        f"does not use {found.params - found.active:,} of the stored parameters" in n for n in found.notes
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "bart", "nllb-moe"])
def test_an_encoder_decoder_is_counted_behind_what_its_encoder_read(name: str) -> None:
    config = small(name)
    with torch.device("meta"):
        own = module_cache.find_own_cache(AutoModelForSeq2SeqLM.from_config(config).eval())
    model = AutoModelForSeq2SeqLM.from_config(config).eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    text, result = counted(model, input_ids=ids(PROMPT), decoder_input_ids=ids(1), use_cache=True)
    cache = getattr(result, own.name)
    nbytes = sum(one.nbytes for one in list_cache_tensors(cache))
    with torch.no_grad():
        encoded = model.get_encoder()(input_ids=ids(PROMPT))
    read = {"encoder_outputs": encoded, own.name: cache}
    step, _ = counted(model, decoder_input_ids=ids(1), use_cache=True, **read)
    behind = module_step.analyze_step_with_cache(own, own.step(1, 1, PROMPT), 1, 1).info.totals
    assert (behind.macs, behind.kv_cache_bytes) == (step, nbytes)
    assert module_step.analyze_run(own, own.build_prompt(PROMPT), 1).info.totals.macs == text
