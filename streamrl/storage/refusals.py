"""What an object store's package raises, as one of our errors with the way out, and without a secret in it.

The packages raise what they like: errors of their own, of their HTTP library, of the store's client. They are told by
the built-in type that they inherit, by their names, and by the store's own code in their words.
"""

import os
import re
from collections.abc import Mapping
from typing import Final

from streamrl.errors import ComponentError, ConfigError, StreamRLError

_DENIED: Final = re.compile(
    r"AccessDenied|Forbidden|\b40[13]\b|InvalidAccessKeyId|SignatureDoesNotMatch|NoCredentials|CredentialsError"
    r"|CredentialRetrieval|DefaultCredentials|ClientAuthentication|Unable to locate credentials|ExpiredToken"
    r"|Anonymous caller|Access Denied",
)
_NO_BUCKET: Final = re.compile(
    r"NoSuchBucket|bucket does not exist|ContainerNotFound|container does not exist|InvalidBucketName", re.IGNORECASE
)
_SECRET_NAME: Final = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL|CONNECTION_STRING", re.IGNORECASE)
_QUERY: Final = re.compile(r"\?[^\s'\"<>)]+")
_LONGEST: Final = 400
_SHORTEST_SECRET: Final = 6


def refusal(error: BaseException, what: str, environment: Mapping[str, str] | None = None) -> StreamRLError:
    """Ours in the place of a package's. what: was being done, with the address."""
    variables = os.environ if environment is None else environment
    told = without_secrets(f"{type(error).__name__}: {error}", variables)
    seen = " ".join(f"{type(one).__name__} {one}" for one in _chain(error))
    if _NO_BUCKET.search(seen) or isinstance(error, FileNotFoundError):
        return ConfigError(f"{what} failed: there is no such bucket ({told}); make it, or give another address")
    if isinstance(error, PermissionError) or _DENIED.search(seen):
        way_out = "give the environment credentials with the right to read, write, list and remove there"
        return ConfigError(f"{what} failed: the store does not let us in ({told}); {way_out}")
    return ComponentError(f"{what} failed: {told}")


def without_secrets(text: str, environment: Mapping[str, str]) -> str:
    """On one line, without what the environment holds as a secret, and without the query of a signed address."""
    for name, value in environment.items():
        if len(value) >= _SHORTEST_SECRET and _SECRET_NAME.search(name):
            text = text.replace(value, "***")
    return " ".join(_QUERY.sub("?***", text).split())[:_LONGEST]


def _chain(error: BaseException) -> list[BaseException]:
    """The error with what it came from."""
    found: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in found:
        found.append(one)
        one = one.__cause__ or one.__context__
    return found
