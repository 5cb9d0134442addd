"""The faults of endpoints.

Errors of every library are translated to `Fault`, which the policy judges.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from pe.errors import APIError

if TYPE_CHECKING:
    import httpx2

LONGEST = 300
"""Most characters of a server's words that a message keeps."""

LOOKED_AT = 2**16
"""Most bytes of an error's body that are examined."""

_HEALS = frozenset({408, 409, 424, 429})  # 424: a model that failed, at Bedrock
_FINAL_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_OF_ACCOUNT = re.compile(
    r"""(?ix)
    \b(?:credit\ balance|insufficient\ (?:quota|balance|funds|credits?)|budget\ (?:has\ been|was|is)\ exceeded
           |exceeded\ ?budget|over\ budget|billing\ (?:hard\ )?limit|usage\ limits?|current\ quota|arrearage|overdue
           |api[\ -]?key|access\ token|authenticat\w+|unauthori[sz]ed|not\ authori[sz]ed|permission
           |location\ is\ not\ supported)\b
    |\b(?:account|organi[sz]ation|subscription|project)\b .{0,40}
        \b(?:disabled|deactivated|suspended|inactive|not\ active|terminated|good\ standing)\b
    |\b(?:model|deployment|engine)\b .{0,80}?
        \b(?:not\ exist|not\ found|not\ available|no\ longer|decommissioned|deprecated|retired)\b
    |\b(?:invalid|unknown|no\ such|not\ a\ valid)\ (?:model|deployment)\b|model\ identifier\ is\ invalid"""  # noqa: E501
)
"""Words that say: the account or the model is at fault, so all later requests fail, too. With
status 400 they come from OpenAI (images), Anthropic, Google, Groq, OpenRouter and LiteLLM."""
_REFUSAL_CODE = re.compile(
    "moderation_blocked|content_(moderation|policy(_violation)?|filter(ed)?)|contentfilter|data_inspection_failed|responsibleaipolicyviolation|responsible_ai_policy_violation"
)
_BLOCKED = re.compile(
    r"""\b(?:block\w*|reject\w*|flagged|filtered|denied|withheld|limited|violat\w+|failed(?!\ to))\b .{0,120}?
        \b(?:safety|moderation|nsfw|sensitive|disallowed|our\ polic|responsible\ ai|usage\ (?:polic|guideline)
           |content[\ _-]?(?:polic|filter|management|moderation|checker))
    |\b(?:prompt|input|output|image|content|text|request)s?\b [^.]{0,40} \b(?:flagged|moderated)\b
    |\b(?:contain\w*|inclusion\ of)\b .{0,40}? \b(?:nsfw|sensitive|inappropriate|prohibited|filtered\ words)\b
    |\bnsfw\b [^.]{0,40} (?<!not\ )\b(?:detected|found)\b
    |\bcontent\ exists\ risk\b|\bmoderation\ failed\b|content_?policy_?violation|moderation_blocked""",  # noqa: E501
    re.IGNORECASE | re.VERBOSE,
)
"""Words that say: this content was withheld."""
_OF_A_SETTING = re.compile(
    r"""\b(?:parameter|field|value|option|propert|unknown|unexpected|unsupported|unrecogni[sz]ed|required|missing
           |must\ be|should\ be|permission|access\ denied|not\ (?:supported|permitted|available|enabled|a\ valid))
    |\b(?:account|resource|subscription|organi[sz]ation|api\ key|deployment)\ (?:has|was|is)\b""",  # noqa: E501
    re.IGNORECASE | re.VERBOSE,
)
"""Words that say: the request or the account is at fault, so the next request fails, too."""
_STREAMS = ("data: ", "data:{", "event:")
_SAYING = ("message", "detail", "error", "errors", "title")
_NOT_SHOWN = re.compile(
    "<(?:script|style).*?(?:</(?:script|style)[^<>]*>|\\Z)|<[^<>]*>", re.IGNORECASE | re.DOTALL
)
"""Matches tags of HTML, scripts and styles, in time that is linear in a page's length."""


