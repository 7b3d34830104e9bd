"""Input decoder: decodes the bytes that a terminal sends, and removes escape characters from pasted text."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable

_PASTE_BEGIN, _PASTE_END = "\x1b[200~", "\x1b[201~"
_LINE_SPACE = str.maketrans("", "", "\r\n\t")


class InputDecoder:
    """Decodes the terminal's input. Invalid UTF-8 is replaced, and escape characters in a paste are removed.

    Without this, Textual would handle control sequences in pasted text as keys.

    Args:
        expect: Function that gets the number of characters of a read that contains only text, before they are
            handled, or None. It is called in the thread that reads the terminal.
    """

    def __init__(self, expect: Callable[[int], object] | None = None) -> None:
        self._expect = expect
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._is_paste = False
        self._before = self._unfinished = ""

    def decode(self, data: bytes, final: bool = False) -> str:
        """Return the text of the next bytes. The start of an end mark is kept until the next call."""
        text, parts = self._unfinished + self._decoder.decode(data, final), []
        self._unfinished = ""
        while text:
            if self._is_paste:
                pasted, end, text = text.partition(_PASTE_END)
                start = pasted.rfind("\x1b")
                if not end and start >= 0 and _PASTE_END.startswith(pasted[start:]) and not final:
                    pasted, self._unfinished = pasted[:start], pasted[start:]
                parts += [pasted.replace("\x1b", ""), end]
                self._is_paste = not end
            else:
                # the begin mark may have started in an earlier call
                earlier = self._before[1 - len(_PASTE_BEGIN) :]
                typed, begin, _ = (earlier + text).partition(_PASTE_BEGIN)
                size = len(typed) + len(begin) - len(earlier)
                parts.append(text[:size])
                self._before = "" if begin else earlier + text
                if self._expect is not None and not begin and text.translate(_LINE_SPACE).isprintable():
                    self._expect(len(text))
                self._is_paste, text = bool(begin), text[size:]
        return "".join(parts)
