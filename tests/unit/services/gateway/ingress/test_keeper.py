"""Whether a run may have an application in Ray Serve, and what it says of one."""

import asyncio

import pytest
from support.runs.probe_parts import Handle

from streamrl.config.schema.run import Config, GatewayConfig, RayConfig
from streamrl.config.schema.serve import ServeConfig
from streamrl.errors import ConfigError
from streamrl.services.gateway.ingress.keeper import ServeKeeper, require_token
from streamrl.services.gateway.ingress.options import deployment_options, http_options, route_prefix, url_of


def config(*, insecure: bool = False, serve: ServeConfig | None = None, address: str = "head:6379") -> Config:
    gateway = GatewayConfig(enabled=True, insecure_bind=insecure, serve=serve or ServeConfig(replicas=2))
    return Config(name="mine", gateway=gateway, ray=RayConfig(address=address))


async def test_a_cluster_without_a_token_is_refused_unless_the_user_means_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(ConfigError, match=r"no token: start its nodes with RAY_AUTH_MODE=token, or set gateway\.ins"):
        await ServeKeeper(config(), lambda *_: None).keep(Handle())
    require_token(config(insecure=True))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    require_token(config())


async def test_a_run_that_asks_for_no_application_has_none_and_says_nothing_of_one() -> None:
    told: list[object] = []
    keeper = ServeKeeper(config(serve=ServeConfig()), lambda *event: told.append(event))
    keeping = asyncio.ensure_future(keeper.keep(Handle()))
    await asyncio.sleep(0)
    assert not keeping.done()
    assert (keeper.status(), told) == ({}, [])
    await keeper.close()
    keeping.cancel()


def test_an_application_lies_at_the_root_of_a_runs_own_ray_and_below_its_name_on_a_cluster() -> None:
    assert [(route_prefix(one), url_of(one)) for one in (config(), config(address="local"))] == [
        ("/mine", "http://127.0.0.1:8000/mine"),
        ("/", "http://127.0.0.1:8000"),
    ]


def test_serve_gives_a_replica_more_than_its_guard_answers() -> None:
    asked = deployment_options(config())
    assert asked["max_ongoing_requests"] > config().gateway.max_requests


def test_autoscaling_takes_the_place_of_a_fixed_number() -> None:
    fixed = deployment_options(config())
    scaled = deployment_options(config(serve=ServeConfig(replicas=1, max_replicas=4, target_ongoing_requests=8.0)))
    assert (fixed["num_replicas"], "autoscaling_config" in fixed) == (2, False)
    assert "num_replicas" not in scaled
    assert scaled["autoscaling_config"] == {"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 8.0}


def test_proxies_listen_where_the_gateway_does_with_its_certificate() -> None:
    tls = GatewayConfig(host="::1", tls_cert="a.pem", tls_key="b.pem", serve=ServeConfig(replicas=1, port=9000))
    one = Config(gateway=tls)
    assert http_options(one) == {"host": "::1", "port": 9000, "ssl_certfile": "a.pem", "ssl_keyfile": "b.pem"}
    assert url_of(one) == "https://[::1]:9000"
