"""Tiled layers: subclasses of torch's layers that compute their products by tiles.

A tiled layer has the same parameter names as torch's layer, so a state_dict fits both. It is an instance of
torch's layer class.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from explorer.engine.tiling.torch.products import Tile, compute_tiled_product
from explorer.facts import Edges

TILE: Tile = (64, 64, 64)
"""Default tile."""


class _TiledLayer(nn.Module):
    """Base class of the tiled layers.

    Args:
        *args, **kwargs: Arguments of torch's layer.
        tile: (TM, TK, TN): rows of the left operand, depth, columns.
        edges: 'ragged' or 'padded', as in `TileSpec`.
    """

    def __init__(self, *args: Any, tile: Tile = TILE, edges: Edges = "ragged", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tile = tile
        self.edges = edges

    def extra_repr(self) -> str:
        """Returns the layer's description and the tile."""
        return f"{super().extra_repr()}, tile={'x'.join(map(str, self.tile))}, edges={self.edges}"


class TiledLinear(_TiledLayer, nn.Linear):
    """nn.Linear computed by tile products, for x of shape (..., in_features)."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns X W^T + b for x of shape (..., in_features)."""
        rows = x.reshape(-1, self.in_features)
        sizes = self.out_features, self.in_features
        y = compute_tiled_product(rows, self.weight, self.tile, padded=self.edges == "padded", sizes=sizes)
        if self.bias is not None:
            y = y + self.bias
        return y.to(x.dtype).reshape(*x.shape[:-1], self.out_features)


def _cut_windows(x: Tensor, steps: tuple[tuple[int, int, int], ...], sizes: list[int], depth: int) -> Tensor:
    """Returns the input elements under the kernel at each position: (batch x positions, channels x kernel).

    torch's unfold works with every exporter, but supports only images. So a signal is treated as an image of
    height 1, and a volume is cut by slices.

    Args:
        x: Padded input, (batch, channels, *sizes).
        steps: Kernel size, dilation and stride of each axis.
        sizes: Number of positions along each axis.
        depth: Number of input elements under the kernel.
    """
    if all(step == (1, 1, 1) for step in steps):  # every input element is a window
        return x.flatten(2).transpose(1, 2).reshape(-1, depth)
    if len(steps) == 1:
        x, steps = x.unsqueeze(2), ((1, 1, 1), *steps)
    if len(steps) == 2:
        kernels, dilations, strides = zip(*steps, strict=True)
        patches = functional.unfold(x, kernels, dilation=dilations, stride=strides)
    else:
        parts = []
        for tap in itertools.product(*(range(k) for k, _, _ in steps)):
            part = x
            for axis, (offset, (_, dilation, stride), size) in enumerate(
                zip(tap, steps, sizes, strict=True), start=2
            ):
                part = part.narrow(axis, offset * dilation, stride * (size - 1) + 1)
                part = part[(slice(None),) * axis + (slice(None, None, stride),)]
            parts.append(part.flatten(2))
        patches = torch.stack(parts, 2).flatten(1, 2)
    return patches.transpose(1, 2).reshape(-1, depth)


def _list_padding(layer: Any) -> list[int]:
    """Returns the padding of a convolution as `functional.pad` expects it, last axis first."""
    if layer.padding == "same":
        totals = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    elif layer.padding == "valid":
        totals = [0] * len(layer.kernel_size)
    else:
        totals = [2 * size for size in layer.padding]
    return [side for total in reversed(totals) for side in (total // 2, total - total // 2)]


class _TiledConvolution(_TiledLayer):
    """A convolution without groups as one product: rows are output positions, columns are output channels."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns the convolution of x of shape (batch, channels, *sizes), with or without the batch axis."""
        layer: Any = self
        rank = len(layer.kernel_size)
        has_no_batch = x.dim() == rank + 1
        if has_no_batch:
            x = x.unsqueeze(0)
        padding = _list_padding(layer)
        if any(padding):
            mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
            x = functional.pad(x, padding, mode=mode)
        steps = tuple(zip(layer.kernel_size, layer.dilation, layer.stride, strict=True))
        sizes = [(x.shape[2 + axis] - d * (k - 1) - 1) // s + 1 for axis, (k, d, s) in enumerate(steps)]
        depth = layer.in_channels * math.prod(layer.kernel_size)
        rows = _cut_windows(x, steps, sizes, depth)
        weight, shape = layer.weight.reshape(layer.out_channels, depth), (layer.out_channels, depth)
        y = compute_tiled_product(rows, weight, layer.tile, padded=layer.edges == "padded", sizes=shape)
        if layer.bias is not None:
            y = y + layer.bias
        y = y.to(x.dtype).reshape(x.shape[0], *sizes, layer.out_channels)
        y = y.permute(0, rank + 1, *range(1, rank + 1))
        return y.squeeze(0) if has_no_batch else y


class TiledConv1d(_TiledConvolution, nn.Conv1d):
    """nn.Conv1d computed by tile products, for (batch, channels, length) or (channels, length)."""


class TiledConv2d(_TiledConvolution, nn.Conv2d):
    """nn.Conv2d computed by tile products, for images with or without a batch axis."""


class TiledConv3d(_TiledConvolution, nn.Conv3d):
    """nn.Conv3d computed by tile products, for volumes with or without a batch axis."""
