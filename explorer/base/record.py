"""A replacement for `dataclasses` in modules that run at startup, because importing `dataclasses` takes 15
ms.

Printing a header takes no longer than that. Type checkers see the real functions.
"""

from __future__ import annotations

__all__ = ["field", "record"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass as record
    from dataclasses import field
else:

    class field:  # noqa: N801 - called like a function
        """Default of a field: created anew for each record, or set later."""

        def __init__(self, *, default_factory=None, init=True):
            self.make = default_factory
            self.init = init

    def record(kind):
        """Turns the annotated fields of a class into slots and, in their order, into arguments."""
        members = {key: value for key, value in vars(kind).items() if key not in ("__dict__", "__weakref__")}
        names = tuple(kind.__annotations__)
        defaults = {f"_{name}": members.pop(name) for name in names if name in members}

        def begin(self, *args, **kwargs):
            # compile on first use, because compiling is slow and most runs use few of the classes
            record_class.__init__ = _initialiser(names, defaults, "__post_init__" in members)
            record_class.__init__(self, *args, **kwargs)

        record_class = type(kind)(
            kind.__name__, kind.__bases__, {**members, "__slots__": names, "__init__": begin}
        )
        return record_class

    def _initialiser(names, defaults, has_post_init):
        arguments, lines = [], []
        for name in names:
            value = defaults.get(f"_{name}")
            if not isinstance(value, field):
                arguments.append(f"{name}=_{name}" if f"_{name}" in defaults else name)
            elif value.init:
                arguments.append(f"{name}=None")
                lines.append(f"  if {name} is None: {name} = _{name}.make()")
            else:
                continue
            lines.append(f"  self.{name} = {name}")
        if has_post_init:
            lines.append("  self.__post_init__()")
        exec("\n".join([f"def __init__(self, {', '.join(arguments)}):", *lines]), defaults)
        return defaults["__init__"]
