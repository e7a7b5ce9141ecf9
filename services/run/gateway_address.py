"""Where the gateway listens, and what its clients call it."""

import socket
import ssl

from streamrl.config.schema.run import Config, GatewayConfig
from streamrl.errors import ConfigError, ResourceError


def listen(gateway: GatewayConfig, port: int, unread_s: float) -> socket.socket:
    """A socket that listens for clients. unread_s: seconds after which the kernel ends the connection of a client that
    reads nothing of what it was sent; without it, closing one would wait for that client for ever.

    Raises ResourceError when the port is taken or the address is not here.
    """
    host = "127.0.0.1" if gateway.host == "localhost" else gateway.host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By its protocol asyncio knows that small writes are to be sent at once (TCP_NODELAY): else the body of each answer
    # waits 40 ms for a client to acknowledge its head.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux has it; connections take it from the socket that accepts them
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * unread_s))
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        what = f"the gateway cannot listen on {gateway.host}:{port}: {error.strerror}"
        raise ResourceError(f"{what}; set gateway.port to a free one, or to 0") from error
    listener.setblocking(False)
    return listener


def require_free(config: Config) -> None:
    """Raises ResourceError as `listen` does, for what a user has set. To be asked before anything starts: the gateway
    itself is the last part that does, and Ray Serve says of a port that is taken only that it does not get on. On a
    cluster the port of Serve may be Serve's.
    """
    gateway = config.gateway
    if gateway.enabled and gateway.port:
        listen(gateway, gateway.port, unread_s=1.0).close()
    if gateway.serve.enabled and config.ray.address == "local":
        try:
            listen(gateway, gateway.serve.port, unread_s=1.0).close()
        except ResourceError as error:
            what = f"Ray Serve cannot listen on {gateway.host}:{gateway.serve.port}"
            raise ResourceError(f"{what}; set gateway.serve.port to a free one") from error


def check_certificate(gateway: GatewayConfig) -> None:
    """Raises ConfigError for a certificate or key that cannot be read, or that do not belong together."""
    assert gateway.tls_cert is not None, "there is one"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(gateway.tls_cert, gateway.tls_key)
    except OSError as error:  # that of a bad PEM file is one too
        what = f"gateway.tls_cert = {gateway.tls_cert!r} and gateway.tls_key = {gateway.tls_key!r}"
        raise ConfigError(f"{what}: {error.strerror or error}; give PEM files that belong together") from error


def url_of(gateway: GatewayConfig, port: int) -> str:
    """What clients put in front of the routes."""
    host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host
    return f"{'https' if gateway.has_tls else 'http'}://{host}:{port}"
