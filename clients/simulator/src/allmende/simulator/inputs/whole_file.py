"""A small text file as a whole: TOML is read at once, so its size is bounded.

Never reads more than the bound.
"""

from pathlib import Path

from allmende.simulator.inputs.faults import Faults


def read_text(path: Path, most: int, faults: Faults) -> str | None:
    """The text of a file, without a byte order mark; None after a fault.

    Codes: `cannot_read`, `file_too_large`, `nul_byte`, `not_utf8`.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except (OSError, ValueError) as error:
        # ValueError: a path with a nul byte.
        faults.add(0, 0, "", "cannot_read", f"the file cannot be read: {getattr(error, 'strerror', None) or error}")
        return None
    if len(content) > most:
        faults.add(0, 0, "", "file_too_large", f"the file has more than {most:,} bytes")
        return None
    bad = content.find(b"\0")
    if bad >= 0:
        faults.add(*_place(content, bad), "", "nul_byte", "there is a nul byte; the file is not text, or is damaged")
        return None
    try:
        # TOML ends lines with LF or CRLF; what counts lines looks at LF only.
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        faults.add(*_place(content, error.start), "", "not_utf8", "the file is not UTF-8 text from here on")
        return None


def _place(content: bytes, at: int) -> tuple[int, int]:
    return content.count(b"\n", 0, at) + 1, at - content.rfind(b"\n", 0, at)
