"""Serving, what is asked about it: a language model's prompt, context, batch and devices."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from explorer.base.checked import Count, Positive, Spec

"""Of things of which there is at least one."""


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

    prompt: Count = 2048
    contexts: Annotated[tuple[Count, ...], Meta(min_length=1)] = (8192,)
    batches: Annotated[tuple[Count, ...], Meta(min_length=1)] = (1, 8, 32)
    devices: Annotated[tuple[Count, ...], Meta(min_length=1)] = (1,)
    dtype: str = ""
    kv_dtype: str = ""
    card: Count | None = None
    links: Positive | None = None
