"""Input decoder: the text that a terminal sends, without escapes in pasted text."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable

_PASTE_BEGIN, _PASTE_END = "\x1b[200~", "\x1b[201~"
_LINE_SPACE = str.maketrans("", "", "\r\n\t")


class InputDecoder:
    """Decodes the terminal's input. Bytes that are not UTF-8 are replaced, and a paste has no escapes.

    Textual takes control sequences in pasted text for keys.

    Args:
        expect: Called with the number of characters, before they are handled, where one read contains text
            alone. It is called in the thread that reads the terminal.
    """

    def __init__(self, expect: Callable[[int], object] | None = None) -> None:
        self._expect = expect
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._is_paste = False
        self._before = self._unfinished = ""

    def decode(self, data: bytes, final: bool = False) -> str:
        """Return the text of the next bytes. An unfinished end of a paste waits for the next ones."""
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
                # the first bytes of the mark may have come earlier
                known = self._before[1 - len(_PASTE_BEGIN) :]
                typed, begin, _ = (known + text).partition(_PASTE_BEGIN)
                size = len(typed) + len(begin) - len(known)
                parts.append(text[:size])
                self._before = "" if begin else known + text
                if self._expect is not None and not begin and text.translate(_LINE_SPACE).isprintable():
                    self._expect(len(text))
                self._is_paste, text = bool(begin), text[size:]
        return "".join(parts)
