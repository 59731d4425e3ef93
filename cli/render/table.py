"""Tables: on a terminal as wide as it is, in a pipe as wide as they are, as CSV and as Markdown.

A table that is too wide for a terminal loses whole columns, the least important first, and says which.
Digits and the ends of names are never cut; a column of names or sentences is broken over lines.
"""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from .console import escape, print_document, print_table, stdout, visible

if TYPE_CHECKING:
    from rich.console import JustifyMethod
    from rich.table import Table as RichTable

_MARGIN, _BETWEEN = 1, 3  # cells a table of ours needs around and between its columns


class TableFormat(StrEnum):
    """Layout of a printed table."""

    TEXT = "text"
    CSV = "csv"
    MARKDOWN = "markdown"


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell."""

    text: str  # what is shown; not yet escaped
    value: str | int | float | None = None  # what CSV holds; None for nothing
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    title: str
    key: str = ""  # its heading in CSV, with the unit of its values; `""` leaves it out there
    of: Callable[[Any], Any] = lambda row: row  # gives the value in a row, or the cell; None is a dash
    text: Callable[[Any], str] = str  # writes a value as it is shown
    is_number: bool = False
    # columns of the highest rank are left out first where the terminal is narrow; those of rank 0 stay
    rank: int = 0
    may_break: bool = False  # whether its text may be broken over lines: names and sentences
    least: int = 16  # cells that it keeps where it is broken
    csv_only: bool = False  # whether it is in CSV only: a part of what another column shows in one cell

    def cell(self, row: Any) -> Cell:
        """Give the cell of a row."""
        value = self.of(row)
        if isinstance(value, Cell):
            return value
        return Cell("-") if value is None else Cell(self.text(value), value)


number = partial(Column, is_number=True)
"""A column of numbers, to the right."""


@dataclass(slots=True)
class Table:
    """Rows under columns."""

    columns: Sequence[Column]
    title: str = ""
    rows: list[tuple[tuple[Cell, ...], str]] = field(default_factory=list)

    def fill(self, rows: Iterable[Any], style_of: Callable[[Any], str] = lambda row: "") -> "Table":
        """Add rows; gives the table."""
        self.rows += [(tuple(column.cell(row) for column in self.columns), style_of(row)) for row in rows]
        return self

    def show(self, form: TableFormat = TableFormat.TEXT) -> None:
        """Print it."""
        match form:
            case TableFormat.TEXT:
                console = stdout()
                shown, left_out = self.for_width(console.width)
                print_table(shown, console)
                if left_out:
                    console.print(
                        f"Left out at {console.width} columns: {', '.join(left_out)}. "
                        "A wider terminal or a pipe shows all.",
                        style="dim",
                    )
            case TableFormat.CSV:
                print_document(self.to_csv())
            case TableFormat.MARKDOWN:
                print_document(self.to_markdown())

    def for_width(self, width: int) -> "tuple[RichTable, tuple[str, ...]]":
        """Lay it out in so many cells; returns the titles of the columns that had to go, too."""
        from rich import box
        from rich.table import Table as RichTable

        columns, left_out = self._kept(width)
        table = RichTable(box=box.SIMPLE_HEAD, title=escape(self.title) or None, title_justify="left")
        for index in columns:
            column = self.columns[index]
            justify: JustifyMethod = "right" if column.is_number else "left"
            table.add_column(
                escape(column.title), justify=justify, overflow="fold", no_wrap=not column.may_break,
                min_width=self._narrowest(index),
            )  # fmt: skip
        for cells, style in self.rows:
            table.add_row(*(_styled(cells[index]) for index in columns), style=style or None)
        return table, tuple(self.columns[index].title for index in left_out)

    def _kept(self, width: int) -> tuple[list[int], list[int]]:
        columns, left_out = self._on_screen(), []
        while self._least(columns) > width:
            candidates = [index for index in columns if self.columns[index].rank]
            if not candidates:
                break
            worst = max(candidates, key=lambda index: (self.columns[index].rank, index))
            columns.remove(worst)
            left_out.append(worst)
        return columns, sorted(left_out)

    def _on_screen(self) -> list[int]:
        return [index for index, column in enumerate(self.columns) if not column.csv_only]

    def _least(self, columns: Sequence[int]) -> int:
        least = [self._narrowest(index) for index in columns]
        return sum(least) + _BETWEEN * len(least) + _MARGIN

    def _narrowest(self, index: int) -> int:
        column, natural = self.columns[index], self._natural(index)
        return min(natural, column.least) if column.may_break else natural

    def _natural(self, index: int) -> int:
        from rich.cells import cell_len

        texts = [self.columns[index].title, *(visible_lines(cells[index].text) for cells, _ in self.rows)]
        return max(cell_len(line) for text in texts for line in text.split("\n"))

    def to_csv(self) -> str:
        """Write it with full precision, one unit a column."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        wanted = [index for index, column in enumerate(self.columns) if column.key]
        writer.writerow([self.columns[index].key for index in wanted])
        for cells, _ in self.rows:
            writer.writerow([_harmless(cells[index].value) for index in wanted])
        return out.getvalue()

    def to_markdown(self) -> str:
        """Write it as it is on the screen, with every column."""
        shown = self._on_screen()
        head = "|".join(_markdown(self.columns[index].title) for index in shown)
        rule = "|".join("--:" if self.columns[index].is_number else "---" for index in shown)
        rows = ["|".join(_markdown(cells[index].text) for index in shown) for cells, _ in self.rows]
        return "".join(f"|{line}|\n" for line in (head, rule, *rows))


def facts_table(rows: Sequence[tuple[str, str]]) -> None:
    """Print names beside values, values broken over lines where the terminal is narrow."""
    from rich.table import Table as RichTable

    table = RichTable(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(escape(name), escape(value))
    print_table(table)


def visible_lines(text: str) -> str:
    """Show control characters, except line breaks that we made."""
    return "\n".join(visible(line) for line in text.split("\n"))


def _styled(cell: Cell) -> str:
    text = "\n".join(escape(line) for line in cell.text.split("\n"))
    return f"[{cell.style}]{text}[/{cell.style}]" if cell.style else text


def _harmless(value: str | int | float | None) -> str | int | float | None:
    """A spreadsheet takes a text that starts with one of these for a formula; names come from strangers."""
    if isinstance(value, str):
        shown = visible(value)
        return f"'{shown}" if shown[:1] in ("=", "+", "-", "@") else shown
    return value


def _markdown(text: str) -> str:
    shown = visible_lines(text).replace("\n", "; ")
    for char in "\\|`":
        shown = shown.replace(char, f"\\{char}")
    return f" {shown.replace('<', '&lt;')} "
