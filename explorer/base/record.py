"""A fast replacement for `dataclasses`, for modules that run at startup.

Importing `dataclasses` takes 15 ms, as long as printing the header of a model. Type checkers see the real
`dataclass` and `field`.
"""

from __future__ import annotations

__all__ = ["field", "record"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass as record
    from dataclasses import field
else:

    class field:  # noqa: N801 - called like a function
        """Default of a field: `default_factory` creates it for each record, or `__post_init__` sets it."""

        def __init__(self, *, default_factory=None, init=True):
            self.default_factory = default_factory
            self.init = init

    def record(kind):
        """Class decorator: turns annotated fields into slots and constructor arguments."""
        members = {key: value for key, value in vars(kind).items() if key not in ("__dict__", "__weakref__")}
        names = tuple(kind.__annotations__)
        defaults = {f"_{name}": members.pop(name) for name in names if name in members}

        def initialize(self, *args, **kwargs):
            # compile on first use, because compiling is slow and most runs use few of the classes
            record_class.__init__ = _build_initializer(names, defaults, "__post_init__" in members)
            record_class.__init__(self, *args, **kwargs)

        record_class = type(kind)(
            kind.__name__, kind.__bases__, {**members, "__slots__": names, "__init__": initialize}
        )
        return record_class

    def _build_initializer(names, defaults, has_post_init):
        """Compiles `__init__` of a record; `defaults` maps '_name' to the default of a field."""
        arguments, lines = [], []
        for name in names:
            value = defaults.get(f"_{name}")
            if not isinstance(value, field):
                arguments.append(f"{name}=_{name}" if f"_{name}" in defaults else name)
            elif value.init:
                arguments.append(f"{name}=None")
                lines.append(f"  if {name} is None: {name} = _{name}.default_factory()")
            else:
                continue
            lines.append(f"  self.{name} = {name}")
        if has_post_init:
            lines.append("  self.__post_init__()")
        exec("\n".join([f"def __init__(self, {', '.join(arguments)}):", *lines]), defaults)
        return defaults["__init__"]
