"""What does not fit a message's types, as people say it: `reason has at most 1,000 characters` instead of a decoder's own words.

Pure. Never decides what fits: that is the types' alone, and what is not known here stays as the decoder said it.
"""

import re

import msgspec

from allmende.proto.ids import NAME_PATTERN

_AT = r"(?: - at (?P<at>.+))?\Z"
_BOUND = re.compile(r"Expected `(?P<kind>\w+)`(?P<length> of length)? (?P<sign><=|>=|<|>) (?P<limit>-?\d+)" + _AT)
_FORM = re.compile(r"Expected `str` matching regex (?P<form>.+?)" + _AT)
_KIND = re.compile(r"Expected `(?P<wanted>[\w |]+)`, got `(?P<got>\w+)`" + _AT)
_CHOICE = re.compile(r"Invalid enum value (?P<value>.+?)" + _AT)
_PLACE = re.compile(r"(?P<key>`key` in )?`\$\.?(?P<path>.*)`")
_KINDS = {
    "int": "a whole number",
    "float": "a number with a fraction",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}
_SIGNS = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}
_IS_NO_NAME = "is not a name: up to 63 of a-z, 0-9, - and _, with a letter or digit at both ends"


def in_words(error: msgspec.ValidationError) -> str:
    """One sentence without its end: what does not fit, and what would. Where it stands is a path such as `budgets[0].title`."""
    told = str(error)
    if found := _BOUND.fullmatch(told):
        return f"{_place(found['at'])} {_bound(found)}"
    if (found := _FORM.fullmatch(told)) and found["form"] == repr(NAME_PATTERN):
        return f"{_place(found['at'])} {_IS_NO_NAME}"
    if found := _KIND.fullmatch(told):
        wanted = " or ".join(_KINDS.get(each, each) for each in found["wanted"].split(" | "))
        return f"{_place(found['at'])} must be {wanted}, not {_KINDS.get(found['got'], found['got'])}"
    if found := _CHOICE.fullmatch(told):
        return f"{_place(found['at'])} cannot be {found['value']}"
    return told


def _bound(found: re.Match[str]) -> str:
    limit = int(found["limit"])
    if not found["length"]:
        return f"must be {_SIGNS[found['sign']]} {limit}"
    if found["sign"] == ">=" and limit == 1:
        return "is empty"
    return f"must have {_SIGNS[found['sign']]} {limit:,} {'characters' if found['kind'] == 'str' else 'entries'}"


def _place(at: str | None) -> str:
    found = _PLACE.fullmatch(at or "")
    if found is None or not found["path"]:
        return "it"
    return f"a key of {found['path']}" if found["key"] else found["path"]
