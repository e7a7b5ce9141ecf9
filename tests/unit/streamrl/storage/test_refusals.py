"""What a package raises, as an error of ours: what kind it is, and no secret in it."""

import pytest

from streamrl.errors import ComponentError, ConfigError
from streamrl.storage.refusals import refusal


class ClientError(Exception):
    """As botocore has it: told by its words alone."""


class NoCredentialsError(Exception):
    """The same."""


@pytest.mark.parametrize(
    "error",
    [
        PermissionError("Access Denied"),
        ClientError("An error occurred (403) when calling the HeadBucket operation: Forbidden"),
        ClientError("An error occurred (InvalidAccessKeyId) when calling the PutObject operation"),
        NoCredentialsError("Unable to locate credentials"),
    ],
)
def test_a_store_that_does_not_let_us_in_is_a_mistake_of_the_configuration(error: Exception) -> None:
    told = refusal(error, "writing s3://b/x", {})
    assert isinstance(told, ConfigError)
    assert "does not let us in" in str(told)


@pytest.mark.parametrize(
    "error", [FileNotFoundError("The specified bucket does not exist"), ClientError("(NoSuchBucket) when calling")]
)
def test_a_bucket_that_is_not_there_is_a_mistake_of_the_configuration(error: Exception) -> None:
    told = refusal(error, "writing s3://b/x", {})
    assert isinstance(told, ConfigError)
    assert "no such bucket" in str(told)


def test_anything_else_is_a_store_that_fails() -> None:
    assert isinstance(refusal(ConnectionError("refused"), "writing s3://b/x", {}), ComponentError)


def test_what_the_environment_keeps_secret_and_the_query_of_a_signed_address_are_not_told() -> None:
    environment = {"AWS_SECRET_ACCESS_KEY": "hush-hush", "AZURE_STORAGE_CONNECTION_STRING": "Account=x;Key=abcdef"}
    error = ConnectionError("GET https://b.host/x?X-Amz-Signature=f00 with hush-hush and Account=x;Key=abcdef\nfailed")
    told = str(refusal(error, "reading s3://b/x", environment))
    assert told == "reading s3://b/x failed: ConnectionError: GET https://b.host/x?*** with *** and *** failed"


def test_the_cause_behind_an_error_counts() -> None:
    try:
        try:
            raise ClientError("(AccessDenied) when calling PutObject")
        except ClientError as denied:
            raise OSError("upload failed") from denied
    except OSError as error:
        told = refusal(error, "writing s3://b/x", {})
    assert isinstance(told, ConfigError)
