"""The table of options for docs/reference/configuration.md: ``python -m fairsched.config.reference`` prints it."""

from __future__ import annotations

from fairsched.config.consumer_options import OPTIONS, Option

_HEADINGS = ("option", "meaning", "default", "environment variable", "command line")


def options_table() -> str:
    """Write the table of options in Markdown.

    Returns
    -------
    str
        A line for each option, below two of headings.
    """
    rows = [_HEADINGS, ("---",) * len(_HEADINGS), *map(_cells, OPTIONS.values())]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cells(option: Option) -> tuple[str, ...]:
    variables = ", ".join(f"`{name}`" for name in option.variables)
    default = option.default_text if option.unset else f"`{option.default_text}`"
    values = option.metavar.replace("|", r"\|")  # even in code, a bare one ends the cell
    return f"`{option.name}`", option.help, default, variables, f"`{option.flag} {values}`"


if __name__ == "__main__":
    print(options_table(), end="")
