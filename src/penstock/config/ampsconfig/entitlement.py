"""`Entitlement`: a module that allows everything needs no setting; what another decides is not known here."""

from __future__ import annotations

from penstock.config.ampsconfig.reading import stray
from penstock.config.foreign.converted import Book, Verdict
from penstock.config.foreign.document import Element

ALLOWS_ALL = "amps-default-entitlement-module"


def read_entitlement(book: Book, element: Element) -> None:
    """A remark, or a refusal: rights that somebody counts on must not be dropped in silence."""
    stray(book, element)
    modules = element.all("Module")
    if not modules:
        book.wrong(element.place("<AMPSConfig>"), "has no <Module>")
        return
    module = modules[0]
    if module.text == ALLOWS_ALL:
        book.remark(Verdict.NO_MEANING, element.place(), "without [[entitlement]] everything is allowed")
    else:
        book.remark(Verdict.REFUSED, module.place("<Entitlement>"), f"{module.text!r}; write [[entitlement]] instead")
