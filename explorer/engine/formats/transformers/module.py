"""nn.Module of a configuration: lets transformers build a model from config.json, on the meta device.

The class is the first known one in `architectures`. Without one, it is transformers' class of this
`model_type` for text generation, also from images or speech, or the base model. Nothing is downloaded, and
building reads no weights. Code in the folder (`auto_map`) runs only with `--trust`; transformers then copies
it to its own cache.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from explorer.base.errors import BadModel, ExplorerError
from explorer.base.units import printable
from explorer.engine.compat.huggingface_hub import prevent_downloads
from explorer.engine.compat.torch import get_module_dicts
from explorer.engine.compat.transformers import build_configured, is_configured, list_wide_parts
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.transformers.config import MAX_MODULES, BuildError, check_sizes, find_code_file
from explorer.host.optional_packages import format_error, require, silence

TOKENS = 128
"""Number of tokens of a text without a given length."""


def create_module(
    source: str,
    config: Mapping[str, Any],
    *,
    dtype: str,
    trust: bool = False,
    values: str = "",
    files: Sequence[str] = (),
) -> LoadedModule:
    """Creates the model of a configuration. Its weights are read once a run needs their values.

    Args:
        source: Path or name, as the user typed it.
        config: Contents of config.json.
        dtype: Element type of the weights in numpy's spelling, or '' for the type in the configuration.
        trust: Whether code in the folder may run.
        values: Folder from which `from_pretrained` reads the values, or '' if they cannot be read.
        files: Files with the values, to read in place of all files of the folder; empty reads the folder.

    Raises:
        BuildError: transformers lacks the architecture, or cannot build it from this configuration.
        BadModel: A size or the number of modules exceeds that of real models.
        MissingExtra: transformers is not installed, or is broken.
    """
    check_sizes(config, source)
    with silence(), prevent_downloads():
        transformers = require("transformers", source)
        try:
            model_class, settings = _find_architecture(transformers, source, config, trust)
        except (ExplorerError, BuildError):
            raise
        except (Exception, SystemExit) as error:
            raise BuildError(
                f"transformers cannot read this configuration ({format_error(error)})"
            ) from error
    reads_values = _disable_cache(settings)
    torch_dtype = getattr(torch, dtype, None)

    def build() -> nn.Module:
        with prevent_downloads(), _limit_modules(source):
            module_dtype = torch_dtype if isinstance(torch_dtype, torch.dtype) else None
            model: Any = build_configured(model_class, copy.deepcopy(settings), module_dtype)
        if hasattr(model, "tie_weights"):
            model.tie_weights()  # transformers 5.0 ties none on the meta device
        _widen_parts(model, torch_dtype)
        module: nn.Module = model
        return module

    def build_with_values() -> nn.Module:
        if not values:
            raise BadModel(
                "its values are stored in a form that no module of torch can compute with", where=source
            )
        return _load_with_values(model_class, copy.deepcopy(settings), torch_dtype, values, files)

    # without the cache, forward reads values to find rows with several texts, and the meta device has none
    loaded = LoadedModule(
        source,
        build,
        f"of {source}",
        values=build_with_values,
        reads_values=reads_values,
        builds_anew=True,
        weights_from="file",
    )
    try:
        loaded.example = _create_text_input(loaded.build_for_inspection())
    except _TooManyModules:
        raise
    except ExplorerError as error:
        raise BuildError(
            f"transformers cannot build {model_class.__name__} of this configuration: {error.what}"
        ) from error
    return loaded


def _load_with_values(
    model_class: Any, settings: Any, dtype: Any, folder: str, files: Sequence[str]
) -> nn.Module:
    """Builds the module with the values in `files`, or in the folder; no code in a checkpoint runs."""
    from transformers.modeling_utils import load_state_dict  # takes a second

    state = {name: tensor for file in files for name, tensor in load_state_dict(file).items()}
    with prevent_downloads():
        module: nn.Module = model_class.from_pretrained(
            None if files else folder,
            config=settings,
            dtype=dtype,
            local_files_only=True,
            state_dict=state or None,
        )
    return module


def _disable_cache(settings: Any) -> bool:
    """Switches the KV cache off, because a full pass does not use it and no exporter supports it.

    Returns:
        Whether the cache was on.
    """
    had_cache = False
    for part in (settings, *(getattr(settings, name, None) for name in settings.sub_configs)):
        if getattr(part, "use_cache", None):
            part.use_cache = False
            had_cache = True
    return had_cache


def _find_architecture(
    transformers: Any, source: str, config: Mapping[str, Any], trust: bool
) -> tuple[Any, Any]:
    """Returns the class to build, and its configuration object.

    Raises:
        BuildError: transformers has no class for the configuration.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    name = config.get("model_type")
    code = find_code_file(config)
    if not isinstance(name, str):
        raise BuildError("config.json names no model_type")
    if name not in CONFIG_MAPPING:
        if code and trust:
            return _find_architecture_in_folder(transformers, source)
        version = f"transformers {transformers.__version__}"
        trust_hint = f", and its own code ({code}) runs with --trust alone" if code else ""
        raise BuildError(f"{version} knows no architecture '{printable(name)}'{trust_hint}")
    settings = CONFIG_MAPPING[name].from_dict(_list_architecture_settings(config))
    return _find_model_class(transformers, name, config), settings


