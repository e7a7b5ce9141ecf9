"""What counts as an address on this machine. Pure; nothing is resolved."""

import ipaddress
from urllib.parse import urlsplit


def fault_of_endpoint(endpoint: str) -> str:
    """Why `endpoint` is not spoken to; "" when it is plain HTTP to a port of this machine."""
    form = 'give "http://127.0.0.1:PORT"'
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        return f"not an address ({error}); {form}"
    if parts.scheme != "http" or port is None or parts.path not in ("", "/") or parts.query or parts.username:
        return f"not an address of that form; {form}"
    if not is_loopback(host):
        return (
            f"not on this machine: routes that load weights ask for no password, so only loopback is spoken to; {form}"
        )
    return ""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
