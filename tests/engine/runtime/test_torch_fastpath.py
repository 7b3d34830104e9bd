"""torch's fast path of attention is as it was, whoever asked to do without it and in whatever order."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from explorer.engine.runtime.torch_fastpath import disable_fastpath  # noqa: E402


@pytest.mark.parametrize("enabled", [True, False])
def test_two_users_that_overlap_leave_the_fast_path_as_they_found_it(enabled: bool) -> None:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        first, second = disable_fastpath(), disable_fastpath()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert not torch.backends.mha.get_fastpath_enabled(), "the second still needs it off"
        second.__exit__(None, None, None)
        assert torch.backends.mha.get_fastpath_enabled() is enabled
        with pytest.raises(ValueError, match="mine"), disable_fastpath():
            raise ValueError("mine")
        assert torch.backends.mha.get_fastpath_enabled() is enabled
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
