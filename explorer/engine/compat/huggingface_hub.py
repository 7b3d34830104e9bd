"""Assumptions about huggingface_hub, by which transformers fetches files; imported on first use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def offline() -> Iterator[None]:
    """Prevents downloads: constructors may fetch a backbone's weights, or a processor's settings.

    Assumes: `huggingface_hub.constants.HF_HUB_OFFLINE` is looked at before each request. The variable of the
    environment, which is documented, is read once, when the package is imported.
    Seen: huggingface_hub 1.0 to 2.4.
    Otherwise: what asks for a file waits for the network, and fails where there is none.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
