"""Serving, what is asked about it: a language model's prompt, context, batch and devices."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from explorer.base.checked import Count, Positive, Spec
from explorer.base.options import option
from explorer.base.units import joined_text, memory_word


class ServingSpec(Spec, frozen=True):
    """A question about serving.

    Attributes:
        prompt: Tokens that are read before the first is written.
        contexts: Tokens in the cache at a step; each stands by itself.
        batches: Sequences that are written at once; each stands by itself.
        devices: How many machines; each number stands by itself.
        dtype: What the weights are stored and the activations worked on in, such as 'bf16' or 'int4'; '' as
            the model has them.
        kv_dtype: What keys and values are cached in; '' as the activations.
        card: Bytes of memory of one device; None where nobody says.
        links: Bytes per second between devices, each way; None where nobody says.
    """

    prompt: Annotated[
        Count,
        option(
            "tokens that are read before the first is written; k is 1,024",
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
            "tokens in the cache at a step, or several between commas",
            metavar="TOKENS,...",
            flag="--context",
            reader="tokens",
            joined=True,
            write=joined_text,
            label="context",
            placeholder="8k,32k",
        ),
    ] = (8192,)
    batches: Annotated[
        tuple[Count, ...],
        Meta(min_length=1),
        option(
            "sequences at once, or several between commas",
            metavar="N,...",
            flag="--batch",
            reader="sizes",
            joined=True,
            write=joined_text,
            label="batch",
            placeholder="1,8,32",
        ),
    ] = (1, 8, 32)
    devices: Annotated[
        tuple[Count, ...],
        Meta(min_length=1),
        option(
            "how many machines share the model, or several between commas",
            metavar="N,...",
            reader="sizes",
            joined=True,
            write=joined_text,
            label="devices",
            placeholder="1",
        ),
    ] = (1,)
    dtype: Annotated[
        str,
        option(
            "what weights are stored in, such as bf16, fp8, int4 (default: as the model's; several: --sweep)",
            metavar="TYPE",
            label="weights in",
            placeholder="as the model's; bf16, fp8, int4",
        ),
    ] = ""
    kv_dtype: Annotated[
        str,
        option(
            "what keys and values are cached in (default: as activations; several: --sweep)",
            metavar="TYPE",
            label="KV in",
            placeholder="as activations; fp8",
        ),
    ] = ""
    card: Annotated[
        Count | None,
        option(
            "memory of a device, such as 80G (default: that of a preset)",
            metavar="SIZE",
            reader="card",
            write=memory_word,
            label="memory",
            placeholder="of the machine; 80G",
        ),
    ] = None
    links: Annotated[
        Positive | None,
        option(
            "bytes per second between devices, one way (default: those of a preset)",
            metavar="RATE",
            reader="rate",
            write="{:.17g}".format,
        ),
    ] = None
