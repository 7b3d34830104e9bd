"""Models that say in a configuration what they take, as those of transformers and timm do, need no shapes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer import Session  # noqa: E402
from explorer.base.errors import UnknownShape  # noqa: E402


class Pretrained(nn.Module):
    """What transformers' models have in common: text to try them with, whatever they take."""

    main_input_name = "input_ids"

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(**config)

    @property
    def dummy_inputs(self) -> Any:
        return {"input_ids": torch.tensor([[7, 6, 0, 0, 1], [1, 2, 3, 0, 0], [0, 0, 0, 4, 5]])}


class Picture(Pretrained):
    main_input_name = "pixel_values"

    def __init__(self, size: Any = 96) -> None:
        super().__init__(image_size=size, num_channels=1)
        self.patches = nn.Conv2d(1, 4, 16, stride=16)

    def forward(self, pixel_values: Any, mask: Any = None) -> Any:
        return self.patches(pixel_values)


class Film(Pretrained):
    main_input_name = "pixel_values"

    def __init__(self) -> None:
        super().__init__(image_size=(32, 48), num_channels=3, num_frames=4)
        self.patches = nn.Conv2d(3, 4, 16, stride=16)

    def forward(self, pixel_values: Any) -> Any:
        return self.patches(pixel_values.flatten(0, 1))


class Sound(Pretrained):
    main_input_name = "input_values"

    def __init__(self) -> None:
        super().__init__(hidden_size=4)
        self.conv = nn.Conv1d(1, 4, 10, stride=5)

    def forward(self, input_values: Any | None = None) -> Any:
        return self.conv(input_values[:, None])


class Spectrum(Pretrained):
    """Speech to text, as Whisper: spectra in, and the text so far."""

    main_input_name = "input_features"

    def __init__(self) -> None:
        super().__init__(num_mel_bins=80, max_source_positions=50, is_encoder_decoder=True)
        self.conv = nn.Conv1d(80, 4, 3, padding=1)
        self.table = nn.Embedding(16, 4)

    def forward(self, input_features: Any = None, decoder_input_ids: Any = None) -> Any:
        if input_features.shape[-1] != 100:
            raise ValueError("expects 100 frames")
        return self.table(decoder_input_ids) @ self.conv(input_features)


class Pair(Pretrained):
    """Text beside a picture, as CLIP."""

    def __init__(self) -> None:
        super().__init__(vision_config=SimpleNamespace(image_size=64, num_channels=3))
        self.table, self.patches = nn.Embedding(16, 4), nn.Conv2d(3, 4, 32, stride=32)

    def forward(self, input_ids: Any = None, pixel_values: Any = None) -> Any:
        return self.table(input_ids).mean(1) @ self.patches(pixel_values).mean((2, 3)).T


class Text(Pretrained):
    def __init__(self) -> None:
        super().__init__(vocab_size=16)
        self.table, self.out = nn.Embedding(16, 4), nn.Linear(4, 16)

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        return self.out(self.table(input_ids))


class Translator(Text):
    def forward(self, input_ids: Any, decoder_input_ids: Any = None) -> Any:  # type: ignore[override]
        return self.out(self.table(input_ids)) + self.out(self.table(decoder_input_ids))


class Timm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pretrained_cfg = {"input_size": (3, 48, 64), "num_classes": 10}
        self.stem = nn.Conv2d(3, 4, 16, stride=16)

    def forward(self, x: Any) -> Any:
        assert x.shape[-2:] == (48, 64)
        return self.stem(x)


@pytest.mark.parametrize(
    ("make", "inputs", "macs"),
    [
        (Picture, {"pixel_values": (1, 1, 96, 96)}, 4 * 36 * 256),
        (lambda: Picture((32, 48)), {"pixel_values": (1, 1, 32, 48)}, 4 * 6 * 256),
        (lambda: Picture({"height": 16, "width": 32}), {"pixel_values": (1, 1, 16, 32)}, 4 * 2 * 256),
        (lambda: Picture(None), {"pixel_values": (1, 1, 224, 224)}, 4 * 196 * 256),
        (Film, {"pixel_values": (1, 4, 3, 32, 48)}, 4 * 4 * 6 * 768),
        (Sound, {"input_values": (1, 16_000)}, 4 * 3199 * 10),
        (
            Spectrum,
            {"input_features": (1, 80, 100), "decoder_input_ids": (1, 128)},
            4 * 100 * 240 + 128 * 4 * 100,
        ),
        (Pair, {"input_ids": (3, 5), "pixel_values": (3, 3, 64, 64)}, 3 * 4 * 4 * 3072 + 3 * 4 * 3),
        (Text, {"input_ids": (3, 5)}, 15 * 64),
        (Translator, {"input_ids": (3, 5), "decoder_input_ids": (3, 5)}, 2 * 15 * 64),
        (Timm, {"x": (1, 3, 48, 64)}, 4 * 12 * 768),
    ],
)
def test_what_the_configuration_says_goes_in(make: Any, inputs: dict[str, Any], macs: int) -> None:
    with Session(make()) as session:
        info = session.info()
    assert {i.name: i.shape for i in info.model.inputs} == inputs
    assert (info.totals.macs, info.totals.status) == (macs, "exact")
    guessed = [i.name for i in info.model.inputs if i.origin == "inferred"]
    assert bool(guessed) == any("the model's configuration" in note for note in info.model.notes)


def test_a_shape_that_is_given_replaces_the_guess_whole() -> None:
    with Session(Pair(), input_shapes={"input_ids": (None, (1, 7))}, partial=True) as session:
        info = session.info()
        # text alone: the picture that was guessed beside it is gone, and the model says that it needs one
        assert [(i.name, i.dtype, i.shape) for i in info.model.inputs] == [("input_ids", "int64", (1, 7))]
    both = {"input_ids": (None, (2, 7)), "pixel_values": (None, (2, 3, 32, 32))}
    with Session(Pair(), input_shapes=both) as session:
        assert session.info().totals.macs == 2 * 4 * 3072 + 2 * 4 * 2


@pytest.mark.parametrize(
    ("module", "hint"),
    [
        (lambda: Inner("pixel_values", "other"), "pixel_values:1,3,224,224"),
        (lambda: Inner("input_ids", "other"), "input_ids:1,128"),
        (lambda: Inner("hidden_states", "other"), "hidden_states:1,128,12"),
        (lambda: Inner("input_features", "other"), "input_features:1,1024,80"),
        (lambda: Inner("signal"), "signal:1,N,7"),
    ],
)
def test_the_hint_has_the_rank_that_the_input_has(module: Any, hint: str) -> None:
    with pytest.raises(UnknownShape) as caught, Session(module()) as session:
        session.info()
    assert caught.value.hint.endswith(f"--input-shape {hint}")


def Inner(*names: str) -> nn.Module:
    """A part of a model: it cannot be run with what is likely."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if len(names) > 1:
                self.config = SimpleNamespace(hidden_size=12)
            self.fc = nn.Linear(7, 7)

    space: dict[str, Any] = {}
    exec(f"def forward(self, {', '.join(names)}):\n    raise ValueError('not so')", space)
    Part.forward = space["forward"]
    return Part()
