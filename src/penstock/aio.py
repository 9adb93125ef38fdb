"""The client for asyncio: `import penstock.aio` and `from penstock import aio` both give `penstock.client.aio`.

The same object under both names: a class of the one is the class of the other, and nothing is loaded twice.
"""

import sys

from penstock.client import aio
from penstock.client.aio import *  # noqa: F403  # what a type checker and an editor see

sys.modules[__name__] = aio
