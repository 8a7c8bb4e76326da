"""Proxies: an address counts only as far as those wrote it whom the settings name."""

from typing import Any

import pytest

from towline.gateway.proxies import Proxies, ProxyHeader, trusted

PROXY, CDN, EVIL = "10.0.0.1", "203.0.113.7", "198.51.100.9"


def client(
    *headers: str,
    peer: str | None = PROXY,
    ours: str = "10.0.0.0/8, 203.0.113.7",
    header: ProxyHeader = "x-forwarded-for",
) -> Any:
    scope = {
        "type": "http",
        "client": None if peer is None else (peer, 5),
        "headers": [(b"host", b"x"), *((header.encode(), text.encode()) for text in headers)],
    }
    found: Any = Proxies(trusted(ours), header).client_of(scope)
    return found and found[0]


def test_nobody_who_is_not_a_proxy_of_ours_names_an_address() -> None:
    assert client("192.0.2.1", peer=EVIL) == EVIL
    assert client("192.0.2.1", ours="") == PROXY
    assert client("192.0.2.1", peer=None) is None


def test_the_first_from_the_right_that_is_none_of_ours() -> None:
    assert client("192.0.2.1") == "192.0.2.1"
    assert client(f"192.0.2.66, 192.0.2.1, {CDN}, 10.9.9.9") == "192.0.2.1"
    assert client("192.0.2.66", f"192.0.2.1,{CDN}") == "192.0.2.1"  # two lines are one list
    assert client(f"{CDN}, 10.9.9.9") == CDN  # all are ours: the farthest


def test_what_is_no_address_ends_the_search() -> None:
    assert client() == PROXY
    assert client("") == PROXY
    assert client("192.0.2.1, unknown") == PROXY
    assert client(f"192.0.2.1, what?, {CDN}") == CDN
    assert client("192.0.2.1, ") == PROXY


def test_ports_and_the_ways_to_write_an_address() -> None:
    assert client("192.0.2.1:4711") == "192.0.2.1"
    assert client("[2001:db8::1]:4711") == "2001:db8::1"
    assert client("2001:db8::1") == "2001:db8::1"
    assert client("::ffff:192.0.2.1") == "192.0.2.1"
    assert client("192.0.2.1", peer="::ffff:10.0.0.1") == "192.0.2.1"


def test_forwarded_is_read_instead_if_the_settings_say_so() -> None:
    def named(text: str) -> Any:
        return client(text, header="forwarded")

    assert named("for=192.0.2.1") == "192.0.2.1"
    assert named('For="[2001:db8::1]:4711";proto=https;by=10.0.0.1') == "2001:db8::1"
    assert named(f'for=192.0.2.66, proto=http;for="192.0.2.1:80", for={CDN}') == "192.0.2.1"
    assert named('for=192.0.2.66;host="a, for=192.0.2.77", for=10.2.2.2') == "192.0.2.66"
    assert named('for=192.0.2.66;host="a;for=192.0.2.77"') == "192.0.2.66"
    assert named("for=_hidden, for=10.2.2.2") == "10.2.2.2"
    assert named("for=192.0.2.1;for=192.0.2.2") == PROXY


def test_only_the_header_that_the_proxies_write_is_read() -> None:
    proxies = Proxies(trusted(PROXY), "x-forwarded-for")
    scope = {"type": "http", "client": (PROXY, 1), "headers": [(b"forwarded", b"for=192.0.2.1")]}
    assert proxies.client_of(scope) == (PROXY, 1)


def test_a_unix_socket_can_be_a_proxy() -> None:
    assert client("192.0.2.1", peer=None, ours="unix") == "192.0.2.1"
    assert client("192.0.2.1", peer="", ours="unix") == "192.0.2.1"


def test_a_list_without_end_is_read_from_its_end() -> None:
    assert client(",".join(["10.1.1.1"] * 5000 + ["192.0.2.1"] + ["10.2.2.2"] * 63)) == "192.0.2.1"
    assert client(",".join(["192.0.2.1"] + ["10.2.2.2"] * 5000)) == "10.2.2.2"


@pytest.mark.parametrize("text", ["proxy.example", "10.0.0.1/8", "10.0.0.0/33", "*", "unix, x"])
def test_what_is_no_proxy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        trusted(text)
