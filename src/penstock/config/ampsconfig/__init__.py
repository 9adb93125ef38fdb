"""AMPSConfig XML, as documented for AMPS 5.2 to 5.3, read into our settings.

`element_tree` has the tables, `values` the ways values are written, the other files one section each.  What AMPS
refuses is refused with its line; what is another thing here is remarked; what this version does not do yet is written
all the same, so that `config.load` refuses it by name.
"""

from penstock.config.ampsconfig.convert import read_ampsconfig
from penstock.config.ampsconfig.element_tree import SECTIONS

__all__ = ["SECTIONS", "read_ampsconfig"]