class Fault(Exception):
    """The fault of a request that brought no result.

    Attributes:
        words: the server's own words, if it sent any, else ours; one line of at most LONGEST
            characters.
        status: the HTTP status; None: no whole answer came (no connection, time-out, an answer that
            broke off).
        code: the server's code for the error, in lower case; empty if the server sent none.
        wait: seconds that the server asked to wait; None: it asked for no wait.
        free: true if asking again costs nothing, as with a look at a job.
        bad_certificate: true if the server's certificate is not trusted.
    """

    def __init__(
        self, words: str, status: int | None = None, code: str = "", wait: float | None = None
    ) -> None:
        super().__init__(words)
        self.words = one_line(words)
        self.status = status
        self.code = code.lower()
        self.wait = wait
        self.bad_certificate = False
        self.free = False
        self._in_answer = False

    @classmethod
    def of(cls, response: httpx2.Response) -> Fault:
        """Make a fault of a response that has an error status or is of the wrong kind."""
        return cls.of_response(response.status_code, response.headers, response.content)

    @classmethod
    def of_response(cls, status: int, headers: Mapping[str, str], body: str | bytes) -> Fault:
        """Make a fault of the parts of such a response."""
        if isinstance(body, bytes):
            body = body[:LOOKED_AT].decode("utf-8", "replace")
        words, code = body_words(body[:LOOKED_AT])
        if status < 400 and body.lstrip().startswith(_STREAMS):
            words = f"the server answered with an event stream (set `stream` to false): {words}"
        wait = retry_after(headers)
        if wait is None:
            wait = _retry_info(body)
        return cls(words or "no words", status, code, wait)

    @classmethod
    def of_object(cls, answer: Mapping[str, Any], lacks: str) -> Fault:
        """Make a fault of a whole answer without the result.

        Its words are `lacks`, then the server's own, if there are any.
        """
        words = f"it has the keys {sorted(map(str, answer))[:5]}"
        code = ""
        if any(answer.get(key) for key in _SAYING):
            words, code = _json_words(answer)
        fault = cls(f"{lacks}: {words}", 200, code)
        fault._in_answer = True
        return fault

    @classmethod
    def of_transport(cls, error: BaseException) -> Fault:
        """Make a fault of an error of httpx2.

        There was no connection, a time-out, or an answer that broke off.
        """
        fault = cls(f"{type(error).__name__}: {error}")
        fault.bad_certificate = _blames_certificate(error)
        return fault

    @property
    def is_throttle(self) -> bool:
        """True if the endpoint says that too much is asked of it at once."""
        return self.status == 429 and self.code not in _FINAL_CODES

    @property
    def whole(self) -> bool:
        """True if a whole answer came that is not the result. The answer may have been billed."""
        return self.status is not None and self.status < 300

    @property
    def rejects(self) -> bool:
        """True if the request may be at fault, and not the account.

        A prompt may be too long for the model, for example.
        """
        of_account = self.code in _FINAL_CODES or _OF_ACCOUNT.search(self.words)
        return self.status in (400, 413, 422) and not of_account

    @property
    def heals(self) -> bool:
        """True if the same request may succeed later."""
        if self.code in _FINAL_CODES or self.bad_certificate or self.refusal:
            return False
        if self.whole:
            return self.free
        return self.status is None or self.status in _HEALS or self.status >= 500

    @property
    def refusal(self) -> bool:
        """True if a content filter withheld this sample.

        False if the request or the account is at fault.
        """
        if self.status not in (400, 403, 422, 451) and not self._in_answer:
            return False
        is_block = _BLOCKED.search(self.words) and not _OF_A_SETTING.search(self.words)
        return bool(is_block or _REFUSAL_CODE.fullmatch(self.code))

    def __str__(self) -> str:
        status = "" if self.status is None else f"HTTP {self.status}: "
        return f"{status}{self.words}"


class Rejected(APIError):
    """A request that never succeeds. The run stops, and can be resumed when the cause is mended."""


def body_words(text: str) -> tuple[str, str]:
    """Return the words and the code of an error's body.

    It may have OpenAI's shape, or be other JSON, HTML or plain text.
    """
    try:
        return _json_words(json.loads(text))
    except (ValueError, RecursionError):
        return one_line(_NOT_SHOWN.sub(" ", text)), ""


def _json_words(content: Any) -> tuple[str, str]:
    if isinstance(content, dict) and isinstance(content.get("error"), dict):
        content = content["error"]
    if not isinstance(content, dict):
        return one_line(content if isinstance(content, str) else json.dumps(content)), ""
    value = next((content[key] for key in _SAYING if content.get(key)), content)
    words = value if isinstance(value, str) else json.dumps(value)
    each = [content, content.get("innererror"), content.get("inner_error")]  # Azure's
    each += value[:1] if isinstance(value, list) else []  # FastAPI's, and so fal's
    codes = []
    for one in each:
        found = one if isinstance(one, dict) else {}
        codes += [str(found[key]).lower() for key in ("code", "type", "name") if found.get(key)]
    # A refusal may hide in an inner error, behind a code of the request.
    refusals = filter(_REFUSAL_CODE.fullmatch, codes)
    return one_line(words), next(refusals, codes[0] if codes else "")


def one_line(text: str) -> str:
    """Return `text` in one printable line of at most LONGEST characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[:LOOKED_AT]).split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def _blames_certificate(error: BaseException) -> bool:
    """True if an error was caused by a certificate that is not trusted."""
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, ssl.SSLCertVerificationError):
        behind = behind.__cause__ or behind.__context__  # which httpcore2 hides
    return behind is not None


def without(secret: str, words: str) -> str:
    """Return `words` with a secret redacted.

    What is left of it is redacted, too, where `one_line` cut the words off within it.
    """
    words = words.replace(secret, "[key]")
    for size in range(len(secret) - 1, 3, -1):
        if words.endswith(f"{secret[:size]}…"):
            return f"{words[: -size - 1]}[key]…"
    return words


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the seconds that a response asks to wait.

    They stand in Retry-After-Ms, or in Retry-After, as seconds or as a date.
    """
    fields = {name.lower(): value.strip() for name, value in headers.items()}
    milliseconds = _number(fields.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = fields.get("retry-after")
    seconds = _number(value)
    if seconds is not None or value is None:
        return seconds
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max((date - (now or datetime.now(UTC))).total_seconds(), 0.0)


def _retry_info(text: str) -> float | None:
    """Return the seconds that an error's body asks to wait, if any.

    They are read as in Google's errors (google.rpc.RetryInfo).
    """
    match = re.search(r'"retryDelay"\s*:\s*"([\d.]{1,19})s"', text)
    return _number(match[1]) if match else None


def _number(value: str | None) -> float | None:
    """Return the value of a plain decimal number such as 12 or 0.5, at most 1e9.

    Return None for any other text.
    """
    if value and re.fullmatch(r"\d{1,19}(\.\d{1,9})?", value):
        return min(float(value), 1e9)
    return None
