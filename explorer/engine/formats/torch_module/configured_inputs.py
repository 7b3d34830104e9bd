"""Inputs from the configuration of a model: for models of transformers, timm and similar libraries.

Such a model has an attribute `config` or, in timm, `pretrained_cfg`. The arguments of `forward` have common
names: `pixel_values` for images, `input_values` for audio, `input_features` for spectra, `input_ids` for
text. This module lists possible shapes; `inputs` uses the first shapes with which the model runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Size = tuple[int, ...]
Sizes = dict[str, tuple[str, Size]]
"""Element type and shape by input name; '' is the type of the model's weights."""

# sizes that a configuration does not state: samples of audio, frames of a spectrum, tokens of a text, and the
# height and width of an image
_SAMPLES = 16_000
_FRAMES = 1_024
_TOKENS = 128
_IMAGE_SIDE = 224


class _Config:
    """Settings of a model's configuration, and of its inner configurations named `inner_names`."""

    def __init__(self, model: Any, *inner_names: str) -> None:
        config = getattr(model, "config", None)
        self.sources = [config, *(getattr(config, name, None) for name in inner_names)]
        self.sources = [source for source in reversed(self.sources) if source is not None]

    def get(self, *names: str) -> Any:
        """Returns the first of these settings that exists, or None. The last inner configuration is first."""
        for source in self.sources:
            for name in names:
                value = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
                if value is not None:
                    return value
        return None

    def get_positive_integer(self, *names: str) -> int | None:
        """Like `get`, but None unless the value is an integer above zero."""
        value = self.get(*names)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def list_candidates(
    model: Any, names: Sequence[str], required: Sequence[str], dummy_sizes: Sizes
) -> Iterator[Sizes]:
    """Yields possible sets of inputs, most likely first; none for a model without a configuration.

    Args:
        model: Model with an attribute `config`, `pretrained_cfg` or `default_cfg`.
        names: Names of all arguments of `forward`.
        required: Names of the required arguments.
        dummy_sizes: Element types and shapes of the model's `dummy_inputs`; empty if it has none.
    """
    size = _read_input_size(model)
    if size is not None and len(required) == 1:
        yield {required[0]: ("", (1, *size))}
    if getattr(model, "config", None) is None:
        return
    sizes_by_name = {name: list(sizes(model)) for name, sizes in _SIZES.items() if name in names}
    main_name = getattr(model, "main_input_name", "")
    main_names = [name for name in sizes_by_name if name in required] or [
        name for name in sizes_by_name if name == main_name
    ]
    text = dict(dummy_sizes)
    if not text and "input_ids" in names and ("input_ids" in required or main_name == "input_ids"):
        text = {"input_ids": ("int64", (1, _TOKENS))}
    if main_names and not dummy_sizes:
        yield from _combine_sizes(sizes_by_name, main_names, {n: t for n, t in text.items() if n in required})
    elif text:
        yield text
    if text and "decoder_input_ids" in names and "decoder_input_ids" not in text:
        text = {**text, "decoder_input_ids": text["input_ids"]} if "input_ids" in text else text
        yield text
    if not main_names or dummy_sizes:
        for name in sizes_by_name:
            yield from _combine_sizes(sizes_by_name, [name], text)
    elif "decoder_input_ids" in names:
        yield from _combine_sizes(sizes_by_name, main_names, {"decoder_input_ids": ("int64", (1, _TOKENS))})
    if text and len(sizes_by_name) > 1:
        yield from _combine_sizes(sizes_by_name, list(sizes_by_name), text)


def _combine_sizes(
    sizes_by_name: Mapping[str, list[tuple[str, Size]]], names: Sequence[str], fixed: Sizes
) -> Iterator[Sizes]:
    """Yields each shape of the first input in `names`, with the most likely shapes of the other inputs.

    Args:
        sizes_by_name: Possible types and shapes by input name.
        names: Names of the inputs to combine.
        fixed: Further inputs, which also determine the batch size.
    """
    first, *other_names = names
    others = {name: sizes_by_name[name][0] for name in other_names if sizes_by_name[name]}
    for first_size in sizes_by_name[first]:
        batch = next(iter(fixed.values()))[1][0] if fixed else 1
        inputs = {first: first_size, **others}
        yield {**fixed, **{name: (dtype, (batch, *shape[1:])) for name, (dtype, shape) in inputs.items()}}


