"""Assumptions about huggingface_hub, which transformers uses to download files. Imported on first use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def prevent_downloads() -> Iterator[None]:
    """Prevents downloads inside the block.

    A constructor may otherwise fetch a backbone's weights or settings.

    Assumes: `huggingface_hub.constants.HF_HUB_OFFLINE` is read before each request. The documented
    environment variable is read only once, when the package is imported.
    Seen: huggingface_hub 1.0 to 2.4.
    Otherwise: a request waits for the network, and fails without one.
    """
    from huggingface_hub import constants

    previous = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = previous
