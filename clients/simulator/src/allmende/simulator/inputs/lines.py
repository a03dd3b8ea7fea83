"""The lines of a text file, one by one: UTF-8 with or without byte order mark, LF or CRLF. Also cells of a line.

Holds one line at a time. A line that cannot be read is a fault, and the next line follows; only a line without end is the last.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from allmende.simulator.inputs.faults import Cell, Faults

# A job is some hundred characters. sacct rows with node lists and commands grow; beyond this nobody meant a row.
LINE_MOST = 64 * 1024
# Beyond this no end of the line is looked for any more: the file has none, or is no file that ends.
LINE_GIVEN_UP = 64 * 1024 * 1024
# Ten years of a very busy cluster. Ids and jobs are held in memory: about 0.5 KiB each.
LINES_MOST = 10_000_000


def lines(path: Path, faults: Faults, separator: str) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without its end) of the lines that are not blank.

    Codes of faults: `cannot_read`, `line_too_long`, `nul_byte`, `not_utf8`, `too_many_lines`. The separator is only for their
    column.
    """
    try:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(LINE_MOST + 1):
                number += 1
                if number > LINES_MOST:
                    faults.add(number, 0, "", "too_many_lines", f"the file has more than {LINES_MOST:,} lines")
                    return
                if len(raw) > LINE_MOST:
                    faults.add(number, 0, "", "line_too_long", f"the line has more than {LINE_MOST:,} bytes")
                    skipped = 0
                    while raw and not raw.endswith(b"\n"):
                        raw = file.readline(LINE_MOST)
                        skipped += len(raw)
                        if skipped > LINE_GIVEN_UP:
                            return
                    continue
                text = _text(raw, number, faults, separator.encode())
                if text:
                    yield number, text
    except (OSError, ValueError) as error:
        # ValueError: a path with a nul byte.
        faults.add(0, 0, "", "cannot_read", f"the file cannot be read: {getattr(error, 'strerror', None) or error}")


def _text(raw: bytes, number: int, faults: Faults, separator: bytes) -> str:
    """The line as text; empty when it is blank or at fault."""
    if number == 1:
        raw = raw.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in raw:
        column = raw[: raw.index(b"\0")].count(separator) + 1
        faults.add(number, column, "", "nul_byte", "the line has a nul byte; the file is not text, or is damaged")
        return ""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        column = raw[: error.start].count(separator) + 1
        faults.add(number, column, "", "not_utf8", f"byte {error.start + 1} of the line is not UTF-8 text")
        return ""
    text = text.rstrip("\r\n")
    return text if text.strip() else ""


def cells(text: str) -> list[str]:
    """The cells of a line of CSV, without spaces around them. A cell may be in quotes, but never goes on in the next line.

    Raises:
        Cell: a quotation mark that is not closed, or text after it (`bad_quotes`).
    """
    if '"' not in text:
        return [cell.strip() for cell in text.split(",")]
    try:
        return [cell.strip() for cell in next(csv.reader((text,), strict=True, skipinitialspace=True))]
    except csv.Error as error:
        raise Cell("", "bad_quotes", f"the quotation marks of the line do not pair: {error}") from None
