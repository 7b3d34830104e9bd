"""Messages about the rows of a sweep: rows without figures, and the rows that a stopped sweep keeps."""

from __future__ import annotations

from explorer.process import supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from explorer.base.errors import ModelRow
    from explorer.cli.arguments.command import ParsedArgs


def warn_missing_figures(rows: Sequence[ModelRow], reasons: Mapping[str, str]) -> str:
    """Return a warning about rows without figures and about models in `reasons`, which have none; or ''."""
    clauses = [line if line.startswith(f"{name}:") else f"{name}: {line}" for name, line in reasons.items()]
    failed_count = sum(bool(row.error) and row.model not in reasons for row in rows)
    if failed_count:
        clauses.append(f"{failed_count:,} of {len(rows):,} rows have no figures")
    return "; ".join(clauses)


def announce_kept_rows(args: ParsedArgs) -> None:
    """Set the message that is printed if the sweep is stopped: whether its rows are kept, and where."""
    kept_text = f"the finished rows are in {args.output}; the same command continues from there"
    supervisor.set_stop_message(
        f"stopped; {kept_text if args.output else 'nothing was kept; with -o FILE it would be'}"
    )
