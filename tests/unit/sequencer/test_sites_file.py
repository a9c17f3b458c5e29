"""Files of sites: what they mean, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.errors import SitesError
from motet.sequencer.sites_file import Sites

FILE = """
[ordering]
line = ["S1", "S2", "S3"]
mode = "pairs"
elsewhere = "S2"
lease_s = 4
[sites.S3]
listen = "motet://0.0.0.0:7722"
address = "motet://sites.example:7722"
topics = ["orders", "prices.*"]
[sites.S1]
listen = "127.0.0.1:7720"
topics = ["orders.*"]
[sites.S2]
listen = "127.0.0.1:7721"
"""


def test_a_file_describes_each_site() -> None:
    sites = Sites.parse(FILE)
    config = sites.config("S2")
    config.check()
    assert (config.name, config.sites, config.mode) == ("S2", ("S1", "S2", "S3"), "pairs")
    assert (config.lease_s, config.keep_s) == (4.0, 60.0)
    assert config.addresses["S3"] == "motet://sites.example:7722"
    assert sites.durability == "fsync"
    homes = {topic: config.site_of(topic) for topic in ("orders", "orders.x", "prices.x", "x")}
    assert homes == {"orders": "S3", "orders.x": "S1", "prices.x": "S3", "x": "S2"}
    assert {sites.config(name).identity for name in config.sites} == {config.identity}


def test_each_site_dials_the_lower_ones() -> None:
    sites = Sites.parse(FILE)
    low, high = "motet://127.0.0.1:7720", "motet://127.0.0.1:7721"
    assert sites.config("S1").dials == {}
    assert sites.config("S2").dials == {"S1": low}
    assert sites.config("S3").dials == {"S1": low, "S2": high}
    assert sites.wiring("S3").listen == "motet://0.0.0.0:7722"


PAIRED = FILE.replace("lease_s = 4", 'witness = "127.0.0.1:7730"\npatience_s = 1.5').replace(
    'listen = "127.0.0.1:7720"', 'listen = "127.0.0.1:7720"\nstandby = "127.0.0.1:7725"'
)


def test_a_site_has_a_standby_and_a_witness() -> None:
    sites = Sites.parse(PAIRED)
    one, other = "motet://127.0.0.1:7720", "motet://127.0.0.1:7725"
    first, second = sites.config("S1"), sites.config("S1", second=True)
    for config in (first, second):
        config.check()
        assert (config.witness, config.patience_s) == ("motet://127.0.0.1:7730", 1.5)
        assert config.addresses["S1"] == f"{one},{other}"
        assert config.identity == Sites.parse(FILE).config("S1").identity
    assert (first.address, first.other, first.second) == (one, other, False)
    assert (second.address, second.other, second.second) == (other, one, True)
    assert sites.wiring("S1", second=True).listen == other
    assert sites.config("S2").dials == {"S1": f"{one},{other}"}
    with pytest.raises(SitesError, match=r"site S2 has no standby; add sites\.S2\.standby"):
        sites.config("S2", second=True)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("127.0.0.1:7725", "127.0.0.1:7720", "is taken by S1"),
        ("127.0.0.1:7725", "127.0.0.1:7721", "is taken by"),
        ("127.0.0.1:7725", "127.0.0.1:0", r"sites\.S1\.standby: .*no port to"),
        ("127.0.0.1:7730", "127.0.0.1:7725", r"ordering\.witness: .*7725 is taken by S1"),
        ('witness = "127.0.0.1:7730"', "witness = 1", "ordering.witness: is 1; give text"),
        ('witness = "127.0.0.1:7730"', 'witness = "x://y"', "ordering.witness: .*not an address"),
        ("patience_s = 1.5", "patience_s = 0", "ordering.patience_s: is 0"),
        ("patience_s = 1.5", 'durability = "volatile"', "needs what is on disk"),
    ],
)
def test_what_is_wrong_with_a_standby_is_named(old: str, new: str, text: str) -> None:
    assert old in PAIRED
    with pytest.raises(SitesError, match=rf"here\.toml: .*{text}"):
        Sites.parse(PAIRED.replace(old, new), "here.toml")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("[ordering]", "[ordering", "is not TOML"),
        ('line = ["S1", "S2", "S3"]', "", "ordering.line: is None"),
        ('line = ["S1", "S2", "S3"]', 'line = ["S1", "S2"]', "tables for S3, S1, S2"),
        ('line = ["S1", "S2", "S3"]', 'line = ["S1", "S2", "S3", "S3"]', "each site once"),
        ('mode = "pairs"', 'mode = "other"', "unknown mode 'other'"),
        ('mode = "pairs"', "mode = 1", "ordering.mode: is 1; give text"),
        ('mode = "pairs"', 'moode = "pairs"', "ordering.moode: is not known here"),
        ('elsewhere = "S2"', 'elsewhere = "S9"', r"live at S9, which is not in the line"),
        ("lease_s = 4", "lease_s = 0", "ordering.lease_s: is 0; choose from 0.1"),
        ("lease_s = 4", "lease_s = true", "ordering.lease_s: is True"),
        ("lease_s = 4", 'durability = "none"', "ordering.durability: is 'none'"),
        ('listen = "127.0.0.1:7721"', "", "sites.S2.listen: is missing"),
        (
            'listen = "127.0.0.1:7721"',
            'listen = "nats://x:1"',
            r"sites\.S2\.listen: .*is not an address",
        ),
        ('listen = "127.0.0.1:7721"', 'listen = "127.0.0.1:0"', r"sites\.S2\.listen: .*no port to"),
        ("127.0.0.1:7721", "127.0.0.1:7720", "taken by S1"),
        ('topics = ["orders.*"]', 'topics = ["orders"]', "has two sites"),
        ('topics = ["orders.*"]', 'topics = ["o*s"]', "at the end of a prefix only"),
        ('topics = ["orders.*"]', 'topics = "orders"', "sites.S1.topics: .*a list of names"),
        ('topics = ["orders.*"]', 'topics = [""]', "has not 1 to 200 characters"),
        ('topics = ["orders.*"]', "topcs = []", "sites.S1.topcs: is not known here"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, text: str) -> None:
    assert old in FILE
    with pytest.raises(SitesError, match=rf"here\.toml: .*{text}"):
        Sites.parse(FILE.replace(old, new), "here.toml")


def test_a_name_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SitesError, match="has no site 'S4'; it has S1, S2, S3"):
        Sites.parse(FILE).config("S4")
    with pytest.raises(SitesError, match="cannot be read: No such file"):
        Sites.load(tmp_path / "nothing.toml")
    (tmp_path / "sites.toml").write_text("[sites]")
    with pytest.raises(SitesError, match="ordering: is missing; add a table"):
        Sites.load(tmp_path / "sites.toml")
