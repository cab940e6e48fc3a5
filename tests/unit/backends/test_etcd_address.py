"""Where etcd is, as it is written in the settings."""

from __future__ import annotations

import pytest

from bellringer.backends.etcd_address import EtcdAddress
from bellringer.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "servers", "prefix"),
    [
        ("etcd://one:2379", ("one:2379",), "bellringer/i7"),
        ("etcd://one,two:2380/shop/prod", ("one:2379", "two:2380"), "shop/prod"),
        ("etcd://[::1]:2379/", ("[::1]:2379",), "bellringer/i7"),
    ],
)
def test_servers_and_prefix_are_read(text: str, servers: tuple[str, ...], prefix: str) -> None:
    assert EtcdAddress.read(text, "i7") == EtcdAddress(servers, prefix)


@pytest.mark.parametrize(
    "text", ["zookeeper", "etcd://", "http://one", "etcd://one:port", "etcd://one,,two", "etcd://:b@c"]
)
def test_what_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="etcd://host:2379,host:2379/prefix"):
        EtcdAddress.read(text, "i7")


def test_tls_and_a_user_are_read() -> None:
    address = EtcdAddress.read("etcds://app:p%40ss@one,two:2380/shop?ca=/ca.pem&cert=/c.pem&key=/c.key", "i7")
    assert address == EtcdAddress(
        ("one:2379", "two:2380"), "shop", "https", "app", "p@ss", "/ca.pem", "/c.pem", "/c.key"
    )
    assert "p@ss" not in repr(address)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("etcds://one?cafile=/x", "unknown option 'cafile'"),
        ("etcd://one?ca=/x", "has TLS options, but no TLS"),
        ("zookeeper://app:hidden@one", "coordination cannot be 'zookeeper://…'"),
    ],
)
def test_options_that_cannot_be_used(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        EtcdAddress.read(text, "i7")
    assert "hidden" not in str(raised.value)


def test_a_missing_file_is_named() -> None:
    address = EtcdAddress.read("etcds://one?ca=/does/not/exist.pem", "i7")
    with pytest.raises(ConfigError, match="BELLRINGER_COORDINATION"):
        address.tls()
