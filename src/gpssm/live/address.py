"""The address of a Redis server, which may hold a password: no message shows it."""

from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

from gpssm.errors import InvalidInput

VARIABLE = "GPSSM_REDIS_URL"
"""Of the environment: what is on a command line, every user of the machine can see."""
_SCHEMES = ("redis", "rediss", "unix")
_EXAMPLE = "expected one like redis://user:password@host:6379/0"
# What may be set in an address. The others would change what replies look like, or how long is waited for them.
_OPTIONS = (
    "db", "username", "password", "client_name",
    "ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_check_hostname",
)  # fmt: skip


class Address:
    """The address of a Redis server, checked: one that would be read otherwise than it was meant is refused."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            options = parse_qs(parts.query)
        except ValueError:
            raise _bad("cannot be read") from None  # its reason may repeat a part of the password
        if parts.scheme not in _SCHEMES:
            raise InvalidInput(f"redis: the address does not begin with redis://, rediss:// or unix://; {_EXAMPLE}.")
        if parts.fragment or "@" in parts.path + parts.query:
            raise _bad("has a / ? # or @ in the password or after it")
        try:
            parts.port  # noqa: B018 (reads it)
        except ValueError:
            raise _bad("has a port that is not a number") from None
        database = options.get("db", [""])[0] or (parts.path.strip("/") if parts.scheme != "unix" else "")
        if database and not (database.isascii() and database.isdecimal()):
            raise InvalidInput(f"redis: the address has no number of a database after its host; {_EXAMPLE}.")
        for name in options:
            if name not in _OPTIONS:
                raise InvalidInput(
                    f"redis: {name!r} cannot be set in the address; expected none but {', '.join(_OPTIONS)}."
                )
        self.url = url
        hidden = [parts.password, *options.get("password", ()), *options.get("ssl_password", ())]
        self._hidden = {form for text in hidden if text for form in (text, unquote(text), quote(text, safe=""))}

    def __repr__(self) -> str:
        return "<Address>"

    def sentence(self, error: Exception) -> str:
        """What the library's `error` says, on one line and without the password."""
        text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        for secret in sorted(self._hidden, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text


class Route(NamedTuple):
    """Where messages come from and estimates go to."""

    address: Address
    source: str
    target: str
    group: str
    consumer: str


def _bad(what: str) -> InvalidInput:
    return InvalidInput(
        f"redis: the address {what}; {_EXAMPLE}, and in the password %2F for /, %3F for ?, %23 for # and %40 for @."
    )