def _read_input_size(model: Any) -> Size | None:
    """Returns channels, height and width in the configuration of a timm model, or None."""
    for source in (getattr(model, name, None) for name in ("pretrained_cfg", "default_cfg", "config")):
        input_size = (
            source.get("input_size") if isinstance(source, Mapping) else getattr(source, "input_size", ())
        )
        size = tuple(input_size) if isinstance(input_size, (tuple, list)) else ()
        if len(size) == 3 and all(isinstance(n, int) and n > 0 for n in size):
            return size
    return None


def _list_image_sizes(model: Any) -> Iterator[tuple[str, Size]]:
    """Yields possible element types and shapes of images or videos."""
    config = _Config(model, "backbone_config", "vision_config")
    size = config.get("image_size", "input_size", "img_size", "crop_size")
    if isinstance(size, Mapping):
        size = (size.get("height", _IMAGE_SIDE), size.get("width", _IMAGE_SIDE))
    sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(sides) == 1:
        sides = sides * 2
    if len(sides) != 2 or not all(isinstance(n, int) and n > 0 for n in sides):
        sides = (_IMAGE_SIDE, _IMAGE_SIDE)
    channels = (
        config.get_positive_integer("num_channels", "in_channels", "in_chans", "num_image_channels") or 3
    )
    frames = config.get_positive_integer("num_frames", "frames_per_clip")
    if frames is not None:
        yield "", (1, frames, channels, *sides)
    yield "", (1, channels, *sides)


def _list_audio_sizes(model: Any) -> Iterator[tuple[str, Size]]:
    """Yields possible element types and shapes of audio."""
    config = _Config(model, "audio_config")
    bins = config.get_positive_integer("num_mel_bins")
    length = config.get_positive_integer("max_length", "max_source_positions")
    if bins is not None:
        yield "", (1, length or _FRAMES, bins)
    channels = config.get_positive_integer("audio_channels")
    if channels is not None:
        yield "", (1, channels, config.get_positive_integer("sampling_rate") or _SAMPLES)
    yield "", (1, _SAMPLES)
    yield "", (1, 1, _SAMPLES)


def _list_spectrum_sizes(model: Any) -> Iterator[tuple[str, Size]]:
    """Yields possible element types and shapes of spectra."""
    config = _Config(model, "encoder_config", "audio_config")
    bins = config.get_positive_integer("num_mel_bins", "n_mels", "feature_size")
    positions = config.get_positive_integer("max_source_positions")
    if bins is not None and positions is not None:
        # the encoder combines two frames into one position
        yield "", (1, bins, 2 * positions)
    width = (
        config.get_positive_integer("feature_projection_input_dim", "input_feat_per_channel") or bins or 80
    )
    yield "", (1, _FRAMES, width)
    yield "", (1, width, _FRAMES)
    side = config.get_positive_integer("spec_size")
    yield "", (1, 1, _FRAMES if side is None else side * side // (bins or 64), bins or 64)


_SIZES: dict[str, Callable[[Any], Iterator[tuple[str, Size]]]] = {
    "pixel_values": _list_image_sizes,
    "input_values": _list_audio_sizes,
    "input_features": _list_spectrum_sizes,
}
"""Functions that yield the possible element types and shapes of an input, by its name."""


def guess_shape(model: Any, name: str) -> Size | None:
    """Returns the most likely shape of an input with this name, or None for an unknown name."""
    if name in _SIZES:
        return next(_SIZES[name](model))[1]
    config = _Config(model)
    if "pixel" in name or "image" in name:
        return next(_list_image_sizes(model))[1]
    if "mask" in name or "ids" in name.split("_"):
        return 1, _TOKENS
    if "embeds" in name or name.endswith(("hidden_states", "hidden_state")):
        return 1, _TOKENS, config.get_positive_integer("hidden_size", "d_model", "dim") or 768
    return None
