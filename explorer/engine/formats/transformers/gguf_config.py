"""GGUF files for transformers: converts metadata to a configuration, and tensor names to parameter names.

For some architectures, tables in transformers map metadata keys to settings. Other settings follow from
llama.cpp's keys, which are common to all architectures. A module with such settings is accepted only if all
its tensors are in the file with the same shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from explorer.base.units import printable
from explorer.engine.formats.tensor_index import StoredTensor
from explorer.engine.formats.transformers.config import BuildError

_TYPES = {
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gpt-oss": "gpt_oss",
    "minimax-m2": "minimax_m2",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "command-r": "cohere",
    "phi2": "phi",
    "deepseek2": "deepseek_v3",
    "gptneox": "gpt_neox",
    "starcoder": "gpt_bigcode",
}
"""transformers' name by llama.cpp's name of an architecture, if they differ."""

_KEYS: Mapping[str, tuple[str, ...]] = {
    "context_length": ("max_position_embeddings",),
    "block_count": ("num_hidden_layers",),
    "embedding_length": ("hidden_size",),
    "feed_forward_length": ("intermediate_size",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon"),
    "attention.sliding_window": ("sliding_window",),
    "rope.freq_base": ("rope_theta",),
    "vocab_size": ("vocab_size",),
    "expert_count": ("num_experts", "num_local_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_shared_count": ("n_shared_experts",),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "leading_dense_block_count": ("first_k_dense_replace",),
    "attention.kv_lora_rank": ("kv_lora_rank",),
    "attention.q_lora_rank": ("q_lora_rank",),
}
"""transformers' settings by llama.cpp's key (in its constants.py), without the prefix of the architecture."""

_NEEDED = ("block_count", "embedding_length", "attention.head_count")
"""Keys without which no configuration is built, except for Mamba."""

_LLAMA_LIKE = re.compile(
    r"(token_embd|output_norm|output|rope_freqs|rope_factors_long|rope_factors_short)\.weight"
    r"|blk\.\d+\.(attn_norm|ffn_norm|attn_[qk]_norm)\.weight"
    r"|blk\.\d+\.(attn_q|attn_k|attn_v|attn_output|ffn_gate|ffn_up|ffn_down)\.(weight|bias)"
    r"|blk\.\d+\.(ffn_gate_inp|ffn_gate_exps|ffn_up_exps|ffn_down_exps)\.weight"
)
"""Names of the tensors of a Llama, and of additional tensors of similar models."""


def list_configurations(
    metadata: Mapping[str, Any], tensors: Sequence[StoredTensor]
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields possible configurations of a file, most likely first.

    Args:
        metadata: Metadata of the file; arrays are tuples of numbers.
        tensors: Tensors of the file.

    Yields:
        A configuration, and a note or ''.

    Raises:
        BuildError: The metadata lacks a required key, or a setting differs between layers.
    """
    from transformers.integrations.ggml import GGUF_CONFIG_DEFAULTS_MAPPING, GGUF_CONFIG_MAPPING
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise BuildError("its metadata has no general.architecture")
    settings = {key.removeprefix(f"{name}."): _find_uniform_value(value) for key, value in metadata.items()}
    if name == "lfm2":
        settings |= _read_lfm2_settings(metadata.get(f"{name}.attention.head_count_kv"))
    varying = [key for key in _KEYS if settings.get(key) is None and f"{name}.{key}" in metadata]
    if varying:
        raise BuildError(
            f"its layers differ in {printable(', '.join(varying))}, and no known module has such layers"
        )
    missing_keys = [f"{name}.{key}" for key in _NEEDED if not isinstance(settings.get(key), int)]
    if missing_keys and not name.startswith("mamba"):
        raise BuildError(f"its metadata does not say {printable(', '.join(missing_keys))}")
    model_type = _TYPES.get(name, name)
    table = GGUF_CONFIG_MAPPING.get(model_type.removesuffix("_text"), {})
    by_name = {tensor.name: tensor for tensor in tensors}
    common = _read_common_settings(settings, by_name)
    if model_type in CONFIG_MAPPING and not (model_type == "llama" and "num_experts" in common):
        mapped = {setting: settings[key] for key, setting in table.items() if setting and key in settings}
        common_settings = {setting for key in table if key in settings for setting in _KEYS.get(key, ())}
        unmapped = {setting: value for setting, value in common.items() if setting not in common_settings}
        defaults = GGUF_CONFIG_DEFAULTS_MAPPING.get(model_type, {})
        extras = _list_extra_settings(model_type, settings, by_name)
        yield {**unmapped, **mapped, **defaults, **extras, "model_type": model_type}, ""
    if all(_LLAMA_LIKE.fullmatch(tensor) for tensor in by_name):
        llama_settings = _choose_llama_like_settings(by_name)
        summary = (
            f"llama.cpp's '{printable(name)}' is counted as transformers' {llama_settings['model_type']}"
        )
        note = "" if name == "llama" else f"{summary}: its tensors are those of one"
        yield {**common, **llama_settings}, note