def _find_architecture_in_folder(transformers: Any, source: str) -> tuple[Any, Any]:
    """Like `_find_architecture`, for code in the folder that the user trusts."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    settings = transformers.AutoConfig.from_pretrained(source, trust_remote_code=True, local_files_only=True)
    auto_map = settings.auto_map
    name = next((auto_map[auto] for auto in ("AutoModelForCausalLM", "AutoModel") if auto in auto_map), "")
    name = name or next(v for k, v in auto_map.items() if k.startswith("AutoModel"))
    return get_class_from_dynamic_module(name, source, local_files_only=True), settings


def _find_model_class(transformers: Any, name: str, config: Mapping[str, Any]) -> Any:
    """Returns the first class in `architectures` that transformers has, else that of the model type `name`.

    Raises:
        BuildError: transformers has neither.
    """
    architectures = config.get("architectures")
    for class_name in architectures if isinstance(architectures, list) else ():
        model_class = getattr(transformers, class_name, None) if isinstance(class_name, str) else None
        if (
            isinstance(model_class, type)
            and issubclass(model_class, nn.Module)
            and is_configured(model_class)
        ):
            return model_class
    from transformers.models.auto import modeling_auto

    for names in (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
        modeling_auto.MODEL_MAPPING_NAMES,
    ):
        class_name = names.get(name)
        if isinstance(class_name, str):
            return getattr(transformers, class_name)
    raise BuildError(f"transformers has no module for the architecture '{printable(name)}'")


_UNWANTED = ("auto_map", "quantization_config", "_attn_implementation", "_experts_implementation")
"""Settings that do not change the modules: where code is, how weights are quantized, which kernels run."""


def _list_architecture_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that determine the modules; the download of a backbone is disabled."""
    settings = {key: _restore_infinities(value) for key, value in config.items() if key not in _UNWANTED}
    if "use_pretrained_backbone" in settings:
        settings["use_pretrained_backbone"] = False
    return settings


def _restore_infinities(value: Any) -> Any:
    """Copies a setting and restores infinities, which transformers writes as objects (JSON lacks them)."""
    if isinstance(value, dict):
        if tuple(value) == ("__float__",):
            return {"Infinity": math.inf, "-Infinity": -math.inf}.get(str(value["__float__"]), math.nan)
        return {key: _restore_infinities(element) for key, element in value.items()}
    return [_restore_infinities(element) for element in value] if isinstance(value, list) else value


def _widen_parts(module: Any, dtype: torch.dtype | None) -> None:
    """Converts tensors to float32 if transformers loads them as float32 in spite of a narrower type."""
    patterns = list_wide_parts(module, dtype)
    if not patterns:
        return
    wide_pattern = re.compile("|".join(patterns))
    for path, part in module.named_modules():
        parameters, buffers, _ = get_module_dicts(part).values()
        for tensors in (parameters, buffers):
            for name, tensor in list(tensors.items()):
                if tensor is None or tensor.dtype is not dtype or not wide_pattern.search(f"{path}.{name}"):
                    continue
                wide_tensor = tensor.detach().float()
                tensors[name] = (
                    nn.Parameter(wide_tensor, tensor.requires_grad) if tensors is parameters else wide_tensor
                )


class _TooManyModules(BadModel):
    """Raised for a configuration with more modules than any model has."""


@contextlib.contextmanager
def _limit_modules(source: str) -> Iterator[None]:
    """Limits the number of modules that are built in this context.

    Raises:
        BadModel: More than `MAX_MODULES` modules are registered.
    """
    count = itertools.count(1)

    def count_module(module: nn.Module, member_name: str, child: nn.Module | None) -> None:
        if next(count) > MAX_MODULES:
            raise _TooManyModules(f"config.json asks for more than {MAX_MODULES:,} modules", where=source)

    hook = register_module_module_registration_hook(count_module)
    try:
        yield
    finally:
        hook.remove()


def _create_text_input(module: nn.Module) -> dict[str, torch.Tensor] | None:
    """Returns the input of a model that needs only a text; None for others (see `configured_inputs`)."""
    config: Any = getattr(module, "config", None)
    main = getattr(module, "main_input_name", "")
    if main != "input_ids" or getattr(config, "is_encoder_decoder", False):
        return None
    names = inspect.signature(module.forward).parameters
    model_class: Any = type(module)
    is_generator = hasattr(model_class, "can_generate") and model_class.can_generate()
    takes_media = any(name in names for name in ("pixel_values", "input_features"))
    if "input_ids" not in names or (takes_media and not is_generator):
        return None
    text: Any = config.get_text_config() if hasattr(config, "get_text_config") else config
    longest = getattr(text, "max_position_embeddings", None)
    tokens = min(TOKENS, longest) if isinstance(longest, int) and longest > 0 else TOKENS
    return {"input_ids": torch.empty((1, tokens), dtype=torch.int64, device="meta")}
