"""The sites that this one has met, each with a small number by which records and columns name it; 0 is this site."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.links.identity import Site

HERE = 0


class Peers:
    """Sites by number and by name."""

    __slots__ = ("_numbers", "sites")

    def __init__(self) -> None:
        self.sites: dict[int, Site] = {}
        self._numbers: dict[str, int] = {}

    def load(self, sites: Mapping[int, Site]) -> None:
        """Those that a durable state has."""
        for number, site in sites.items():
            self.put(number, site)

    def put(self, number: int, site: Site) -> None:
        """There is this site, or it is called otherwise now."""
        if (before := self.sites.get(number)) is not None:
            del self._numbers[before.name]
        self.sites[number] = site
        self._numbers[site.name] = number

    @property
    def here(self) -> str:
        """This site's name; empty until it is told."""
        site = self.sites.get(HERE)
        return "" if site is None else site.name

    def next(self) -> int:
        """The number of the next site that is met."""
        return max(self.sites, default=HERE) + 1

    def number(self, name: str) -> int | None:
        """By which a site is known; None: nobody has met it."""
        return self._numbers.get(name)

    def name(self, number: int) -> str:
        """Of the site with this number."""
        site = self.sites.get(number)
        return "" if site is None else site.name
