"""The budget file: a tree of budgets as people write it, in TOML. docs/guides/budget-file.md shows it.

Pure: text in, budgets or faults out, and back without loss. Never opens a file; comments are not kept.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from allmende.proto.budget import Budget, ClusterShare
from allmende.proto.message import Problem
from allmende.proto.tree import paths
from allmende.proto.tree_rules import RESERVED_NAMES, quote, validate
from allmende.proto.units import Ppm, format_share, parse_share

# 10,000 budgets with long titles and a few people each are about 3 MB; more is not a budget file.
MAX_FILE_BYTES = 8 * 1024 * 1024
# A piece of an upload must fit 64 KiB with its reason (up to 4,000 bytes) and its other fields.
PIECE_BYTES = 56 * 1024
# `validate` looks at budgets only; below this many levels of tables nobody has meant a budget any more.
_MAX_NESTING = 64

_encoder = msgspec.json.Encoder()


class TreeFile(NamedTuple):
    """What a budget file says: the budgets in the order of the file, or every fault (then the budgets are not to be used)."""

    budgets: tuple[Budget, ...]
    faults: tuple[Problem, ...]


class _Literal(str):
    """A number with a point, as it stands in the file: a float would not be exact."""

    __slots__ = ()


def read_tree(content: bytes | str) -> TreeFile:
    """Read a budget file and hold it against every rule of `tree_rules.validate`.

    Faults of writing carry a place: the line and column where TOML itself is broken (`malformed_toml`), else the table. Codes
    besides those of `validate`: `file_too_large`, `not_utf8`, `malformed_toml`, `nested_too_deep`, `unknown_key`, `wrong_type`,
    `invalid_share`. A share that cannot be read hides no other fault.
    """
    if len(content) > MAX_FILE_BYTES:
        return _broken("file_too_large", f"the file has {len(content)} bytes; at most {MAX_FILE_BYTES} are read")
    try:
        text = content if isinstance(content, str) else content.decode()
        document = tomllib.loads(text.removeprefix("\ufeff"), parse_float=_Literal)
    except UnicodeDecodeError as error:
        return _broken("not_utf8", f"the file is not UTF-8 text: byte {error.start + 1} cannot be read")
    except ValueError as error:
        # TOML's own fault, or a whole number of more digits than Python reads.
        return _broken("malformed_toml", f"the file is not TOML: {error}")
    except RecursionError:
        return _broken("nested_too_deep", "the file is nested too deep to read")
    faults: list[Problem] = []
    budgets = tuple(_walk(document, faults))
    return TreeFile(budgets, (*faults, *validate(budgets)))


def write_tree(budgets: Iterable[Budget]) -> str:
    """Write a valid tree as a budget file: each budget before its children, these in the order given.

    Raises:
        ValueError: the tree is not valid; the sentence says why.
    """
    rows = tuple(budgets)
    if faults := validate(rows):
        raise ValueError("; ".join(fault.sentence for fault in faults))
    trails = paths({row.budget: row for row in rows})
    # A path of positions sorts parents before children and keeps brothers in the order given.
    position = {row.budget: number for number, row in enumerate(rows)}
    ordered = sorted(rows, key=lambda row: tuple(position[step] for step in trails[row.budget]))
    return "\n".join("".join(_table(row, trails[row.budget])) for row in ordered)


def split(budgets: Iterable[Budget]) -> Iterator[tuple[Budget, ...]]:
    """The budgets in pieces that fit an upload each (`budget.UploadPiece`); at least one piece, which may be empty."""
    piece: list[Budget] = []
    size = 0
    for row in budgets:
        length = len(_encoder.encode(row)) + 1
        if piece and (size + length > PIECE_BYTES or len(piece) == 1_000):
            yield tuple(piece)
            piece, size = [], 0
        piece.append(row)
        size += length
    yield tuple(piece)


def _broken(code: str, sentence: str) -> TreeFile:
    return TreeFile((), (Problem(code=code, sentence=sentence[:1_000]),))


# ---------------------------------------------------------------------------------------------------------------- reading


def _walk(document: Mapping[str, object], faults: list[Problem]) -> Iterator[Budget]:
    for key, value in document.items():
        if not isinstance(value, dict):
            faults.append(_unknown(key, "at the top of the file; a budget is a table, such as [lab]"))
    # A stack, because a file may nest deeper than Python recurses. Reversed, so that the file's order is kept.
    waiting: list[tuple[tuple[str, ...], dict[str, object]]] = [
        ((key,), value) for key, value in reversed(list(document.items())) if isinstance(value, dict)
    ]
    while waiting:
        trail, table = waiting.pop()
        if len(trail) > _MAX_NESTING:
            faults.append(Problem(code="nested_too_deep", sentence=f"{_place(trail)} lies more than {_MAX_NESTING} tables deep"))
            continue
        yield _budget(trail, table, faults)
        for key, value in reversed(list(table.items())):
            if isinstance(value, dict) and key not in RESERVED_NAMES:
                waiting.append(((*trail, key), value))


def _budget(trail: tuple[str, ...], table: Mapping[str, object], faults: list[Problem]) -> Budget:
    place = _place(trail)
    for key, value in table.items():
        if key in RESERVED_NAMES or isinstance(value, dict):
            continue
        if isinstance(value, list) and any(isinstance(each, dict) for each in value):
            faults.append(_wrong(f"{place}: {quote(key)} is a list of tables; a budget is one table, [{'.'.join((*trail, key))}]"))
        else:
            faults.append(
                _unknown(
                    key, f"in {place}; known are share, cluster_shares, title, managers, members, and tables for the budgets below"
                )
            )
    return Budget(
        budget=trail[-1],
        parent=trail[-2] if len(trail) > 1 else None,
        title=_title(place, table.get("title", ""), faults),
        share_ppm=_share(trail, table["share"], faults) if "share" in table else None,
        managers=_names(place, "managers", table.get("managers", []), faults),
        members=_names(place, "members", table.get("members", []), faults),
        cluster_shares=_cluster_shares(trail, table.get("cluster_shares", {}), faults),
    )


def _cluster_shares(trail: tuple[str, ...], value: object, faults: list[Problem]) -> tuple[ClusterShare, ...] | UnsetType:
    if not isinstance(value, dict):
        example = 'cluster_shares = { jupiter = "20%" }'
        faults.append(_wrong(f"{_place(trail)}: cluster_shares must be a table of clusters, such as {example}"))
        return UNSET
    # In the order of the clusters' names, so that a file written otherwise is no other tree.
    shares = ((cluster, _share((*trail, "cluster_shares", cluster), said, faults)) for cluster, said in sorted(value.items()))
    return tuple(ClusterShare(cluster=cluster, share_ppm=share or 0) for cluster, share in shares) or UNSET


def _title(place: str, value: object, faults: list[Problem]) -> str:
    if isinstance(value, str) and not isinstance(value, _Literal):
        return value
    faults.append(_wrong(f'{place}: title must be text in quotes, such as title = "Vision"'))
    return ""


def _share(trail: tuple[str, ...], value: object, faults: list[Problem]) -> Ppm | None:
    """The share in ppm. An unreadable one counts as 0, not as unset: then the sums around it accuse nobody who is innocent."""
    place = _place(trail)
    if isinstance(value, int) and not isinstance(value, bool):
        # Python reads hexadecimal numbers of any length, but refuses to write one of more than 4,300 decimal digits.
        number = str(value) if value.bit_length() < 4_300 else hex(value)
        sentence = f'{place}: share = {quote(number)[1:-1]} is ambiguous; write share = "35%" or share = "0.35"'
        faults.append(Problem(code="invalid_share", sentence=sentence))
    elif not isinstance(value, str):
        faults.append(_wrong(f'{place}: share must be text in quotes, such as share = "35%"'))
    else:
        try:
            return parse_share(value)
        except ValueError:
            sentence = f'{place}: {quote(value)} is not a share between 0% and 100%; write for example "35%", "2.5%" or "0.35"'
            faults.append(Problem(code="invalid_share", sentence=sentence))
    # The root is in no sum, and has a rule of its own that a made-up 0 would break.
    return 0 if len(trail) > 1 else None


def _names(place: str, key: str, value: object, faults: list[Problem]) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(each, str) and not isinstance(each, _Literal) for each in value):
        return tuple(value)
    faults.append(_wrong(f'{place}: {key} must be a list of names in quotes, such as {key} = ["ada", "grace"]'))
    return ()


def _unknown(key: str, where: str) -> Problem:
    return Problem(code="unknown_key", sentence=f"unknown key {quote(key)} {where}")


def _wrong(sentence: str) -> Problem:
    return Problem(code="wrong_type", sentence=sentence[:1_000])


def _place(trail: tuple[str, ...]) -> str:
    whole = ".".join(trail)
    return f"[{whole}]" if len(whole) <= 300 else f"[...{whole[-300:]}]"


# ---------------------------------------------------------------------------------------------------------------- writing


def _table(row: Budget, trail: tuple[str, ...]) -> Iterator[str]:
    # Names are bare keys in TOML as they are, so only texts need quotes.
    yield f"[{'.'.join(trail)}]\n"
    if row.title:
        yield f"title = {_text(row.title)}\n"
    if row.share_ppm is not None:
        yield f'share = "{format_share(row.share_ppm)}"\n'
    if own := sorted(row.cluster_shares or (), key=lambda each: each.cluster):
        pairs = ", ".join(f'{each.cluster} = "{format_share(each.share_ppm)}"' for each in own)
        yield f"cluster_shares = {{ {pairs} }}\n"
    for key, people in (("managers", row.managers), ("members", row.members)):
        if people:
            yield f"{key} = [{', '.join(map(_text, people))}]\n"


def _text(text: str) -> str:
    """A basic string of TOML 1.0: quotation mark, backslash and every control character escaped."""
    escaped = (
        f"\\u{ord(sign):04X}" if ord(sign) < 0x20 or ord(sign) == 0x7F else f"\\{sign}" if sign in '"\\' else sign for sign in text
    )
    return f'"{"".join(escaped)}"'