def _read_lfm2_settings(heads: Any) -> dict[str, Any]:
    """Returns the settings of LFM2, from llama.cpp's number of key heads by layer; a convolution has none."""
    if not isinstance(heads, tuple) or not any(heads):
        return {}
    return {"attention.head_count_kv": max(heads), "full_attention": [n for n, h in enumerate(heads) if h]}


def _find_uniform_value(value: Any) -> Any:
    """Returns the common value of a tuple with one value per layer, or None if the layers differ.

    Other values are returned unchanged.
    """
    if isinstance(value, tuple):
        return value[0] if value and len(set(value)) == 1 else None
    return value


def _read_common_settings(metadata: Mapping[str, Any], by_name: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """Returns the settings that llama.cpp's keys determine for all architectures."""
    configuration = {
        s: metadata[key] for key, settings in _KEYS.items() if metadata.get(key) is not None for s in settings
    }
    rows = by_name.get("token_embd.weight")
    if rows is not None and "vocab_size" not in configuration:
        configuration["vocab_size"] = rows.shape[0]
    configuration["tie_word_embeddings"] = "output.weight" not in by_name
    return configuration


def _choose_llama_like_settings(by_name: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """Returns the settings of the Llama-like architecture that these tensors determine."""
    has_qk_norm, has_qkv_bias = "blk.0.attn_q_norm.weight" in by_name, "blk.0.attn_q.bias" in by_name
    if "blk.0.ffn_gate_exps.weight" in by_name:
        return (
            {"model_type": "qwen3_moe", "norm_topk_prob": True} if has_qk_norm else {"model_type": "mixtral"}
        )
    if has_qk_norm:
        return {"model_type": "qwen3", "attention_bias": has_qkv_bias}
    if has_qkv_bias and "blk.0.attn_output.bias" not in by_name:
        return {"model_type": "qwen2"}
    return {
        "model_type": "llama",
        "attention_bias": has_qkv_bias,
        "mlp_bias": "blk.0.ffn_gate.bias" in by_name,
    }


def _list_extra_settings(
    model_type: str, metadata: Mapping[str, Any], by_name: Mapping[str, StoredTensor]
) -> dict[str, Any]:
    """Returns the settings of an architecture that depend on its tensors, or on several keys together."""
    if model_type == "stablelm":
        return {
            "use_qkv_bias": "blk.0.attn_q.bias" in by_name,
            "use_parallel_residual": "blk.0.ffn_norm.weight" not in by_name,
        }
    if model_type == "deepseek_v3":
        rope = metadata.get("rope.dimension_count") or 0
        keys = metadata.get("attention.key_length_mla") or metadata.get("attention.key_length") or 0
        values = metadata.get("attention.value_length_mla") or metadata.get("attention.value_length") or 0
        return {
            "qk_rope_head_dim": rope,
            "qk_nope_head_dim": keys - rope,
            "v_head_dim": values,
            "q_lora_rank": metadata.get("attention.q_lora_rank"),
            "head_dim": rope,
            "num_key_value_heads": metadata.get("attention.head_count"),
        }
    if model_type == "lfm2" and "full_attention" in metadata:
        return {"full_attn_idxs": metadata["full_attention"], "block_auto_adjust_ff_dim": False}
    if model_type in ("t5", "umt5"):
        return {"is_gated_act": True, "feed_forward_proj": "gated-gelu"}
    return {}


_EXPERTS = re.compile(r"(?:.*\.)?(\d+)\..*experts\.(gate_up_proj|down_proj)(_bias)?")
"""Name of a parameter with the weights or biases of all experts; the first group is the layer."""

_EXPERT_NAMES = {
    "gate_up_proj": (("ffn_gate_exps", "ffn_up_exps"), ("ffn_gate_up_exps",)),
    "down_proj": (("ffn_down_exps",),),
}
"""Possible sets of llama.cpp's names for such a parameter, by the second group of `_EXPERTS`."""


class GgufNames:
    """Maps llama.cpp's tensor names to the parameters of a module; implements `matching.Names`.

    Args:
        parameters: Parameters and buffers of the module, by name.
        architecture: llama.cpp's name of the architecture.
        layers: Number of layers of the module.
        file_tensors: Tensors of the file, by name.
    """

    def __init__(
        self, parameters: Mapping[str, Any], architecture: str, layers: int, file_tensors: Mapping[str, Any]
    ) -> None:
        self.parameters = parameters
        architectures = [architecture, "llama", "qwen3", "qwen3moe", "deepseek2"]
        self.maps = [_load_name_map(name, layers) for name in dict.fromkeys(architectures)]
        self.targets: dict[str, str] = {}
        for name in parameters:
            for file_name in self._list_file_names(name, file_tensors):
                self.targets.setdefault(file_name, name)

    def find_target(self, name: str) -> tuple[str, str]:
        """Returns the parameter name of a tensor of the file, '' if there is none, and an empty pattern."""
        return self.targets.get(name, ""), ""

    def list_shapes(
        self, target: str, sources: Sequence[tuple[str, Any]]
    ) -> Mapping[str, tuple[int, ...] | None]:
        """Returns the shape of a parameter in the file.

        A single stored tensor gives the module's shape if it has the same sizes, in any order and apart from
        sizes of 1. Several stored tensors give it if they have as many elements in all. Otherwise the result
        is the stored shape, or the number of stored elements as the only size.
        """
        shape = tuple(self.parameters[target].shape)
        stored_shapes = [weight.shape for _, weight in sources]
        if len(stored_shapes) == 1:
            is_same = _sort_axes(stored_shapes[0]) == _sort_axes(shape)
            return {target: shape if is_same else stored_shapes[0]}
        total = sum(weight.elements or 0 for _, weight in sources)
        return {target: shape if total == self.parameters[target].numel() else (total,)}

    def _list_file_names(self, name: str, file_tensors: Mapping[str, Any]) -> Sequence[str]:
        """Lists llama.cpp's names of a parameter.

        If several sets of names are possible, the set in the file is used.
        """
        expert = _EXPERTS.fullmatch(name)
        if expert:
            ending = ".bias" if expert[3] else ".weight"
            name_sets = [
                [f"blk.{expert[1]}.{part}{ending}" for part in parts] for parts in _EXPERT_NAMES[expert[2]]
            ]
            return next((names for names in name_sets if names[0] in file_tensors), name_sets[0])
        stem, _, last = name.rpartition(".")
        if last not in ("weight", "bias"):
            stem, last = name, "weight"
        if name.endswith("e_score_correction_bias"):
            stem, last = name.removesuffix("_bias"), "bias"
        for names in self.maps:
            for module_name in (stem, stem.partition(".")[2]):
                file_name = None if names is None else names.get_name(module_name)
                if file_name is not None:
                    return self._append_ending(file_name, last, file_tensors)
        return ()

    def _append_ending(self, stem: str, last: str, file_tensors: Mapping[str, Any]) -> Sequence[str]:
        """Returns llama.cpp's names with their endings.

        Some names have no ending, and some parameters are two tensors.
        """
        if f"{stem}.{last}" not in file_tensors and stem in file_tensors:
            return (stem,)
        front, is_combined, _ = stem.rpartition("attn_kv_b")
        if is_combined and f"{front}attn_k_b.weight" in file_tensors:
            return f"{front}attn_k_b.weight", f"{front}attn_v_b.weight"
        return (f"{stem}.{last}",)


def _sort_axes(shape: Sequence[int]) -> list[int]:
    """Returns the sizes of a shape other than 1, sorted."""
    return sorted(n for n in shape if n != 1)


def _load_name_map(architecture: str, layers: int) -> Any:
    """Returns the gguf package's map of tensor names for an architecture, or None if it is unknown there."""
    import gguf

    number_by_name = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    if architecture in number_by_name:
        return gguf.get_tensor_name_map(number_by_name[architecture], layers)
    return None
