"""Settings of the serving command: prompt, contexts, batches, devices and number types."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from explorer.base.checked import Count, Positive, Spec
from explorer.base.options import option
from explorer.base.units import join_values, memory_word


class ServingSpec(Spec, frozen=True):
    """Settings of a serving estimate. Every combination of the listed values gives a result.

    Attributes:
        prompt: Number of tokens in the prompt.
        contexts: Numbers of tokens in the cache at a decode step.
        batches: Numbers of sequences that are generated at the same time.
        devices: Numbers of devices that share the model.
        dtype: Number type of the stored weights, such as 'bf16' or 'int4'; '' keeps the model's own. The
            activations have the same type if it is fp32, fp16 or bf16; for any other type they are bf16.
        kv_dtype: Number type of cached keys and values; '' selects that of the activations.
        card: Bytes of memory of one device, or None if not given.
        links: Bandwidth between devices in bytes per second and direction, or None if not given.
    """

    prompt: Annotated[
        Count,
        option(
            "tokens of the prompt; k is 1,024",
            metavar="TOKENS",
            reader="token_count",
            label="prompt",
            placeholder="2k",
        ),
    ] = 2048
    contexts: Annotated[
        tuple[Count, ...],
        Meta(min_length=1),
        option(
            "tokens in the cache at a decode step; separate several by commas",
            metavar="TOKENS,...",
            flag="--context",
            reader="tokens",
            joined=True,
            write=join_values,
            label="context",
            placeholder="8k,32k",
        ),
    ] = (8192,)
    batches: Annotated[
        tuple[Count, ...],
        Meta(min_length=1),
        option(
            "sequences generated at the same time; separate several by commas",
            metavar="N,...",
            flag="--batch",
            reader="sizes",
            joined=True,
            write=join_values,
            label="batch",
            placeholder="1,8,32",
        ),
    ] = (1, 8, 32)
    devices: Annotated[
        tuple[Count, ...],
        Meta(min_length=1),
        option(
            "number of devices that share the model; separate several by commas",
            metavar="N,...",
            reader="sizes",
            joined=True,
            write=join_values,
            label="devices",
            placeholder="1",
        ),
    ] = (1,)
    dtype: Annotated[
        str,
        option(
            "type of stored weights, such as bf16, fp8, int4 (default: the model's; several with --sweep)",
            metavar="TYPE",
            label="weight type",
            placeholder="empty: as the model's; or bf16, fp8, int4",
        ),
    ] = ""
    kv_dtype: Annotated[
        str,
        option(
            "type of cached keys and values (default: that of activations; several with --sweep)",
            metavar="TYPE",
            label="KV type",
            placeholder="empty: as activations; or fp8",
        ),
    ] = ""
    card: Annotated[
        Count | None,
        option(
            "memory of a device, such as 80G (default: as the preset of --machine says)",
            metavar="SIZE",
            reader="memory_size",
            write=memory_word,
            label="memory",
            placeholder="empty: as the preset; or 80G",
        ),
    ] = None
    links: Annotated[
        Positive | None,
        option(
            "bytes per second between devices, one way (default: as the preset of --machine says)",
            metavar="RATE",
            reader="rate",
            write="{:.17g}".format,
        ),
    ] = None
