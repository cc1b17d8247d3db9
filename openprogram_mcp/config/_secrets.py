"""What in a server's configuration is a secret, and what it looks like without. Pure.

The values of ``env`` and ``headers`` and the secrets of ``auth`` are never shown. In a command line and in a URL they
stand among what people must see: there they are known by their names (``--api-key``, ``?token=``) or by their looks.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final
from urllib.parse import unquote, unquote_plus

from ..masking import MASK, MIN_LENGTH

__all__ = [
    "REFERENCE",
    "is_credential",
    "is_secret",
    "masked_url",
    "masked_words",
    "secret_parts",
    "secrets_of_url",
    "secrets_of_words",
]

REFERENCE: Final = re.compile(
    r"""\$\$                                                # a dollar sign
    |   \$\{ (?P<name>[A-Za-z_][A-Za-z0-9_]*)               # ${NAME
             (?: :- (?P<default>(?:[^}$]|\$(?!\{))*) )?     #       :-default
        \}                                                  #                }
    |   \$\{                                                # what begins like one and is none
    """,
    re.VERBOSE,
)

_SECRET_NAME: Final = re.compile(
    r"key(?!word|board)|token(?!i[sz]|s\b|s_)|secret|pass(?!ive|age)|pwd|auth(?!ors?(?![a-z]))|bearer|credential|cookie|session"
    r"|signature|pat\b|dsn|private",
    re.IGNORECASE,
)
_PLAIN_NAMES: Final = frozenset({"path", "home", "tz", "lang", "accept", "content-type", "user-agent", "pythonpath"})
_PLAIN_WORD: Final = re.compile(
    "true|false|yes|no|on|off|null|none|auto|default|debug|info|warn|warning|error|critical|dev|development|prod"
    "|production|staging|test|local|localhost|utf-?8|node|python3?|stdio|https?",
    re.IGNORECASE,
)
_PLAIN_VALUE: Final = re.compile(
    r"""-? \d{1,6} (?: \. \d{1,6} )?                 # a port, a limit, a version
    |   (?: ~ | \.{1,2} )? / [^\s=?&]*               # a path
    |   [A-Za-z]: \\ [^=?&]*                         # a path of Windows
    |   [A-Z][a-z]+ (?: / [A-Z][A-Za-z_]+ ){1,2}     # a time zone
    |   [a-z]{2} _ [A-Z]{2} (?: \. [A-Za-z0-9-]+ )?  # a locale
    |   (?: https?:// )? (?: \d{1,3} (?: \. \d{1,3} ){3} | localhost | (?: [a-z][a-z0-9-]{0,30} \. )+ [a-z]{2,10} )
        (?: : \d{1,5} )? (?: / [^\s@?\#]* )?         # a host, or an address without a user and a query
    """,
    re.VERBOSE,
)
_NAMED: Final = re.compile(r"-{0,2}(?P<name>[\w.-]+)(?:=|:\s*(?!//))(?P<secret>.+)", re.DOTALL)
_FLAG: Final = re.compile(r"(?!--?(?:no|disable|skip)-)--?(?P<name>[\w.-]+)")
_USER: Final = re.compile(r"(?<=://)(?P<secret>[^/?#\s]*)@")
_QUERY: Final = re.compile(r"[?&](?:(?P<name>[^=&#\s]*)=)?(?P<secret>[^&#\s]+)")
_LOOKS: Final = re.compile(
    r"(?P<secret>\b(?:sk-|sk_|pk_|ghp_|gho_|ghs_|github_pat_|glpat-|hf_|npm_|pypi-|xox[abprs]-|AKIA|AIza|eyJ)[\w.-]{12,})"
)


def is_secret(name: str, value: str) -> bool:
    """Whether the value of a variable or a header has to be kept out of the texts that people and models read.

    Masking ``true``, or a time zone, wherever it occurs would spoil those texts and protect nothing: a few shapes are
    taken for harmless unless the name says otherwise. All else is a secret.
    """
    if len(value) < MIN_LENGTH or _PLAIN_WORD.fullmatch(value) or name.lower() in _PLAIN_NAMES:
        return False
    return bool(_SECRET_NAME.search(name)) or not _PLAIN_VALUE.fullmatch(value)


def is_credential(name: str, value: str) -> bool:
    """Whether the value of a variable or a header opens a door: a secret that its name, or its looks, says is one."""
    return is_secret(name, value) and bool(_SECRET_NAME.search(name) or _LOOKS.search(value))


def secret_parts(name: str, value: str, counts: Callable[[str, str], bool] = is_secret) -> Iterator[str]:
    """The secrets in the value of a variable, a header or a flag: what is not a reference to a variable.

    Of ``Bearer …`` the part behind it too; of ``Basic …`` what it says.

    Args:
        name: The name of the variable, the header or the flag.
        value: Its value.
        counts: Says of a name and a text whether the text is one.
    """
    for text in _literals(value):
        scheme, blank, credentials = text.partition(" ")
        if blank and scheme.lower() in {"bearer", "basic", "token", "digest", "apikey"}:
            if not credentials.strip():
                continue
            yield credentials.strip()
            if scheme.lower() == "basic":
                yield from _basic(credentials.strip())
        if counts(name, text):
            yield text


def _basic(credentials: str) -> Iterator[str]:
    try:
        text = base64.b64decode(credentials, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return
    yield text
    yield text.partition(":")[2]


def _literals(text: str) -> Iterator[str]:
    """The parts of a text that stand in the file themselves: around its references, and their defaults."""
    done, literal = 0, ""
    for match in REFERENCE.finditer(text):
        literal += text[done : match.start()]
        done = match.end()
        if match["name"] is None:
            literal += "$" if match[0] == "$$" else match[0]
            continue
        yield literal
        literal = ""
        yield (match["default"] or "").replace("$$", "$")
    yield literal + text[done:]


def _is_reference(text: str) -> bool:
    match = REFERENCE.fullmatch(text)
    return match is not None and match["name"] is not None and match["default"] is None


def masked_url(url: str) -> str:
    """A URL without its user, its password, the values of its query and its fragment."""
    head, mark, fragment = url.partition("#")
    shown = _masked(head, [*_USER.finditer(head), *_QUERY.finditer(head)])
    return f"{shown}{mark}{MASK if fragment else ''}"


def secrets_of_url(url: str, counts: Callable[[str, str], bool] = is_secret) -> Iterator[str]:
    """The secrets of a URL: its password or lone user, and the values of its query, as written and unquoted."""
    for match in _USER.finditer(url):
        user, colon, password = match["secret"].partition(":")
        for part in (password if colon else user, match["secret"]):
            yield from secret_parts("password", unquote(part))
            yield from secret_parts("password", part)
    for match in _QUERY.finditer(url.partition("#")[0]):
        yield from secret_parts(match["name"] or "", unquote_plus(match["secret"]), counts)
        yield from secret_parts(match["name"] or "", match["secret"], counts)


def masked_words(words: Sequence[str], before: str = "") -> list[str]:
    """The words of a command line without the secrets in them."""
    return [_masked(word, _in_word(word, last)) for last, word in zip((before, *words), words, strict=False)]


def secrets_of_words(words: Sequence[str], before: str = "") -> Iterator[str]:
    """The secrets in the words of a command line."""
    for last, word in zip((before, *words), words, strict=False):
        for match in _in_word(word, last):
            yield from secret_parts("secret", match["secret"])


_WHOLE: Final = re.compile(r"(?P<secret>.+)", re.DOTALL)


def _in_word(word: str, before: str) -> list[re.Match[str]]:
    """Where in a word of a command line, which stands behind another one, there are secrets."""
    flag = _FLAG.fullmatch(before)
    named = _NAMED.fullmatch(word)
    found: list[re.Match[str] | None] = []
    if flag and _SECRET_NAME.search(flag["name"]) and not word.startswith("-"):
        found = [_WHOLE.fullmatch(word)]
    elif named and _SECRET_NAME.search(named["name"]):
        found = [named]
    elif "://" in word:
        named_in_query = [one for one in _QUERY.finditer(word) if _SECRET_NAME.search(one["name"] or "")]
        found = [*_USER.finditer(word), *named_in_query]
    return [one for one in (*found, *_LOOKS.finditer(word)) if one]


def _masked(text: str, found: Sequence[re.Match[str]]) -> str:
    pieces: list[str] = []
    done = 0
    for match in sorted(found, key=lambda one: one.span("secret")):
        start, end = match.span("secret")
        if start >= done and not _is_reference(match["secret"]):
            pieces += (text[done:start], MASK)
            done = end
    return "".join((*pieces, text[done:]))
