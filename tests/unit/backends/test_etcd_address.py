"""Where etcd is, as it is written in the settings."""

from __future__ import annotations

import pytest

from bellringer.backends.etcd import EtcdAddress
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
    "text", ["zookeeper", "etcd://", "http://one", "etcd://one:port", "etcd://one,,two", "etcd://a:b@c"]
)
def test_what_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="etcd://host:2379,host:2379/prefix"):
        EtcdAddress.read(text, "i7")
